package jsonlex

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// TestNumber compares with encoding/json: a text of the bytes of numbers is one if and only if
// all of it is read.
func TestNumber(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.SampledFrom([]byte("-+.eE0127")), 1, 9).Draw(t, "text")
		if is := Number(b) == len(b); is != json.Valid(b) {
			t.Fatalf("%q: %v, want %v", b, is, !is)
		}
	})
	for text, want := range map[string]int{"": 0, "-": 0, "01": 1, "-0.5e+3,": 7, "1.": 0, "1e": 0, "12]": 2, "x": 0} {
		if n := Number([]byte(text)); n != want {
			t.Errorf("%q: %d, want %d", text, n, want)
		}
	}
}

// TestEscape compares with encoding/json. Both take the same escapes, for the same characters, but
// for half of a pair: encoding/json writes U+FFFD for it.
func TestEscape(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := append([]byte{'\\'}, rapid.SliceOfN(rapid.SampledFrom([]byte(`\u"/bfnrtdDcC80aAgx`)), 0, 11).Draw(t, "text")...)
		if rapid.Bool().Draw(t, "pair") {
			b = []byte(`\ud83d\ude00`)
			b[rapid.IntRange(1, 11).Draw(t, "at")] = rapid.SampledFrom([]byte(`\ud8cCfgx`)).Draw(t, "byte")
		}
		n := Escape(b)
		if n > 0 && !json.Valid(append(append([]byte{'"'}, b[:n]...), '"')) {
			t.Fatalf("%q is no escape", b[:n])
		}
		for size := 2; n == 0 && size <= min(len(b), 6); size++ {
			if json.Valid(append(append([]byte{'"'}, b[:size]...), '"')) {
				t.Fatalf("%q begins with an escape of %d", b, size)
			}
		}
		out, m := AppendEscape(nil, b)
		if m == 0 {
			if r, ok := Unit(b); n > 0 && !(ok && utf8.RuneLen(r) < 0) {
				t.Fatalf("%q stands for nothing", b)
			}
			return
		}
		var want string
		if err := json.Unmarshal(append(append([]byte{'"'}, b[:m]...), '"'), &want); err != nil || string(out) != want {
			t.Fatalf("%q is %q, want %q: %v", b[:m], out, want, err)
		}
	})
}
