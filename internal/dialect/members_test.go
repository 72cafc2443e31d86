package dialect

import (
	"fmt"
	"slices"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

// Any JSON object or array is walked as a decoder walks it.
func FuzzMembers(f *testing.F) {
	for _, s := range []string{`{}`, ` { "a" : 1 , "b":[{"c":"}]"},2] ,"\u0061":null}`, `{"a":{},"b":"\\\"","c":-1.5e3}`, `[]`, "[\t1,\"]\", [ [ ] ] ,{ }\n]\r", `[[[]],{"a":[]},true]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if !jsontext.Value(raw).IsValid(jsontext.AllowDuplicateNames(true)) || InvalidUTF8(raw) >= 0 {
			return
		}
		var got, want []string
		switch jsontext.Value(raw).Kind() {
		case '{':
			_ = Members(raw, func(name, value []byte) error { got = append(got, fmt.Sprintf("%q %s", name, value)); return nil })
			_ = EachMember(raw, func(name string, value []byte) error {
				want = append(want, fmt.Sprintf("%q %s", name, value))
				return nil
			})
		case '[':
			_ = Items(raw, func(i int, item []byte) error { got = append(got, fmt.Sprintf("%d %s", i, item)); return nil })
			_ = EachItem(raw, func(i int, item []byte) error { want = append(want, fmt.Sprintf("%d %s", i, item)); return nil })
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", raw, got, want)
		}
	})
}

// A value ends where it ends, whatever comes behind it, and one that is cut has no end,
// unless it is a number or a literal, which may end anywhere.
func TestSkipValue(t *testing.T) {
	for _, value := range []string{`""`, `"a\"b\\\\"`, `"\\"`, `{}`, `[]`, `{"a}":[1,"]",{"b":"\\\""}]}`, `[[],{"a":null}]`, `-1.5e+7`, `true`, `null`} {
		for _, behind := range []string{"", ",", "]", "}", " ", "\n:", `"`} {
			if end := SkipValue([]byte("x"+value+behind), 1); end != 1+len(value) {
				t.Errorf("%s ends at %d", value+behind, end)
			}
		}
		for cut := range len(value) {
			want := -1
			if value[0] != '"' && value[0] != '{' && value[0] != '[' && cut > 0 {
				want = cut
			}
			if end := SkipValue([]byte(value[:cut]), 0); end != want {
				t.Errorf("%s, cut at %d, ends at %d", value, cut, end)
			}
		}
	}
}
