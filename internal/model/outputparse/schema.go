package outputparse

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"weir/internal/model/callid"
)

// Tools are a request's tools as far as its answers' parsers ask about them. They do
// not change once they are read, so that the parsers of all choices share them.
type Tools struct {
	byName map[string]*tool
}

// tool is what a tool's schema says of its arguments.
type tool struct {
	// classes are those of the parameters that say what they may be.
	classes map[string]paramClass
	// params are the names of all parameters, and required those that a call must have.
	params   map[string]bool
	required []string
}

// paramClass is how the text of a parameter becomes JSON.
type paramClass uint8

const (
	untyped       paramClass = iota // the schema does not say
	stringClass                     // a string
	nullableClass                   // a string, or null
	jsonClass                       // JSON, or else a string
)

// maxNested bounds the schemas inside of schemas that are looked at for one request's
// parameters: a definition that refers to itself several times would be an exponential
// number of them.
const maxNested = 1 << 14

// ReadTools reads the JSON array of a request's tools: those of the chat API, and
// those of its kin that have the function's fields in the tool itself. It takes time
// in proportion to their length.
func ReadTools(raw []byte) *Tools {
	return readTools(raw, true)
}

// ReadToolNames is ReadTools for formats that need no more than the names.
func ReadToolNames(raw []byte) *Tools { return readTools(raw, false) }

func readTools(raw []byte, schemas bool) *Tools {
	t := &Tools{byName: map[string]*tool{}}
	type function struct {
		Name        string          `json:"name"`
		Parameters  json.RawMessage `json:"parameters"`
		InputSchema json.RawMessage `json:"input_schema"`
	}
	var tools []struct {
		function
		Function *function `json:"function"`
	}
	if json.Unmarshal(raw, &tools) != nil {
		return t // the request's decoder has said what is wrong with them
	}
	nested := maxNested
	for _, listed := range tools {
		f := listed.function
		if listed.Function != nil {
			f = *listed.Function
		}
		if f.Parameters == nil {
			f.Parameters = f.InputSchema
		}
		if _, ok := t.byName[f.Name]; ok {
			continue
		}
		read := new(tool)
		if schemas {
			read.read(f.Parameters, &nested)
		}
		t.byName[f.Name] = read
	}
	return t
}

// read reads the schema of a tool's arguments.
func (t *tool) read(schema []byte, nested *int) {
	var parameters map[string]any
	if schema == nil || json.Unmarshal(schema, &parameters) != nil {
		return
	}
	properties, _ := parameters["properties"].(map[string]any)
	defs, _ := parameters["$defs"].(map[string]any)
	if defs == nil {
		defs, _ = parameters["definitions"].(map[string]any)
	}
	t.classes, t.params = make(map[string]paramClass, len(properties)), make(map[string]bool, len(properties))
	for _, key := range slices.Sorted(maps.Keys(properties)) {
		t.params[key] = true
		types := typeSet{nested: nested}
		types.add(properties[key], defs, 0)
		if c := types.class(); c != untyped {
			t.classes[key] = c
		}
	}
	required, _ := parameters["required"].([]any)
	for _, key := range required {
		if key, ok := key.(string); ok {
			t.required = append(t.required, key)
		}
	}
}

// resolve returns the tool that a model's name for it means: one of the request's, with
// or without the prefix. Where the tools are not known, any name is one.
func (t *Tools) resolve(name string) (string, bool) {
	if t == nil {
		name = strings.TrimPrefix(name, callid.Functions)
		return name, name != ""
	}
	if t.has(name) {
		return name, true
	}
	if bare, ok := strings.CutPrefix(name, callid.Functions); ok && t.has(bare) {
		return bare, true
	}
	// Models that know of name spaces take a bare name for that of its own.
	if space, bare, ok := strings.Cut(name, "."); ok && space == bare && t.has(bare) {
		return bare, true
	}
	return "", false
}

// begins reports whether a name is the beginning of one that means a tool of the request.
func (t *Tools) begins(name string) bool {
	if t.hasIn(name) {
		return true
	}
	for tool := range t.byName {
		if strings.HasPrefix(tool, name) || strings.HasPrefix(callid.Functions+tool, name) || strings.HasPrefix(tool+"."+tool, name) {
			return true
		}
	}
	return false
}

// hasIn reports whether a name means a tool of the request, or is a name space of one.
func (t *Tools) hasIn(name string) bool {
	if _, ok := t.resolve(name); ok {
		return true
	}
	for tool := range t.byName {
		if strings.HasPrefix(tool, name+".") {
			return true
		}
	}
	return false
}

// has reports whether there is a tool of that name.
func (t *Tools) has(name string) bool {
	if t == nil {
		return false
	}
	_, ok := t.byName[name]
	return ok
}

// of returns what is known of a tool.
func (t *Tools) of(name string) *tool {
	if t != nil {
		if known := t.byName[name]; known != nil {
			return known
		}
	}
	return new(tool)
}

// fitting returns the one tool whose parameters arguments fit: it has all of their
// members, and they have all that it requires. A tool that does not say what it takes comes
// after those that do. It is empty if there is none, or several.
func (t *Tools) fitting(arguments []byte) string {
	var members map[string]json.RawMessage
	if t == nil || json.Unmarshal(arguments, &members) != nil {
		return ""
	}
	var named, any []string // that have parameters of these names, and that may be meant
	for name, one := range t.byName {
		fits := true
		for key := range members {
			fits = fits && (one.params == nil || one.params[key])
		}
		for _, key := range one.required {
			_, ok := members[key]
			fits = fits && ok
		}
		if fits && len(members) > 0 && one.params != nil {
			named = append(named, name)
		}
		if fits {
			any = append(any, name)
		}
	}
	switch {
	case len(named) == 1:
		return named[0]
	case len(any) == 1:
		return any[0]
	}
	return ""
}

// typeSet is what kinds of value a schema allows.
type typeSet struct {
	text, null, other bool
	nested            *int // how many schemas inside of others may still be looked at
}

// class returns how the text of such a value becomes JSON.
func (t *typeSet) class() paramClass {
	switch {
	case t.other || t.null && !t.text:
		return jsonClass
	case t.text && t.null:
		return nullableClass
	case t.text:
		return stringClass
	}
	return untyped
}

func (t *typeSet) add(schema any, defs map[string]any, depth int) {
	m, ok := schema.(map[string]any)
	if !ok || depth > 8 {
		return
	}
	if depth > 0 {
		if *t.nested == 0 {
			return
		}
		*t.nested--
	}
	switch kind := m["type"].(type) {
	case string:
		t.kind(kind)
		return
	case []any:
		for _, k := range kind {
			if k, ok := k.(string); ok {
				t.kind(k)
			}
		}
		return
	}
	values, _ := m["enum"].([]any)
	if v, ok := m["const"]; ok {
		values = append(values, v)
	}
	for _, v := range values {
		switch v.(type) {
		case string:
			t.text = true
		case nil:
			t.null = true
		default:
			t.other = true
		}
	}
	for _, list := range []string{"anyOf", "oneOf", "allOf"} {
		all, _ := m[list].([]any)
		for _, one := range all {
			t.add(one, defs, depth+1)
		}
	}
	if ref, ok := m["$ref"].(string); ok {
		t.add(defs[ref[1+strings.LastIndexByte(ref, '/'):]], defs, depth+1)
	}
}

// otherTypes are the beginnings of the names by which schemas of databases and programs
// call values that are no strings. A digit, a bracket or the end follows.
var otherTypes = []string{
	"integer", "int", "uint", "bigint", "smallint", "tinyint", "long", "short", "unsigned", "number", "num", "numeric",
	"float", "double", "decimal", "real", "boolean", "bool", "object", "dict", "map", "array", "arr", "list", "tuple", "set", "sequence",
}

// kind takes a type by its name. A name that JSON Schema does not have is that of a string
// (varchar, enum, uuid) unless it is known to be of something else.
func (t *typeSet) kind(name string) {
	name = strings.ToLower(strings.TrimSpace(name))
	if i := strings.IndexAny(name, "0123456789([<{ "); i >= 0 {
		name = name[:i]
	}
	switch {
	case name == "any":
	case name == "null" || name == "none":
		t.null = true
	case slices.Contains(otherTypes, name):
		t.other = true
	default:
		t.text = true
	}
}
