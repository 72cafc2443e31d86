package tokenizer

import (
	"errors"
	"testing"
	"testing/fstest"

	"weir/internal/infer"
)

// FuzzFolder checks that no other file of a folder makes loading panic, and that ids
// which it names are the tokenizer's.
func FuzzFolder(f *testing.F) {
	f.Add(`{"bos_token": {"content": "<s>", "lstrip": false}, "add_bos_token": true, "model_max_length": 1000000000000000019884624838656,
		"chat_template": [{"name": "default", "template": "old"}, {"name": "rag", "template": "R"}], "added_tokens_decoder": {"259": {"content": "<s>"}}}`,
		`{"text_config": {"max_position_embeddings": 4096, "vocab_size": 300}, "eos_token_id": 9, "image_token_id": 5}`, `{"eos_token_id": [97, 5], "temperature": 0.6}`)
	f.Add(`{"chat_template": "x", "eos_token": "</s>", "unk_token": null}`, `{"n_positions": 1e3, "vocab_size": null, "audio_token_index": 7}`, `{"eos_token_id": null}`)
	f.Add(`{"tokenizer_class": "LlamaTokenizer"}`, `[]`, `{"eos_token_id": -1}`)
	doc := marshal(f, smallModel())
	f.Fuzz(func(t *testing.T, settings, config, generation string) {
		m, err := Load(fstest.MapFS{fileTokenizer: {Data: doc}, fileTokConfig: {Data: []byte(settings)}, fileConfig: {Data: []byte(config)}, fileGeneration: {Data: []byte(generation)}})
		if err != nil {
			return
		}
		for _, id := range m.EOS {
			if int(id) >= max(m.VocabSize, m.Tokenizer.Size()) {
				t.Fatalf("an end of id %d in a vocabulary of %d", id, m.VocabSize)
			}
		}
		if m.ContextLength < 0 || m.VocabSize <= 0 {
			t.Fatalf("a context of %d, a vocabulary of %d", m.ContextLength, m.VocabSize)
		}
	})
}

// FuzzTekken checks that no file in Mistral's form makes loading panic.
func FuzzTekken(f *testing.F) {
	f.Add(marshal(f, smallTekken()))
	f.Add([]byte(`{"config":{"pattern":"\\s+","default_vocab_size":2,"default_num_special_tokens":1,"version":"v3"},"vocab":[{"rank":0,"token_bytes":"YQ==","token_str":"a"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Load(fstest.MapFS{fileTekken: {Data: data}})
		if err != nil {
			return
		}
		if _, err := m.Tokenizer.NewEncoder().Encode(t.Context(), nil, "ab abab é\n", EncodeOptions{}); err != nil && !errors.As(err, new(*infer.Error)) {
			t.Fatal(err)
		}
	})
}

// FuzzPattern: no pattern makes compiling panic or finding go on for ever, and what is
// found lies in the text, in order.
func FuzzPattern(f *testing.F) {
	for _, pattern := range []string{`(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`, `(?<=a)b+?|\s`, `(a|b|ab)*c`, `[\p{Han}&&[^x]]++`, `a{2,}?\b|\x{1F600}`} {
		f.Add(pattern, "ab 12 é日本\r\n'S")
	}
	f.Fuzz(func(t *testing.T, pattern, text string) {
		x, err := compile(pattern)
		if err != nil || len(text) > 1000 {
			return
		}
		var in found
		if err := x.find(&in, text, neverPause{}); err != nil {
			if !errors.As(err, new(*infer.Error)) {
				t.Fatal(err)
			}
			return
		}
		at := 0
		for _, s := range in.spans {
			if s.start < at || s.end < s.start || s.end > len(text) {
				t.Fatalf("%d to %d behind %d in %d bytes", s.start, s.end, at, len(text))
			}
			at = s.end
		}
	})
}

// FuzzCharsmap: no table makes rewriting panic.
func FuzzCharsmap(f *testing.F) {
	f.Add([]byte("\x08\x00\x00\x00\x00\x00\x00\x00a\x00\x00\x00a"), "abé")
	f.Fuzz(func(t *testing.T, data []byte, text string) {
		m, err := parseCharsmap(data)
		if err != nil || len(text) > 1000 {
			return
		}
		if _, _, err := m.rewrite(&scratch{}, nil, text, neverPause{}); err != nil {
			t.Fatal(err)
		}
	})
}
