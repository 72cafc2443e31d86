package jsonlex

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// pieces are what strings are made of.
var pieces = []string{`"`, `\`, `\"`, `\\`, `\n`, `\u`, `\ud83d`, `\ude00`, `\u00e9`, `\u003C`, `\u000a`, `\u00g1`, `\uD83D\uDE00`, `a`, `abcdefgh`, "é", "😀", "\x00", "\x1f", " ", "\x7f", "\xff", `/`, `\x`, `0`}

// TestString compares with encoding/json, whose strings may hold halves of pairs too.
func TestString(t *testing.T) {
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

// TestAppendString compares with encoding/json and String.
func TestAppendString(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		inside := strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 12).Draw(t, "pieces"), "")
		b := []byte(`"` + inside + `"`)
		before := rapid.SampledFrom([]string{"", "x", strings.Repeat("y", 70)}).Draw(t, "before")
		dst := append(make([]byte, 0, len(before)+rapid.IntRange(0, 20).Draw(t, "room")), before...)
		got, end, ok := AppendString(dst, b, 1)
		want, how, valid := String(b, 1)
		if valid = valid && how&Half == 0 && utf8.Valid(b[:want]); ok != valid {
			t.Fatalf("%q: %v, want %v", b, ok, valid)
		}
		if !ok {
			return
		}
		var text string
		if err := json.Unmarshal(b[:want], &text); err != nil || end != want || string(got) != before+text {
			t.Fatalf("%q: %q to %d, want %q to %d: %v", b, got, end, before+text, want, err)
		}
	})
}

// BenchmarkString reads text with an escape in so many bytes, and this package's sources.
func BenchmarkString(b *testing.B) {
	texts := map[string]string{
		"every=40":  strings.Repeat("as sources and prose have it: some words\\\"\\u003c\\n", 160<<10/40),
		"every=400": strings.Repeat("as sources and prose have it: some words\\\"\\u003c"+strings.Repeat("x", 360)+`\n`, 160<<10/40),
	}
	source, err := os.ReadFile("jsonlex.go")
	if err != nil {
		b.Fatal(err)
	}
	quoted, err := json.Marshal(strings.Repeat(string(source), 160<<10/len(source)+1))
	if err != nil {
		b.Fatal(err)
	}
	texts["source"] = string(quoted[1:])
	for name, long := range texts {
		text := []byte(strings.TrimRight(long[:160<<10], `\u03c`) + `"`)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, _, ok := String(text, 0); !ok {
					b.Fatal("no string")
				}
			}
		})
		b.Run("append/"+name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			var out []byte
			for b.Loop() {
				var ok bool
				if out, _, ok = AppendString(out[:0], text, 0); !ok {
					b.Fatal("no string")
				}
			}
		})
	}
}
