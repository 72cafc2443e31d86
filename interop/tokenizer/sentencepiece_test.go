//go:build interop

package tokenizer_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const sign = "▁"

func metaspace(scheme string, split bool) object {
	return object{"type": "Metaspace", "replacement": sign, "prepend_scheme": scheme, "split": split}
}

func sequence(member string, parts ...any) object {
	return object{"type": "Sequence", member: parts}
}

func replaceString(from, to string) object {
	return object{"type": "Replace", "pattern": object{"String": from}, "content": to}
}

// llamaDecoder is the decoder of Llama-2; Gemma's has no Strip.
func llamaDecoder(strip bool) object {
	parts := []any{replaceString(sign, " "), object{"type": "ByteFallback"}, object{"type": "Fuse"}}
	if strip {
		parts = append(parts, object{"type": "Strip", "content": " ", "start": 1, "stop": 0})
	}
	return sequence("decoders", parts...)
}

// byteTokens are the tokens that runes fall back to.
func byteTokens() []string {
	var out []string
	for b := range 256 {
		out = append(out, fmt.Sprintf("<0x%02X>", b))
	}
	return out
}

// addedPieces are added tokens of SentencePiece vocabularies: those of the
// vocabulary, and some of all kinds.
var addedPieces = append([]addedToken{{Content: "<unk>", Special: true}, {Content: "<s>", Special: true}, {Content: "</s>", Special: true}}, added...)

// pieces trains the vocabularies that variants are made of, once each.
var pieces = struct {
	sync.Mutex
	dirs map[string]string
}{dirs: map[string]string{}}

// trained returns the folder of a vocabulary.
func trained(t *testing.T, name string) string {
	t.Helper()
	pieces.Lock()
	defer pieces.Unlock()
	if dir, ok := pieces.dirs[name]; ok {
		return dir
	}
	c := theCorpus(t)
	alphabet := 2500
	s := spec{
		Model: "BPE", Size: 12_000, Special: append([]string{"<unk>", "<s>", "</s>"}, byteTokens()...), LimitAlphabet: &alphabet,
		Train:    object{"pre_tokenizer": metaspace("always", true)},
		Settings: object{"unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true},
		Added:    addedPieces, BOS: "<s>", Files: c.files,
	}
	switch name {
	case "words": // no token spans words
	case "bytes": // for tiktoken's form
		s = spec{Model: "BPE", Train: byteLevel([]string{patternOf(t, "llama3")}), Size: 12_000, ByteAlphabet: true, Files: c.files}
	case "lines": // tokens span words
		s.Size, s.Train = 6000, object{"normalizer": replaceString(" ", sign), "pre_tokenizer": object{"type": "Split", "pattern": object{"String": "\n"}, "behavior": "MergedWithPrevious", "invert": false}}
		s.Files = nil
		size := 0
		for i, path := range c.files {
			if info, err := os.Stat(path); err == nil && i%7 == 0 && size < 1<<20 {
				size += int(info.Size())
				s.Files = append(s.Files, path)
			}
		}
	case "unigram":
		s.Model, s.Size, s.LimitAlphabet, s.Settings = "Unigram", 8000, nil, object{"byte_fallback": true}
		s.Files = nil
		for i, path := range c.files {
			if i%3 == 0 {
				s.Files = append(s.Files, path)
			}
		}
	}
	s.Serve = s.Train
	dir, err := os.MkdirTemp("", "weir-pieces-")
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(train(t, s), "tokenizer.json"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "tokenizer.json"), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	pieces.dirs[name] = dir
	return dir
}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, dir := range pieces.dirs {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// variant writes a trained vocabulary with other components and settings.
func variant(t *testing.T, from string, bend func(doc, model object)) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(from, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber() // scores stay as they are written
	var doc object
	if err := d.Decode(&doc); err != nil {
		t.Fatal(err)
	}
	bend(doc, doc["model"].(object))
	if data, err = json.Marshal(doc); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// components replaces components of a document.
func components(doc object, with object) {
	for _, name := range []string{"normalizer", "pre_tokenizer", "decoder"} {
		doc[name] = nil
	}
	maps.Copy(doc, with)
}

// rename takes a token of the vocabulary away, by giving it another name.
func rename(model object, token string) {
	vocab := model["vocab"].(object)
	vocab["\ue123"+token] = vocab[token]
	delete(vocab, token)
}

// pieceGrammars are the forms that SentencePiece vocabularies come in, and the
// settings of their models.
var pieceGrammars = []struct {
	name, vocabulary string
	with             object
	settings         func(model object)
	most             bool // compared on the whole corpus
}{
	{"llama2", "words", object{"normalizer": sequence("normalizers", object{"type": "Prepend", "prepend": sign}, replaceString(" ", sign)), "decoder": llamaDecoder(true)}, nil, true},
	{"mistral", "words", object{"pre_tokenizer": metaspace("first", false), "decoder": llamaDecoder(true)}, nil, true},
	{"gemma", "words", object{"normalizer": replaceString(" ", sign), "pre_tokenizer": object{"type": "Split", "pattern": object{"String": " "}, "behavior": "MergedWithPrevious", "invert": false}, "decoder": llamaDecoder(false)}, nil, true},
	{"metaspace always", "words", object{"pre_tokenizer": metaspace("always", true), "decoder": metaspace("always", true)}, nil, true},
	{"metaspace never", "words", object{"pre_tokenizer": metaspace("never", true), "decoder": metaspace("never", true)}, nil, false},
	{"metaspace first", "words", object{"pre_tokenizer": metaspace("first", true), "decoder": metaspace("first", true)}, nil, false},
	{"across words", "lines", object{"normalizer": replaceString(" ", sign), "decoder": llamaDecoder(false)}, nil, true},
	{"ignore merges", "lines", object{"pre_tokenizer": metaspace("always", true), "decoder": llamaDecoder(true)}, func(m object) { m["ignore_merges"] = true }, false},
	{"no decoder", "words", object{"pre_tokenizer": metaspace("always", true)}, nil, false},
	{"unknown fused", "words", object{"pre_tokenizer": metaspace("always", false), "decoder": metaspace("always", true)}, func(m object) { m["byte_fallback"] = false }, false},
	{"unknown apart", "words", object{"pre_tokenizer": metaspace("always", false), "decoder": metaspace("always", true)}, func(m object) { m["byte_fallback"], m["fuse_unk"] = false, false }, false},
	{"unknown dropped", "words", object{"pre_tokenizer": metaspace("always", false), "decoder": metaspace("always", true)}, func(m object) { m["byte_fallback"], m["unk_token"] = false, nil }, false},
	{"bytes missing", "words", object{"pre_tokenizer": metaspace("always", false), "decoder": llamaDecoder(true)}, func(m object) { rename(m, "<0xE4>"); rename(m, "<0xF0>") }, false},
	{"bytes missing, apart", "words", object{"pre_tokenizer": metaspace("always", false), "decoder": llamaDecoder(true)}, func(m object) { rename(m, "<0xE4>"); m["fuse_unk"] = false }, false},
	{"t5", "unigram", object{"pre_tokenizer": metaspace("always", true), "decoder": metaspace("always", true)}, func(m object) { m["byte_fallback"] = false }, true},
	{"unigram with bytes", "unigram", object{"pre_tokenizer": metaspace("first", false), "decoder": llamaDecoder(true)}, nil, true},
	{"unigram, whole text", "unigram", object{"normalizer": sequence("normalizers", object{"type": "Prepend", "prepend": sign}, replaceString(" ", sign)), "decoder": llamaDecoder(true)}, nil, false},
}

// TestPieces compares SentencePiece-style BPE and Unigram in every form.
func TestPieces(t *testing.T) {
	for _, c := range pieceGrammars {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := variant(t, trained(t, c.vocabulary), func(doc, model object) {
				components(doc, c.with)
				if c.settings != nil {
					c.settings(model)
				}
			})
			texts := theCorpus(t).texts
			if !c.most {
				texts = someTexts(texts)
			}
			compare(t, dir, texts)
		})
	}
}

// cut shortens texts.
func cut(texts []text, bytes int) []text {
	out := slices.Clone(texts)
	for i := range out {
		out[i].text = strings.ToValidUTF8(out[i].text[:min(len(out[i].text), bytes)], "")
	}
	return out
}

// someTexts is a smaller corpus of every kind.
func someTexts(texts []text) []text {
	each := sample(40, 4) // the corpus has fewer files then
	var out []text
	for i, x := range texts {
		switch {
		case strings.HasPrefix(x.name, "every rune"), !strings.HasPrefix(x.name, "/"):
			x.text = strings.ToValidUTF8(x.text[:min(len(x.text), sample(40_000, 4))], "")
			out = append(out, x)
		case i%each == 0:
			out = append(out, x)
		}
	}
	return slices.Clip(out)
}
