package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"weir/internal/model/tokenizer"
	"weir/models"
)

// object is a JSON object.
type object = map[string]any

// grammarDirs writes a model folder for each grammar under dir, and returns the
// folders in order. All have the tokens of the built-in vocabulary, so that only
// the grammars differ. The byte-level grammars have its merges under another
// split pattern. SentencePiece's have the merges of its tokens that are text.
func grammarDirs(dir string) ([]grammarDir, error) {
	data, err := fs.ReadFile(models.Sim(), "tokenizer.json")
	if err != nil {
		return nil, err
	}
	var sim object
	if err := json.Unmarshal(data, &sim); err != nil {
		return nil, fmt.Errorf("tokenizer.json of the built-in model: %w", err)
	}
	pattern := map[string]string{}
	for _, g := range tokenizer.Grammars() {
		pattern[g.Name] = g.Pattern
	}
	level := object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}
	splits := func(names ...string) object {
		var parts []any
		for _, name := range names {
			parts = append(parts, object{"type": "Split", "pattern": object{"Regex": pattern[name]}, "behavior": "Isolated", "invert": false})
		}
		return object{"type": "Sequence", "pretokenizers": append(parts, level)}
	}
	words := piecesOf(sim)
	var out []grammarDir
	for _, g := range []struct {
		name string
		doc  object
	}{
		{"llama3", with(sim, object{"pre_tokenizer": splits("llama3")})},
		{"qwen2", with(sim, object{"pre_tokenizer": splits("qwen2"), "normalizer": object{"type": "NFC"}})},
		{"qwen3.5", with(sim, object{"pre_tokenizer": splits("qwen3.5"), "normalizer": object{"type": "NFC"}})},
		{"gpt2", with(sim, object{"pre_tokenizer": splits("gpt2")})},
		{"o200k", with(sim, object{"pre_tokenizer": splits("o200k")})},
		{"tekken", with(sim, object{"pre_tokenizer": splits("tekken")})},
		{"kimi", with(sim, object{"pre_tokenizer": splits("kimi")})},
		{"deepseek3", with(sim, object{"pre_tokenizer": splits("digits3", "hankana", "deepseek3")})},
		{"llama2", with(words, object{"normalizer": object{"type": "Sequence", "normalizers": []any{
			object{"type": "Prepend", "prepend": sign}, object{"type": "Replace", "pattern": object{"String": " "}, "content": sign}}}})},
		{"mistral", with(words, object{"pre_tokenizer": object{"type": "Metaspace", "replacement": sign, "prepend_scheme": "first", "split": false}})},
		{"metaspace", with(words, object{"pre_tokenizer": object{"type": "Metaspace", "replacement": sign, "prepend_scheme": "always", "split": true}})},
		{"unigram", with(unigramOf(words), object{"pre_tokenizer": object{"type": "Metaspace", "replacement": sign, "prepend_scheme": "always", "split": true}})},
	} {
		g.doc["post_processor"] = nil
		path := filepath.Join(dir, g.name)
		if err := writeJSON(path, "tokenizer.json", g.doc); err != nil {
			return nil, err
		}
		out = append(out, grammarDir{g.name, "tokenizers", path})
	}
	path := filepath.Join(dir, "tiktoken")
	if err := writeRanks(path, pattern["llama3"]); err != nil {
		return nil, err
	}
	return append(out, grammarDir{"llama3, tiktoken's form", "tiktoken", path}), nil
}

// grammarDir is a model folder and the library that reads it too.
type grammarDir struct{ name, library, path string }

const sign = "▁"

// with copies a document and replaces members.
func with(doc, members object) object {
	out := object{}
	for name, value := range doc {
		out[name] = value
	}
	for name, value := range members {
		out[name] = value
	}
	return out
}

func writeJSON(dir, name string, v any) error {
	data, err := json.Marshal(v)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
	}
	return err
}

// piecesOf makes a SentencePiece-style vocabulary of a byte-level one. It keeps
// the tokens that are text, with the sign for spaces, and the merges of these.
func piecesOf(sim object) object {
	model := sim["model"].(object)
	vocab := object{"<unk>": 0, "<s>": 1, "</s>": 2}
	for b := range 256 {
		vocab[fmt.Sprintf("<0x%02X>", b)] = len(vocab)
	}
	add := func(token string) {
		if _, ok := vocab[token]; !ok {
			vocab[token] = len(vocab)
		}
	}
	var merges []any
	for r := rune(0x21); r < 0x250; r++ {
		add(string(r))
	}
	add(sign)
	add("\n")
	add("\t")
	for _, m := range model["merges"].([]any) {
		pair := m.([]any)
		a, okA := pieceText(pair[0].(string))
		b, okB := pieceText(pair[1].(string))
		if !okA || !okB || !has(vocab, a) || !has(vocab, b) {
			continue
		}
		add(a + b)
		merges = append(merges, []any{a, b})
	}
	added := []any{}
	for id, content := range []string{"<unk>", "<s>", "</s>"} {
		added = append(added, object{"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true})
	}
	return object{
		"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": added, "normalizer": nil, "pre_tokenizer": nil,
		"decoder": object{"type": "Sequence", "decoders": []any{
			object{"type": "Replace", "pattern": object{"String": sign}, "content": " "}, object{"type": "ByteFallback"}, object{"type": "Fuse"}}},
		"model": object{"type": "BPE", "dropout": nil, "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": vocab, "merges": merges},
	}
}

func has(vocab object, token string) bool {
	_, ok := vocab[token]
	return ok
}

// pieceText returns the text of a token in ByteLevel's alphabet.
func pieceText(token string) (string, bool) {
	var b []byte
	for _, r := range token {
		switch {
		case r == 'Ġ':
			b = append(b, ' ')
		case r == 'Ċ':
			b = append(b, '\n')
		case r == 'ĉ':
			b = append(b, '\t')
		case r < 0x100:
			b = append(b, byte(r))
		default:
			return "", false
		}
	}
	return strings.ReplaceAll(string(b), " ", sign), utf8.Valid(b)
}

// unigramOf makes a Unigram vocabulary of a SentencePiece-style one. Scores
// fall with the id, as in trained vocabularies.
func unigramOf(words object) object {
	model := words["model"].(object)
	vocab := model["vocab"].(object)
	tokens := make([]any, len(vocab))
	for token, id := range vocab {
		tokens[id.(int)] = []any{token, -3 - float64(id.(int))/float64(len(vocab))*9}
	}
	return with(words, object{"model": object{"type": "Unigram", "unk_id": 0, "byte_fallback": true, "vocab": tokens}})
}

// writeRanks writes the built-in vocabulary in tiktoken's form, as a folder like
// that of Llama 3.
func writeRanks(dir, pattern string) error {
	m, err := tokenizer.Load(models.Sim())
	if err != nil {
		return err
	}
	added := map[uint32]bool{}
	for _, token := range m.Tokenizer.AddedTokens() {
		added[token.ID] = true
	}
	var b strings.Builder
	ranks := 0
	for id := range uint32(m.Tokenizer.Size()) {
		if added[id] {
			break
		}
		fmt.Fprintf(&b, "%s %d\n", base64.StdEncoding.EncodeToString(m.Tokenizer.TokenBytes(id)), id)
		ranks++
	}
	if err := writeJSON(dir, "params.json", object{"vocab_size": ranks + 256}); err != nil {
		return err
	}
	if err := writeJSON(dir, "spec.json", object{"pattern": pattern, "file": "tokenizer.model"}); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "tokenizer.model"), []byte(b.String()), 0o600)
}
