//go:build interop

package tokenizer_test

import (
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"weir/internal/tokenizer"
)

const weirSim = "../../models/weir-sim"

// perGrammar is the text from files that each grammar is compared on; the
// embedded vocabulary gets four times that.
const perGrammar = 4 << 20

// added exercises every flag of added tokens.
var added = []addedToken{
	{Content: "<|bos|>", Special: true},
	{Content: "<|im_start|>", Special: true},
	{Content: "<|im_end|>", Special: true},
	{Content: "<|im_", Special: false},
	{Content: "<think>"},
	{Content: "</think>", LStrip: true, RStrip: true},
	{Content: "one", SingleWord: true},
	{Content: "two", SingleWord: true, Normalized: true},
	{Content: "strip", LStrip: true, Normalized: true},
	{Content: "é", Normalized: true},
	{Content: "<|reserved_1|>", RStrip: true, Special: true},
	{Content: "\n\n\n\n\n\n\n\n\n\n\n"},
}

// TestEmbedded compares the vocabulary that is built into weir.
func TestEmbedded(t *testing.T) {
	compare(t, weirSim, 4*perGrammar)
}

// TestGrammars trains a small vocabulary for each grammar that is supported
// and compares it.
func TestGrammars(t *testing.T) {
	pattern := map[string]string{}
	for _, g := range tokenizer.Grammars() {
		pattern[g.Name] = g.Pattern
	}
	cases := map[string]spec{
		"byte level":    {Patterns: []string{}},
		"llama3":        {Patterns: []string{pattern["llama3"]}, IgnoreMerges: true},
		"qwen2":         {Patterns: []string{pattern["qwen2"]}, NFC: true},
		"qwen3.5":       {Patterns: []string{pattern["qwen3.5"]}, NFC: true},
		"gpt2":          {Patterns: []string{pattern["gpt2"]}},
		"o200k":         {Patterns: []string{pattern["o200k"]}},
		"tekken":        {Patterns: []string{pattern["tekken"]}},
		"deepseek3":     {Patterns: []string{pattern["digits3"], pattern["hankana"], pattern["deepseek3"]}},
		"digits1, gpt2": {Patterns: []string{pattern["digits1"], pattern["gpt2"]}},
	}
	used := map[string]bool{}
	for _, s := range cases {
		for _, p := range s.Patterns {
			used[p] = true
		}
	}
	for name, p := range pattern {
		if !used[p] {
			t.Errorf("grammar %s is not compared", name)
		}
	}
	corpus := files(t, goRoot(t), 3<<20, ".go", ".md", ".html")
	many := t.TempDir() + "/scripts.txt"
	var scripts strings.Builder
	for _, g := range generated(20_000) {
		if strings.HasPrefix(g.name, "script") || g.name == "emoji" || g.name == "marks" {
			scripts.WriteString(g.text)
		}
	}
	if err := os.WriteFile(many, []byte(scripts.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, s := range cases {
		t.Run(name, func(t *testing.T) {
			s.Size, s.Added, s.BOS, s.Files = 12_000, added, "<|bos|>", append(slices.Clone(corpus), many)
			compare(t, train(t, s), perGrammar)
		})
	}
}

// compare compares ids and text with the reference.
func compare(t *testing.T, dir string, bytes int) {
	m, err := tokenizer.Load(os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	ref := startReference(t, dir)
	enc := m.Tokenizer.NewEncoder()
	total, tokens := 0, 0
	check := func(name, s string) {
		s = strings.ToValidUTF8(s, "\ufffd")
		total += len(s)
		for _, special := range []bool{false, true} {
			if special && len(s) > 64<<10 {
				continue
			}
			want := ref.encode(t, s, special)
			got, err := enc.Encode(t.Context(), nil, s, tokenizer.EncodeOptions{AddSpecial: special})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			tokens += len(got)
			if !slices.Equal(got, want) {
				at := 0
				for at < len(got) && at < len(want) && got[at] == want[at] {
					at++
				}
				t.Errorf("%s: token %d differs, after %q:\n got %q\nwant %q", name, at,
					ref.decode(t, want[max(0, at-8):at], false),
					spell(m.Tokenizer, got[at:]), spell(m.Tokenizer, want[at:]))
				return
			}
		}
	}
	for _, path := range files(t, goRoot(t), bytes, ".go", ".md", ".html", ".s", ".txt", ".js", ".c", ".py") {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		check(path, string(data))
	}
	for _, g := range generated(60_000) {
		check(g.name, g.text)
		// Short texts end in places that long ones do not.
		rng := rand.New(rand.NewPCG(3, uint64(len(g.text))))
		for range 200 {
			from := rng.IntN(len(g.text))
			check(g.name+", a part", g.text[from:min(len(g.text), from+rng.IntN(40))])
		}
		if t.Failed() {
			return
		}
	}
	decodes(t, m.Tokenizer, ref)
	t.Logf("%d bytes, %d tokens compared", total, tokens)
}

// decodes compares the text of ids, most of which are no text anybody wrote.
func decodes(t *testing.T, tok *tokenizer.Tokenizer, ref *reference) {
	rng := rand.New(rand.NewPCG(5, 6))
	for round := range 400 {
		ids := make([]uint32, rng.IntN(60))
		for i := range ids {
			ids[i] = uint32(rng.IntN(tok.Size() + 5))
			if round%2 == 0 {
				ids[i] = uint32(rng.IntN(256)) // bytes, by and large
			}
		}
		for _, skip := range []bool{false, true} {
			want := ref.decode(t, ids, skip)
			if got := tok.Decode(ids, skip); got != want {
				t.Fatalf("decode %v, skip %v:\n got %q\nwant %q", ids, skip, got, want)
			}
			d := tokenizer.NewDetokenizer(tok, tokenizer.DetokenizerOptions{SkipSpecial: skip, StopStrings: []string{"\x00never\x00"}})
			var got []byte
			for rest := ids; len(rest) > 0; {
				n := 1 + rng.IntN(len(rest))
				got, _, _ = d.Append(got, rest[:n])
				if !utf8.Valid(got) {
					t.Fatalf("streamed %q splits a rune", got)
				}
				rest = rest[n:]
			}
			if got, _ = d.Finish(got); string(got) != want {
				t.Fatalf("streamed %v, skip %v:\n got %q\nwant %q", ids, skip, got, want)
			}
		}
	}
}

// spell gives the first tokens of ids, for messages.
func spell(tok *tokenizer.Tokenizer, ids []uint32) []string {
	var out []string
	for _, id := range ids[:min(len(ids), 8)] {
		out = append(out, string(tok.TokenBytes(id)))
	}
	return out
}
