package jinja

import (
	"encoding/json"
	"os"
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
		v, ok := p.read()
		want, err := decodeJSON(raw)
		if ok && (err != nil || !reflect.DeepEqual(v, want)) {
			t.Fatalf("%q: %#v, where jsontext reads %#v, %v", raw, v, want, err)
		}
		if got, gotErr := DecodeJSON(raw); (gotErr == nil) != (err == nil) || err == nil && !reflect.DeepEqual(got, want) {
			t.Fatalf("%q: %#v, %v, want %#v, %v", raw, got, gotErr, want, err)
		}
	})
}

// Conversations of clients are read in one pass.
func TestPlainJSONReadsPrompts(t *testing.T) {
	for _, raw := range []string{
		`[{"role":"user","content":"a\nb \"c\" \\ \u00e9\ud83d\ude00 é"},{"content":null,"x":[1,-2.5e3,0,true,false,{}]}]`,
		`{"type":"object","properties":{"a":{"type":"number","minimum":0.5}}}`, ` "x" `,
	} {
		p := plainJSON{src: []byte(raw)}
		if _, ok := p.read(); !ok {
			t.Errorf("%s is not read", raw)
		}
	}
}

// BenchmarkDecodeJSON reads sources as a message's content.
func BenchmarkDecodeJSON(b *testing.B) {
	text, err := os.ReadFile("parser.go")
	if err != nil {
		b.Fatal(err)
	}
	raw, err := json.Marshal([]map[string]string{{"role": "user", "content": strings.Repeat(string(text), 8)}})
	if err != nil {
		b.Fatal(err)
	}
	for name, decode := range map[string]func([]byte) (Value, error){"plain": DecodeJSON, "jsontext": decodeJSON} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			for b.Loop() {
				if _, err := decode(raw); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
