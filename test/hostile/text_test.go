//go:build linux

package hostile

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// row is an attack: its text, and what must come back, as names with values.
type row struct {
	title string
	texts []string
	want  map[string]string
}

// rows reads an attack file: blocks, parted by an empty line, each of a title after #, lines of text
// after >, and lines of a name and a value after =. Lines after ; are comments.
func rows(t *testing.T, file string) (all []row) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	for block := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
		r := row{want: map[string]string{}}
		for line := range strings.Lines(block) {
			line = strings.TrimRight(line, "\n")
			switch rest := strings.TrimSpace(line[min(1, len(line)):]); {
			case strings.HasPrefix(line, "#"):
				r.title = rest
			case strings.HasPrefix(line, ">"):
				r.texts = append(r.texts, rest)
			case strings.HasPrefix(line, "="):
				name, value, _ := strings.Cut(rest, " ")
				r.want[name] = value
			case strings.HasPrefix(line, ";"):
			default:
				t.Fatalf("%s: %q", file, line)
			}
		}
		if r.title != "" && strings.Contains(r.title, *only) {
			all = append(all, r)
		}
	}
	if len(all) == 0 && *only == "" {
		t.Fatalf("%s has no rows", file)
	}
	return all
}

// beside does each of some, n at a time, and waits for them.
func beside[T any](n int, all []T, do func(T)) {
	var wait sync.WaitGroup
	room := make(chan struct{}, n)
	for _, one := range all {
		room <- struct{}{}
		wait.Go(func() { defer func() { <-room }(); do(one) })
	}
	wait.Wait()
}

// number is a wanted number, or another one where the row says nothing.
func (r row) number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	v, ok := r.want[name]
	if !ok {
		return otherwise
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		t.Fatalf("%s: %s: %v", r.title, name, err)
	}
	return n
}

// grammar has the alternatives of each name. In a text, | is CRLF, \ escapes as in Go, {name} is an
// alternative of that name, and {9*text} is text nine times.
type grammar map[string][]string

// readGrammar reads names, each with its alternatives in indented lines. A number before an
// alternative, with a colon, is its weight.
func readGrammar(t *testing.T, file string) grammar {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	g, name := grammar{}, ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		switch {
		case line == "" || line[0] == ';':
		case line[0] != '\t':
			name = line
		default:
			alternative := line[1:]
			weight := 1
			if w, rest, ok := strings.Cut(alternative, ": "); ok {
				if n, err := strconv.Atoi(w); err == nil {
					weight, alternative = n, rest
				}
			}
			for range weight {
				g[name] = append(g[name], alternative)
			}
		}
	}
	return g
}

// expand makes the bytes of a text. vars go before names of the grammar; rng may be nil where every
// name is a variable.
func (g grammar) expand(rng *rand.Rand, text string, vars map[string]string) string {
	var b strings.Builder
	for text != "" {
		at := strings.IndexAny(text, `|\{`)
		if at < 0 {
			b.WriteString(text)
			break
		}
		b.WriteString(text[:at])
		switch text = text[at:]; text[0] {
		case '|':
			b.WriteString("\r\n")
			text = text[1:]
		case '\\':
			r, wide, rest, err := strconv.UnquoteChar(text, 0)
			if err != nil {
				panic(fmt.Sprintf("%.40q: %v", text, err))
			}
			if wide {
				b.WriteRune(r)
			} else {
				b.WriteByte(byte(r))
			}
			text = rest
		default:
			end := closing(text)
			name := text[1:max(end, 1)]
			times, repeated, ok := strings.Cut(name, "*")
			n, err := strconv.Atoi(times)
			switch alternatives := g[name]; {
			case ok && err == nil:
				b.WriteString(strings.Repeat(g.expand(rng, repeated, vars), n))
			case vars[name] != "":
				b.WriteString(vars[name])
			case len(alternatives) > 0:
				b.WriteString(g.expand(rng, alternatives[rng.IntN(len(alternatives))], vars))
			default: // a brace of JSON
				b.WriteByte('{')
				end = 0
			}
			text = text[end+1:]
		}
	}
	return b.String()
}

// closing is where the brace that text begins with is closed, or -1.
func closing(text string) int {
	depth := 0
	for i := range len(text) {
		switch text[i] {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}
