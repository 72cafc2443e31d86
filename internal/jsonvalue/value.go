// Package jsonvalue reads the values of a request's body, and refuses those
// that an API does not have in words that name the field and say what it must
// be. It also writes strings into answers. The bodies of all APIs are read with
// it, so that they are refused alike.
//
// Values are raw JSON, which refers to the body. The syntax of a body is checked
// once, when its fields are found; what is left to each field are names that are
// given twice and escapes that are half a surrogate pair: [CheckStrict].
package jsonvalue

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
)

// Lenient reads JSON of which the engine is the judge. UTF-8 has been checked
// by then: what it still lets through are halves of surrogate pairs.
func Lenient(raw []byte) *jsontext.Decoder {
	return jsontext.NewDecoder(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// Strict reads JSON that weir has to understand: names are unique and escapes
// are whole.
func Strict(raw []byte) *jsontext.Decoder {
	return jsontext.NewDecoder(bytes.NewBuffer(raw))
}

// StrictError turns what a strict decoder found in a field into words. The
// body's syntax has been checked: a name given twice and half a surrogate pair
// are all that is left.
func StrictError(field string, err error) error {
	var syn *jsontext.SyntacticError
	if !errors.As(err, &syn) {
		return infer.Invalid(field, "%s cannot be read: %v", field, err)
	}
	path := joinPointer(field, syn.JSONPointer)
	if errors.Is(syn.Err, jsontext.ErrDuplicateName) {
		return infer.Invalid(path, "%s is given twice; give it once", path)
	}
	return HalfPair(path)
}

// HalfPair refuses a string that no engine could read.
func HalfPair(path string) error {
	return infer.Invalid(path, "%s holds half a surrogate pair; both halves are needed", path)
}

// CheckStrict applies the strict rules to a whole value.
func CheckStrict(field string, raw []byte) error {
	if _, err := Strict(raw).ReadValue(); err != nil {
		return StrictError(field, err)
	}
	return nil
}

// joinPointer writes a place inside a field as a path: messages[2].content.
func joinPointer(field string, p jsontext.Pointer) string {
	var b strings.Builder
	b.WriteString(field)
	for tok := range p.Tokens() {
		if _, err := strconv.ParseUint(tok, 10, 32); err == nil {
			b.WriteString("[" + tok + "]")
		} else {
			b.WriteString("." + tok)
		}
	}
	return Clip(b.String(), 200)
}

// SyntaxError turns a malformed body into words: where, and what was expected.
func SyntaxError(body []byte, err error) error {
	var syn *jsontext.SyntacticError
	offset, what := len(body), "unexpected end of the body"
	switch {
	case errors.As(err, &syn):
		offset = min(int(syn.ByteOffset), len(body))
		if !errors.Is(syn.Err, io.ErrUnexpectedEOF) {
			what = syn.Err.Error()
		}
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
	default:
		what = err.Error()
	}
	return SyntaxAt(body, offset, "%s", what)
}

// NameError is SyntaxError where a top-level field's name was expected. The
// decoder speaks of a value there, and points at the comma that no name
// follows.
func NameError(body []byte, first bool, err error) error {
	var syn *jsontext.SyntacticError
	if !errors.As(err, &syn) || int(syn.ByteOffset) >= len(body) || !strings.HasSuffix(syn.Err.Error(), "at start of value") {
		return SyntaxError(body, err)
	}
	at := int(syn.ByteOffset)
	if !first && body[at] == ',' {
		at = len(body) - len(bytes.TrimLeft(body[at+1:], " \t\r\n"))
	}
	r, _ := utf8.DecodeRune(body[at:])
	if at == len(body) {
		return SyntaxError(body, err)
	}
	return SyntaxAt(body, at, "invalid character %q (expecting a field name in double quotes)", r)
}

// SyntaxAt names a place in the body. Lines and columns count from 1, columns
// in characters.
func SyntaxAt(body []byte, offset int, format string, args ...any) error {
	before := body[:offset]
	line := 1 + bytes.Count(before, []byte{'\n'})
	column := 1 + utf8.RuneCount(before[1+bytes.LastIndexByte(before, '\n'):])
	return infer.Errorf(infer.CodeInvalid, "the body is not valid JSON: line %d, column %d: %s", line, column, fmt.Sprintf(format, args...))
}

// InvalidUTF8 gives the offset of the first byte that is not UTF-8, or -1.
func InvalidUTF8(b []byte) int {
	if utf8.Valid(b) {
		return -1
	}
	for i := 0; i < len(b); {
		r, size := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return -1
}

// Kind gives the kind of a value by its first byte; numbers are '0'.
func Kind(raw []byte) jsontext.Kind { return jsontext.Value(raw).Kind() }

// Found describes a value in a refusal.
func Found(raw []byte) string {
	switch Kind(raw) {
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '{':
		return "an object"
	case '[':
		return "an array"
	}
	return "no value"
}

// WrongType refuses a value of another type than a field has.
func WrongType(field, want string, raw []byte) error {
	return infer.Invalid(field, "%s must be %s, found %s", field, want, Found(raw))
}

// OutOfRange refuses a value that a field may not have.
func OutOfRange(field, want string, raw []byte) error {
	return infer.Invalid(field, "%s must be %s, found %s", field, want, Clip(string(raw), 32))
}

// Clip shortens what a message quotes of the request to about n bytes.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "..."
}

// Spelled gives what a raw string spells. Half a surrogate pair becomes U+FFFD,
// which is in no word of the API.
func Spelled(raw []byte) []byte {
	inner := raw[1 : len(raw)-1]
	if bytes.IndexByte(inner, '\\') >= 0 {
		inner, _ = jsontext.AppendUnquote(nil, raw)
	}
	return inner
}

// Words are names that a body is likely to have. Each maps to itself, so that
// reading one allocates nothing. An empty Words is usable.
type Words map[string]string

// Add adds words.
func (w Words) Add(words ...string) {
	for _, word := range words {
		w[word] = word
	}
}

// Name gives the name or word that a raw string spells.
func (w Words) Name(raw []byte) string {
	b := Spelled(raw)
	if word, ok := w[string(b)]; ok {
		return word
	}
	return string(b)
}

// String reads a string value.
func String(field string, raw []byte) (string, error) {
	if Kind(raw) != '"' {
		return "", WrongType(field, "a string", raw)
	}
	if inner := raw[1 : len(raw)-1]; bytes.IndexByte(inner, '\\') < 0 {
		return string(inner), nil
	}
	b, err := jsontext.AppendUnquote(nil, raw)
	if err != nil {
		return "", HalfPair(field)
	}
	return string(b), nil
}

// Bool reads true or false.
func Bool(field string, raw []byte) (bool, error) {
	switch Kind(raw) {
	case 't':
		return true, nil
	case 'f':
		return false, nil
	}
	return false, WrongType(field, "true or false", raw)
}

// Float reads a number from low to high; openLow leaves low itself out.
func Float(field string, raw []byte, low, high float64, openLow bool) (float64, error) {
	if Kind(raw) != '0' {
		return 0, WrongType(field, "a number", raw)
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || v < low || v > high || (openLow && v == low) {
		want := fmt.Sprintf("between %v and %v", low, high)
		if openLow {
			want = fmt.Sprintf("above %v and at most %v", low, high)
		}
		return 0, OutOfRange(field, want, raw)
	}
	return v, nil
}

// Int reads an integer from low to high. A number such as 16.0, which some
// clients send for an integer, is one as long as a float holds it exactly.
func Int(field string, raw []byte, low, high int64) (int64, error) {
	if Kind(raw) != '0' {
		return 0, WrongType(field, "an integer", raw)
	}
	v, err := strconv.ParseInt(string(raw), 10, 64)
	if errors.Is(err, strconv.ErrSyntax) {
		f, ferr := strconv.ParseFloat(string(raw), 64)
		if ferr == nil && f != math.Trunc(f) {
			return 0, OutOfRange(field, "an integer", raw)
		}
		if ferr == nil && math.Abs(f) <= 1<<53 {
			v, err = int64(f), nil
		}
	}
	if err != nil || v < low || v > high {
		return 0, OutOfRange(field, fmt.Sprintf("between %d and %d", low, high), raw)
	}
	return v, nil
}

// EachItem walks an array. It is not strict: see CheckStrict.
func EachItem(raw []byte, visit func(i int, item []byte) error) error {
	dec := Lenient(raw)
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for i := 0; dec.PeekKind() != ']'; i++ {
		item, err := dec.ReadValue()
		if err != nil {
			return err
		}
		if err := visit(i, item); err != nil {
			return err
		}
	}
	return nil
}

// EachMember walks an object. It is not strict: see CheckStrict.
func (w Words) EachMember(raw []byte, visit func(name string, value []byte) error) error {
	dec := Lenient(raw)
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for dec.PeekKind() != '}' {
		rawName, err := dec.ReadValue()
		if err != nil {
			return err
		}
		name := w.Name(rawName)
		value, err := dec.ReadValue()
		if err != nil {
			return err
		}
		if err := visit(name, value); err != nil {
			return err
		}
	}
	return nil
}
