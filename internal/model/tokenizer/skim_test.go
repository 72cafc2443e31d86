package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"

	"weir/models"
)

// skimModel is a tokenizer.json with the members of a model that a test gives.
func skimModel(members string) string {
	return `{"version": "1.0", "added_tokens": [{"id": 9, "content": "\"}],{"}], "model": {"type": "BPE", ` + members + `}}`
}

// sameAsGeneral checks that skim gives up, or that the general reader accepts the file
// and finds the same in it. It reports whether skim accepted.
func sameAsGeneral(t *testing.T, data []byte) bool {
	t.Helper()
	read, ok := skim(data)
	if !ok {
		return false
	}
	var rest, whole document
	if (node{value: read.rest}).decode(&rest) != nil {
		return false // and the caller asks the general reader
	}
	if err := (node{value: data}).decode(&whole); err != nil {
		t.Fatalf("skim accepts %.200q, the general reader does not: %v", data, err)
	}
	var m bpeModel
	if err := (node{value: whole.Model, part: true}).scan(&m); err != nil {
		t.Fatalf("skim accepts %.200q, the general reader does not: %v", data, err)
	}
	if got := read.vocab; got.count != len(m.Vocab) {
		t.Fatalf("skim reads %d tokens, the general reader %d", got.count, len(m.Vocab))
	}
	for token, id := range m.Vocab {
		if got, ok := read.vocab.get(token); !ok || got != id {
			t.Fatalf("skim reads id %d, %v for %q, the general reader %d", got, ok, token, id)
		}
	}
	want, err := (&Tokenizer{ids: lexiconOf(m.Vocab)}).readMerges(node{}, m.Merges)
	if err != nil || !slices.Equal(read.merges, want) {
		t.Fatalf("skim reads merges %v, the general reader %v, %v", read.merges, want, err)
	}
	return true
}

func TestSkim(t *testing.T) {
	merges := `"merges": ["a b", "ab c"]`
	vocab := `"vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4, "\u00e9\n\"": 5, "é": 6, "\ud83c\udc04": 7}`
	for name, members := range map[string]string{
		"pairs in a string":     vocab + "," + merges,
		"pairs in a list":       vocab + `, "merges": [["a", "b"], [ "ab" , "c" ]]`,
		"lines":                 "\n" + vocab + ",\n\"merges\"\t: [\r\n [\n\"a\",\n\"b\"\n],\n [\"ab\", \"c\"]\n]\n",
		"no merges":             vocab + `, "merges": []`,
		"members between":       `"dropout": null, "unk_token": "}", ` + vocab + `, "x": [{"y": "]\""}, -1.5e3, true], ` + merges,
		"an escape in a merge":  vocab + `, "merges": ["\u0061 b"]`,
		"an escaped name of it": `"\u0076ocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]`,
	} {
		data := []byte(skimModel(members))
		if _, ok := skim(data); !ok {
			t.Errorf("%s: skim gives up", name)
		}
		// A member that no model has is an error of the general reader's, whichever read the rest.
		if name != "members between" && !sameAsGeneral(t, data) {
			t.Errorf("%s: the rest is not read", name)
		}
	}
	for name, members := range map[string]string{
		"a token twice":           `"vocab": {"a": 0, "a": 1}, ` + merges,
		"an id with a zero first": `"vocab": {"a": 00}, "merges": []`,
		"a negative id":           `"vocab": {"a": -1}, "merges": []`,
		"a fraction":              `"vocab": {"a": 1.0}, "merges": []`,
		"a large id":              `"vocab": {"a": 4294967296}, "merges": []`,
		"a comma too many":        `"vocab": {"a": 1,}, "merges": []`,
		"a merge of an unknown":   vocab + `, "merges": ["a x"]`,
		"a merge of three":        vocab + `, "merges": ["a b c"]`,
		"a list of three":         vocab + `, "merges": [["a", "b", "c"]]`,
		"an empty token":          vocab + `, "merges": [["", "a"]]`,
		"a merge too many commas": vocab + `, "merges": ["a b",]`,
		"no comma":                vocab + `, "merges": ["a b" "ab c"]`,
		"half a rune":             `"vocab": {"\ud83c": 0}, "merges": []`,
		"invalid UTF-8":           "\"vocab\": {\"\xff\": 0}, \"merges\": []",
		"invalid, then an escape": "\"vocab\": {\"\xff\\n\": 0}, \"merges\": []",
		"a line break in a token": "\"vocab\": {\"\n\": 0}, \"merges\": []",
		"the merges first":        merges + "," + vocab,
		"no vocabulary":           merges,
		"cut short":               vocab + `, "merges": ["a b", "ab`,
	} {
		if _, ok := skim([]byte(skimModel(members))); ok {
			t.Errorf("%s: skim accepts it", name)
		}
	}
	for name, members := range map[string]string{
		"two vocabularies": vocab + "," + vocab + "," + merges,
		"two lists":        vocab + "," + merges + "," + merges,
	} {
		if sameAsGeneral(t, []byte(skimModel(members))) {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestSkimHalves reads lists long enough to be read in two halves, in each of the spellings.
func TestSkimHalves(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: it runs without the race detector")
	}
	data, err := fs.ReadFile(models.Sim(), fileTokenizer)
	if err != nil {
		t.Fatal(err)
	}
	var file map[string]any
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	model := file["model"].(map[string]any)
	var strung, listed []any
	for _, m := range model["merges"].([]any) {
		pair, ok := m.([]any)
		if !ok {
			a, b, _ := strings.Cut(m.(string), " ")
			pair = []any{a, b}
		}
		listed, strung = append(listed, pair), append(strung, fmt.Sprint(pair[0], " ", pair[1]))
	}
	for name, merges := range map[string][]any{"strings": strung, "lists": listed} {
		for _, indent := range []string{"", "  "} {
			// The reader wants the vocabulary first; a map's keys would be sorted alike.
			vocab, list := mustJSON(t, model["vocab"], indent), mustJSON(t, merges, indent)
			whole := []byte(skimModel(`"vocab": ` + vocab + `, "merges": ` + list))
			if !sameAsGeneral(t, whole) {
				t.Errorf("%s, indent %q: skim gives up", name, indent)
			}
			for _, cut := range []int{len(whole) / 2, len(whole) * 3 / 4, len(whole) - 8} {
				if bytes.ContainsAny(whole[cut:cut+1], " \n") {
					cut++ // white space may be missing
				}
				broken := slices.Concat(whole[:cut], []byte{0}, whole[cut+1:])
				if _, ok := skim(broken); ok {
					t.Errorf("%s, indent %q: skim accepts a zero at %d", name, indent, cut)
				}
			}
		}
	}
}

func mustJSON(t *testing.T, v any, indent string) string {
	t.Helper()
	out, err := json.Marshal(v)
	if indent != "" {
		out, err = json.MarshalIndent(v, "", indent)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func FuzzSkim(f *testing.F) {
	f.Add([]byte(skimModel(`"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]`)))
	f.Add([]byte(skimModel("\"vocab\": {\"\\u00e9\": 0,\n\"b\": 1, \"\\u00e9b\": 2},\n \"merges\": [\n[\"\\u00e9\",\n \"b\"]\n]")))
	f.Fuzz(func(t *testing.T, data []byte) { sameAsGeneral(t, data) })
}

// TestDecideOnce has many encoders meet the tokens of a new vocabulary at the same time:
// each decides for itself, and all alike.
func TestDecideOnce(t *testing.T) {
	m, err := Load(models.Sim())
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for id := range uint32(m.Tokenizer.Size()) {
		if b, ok := m.Tokenizer.OrdinaryBytes(id); ok {
			text.Write(b)
			text.WriteByte(' ')
		}
	}
	s := strings.ToValidUTF8(text.String(), "")
	got := make([][]uint32, 4)
	var all sync.WaitGroup
	for i := range got {
		all.Go(func() {
			var err error
			if got[i], err = m.Tokenizer.NewEncoder().Encode(t.Context(), nil, s, EncodeOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	again, err := m.Tokenizer.NewEncoder().Encode(t.Context(), nil, s, EncodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		if !slices.Equal(got[i], again) {
			t.Errorf("encoder %d has other ids than one that decides nothing any more", i)
		}
	}
	undecided, table := 0, &m.Tokenizer.vocab.whole
	look := func(token pieceToken) {
		if token.note != 0 && token.note&pieceMarks == pieceUndecided {
			undecided++
		}
	}
	for _, slot := range table.slots {
		look(slot.pieceToken)
	}
	for _, slot := range table.tiny {
		look(slot.pieceToken)
	}
	if all := len(table.slots) + len(table.tiny); undecided > all/2 {
		t.Errorf("%d of %d tokens are still undecided", undecided, all)
	}
}
