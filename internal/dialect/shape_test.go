package dialect

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// FuzzShape: what a shape reads is what jsontext reads, for a body's head, for items and
// members, and for the strict rules; and jsontext words each error.
func FuzzShape(f *testing.F) {
	for _, seed := range append([]string{
		`{"model":"m","stream":true,"messages":[{"role":"user","content":"a\nb \"c\" \\ é\u00e9\ud83d\ude00"}],"n":1,"x":{"a":1,"a":2}}`,
		`{"model":"m","model":"m"}`, `{"n":1,"n":2}`, `{"x":1,"x":2}`, `{"m\u006fdel":"a"}`, `{"a":"\ud83d"}`, `{"a":"\ud83d\ud83d\ude00"}`, "{\"a\":\"\xff\"}",
		` {"a" : [ 1 , 2 ] } `, `{"a":1,}`, `{"a":1}x`, `{"a":[1,]}`, `{"a":1 "b":2}`, `{"a":tru}`, "\ufeff{}", `{"stream":"x","a":}`,
		`[{"a":1},{"b":[]}]`, `{"a":{"b":1,"c":{"b":1}},"b":1}`, `{"":1,"":2}`,
		`{"a":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `}`,
		`{"a":` + strings.Repeat("[", 11_000) + strings.Repeat("]", 11_000) + `}`, // deeper than jsontext goes
		`[1,02,3]`, `{"prompt":[10, 02,3]}`, `[1,2,]`, `[1,2`, `[10,]`,
		manyNames("x"), manyNames("n1"), // as many as are compared, and one of them twice
	}, jsonCases...) {
		f.Add([]byte(seed))
	}
	known := NewNames("model", "stream", "n", "messages")
	take := func(h *Head, name string, value []byte) (err error) {
		if name == "stream" {
			h.Stream, err = BoolOf(name, value)
		}
		return err
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if InvalidUTF8(b) < 0 {
			head, err := ParseHead(b, known, take)
			slow := &Head{Body: b, N: 1, model: -1, Fields: []Span{}}
			slowErr := slow.slowly(known, take)
			if (err == nil) != (slowErr == nil) || err != nil && err.Error() != slowErr.Error() {
				t.Fatalf("%q: %v, want %v", b, err, slowErr)
			}
			if err == nil {
				if head.strict {
					for _, at := range head.Fields {
						if err := checkStrict(at.Name, b[at.Start:at.End]); err != nil {
							t.Fatalf("%q is not strict: %v", b, err)
						}
					}
				}
				head.strict = false
				if !reflect.DeepEqual(head, slow) {
					t.Fatalf("%q: %+v, want %+v", b, head, slow)
				}
			}
		}
		if isStrict(b) && (checkStrict("x", b) != nil || !json.Valid(b)) {
			t.Fatalf("%q is not strict", b)
		}
		type pair struct{ name, value string }
		i := SkipSpace(b, 0)
		if i == len(b) || b[i] != '{' && b[i] != '[' {
			return // neither is called for it
		}
		var got, want []pair
		var err, slowErr error
		if b[i] == '{' {
			err = EachMember(b, func(name string, value []byte) error { got = append(got, pair{name, string(value)}); return nil })
			slowErr = eachMember(b, 0, func(name string, value []byte) error { want = append(want, pair{name, string(value)}); return nil })
		} else {
			err = EachItem(b, func(i int, item []byte) error {
				if i != len(got) {
					t.Fatalf("%q: item %d after %d", b, i, len(got))
				}
				got = append(got, pair{"", string(item)})
				return nil
			})
			slowErr = eachItem(b, 0, func(_ int, item []byte) error { want = append(want, pair{"", string(item)}); return nil })
		}
		if (err == nil) != (slowErr == nil) || err == nil && !reflect.DeepEqual(got, want) {
			t.Fatalf("%q: %v %v, want %v %v", b, got, err, want, slowErr)
		}
	})
}

// manyNames is an object with more names than a shape compares. The last one is given.
func manyNames(last string) string {
	var b strings.Builder
	for i := range maxShapeNames {
		fmt.Fprintf(&b, `"n%d":0,`, i)
	}
	return `{"a":{` + b.String() + `"` + last + `":0}}`
}

// Bodies of clients are read without jsontext, and are known to be strict. An object may have the
// names of another one, before it, around it or in it, and a body may have more of them than are
// compared at a time.
func TestShapeReadsBodies(t *testing.T) {
	turn := `{"role": "user", "content": "a\nb é \ud83d\ude00"}, {"role": "user", "content": [{"type": "text", "text": ""}]}`
	body := []byte(`{"model": "m", "messages": [` + turn + strings.Repeat(", "+turn, maxShapeNames) + `], "temperature": 0.5, "metadata": {"model": "m", "role": "x"},` +
		` "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"type": {"type": "string"}}}}}], "role": "y", "stop": []}` + "\n")
	h := &Head{Body: body, model: -1}
	read, err := h.scanPlain(NewNames("model"), func(*Head, string, []byte) error { return nil })
	if !read || err != nil || !h.strict || len(h.Fields) != 7 {
		t.Errorf("read %v, strict %v, %d fields, %v", read, h.strict, len(h.Fields), err)
	}
}
