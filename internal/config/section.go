package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"weir/internal/disk"
	"weir/internal/disk/yamltext"
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
	data, err := disk.Read(path, disk.MaxConfig)
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
	root := &Section{Line: 1}
	open, pieces := []*Section{root}, 0 // the sections that are read in pieces; nil: a list
	err := yamltext.Walk(data, func(depth int, n ast.Node, opens bool) error {
		open = open[:depth+1]
		s := open[depth]
		if pieces++; pieces == 1 {
			s.Line = line(n)
		}
		if depth > 0 {
			of := open[depth-1].last()
			if _, list := n.(*ast.SequenceNode); list {
				open[depth] = nil
				return of.read(n)
			}
			if s == nil {
				return fmt.Errorf("line %d: %q takes plain values", line(n), of.Key)
			}
			if of.Section == nil {
				s.Line, of.Section = line(n), s
			}
		}
		if opens {
			open = append(open, &Section{})
		}
		return s.read(n, opens)
	})
	if err == nil && pieces > 1 { // the parser has compared the keys of a piece
		err = root.distinct()
	}
	if err != nil {
		return nil, err
	}
	return root, nil
}

// distinct refuses keys that are there twice.
func (s *Section) distinct() error {
	lines := make(map[string]int, len(s.Entries))
	for i := range s.Entries {
		e := &s.Entries[i]
		if at, twice := lines[e.Key]; twice {
			return fmt.Errorf("line %d: mapping key %q already defined at line %d", e.Line, e.Key, at)
		}
		if lines[e.Key] = e.Line; e.Section != nil {
			if err := e.Section.distinct(); err != nil {
				return err
			}
		}
	}
	return nil
}

// last returns the entry that was read last.
func (s *Section) last() *Entry {
	if len(s.Entries) == 0 {
		return nil
	}
	return &s.Entries[len(s.Entries)-1]
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

// read adds entries; the value of one that is open is read later.
func (s *Section) read(n ast.Node, open bool) error {
	if _, ok := n.(ast.MapNode); !ok {
		return fmt.Errorf("line %d: want keys, each with a value, as in \"seed: 1\"", line(n))
	}
	for _, entry := range entries(n) {
		e := Entry{Key: entry.Key.String(), Line: line(entry.Key)}
		if !open {
			if err := e.read(entry.Value); err != nil {
				return err
			}
		}
		s.Entries = append(s.Entries, e)
	}
	return nil
}

func (e *Entry) read(n ast.Node) (err error) {
	items := []ast.Node{n}
	switch n := n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		e.Section = &Section{Line: line(n)}
		return e.Section.read(n, false)
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

// unknownKey refuses a key with the nearest one that is known, or else with what the keys are.
func unknownKey(line int, key string, known []string, keys string) error {
	if near := suggest(key, slices.Sorted(slices.Values(known))); near != "" {
		return fmt.Errorf("line %d: unknown key %q%s", line, key, near)
	}
	return fmt.Errorf("line %d: unknown key %q; the keys are %s", line, key, keys)
}
