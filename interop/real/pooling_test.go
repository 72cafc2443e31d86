//go:build interop_engines

package real

import (
	"encoding/json"
	"io"
	"math"
	"slices"
	"testing"

	"weir/test/e2e/harness"

	"github.com/google/go-cmp/cmp"
)

// Embeddings, scores and ranks of vLLM's server come through a relay unchanged: the same values as
// without the relay, the bytes that the server wrote, its own errors.
func TestVLLMPooling(t *testing.T) {
	port := freePort(t)
	direct := "127.0.0.1:" + port
	server := vllm(t, nil, "--port", port, "--runner", "pooling", "--convert", "embed")
	wire := record(t, direct)
	g := serve(t, "--engine", "openai=http://"+wire.address)
	g.ready(true, server)
	ways := []way{{"vLLM itself", "http://" + direct, "tiny"}, {"relay", g.URL, "tiny"}}
	ctx := harness.Context(t)
	texts := []string{"low dams", "高い堤防", "Grüße 😀"}
	for _, test := range []struct {
		path   string
		body   fields
		status int
	}{
		{"/v1/embeddings", fields{"input": texts[0]}, 200},
		{"/v1/embeddings", fields{"input": texts, "encoding_format": "float"}, 200},
		{"/v1/embeddings", fields{"input": texts, "encoding_format": "base64"}, 200},
		{"/v1/embeddings", fields{"input": [][]int{{1, 2, 3}, {4}}}, 200},
		{"/v1/embeddings", fields{"input": 7}, 400},
		{"/v1/score", fields{"text_1": texts[0], "text_2": texts}, 200},
		{"/v1/rerank", fields{"query": texts[0], "documents": texts, "top_n": 2}, 200},
		{"/v1/rerank", fields{"query": texts[0]}, 400},
	} {
		var want map[string]any
		for i, w := range ways {
			resp, err := w.post(ctx, test.path, test.body)
			if err != nil {
				t.Fatal(err)
			}
			raw, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != test.status {
				t.Errorf("%s %v: %s: status %d, %v: %.300s", test.path, test.body, w.name, resp.StatusCode, err, raw)
				continue
			}
			var got map[string]any
			if err := json.Unmarshal(raw, &got); err != nil {
				t.Fatalf("%v: %s", err, raw)
			}
			delete(got, "id")
			delete(got, "created")
			if i == 0 {
				want = got
				continue
			}
			near := cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-4 })
			if diff := cmp.Diff(want, got, near); diff != "" && test.body["encoding_format"] != "base64" {
				t.Errorf("%s %v: %s", test.path, test.body, diff)
			}
			if !slices.Contains(wire.bodies(), string(raw)) {
				t.Errorf("%s %v: the server wrote no such answer: %.300q", test.path, test.body, raw)
			}
		}
	}
}
