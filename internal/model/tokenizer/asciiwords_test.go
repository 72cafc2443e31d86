package tokenizer

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// checkWords checks that the words that asciiWords finds are the pieces that the scanners cut,
// and returns how many it found in each grammar.
func checkWords(t interface{ Fatalf(string, ...any) }, s string) map[string]int {
	count := map[string]int{}
	for _, g := range Grammars() {
		w, ok := g.scan.(wordy)
		if !ok {
			continue
		}
		for i := 0; i < len(s); {
			end := g.scan.next(s, i, nil)
			if got := w.words().end([]byte(s), i); got != 0 {
				count[g.Name]++
				if got != end {
					t.Fatalf("%s, %q: the word at %d ends at %d, the piece at %d", g.Name, s, i, got, end)
				}
			}
			i = end
		}
	}
	return count
}

// TestASCIIWords checks words of all lengths between all pairs of ASCII bytes, and of random
// parts.
func TestASCIIWords(t *testing.T) {
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
			for name, n := range checkWords(t, b.String()) {
				count[name] += n
			}
		}
	}
	for _, g := range Grammars() {
		if _, ok := g.scan.(wordy); ok && count[g.Name] < 10_000 {
			t.Errorf("%s: %d words were found", g.Name, count[g.Name])
		}
	}
	parts := []string{"a", "Z", "the", "Word", "tokenizers", "undiscriminating", "'", "'s", "'Ll", " ", "  ", "\n", "\r", "\t", "1", "23", ".", "/", "(", "\x7f", "\x00", "é", "\u0301", "ſ", "中", "\u00a0"}
	rapid.Check(t, func(t *rapid.T) {
		checkWords(t, strings.Join(rapid.SliceOfN(rapid.SampledFrom(parts), 1, 40).Draw(t, "parts"), ""))
	})
}
