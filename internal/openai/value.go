package openai

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

// lenient reads JSON of which the engine is the judge. UTF-8 has been checked
// by then: what it still lets through are halves of surrogate pairs.
func lenient(raw []byte) *jsontext.Decoder {
	return jsontext.NewDecoder(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// strict reads JSON that weir has to understand: names are unique and escapes
// are whole.
func strict(raw []byte) *jsontext.Decoder {
	return jsontext.NewDecoder(bytes.NewBuffer(raw))
}

// strictError turns what a strict decoder found in a field into words. The
// body's syntax has been checked: a name given twice and half a surrogate pair
// are all that is left.
func strictError(field string, err error) error {
	var syn *jsontext.SyntacticError
	if !errors.As(err, &syn) {
		return infer.Invalid(field, "%s cannot be read: %v", field, err)
	}
	path := joinPointer(field, syn.JSONPointer)
	if errors.Is(syn.Err, jsontext.ErrDuplicateName) {
		return infer.Invalid(path, "%s is given twice; give it once", path)
	}
	return halfPair(path)
}

func halfPair(path string) error {
	return infer.Invalid(path, "%s holds half a surrogate pair; both halves are needed", path)
}

// checkStrict applies the strict rules to a whole value.
func checkStrict(field string, raw []byte) error {
	if _, err := strict(raw).ReadValue(); err != nil {
		return strictError(field, err)
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
	return clip(b.String(), 200)
}

// syntaxError turns a malformed body into words: where, and what was expected.
func syntaxError(body []byte, err error) error {
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
	return syntaxAt(body, offset, "%s", what)
}

// nameError is syntaxError where a top-level field's name was expected. The
// decoder speaks of a value there, and points at the comma that no name
// follows.
func nameError(body []byte, first bool, err error) error {
	var syn *jsontext.SyntacticError
	if !errors.As(err, &syn) || int(syn.ByteOffset) >= len(body) || !strings.HasSuffix(syn.Err.Error(), "at start of value") {
		return syntaxError(body, err)
	}
	at := int(syn.ByteOffset)
	if !first && body[at] == ',' {
		at = len(body) - len(bytes.TrimLeft(body[at+1:], " \t\r\n"))
	}
	r, _ := utf8.DecodeRune(body[at:])
	if at == len(body) {
		return syntaxError(body, err)
	}
	return syntaxAt(body, at, "invalid character %q (expecting a field name in double quotes)", r)
}

// syntaxAt names a place in the body. Lines and columns count from 1, columns
// in characters.
func syntaxAt(body []byte, offset int, format string, args ...any) error {
	before := body[:offset]
	line := 1 + bytes.Count(before, []byte{'\n'})
	column := 1 + utf8.RuneCount(before[1+bytes.LastIndexByte(before, '\n'):])
	return infer.Errorf(infer.CodeInvalid, "the body is not valid JSON: line %d, column %d: %s", line, column, fmt.Sprintf(format, args...))
}

// invalidUTF8 gives the offset of the first byte that is not UTF-8, or -1.
func invalidUTF8(b []byte) int {
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

// kindOf gives the kind of a value by its first byte; numbers are '0'.
func kindOf(raw []byte) jsontext.Kind { return jsontext.Value(raw).Kind() }

// found describes a value in a refusal.
func found(raw []byte) string {
	switch kindOf(raw) {
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

func wrongType(field, want string, raw []byte) error {
	return infer.Invalid(field, "%s must be %s, found %s", field, want, found(raw))
}

func outOfRange(field, want string, raw []byte) error {
	return infer.Invalid(field, "%s must be %s, found %s", field, want, clip(string(raw), 32))
}

// clip shortens what a message quotes of the request to about n bytes.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "..."
}

// spelled gives what a raw string spells. Half a surrogate pair becomes U+FFFD,
// which is in no word of the API.
func spelled(raw []byte) []byte {
	inner := raw[1 : len(raw)-1]
	if bytes.IndexByte(inner, '\\') >= 0 {
		inner, _ = jsontext.AppendUnquote(nil, raw)
	}
	return inner
}

// nameOf gives the name or word that a raw string spells. Those of a message
// are not allocated.
func nameOf(raw []byte) string {
	b := spelled(raw)
	if word, ok := words[string(b)]; ok {
		return word
	}
	return string(b)
}

// stringOf reads a string value.
func stringOf(field string, raw []byte) (string, error) {
	if kindOf(raw) != '"' {
		return "", wrongType(field, "a string", raw)
	}
	if inner := raw[1 : len(raw)-1]; bytes.IndexByte(inner, '\\') < 0 {
		return string(inner), nil
	}
	b, err := jsontext.AppendUnquote(nil, raw)
	if err != nil {
		return "", halfPair(field)
	}
	return string(b), nil
}

func boolOf(field string, raw []byte) (bool, error) {
	switch kindOf(raw) {
	case 't':
		return true, nil
	case 'f':
		return false, nil
	}
	return false, wrongType(field, "true or false", raw)
}

// floatOf reads a number from low to high; openLow leaves low itself out.
func floatOf(field string, raw []byte, low, high float64, openLow bool) (float64, error) {
	if kindOf(raw) != '0' {
		return 0, wrongType(field, "a number", raw)
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || v < low || v > high || (openLow && v == low) {
		want := fmt.Sprintf("between %v and %v", low, high)
		if openLow {
			want = fmt.Sprintf("above %v and at most %v", low, high)
		}
		return 0, outOfRange(field, want, raw)
	}
	return v, nil
}

// intOf reads an integer from low to high. A number such as 16.0, which some
// clients send for an integer, is one as long as a float holds it exactly.
func intOf(field string, raw []byte, low, high int64) (int64, error) {
	if kindOf(raw) != '0' {
		return 0, wrongType(field, "an integer", raw)
	}
	v, err := strconv.ParseInt(string(raw), 10, 64)
	if errors.Is(err, strconv.ErrSyntax) {
		f, ferr := strconv.ParseFloat(string(raw), 64)
		if ferr == nil && f != math.Trunc(f) {
			return 0, outOfRange(field, "an integer", raw)
		}
		if ferr == nil && math.Abs(f) <= 1<<53 {
			v, err = int64(f), nil
		}
	}
	if err != nil || v < low || v > high {
		return 0, outOfRange(field, fmt.Sprintf("between %d and %d", low, high), raw)
	}
	return v, nil
}

// eachItem walks an array. It is not strict: see checkStrict.
func eachItem(raw []byte, visit func(i int, item []byte) error) error {
	dec := lenient(raw)
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

// eachMember walks an object. It is not strict: see checkStrict.
func eachMember(raw []byte, visit func(name string, value []byte) error) error {
	dec := lenient(raw)
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for dec.PeekKind() != '}' {
		rawName, err := dec.ReadValue()
		if err != nil {
			return err
		}
		name := nameOf(rawName)
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
