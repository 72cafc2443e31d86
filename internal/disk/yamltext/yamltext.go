// Package yamltext parses YAML within bounds of depth, time and memory.
//
// The parser that it calls takes time and memory with the square of the depth and of the number of
// entries of a mapping: 40 KB of brackets take 3 GB. So a text is bounded before it is parsed, and
// one of many lines is parsed in pieces: the lines of some entries of one mapping or list at a
// time. Lines, and errors about them, are those of the whole text.
package yamltext

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

const (
	// maxDepth bounds lists and mappings inside of each other. The files of weir have five.
	maxDepth = 32
	// maxLines and maxPiece bound a text that is parsed as a whole, in lines and bytes, and an entry
	// of a longer one. A piece ends after pieceLines or half of maxPiece.
	maxLines   = 512
	maxPiece   = 64 << 10
	pieceLines = 64
	// maxEntry bounds an entry that cannot be parsed in pieces, as one in brackets, in bytes, and
	// maxKeys the keys in its lines.
	maxEntry = 256 << 10
	maxKeys  = 1024
)

// Visit gets a piece of a text: entries of the mapping, or of the list, that has been opened last at
// a depth, from 0. If opens is set, the piece is one entry of a mapping whose value is not in it,
// and follows as pieces of the depth below.
type Visit func(depth int, n ast.Node, opens bool) error

// Walk parses a text, and visits what is in it in its order. Errors begin with the line.
func Walk(data []byte, visit Visit) error {
	data = bytes.TrimPrefix(data, []byte("\ufeff")) // which editors of Windows put before a text
	w := walker{visit: visit}
	t := text{data, 1}
	if t.small() {
		return w.whole(t, 0)
	}
	return w.level(t, 0)
}

// Check reports whether a text is within the bounds, and whole enough to be parsed.
func Check(data []byte) error {
	if len(data) > maxEntry {
		return fmt.Errorf("it is longer than %d KiB", maxEntry>>10)
	}
	_, err := parse(text{data, 1})
	return err
}

// text is some lines of a file.
type text struct {
	data []byte
	line int // of the first, from 1
}

func (t text) small() bool {
	return len(t.data) <= maxPiece && bytes.Count(t.data, newline) <= maxLines
}

var newline = []byte("\n")

// walker is a walk through a text.
type walker struct {
	visit Visit
	begun bool // the file's document
}

// whole visits a text as one piece.
func (w *walker) whole(t text, depth int) error {
	file, err := parse(t)
	if err != nil {
		return err
	}
	for _, doc := range file.Docs {
		if doc.Start != nil && w.begun {
			return secondDocument(doc.Start)
		}
		w.begun = w.begun || doc.Start != nil
		if doc.Body == nil || doc.Body.Type() == ast.CommentType {
			continue
		}
		w.begun = true
		if err := w.visit(depth, doc.Body, false); err != nil {
			return err
		}
	}
	return nil
}

// level visits a text of many lines: the entries of a mapping, or of a list, which begin at the
// same column.
func (w *walker) level(t text, depth int) error {
	if depth > maxDepth {
		return tooDeep(t.line)
	}
	starts := append(t.entries(), place{len(t.data), 0})
	from := place{0, t.line} // of the piece
	least := 0               // bytes of the piece, below which a value in it is still open
	flush := func(to place) error {
		piece := t.cut(from, to)
		err := w.whole(piece, depth)
		if _, open := err.(openError); open && to.at < len(t.data) && len(piece.data) < maxEntry {
			least = 2 * len(piece.data) // the value has lines that look like entries
			return nil
		}
		from, least = to, 0
		return err
	}
	for i, at := range starts[:len(starts)-1] {
		next := starts[i+1]
		entry := t.cut(at, next)
		if least == 0 && !entry.small() {
			if head, body, ok := entry.open(); ok {
				if at != from {
					if err := flush(at); err != nil {
						return err
					}
				}
				from, w.begun = next, true
				if err := w.visit(depth, head, true); err != nil {
					return err
				}
				if err := w.level(body, depth+1); err != nil {
					return err
				}
				continue
			}
		}
		if piece := t.cut(from, at); at != from && len(piece.data) >= least && (least > 0 || len(piece.data) >= maxPiece/2 || at.line-from.line >= pieceLines || !entry.small()) {
			if err := flush(at); err != nil {
				return err
			}
		}
	}
	if end := starts[len(starts)-1]; from.at < end.at {
		return flush(end)
	}
	return nil
}

// wide reports whether a line is so long that no error shows it: that would take time and memory with
// the square of its length.
func (t text) wide() bool {
	for line := range bytes.Lines(t.data) {
		if len(line) > 1000 {
			return true
		}
	}
	return false
}

// place is where a line begins.
type place struct{ at, line int }

func (t text) cut(from, to place) text { return text{t.data[from.at:to.at], from.line} }

// entries returns where the lines begin that begin an entry, by their indentation.
func (t text) entries() (starts []place) {
	width, list := -1, false
	p := place{0, t.line}
	for line := range bytes.Lines(t.data) {
		rest := bytes.TrimLeft(line, " ")
		if is := bytes.TrimSpace(rest); len(is) > 0 && is[0] != '#' {
			if width < 0 {
				width, list = len(line)-len(rest), item(is)
			}
			if len(line)-len(rest) == width && item(is) == list && !bytes.ContainsRune([]byte("]},"), rune(is[0])) {
				starts = append(starts, p)
			}
		}
		p.at, p.line = p.at+len(line), p.line+1
	}
	return starts
}

// item reports whether a line begins an item of a list.
func item(line []byte) bool {
	return line[0] == '-' && (len(line) == 1 || line[1] == ' ' || line[1] == '\t')
}

// open parts an entry into its key and the lines of its value, if that is a mapping or a list in
// lines of its own.
func (t text) open() (head ast.Node, body text, ok bool) {
	first, rest, _ := bytes.Cut(t.data, newline)
	is := bytes.TrimLeft(rest, " \n")
	file, err := parse(text{first, t.line})
	if err != nil || item(bytes.TrimLeft(first, " ")) || len(is) == 0 || len(file.Docs) != 1 {
		return nil, body, false
	}
	var value ast.Node
	switch n := file.Docs[0].Body.(type) {
	case *ast.MappingValueNode:
		value = n.Value
	case *ast.MappingNode:
		if len(n.Values) == 1 {
			value = n.Values[0].Value
		}
	}
	_, null := value.(*ast.NullNode)
	return file.Docs[0].Body, text{rest, t.line + 1}, null && !bytes.Contains(first, []byte("|")) && !bytes.Contains(first, []byte(">"))
}

// openError is an error of a text that ends within a value.
type openError struct{ error }

// parse parses a piece, if it is within the bounds.
func parse(t text) (*ast.File, error) {
	if len(t.data) > maxEntry {
		return nil, fmt.Errorf("line %d: a value that begins here or below is longer than %d KiB; write its parts in lines of their own", t.line, maxEntry>>10)
	}
	tokens := lexer.Tokenize(string(t.data))
	for _, tk := range tokens {
		tk.Position.Line += t.line - 1
	}
	open, err := check(tokens)
	if err != nil {
		return nil, err
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		err = errors.New(yaml.FormatError(err, false, !t.wide()))
		if open {
			err = openError{err}
		}
		return nil, err
	}
	return file, nil
}

// check holds tokens against the bounds, and reports whether they end within a value. Its cost is
// linear, and the parser is not called before.
func check(tokens token.Tokens) (open bool, err error) {
	var blocks []int // the columns at which lists and mappings have begun
	flows, keys, documents := 0, 0, 0
	for i, tk := range tokens {
		switch tk.Type {
		case token.SequenceStartType, token.MappingStartType:
			flows++
		case token.SequenceEndType, token.MappingEndType:
			flows = max(flows-1, 0)
		case token.DocumentHeaderType:
			if documents++; documents > 1 {
				return false, secondDocument(tk)
			}
		case token.SequenceEntryType, token.MappingKeyType:
			blocks = deeper(blocks, tk)
		case token.MappingValueType:
			if flows > 0 {
				break
			}
			if keys++; i > 0 {
				blocks = deeper(blocks, tokens[i-1])
			}
		}
		switch {
		case flows+len(blocks) > maxDepth:
			return false, tooDeep(tk.Position.Line)
		case keys > maxKeys:
			return false, fmt.Errorf("line %d: the entry has more than %d keys", tk.Position.Line, maxKeys)
		}
	}
	bad := tokens.InvalidToken()
	return flows > 0 || bad != nil && strings.HasPrefix(bad.Error, "could not find end character"), nil
}

// deeper returns the columns with that of a token, without those behind it.
func deeper(blocks []int, tk *token.Token) []int {
	for len(blocks) > 0 && blocks[len(blocks)-1] >= tk.Position.Column {
		blocks = blocks[:len(blocks)-1]
	}
	return append(blocks, tk.Position.Column)
}

func secondDocument(at *token.Token) error {
	return fmt.Errorf("line %d: a second document begins here (---); a file has one", at.Position.Line)
}

func tooDeep(line int) error {
	return fmt.Errorf("line %d: lists and mappings are inside of each other more than %d times", line, maxDepth)
}
