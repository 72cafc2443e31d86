package dialecttest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// odd are values of five types, one of which no field takes for anything but its type.
var odd = []string{`[[["odd"]]]`, `{"odd":[7]}`, `"odd"`, `-7.5`, `true`}

// Nested checks the nested fields of a dialect against its table. The examples are bodies
// that decode accepts. Together they have every nested field that the table carries, with a
// value of each type that the field may have. Nested checks that
//
//   - a value of any other type is an error that names the path of the field,
//   - a field that is refused is one wherever it is put, unless it asks for nothing, and one
//     that is ignored passes with any value and is named, and
//   - without a member an object either passes, or the error names what is missing.
func Nested(t *testing.T, decode func(body string) (*dialect.LeftOut, error), fields []dialect.Field, examples ...string) {
	t.Helper()
	var all []place
	kinds := map[string]string{} // of a row: the kinds of value that it may have
	for _, body := range examples {
		if _, err := decode(body); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		for _, p := range placesOf(t, fields, body) {
			all = append(all, p)
			if !strings.ContainsRune(kinds[p.row], rune(p.kind)) {
				kinds[p.row] += string(p.kind)
			}
		}
	}
	n := nested{t: t, decode: decode}
	for i := range all {
		n.wrongTypes(&all[i], dialect.Row(fields, all[i].row), kinds[all[i].row])
		n.without(&all[i])
	}
	for i := range fields {
		f := &fields[i]
		at := max(strings.LastIndexByte(f.Name, '.'), 0)
		parent, name := f.Name[:at], strings.TrimPrefix(f.Name[at:], ".")
		switch {
		case parent == "" || strings.Contains(f.Name, " "):
		case f.Treatment == dialect.Carried && kinds[f.Name] == "":
			t.Errorf("no example has %s", f.Name)
		case f.Treatment != dialect.Carried:
			n.put(f, all, parent, name)
		}
	}
	t.Logf("%d nested fields, %d bodies", len(kinds), n.asked)
}

// place is a value inside of a body.
type place struct {
	body       string
	path, row  string // tools[0].name, and in the table tools[].name
	start, end int    // of the value
	from       int    // where its member or item begins
	kind       byte   // as jsontext.Kind has it, true and false as t
	last       bool   // of its object or array
	item       bool   // of an array
}

// placesOf returns the places in a body that the table says something of: those below what is
// handed on as it is, and below what is not carried, are not.
func placesOf(t *testing.T, fields []dialect.Field, body string) (all []place) {
	t.Helper()
	dec := jsontext.NewDecoder(strings.NewReader(body))
	begin := func() int {
		at := int(dec.InputOffset())
		return at + len(body[at:]) - len(strings.TrimLeft(body[at:], " ,:"))
	}
	var walk func(path, row string, from int, item, below bool)
	walk = func(path, row string, from int, item, below bool) {
		p := place{body: body, path: path, row: row, start: begin(), from: from, item: item}
		p.kind = byte(dec.PeekKind())
		if p.kind == 'f' {
			p.kind = 't'
		}
		if f := dialect.Row(fields, row); f != nil && (f.Whole || f.Treatment != dialect.Carried) {
			below = false
		}
		at := len(all)
		all = append(all, p)
		switch {
		case !below || p.kind != '{' && p.kind != '[':
			if err := dec.SkipValue(); err != nil {
				t.Fatal(err)
			}
		default:
			_, _ = dec.ReadToken()
			for i := 0; dec.PeekKind() != '}' && dec.PeekKind() != ']'; i++ {
				from := begin()
				if p.kind == '[' {
					walk(fmt.Sprintf("%s[%d]", path, i), row+"[]", from, true, true)
					continue
				}
				name, err := dec.ReadToken()
				if err != nil {
					t.Fatal(err)
				}
				inside, insideRow := name.String(), name.String()
				if path != "" {
					inside, insideRow = path+"."+inside, row+"."+insideRow
				}
				walk(inside, insideRow, from, false, true)
			}
			_, _ = dec.ReadToken()
		}
		all[at].end = int(dec.InputOffset())
		all[at].last = strings.HasPrefix(strings.TrimLeft(body[all[at].end:], " "), "}") || strings.HasPrefix(strings.TrimLeft(body[all[at].end:], " "), "]")
	}
	walk("", "", 0, false, true)
	return slices.DeleteFunc(all, func(p place) bool { return !strings.ContainsAny(p.row, ".[") && p.kind != '{' })
}

// nested tries bodies.
type nested struct {
	t      *testing.T
	decode func(body string) (*dialect.LeftOut, error)
	asked  int
}

func (n *nested) try(body string) (*dialect.LeftOut, *infer.Error) {
	n.t.Helper()
	n.asked++
	left, err := n.decode(body)
	var e *infer.Error
	if err != nil && (!errors.As(err, &e) || e.Code != infer.CodeInvalid && e.Code != infer.CodeUnsupported) {
		n.t.Errorf("%v is no error for a caller: %s", err, body)
		return nil, &infer.Error{}
	}
	return left, e
}

// wrongTypes gives the field at a place every value that is none of the kinds.
func (n *nested) wrongTypes(p *place, f *dialect.Field, kinds string) {
	n.t.Helper()
	if p.path == "" || !strings.ContainsAny(p.row, ".[") || f != nil && (strings.HasPrefix(f.Note, "any") || f.Note == "of no effect" || f.Treatment != dialect.Carried) {
		return
	}
	for _, value := range odd {
		if strings.Contains(kinds, value[:1]) || strings.Contains(kinds, "0") && value[0] == '-' {
			continue
		}
		body := p.body[:p.start] + value + p.body[p.end:]
		if _, e := n.try(body); e == nil || !strings.HasPrefix(e.Param, p.path) || !strings.Contains(e.Message, p.path) {
			n.t.Errorf("%s is %s: %v, and the field is %q: %s", p.path, value, e, param(e), body)
		}
	}
}

// without leaves out a member.
func (n *nested) without(p *place) {
	n.t.Helper()
	if p.item || !strings.Contains(p.row, ".") {
		return
	}
	end, from := p.end, p.from
	if !p.last {
		end += strings.IndexByte(p.body[end:], ',') + 1
	} else if before := strings.TrimRight(p.body[:from], " "); strings.HasSuffix(before, ",") {
		from = len(before) - 1
	}
	body := p.body[:from] + p.body[end:]
	if _, e := n.try(body); e != nil && (e.Param != p.path || !strings.Contains(e.Message, p.path) || strings.Contains(e.Message, `found ""`)) {
		n.t.Errorf("without %s: %v, and the field is %q: %s", p.path, e, param(e), body)
	}
}

// put puts a field that is not carried wherever an object may have it.
func (n *nested) put(f *dialect.Field, all []place, parent, name string) {
	n.t.Helper()
	put, named := 0, false
	for i := range all {
		p := &all[i]
		if p.row != parent || p.kind != '{' {
			continue
		}
		put++
		for _, value := range append(slices.Clone(odd), f.Defaults...) {
			fresh := fmt.Sprintf("{%q:%s", name, value)
			if p.body[p.start+1] != '}' {
				fresh += ","
			}
			body := p.body[:p.start] + fresh + p.body[p.start+1:]
			path := strings.TrimPrefix(p.path+"."+name, ".")
			left, e := n.try(body)
			switch {
			case e != nil && (!strings.HasPrefix(e.Param, path) || !strings.Contains(e.Message, path)):
				n.t.Errorf("%s is %s: %v, and the field is %q: %s", path, value, e, e.Param, body)
			case e == nil && f.Treatment == dialect.Refused && !slices.Contains(f.Defaults, value):
				n.t.Errorf("%s is %s, and it is not refused: %s", path, value, body)
			case e == nil:
				named = named || slices.Contains(left.Ignored(), f.Name)
			}
		}
	}
	if put == 0 || f.Treatment == dialect.Ignored && !named {
		n.t.Errorf("%s was put into %d objects; named as ignored: %v", f.Name, put, named)
	}
}

// LeftOut returns what was left out of a decoded request.
func LeftOut(r *dialect.Request, err error) (*dialect.LeftOut, error) {
	if err != nil {
		return nil, err
	}
	return r.LeftOut, nil
}

func param(e *infer.Error) string {
	if e == nil {
		return ""
	}
	return e.Param
}
