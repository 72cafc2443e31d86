package parse

import (
	"encoding/json"
	"slices"
	"strings"
)

// schema is what the request says of its tools.
type schema struct {
	tools []byte // the JSON array

	read       bool
	names      []string
	parameters []json.RawMessage

	// Of the tool that is being called.
	properties map[string]any
	defs       map[string]any
}

// paramClass is how the text of a parameter becomes JSON.
type paramClass uint8

const (
	untyped       paramClass = iota // the schema does not say
	stringClass                     // a string
	nullableClass                   // a string, or null
	jsonClass                       // JSON, or else a string
)

// load reads the tools: those of the chat API, and those of its kin that have
// the function's fields in the tool itself.
func (s *schema) load() {
	if s.read {
		return
	}
	s.read = true
	type function struct {
		Name        string          `json:"name"`
		Parameters  json.RawMessage `json:"parameters"`
		InputSchema json.RawMessage `json:"input_schema"`
	}
	var tools []struct {
		function
		Function *function `json:"function"`
	}
	if json.Unmarshal(s.tools, &tools) != nil {
		return // the request's decoder has said what is wrong with them
	}
	for _, t := range tools {
		f := t.function
		if t.Function != nil {
			f = *t.Function
		}
		if f.Parameters == nil {
			f.Parameters = f.InputSchema
		}
		s.names = append(s.names, f.Name)
		s.parameters = append(s.parameters, f.Parameters)
	}
}

// has says whether there is a tool of that name.
func (s *schema) has(name string) bool {
	s.load()
	return slices.Contains(s.names, name)
}

// choose makes class speak of that tool.
func (s *schema) choose(name string) {
	s.load()
	s.properties, s.defs = nil, nil
	i := slices.Index(s.names, name)
	if i < 0 || s.parameters[i] == nil {
		return
	}
	var parameters map[string]any
	if json.Unmarshal(s.parameters[i], &parameters) != nil {
		return
	}
	s.properties, _ = parameters["properties"].(map[string]any)
	if s.defs, _ = parameters["$defs"].(map[string]any); s.defs == nil {
		s.defs, _ = parameters["definitions"].(map[string]any)
	}
}

// class says how the value of the chosen tool's parameter is read.
func (s *schema) class(key string) paramClass {
	var t typeSet
	t.add(s.properties[key], s.defs, 0)
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

// typeSet is what kinds of value a schema allows.
type typeSet struct{ text, null, other bool }

func (t *typeSet) add(schema any, defs map[string]any, depth int) {
	m, ok := schema.(map[string]any)
	if !ok || depth > 8 {
		return
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
