package tokenizer

import (
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"
	"weir/models"
)

// golden reads what the reference answered; see interop/tokenizer/golden.py.
func golden[T any](t *testing.T, name string) []T {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var out []T
	if err := json.Unmarshal(data, &out, json.RejectUnknownMembers(true)); err != nil {
		t.Fatal(err)
	}
	if len(out) == 0 {
		t.Fatalf("%s is empty", name)
	}
	return out
}

var sim = sync.OnceValues(func() (*Model, error) { return Load(models.Sim()) })

// loadSim returns the one model of these tests, which none may change.
func loadSim(t testing.TB) *Model {
	t.Helper()
	m, err := sim()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestGoldenIDs(t *testing.T) {
	enc := loadSim(t).Tokenizer.NewEncoder()
	type entry struct {
		Text string   `json:"text"`
		IDs  []uint32 `json:"ids"`
	}
	for _, g := range golden[entry](t, "weir-sim.json") {
		for _, round := range []string{"cold", "warm"} {
			got, err := enc.Encode(t.Context(), nil, g.Text, EncodeOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, g.IDs) {
				t.Errorf("%s, %q: got %v, want %v", round, g.Text, got, g.IDs)
			}
		}
	}
}

func TestGoldenPieces(t *testing.T) {
	type entry struct {
		Grammar string   `json:"grammar"`
		Text    string   `json:"text"`
		Pieces  []string `json:"pieces"`
	}
	scanners, seen := map[string]scanner{}, map[string]bool{}
	for _, g := range Grammars() {
		scanners[g.Name] = g.scan
	}
	for _, g := range golden[entry](t, "pieces.json") {
		seen[g.Grammar] = true
		scan := scanners[g.Grammar]
		if scan == nil {
			t.Fatalf("no grammar %q", g.Grammar)
		}
		if got := pieces(scan, g.Text); !slices.Equal(got, g.Pieces) {
			t.Errorf("%s, %q:\n got %q\nwant %q", g.Grammar, g.Text, got, g.Pieces)
		}
	}
	for name := range scanners {
		if !seen[name] {
			t.Errorf("grammar %s has no golden", name)
		}
	}
}

// rewritten returns what a normalizer makes of a text.
func rewritten(t interface{ Fatal(...any) }, r rewriter, s string) string {
	out, changed, err := r.rewrite(&scratch{}, nil, s, neverPause{})
	if err != nil {
		t.Fatal(err)
	}
	if !changed {
		return s
	}
	return string(out)
}

// pieces returns the pieces a scanner cuts.
func pieces(scan scanner, s string) []string {
	var out []string
	for i := 0; i < len(s); {
		end := scan.next(s, i, nil)
		out = append(out, s[i:end])
		i = end
	}
	return out
}

func TestGoldenNFC(t *testing.T) {
	type entry struct {
		Text string `json:"text"`
		NFC  string `json:"nfc"`
	}
	for _, g := range golden[entry](t, "nfc.json") {
		for _, text := range []string{g.Text, g.NFC} {
			if got := rewritten(t, normalForm{compose: true}, text); got != g.NFC {
				t.Errorf("%+q: got %+q, want %+q", text, got, g.NFC)
			}
		}
	}
}

func TestGoldenDecode(t *testing.T) {
	type entry struct {
		IDs  []uint32 `json:"ids"`
		Text string   `json:"text"`
	}
	tok := loadSim(t).Tokenizer
	for _, g := range golden[entry](t, "decode.json") {
		if got := tok.Decode(g.IDs, false); got != g.Text {
			t.Errorf("%v: got %q, want %q", g.IDs, got, g.Text)
		}
	}
}
