package tokenizer

import (
	"testing"

	"pgregory.net/rapid"
)

// TestLexicon compares a lexicon with a map, for tokens that begin alike, that differ in zeros
// only, and whose lengths lie about that of an opening.
func TestLexicon(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		token := rapid.Custom(func(t *rapid.T) string {
			b := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 'a', 0xff}), 0, 17).Draw(t, "bytes")
			return string(b)
		})
		l, want := newLexicon(0, 0), make(map[string]uint32)
		for i, s := range rapid.SliceOfN(token, 0, 200).Draw(t, "tokens") {
			_, had := want[s]
			if want[s] = uint32(i); l.set(s, uint32(i)) == had {
				t.Fatalf("set of %q at %d: had %v", s, i, had)
			}
		}
		if l.count != len(want) {
			t.Fatalf("%d tokens, want %d", l.count, len(want))
		}
		for s, id := range want {
			if got, ok := l.get(s); !ok || got != id {
				t.Fatalf("%q is %d, %v, want %d", s, got, ok, id)
			}
		}
		for s, id := range l.all() {
			if want[s] != id {
				t.Fatalf("%q is listed as %d, want %d", s, id, want[s])
			}
		}
		for _, s := range rapid.SliceOfN(token, 0, 50).Draw(t, "others") {
			id, ok := l.get(s)
			if other, had := want[s]; ok != had || ok && id != other {
				t.Fatalf("%q is %d, %v, want %d, %v", s, id, ok, other, had)
			}
		}
	})
}
