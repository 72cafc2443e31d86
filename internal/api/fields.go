package api

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
	"weir/internal/spell"
)

// Treatment says what weir does with a field on the way to an engine that
// takes ids. Relays carry every field.
type Treatment uint8

// The treatments.
const (
	Carried Treatment = iota // read, checked and acted on
	Refused                  // refused, except for values that ask for nothing
	Ignored                  // accepted with any value, has no effect
)

// String gives the word used in documents.
func (t Treatment) String() string { return [...]string{"carried", "refused", "ignored"}[t] }

// Field describes a field of a request body.
type Field struct {
	// Name is the field's path: "stop", "messages[].role".
	Name string
	// On is the set of the dialect's endpoints that have the field, a bit for each; 0
	// is all of them.
	On        uint8
	Treatment Treatment
	// Defaults are the JSON values besides null that a refused field may have,
	// because they ask for what happens anyway. They are in canonical JSON (RFC 8785).
	Defaults []string
	// Note says what a carried field may be and what it becomes, what to do without a
	// refused one where that is more than to leave it out, and why nothing is lost by
	// an ignored one.
	Note string
	// Needs is what an engine's wire must carry for the field to be carried;
	// otherwise it is refused like others. Parts of the value may need more.
	Needs infer.Carries
}

// Judge says whether the value of a field, which stands at path, is to be read: that
// of a carried field is, which may be null. Its error refuses the field.
func (d *Decoding) Judge(f *Field, path string, raw []byte) (read bool, err error) {
	switch lacks := f.Needs &^ d.Carries; {
	case f.Treatment == Carried && lacks == 0:
		return true, nil
	case f.Treatment == Ignored || AsksForNothing(raw, f.Defaults):
		return false, nil
	case f.Treatment == Refused && f.Note != "":
		return false, &infer.Error{Code: infer.CodeUnsupported, Param: path,
			Message: fmt.Sprintf("%s is not supported by %s; %s", path, d.Carrier(), f.Note)}
	}
	return false, d.Lacking(f.Needs, path, f.Defaults...)
}

// AsksForNothing says whether a value of a refused field may pass: it is null, or
// one of the field's defaults, which are in canonical JSON (RFC 8785).
func AsksForNothing(raw []byte, defaults []string) bool {
	if KindOf(raw) == 'n' {
		return true
	}
	const longest = 256 // of the defaults, with room for white space
	if len(defaults) == 0 || len(raw) > longest {
		return false
	}
	value := jsontext.Value(bytes.Clone(raw))
	if value.Canonicalize() != nil {
		return false
	}
	return slices.Contains(defaults, string(value))
}

// Unsupported refuses a field that carrier, which names the kind of engine or the
// endpoint, cannot carry. Defaults are values that may be sent.
func Unsupported(path, carrier string, defaults []string) *infer.Error {
	hint := "leave it out"
	if len(defaults) > 0 {
		hint += " or send " + defaults[0]
	}
	return &infer.Error{
		Code:    infer.CodeUnsupported,
		Param:   path,
		Message: fmt.Sprintf("%s is not supported by %s; %s", path, carrier, hint),
	}
}

// UnknownField refuses a field by a name that is not in the table.
func UnknownField(name, carrier string, known Names) *infer.Error {
	e := &infer.Error{Code: infer.CodeUnsupported, Param: Clip(name, 64)}
	hint := "leave it out"
	if near := Nearest(name, known); near != "" {
		hint = "did you mean " + near + "?"
	}
	e.Message = fmt.Sprintf("there is no field %q that %s can carry; %s", e.Param, carrier, hint)
	return e
}

// Nearest gives the known field that a name was probably meant to be, or "".
func Nearest(name string, known Names) string {
	if len(name) > 64 {
		return ""
	}
	fields := slices.SortedFunc(maps.Values(known), func(a, b Name) int { return cmp.Compare(a.Index, b.Index) })
	words := make([]string, 0, len(fields))
	for _, f := range fields {
		words = append(words, f.Word)
	}
	return spell.Nearest(name, words, min(2, len(name)/3))
}
