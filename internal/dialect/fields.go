package dialect

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
	"weir/internal/infer/spell"
)

// Treatment is what weir does with a field on the way to an engine that takes ids.
// Relays carry every field.
type Treatment uint8

// The treatments.
const (
	Carried Treatment = iota // read, checked and acted on
	Refused                  // it would change the answer; only values that ask for nothing pass
	Ignored                  // it asks for a service beside the answer; it is left out and named (LeftOut)
)

// String returns the treatment's word in the documentation.
func (t Treatment) String() string { return [...]string{"carried", "refused", "ignored"}[t] }

// Field describes a field of a request body.
type Field struct {
	// Name is the field's path: "stop", "messages[].role".
	Name string
	// On is the set of the dialect's endpoints that have the field, one bit each. 0
	// means all of them.
	On        uint8
	Treatment Treatment
	// Whole is set for a carried field that is passed on as it is, with everything in
	// it. A field that is not carried is judged as a whole in any case.
	Whole bool
	// Defaults are the JSON values besides null that ask for what happens anyway, in
	// canonical JSON (RFC 8785). A refused field may have them. An ignored field with
	// one of them is not named. A refused field may have them. An ignored field with
	// one of them is not named.
	Defaults []string
	// Note describes the field in the documentation: which values a carried field may
	// have and what it becomes, what to do instead of a refused one if leaving it out
	// is not enough, and what an ignored one asks for.
	Note string
	// Elsewhere states what the servers of vLLM and SGLang do with a field that weir
	// does not carry.
	Elsewhere string
	// Needs is what an engine's wire must support for the field to be carried.
	// Without it the field is refused. Parts of its value may need more.
	Needs infer.Carries
}

// Taken is a top-level field of a dialect's table. Take decodes a carried value that is not null
// into d.
type Taken[D any] struct {
	Field
	Take func(d D, raw []byte) error
}

// Rows returns the rows of a table, with those of the inner fields last. The caller may change
// them.
func Rows[D any](top []Taken[D], inner []Field) []Field {
	rows := make([]Field, 0, len(top)+len(inner))
	for _, f := range top {
		rows = append(rows, f.Field)
	}
	rows = append(rows, inner...)
	for i := range rows {
		rows[i].Defaults = slices.Clone(rows[i].Defaults)
	}
	return rows
}

// The treatment of fields by the servers of vLLM 0.33 and SGLang 0.5.23 (Field.Elsewhere).
const (
	BothRead    = "both read it"
	BothPass    = "both ignore it"
	BothRefuse  = "both refuse it"
	VLLMReads   = "vLLM reads it, SGLang ignores it"
	SGLangReads = "SGLang reads it, vLLM ignores it"
	VLLMEchoes  = "vLLM only returns it, SGLang ignores it"
)

// Judge reports whether the value of the field at path is to be decoded. The value of a
// carried field is, also if it is null. Its error refuses the field.
func (d *Decoding) Judge(f *Field, path string, raw []byte) (read bool, err error) {
	switch lacks := f.Needs &^ d.Carries; {
	case f.Treatment == Carried && lacks == 0:
		return true, nil
	case AsksForNothing(raw, f.Defaults):
		return false, nil
	case f.Treatment == Ignored:
		d.Ignore(f.Name)
		return false, nil
	case f.Treatment == Refused && f.Note != "":
		return false, &infer.Error{Code: infer.CodeUnsupported, Param: path,
			Message: fmt.Sprintf("%s is not supported by %s; %s", path, d.Carrier(), f.Note)}
	}
	return false, d.Lacking(f.Needs, path, f.Defaults...)
}

// AsksForNothing reports whether a value of a refused field may pass. null may, and
// so may the field's defaults, which are in canonical JSON (RFC 8785).
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

// Unsupported returns the error of a field that carrier cannot carry. carrier names
// the kind of engine or the endpoint. The error names the defaults, which may be
// sent.
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

// Ignore records that a field of the table asked for something, which is left out.
func (d *Decoding) Ignore(name string) { d.Request.Ignore(name) }

// maxPassed bounds the unknown fields of a request that are noted.
const maxPassed = 32

// Passes reports whether a field that is in no table is passed over, and records it.
func (d *Decoding) Passes(path string) bool {
	if !d.lax {
		return false
	}
	if l := d.leaveOut(); len(l.Passed) < maxPassed && !slices.Contains(l.Passed, path) {
		l.Passed = append(l.Passed, Clip(path, 64))
	}
	return true
}

// UnknownField judges a top-level field whose name is not in the table.
func (d *Decoding) UnknownField(name string, known Names) error {
	if d.Passes(name) {
		return nil
	}
	e := &infer.Error{Code: infer.CodeUnsupported, Param: Clip(name, 64)}
	hint := "leave it out"
	if near := Nearest(name, known); near != "" {
		hint = "did you mean " + near + "?"
	}
	e.Message = fmt.Sprintf("there is no field %q that %s can carry; %s", e.Param, d.Carrier(), hint)
	return e
}

// UnknownMember judges a member of an object at path whose name is not known.
func (d *Decoding) UnknownMember(path string, known ...string) error {
	if d.Passes(path) {
		return nil
	}
	name := path[strings.LastIndexByte(path, '.')+1:]
	e := Unsupported(path, d.Carrier(), nil)
	if near := spell.Nearest(name, known, min(2, len(name)/3)); near != "" {
		e.Message = fmt.Sprintf("%s is not supported by %s; did you mean %s?", path, d.Carrier(), near)
	}
	return e
}

// UnknownType returns the error of a type at path that is not in the table. only
// lists those that are.
func (d *Decoding) UnknownType(path, word, only string, known ...string) error {
	e := &infer.Error{Code: infer.CodeUnsupported, Param: path,
		Message: fmt.Sprintf("%s %q is not supported by %s; %s", path, Clip(word, 32), d.Carrier(), only)}
	undated := strings.TrimRight(word, "0123456789") // of Anthropic's tools
	if near := spell.Nearest(undated, known, min(2, len(undated)/3)); near != "" {
		e.Message = fmt.Sprintf("%s %q is not supported by %s; did you mean %s?", path, Clip(word, 32), d.Carrier(), near)
	}
	return e
}

// Covers reports whether a field of an API's types is in a table, and so has a
// treatment. The fields of a path are separated by dots. Brackets follow the name of an
// array, and the types that a value may have follow the name in angle brackets:
// messages[]<user>.content[]<text|refusal>.text. A row whose field is judged as a whole
// covers everything inside.
func Covers(rows []Field, path string) bool {
	at := ""
	for part := range strings.SplitSeq(path, ".") {
		name, kinds, typed := strings.Cut(part, "<")
		if at != "" {
			at += "."
		}
		row := Row(rows, at+strings.TrimSuffix(name, "[]"))
		switch {
		case row == nil:
			return false
		case row.Treatment != Carried || row.Whole:
			return true
		}
		if at += name; !typed {
			continue
		}
		whole := 0
		all := strings.Split(strings.TrimSuffix(kinds, ">"), "|")
		for _, kind := range all {
			row := Row(rows, at+" "+kind)
			if row == nil {
				return false
			}
			if row.Treatment != Carried || row.Whole {
				whole++
			}
		}
		if whole == len(all) {
			return true
		}
	}
	return true
}

// Row returns the field of a table by its name. A row whose name ends with a star
// matches all names that begin with the rest.
func Row(rows []Field, name string) *Field {
	i := slices.IndexFunc(rows, func(f Field) bool {
		family, isFamily := strings.CutSuffix(f.Name, "*")
		return f.Name == name || isFamily && strings.HasPrefix(name, family)
	})
	if i < 0 {
		return nil
	}
	return &rows[i]
}

// Nearest returns the known field that a misspelled name was probably meant to be, or
// "".
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
