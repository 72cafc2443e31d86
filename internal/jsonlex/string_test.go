package jsonlex

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// TestString compares with encoding/json, whose strings may hold halves of pairs too.
func TestString(t *testing.T) {
	pieces := []string{`"`, `\`, `\"`, `\\`, `\n`, `\u`, `\ud83d`, `\ude00`, `\u00e9`, `\uD83D\uDE00`, `a`, `abcdefgh`, "é", "😀", "\x00", "\x1f", " ", "\x7f", "\xff", `/`, `\x`, `0`}
	rapid.Check(t, func(t *rapid.T) {
		inside := strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 12).Draw(t, "pieces"), "")
		b := []byte(`"` + inside + `"`)
		end, how, ok := String(b, 1)
		if !ok {
			if end < 1 || end > len(b) {
				t.Fatalf("%q: an error at %d", b, end)
			}
			for n := 2; n <= len(b); n++ {
				if json.Valid(b[:n]) {
					t.Fatalf("%q is a string of %d bytes", b, n)
				}
			}
			return
		}
		if !json.Valid(b[:end]) {
			t.Fatalf("%q is no string", b[:end])
		}
		escaped := strings.Contains(string(b[:end]), `\`)
		if how&Escaped != 0 != escaped {
			t.Fatalf("%q: escapes %v", b[:end], how)
		}
		// encoding/json writes U+FFFD for what is no text.
		var text string
		if err := json.Unmarshal(b[:end], &text); err != nil {
			t.Fatal(err)
		}
		if half := strings.Contains(text, "\uFFFD") && utf8.Valid(b[:end]); how&Half != 0 != half && utf8.Valid(b[:end]) {
			t.Fatalf("%q: half a pair %v", b[:end], how)
		}
	})
}

// TestRun looks at one byte after the other.
func TestRun(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.SampledFrom([]byte("aaaaaaaaa ~\"\\\x00\x1f\x20\x21\x23\x5b\x5d\x7f\x80\xa2\xdc\xff")), 0, 40).Draw(t, "text")
		from := rapid.IntRange(0, len(b)).Draw(t, "from")
		want, plain := from, true
		for ; want < len(b) && b[want] >= ' ' && b[want] != '"' && b[want] != '\\'; want++ {
			plain = plain && b[want] < 0x80
		}
		if end, ascii := Run(b, from); end != want || ascii != plain {
			t.Fatalf("%q from %d: %d and %v, want %d and %v", b, from, end, ascii, want, plain)
		}
	})
}

// BenchmarkString reads text with an escape in so many bytes.
func BenchmarkString(b *testing.B) {
	for name, every := range map[string]string{"40": `\n`, "400": strings.Repeat("x", 360) + `\n`} {
		text := []byte(strings.Repeat("as sources and prose have it: some words\\\"\\u003c"+every, 160<<10/40)[:160<<10] + `"`)
		b.Run("every="+name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, _, ok := String(text, 0); !ok {
					b.Fatal("no string")
				}
			}
		})
	}
}
