package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/disk"
	"weir/internal/infer"
	"weir/internal/model/tokenizer"
)

type tokenizeCommand struct {
	File   string `arg:"" placeholder:"FILE" help:"File to read; - is standard input."`
	Model  string `env:"-" placeholder:"DIR" help:"A Hugging Face model folder. By default the built-in model weir-sim."`
	Decode bool   `help:"Read a JSON array of token ids and print their text, with nothing added at its end."`
}

// Help implements kong's extended help.
func (tokenizeCommand) Help() string {
	return `Prints the token ids of the file's text as one JSON array. Special tokens in the text are recognised. The special tokens that a model adds around a prompt are not added. The ids are the ones that weir serve sends to engines.

Examples:
  weir tokenize --model ~/models/Llama-3.1-8B-Instruct prompt.txt
  echo -n 'Hello, world' | weir tokenize -
  weir tokenize prompt.txt | weir tokenize --decode -`
}

// Run implements the command.
func (c *tokenizeCommand) Run(s *streams) error {
	model, err := c.load()
	if err != nil {
		return err
	}
	name, data, err := c.read(s.in)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(s.out)
	if c.Decode {
		err = decodeIDs(out, model, data)
	} else {
		err = encodeText(out, model, data)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

func (c *tokenizeCommand) load() (*tokenizer.Model, error) {
	if c.Model == "" {
		m, err := builtInModel()
		if err != nil {
			return nil, err
		}
		return m.folder.Model, nil
	}
	if info, err := os.Stat(c.Model); err != nil {
		return nil, fmt.Errorf("--model: %w", withoutOp(err))
	} else if !info.IsDir() {
		return nil, fmt.Errorf("--model: %s is a file; give the folder that holds tokenizer.json", c.Model)
	}
	m, err := tokenizer.Load(disk.Folder(c.Model))
	if err != nil {
		return nil, fmt.Errorf("--model %s: %w", c.Model, err)
	}
	return m, nil
}

// read returns the input and its name in errors.
func (c *tokenizeCommand) read(stdin io.Reader) (name string, data []byte, err error) {
	if c.File == "-" {
		if data, err = disk.ReadAll(stdin, "standard input", 0, disk.MaxText); err != nil {
			err = fmt.Errorf("standard input: %w", withoutOp(err))
		}
		return "standard input", data, err
	}
	if data, err = disk.ReadOnce(c.File, disk.MaxText); err != nil {
		err = fmt.Errorf("%s: %w", c.File, withoutOp(err))
	}
	return c.File, data, err
}

// withoutOp removes the call and the path from a file's error: the caller names the file
// itself.
func withoutOp(err error) error {
	var e *fs.PathError
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}

// encodeText writes the ids of a text as one JSON array.
func encodeText(w *bufio.Writer, m *tokenizer.Model, text []byte) error {
	ids, err := m.Tokenizer.NewEncoder().EncodeBytes(context.Background(), nil, text, tokenizer.EncodeOptions{})
	if err != nil {
		var e *infer.Error
		if errors.As(err, &e) {
			return errors.New(e.Message)
		}
		return err
	}
	w.WriteByte('[')
	for i, id := range ids {
		if i > 0 {
			w.WriteByte(',')
		}
		w.Write(strconv.AppendUint(w.AvailableBuffer(), uint64(id), 10))
	}
	_, err = w.WriteString("]\n")
	return err
}

// decodeIDs writes the text of a JSON array of ids, as it is and without a
// line end of its own.
func decodeIDs(w *bufio.Writer, m *tokenizer.Model, data []byte) error {
	dec := jsontext.NewDecoder(bytes.NewReader(data))
	if kind := dec.PeekKind(); kind != '[' && kind != jsontext.KindInvalid {
		return placed(data, dec, "want a JSON array of ids, found %s", kind)
	}
	if _, err := dec.ReadToken(); err != nil {
		return notJSON(data, err)
	}
	size := max(m.VocabSize, m.Tokenizer.Size())
	detok := tokenizer.NewDetokenizer(m.Tokenizer, tokenizer.DetokenizerOptions{})
	var id [1]uint32
	for i := 0; dec.PeekKind() != ']'; i++ {
		t, err := dec.ReadToken()
		if err != nil {
			return notJSON(data, err)
		}
		n, err := strconv.ParseUint(t.String(), 10, 32)
		if t.Kind() != '0' || err != nil || int(n) >= size {
			return placed(data, dec, "[%d] is %.32s; the model's ids are 0 to %d", i, t, size-1)
		}
		id[0] = uint32(n)
		text, _, _ := detok.Append(w.AvailableBuffer(), id[:])
		if _, err := w.Write(text); err != nil {
			return err
		}
	}
	if _, err := dec.ReadToken(); err != nil {
		return notJSON(data, err)
	}
	if _, err := dec.ReadToken(); err != io.EOF {
		return placed(data, dec, "there is more after the array")
	}
	text, _ := detok.Finish(nil)
	_, err := w.Write(text)
	return err
}

// placed returns an error about the value that the decoder has just read, or is about to
// read.
func placed(data []byte, dec *jsontext.Decoder, format string, args ...any) error {
	return at(data, int(dec.InputOffset()), format, args...)
}

func notJSON(data []byte, err error) error {
	var syn *jsontext.SyntacticError
	if errors.As(err, &syn) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return at(data, int(syn.ByteOffset), "%v", syn.Err)
	}
	return at(data, len(data), "unexpected end; want a JSON array of ids such as [1,2,3]")
}

// at returns where in the input something is: lines and columns from 1, columns
// in characters.
func at(data []byte, offset int, format string, args ...any) error {
	before := data[:min(offset, len(data))]
	line := 1 + bytes.Count(before, []byte{'\n'})
	column := 1 + utf8.RuneCount(before[1+bytes.LastIndexByte(before, '\n'):])
	return fmt.Errorf("line %d, column %d: %s", line, column, fmt.Sprintf(format, args...))
}
