package bench

import (
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// weir bench sends images to weir up, and every answer counts.
func TestMediaBench(t *testing.T) {
	harness.Beside(t, harness.Light)
	g := harness.StartGateway(t, append([]string{"up"}, harness.FastSim...)...)
	file := t.TempDir() + "/a.png"
	harness.WriteFile(t, file, string(harness.Picture(t, 300, 200, 3, "png")))
	out, stderr, code := harness.Finish(t, "", "bench", g.URL, "--image", file, "--requests", "40", "--concurrency", "8", "--input-tokens", "50", "--output-tokens", "20", "--field", "ignore_eos=true")
	if code != 0 || !strings.Contains(out, "images      1 a request") {
		t.Errorf("exit %d: %s %s", code, out, stderr)
	}
	g.Interrupt()
	for _, r := range g.Records() {
		if r.PromptTokens < 11*8+50 || r.PromptTokens > 11*8+120 {
			t.Fatalf("a prompt of %d tokens", r.PromptTokens)
		}
	}
}
