package content

import (
	"fmt"
	"math/big"
)

// Schema is a JSON Schema by which documents can be written. It is immutable.
//
// From draft 2020-12 it supports type, enum, const, properties, required,
// additionalProperties, minProperties, maxProperties, items, prefixItems, minItems,
// maxItems, uniqueItems, minLength, maxLength, pattern, format, minimum, maximum,
// exclusiveMinimum, exclusiveMaximum, multipleOf, anyOf, oneOf, allOf, and $ref within the
// document, including recursive ones. Annotations have no effect. Every other keyword, and
// any combination for which documents cannot be made with certainty, is refused by name.
type Schema struct {
	root *node
	text string
}

// String returns the schema's JSON, without white space.
func (s *Schema) String() string { return s.text }

// SchemaError reports an unsupported part of a schema.
type SchemaError struct {
	Path   string // JSON pointer of the schema it stands in, as in "/properties/a"
	Reason string
}

// Error implements error.
func (e *SchemaError) Error() string {
	if e.Path == "" {
		return e.Reason
	}
	return e.Reason + ", at " + e.Path
}

// Bounds of a schema and of its documents.
const (
	maxSchemaNodes  = 5000
	maxAlternatives = 256
	maxCount        = 4096  // of items and properties that must be there
	maxStringLength = 16384 // that a string must have
	maxNumberLength = 64    // bytes of a number in a schema
)

// CompileSchema reads a JSON Schema. Its errors are *SchemaError, or say why
// the text is not JSON.
func CompileSchema(raw []byte) (*Schema, error) {
	root, err := parseValue(raw)
	if err != nil {
		return nil, fmt.Errorf("not valid JSON: %w", err)
	}
	return compileSchema(root, false)
}

// kinds is a set of JSON types.
type kinds uint8

const (
	kindNull kinds = 1 << iota
	kindBoolean
	kindInteger
	kindNumber // that is no integer
	kindString
	kindArray
	kindObject
	kindAny = kindObject<<1 - 1
)

// kindsOf returns the type of a value.
func kindsOf(v *value) kinds {
	switch v.kind {
	case 'n':
		return kindNull
	case 't', 'f':
		return kindBoolean
	case '"':
		return kindString
	case '[':
		return kindArray
	case '{':
		return kindObject
	}
	if r, ok := new(big.Rat).SetString(string(v.raw)); ok && r.IsInt() {
		return kindInteger
	}
	return kindNumber
}

func refuse(path, format string, args ...any) error {
	return &SchemaError{Path: path, Reason: fmt.Sprintf(format, args...)}
}
