package tokenizer

import (
	"encoding/json"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
)

// The memory and the time of a text are linear in the text, for any number and any kind of steps in
// a file. The text is the same as without a bound as long as the steps have room.
func TestRoom(t *testing.T) {
	outer := t
	replace := func(old any, content string) object {
		return object{"type": "Replace", "pattern": old, "content": content}
	}
	normalizers := []object{
		replace(object{"String": "a"}, "aaaaaaaaaa"), replace(object{"String": "a"}, strings.Repeat("ab", 2500)), replace(object{"Regex": "[a-z]"}, "xyz"), replace(object{"String": "b"}, ""), replace(object{"Regex": "x{2,}"}, "x"),
		{"type": "Prepend", "prepend": "aab"}, {"type": "Prepend", "prepend": strings.Repeat("a", 5000)}, {"type": "NFKD"}, {"type": "NFC"}, {"type": "ByteLevel"}, {"type": "Lowercase"}, {"type": "Strip", "strip_left": true, "strip_right": true}, {"type": "Nmt"},
	}
	stages := []object{
		{"type": "Split", "pattern": object{"Regex": "."}, "behavior": "Isolated", "invert": false}, {"type": "Split", "pattern": object{"String": "a"}, "behavior": "MergedWithNext", "invert": false}, {"type": "Whitespace"}, {"type": "Punctuation"},
		{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}, {"type": "Metaspace", "replacement": "X", "prepend_scheme": "always"}, {"type": "Metaspace", "replacement": "a", "prepend_scheme": "always", "split": false},
	}
	grown := 0
	rapid.Check(t, func(t *rapid.T) {
		pick := func(of []object, most int, label string) []object {
			return rapid.SliceOfN(rapid.SampledFrom(of), 0, most).Draw(t, label)
		}
		members := map[string]jsontext.Value{}
		put := func(name string, value object) {
			data, err := json.Marshal(value)
			if err != nil {
				t.Fatal(err)
			}
			members[name] = data
		}
		put("normalizer", object{"type": "Sequence", "normalizers": pick(normalizers, 10, "normalizers")})
		put("pre_tokenizer", object{"type": "Sequence", "pretokenizers": pick(stages, 16, "pre-tokenizers")})
		tok, err := parse(smallDocument(outer, rapid.SampledFrom([]string{"bpe", "unigram"}).Draw(t, "model"), members, nil))
		if err != nil && strings.Contains(err.Error(), "make more than") || err != nil && strings.Contains(err.Error(), "normal form is empty") {
			return // of an added token
		}
		if err != nil {
			t.Fatal(err)
		}
		unit := rapid.SampledFrom([]string{"a", "b a", "aB", "\ufdfa", "é.", "</s>a", "x  "}).Draw(t, "unit")
		text := strings.Repeat(unit, rapid.IntRange(1, 300).Draw(t, "times"))
		enc, pauses := tok.NewEncoder(), 0
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err = enc.Encode(t.Context(), nil, text, EncodeOptions{Yield: func() { pauses++ }})
		runtime.ReadMemStats(&after)
		if err != nil {
			if e := infer.AsError(err); e.Code != infer.CodeContext {
				t.Fatal(err)
			}
			grown++
		}
		// Each step may go through all of the text, and what it has become.
		size := (growth+1)*len(text) + growthLeft
		if allocated := after.TotalAlloc - before.TotalAlloc; allocated > uint64(200*size+4<<20) || pauses > 26*12*size/pauseBytes {
			t.Errorf("%d bytes: %d bytes allocated, %d pauses", len(text), allocated, pauses)
		}
	})
	if grown == 0 {
		t.Error("no text has grown")
	}
}

// The steps of a decoder, and a template, are bounded when the file is read.
func TestRoomOfFile(t *testing.T) {
	ten := object{"type": "Replace", "pattern": object{"String": "a"}, "content": "aaaaaaaaaa"}
	raw := func(v object) jsontext.Value { return marshal(t, v) }
	ids := slices.Repeat([]int{1}, 1000)
	for name, value := range map[string]object{
		"decoder":        {"type": "Sequence", "decoders": slices.Repeat([]object{ten}, 12)},
		"normalizer":     {"type": "Sequence", "normalizers": append(slices.Repeat([]object{ten}, 12), object{"type": "Prepend", "prepend": "a"}, ten, ten, ten, ten, ten, ten)},
		"post_processor": {"type": "TemplateProcessing", "single": []object{{"SpecialToken": object{"id": "<s>", "type_id": 0}}, {"SpecialToken": object{"id": "<s>", "type_id": 0}}, {"Sequence": object{"id": "A", "type_id": 0}}}, "pair": []object{}, "special_tokens": object{"<s>": object{"id": "<s>", "ids": ids, "tokens": []string{}}}},
	} {
		_, err := parse(smallDocument(t, "bpe", map[string]jsontext.Value{name: raw(value)}, nil))
		if err == nil || !strings.Contains(err.Error(), name) && !strings.Contains(err.Error(), "added_tokens") || !strings.Contains(err.Error(), "more than") {
			t.Errorf("%s: %v", name, err)
		}
	}
	strip := object{"type": "Strip", "content": "a", "start": 1 << 60, "stop": 0}
	if _, err := parse(smallDocument(t, "bpe", map[string]jsontext.Value{"decoder": raw(strip)}, nil)); err != nil {
		t.Error(err)
	}
}
