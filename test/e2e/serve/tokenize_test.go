package serve

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// golden is a text with the ids that the reference gives it.
type golden struct {
	Text string   `json:"text"`
	IDs  []uint32 `json:"ids"`
}

// goldens are some of those that the tokenizer's own tests have: its longest,
// and one of every few.
func goldens(t *testing.T) []golden {
	t.Helper()
	data, err := os.ReadFile("../../../internal/model/tokenizer/testdata/weir-sim.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []golden
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	slices.SortStableFunc(all, func(a, b golden) int { return len(b.Text) - len(a.Text) })
	some := all[:3:3]
	for i := 3; i < len(all); i += len(all) / 9 {
		some = append(some, all[i])
	}
	return some
}

// The gateway's /tokenize gives the same ids as weir tokenize, and /detokenize
// the text again; bad input is refused by the field's name.
func TestTokenizeEndpoints(t *testing.T) {
	harness.Beside(t, harness.Light)
	g := harness.StartGateway(t, "up")
	for _, golden := range goldens(t) {
		body, err := json.Marshal(map[string]any{"model": "weir-sim", "prompt": golden.Text, "add_special_tokens": false})
		if err != nil {
			t.Fatal(err)
		}
		a := harness.Post(t, g.URL+"/tokenize", string(body))
		var got struct {
			Tokens      []uint32
			Count       int
			MaxModelLen int `json:"max_model_len"`
		}
		if err := json.Unmarshal(a.Body, &got); err != nil || a.Status != 200 || !slices.Equal(got.Tokens, golden.IDs) || got.Count != len(golden.IDs) || got.MaxModelLen != 131072 {
			t.Fatalf("%.80q: status %d, %.300s (%v)", golden.Text, a.Status, a.Body, err)
		}
		if body, err = json.Marshal(map[string]any{"model": "weir-sim", "tokens": golden.IDs, "skip_special_tokens": false}); err != nil {
			t.Fatal(err)
		}
		a = harness.Post(t, g.URL+"/detokenize", string(body))
		var back struct{ Prompt, Text string }
		if err := json.Unmarshal(a.Body, &back); err != nil || back.Prompt != golden.Text || back.Text != golden.Text {
			t.Fatalf("%.80q came back as %.300s (%v)", golden.Text, a.Body, err)
		}
	}
	for _, c := range []struct {
		path, body string
		status     int
		param      string
	}{
		{"/tokenize", `{"model":"gpt-9","prompt":"a"}`, 404, "model"},
		{"/tokenize", `{"model":"weir-sim"}`, 400, "prompt"},
		{"/tokenize", `{"model":"weir-sim","prompt":["a",1]}`, 400, "prompt[1]"},
		{"/tokenize", `{"model":"weir-sim","prompt":"a","max_tokens":5}`, 400, "max_tokens"},
		{"/detokenize", `{"model":"weir-sim","tokens":[40000]}`, 400, "tokens[0]"},
	} {
		a := harness.Post(t, g.URL+c.path, c.body)
		var e harness.APIError
		if err := json.Unmarshal(a.Body, &e); err != nil || a.Status != c.status || e.Error.Param == nil || *e.Error.Param != c.param {
			t.Errorf("%s %s: status %d, %s; want %d about %s", c.path, c.body, a.Status, a.Body, c.status, c.param)
		}
	}
	if metrics := string(harness.Get(t, g.Admin+"/metrics").Body); !strings.Contains(metrics, "weir_prefix_tokens_total") || !strings.Contains(metrics, `endpoint="/tokenize"`) {
		t.Error("the metrics do not tell of it")
	}
	g.Balanced()
}
