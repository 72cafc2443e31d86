// Command tokenize measures weir's tokenizer beside the reference libraries.
//
//	WEIR_PYTHON=.venv/bin/python go run ./bench/tokenize
//
// It encodes prompts of 2 KB and 160 KB (English, code, Chinese, emoji, white
// space), and runs of a megabyte, under every grammar on one core. It prints a
// Markdown table: tokens a second cold (the encoder's cache is emptied before
// each text) and warm, and allocations. If WEIR_PYTHON names a Python that has
// Hugging Face's tokenizers and tiktoken, the table also has their figures of
// the same run; tiktoken reads its own form, tokenizers all others. Each figure
// is the best of the passes that fit into -t. The libraries keep caches of their
// own, which are warm.
//
// All vocabularies are made of the built-in one, so that only the grammars
// differ. The command fails if the number of ids differs from the library's.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"weir/internal/model/tokenizer"
)

func main() {
	each := flag.Duration("t", 60*time.Millisecond, "time for each figure")
	only := flag.String("grammar", "", "measure this grammar alone")
	longest := flag.Int("longest", 1<<20, "leave out longer texts, in bytes")
	flag.Parse()
	if err := run(os.Stdout, *each, *only, *longest); err != nil {
		fmt.Fprintln(os.Stderr, "tokenize:", err)
		os.Exit(1)
	}
}

// run prints the table.
func run(w io.Writer, each time.Duration, only string, longest int) error {
	dir, err := os.MkdirTemp("", "weir-tokenize-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	grammars, err := grammarDirs(dir)
	if err != nil {
		return err
	}
	texts, err := samples()
	if err != nil {
		return err
	}
	for i, x := range texts {
		if err := os.WriteFile(textFile(dir, i), []byte(x.text), 0o600); err != nil {
			return err
		}
	}
	ref, err := startReference()
	if err != nil {
		return err
	}
	defer ref.close()
	fmt.Fprintf(w, "%s, %s/%s, one of %d cores, %s.\n\n", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), time.Now().UTC().Format(time.DateOnly))
	runtime.GOMAXPROCS(1) // the collector's share counts too
	fmt.Fprintln(w, "| grammar | text | tokens | cold M tok/s | warm M tok/s | library M tok/s | cold to library | allocations |")
	fmt.Fprintln(w, "|---|---|---:|---:|---:|---:|---:|---:|")
	var llama3 *tokenizer.Tokenizer
	for _, g := range grammars {
		if only != "" && only != g.name {
			continue
		}
		m, err := tokenizer.Load(os.DirFS(g.path))
		if err != nil {
			return fmt.Errorf("%s: %w", g.name, err)
		}
		if g.name == "llama3" {
			llama3 = m.Tokenizer
		}
		for i, x := range texts {
			if len(x.text) > longest {
				continue
			}
			r, err := measure(m.Tokenizer, x.text, each)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", g.name, x.name, err)
			}
			library, ratio := "", ""
			// The libraries need minutes for some of the runs.
			if len(x.text) <= longPrompt {
				answer, err := ref.ask(g, textFile(dir, i), each)
				if err != nil {
					return err
				}
				if answer != nil && answer.Tokens != r.tokens {
					return fmt.Errorf("%s, %s: %d tokens, the library has %d", g.name, x.name, r.tokens, answer.Tokens)
				}
				if answer != nil {
					library = fmt.Sprintf("%.2f", answer.Rate/1e6)
					ratio = fmt.Sprintf("%.1f", r.cold/answer.Rate)
				}
			}
			fmt.Fprintf(w, "| %s | %s | %d | %.1f | %.1f | %s | %s | %.0f |\n", g.name, x.name, r.tokens, r.cold/1e6, r.warm/1e6, library, ratio, r.allocations)
		}
	}
	if llama3 == nil || longest < longPrompt {
		return nil
	}
	return prefixReuse(w, llama3, texts[longEnglish].text, 4*each)
}

func textFile(dir string, i int) string { return filepath.Join(dir, fmt.Sprintf("text-%d", i)) }

// result has the figures of one text.
type result struct {
	tokens      int
	cold, warm  float64 // tokens a second
	allocations float64 // of a cold pass
}

// measure encodes a text again and again.
func measure(t *tokenizer.Tokenizer, text string, each time.Duration) (result, error) {
	enc := t.NewEncoder()
	ids := make([]uint32, 0, len(text)+16)
	var failed error
	pass := func() {
		var err error
		if ids, err = enc.Encode(context.Background(), ids[:0], text, tokenizer.EncodeOptions{}); err != nil {
			failed = err
		}
	}
	best := func(before func()) float64 {
		least := time.Duration(1 << 62)
		for end := time.Now().Add(each); ; {
			before()
			start := time.Now()
			pass()
			now := time.Now()
			least = min(least, now.Sub(start))
			if now.After(end) {
				return float64(len(ids)) / least.Seconds()
			}
		}
	}
	pass() // buffers grow
	r := result{cold: best(enc.Forget), warm: best(func() {}), tokens: len(ids)}
	r.allocations = testing.AllocsPerRun(1, func() {
		enc.Forget()
		pass()
	})
	return r, failed
}

// reference is a running reference.py, or nil without WEIR_PYTHON.
type reference struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startReference() (*reference, error) {
	python := os.Getenv("WEIR_PYTHON")
	if python == "" {
		fmt.Fprintln(os.Stderr, "tokenize: WEIR_PYTHON is not set, so that the libraries are not measured")
		return nil, nil
	}
	_, self, _, _ := runtime.Caller(0)
	cmd := exec.Command(python, filepath.Join(filepath.Dir(self), "reference.py"))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &reference{cmd, in, bufio.NewReader(out)}, nil
}

func (r *reference) close() {
	if r != nil {
		r.in.Close()
		r.cmd.Wait()
	}
}

// answer has the library's figures.
type answer struct {
	Tokens int     `json:"tokens"`
	Rate   float64 `json:"tokens_per_second"`
}

func (r *reference) ask(g grammarDir, text string, each time.Duration) (*answer, error) {
	if r == nil {
		return nil, nil
	}
	ask, err := json.Marshal(object{"library": g.library, "dir": g.path, "text": text, "seconds": each.Seconds()})
	if err != nil {
		return nil, err
	}
	if _, err := r.in.Write(append(ask, '\n')); err != nil {
		return nil, fmt.Errorf("reference.py: %w", err)
	}
	line, err := r.out.ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("reference.py: %w", err)
	}
	var a answer
	if err := json.Unmarshal([]byte(strings.TrimSpace(line)), &a); err != nil {
		return nil, fmt.Errorf("reference.py: %w", err)
	}
	return &a, nil
}
