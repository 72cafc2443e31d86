// Package yamltext parses YAML that an operator has written, within bounds.
package yamltext

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// maxDepth bounds lists and mappings inside of each other, those in lines and those in brackets
// each. The files of weir have five.
const maxDepth = 32

// Parse returns the root of a text's one document, or nil if the text has none. Errors begin with
// the line. A text has no directives: a file of weir needs none, and the parser takes time with the
// square of their number.
func Parse(data []byte) (*yaml.Node, error) {
	if !utf8.Valid(data) {
		return nil, fmt.Errorf("line %d: the text is not UTF-8", invalidLine(data))
	}
	if at := directive(data); at >= 0 {
		return nil, fmt.Errorf("line %d: a line begins with %%; a file has no directives of YAML", lineOf(data, at))
	}
	l, err := yaml.NewLoader(bytes.NewReader(data), yaml.WithPlugin(limits{}))
	if err != nil {
		return nil, err
	}
	var doc, second yaml.Node
	switch err := l.Load(&doc); {
	case err == io.EOF:
		return nil, nil
	case err != nil:
		return nil, plain(data, err)
	}
	switch err := l.Load(&second); {
	case err == nil:
		return nil, fmt.Errorf("line %d: a second document begins here (---); a file has one", second.Line)
	case err != io.EOF:
		return nil, plain(data, err)
	}
	return doc.Content[0], nil
}

// Decode parses a text, and stores what it has in a value.
func Decode(data []byte, into any) error {
	root, err := Parse(data)
	if err == nil && root != nil {
		err = root.Load(into, yaml.WithPlugin(limits{}))
	}
	return plain(data, err)
}

// directive returns where a line begins with %, which no line of a value does; or -1.
func directive(data []byte) int {
	for at := 0; ; at++ {
		next := bytes.IndexByte(data[at:], '%')
		if next < 0 {
			return -1
		}
		at += next
		switch before, _ := utf8.DecodeLastRune(bytes.TrimPrefix(data[:at], []byte("\ufeff"))); before {
		case utf8.RuneError, '\n', '\r', '\u0085', '\u2028', '\u2029': // the first: nothing is before
			return at
		}
	}
}

func lineOf(data []byte, at int) int { return 1 + bytes.Count(data[:at], []byte("\n")) }

// invalidLine returns the line of the first bytes that are not UTF-8.
func invalidLine(data []byte) int {
	line := 1
	for part := range bytes.Lines(data) {
		if !utf8.Valid(part) {
			break
		}
		line++
	}
	return line
}

// plain writes an error of the parser as weir writes its own.
func plain(data []byte, err error) error {
	at := (*yaml.LoadError)(nil)
	if !errors.As(err, &at) {
		return err
	}
	line := at.Mark.Line
	if line == 0 { // a character that no text of YAML has
		line = lineOf(data, min(at.Mark.Index, len(data)))
	}
	of := at.ContextMsg
	if of != "" && at.ContextMark.Line > 0 && at.ContextMark.Line != at.Mark.Line {
		of += fmt.Sprintf(" that begins in line %d", at.ContextMark.Line)
	}
	if of != "" {
		of = " (" + of + ")"
	}
	return fmt.Errorf("line %d: %.200s%s", line, at.Message, of)
}

// limits bounds what is parsed. No alias is followed: a few lines of them stand for gigabytes.
type limits struct{}

func (limits) CheckDepth(depth int, _ *yaml.DepthContext) error {
	if depth > maxDepth {
		return fmt.Errorf("lists and mappings are inside of each other more than %d times", maxDepth)
	}
	return nil
}

func (limits) CheckAlias(aliases, _ int) error {
	if aliases > 0 {
		return errors.New("an alias of YAML is not taken: write the value")
	}
	return nil
}
