package config

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Section is a mapping of a YAML file in the order of its lines, each key once, for files that
// are more than a list of flags.
type Section struct {
	Line    int
	Entries []Entry
}

// Entry is a key of a section and its value: values in the words of the command
// line, or a section.
type Entry struct {
	Key  string
	Line int
	// Values has one value or, if Listed is set, those of a list.
	Values []string
	Listed bool
	// Section is the value where it is a mapping.
	Section *Section
}

// ReadSections reads a YAML file whose values are scalars, lists of scalars and
// mappings of these.
func ReadSections(path string) (*Section, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	s, err := ParseSections(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

func ParseSections(data []byte) (*Section, error) {
	tree, err := parseYAML(data)
	if err != nil {
		return nil, err
	}
	for _, doc := range tree.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.CommentType {
			continue
		}
		return section(doc.Body)
	}
	return &Section{Line: 1}, nil
}

// Check returns an error for unknown keys, with the nearest known one.
func (s *Section) Check(known []string) error {
	for i := range s.Entries {
		if e := &s.Entries[i]; !slices.Contains(known, e.Key) {
			return unknownKey(e.Line, e.Key, known, strings.Join(slices.Sorted(slices.Values(known)), ", "))
		}
	}
	return nil
}

// Find returns the entry of a key, nil where there is none.
func (s *Section) Find(key string) *Entry {
	if s == nil {
		return nil
	}
	for i := range s.Entries {
		if s.Entries[i].Key == key {
			return &s.Entries[i]
		}
	}
	return nil
}

func section(n ast.Node) (*Section, error) {
	if _, ok := n.(ast.MapNode); !ok {
		return nil, fmt.Errorf("line %d: want keys, each with a value, as in \"seed: 1\"", line(n))
	}
	s := &Section{Line: line(n)}
	for _, entry := range entries(n) {
		e := Entry{Key: entry.Key.String(), Line: line(entry.Key)}
		if err := e.read(entry.Value); err != nil {
			return nil, err
		}
		s.Entries = append(s.Entries, e)
	}
	return s, nil
}

func (e *Entry) read(n ast.Node) (err error) {
	items := []ast.Node{n}
	switch n := n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		e.Section, err = section(n)
		return err
	case *ast.SequenceNode:
		e.Listed, items = true, n.Values
	}
	for _, item := range items {
		if _, ok := item.(ast.MapNode); ok {
			return fmt.Errorf("line %d: %q takes plain values", line(item), e.Key)
		}
		value, err := flagValue(e.Key, item)
		if err != nil {
			return err
		}
		e.Values = append(e.Values, value)
	}
	return nil
}

func parseYAML(data []byte) (*ast.File, error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff")) // which editors of Windows put before a text
	tree, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, fmt.Errorf("%s", yaml.FormatError(err, false, true))
	}
	return tree, nil
}

// unknownKey refuses a key with the nearest one that is known, or else with what the keys are.
func unknownKey(line int, key string, known []string, keys string) error {
	if near := suggest(key, slices.Sorted(slices.Values(known))); near != "" {
		return fmt.Errorf("line %d: unknown key %q%s", line, key, near)
	}
	return fmt.Errorf("line %d: unknown key %q; the keys are %s", line, key, keys)
}
