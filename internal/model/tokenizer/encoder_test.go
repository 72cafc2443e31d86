package tokenizer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
)

// TestAddedTokens checks the flags of added tokens; that they mean what they
// mean to the reference is compared in interop/tokenizer.
func TestAddedTokens(t *testing.T) {
	doc := smallModel()
	doc["added_tokens"] = []any{
		addedTokenJSON(259, "<s>", nil),
		addedTokenJSON(260, "<s>>", nil),
		addedTokenJSON(261, "word", object{"single_word": true}),
		addedTokenJSON(262, "<l>", object{"lstrip": true}),
		addedTokenJSON(263, "<r>", object{"rstrip": true}),
		addedTokenJSON(264, "☃é", object{"normalized": true, "special": false}),
	}
	doc["normalizer"] = object{"type": "NFC"}
	doc["post_processor"] = object{"type": "TemplateProcessing",
		"single":         []any{object{"SpecialToken": object{"id": "<s>", "type_id": 0}}, object{"Sequence": object{"id": "A", "type_id": 0}}, object{"SpecialToken": object{"id": "</s>", "type_id": 0}}},
		"pair":           []any{},
		"special_tokens": object{"<s>": object{"id": "<s>", "ids": []any{259}, "tokens": []any{"<s>"}}, "</s>": object{"id": "</s>", "ids": []any{260, 261}, "tokens": []any{"a", "b"}}},
	}
	for _, c := range []struct {
		text string
		o    EncodeOptions
		want []string
	}{
		{"a<s>b", EncodeOptions{}, []string{"a", "<s>", "b"}},
		{"a<s>>b", EncodeOptions{}, []string{"a", "<s>>", "b"}},
		{"<s", EncodeOptions{}, []string{"<", "s"}},
		{"word sword word", EncodeOptions{}, []string{"word", " ", "s", "w", "o", "r", "d", " ", "word"}},
		{"a \n<l> b", EncodeOptions{}, []string{"a", "<l>", " ", "b"}},
		{"a <r> \n b", EncodeOptions{}, []string{"a", " ", "<r>", "b"}},
		{"<r> <l>", EncodeOptions{}, []string{"<r>", "<l>"}},
		{"☃e\u0301☃\u00e9", EncodeOptions{}, []string{"☃é", "☃é"}},
		{"", EncodeOptions{AddSpecial: true}, []string{"<s>", "<s>>", "word"}},
		{"ab", EncodeOptions{AddSpecial: true}, []string{"<s>", "ab", "<s>>", "word"}},
		{"<s>☃é", EncodeOptions{PlainText: true}, []string{"<", "s", ">", "☃é"}},
	} {
		if got := encodeWith(t, doc, c.text, c.o); !slices.Equal(got, c.want) {
			t.Errorf("%q %+v: got %q, want %q", c.text, c.o, got, c.want)
		}
	}
}

func TestIgnoreMerges(t *testing.T) {
	doc := smallModel()
	model := doc["model"].(object)
	model["merges"] = []any{"a b", []any{"ab", "ab"}} // " ab" is a token nothing merges to
	if got := encodeWith(t, doc, "x ab", EncodeOptions{}); !slices.Equal(got, []string{"x", " ", "ab"}) {
		t.Errorf("with merges: %q", got)
	}
	model["ignore_merges"] = true
	if got := encodeWith(t, doc, "x ab", EncodeOptions{}); !slices.Equal(got, []string{"x", " ab"}) {
		t.Errorf("ignoring merges: %q", got)
	}
}

func TestEncodeInvalidUTF8(t *testing.T) {
	enc := loadSim(t).Tokenizer.NewEncoder()
	_, err := enc.EncodeBytes(t.Context(), nil, []byte("good \xe2\x82 bad"), EncodeOptions{})
	var e *infer.Error
	if !errors.As(err, &e) || e.Code != infer.CodeInvalid || !strings.Contains(e.Message, "at byte 5") {
		t.Fatalf("got %v", err)
	}
	// Text is checked in parts; a rune across two of them is whole.
	for lead := range 4 {
		text := strings.Repeat("x", lead) + strings.Repeat("💡", 40_000)
		if _, err := enc.Encode(t.Context(), nil, text, EncodeOptions{}); err != nil {
			t.Fatalf("after %d bytes: %v", lead, err)
		}
		_, err := enc.Encode(t.Context(), nil, text[:len(text)-1], EncodeOptions{})
		if want := fmt.Sprintf("at byte %d:", len(text)-4); err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("got %v, want %s", err, want)
		}
	}
}

// hardTexts, of size bytes about, cost the most work for their length.
func hardTexts(size int) map[string]string {
	rng := rand.New(rand.NewPCG(1, 1))
	var random, han strings.Builder
	for random.Len() < size {
		random.WriteRune(rune(0x21 + rng.IntN(0x2000)))
		han.WriteRune(rune(0x4e00 + rng.IntN(0x5000)))
	}
	return map[string]string{
		"random": random.String(),
		"han":    han.String(),
		"a":      strings.Repeat("a", size),
		"space":  strings.Repeat(" ", size),
		"mark":   "e" + strings.Repeat("\u0323\u0301", size/4),
		"tokens": strings.Repeat("<|eos|>", size/8),
	}
}

// TestEncodeYields checks that encoding lets others run often, whatever the
// text: never more than so much text without a pause.
func TestEncodeYields(t *testing.T) {
	doc := smallModel()
	doc["normalizer"] = object{"type": "NFC"}
	withNFC, err := Load(folder(t, doc, nil))
	if err != nil {
		t.Fatal(err)
	}
	toks := smallTokenizers(t)
	toks["sim"], toks["nfc"] = loadSim(t).Tokenizer, withNFC.Tokenizer
	size := 256 << 10
	if testing.Short() {
		size = 32 << 10
	}
	for name, tok := range toks {
		for kind, text := range hardTexts(size) {
			if kind == "space" {
				text = "x" + text // or some normalizers leave nothing
			}
			yields := 0
			if _, err := tok.NewEncoder().Encode(t.Context(), nil, text, EncodeOptions{Yield: func() { yields++ }}); err != nil {
				t.Fatal(err)
			}
			if want := len(text) / (2 * pauseBytes); yields < want {
				t.Errorf("%s, %s: %d yields in %d bytes, want at least %d", name, kind, yields, len(text), want)
			}
		}
	}
}

// smallTokenizers are one of each kind that is not byte-level, with normalizers
// and pre-tokenizers of every kind before it.
func smallTokenizers(t testing.TB) map[string]*Tokenizer {
	t.Helper()
	out := make(map[string]*Tokenizer)
	for name, members := range map[string]string{
		"llama2":     `{"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},{"type":"Replace","pattern":{"String":" "},"content":"▁"}]}}`,
		"metaspace":  `{"normalizer":{"type":"Sequence","normalizers":[{"type":"NFKC"},{"type":"Lowercase"},{"type":"Replace","pattern":{"Regex":" {2,}"},"content":" "}]},"pre_tokenizer":{"type":"Metaspace","replacement":"▁"}}`,
		"split":      `{"normalizer":{"type":"Strip","strip_left":true,"strip_right":false},"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\s|\\p{P}+"},"behavior":"MergedWithNext","invert":false},{"type":"Digits","individual_digits":true}]}}`,
		"whitespace": `{"normalizer":{"type":"Nmt"},"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Punctuation"},{"type":"Whitespace"}]}}`,
	} {
		var m map[string]jsontext.Value
		if err := json.Unmarshal([]byte(members), &m); err != nil {
			t.Fatal(err)
		}
		for _, model := range []string{"bpe", "unigram"} {
			out[model+" "+name] = loadSmall(t, model, m, nil)
		}
	}
	return out
}

// TestEncodeCancel ends the context at every one of the first pauses.
func TestEncodeCancel(t *testing.T) {
	toks := smallTokenizers(t)
	toks["sim"] = loadSim(t).Tokenizer
	for name, tok := range toks {
		t.Run(name, func(t *testing.T) { cancelEarly(t, tok) })
	}
}

func cancelEarly(t *testing.T, tok *Tokenizer) {
	enc := tok.NewEncoder()
	for kind, text := range hardTexts(256 << 10) {
		for at := 1; at <= 8; at++ {
			ctx, cancel := context.WithCancel(t.Context())
			yields := 0
			_, err := enc.Encode(ctx, nil, text, EncodeOptions{Yield: func() {
				if yields++; yields == at {
					cancel()
				}
			}})
			cancel()
			if !errors.Is(err, context.Canceled) || yields != at {
				t.Errorf("%s: %v after %d yields, want an end after %d", kind, err, yields, at)
			}
		}
		// An encoding that was broken off leaves nothing behind.
		part := text[:len(text)/64]
		part = strings.ToValidUTF8(part, "")
		got, err := enc.Encode(t.Context(), nil, part, EncodeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		want, err := enc.t.NewEncoder().Encode(t.Context(), nil, part, EncodeOptions{})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: an interrupted encoder gives other ids", kind)
		}
	}
}

// TestEncodeAllocates checks that a piece costs no allocation, found or not.
func TestEncodeAllocates(t *testing.T) {
	toks := smallTokenizers(t)
	toks["sim"] = loadSim(t).Tokenizer
	for name, tok := range toks {
		t.Run(name, func(t *testing.T) { allocatesNothing(t, tok) })
	}
}

func allocatesNothing(t *testing.T, tok *Tokenizer) {
	enc := tok.NewEncoder()
	text := strings.Repeat("func (x *qzzkwv) Tokenize(übergrößenträger int) { return 0x7fjq31 }\n", 40)
	ids := make([]uint32, 0, len(text))
	for name, forget := range map[string]bool{"warm": false, "cold": true} {
		encode := func() {
			if forget {
				enc.Forget()
			}
			var err error
			if ids, err = enc.Encode(t.Context(), ids[:0], text, EncodeOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		encode()
		runs := 50
		if testing.Short() {
			runs = 5
		}
		if n := testing.AllocsPerRun(runs, encode); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// TestCacheBounds fills the cache over and over: its memory stays bounded and
// ids stay right.
func TestCacheBounds(t *testing.T) {
	tok := loadSim(t).Tokenizer
	enc := tok.NewEncoder()
	rng := rand.New(rand.NewPCG(9, 9))
	rounds := 60
	if testing.Short() {
		rounds = 20
	}
	for round := range rounds {
		var b strings.Builder
		for b.Len() < 64<<10 {
			fmt.Fprintf(&b, "%c", 'a'+rng.IntN(26))
			if rng.IntN(40) == 0 {
				b.WriteByte(' ')
			}
		}
		got, err := enc.Encode(t.Context(), nil, b.String(), EncodeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if round%20 == 19 {
			equalIDs(t, got, slowEncode(tok, b.String()))
		}
		if n := len(enc.cache.text); n > cacheBytes {
			t.Fatalf("the cache holds %d bytes of text", n)
		}
	}
}
