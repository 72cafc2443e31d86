package config

import (
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"weir/internal/disk"
	"weir/internal/disk/yamltext"
)

// File is a configuration file: for each flag it sets, the flag's values in the
// words of the command line, and the lines that they stand in.
type File struct {
	Path   string
	Values map[string][]string
	Lines  map[string][]int
	Said   bool // the file says what there is, if only {}
}

// ReadFile reads a YAML file whose top-level keys are flag names without their dashes. A
// repeatable flag takes a list; engines and models may be written as mappings instead of
// the command line's one-line form. An unknown key is an error that names the line and the
// nearest known key. The error has one entry for each wrong key, and the file contains the
// correct keys.
func ReadFile(path string, flags []string) (*File, error) {
	data, err := disk.Read(path, disk.MaxConfig)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	f, problems := parse(data, flags)
	f.Path = path
	for i, problem := range problems {
		problems[i] = fmt.Errorf("config %s: %w", path, problem)
	}
	return f, errors.Join(problems...)
}

func newFile() *File { return &File{Values: map[string][]string{}, Lines: map[string][]int{}} }

// mostProblems bounds the problems that are listed.
const mostProblems = 100

func parse(data []byte, flags []string) (f *File, problems []error) {
	f = newFile()
	root, err := yamltext.Parse(data)
	switch {
	case err != nil:
		return f, []error{err}
	case root == nil:
		return f, nil
	}
	f.Said = true
	if root.Kind != yaml.MappingNode && (root.Kind != yaml.ScalarNode || root.Tag != "!!null") {
		return f, []error{fmt.Errorf("line %d: want keys such as \"listen: 127.0.0.1:8000\"", root.Line)}
	}
	for key, value := range entries(root) {
		if len(problems) == mostProblems {
			return f, append(problems, fmt.Errorf("line %d: more than %d things are wrong; the rest was not read", key.Line, mostProblems))
		}
		if err := f.set(key, value, flags); err != nil {
			problems = append(problems, err)
		}
	}
	return f, problems
}

// collected is the number of keys whose memory is freed at a time.
const collected = 1 << 16

// entries are the keys of a mapping, each with its value.
func entries(n *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		for i := 0; n.Kind == yaml.MappingNode && i < len(n.Content); i += 2 {
			if i%(2*collected) == 0 && len(n.Content) > 2*collected {
				runtime.GC() // or the next collection would come when the heap is twice as large
			}
			key, value := n.Content[i], n.Content[i+1]
			if n.Content[i], n.Content[i+1] = nil, nil; !yield(key, value) {
				return
			}
		}
	}
}

// set reads a key and its value.
func (f *File) set(k, value *yaml.Node, flags []string) error {
	key, err := word(k)
	if err != nil {
		return err
	}
	if hyphened := strings.ReplaceAll(key, "_", "-"); slices.Contains(engineFields, hyphened) && slices.Contains(flags, hyphened) {
		key = hyphened // as engines write some
	}
	if !slices.Contains(flags, key) {
		return unknownKey(k.Line, key, flags, "the flags of weir serve (weir serve --help), without their dashes")
	}
	if at, twice := f.Lines[key]; twice {
		return fmt.Errorf("line %d: key %q is set twice, first in line %d", k.Line, key, at[0])
	}
	f.Lines[key] = []int{k.Line} // also of one whose value is wrong
	items, values, lines := []*yaml.Node{value}, []string{}, []int{}
	if value.Kind == yaml.SequenceNode && value.Anchor == "" && value.Style&yaml.TaggedStyle == 0 {
		items = value.Content
	}
	for _, item := range items {
		v, err := flagValue(key, item)
		if err != nil {
			return err
		}
		values, lines = append(values, v), append(lines, item.Line)
	}
	if f.Values[key] = values; value.Kind == yaml.SequenceNode {
		f.Lines[key] = lines
	}
	return nil
}

// maxKey is how long a key may be, in bytes.
const maxKey = 1024

// word returns the text of a key.
func word(n *yaml.Node) (string, error) {
	switch {
	case n.Kind != yaml.ScalarNode || n.Anchor != "" || n.Style&yaml.TaggedStyle != 0:
		return "", fmt.Errorf("line %d: want a plain word as the key", n.Line)
	case len(n.Value) > maxKey:
		return "", fmt.Errorf("line %d: the key is longer than %d bytes", n.Line, maxKey)
	}
	return n.Value, nil
}

// flagValue turns a value into the words of the command line: those of the text.
func flagValue(key string, n *yaml.Node) (string, error) {
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		return "", fmt.Errorf("line %d: key %q does not take an anchor or an alias of YAML: write the value", n.Line, key)
	case n.Style&yaml.TaggedStyle != 0:
		return "", fmt.Errorf("line %d: key %q does not take a tag of YAML: write the plain value", n.Line, key)
	case n.Kind == yaml.MappingNode:
		return mappingValue(key, n)
	case n.Kind == yaml.SequenceNode:
		return "", fmt.Errorf("line %d: %q does not take a list of lists", n.Line, key)
	case n.Tag == "!!null":
		return "", fmt.Errorf("line %d: key %q has no value", n.Line, key)
	}
	return n.Value, nil
}

// engineFields are the options of an engine that is given as a mapping: those of every kind.
var engineFields = func() []string {
	all := slices.Concat(nameOptions, shareOptions, eventOptions)
	for _, of := range []map[string][]string{options, halves} {
		for _, fields := range of {
			all = append(all, fields...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}()

// mappingValue writes an engine or a model that is given as a mapping in its
// one-line form.
func mappingValue(key string, n *yaml.Node) (string, error) {
	fields := map[string][]string{}
	known := map[string][]string{
		"engine": slices.Concat([]string{"kind", "url"}, engineFields),
		"model":  slices.Concat([]string{"name", "dir"}, modelOptions),
	}[key]
	if known == nil {
		return "", fmt.Errorf("line %d: key %q does not take a mapping", n.Line, key)
	}
	inner := &File{Values: fields, Lines: map[string][]int{}}
	for k, value := range entries(n) {
		if err := inner.set(k, value, known); err != nil {
			return "", err
		}
		if field := k.Value; len(fields[field]) > 1 && field != "alias" && field != "lora" {
			return "", fmt.Errorf("line %d: %q takes one value, not %d", k.Line, field, len(fields[field]))
		}
	}
	first := func(field string) string {
		if v := fields[field]; len(v) > 0 {
			return v[0]
		}
		return ""
	}
	var b strings.Builder
	if key == "engine" {
		if first("url") == "" {
			return "", fmt.Errorf("line %d: an engine needs url", n.Line)
		}
		if kind := first("kind"); kind != "" && kind != "auto" {
			b.WriteString(kind + "=")
		}
		b.WriteString(first("url"))
		for _, field := range engineFields {
			if v := first(field); v != "" {
				b.WriteString("," + field + "=" + v)
			}
		}
		return b.String(), nil
	}
	switch name, dir := first("name"), first("dir"); {
	case dir == "" && (name == "" || first("max-tokens")+first("max-n")+first("policy")+first("isolation")+first("alias") == ""):
		return "", fmt.Errorf("line %d: a model needs dir, or name with alias, max-tokens, max-n, policy or isolation", n.Line)
	case name == "":
		b.WriteString(dir)
	default:
		b.WriteString(name + "=" + dir)
	}
	for _, field := range []string{"alias", "lora"} {
		for _, v := range fields[field] {
			b.WriteString("," + field + "=" + v)
		}
	}
	for _, field := range modelOptions[2:] { // these have one value each
		if v := first(field); v != "" {
			b.WriteString("," + field + "=" + v)
		}
	}
	return b.String(), nil
}
