package dialect

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
)

// Decoder reads JSON that it does not copy. Each request has several, so they are used again.
type Decoder struct {
	*jsontext.Decoder
	from bytes.Buffer
}

var decoders = sync.Pool{New: func() any { return &Decoder{Decoder: jsontext.NewDecoder(new(bytes.Buffer))} }}

func decoderOf(raw []byte, opts ...jsontext.Options) *Decoder {
	d := decoders.Get().(*Decoder)
	d.from = *bytes.NewBuffer(raw)
	d.Reset(&d.from, opts...)
	return d
}

// Release ends the use of a decoder. What it has read stays.
func (d *Decoder) Release() {
	d.from = bytes.Buffer{}
	d.Reset(&d.from) // which lets go of the text
	decoders.Put(d)
}

// Lenient are the options for JSON that the engine judges. They accept halves of
// surrogate pairs; UTF-8 has been checked before.
func Lenient(raw []byte) *Decoder {
	return decoderOf(raw, lenient)
}

var lenient = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

// Strict are the options for JSON that weir interprets. Names must be unique and
// surrogate pairs whole.
func Strict(raw []byte) *Decoder {
	return decoderOf(raw)
}

// StrictError returns the error for the caller of a strict decoder's error in a
// field. The syntax of the body has been checked, so the error is a name that occurs
// twice or half a surrogate pair.
func StrictError(field string, err error) error {
	var syn *jsontext.SyntacticError
	if !errors.As(err, &syn) {
		return infer.Invalid(field, "%s cannot be read: %v", field, err)
	}
	path := JoinPointer(field, syn.JSONPointer)
	if errors.Is(syn.Err, jsontext.ErrDuplicateName) {
		return infer.Invalid(path, "%s is given twice; give it once", path)
	}
	return HalfPair(path)
}

func HalfPair(path string) error {
	return infer.Invalid(path, "%s holds half a surrogate pair; both halves are needed", path)
}

// CheckStrict applies the strict rules to a whole value.
func CheckStrict(field string, raw []byte) error {
	if isStrict(raw) {
		return nil
	}
	return checkStrict(field, raw)
}

// checkStrict is CheckStrict by jsontext.
func checkStrict(field string, raw []byte) error {
	dec := Strict(raw)
	defer dec.Release()
	if _, err := dec.ReadValue(); err != nil {
		return StrictError(field, err)
	}
	return nil
}

// JoinPointer returns the path of a place in a field: messages[2].content.
func JoinPointer(field string, p jsontext.Pointer) string {
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

// SyntaxError describes a malformed body: where it is wrong, and what was expected
// there.
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

// NameError is SyntaxError at a place where a top-level field's name was expected.
// The decoder expects a value there and points at the comma before it.
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

// SyntaxAt names a place in the body by line and column. Both count from 1, columns
// in characters.
func SyntaxAt(body []byte, offset int, format string, args ...any) error {
	before := body[:offset]
	line := 1 + bytes.Count(before, []byte{'\n'})
	column := 1 + utf8.RuneCount(before[1+bytes.LastIndexByte(before, '\n'):])
	return infer.Errorf(infer.CodeInvalid, "the body is not valid JSON: line %d, column %d: %s", line, column, fmt.Sprintf(format, args...))
}

// InvalidUTF8 returns the offset of the first byte that is not UTF-8, or -1.
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

// KindOf returns the kind of a value by its first byte. The kind of numbers is '0'.
func KindOf(raw []byte) jsontext.Kind { return jsontext.Value(raw).Kind() }

// Found describes a value, for the message of a refusal.
func Found(raw []byte) string {
	switch KindOf(raw) {
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

func WrongType(field, want string, raw []byte) error {
	return infer.Invalid(field, "%s must be %s, found %s", field, want, Found(raw))
}

func OutOfRange(field, want string, raw []byte) error {
	return infer.Invalid(field, "%s must be %s, found %s", field, want, Clip(string(raw), 32))
}

// Clip shortens a text that a message quotes to about n bytes.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "..."
}

// Spelled returns the text of a raw string. Half a surrogate pair becomes U+FFFD,
// which is in no word of an API.
func Spelled(raw []byte) []byte {
	inner := raw[1 : len(raw)-1]
	if bytes.IndexByte(inner, '\\') >= 0 {
		inner, _ = jsontext.AppendUnquote(nil, raw)
	}
	return inner
}

// words holds each word of a conversation as the one string that stands for it.
var words = func() map[string]string {
	all := make(map[string]string)
	for _, word := range []string{
		"system", "user", "assistant", "tool", "developer", "function",
		"role", "content", "name", "tool_calls", "tool_call_id", "function_call", "reasoning_content", "reasoning",
		"refusal", "audio", "annotations", "type", "text", "id", "input", "tool_use", "tool_use_id", "tool_result",
		"is_error", "thinking", "signature", "cache_control", "arguments", "call_id", "output",
	} {
		all[word] = word
	}
	return all
}()

// NameOf returns the name or word that a raw string spells. It allocates nothing for
// the names of a message.
func NameOf(raw []byte) string { return Word(Spelled(raw)) }

// Word returns b as a string. It allocates nothing for the names of a message.
func Word(b []byte) string {
	if word, ok := words[string(b)]; ok {
		return word
	}
	return string(b)
}

// StringOf reads a string value.
func StringOf(field string, raw []byte) (string, error) {
	if KindOf(raw) != '"' {
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

func BoolOf(field string, raw []byte) (bool, error) {
	switch KindOf(raw) {
	case 't':
		return true, nil
	case 'f':
		return false, nil
	}
	return false, WrongType(field, "true or false", raw)
}

// FloatOf reads a number from low to high. openLow excludes low itself.
func FloatOf(field string, raw []byte, low, high float64, openLow bool) (float64, error) {
	if KindOf(raw) != '0' {
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

// IntOf reads an integer from low to high. Some clients write 16.0 for 16: such a
// number is accepted if a float64 holds it exactly.
func IntOf(field string, raw []byte, low, high int64) (int64, error) {
	if KindOf(raw) != '0' {
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

// EachItem calls a function for each item of an array. It is not strict: see
// [CheckStrict].
func EachItem(raw []byte, visit func(i int, item []byte) error) error {
	s, n := shape{b: raw}, 0
	i, c := s.next(0)
	if c == '[' {
		end, err := s.array(i, 0, func(from, to int) error {
			err := visit(n, raw[from:to])
			n++
			return err
		})
		if err != nil || end > 0 {
			return err
		}
	}
	return eachItem(raw, n, visit)
}

// eachItem is EachItem by jsontext, from the n-th item on.
func eachItem(raw []byte, n int, visit func(i int, item []byte) error) error {
	dec := Lenient(raw)
	defer dec.Release()
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for i := 0; dec.PeekKind() != ']'; i++ {
		item, err := dec.ReadValue()
		if err != nil {
			return err
		}
		if i < n {
			continue
		}
		if err := visit(i, item); err != nil {
			return err
		}
	}
	return nil
}

// EachMember calls a function for each member of an object. It is not strict: see
// [CheckStrict].
func EachMember(raw []byte, visit func(name string, value []byte) error) error {
	s, n := shape{b: raw}, 0
	i, c := s.next(0)
	if c == '{' {
		end, err := s.object(i, 0, func(name, nameEnd, from, to int) error {
			n++
			return visit(NameOf(raw[name:nameEnd]), raw[from:to])
		})
		if err != nil || end > 0 {
			return err
		}
	}
	return eachMember(raw, n, visit)
}

// eachMember is EachMember by jsontext, from the n-th member on.
func eachMember(raw []byte, n int, visit func(name string, value []byte) error) error {
	dec := Lenient(raw)
	defer dec.Release()
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for i := 0; dec.PeekKind() != '}'; i++ {
		rawName, err := dec.ReadValue()
		if err != nil {
			return err
		}
		value, err := dec.ReadValue()
		if err != nil {
			return err
		}
		if i < n {
			continue
		}
		if err := visit(NameOf(rawName), value); err != nil {
			return err
		}
	}
	return nil
}

// IDsOf reads an array of token ids, which is well-formed. It reads the digits
// itself, because prompts of 40,000 ids are ordinary.
func IDsOf(field string, raw []byte) ([]uint32, error) {
	inside := raw[1 : len(raw)-1]
	ids := make([]uint32, 0, 1+bytes.Count(inside, []byte{','}))
	for i := SkipSpace(inside, 0); i < len(inside); {
		start := i
		var id uint64
		for ; i < len(inside) && '0' <= inside[i] && inside[i] <= '9'; i++ {
			if id = id*10 + uint64(inside[i]-'0'); id > math.MaxUint32 {
				return nil, notAnID(field, len(ids), inside[start:])
			}
		}
		end := i
		i = SkipSpace(inside, i)
		if end == start || i < len(inside) && inside[i] != ',' {
			return nil, notAnID(field, len(ids), inside[start:])
		}
		ids = append(ids, uint32(id))
		i = SkipSpace(inside, i+1)
	}
	return ids, nil
}

// SkipSpace returns the position of the first byte at or after b[i] that is not JSON
// white space.
func SkipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

// SkipValue returns the position after the JSON value at b[i], -1 if there is none or if it
// does not end. It looks at brackets and strings only, because b has been checked. For bytes
// that are not JSON the result may be any position.
func SkipValue(b []byte, i int) int {
	if i >= len(b) {
		return -1
	}
	switch b[i] {
	case '"':
		return SkipString(b, i)
	case '{', '[':
		for depth := 0; i < len(b); {
			switch b[i] {
			case '"':
				if i = SkipString(b, i); i < 0 {
					return -1
				}
				continue
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
			i++
		}
		return -1
	}
	from := i
	for i < len(b) && b[i] > ' ' && b[i] != ',' && b[i] != ']' && b[i] != '}' && b[i] != ':' && b[i] != '"' {
		i++
	}
	if i == from {
		return -1
	}
	return i
}

// SkipString returns the position after the JSON string at b[i], -1 if it does not end.
func SkipString(b []byte, i int) int {
	// An escape is only looked at before a quote.
	for i++; ; {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return -1
		}
		end := i + n
		slashes := end
		for slashes > i && b[slashes-1] == '\\' {
			slashes--
		}
		i = end + 1
		if (end-slashes)%2 == 0 {
			return i
		}
	}
}

func notAnID(field string, index int, rest []byte) error {
	path := fmt.Sprintf("%s[%d]", field, index)
	if KindOf(rest) != '0' {
		return WrongType(path, "a token id", rest)
	}
	if end := bytes.IndexAny(rest, ", \t\r\n"); end >= 0 {
		rest = rest[:end]
	}
	return OutOfRange(path, fmt.Sprintf("a token id (an integer from 0 to %d)", uint32(math.MaxUint32)), rest)
}
