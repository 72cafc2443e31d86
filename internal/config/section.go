package config

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

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
	root, err := yamltext.Parse(data)
	if err != nil || root == nil {
		return &Section{Line: 1}, err
	}
	return sectionOf(root)
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

// sectionOf reads a mapping.
func sectionOf(n *yaml.Node) (*Section, error) {
	if n.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: want keys, each with a value, as in \"seed: 1\"", n.Line)
	}
	s := &Section{Line: n.Line, Entries: make([]Entry, 0, len(n.Content)/2)}
	var lines map[string]int // of many keys
	if cap(s.Entries) > 16 {
		lines = make(map[string]int, cap(s.Entries))
	}
	for k, value := range entries(n) {
		key, err := word(k)
		if err != nil {
			return nil, err
		}
		at := lines[key]
		if lines != nil {
			lines[key] = k.Line
		} else if e := s.Find(key); e != nil {
			at = e.Line
		}
		if at > 0 {
			return nil, fmt.Errorf("line %d: key %q is set twice, first in line %d", k.Line, key, at)
		}
		e := Entry{Key: key, Line: k.Line}
		if err := e.read(value); err != nil {
			return nil, err
		}
		s.Entries = append(s.Entries, e)
	}
	return s, nil
}

func (e *Entry) read(n *yaml.Node) (err error) {
	items := []*yaml.Node{n}
	switch plain := n.Anchor == "" && n.Style&yaml.TaggedStyle == 0; {
	case n.Kind == yaml.MappingNode && plain:
		e.Section, err = sectionOf(n)
		return err
	case n.Kind == yaml.SequenceNode && plain:
		e.Listed, items = true, n.Content
	}
	for _, item := range items {
		if item.Kind == yaml.MappingNode {
			return fmt.Errorf("line %d: %q takes plain values", item.Line, e.Key)
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
