package tokenizer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// prefixModels are tokenizers in which a wrong cut shows: lines, spaces and
// letters merge with each other wherever one piece holds them together.
func prefixModels(t testing.TB) map[string]*Tokenizer {
	t.Helper()
	split := func(pattern string) object {
		return object{"type": "Split", "pattern": object{"Regex": pattern}, "behavior": "Isolated", "invert": false}
	}
	bytesOnly := object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}
	sequence := func(parts ...any) object {
		return object{"type": "Sequence", "pretokenizers": append(parts, bytesOnly)}
	}
	build := func(pre object, change func(doc object)) *Tokenizer {
		doc := smallModel()
		model := doc["model"].(object)
		vocab, merges := model["vocab"].(object), model["merges"].([]any)
		for _, m := range [][2]string{{"Ċ", "Ċ"}, {"Ċ", "a"}, {"Ċ", "ab"}, {"Ġ", "Ċ"}, {"Ċ", "Ġ"}, {"č", "Ċ"}, {".", "Ċ"}, {"ab", "Ċ"}, {"ĊĊ", "Ċ"}, {"1", "1"}, {"Ċ", "1"}} {
			vocab[m[0]+m[1]] = len(vocab)
			merges = append(merges, []any{m[0], m[1]})
		}
		model["merges"] = merges
		next := len(vocab)
		added := []any{}
		for _, token := range []struct {
			content string
			flags   object
		}{
			{"<s>", nil},
			{"<s>>", nil},
			{"<l>", object{"lstrip": true}},
			{"<r>", object{"rstrip": true}},
			{"word", object{"single_word": true, "special": false}},
		} {
			added = append(added, addedTokenJSON(next+len(added), token.content, token.flags))
		}
		doc["added_tokens"] = added
		if pre != nil {
			doc["pre_tokenizer"] = pre
		}
		if change != nil {
			change(doc)
		}
		m, err := Load(folder(t, doc, nil))
		if err != nil {
			t.Fatal(err)
		}
		return m.Tokenizer
	}
	normalized := func(content string, flags object) func(object) {
		return func(doc object) {
			doc["normalizer"] = object{"type": "NFC"}
			added := doc["added_tokens"].([]any)
			flags["normalized"] = true
			id := added[len(added)-1].(object)["id"].(int) + 1
			doc["added_tokens"] = append(added, addedTokenJSON(id, content, flags))
		}
	}
	models := map[string]*Tokenizer{
		"gpt2 of ByteLevel": build(nil, nil),
		"deepseek":          build(sequence(split(patternDigits), split(patternHanKana), split(patternDeep)), nil),
		"normalized token":  build(nil, normalized("<n>", object{})),
		"normalized lstrip": build(nil, normalized("nab", object{"lstrip": true})),
		"normalized line":   build(nil, normalized("\na", object{})),
		"sim":               loadSim(t).Tokenizer,
	}
	// Where a word that begins the text is another than the same word elsewhere.
	runes := func(pre, normalizer object) *Tokenizer {
		return build(pre, func(doc object) {
			vocab := object{"?": 0}
			for _, r := range "abdorsw\n\r .<>|1/'\t▁" {
				vocab[string(r)] = len(vocab)
			}
			merges := []any{}
			for _, m := range [][2]string{{"a", "b"}, {"▁", "a"}, {"▁", "ab"}, {"\n", "\n"}, {"\n", "a"}, {"▁", "\n"}, {".", "\n"}, {"▁", "▁"}} {
				vocab[m[0]+m[1]] = len(vocab)
				merges = append(merges, []any{m[0], m[1]})
			}
			doc["model"] = object{"type": "BPE", "dropout": nil, "unk_token": "?", "fuse_unk": true, "byte_fallback": false, "vocab": vocab, "merges": merges}
			doc["pre_tokenizer"], doc["decoder"] = nil, object{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}
			if pre != nil {
				doc["pre_tokenizer"] = pre
			}
			if normalizer != nil {
				doc["normalizer"] = normalizer
			}
			for i, token := range doc["added_tokens"].([]any) {
				token.(object)["id"] = len(vocab) + i
			}
		})
	}
	for _, scheme := range []string{"first", "always", "never"} {
		models["metaspace "+scheme] = runes(object{"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true}, nil)
	}
	models["prepend"] = runes(nil, object{"type": "Sequence", "normalizers": []any{
		object{"type": "Prepend", "prepend": "▁"}, object{"type": "Replace", "pattern": object{"String": " "}, "content": "▁"}}})
	for _, g := range Grammars() {
		if g.covers {
			models[g.Name] = build(sequence(split(g.Pattern)), nil)
		}
	}
	return models
}

// Where long segments may be cut, by what stands in the file.
func TestLineCuts(t *testing.T) {
	models := prefixModels(t)
	for name, want := range map[string]lineCuts{
		"gpt2 of ByteLevel": cutsAfterText, "gpt2": cutsAfterText, "normalized token": cutsAfterText,
		"llama3": cutsAnywhere, "qwen2": cutsAnywhere, "qwen3.5": cutsAnywhere, "o200k": cutsAnywhere, "tekken": cutsAnywhere, "kimi": cutsAnywhere,
		"deepseek": cutsAnywhere, "sim": cutsAnywhere,
		"normalized lstrip": noCuts, "normalized line": noCuts,
		"metaspace first": noCuts, "metaspace always": noCuts, "metaspace never": noCuts, "prepend": noCuts,
	} {
		if got := models[name].lineCuts; got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
	if len(models) != 17 {
		t.Errorf("%d models, of which not all are checked", len(models))
	}
}

// For any sequence of texts and any content of the cache, ids and errors are those that an encoder
// without cache gives.
func TestPrefixChangesNothing(t *testing.T) {
	models := prefixModels(t)
	fragments := []string{
		"<s>", "<s>>", "<l>", "<r>", "<n>", ".\nnab", "word", "sword", "<s", ">", "a", "ab", " ab", "\n", "\n\n", "\r\n", " \n", "\n ", "\na", ".\n", "\nab.",
		"\n1", "11", " ", "   ", "\t", "é", "e\u0301", "\u0301", "数据", "\n数", "/\n/a", "'s", "\u2028a", "\u00a0\na", "word\nword", "|<|eos|>\n",
	}
	rapid.Check(t, func(rt *rapid.T) {
		name := rapid.SampledFrom(slices.Sorted(keysOf(models))).Draw(rt, "model")
		tok := models[name]
		cache := NewPrefixCache(rapid.SampledFrom([]int64{0, 40 << 10, 64 << 20}).Draw(rt, "bytes"))
		cached, plain := tok.NewEncoder(), tok.NewEncoder()
		palette := rapid.SliceOfNDistinct(rapid.SampledFrom(fragments), 2, 10, rapid.ID).Draw(rt, "palette")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		some := func(size int) string {
			var b strings.Builder
			for b.Len() < size {
				b.WriteString(palette[rng.IntN(len(palette))])
			}
			return b.String()
		}
		size := rapid.SampledFrom([]int{10, 200, 3000, 20_000})
		base := some(size.Draw(rt, "base"))
		for range rapid.IntRange(2, 5).Draw(rt, "texts") {
			at := rapid.IntRange(0, len(base)).Draw(rt, "shared")
			text := base[:at] + some(size.Draw(rt, "new"))
			if !rapid.Bool().Draw(rt, "cut inside runes") {
				text = strings.ToValidUTF8(text, "?")
			}
			o := EncodeOptions{AddSpecial: rapid.Bool().Draw(rt, "add"), PlainText: rapid.Bool().Draw(rt, "plain")}
			want, wantErr := plain.Encode(context.Background(), nil, text, o)
			o.Prefix = cache
			got, err := cached.Encode(context.Background(), nil, text, o)
			if fmt.Sprint(err) != fmt.Sprint(wantErr) {
				rt.Fatalf("%s: error %v, want %v", name, err, wantErr)
			}
			if err == nil && !slices.Equal(got, want) {
				i := 0
				for i < min(len(got), len(want)) && got[i] == want[i] {
					i++
				}
				rt.Fatalf("%s, %d bytes: ids differ from %d on: %v, want %v", name, len(text), i, got[i:min(i+8, len(got))], want[i:min(i+8, len(want))])
			}
			base = text
		}
	})
}

func keysOf(models map[string]*Tokenizer) func(func(string) bool) {
	return func(yield func(string) bool) {
		for name := range models {
			if !yield(name) {
				return
			}
		}
	}
}

// conversation is a chat of so many turns, as a template renders it.
func conversation(turns int, words func(turn int) string) string {
	var b strings.Builder
	for i := range turns {
		fmt.Fprintf(&b, "<|im_start|>%s\n%s<|im_end|>\n", []string{"user", "assistant"}[i%2], words(i))
	}
	return b.String()
}

// A conversation that has grown by a turn is found but for that turn; so is a
// long text whose end has changed; and the counts say so.
func TestPrefixReuse(t *testing.T) {
	tok := loadSim(t).Tokenizer
	enc := tok.NewEncoder()
	words := func(turn int) string {
		return strings.Repeat(fmt.Sprintf("This is what was said in turn %d. ", turn), 20)
	}
	document := strings.Repeat("One line of a document that is long.\nAnother one of it, no shorter.\n", 1000)
	for _, c := range []struct {
		name            string
		first, then     string
		least           float64 // share of the tokens that is reused
		lookups, misses uint64
	}{
		{"a further turn", conversation(20, words), conversation(21, words), 0.93, 21, 1},
		{"the same again", conversation(20, words), conversation(20, words), 0.98, 20, 0},
		{"another question to a document", document + "Why?", document + "And how?", 0.93, 17, 1},
		{"no segment long enough", "<|im_start|>a<|im_end|>", "<|im_start|>a<|im_end|>", 0, 0, 0},
		{"no place to cut", strings.Repeat("word ", 10_000) + "a", strings.Repeat("word ", 10_000) + "b", 0, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			cache := NewPrefixCache(1 << 20)
			o := EncodeOptions{Prefix: cache}
			if _, err := enc.Encode(t.Context(), nil, c.first, o); err != nil {
				t.Fatal(err)
			}
			before := cache.Stats()
			ids, err := enc.Encode(t.Context(), nil, c.then, o)
			if err != nil {
				t.Fatal(err)
			}
			after := cache.Stats()
			if got := after.Tokens - before.Tokens; got != uint64(len(ids)) {
				t.Errorf("%d tokens counted, want %d", got, len(ids))
			}
			if got := float64(after.Reused-before.Reused) / float64(len(ids)); got < c.least || c.least == 0 && got > 0 {
				t.Errorf("%.3f of the tokens reused, want at least %v", got, c.least)
			}
			lookups, hits := after.Lookups-before.Lookups, after.Hits-before.Hits
			if lookups != c.lookups || lookups-hits != c.misses {
				t.Errorf("%d look-ups with %d misses, want %d with %d", lookups, lookups-hits, c.lookups, c.misses)
			}
		})
	}
}

// Two parts of one hash cost a miss and never wrong ids; nor do the same bytes
// of another tokenizer, or encoded in another way.
func TestPrefixVerifies(t *testing.T) {
	models := prefixModels(t)
	cache := NewPrefixCache(1 << 20)
	text := strings.Repeat("ab <s> 11\nab 111 word", 1) + strings.Repeat("ab\n\nab 1111 ", 40)
	for round := range 2 {
		for name, tok := range models {
			for _, o := range []EncodeOptions{{}, {PlainText: true}} {
				want, err := tok.NewEncoder().Encode(t.Context(), nil, text, o)
				if err != nil {
					t.Fatal(err)
				}
				o.Prefix = cache
				got, err := tok.NewEncoder().Encode(t.Context(), nil, text, o)
				if err != nil || !slices.Equal(got, want) {
					t.Fatalf("round %d, %s, %+v: other ids (%v)", round, name, o, err)
				}
			}
		}
	}
	// Every entry is put under the hash of another.
	tok := models["sim"]
	enc := tok.NewEncoder()
	o := EncodeOptions{Prefix: NewPrefixCache(1 << 20)}
	a, b := strings.Repeat("one ", 100), strings.Repeat("two ", 100)
	for _, s := range []string{a, b} {
		if _, err := enc.Encode(t.Context(), nil, s, o); err != nil {
			t.Fatal(err)
		}
	}
	entries := map[uint64]*prefixEntry{}
	for hash, e := range o.Prefix.parts.All() {
		entries[hash] = e
	}
	if len(entries) != 2 {
		t.Fatalf("%d entries", len(entries))
	}
	for hash := range entries {
		for other, e := range entries {
			if other != hash {
				o.Prefix.parts.Set(hash, e)
			}
		}
	}
	hits := o.Prefix.Stats().Hits
	for _, s := range []string{a, b} {
		got, err := enc.Encode(t.Context(), nil, s, o)
		want, _ := enc.Encode(t.Context(), nil, s, EncodeOptions{})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%.8q: the ids of another text (%v)", s, err)
		}
	}
	if got := o.Prefix.Stats().Hits; got != hits {
		t.Errorf("%d hits of other texts", got-hits)
	}
}

// However much is put in, the cache stays within its bytes, and many encoders
// use it at once.
func TestPrefixBounds(t *testing.T) {
	const limit = 256 << 10
	tok := loadSim(t).Tokenizer
	cache := NewPrefixCache(limit)
	var workers sync.WaitGroup
	for w := range 4 {
		workers.Go(func() {
			enc, plain := tok.NewEncoder(), tok.NewEncoder()
			for i := range 60 {
				text := conversation(8, func(turn int) string { return strings.Repeat(fmt.Sprintf("%d of %d. ", turn, (w+i)%40), 60) })
				got, err := enc.Encode(t.Context(), nil, text, EncodeOptions{Prefix: cache})
				want, _ := plain.Encode(t.Context(), nil, text, EncodeOptions{})
				if err != nil || !slices.Equal(got, want) {
					t.Errorf("other ids (%v)", err)
					return
				}
			}
		})
	}
	workers.Wait()
	cache.parts.CleanUp()
	s := cache.Stats()
	if s.Bytes > limit || s.Entries == 0 || s.Hits == 0 || s.Lookups != 4*60*8 || s.Reused > s.Tokens {
		t.Errorf("%+v of at most %d bytes", s, limit)
	}
	sum := uint64(0)
	for _, e := range cache.parts.All() {
		sum += uint64(prefixOverhead + len(e.text) + 4*cap(e.ids))
	}
	if sum > limit {
		t.Errorf("the entries take %d bytes", sum)
	}
}

// A hit allocates nothing, and a cancelled text leaves only what is right.
func TestPrefixAllocates(t *testing.T) {
	tok := loadSim(t).Tokenizer
	enc := tok.NewEncoder()
	text := conversation(20, func(turn int) string { return strings.Repeat(fmt.Sprintf("Turn %d. ", turn), 100) })
	o := EncodeOptions{Prefix: NewPrefixCache(1 << 20)}
	ids := make([]uint32, 0, len(text))
	encode := func() {
		var err error
		if ids, err = enc.Encode(t.Context(), ids[:0], text, o); err != nil {
			t.Fatal(err)
		}
	}
	encode()
	if n := testing.AllocsPerRun(100, encode); n > 0 {
		t.Errorf("%v allocations", n)
	}
	want := slices.Clone(ids)
	for at := 1; at < 20; at++ {
		o.Prefix = NewPrefixCache(1 << 20)
		ctx, cancel := context.WithCancel(t.Context())
		yields := 0
		o.Yield = func() {
			if yields++; yields == at {
				cancel()
			}
		}
		_, err := enc.Encode(ctx, nil, text, o)
		cancel()
		o.Yield = nil
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if encode(); !slices.Equal(ids, want) {
			t.Fatalf("other ids after an end at yield %d", at)
		}
	}
}

// Entries of one division are not found in another, and the ids are the same.
func TestPrefixCacheDivisions(t *testing.T) {
	enc := prefixModels(t)["sim"].NewEncoder()
	o := EncodeOptions{Prefix: NewPrefixCache(1 << 20)}
	text := strings.Repeat("one ", 100)
	hits := func(division uint64) uint64 {
		o.Division = division
		before := o.Prefix.Stats().Hits
		got, err := enc.Encode(t.Context(), nil, text, o)
		want, _ := enc.Encode(t.Context(), nil, text, EncodeOptions{})
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("division %d: other ids (%v)", division, err)
		}
		return o.Prefix.Stats().Hits - before
	}
	for _, c := range []struct{ division, want uint64 }{{0, 0}, {0, 1}, {7, 0}, {7, 1}, {8, 0}, {0, 1}} {
		if got := hits(c.division); got != c.want {
			t.Errorf("division %d: %d hits, want %d", c.division, got, c.want)
		}
	}
}
