package workload

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// mooncake reads traces in the form of Mooncake (FAST '25): one JSON object a line, with
// timestamp (milliseconds), input_length and output_length (tokens) and hash_ids, one for
// each block of the prompt; the last block may be cut. Requests with the same first hash
// ids have the same prefix. Other fields are ignored.
type mooncake struct {
	o     Options
	name  string
	lines *bufio.Reader
	line  int
	n     uint64 // requests given
	long  []byte // of a line that the reader's buffer does not hold
	row   mooncakeRow
	at    arrivals
	parts []Part
}

type mooncakeRow struct {
	Timestamp *float64 `json:"timestamp"`
	Input     *int64   `json:"input_length"`
	Output    *int64   `json:"output_length"`
	Hashes    []uint64 `json:"hash_ids"`
}

// defaultBlock is the number of tokens of a block in Mooncake's traces.
const defaultBlock = 512

// lineBuffer holds most lines; longer ones are collected.
const lineBuffer = 64 << 10

func newMooncake(r io.Reader, name string, o Options) *mooncake {
	if o.Block == 0 {
		o.Block = defaultBlock
	}
	return &mooncake{o: o, name: name, lines: bufio.NewReaderSize(r, lineBuffer)}
}

// Next implements Source.
func (m *mooncake) Next(r *Request) error {
	for {
		line, err := m.read()
		if err != nil {
			return err
		}
		if len(bytes.TrimSpace(line)) > 0 {
			return m.parse(line, r)
		}
	}
}

// read returns the next line. It is valid until the next call.
func (m *mooncake) read() ([]byte, error) {
	m.line++
	m.long = m.long[:0]
	for {
		part, err := m.lines.ReadSlice('\n')
		if err == nil && len(m.long) == 0 {
			return part, nil
		}
		m.long = append(m.long, part...)
		switch {
		case err == nil, err == io.EOF && len(m.long) > 0:
			return m.long, nil
		case err == io.EOF:
			return nil, io.EOF
		case errors.Is(err, bufio.ErrBufferFull) && len(m.long) > maxLine:
			return nil, m.wrong("", fmt.Errorf("the line is longer than %d MiB", maxLine>>20))
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, m.wrong("", fmt.Errorf("read: %w", err))
		}
	}
}

func (m *mooncake) wrong(field string, err error) error {
	return &Error{File: m.name, Line: m.line, Field: field, Err: err}
}

func (m *mooncake) parse(line []byte, r *Request) error {
	row := &m.row
	*row = mooncakeRow{Hashes: row.Hashes[:0]}
	if err := json.Unmarshal(line, row); err != nil {
		field, err := jsonFault(err)
		return m.wrong(field, err)
	}
	switch {
	case row.Timestamp == nil:
		return m.wrong("timestamp", errMissing)
	case row.Input == nil:
		return m.wrong("input_length", errMissing)
	case row.Output == nil:
		return m.wrong("output_length", errMissing)
	}
	if ms := *row.Timestamp; !(ms >= 0 && ms < float64(maxTime/time.Millisecond)) {
		return m.wrong("timestamp", fmt.Errorf("%v is not a number of milliseconds since the start", ms))
	}
	at, err := m.at.next(time.Duration(*row.Timestamp * 1e6))
	if err != nil {
		return m.wrong("timestamp", err)
	}
	input, err := tokens(*row.Input)
	if err != nil {
		return m.wrong("input_length", err)
	}
	output, err := tokens(*row.Output)
	if err != nil {
		return m.wrong("output_length", err)
	}
	if err := m.split(input); err != nil {
		return m.wrong("hash_ids", err)
	}
	m.n++
	*r = Request{At: at, Parts: m.parts, Output: output, Line: m.line}
	return nil
}

// split makes parts of a prompt, one a block.
func (m *mooncake) split(input int) error {
	m.parts = m.parts[:0]
	hashes := m.row.Hashes
	if len(hashes) == 0 {
		if input > 0 {
			m.parts = append(m.parts, Part{key(m.o.Seed, ownParts, m.n), input})
		}
		return nil
	}
	if want := (input + m.o.Block - 1) / m.o.Block; len(hashes) != want {
		return fmt.Errorf("there are %d for an input_length of %d; blocks of %d tokens need %d (another size of block is set with %s)",
			len(hashes), input, m.o.Block, want, blockSetting)
	}
	for i, h := range hashes {
		m.parts = append(m.parts, Part{key(m.o.Seed, blockParts, h), min(m.o.Block, input-i*m.o.Block)})
	}
	return nil
}

// blockSetting is how a trace's size of block is set.
const blockSetting = "--trace-block"

var errMissing = errors.New("it is missing")

// jsonFault returns the top-level field with a wrong value, if there is one, and the cause
// without the decoder's own location.
func jsonFault(err error) (field string, cause error) {
	var sem *json.SemanticError
	if errors.As(err, &sem) {
		pointer := sem.JSONPointer
		field = string(firstToken(pointer))
		switch {
		case sem.Err != nil && len(sem.JSONValue) > 0:
			return field, fmt.Errorf("%s: %w", shorten(sem.JSONValue), sem.Err)
		case len(sem.JSONValue) > 0 && sem.GoType != nil:
			return field, fmt.Errorf("%s is not a %s", shorten(sem.JSONValue), article(sem.GoType.Kind().String()))
		case sem.GoType != nil:
			return field, fmt.Errorf("a JSON %v is not a %s", sem.JSONKind, article(sem.GoType.Kind().String()))
		}
		return field, err
	}
	var syn *jsontext.SyntacticError
	if errors.As(err, &syn) {
		return string(firstToken(syn.JSONPointer)), fmt.Errorf("not valid JSON at byte %d: %w", syn.ByteOffset+1, syn.Err)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return "", errors.New("the JSON object ends too early")
	}
	return "", err
}

// firstToken returns the name in the object at the top.
func firstToken(p jsontext.Pointer) string {
	for token := range p.Tokens() {
		return token
	}
	return ""
}

// article returns the JSON name of a Go type, with its article.
func article(kind string) string {
	switch kind {
	case "int64":
		return "whole number"
	case "uint64":
		return "whole number that is not negative"
	case "float64":
		return "number"
	case "slice":
		return "list of numbers"
	case "struct":
		return "JSON object"
	}
	return kind
}

func shorten(v []byte) []byte {
	if len(v) > 40 {
		return append(bytes.Clone(v[:37]), "..."...)
	}
	return v
}
