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

// Treatment says what weir does with a field on the way to an engine that
// takes ids. Relays carry every field.
type Treatment uint8

// The treatments.
const (
	Carried Treatment = iota // read, checked and acted on
	Refused                  // it would change the answer: refused, except for values that ask for nothing
	Ignored                  // it asks for a service beside the answer: left out, and named (LeftOut)
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
	// Whole says that a carried field is handed on as it is, with all that it holds. A
	// field that is not carried is judged as a whole in any case.
	Whole bool
	// Defaults are the JSON values besides null that ask for what happens anyway: a
	// refused field may have them, and an ignored one is not named with them. They are
	// in canonical JSON (RFC 8785).
	Defaults []string
	// Note says what a carried field may be and what it becomes, what to do without a
	// refused one where that is more than to leave it out, and what an ignored one
	// asks for.
	Note string
	// Elsewhere says what vLLM's and SGLang's own servers do with a field that is not
	// carried here.
	Elsewhere string
	// Needs is what an engine's wire must carry for the field to be carried;
	// otherwise it is refused like others. Parts of the value may need more.
	Needs infer.Carries
}

// Taken is a top-level field of a dialect's table. Take decodes it into d when it is carried and
// not null.
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

// The treatment of fields by vLLM's and SGLang's own servers (Field.Elsewhere), in vLLM 0.33 and
// SGLang 0.5.23.
const (
	BothRead    = "both read it"
	BothPass    = "both ignore it"
	BothRefuse  = "both refuse it"
	VLLMReads   = "vLLM reads it, SGLang ignores it"
	SGLangReads = "SGLang reads it, vLLM ignores it"
	VLLMEchoes  = "vLLM only returns it, SGLang ignores it"
)

// Judge says whether the value of a field, which stands at path, is to be read: that
// of a carried field is, which may be null. Its error refuses the field.
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

// Ignore notes a field of the table that asked for something which is left out.
func (d *Decoding) Ignore(name string) {
	if l := d.leaveOut(); !slices.Contains(l.Fields, name) {
		l.Fields = append(l.Fields, name)
	}
}

// maxPassed bounds the unknown fields of a request that are noted.
const maxPassed = 32

// Passes says whether a field that is in no table is passed over, and notes it.
func (d *Decoding) Passes(path string) bool {
	if !d.lax {
		return false
	}
	if l := d.leaveOut(); len(l.Passed) < maxPassed && !slices.Contains(l.Passed, path) {
		l.Passed = append(l.Passed, Clip(path, 64))
	}
	return true
}

func (d *Decoding) leaveOut() *LeftOut {
	if d.LeftOut == nil {
		d.LeftOut = new(LeftOut)
	}
	return d.LeftOut
}

// UnknownField judges a top-level field by a name that is not in the table.
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

// UnknownMember judges a member of an object inside the body, at path, that has none of
// the known names.
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

// UnknownType refuses a type, at path, that is not in the table; only says which are.
func (d *Decoding) UnknownType(path, word, only string, known ...string) error {
	e := &infer.Error{Code: infer.CodeUnsupported, Param: path,
		Message: fmt.Sprintf("%s %q is not supported by %s; %s", path, Clip(word, 32), d.Carrier(), only)}
	undated := strings.TrimRight(word, "0123456789") // of Anthropic's tools
	if near := spell.Nearest(undated, known, min(2, len(undated)/3)); near != "" {
		e.Message = fmt.Sprintf("%s %q is not supported by %s; did you mean %s?", path, Clip(word, 32), d.Carrier(), near)
	}
	return e
}

// Covers says whether a field of an API's types is in a table, and so what becomes of
// it. A path has a dot between its fields, brackets behind those that are arrays, and
// behind a field whose type member tells what it holds the types that it may have:
// messages[]<user>.content[]<text|refusal>.text. A row covers all that the field holds
// where that is judged as a whole.
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

// Row finds a field in a table by its name. A row whose name ends with a star is that of
// all names that begin so.
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
