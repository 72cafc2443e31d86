package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

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

// mostProblems bounds the problems that are listed, of which a piece may have a few more.
const mostProblems = 100

func parse(data []byte, flags []string) (f *File, problems []error) {
	f = newFile()
	key := "" // whose value is read in pieces; empty: it has been refused
	err := yamltext.Walk(data, func(depth int, n ast.Node, opens bool) error {
		f.Said = true
		if _, ok := n.(ast.MapNode); depth == 0 && !ok && n.Type() != ast.NullType {
			problems = append(problems, fmt.Errorf("line %d: want keys such as \"listen: 127.0.0.1:8000\"", line(n)))
		}
		var err error
		switch {
		case depth == 0 && opens:
			if key, err = f.begin(entries(n)[0], flags); err == nil {
				f.Values[key], f.Lines[key] = []string{}, []int{}
			}
		case depth == 0:
			for _, entry := range entries(n) {
				if err := f.set(entry, flags); err != nil && len(problems) <= mostProblems {
					problems = append(problems, err)
				}
			}
		case depth == 1 && key != "":
			if err = f.add(key, n); err != nil {
				delete(f.Values, key)
			}
		}
		if err != nil {
			problems, key = append(problems, err), ""
		}
		if len(problems) > mostProblems {
			return fmt.Errorf("line %d: more than %d things are wrong; the rest was not read", line(n), mostProblems)
		}
		return nil
	})
	if err != nil {
		problems = append(problems, err)
	}
	return f, problems
}

// add adds the items of a list to a key's values.
func (f *File) add(key string, n ast.Node) error {
	list, ok := n.(*ast.SequenceNode)
	if !ok {
		return fmt.Errorf("line %d: key %q does not take a mapping of so many lines", line(n), key)
	}
	for _, item := range list.Values {
		value, err := flagValue(key, item)
		if err != nil {
			return err
		}
		f.Values[key], f.Lines[key] = append(f.Values[key], value), append(f.Lines[key], line(item))
	}
	return nil
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

// begin notes a key, and returns its name.
func (f *File) begin(entry *ast.MappingValueNode, flags []string) (string, error) {
	key := entry.Key.String()
	if hyphened := strings.ReplaceAll(key, "_", "-"); slices.Contains(engineFields, hyphened) && slices.Contains(flags, hyphened) {
		key = hyphened // as engines write some
	}
	if !slices.Contains(flags, key) {
		return "", unknownKey(line(entry.Key), key, flags, "the flags of weir serve (weir serve --help), without their dashes")
	}
	if _, twice := f.Values[key]; twice {
		return "", fmt.Errorf("line %d: key %q is set twice", line(entry.Key), key)
	}
	f.Lines[key] = []int{line(entry.Key)} // also of one whose value is wrong
	return key, nil
}

func (f *File) set(entry *ast.MappingValueNode, flags []string) error {
	key, err := f.begin(entry, flags)
	if err != nil {
		return err
	}
	list, several := entry.Value.(*ast.SequenceNode)
	if !several {
		value, err := flagValue(key, entry.Value)
		if err == nil {
			f.Values[key] = []string{value}
		}
		return err
	}
	at := f.Lines[key]
	f.Values[key], f.Lines[key] = []string{}, []int{}
	if err := f.add(key, list); err != nil {
		delete(f.Values, key)
		f.Lines[key] = at
		return err
	}
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
