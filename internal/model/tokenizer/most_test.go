package tokenizer

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// An Encode of at most so many ids gives all of them, or says that there are more, and
// then no more than there are.
func TestMost(t *testing.T) {
	toks := map[string]*Tokenizer{
		"sim": loadSim(t).Tokenizer, "bpe": loadSmall(t, "bpe", nil, nil), "unigram": loadSmall(t, "unigram", nil, nil),
	}
	for name, tok := range toks {
		t.Run(name, func(t *testing.T) {
			enc, cache := tok.NewEncoder(), NewPrefixCache(1<<20)
			rapid.Check(t, func(t *rapid.T) {
				unit := rapid.StringOfN(rapid.RuneFrom([]rune("abz é字 \n.,<")), 1, 40, -1).Draw(t, "unit")
				text := strings.Repeat(unit, rapid.IntRange(0, 800).Draw(t, "times"))
				o := EncodeOptions{Most: rapid.IntRange(1, 1000).Draw(t, "most")}
				if rapid.Bool().Draw(t, "cached") {
					o.Prefix = cache
				}
				prefix := []uint32{1, 2, 3}
				whole, err := enc.Encode(t.Context(), slices.Clone(prefix), text, EncodeOptions{})
				if err != nil {
					t.Fatal(err)
				}
				got, err := enc.Encode(t.Context(), slices.Clone(prefix), text, o)
				var many *TooManyError
				switch n := len(whole) - len(prefix); {
				case errors.As(err, &many):
					if many.AtLeast <= o.Most || many.AtLeast > n {
						t.Fatalf("of %d ids, at most %d: at least %d", n, o.Most, many.AtLeast)
					}
				case err != nil || !slices.Equal(got, whole):
					t.Fatalf("of %d ids, at most %d: %d, %v", n, o.Most, len(got)-len(prefix), err)
				}
			})
		})
	}
}

// A text that is too long is left soon after that is known, whether it has many pieces or one.
func TestMostSavesWork(t *testing.T) {
	tok := loadSim(t).Tokenizer
	size := 4 << 20
	if testing.Short() {
		size = 1 << 20
	}
	for name, text := range map[string]string{
		"words":     strings.Repeat("go on and on, please. ", size/22),
		"one piece": strings.Repeat("a", size),
	} {
		pauses := func(o EncodeOptions) (n int, err error) {
			o.Yield = func() { n++ }
			_, err = tok.NewEncoder().Encode(t.Context(), nil, text, o)
			return n, err
		}
		all, err := pauses(EncodeOptions{Prefix: NewPrefixCache(1 << 20)})
		if err != nil {
			t.Fatal(err)
		}
		some, err := pauses(EncodeOptions{Prefix: NewPrefixCache(1 << 20), Most: 1000})
		var many *TooManyError
		if !errors.As(err, &many) || some > all/10 {
			t.Errorf("%s: %d pauses of %d, %v", name, some, all, err)
		}
	}
}
