package config

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// File is a configuration file: for each flag it sets, the flag's values in the
// words of the command line, and the lines that they stand in.
type File struct {
	Path   string
	Values map[string][]string
	Lines  map[string][]int
}

// ReadFile reads a YAML file whose top-level keys are flag names without their dashes. A
// repeatable flag takes a list; engines and models may be written as mappings instead of
// the command line's one-line form. An unknown key is an error that names the line and the
// nearest known key. The error has one entry for each wrong key, and the file contains the
// correct keys.
func ReadFile(path string, flags []string) (*File, error) {
	data, err := os.ReadFile(path)
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

func parse(data []byte, flags []string) (f *File, problems []error) {
	f = newFile()
	tree, err := parseYAML(data)
	if err != nil {
		return f, []error{err}
	}
	for _, doc := range tree.Docs {
		if doc.Body == nil {
			continue
		}
		for _, entry := range entries(doc.Body) {
			if err := f.set(entry, flags); err != nil {
				problems = append(problems, err)
			}
		}
		if _, ok := doc.Body.(ast.MapNode); !ok && doc.Body.Type() != ast.NullType && doc.Body.Type() != ast.CommentType {
			problems = append(problems, fmt.Errorf("line %d: want keys such as \"listen: 127.0.0.1:8000\"", line(doc.Body)))
		}
	}
	return f, problems
}

func entries(n ast.Node) []*ast.MappingValueNode {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}
	}
	return nil
}

func line(n ast.Node) int { return n.GetToken().Position.Line }

func (f *File) set(entry *ast.MappingValueNode, flags []string) error {
	key := entry.Key.String()
	if hyphened := strings.ReplaceAll(key, "_", "-"); slices.Contains(engineFields, hyphened) && slices.Contains(flags, hyphened) {
		key = hyphened // as engines write some
	}
	if !slices.Contains(flags, key) {
		return unknownKey(line(entry.Key), key, flags, "the flags of weir serve (weir serve --help), without their dashes")
	}
	if _, twice := f.Values[key]; twice {
		return fmt.Errorf("line %d: key %q is set twice", line(entry.Key), key)
	}
	items := []ast.Node{entry.Value}
	if list, ok := entry.Value.(*ast.SequenceNode); ok {
		items = list.Values
	}
	f.Lines[key] = []int{line(entry.Key)} // also of one whose value is wrong
	values, lines := []string{}, []int{}
	for _, item := range items {
		value, err := flagValue(key, item)
		if err != nil {
			return err
		}
		values, lines = append(values, value), append(lines, line(item))
	}
	if _, plain := entry.Value.(*ast.SequenceNode); !plain {
		lines = []int{line(entry.Key)}
	}
	f.Values[key], f.Lines[key] = values, lines
	return nil
}

// flagValue turns a value into the words of the command line.
func flagValue(key string, n ast.Node) (string, error) {
	switch n := n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return mappingValue(key, n)
	case *ast.SequenceNode:
		return "", fmt.Errorf("line %d: %q does not take a list of lists", line(n), key)
	case *ast.NullNode:
		return "", fmt.Errorf("line %d: key %q has no value", line(n), key)
	case *ast.AnchorNode, *ast.AliasNode:
		return "", fmt.Errorf("line %d: key %q does not take an anchor or an alias of YAML: write the value", line(n), key)
	case *ast.StringNode:
		return n.Value, nil
	case ast.ScalarNode:
		return n.GetToken().Value, nil
	}
	return "", fmt.Errorf("line %d: key %q takes a plain value", line(n), key)
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
func mappingValue(key string, n ast.Node) (string, error) {
	fields := map[string][]string{}
	known := map[string][]string{
		"engine": slices.Concat([]string{"kind", "url"}, engineFields),
		"model":  slices.Concat([]string{"name", "dir"}, modelOptions),
	}[key]
	if known == nil {
		return "", fmt.Errorf("line %d: key %q does not take a mapping", line(n), key)
	}
	inner := &File{Values: fields, Lines: map[string][]int{}}
	for _, entry := range entries(n) {
		if err := inner.set(entry, known); err != nil {
			return "", err
		}
	}
	for _, entry := range entries(n) {
		if field := entry.Key.String(); len(fields[field]) > 1 && field != "alias" && field != "lora" {
			return "", fmt.Errorf("line %d: %q takes one value, not %d", line(entry.Key), field, len(fields[field]))
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
			return "", fmt.Errorf("line %d: an engine needs url", line(n))
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
		return "", fmt.Errorf("line %d: a model needs dir, or name with alias, max-tokens, max-n, policy or isolation", line(n))
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
