package jinja

import (
	"reflect"
	"strings"
	"testing"
)

// FuzzPlainJSON: what is read in one pass is what jsontext reads.
func FuzzPlainJSON(f *testing.F) {
	for _, seed := range []string{
		`[{"role":"user","content":"a\nb \"c\" \\ \u00e9\ud83d\ude00 é"},{"content":null,"x":[1,-2.5e3,0,true,false,{}]}]`,
		`{"a":1,"b":2,"a":3}`, `"\ud83d"`, `"\ud83dx"`, `"\ude00\ud83d"`, "\"\x1f\"", "\"a\xff\"", `"abcdefgh` + "\x01" + `"`, `01`, `-`, `1.`, `1e`, `1e400`, `123456789012345678901234567890`,
		`[1,]`, `{"a":}`, `{"a" 1}`, `nul`, `"\`, `"\"`, `"\\"`, `"\u12"`, `"\x"`, ` [ ] `, `[] 1`, "[]\x00", ``, `"a`, strings.Repeat("[", 300) + strings.Repeat("]", 300),
		`"\u0000"`, `"\u00E9"`, "\"\\n\xc3\"", `{"\u0061":1,"a":2}`, "\ufeff1", `"\/\b\f\r\t"`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		p := plainJSON{src: raw}
		v, ok := p.value(0)
		ok = ok && p.space() == 0 && len(p.src) == 0
		want, err := decodeJSON(raw)
		if ok && (err != nil || !reflect.DeepEqual(v, want)) {
			t.Fatalf("%q: %#v, where jsontext reads %#v, %v", raw, v, want, err)
		}
		if got, gotErr := DecodeJSON(raw); (gotErr == nil) != (err == nil) || err == nil && !reflect.DeepEqual(got, want) {
			t.Fatalf("%q: %#v, %v, want %#v, %v", raw, got, gotErr, want, err)
		}
	})
}

// What clients send is read in one pass.
func TestPlainJSONReadsPrompts(t *testing.T) {
	for _, raw := range []string{
		`[{"role":"user","content":"a\nb \"c\" \\ \u00e9\ud83d\ude00 é"},{"content":null,"x":[1,-2.5e3,0,true,false,{}]}]`,
		`{"type":"object","properties":{"a":{"type":"number","minimum":0.5}}}`, ` "x" `,
	} {
		p := plainJSON{src: []byte(raw)}
		if _, ok := p.value(0); !ok || p.space() != 0 {
			t.Errorf("%s is not read", raw)
		}
	}
}
