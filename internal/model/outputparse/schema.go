package outputparse

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// Tools are a request's tools as far as its answers' parsers ask about them. They do
// not change once they are read, so that the parsers of all choices share them.
type Tools struct {
	// params gives the parameters of a tool by its name, of those that say what they
	// may be.
	params map[string]map[string]paramClass
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
	t := &Tools{params: map[string]map[string]paramClass{}}
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
	for _, tool := range tools {
		f := tool.function
		if tool.Function != nil {
			f = *tool.Function
		}
		if f.Parameters == nil {
			f.Parameters = f.InputSchema
		}
		if _, ok := t.params[f.Name]; !ok {
			t.params[f.Name] = classesOf(f.Parameters, &nested)
		}
	}
	return t
}

// classesOf returns the classes of a tool's parameters, of those that have one.
func classesOf(schema []byte, nested *int) map[string]paramClass {
	var parameters map[string]any
	if schema == nil || json.Unmarshal(schema, &parameters) != nil {
		return nil
	}
	properties, _ := parameters["properties"].(map[string]any)
	defs, _ := parameters["$defs"].(map[string]any)
	if defs == nil {
		defs, _ = parameters["definitions"].(map[string]any)
	}
	classes := make(map[string]paramClass, len(properties))
	for _, key := range slices.Sorted(maps.Keys(properties)) {
		t := typeSet{nested: nested}
		t.add(properties[key], defs, 0)
		if c := t.class(); c != untyped {
			classes[key] = c
		}
	}
	return classes
}

// has reports whether there is a tool of that name.
func (t *Tools) has(name string) bool {
	if t == nil {
		return false
	}
	_, ok := t.params[name]
	return ok
}

// of returns the classes of a tool's parameters.
func (t *Tools) of(name string) map[string]paramClass {
	if t == nil {
		return nil
	}
	return t.params[name]
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

func (t *typeSet) kind(name string) {
	switch name {
	case "string":
		t.text = true
	case "null":
		t.null = true
	default:
		t.other = true
	}
}
