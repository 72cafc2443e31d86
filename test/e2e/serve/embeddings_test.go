package serve

import (
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// Engines that take ids have no embeddings, and say who has.
func TestNoEmbeddingsOfIDs(t *testing.T) {
	harness.Beside(t, harness.Light)
	g := harness.StartGateway(t, append([]string{"up"}, harness.FastSim...)...)
	for _, path := range []string{"/v1/embeddings", "/v1/rerank", "/v1/score"} {
		if a := harness.Post(t, g.URL+path, `{"model":"weir-sim","input":"x"}`); a.Status != 404 || !strings.Contains(string(a.Body), "--engine openai=") {
			t.Errorf("%s: %d %s", path, a.Status, a.Body)
		}
	}
	g.Interrupt()
}
