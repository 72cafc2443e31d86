package tokenizer

import (
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// componentGolden is what the reference does with a small vocabulary and some
// components.
type componentGolden struct {
	Name     string                    `json:"name"`
	Model    string                    `json:"model"`
	Members  map[string]jsontext.Value `json:"members"`
	Settings map[string]jsontext.Value `json:"settings"`
	Encoded  []struct {
		Text string   `json:"text"`
		IDs  []uint32 `json:"ids"`
	} `json:"encoded"`
	Decoded []struct {
		IDs     []uint32 `json:"ids"`
		Text    string   `json:"text"`
		Skipped string   `json:"skipped"`
	} `json:"decoded"`
}

// smallDocument returns a tokenizer.json of a small vocabulary.
func smallDocument(t testing.TB, model string, members, settings map[string]jsontext.Value) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/small-" + model + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]jsontext.Value // scores stay as they are written
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	maps.Copy(m, settings)
	added := []any{addedTokenJSON(0, "<unk>", nil), addedTokenJSON(1, "<s>", nil), addedTokenJSON(2, "</s>", object{"normalized": true})}
	doc := object{"version": "1.0", "added_tokens": added, "model": m}
	for name, value := range members {
		doc[name] = value
	}
	return marshal(t, doc)
}

func loadSmall(t testing.TB, model string, members, settings map[string]jsontext.Value) *Tokenizer {
	t.Helper()
	tok, err := parse(smallDocument(t, model, members, settings))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestGoldenComponents(t *testing.T) {
	for _, g := range golden[componentGolden](t, "components.json") {
		t.Run(g.Name, func(t *testing.T) {
			tok := loadSmall(t, g.Model, g.Members, g.Settings)
			enc := tok.NewEncoder()
			for _, c := range g.Encoded {
				for _, round := range []string{"cold", "warm"} {
					got, err := enc.Encode(t.Context(), nil, c.Text, EncodeOptions{})
					if err != nil {
						t.Fatal(err)
					}
					if !slices.Equal(got, c.IDs) {
						t.Errorf("%s, %q:\n got %v %q\nwant %v", round, c.Text, got, tok.Decode(got, false), c.IDs)
					}
				}
			}
			for _, c := range g.Decoded {
				if got := tok.Decode(c.IDs, false); got != c.Text {
					t.Errorf("%v: got %q, want %q", c.IDs, got, c.Text)
				}
				if got := tok.Decode(c.IDs, true); got != c.Skipped {
					t.Errorf("%v without special tokens: got %q, want %q", c.IDs, got, c.Skipped)
				}
			}
		})
	}
}
