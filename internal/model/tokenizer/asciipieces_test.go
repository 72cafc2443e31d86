package tokenizer

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// checkPieces checks that what asciiPieces finds are the pieces that the scanners cut, with their
// keys, and returns how many it found in each grammar.
func checkPieces(t interface{ Fatalf(string, ...any) }, s string) map[string]int {
	count := map[string]int{}
	for _, g := range Grammars() {
		p, ok := g.scan.(plain)
		if !ok {
			continue
		}
		for i := 0; i < len(s); {
			end := g.scan.next(s, i, nil)
			if i+asciiRoom <= len(s) {
				if k, n := p.ascii().find((*[asciiRoom]byte)([]byte(s[i:]))); n != 0 {
					count[g.Name]++
					if i+n != end || k != keyOf([]byte(s), i, end) {
						t.Fatalf("%s, %q: the piece at %d ends at %d and not at %d, with key %x", g.Name, s, i, end, i+n, k)
					}
				}
			}
			i = end
		}
	}
	return count
}

// TestASCIIPieces checks words of all lengths between all pairs of ASCII bytes, runs of three
// bytes, and random parts.
func TestASCIIPieces(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: it runs without the race detector")
	}
	count := map[string]int{}
	for before := range 128 {
		for after := range 128 {
			var b strings.Builder
			for n := range 18 {
				for k := range n {
					b.WriteByte("tokenizersOfWordsX"[k])
				}
				b.WriteByte(byte(after))
				b.WriteByte(byte(before))
			}
			for name, n := range checkPieces(t, b.String()) {
				count[name] += n
			}
		}
	}
	for a := range 128 {
		for c := range 128 {
			var b strings.Builder
			for _, d := range []byte("aZ' \n\t1/.\x00") {
				b.Write([]byte{'a', byte(a), byte(c), d, 'A', d, byte(c), byte(c), byte(a), 'z'})
			}
			b.WriteString("é, and all that is behind")
			checkPieces(t, b.String())
		}
	}
	for _, g := range Grammars() {
		if _, ok := g.scan.(plain); ok && count[g.Name] < 10_000 {
			t.Errorf("%s: %d pieces were found", g.Name, count[g.Name])
		}
	}
	parts := []string{"a", "Z", "the", "Word", "tokenizers", "undiscriminating", "'", "'s", "'Ll", " ", "  ", "\n", "\r", "\t", "1", "23", ".", "/", "(", "\x7f", "\x00", "é", "\u0301", "ſ", "中", "\u00a0"}
	rapid.Check(t, func(t *rapid.T) {
		checkPieces(t, strings.Join(rapid.SliceOfN(rapid.SampledFrom(parts), 1, 40).Draw(t, "parts"), ""))
	})
}
