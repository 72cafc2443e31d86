package tokenizer

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
)

// object is a JSON object of a test.
type object = map[string]any

// smallModel returns a tokenizer.json of the byte alphabet and a few merges, to
// be bent by tests.
func smallModel() object {
	vocab := object{}
	for b := range 256 {
		vocab[toByteAlphabet(string([]byte{byte(b)}))] = b
	}
	merges := []any{}
	for _, m := range [][2]string{{"a", "b"}, {"Ġ", "ab"}, {"ab", "ab"}, {"é"[:1], ""}} {
		if m[1] != "" {
			vocab[m[0]+m[1]] = len(vocab)
			merges = append(merges, []any{m[0], m[1]})
		}
	}
	return object{
		"version":        "1.0",
		"truncation":     nil,
		"padding":        nil,
		"added_tokens":   []any{addedTokenJSON(len(vocab), "<s>", nil), addedTokenJSON(len(vocab)+1, "</s>", nil)},
		"normalizer":     nil,
		"pre_tokenizer":  object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
		"post_processor": nil,
		"decoder":        object{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
		"model":          object{"type": "BPE", "dropout": nil, "unk_token": nil, "vocab": vocab, "merges": merges},
	}
}

func addedTokenJSON(id int, content string, flags object) object {
	o := object{"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}
	maps.Copy(o, flags)
	return o
}

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func folder(t testing.TB, doc any, files map[string]string) fs.FS {
	t.Helper()
	out := fstest.MapFS{fileTokenizer: {Data: marshal(t, doc)}}
	for name, text := range files {
		out[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return out
}

// encodeWith loads doc and encodes s.
func encodeWith(t *testing.T, doc object, s string, o EncodeOptions) []string {
	t.Helper()
	m, err := Load(folder(t, doc, nil))
	if err != nil {
		t.Fatal(err)
	}
	ids, err := m.Tokenizer.NewEncoder().Encode(t.Context(), nil, s, o)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, id := range ids {
		out = append(out, string(m.Tokenizer.TokenBytes(id)))
	}
	return out
}

// TestRefusals checks that what cannot be loaded exactly is refused, with the
// file and the place named.
func TestRefusals(t *testing.T) {
	model := func(name string, value any) func(object) {
		return func(d object) { d["model"].(object)[name] = value }
	}
	top := func(name string, value any) func(object) {
		return func(d object) { d[name] = value }
	}
	split := func(pattern any, behavior string) object {
		return object{"type": "Sequence", "pretokenizers": []any{
			object{"type": "Split", "pattern": pattern, "behavior": behavior, "invert": false},
			object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
		}}
	}
	for _, c := range []struct {
		name string
		bend func(object)
		want string
	}{
		{"version", top("version", "2.0"), `tokenizer.json: /version: version "2.0" is not known`},
		{"unknown setting", top("speed", 1), "tokenizer.json: /speed: this setting is not supported"},
		{"normalizer", top("normalizer", object{"type": "BertNormalizer"}), `tokenizer.json: /normalizer: normalizer "BertNormalizer" is not supported`},
		{"nested normalizer", top("normalizer", object{"type": "Sequence", "normalizers": []any{object{"type": "NFC"}, object{"type": "Append"}}}),
			`/normalizer/normalizers/1: normalizer "Append"`},
		{"setting of a normalizer", top("normalizer", object{"type": "NFC", "fast": true}), "/normalizer/fast: this setting is not supported"},
		{"replacing no text", top("normalizer", object{"type": "Replace", "pattern": object{"Regex": "x*"}, "content": ""}), "/normalizer/pattern/Regex: replacing matches of no text"},
		{"replacing an empty string", top("normalizer", object{"type": "Replace", "pattern": object{"String": ""}, "content": "x"}), "/normalizer/pattern/String: a pattern that is empty"},
		{"two patterns", top("normalizer", object{"type": "Replace", "pattern": object{"String": "a", "Regex": "b"}, "content": "x"}), "/normalizer/pattern: want one of Regex and String"},
		{"charsmap that is no base64", top("normalizer", object{"type": "Precompiled", "precompiled_charsmap": "!"}), "/normalizer/precompiled_charsmap: illegal base64"},
		{"charsmap cut off", top("normalizer", object{"type": "Precompiled", "precompiled_charsmap": "AAQAAAAA"}), "/normalizer/precompiled_charsmap: its trie is cut off"},
		{"pre-tokenizer", top("pre_tokenizer", object{"type": "UnicodeScripts"}), `/pre_tokenizer: pre-tokenizer "UnicodeScripts" is not supported`},
		{"metaspace of no sign", top("pre_tokenizer", object{"type": "Metaspace", "replacement": ""}), "/pre_tokenizer/replacement: want one character"},
		{"metaspace of an unknown scheme", top("pre_tokenizer", object{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "second"}), `/pre_tokenizer/prepend_scheme: "second" is not known`},
		{"metaspace that contradicts itself", top("pre_tokenizer", object{"type": "Metaspace", "replacement": "▁", "add_prefix_space": false}), "/pre_tokenizer/add_prefix_space: false does not go with"},
		{"metaspace first after strip", func(d object) {
			d["normalizer"] = object{"type": "Strip", "strip_left": true, "strip_right": true}
			d["pre_tokenizer"] = object{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}
		}, `/pre_tokenizer/prepend_scheme: the scheme "first" after a normalizer`},
		{"after ByteLevel", top("pre_tokenizer", object{"type": "Sequence", "pretokenizers": []any{
			object{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true}, object{"type": "Whitespace"}}}),
			`/pre_tokenizer/pretokenizers/1: pre-tokenizer "Whitespace" after ByteLevel`},
		{"pattern", top("pre_tokenizer", split(object{"Regex": `(a)\1`}, "Isolated")), `/pre_tokenizer/pretokenizers/0/pattern/Regex: the pattern "(a)\\1" (at byte 5: \1) is not`},
		{"behavior", top("pre_tokenizer", split(object{"Regex": patternLlama3}, "Twice")), `/pretokenizers/0/behavior: "Twice" is not known`},
		{"decoder", top("decoder", object{"type": "WordPiece"}), `/decoder: decoder "WordPiece"`},
		{"decoders in another order", top("decoder", object{"type": "Sequence", "decoders": []any{object{"type": "ByteFallback"}, object{"type": "Metaspace", "replacement": "▁"}}}),
			`/decoder/decoders/1: decoder "Metaspace" after Fuse, ByteFallback or ByteLevel`},
		{"stripping the end", top("decoder", object{"type": "Strip", "content": " ", "start": 0, "stop": 1}), "/decoder/stop: taking characters from the end"},
		{"post-processor", top("post_processor", object{"type": "BertProcessing"}), `/post_processor: post-processor "BertProcessing"`},
		{"template without text", top("post_processor", object{"type": "TemplateProcessing", "single": []any{}, "pair": nil, "special_tokens": object{}}),
			"/post_processor/single: a template that does not have the text once"},
		{"template of an unknown token", top("post_processor", object{"type": "TemplateProcessing",
			"single": []any{object{"SpecialToken": object{"id": "<x>", "type_id": 0}}}, "special_tokens": object{}}),
			`/post_processor/single/0: token "<x>" is not in special_tokens`},
		{"template of an unknown id", top("post_processor", object{"type": "TemplateProcessing",
			"single":         []any{object{"SpecialToken": object{"id": "<x>", "type_id": 0}}},
			"special_tokens": object{"<x>": object{"id": "<x>", "ids": []any{999}, "tokens": []any{"<x>"}}}}),
			`/post_processor/single/0: token "<x>" has id 999, which is not a token`},
		{"no model", top("model", nil), "tokenizer.json: /model: there is no model"},
		{"word piece", top("model", object{"type": "WordPiece", "vocab": object{}}), `tokenizer.json: /model/type: model "WordPiece"`},
		{"unigram of bytes", top("model", object{"type": "Unigram", "unk_id": 0, "vocab": []any{[]any{"a", -1.5}}}), `tokenizer.json: /model/type: model Unigram after pre-tokenizer ByteLevel`},
		{"unigram without unknown token", func(d object) {
			d["pre_tokenizer"], d["model"] = nil, object{"type": "Unigram", "unk_id": nil, "vocab": []any{[]any{"a", -1.5}}}
		}, "/model/unk_id: a Unigram model without unknown token"},
		{"unigram's unknown token", func(d object) {
			d["pre_tokenizer"], d["model"] = nil, object{"type": "Unigram", "unk_id": 7, "vocab": []any{[]any{"a", -1.5}}}
		}, "/model/unk_id: id 7 is not below the vocabulary's size, 1"},
		{"unigram's token", func(d object) {
			d["pre_tokenizer"], d["model"] = nil, object{"type": "Unigram", "unk_id": 0, "vocab": []any{[]any{"a", -1.5}, []any{"b"}}}
		}, "/model/vocab/1"},
		{"unknown token", func(d object) {
			d["pre_tokenizer"] = nil
			d["model"].(object)["unk_token"] = "<unk>"
		}, `/model/unk_token: token "<unk>" is not in the vocabulary`},
		{"dropout", model("dropout", 0.1), "/model/dropout: dropout"},
		{"subword prefix", model("continuing_subword_prefix", "##"), "/model/continuing_subword_prefix"},
		{"word suffix", model("end_of_word_suffix", "</w>"), "/model/end_of_word_suffix"},
		{"merge of an absent token", model("merges", []any{[]any{"a", "b"}, []any{"x", "y"}}), `/model/merges/1: token "xy" is not in the vocabulary`},
		{"merge of three", model("merges", []any{[]any{"a", "b", "c"}}), "a merge must be a list of two tokens"},
		{"merge spelled wrong", model("merges", []any{"a b c"}), `merge "a b c" is not two tokens`},
		{"empty merge", model("merges", []any{[]any{"a", ""}}), "/model/merges/0: a merge with an empty token"},
		{"bytes missing", func(d object) { delete(d["model"].(object)["vocab"].(object), "Ā") }, "/model/vocab: a vocabulary without a token for byte 0x00"},
		{"same id twice", func(d object) { d["model"].(object)["vocab"].(object)["b"] = 97 }, "id 97 is also that of"},
		{"id too large", func(d object) { d["model"].(object)["vocab"].(object)["zz"] = 1 << 30 }, "/model/vocab/zz: id 1073741824 is not below"},
		{"negative id", func(d object) { d["model"].(object)["vocab"].(object)["zz"] = -1 }, "/model/vocab/zz"},
		{"added id", top("added_tokens", []any{addedTokenJSON(1000, "<x>", nil)}), `/added_tokens/0/id: token "<x>" has id 1000, but in this place it is 259`},
		{"added empty", top("added_tokens", []any{addedTokenJSON(259, "", nil)}), "/added_tokens/0: content is empty"},
		{"added twice", top("added_tokens", []any{addedTokenJSON(259, "<x>", nil), addedTokenJSON(260, "<x>", nil)}), `/added_tokens/1: token "<x>" is added twice`},
	} {
		t.Run(c.name, func(t *testing.T) {
			doc := smallModel()
			c.bend(doc)
			_, err := Load(folder(t, doc, nil))
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "tokenizer.json: ") {
				t.Fatalf("got %v, want tokenizer.json: ... %s", err, c.want)
			}
		})
	}
}

// TestBroken checks files that are no tokenizer.json at all.
func TestBroken(t *testing.T) {
	whole := marshal(t, smallModel())
	for name, data := range map[string][]byte{
		"empty":     {},
		"truncated": whole[:len(whole)/2],
		"trailing":  append(slices.Clone(whole), '}'),
		"no object": []byte(`[1]`),
		"bad UTF-8": bytes.Replace(whole, []byte("</s>"), []byte("</\xff>"), 1),
		"twice":     bytes.Replace(whole, []byte(`"version"`), []byte(`"version":"1.0","version"`), 1),
	} {
		if _, err := Load(fstest.MapFS{fileTokenizer: {Data: data}}); err == nil || !strings.Contains(err.Error(), fileTokenizer) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := Load(fstest.MapFS{}); err == nil || !strings.Contains(err.Error(), "tokenizer.json: the model's folder has neither this file") {
		t.Errorf("no file: got %v", err)
	}
	if _, err := Load(fstest.MapFS{fileTokenizer: {Data: make([]byte, maxFile+1)}}); err == nil || !strings.Contains(err.Error(), "larger than 128 MiB") {
		t.Errorf("huge file: got %v", err)
	}
}

// FuzzLoad checks that no file makes loading panic.
func FuzzLoad(f *testing.F) {
	whole := marshal(f, smallModel())
	f.Add(whole)
	f.Add(whole[:100])
	f.Add(bytes.Replace(whole, []byte(`"ByteLevel"`), []byte(`"Sequence"`), 1))
	for _, members := range []string{
		`{"normalizer":{"type":"Prepend","prepend":"▁"},"decoder":{"type":"Metaspace","replacement":"▁"}}`,
		`{"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"first"}}`,
		`{"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(?<=a)b+?|\\s"},"behavior":"MergedWithNext","invert":true}}`,
		`{"normalizer":{"type":"Precompiled","precompiled_charsmap":"CAAAAAAAAAAAAAAAYQA="}}`,
	} {
		var m map[string]jsontext.Value
		if err := json.Unmarshal([]byte(members), &m); err != nil {
			f.Fatal(err)
		}
		f.Add(smallDocument(f, "bpe", m, nil))
		f.Add(smallDocument(f, "unigram", m, nil))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Load(fstest.MapFS{fileTokenizer: {Data: data}})
		if err != nil {
			return
		}
		const s = "ab abab <s> é\n\n"
		ids, err := m.Tokenizer.NewEncoder().Encode(t.Context(), nil, s, EncodeOptions{AddSpecial: true})
		if e := (*infer.Error)(nil); err != nil && !errors.As(err, &e) {
			t.Fatal(err)
		}
		m.Tokenizer.Decode(ids, true)
	})
}

func TestFolder(t *testing.T) {
	doc := smallModel()
	m, err := Load(folder(t, doc, map[string]string{
		fileTokConfig: `{"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>", "unk_token": null, "add_bos_token": true,
			"model_max_length": 1000000000000000019884624838656, "chat_template": [{"name": "default", "template": "old"}, {"name": "rag", "template": "R"}],
			"added_tokens_decoder": {"259": {"content": "<s>"}}}`,
		fileGeneration:                      `{"eos_token_id": [97, 5], "temperature": 0.6}`,
		fileConfig:                          `{"text_config": {"max_position_embeddings": 4096, "vocab_size": 300}, "eos_token_id": 9}`,
		fileTemplate:                        "new",
		"additional_chat_templates/t.jinja": "T",
	}))
	if err != nil {
		t.Fatal(err)
	}
	if want := []uint32{5, 97, 260}; !slices.Equal(m.EOS, want) {
		t.Errorf("EOS %v, want %v", m.EOS, want)
	}
	if m.ContextLength != 4096 || m.VocabSize != 300 || m.BOSToken != "<s>" || m.EOSToken != "</s>" {
		t.Errorf("context %d, vocabulary %d, tokens %q %q", m.ContextLength, m.VocabSize, m.BOSToken, m.EOSToken)
	}
	if want := map[string]string{"default": "new", "rag": "R", "t": "T"}; !maps.Equal(m.ChatTemplates, want) {
		t.Errorf("templates %v, want %v", m.ChatTemplates, want)
	}
	if len(m.SpecialTokens) != 2 {
		t.Errorf("special tokens %v", m.SpecialTokens)
	}

	for _, c := range []struct{ file, text, want string }{
		{fileTokConfig, `{"bos_token": {"content": 5}}`, "tokenizer_config.json: /bos_token/content"},
		{fileTokConfig, `{"added_tokens_decoder": {"900": {"content": "<new>"}}}`, `tokenizer_config.json: /added_tokens_decoder/900: adding token "<new>"`},
		{fileTokConfig, `{"model_max_length": -5}`, "tokenizer_config.json: /model_max_length: want a positive whole number, have -5"},
		{fileTokConfig, `{`, "tokenizer_config.json: /"},
		{fileTokConfig, `{"chat_template": 5}`, "tokenizer_config.json: /chat_template"},
		{fileConfig, `{"max_position_embeddings": 1.5}`, "config.json: /max_position_embeddings: want a positive whole number"},
		{fileConfig, `{"text_config": {"vocab_size": "big"}}`, "config.json: /text_config/vocab_size"},
		{fileGeneration, `{"eos_token_id": "x"}`, "generation_config.json: /eos_token_id"},
		{fileGeneration, `{"eos_token_id": 70000}`, "generation_config.json: /eos_token_id: id 70000 is not below"},
	} {
		if _, err := Load(folder(t, doc, map[string]string{c.file: c.text})); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", c.text, err, c.want)
		}
	}
	// The shorter of two context lengths holds.
	m, err = Load(folder(t, doc, map[string]string{fileTokConfig: `{"model_max_length": 512}`, fileConfig: `{"max_position_embeddings": 4096}`}))
	if err != nil || m.ContextLength != 512 {
		t.Errorf("context %d, %v", m.ContextLength, err)
	}
}

func TestFingerprint(t *testing.T) {
	doc := smallModel()
	a, err := Load(folder(t, doc, nil))
	if err != nil {
		t.Fatal(err)
	}
	doc["model"].(object)["ignore_merges"] = true
	b, err := Load(folder(t, doc, nil))
	if err != nil {
		t.Fatal(err)
	}
	if a.Fingerprint == b.Fingerprint || len(a.Fingerprint) != 32 {
		t.Errorf("fingerprints %q and %q", a.Fingerprint, b.Fingerprint)
	}
}

// jsonOf is marshal outside of a test's main line.
func jsonOf(v any) ([]byte, error) { return json.Marshal(v) }

// rankLines is a vocabulary of all bytes and some tokens in tiktoken's form.
func rankLines(tokens ...string) string {
	var b strings.Builder
	rank := 0
	add := func(token string) {
		fmt.Fprintf(&b, "%s %d\n", base64.StdEncoding.EncodeToString([]byte(token)), rank)
		rank++
	}
	for c := range 256 {
		add(string([]byte{byte(c)}))
	}
	for _, token := range tokens {
		add(token)
	}
	return b.String()
}

// TestRankFiles checks which folders of tiktoken's form are known, and what is
// wrong with others.
func TestRankFiles(t *testing.T) {
	ranks := rankLines("ab", "abc", "bc", "[BOS]")
	files := func(more map[string]string) fs.FS {
		out := fstest.MapFS{}
		for name, text := range more {
			out[name] = &fstest.MapFile{Data: []byte(text)}
		}
		return out
	}
	m, err := Load(files(map[string]string{fileKimi: ranks, fileTokConfig: `{"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": {"260": {"content": "[BOS]"}}}`}))
	if err != nil {
		t.Fatal(err)
	}
	ids, err := m.Tokenizer.NewEncoder().Encode(t.Context(), nil, "abc中abcd[BOS]x", EncodeOptions{})
	if want := []uint32{257, 228, 184, 173, 257, 'd', 260, 'x'}; err != nil || !slices.Equal(ids, want) {
		t.Errorf("got %v, %v; want %v", ids, err, want)
	}
	if got := m.Tokenizer.Decode([]uint32{257, 260, 259, 261, 999}, false); got != "abc[BOS][BOS]<|reserved_token_261|>" {
		t.Errorf("decoded %q", got)
	}
	if got := m.Tokenizer.Decode([]uint32{257, 260, 259}, true); got != "abc[BOS]" {
		t.Errorf("decoded without special tokens %q", got)
	}
	kimi := `{"tokenizer_class": "TikTokenTokenizer"}`
	for _, c := range []struct {
		files map[string]string
		want  string
	}{
		{map[string]string{fileKimi: ranks}, `tiktoken.model: weir does not know how this vocabulary splits text: tokenizer_config.json has tokenizer_class ""`},
		{map[string]string{"other.tiktoken": ranks}, "other.tiktoken: weir does not know how this vocabulary splits text"},
		{map[string]string{fileLlama: ranks}, "tokenizer.model: which special tokens go with it is not known without params.json"},
		{map[string]string{fileLlama: ranks, fileParams: `{"vocab_size": 1000}`}, "params.json: /vocab_size: want the 260 ranks of tokenizer.model and 256 special tokens, 516, have 1000"},
		{map[string]string{fileLlama: ranks, fileParams: `{}`}, "params.json: /vocab_size: it is missing"},
		{map[string]string{fileLlama: "\n\x0e\n\x05<unk>\x15\x00", fileParams: `{}`}, "tokenizer.model: this is not a rank file"},
		{map[string]string{fileKimi: ranks + "!! 260\n", fileTokConfig: kimi}, "tiktoken.model: line 261: illegal base64"},
		{map[string]string{fileKimi: ranks + "YWE=\n", fileTokConfig: kimi}, "tiktoken.model: line 261: want a token in base64, a space and its rank"},
		{map[string]string{fileKimi: ranks + "YWE= x\n", fileTokConfig: kimi}, `tiktoken.model: line 261: want a rank, have "x"`},
		{map[string]string{fileKimi: ranks + "YWE= 3\n", fileTokConfig: kimi}, "tiktoken.model: line 261: rank 3 is also that of line 4"},
		{map[string]string{fileKimi: ranks + "YWI= 260\n", fileTokConfig: kimi}, `tiktoken.model: line 261: token "ab" stands here again`},
		{map[string]string{fileKimi: ranks + "YWE= 99999999\n", fileTokConfig: kimi}, "tiktoken.model: line 261: rank 99999999 is not below"},
		{map[string]string{fileKimi: ranks + "YWE= 300\n", fileTokConfig: kimi}, "tiktoken.model: 261 tokens have ranks up to 300"},
		{map[string]string{fileKimi: strings.Replace(ranks, "YQ== 97\n", "YWE= 97\n", 1), fileTokConfig: kimi}, "tiktoken.model: /vocab: a vocabulary without a token for byte 0x61"},
		{map[string]string{fileKimi: "\n", fileTokConfig: kimi}, "tiktoken.model: the file is empty"},
		{map[string]string{fileKimi: ranks, fileTokConfig: `{"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": {"9999": {"content": "<x>"}}}`}, "tokenizer_config.json: /added_tokens_decoder/9999: id 9999 is not one of the 256"},
		{map[string]string{fileKimi: ranks, fileTokConfig: `{"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": {"260": {"content": "<x>"}, "261": {"content": "<x>"}}}`}, `token "<x>" is special twice`},
	} {
		if _, err := Load(files(c.files)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}

// FuzzRanks checks that no rank file makes loading panic.
func FuzzRanks(f *testing.F) {
	f.Add(rankLines("ab", "abab"), `{"tokenizer_class": "TikTokenTokenizer"}`)
	f.Add("YQ== 0\n", `{"tokenizer_class": "QWenTokenizer"}`)
	f.Fuzz(func(t *testing.T, ranks, config string) {
		for _, name := range []string{fileQwen, fileKimi, fileLlama} {
			m, err := Load(fstest.MapFS{name: {Data: []byte(ranks)}, fileTokConfig: {Data: []byte(config)}, fileParams: {Data: []byte(config)}})
			if err != nil {
				continue
			}
			if _, err := m.Tokenizer.NewEncoder().Encode(t.Context(), nil, "ab abab é\n", EncodeOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestHostilePattern checks that a pattern that takes exponential time is given
// up in bounded time, with an error that says why.
func TestHostilePattern(t *testing.T) {
	hostile := []string{"(a|b|ab)*c", "(?:a|a)+?$", "(?:(?:a|b){1,3})+c", "[^.]+[^x]+\\."}
	if testing.Short() { // each takes all of the steps that it may
		hostile = hostile[:1]
	}
	for _, pattern := range hostile {
		doc := smallModel()
		doc["pre_tokenizer"] = object{"type": "Sequence", "pretokenizers": []any{
			object{"type": "Split", "pattern": object{"Regex": pattern}, "behavior": "Isolated", "invert": false},
			object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
		}}
		m, err := Load(folder(t, doc, nil))
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.Tokenizer.NewEncoder().Encode(t.Context(), nil, strings.Repeat("a", 10_000)+"!", EncodeOptions{})
		var e *infer.Error
		if !errors.As(err, &e) || e.Code != infer.CodeInvalid || !strings.Contains(e.Message, "split pattern takes more than") {
			t.Errorf("%s: got %v", pattern, err)
		}
	}
	for _, pattern := range []string{strings.Repeat("(", 200), strings.Repeat("a", maxPattern+1), "(?:(?:(?:a{1000}){1000}){1000})", "[" + strings.Repeat("[", 200), "a{2,1}", "x{99999}", "(?<n>a)", `\p{Nope}`, "(?i:ß)", "(?i:ss)", "a**", "(a*)*", `\1`, `\G`, "[[:alpha:]]", "(?<=a+)b", "(?i:[^a])", "a{2}?", "(", ")", "[", "*", `\x`, "{"} {
		if _, err := compile(pattern); err == nil {
			t.Errorf("%.40s is understood", pattern)
		}
	}
}

// TestTemplateThatWasByteLevel: the members of a ByteLevel in TemplateProcessing
// change nothing, as in the files of Command-R.
func TestTemplateThatWasByteLevel(t *testing.T) {
	doc := smallModel()
	doc["added_tokens"] = []any{addedTokenJSON(259, "<s>", nil)}
	doc["post_processor"] = object{"add_prefix_space": true, "trim_offsets": false, "use_regex": true, "type": "TemplateProcessing",
		"single":         []any{object{"SpecialToken": object{"id": "<s>", "type_id": 0}}, object{"Sequence": object{"id": "A", "type_id": 0}}},
		"pair":           []any{},
		"special_tokens": object{"<s>": object{"id": "<s>", "ids": []any{259}, "tokens": []any{"<s>"}}},
	}
	if got, want := encodeWith(t, doc, "ab", EncodeOptions{AddSpecial: true}), []string{"<s>", "ab"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
