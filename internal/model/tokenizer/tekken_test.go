package tokenizer

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// smallTekken returns a tekken.json of all bytes, two merges, and a token more than
// is used.
func smallTekken() object {
	var vocab []any
	add := func(text string) {
		vocab = append(vocab, object{"rank": len(vocab), "token_bytes": base64.StdEncoding.EncodeToString([]byte(text)), "token_str": nil})
	}
	for b := range 256 {
		add(string([]byte{byte(b)}))
	}
	add("ab")
	add("abc")
	add("unused")
	return object{
		"config": object{"pattern": patternTekken, "num_vocab_tokens": len(vocab), "default_vocab_size": 25 + 258, "default_num_special_tokens": 25, "version": "v3"},
		"vocab":  vocab, "image": object{"size": 1},
	}
}

func TestTekken(t *testing.T) {
	m, err := Load(fstest.MapFS{fileTekken: {Data: marshal(t, smallTekken())}})
	if err != nil {
		t.Fatal(err)
	}
	enc := m.Tokenizer.NewEncoder()
	const first = 25
	for _, c := range []struct {
		text string
		want []uint32
	}{
		{"abc ab", []uint32{first + 257, first + ' ', first + 256}},
		{"a[INST]b</s>", []uint32{first + 'a', 3, first + 'b', 2}},
		{"<SPECIAL_24>unused", []uint32{24, first + 'u', first + 'n', first + 'u', first + 's', first + 'e', first + 'd'}},
		{"<SPECIAL_25>", nil},
	} {
		got, err := enc.Encode(t.Context(), nil, c.text, EncodeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if c.want != nil && !slices.Equal(got, c.want) {
			t.Errorf("%q: %v, want %v", c.text, got, c.want)
		}
		if back := m.Tokenizer.Decode(got, false); back != c.text {
			t.Errorf("%q comes back as %q", c.text, back)
		}
	}
	got, err := enc.Encode(t.Context(), nil, "ab", EncodeOptions{AddSpecial: true})
	if want := []uint32{1, first + 256}; err != nil || !slices.Equal(got, want) {
		t.Errorf("with special tokens %v, %v; want %v", got, err, want)
	}
	if m.Tokenizer.Size() != 25+258 {
		t.Errorf("%d tokens", m.Tokenizer.Size())
	}

	listed := smallTekken()
	listed["config"].(object)["version"] = "v11"
	listed["special_tokens"] = []any{object{"rank": 0, "token_str": "<unk>", "is_control": true}, object{"rank": 1, "token_str": "[X]", "is_control": true}}
	if m, err = Load(fstest.MapFS{fileTekken: {Data: marshal(t, listed)}}); err != nil {
		t.Fatal(err)
	}
	if got, err = m.Tokenizer.NewEncoder().Encode(t.Context(), nil, "[X][INST]", EncodeOptions{AddSpecial: true}); err != nil || got[0] != 1 || len(got) != 7 {
		t.Errorf("special tokens of the file: %v, %v", got, err)
	}
}

func TestTekkenErrors(t *testing.T) {
	config := func(name string, value any) func(object) {
		return func(doc object) { doc["config"].(object)[name] = value }
	}
	token := func(i int, name string, value any) func(object) {
		return func(doc object) { doc["vocab"].([]any)[i].(object)[name] = value }
	}
	for _, c := range []struct {
		bend func(object)
		want string
	}{
		{config("default_num_special_tokens", 0), "tekken.json: /config/default_num_special_tokens: want a number from 1"},
		{config("default_num_special_tokens", 19), "tekken.json: /config/default_num_special_tokens: 19 is less than the 20"},
		{config("default_vocab_size", 1000), "tekken.json: /config/default_vocab_size: want at most the 259 of vocab and 25 special"},
		{config("version", "v13"), `tekken.json: /special_tokens: it is missing, and only files up to version v7 may leave it out; this one is "v13"`},
		{config("pattern", `(a)\1`), "tekken.json: "},
		{token(7, "rank", 8), "tekken.json: /vocab/7/rank: want 7, its place in the list, have 8"},
		{token(7, "token_bytes", "!!"), "tekken.json: /vocab/7/token_bytes: illegal base64"},
		{token(7, "token_bytes", ""), "tekken.json: /vocab/7/token_bytes: the token is empty"},
		{token(7, "token_bytes", "AA=="), `tekken.json: /vocab/7: token "\x00" stands here again`},
		{token(97, "token_bytes", "YWI="), "stands here again"},
		{func(doc object) { doc["special_tokens"] = []any{object{"rank": 1, "token_str": "x"}} }, "tekken.json: /special_tokens/0/rank: want 0"},
		{func(doc object) { doc["special_tokens"] = []any{object{"rank": 0, "token_str": ""}} }, "tekken.json: /special_tokens/0/token_str: the token is empty"},
		{func(doc object) { doc["vocab"] = "x" }, "tekken.json: /vocab"},
	} {
		doc := smallTekken()
		c.bend(doc)
		if _, err := Load(fstest.MapFS{fileTekken: {Data: marshal(t, doc)}}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}
