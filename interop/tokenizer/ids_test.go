//go:build interop

package tokenizer_test

import (
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"weir/internal/model/stop"
	"weir/internal/model/tokenizer"
)

const weirSim = "../../models/weir-sim"

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
	{Content: "e\u0301", Normalized: true},
	{Content: "<|reserved_1|>", RStrip: true, Special: true},
	{Content: "<|Norm|>", Normalized: true, Special: true},
	{Content: "\n\n\n\n\n\n\n\n\n\n\n"},
}

// TestEmbedded compares the vocabulary that is built into weir.
func TestEmbedded(t *testing.T) {
	t.Parallel()
	compare(t, weirSim, theCorpus(t).texts)
}

// TestGrammars trains a small vocabulary for each grammar that has a scanner
// and compares it.
func TestGrammars(t *testing.T) {
	pattern := map[string]string{}
	for _, g := range tokenizer.Grammars() {
		pattern[g.Name] = g.Pattern
	}
	cases := map[string]struct {
		patterns   []string
		normalizer any
		settings   object
	}{
		"byte level":    {},
		"llama3":        {patterns: []string{pattern["llama3"]}, settings: object{"ignore_merges": true}},
		"qwen2":         {patterns: []string{pattern["qwen2"]}, normalizer: object{"type": "NFC"}},
		"qwen3.5":       {patterns: []string{pattern["qwen3.5"]}, normalizer: object{"type": "NFC"}},
		"gpt2":          {patterns: []string{pattern["gpt2"]}},
		"o200k":         {patterns: []string{pattern["o200k"]}},
		"tekken":        {patterns: []string{pattern["tekken"]}},
		"kimi":          {patterns: []string{pattern["kimi"]}},
		"deepseek3":     {patterns: []string{pattern["digits3"], pattern["hankana"], pattern["deepseek3"]}},
		"digits1, gpt2": {patterns: []string{pattern["digits1"], pattern["gpt2"]}},
	}
	used := map[string]bool{}
	for _, s := range cases {
		for _, p := range s.patterns {
			used[p] = true
		}
	}
	for name, p := range pattern {
		if !used[p] {
			t.Errorf("grammar %s is not compared", name)
		}
	}
	c := theCorpus(t)
	for name, s := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			components := byteLevel(s.patterns)
			components["normalizer"] = s.normalizer
			compare(t, train(t, spec{
				Model: "BPE", Train: components, Serve: components, Settings: s.settings,
				Size: 12_000, ByteAlphabet: true, Added: added, BOS: "<|bos|>", Files: c.files,
			}), c.texts)
		})
	}
}

// byteLevel returns the components of a byte-level grammar; without patterns it
// is ByteLevel's own.
func byteLevel(patterns []string) object {
	var parts []any
	for _, p := range patterns {
		parts = append(parts, object{"type": "Split", "pattern": object{"Regex": p}, "behavior": "Isolated", "invert": false})
	}
	level := object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": len(patterns) == 0}
	return object{
		"pre_tokenizer": object{"type": "Sequence", "pretokenizers": append(parts, level)},
		"decoder":       object{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
	}
}

// compare compares ids and text with the reference.
func compare(t *testing.T, dir string, texts []text) {
	t.Helper()
	m, err := tokenizer.Load(os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	compareWith(t, m.Tokenizer, startReference(t, "serve", dir), texts)
}

func compareWith(t *testing.T, tok *tokenizer.Tokenizer, ref *reference, texts []text) {
	t.Helper()
	enc := tok.NewEncoder()
	total, tokens := 0, 0
	check := func(name, s string) {
		total += len(s)
		for _, special := range []bool{false, true} {
			if special && len(s) > 1<<10 {
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
				t.Errorf("%s: token %d differs, after %q:\n got %v %q\nwant %v %q", name, at,
					ref.decode(t, want[max(0, at-8):at], false),
					got[at:min(len(got), at+8)], spell(tok, got[at:]), want[at:min(len(want), at+8)], spell(tok, want[at:]))
				return
			}
		}
	}
	for _, x := range texts {
		check(x.name, x.text)
		if strings.HasPrefix(x.name, "/") {
			continue
		}
		// Short texts end in places that long ones do not.
		rng := rand.New(rand.NewPCG(3, uint64(len(x.text))))
		for range min(sample(100, 25), len(x.text)/200) {
			from := rng.IntN(len(x.text))
			check(x.name+", a part", strings.ToValidUTF8(x.text[from:min(len(x.text), from+rng.IntN(40))], "\ufffd"))
		}
		if t.Failed() {
			return
		}
	}
	decodes(t, tok, ref)
	t.Logf("%d bytes, %d tokens compared", total, tokens)
}

// decodes compares the text of ids, most of which are no text anybody wrote.
func decodes(t *testing.T, tok *tokenizer.Tokenizer, ref *reference) {
	rng := rand.New(rand.NewPCG(5, 6))
	for round := range sample(400, 4) {
		ids := make([]uint32, rng.IntN(60))
		for i := range ids {
			ids[i] = uint32(rng.IntN(tok.Size() + 5))
			switch {
			case round%2 == 0:
				ids[i] = uint32(rng.IntN(min(256, tok.Size()))) // bytes, by and large
			case round%5 == 0:
				ids[i] = uint32(max(0, tok.Size()-1-rng.IntN(30))) // added tokens
			}
		}
		for _, skip := range []bool{false, true} {
			want := ref.decode(t, ids, skip)
			if got := tok.Decode(ids, skip); got != want {
				t.Fatalf("decode %v, skip %v:\n got %q\nwant %q", ids, skip, got, want)
			}
			d := tokenizer.NewDetokenizer(tok, tokenizer.DetokenizerOptions{SkipSpecial: skip, Stops: stop.New([]string{"\x00never\x00"})})
			var got []byte
			for rest := ids; len(rest) > 0; {
				n := 1 + rng.IntN(len(rest))
				got, _, _ = d.Append(got, rest[:n])
				if !utf8.Valid(got) {
					t.Fatalf("streamed %q splits a rune", got)
				}
				rest = rest[n:]
			}
			got, _ = d.Finish(got)
			// A vocabulary that falls back to bytes streams the runes of a run of
			// bytes before it knows that the run is not valid.
			if string(got) != want && !(strings.Contains(want, "\ufffd") && fallsBack(tok)) {
				t.Fatalf("streamed %v, skip %v:\n got %q\nwant %q", ids, skip, got, want)
			}
		}
	}
}

// fallsBack reports whether a vocabulary has tokens for bytes.
func fallsBack(tok *tokenizer.Tokenizer) bool {
	_, ok := tok.ID("<0x41>")
	return ok
}

// spell returns the first tokens of ids, for messages.
func spell(tok *tokenizer.Tokenizer, ids []uint32) []string {
	var out []string
	for _, id := range ids[:min(len(ids), 8)] {
		out = append(out, string(tok.TokenBytes(id)))
	}
	return out
}

// patternOf returns the pattern of a grammar.
func patternOf(t *testing.T, name string) string {
	t.Helper()
	for _, g := range tokenizer.Grammars() {
		if g.Name == name {
			return g.Pattern
		}
	}
	t.Fatalf("no grammar %q", name)
	return ""
}

// loads reports whether a folder can be loaded.
func loads(dir string) bool {
	_, err := tokenizer.Load(os.DirFS(dir))
	return err == nil
}
