package serve

import (
	"strings"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// A stream that goes on has no limit: only silence does.
func TestLongStream(t *testing.T) {
	harness.Beside(t, harness.Light)
	s := harness.StartSim(t, "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "50ms")
	for _, path := range harness.Paths {
		g := harness.StartGateway(t, "serve", "--engine", s.Spec(path), "--first-timeout", "2s", "--idle-timeout", "2s")
		begun := time.Now()
		body := strings.Replace(harness.AskStream, `"max_tokens":40`, `"max_tokens":90`, 1)
		if a := harness.Post(t, g.URL+"/v1/chat/completions", body); a.Status != 200 || !strings.HasSuffix(string(a.Body), "data: [DONE]\n\n") {
			t.Errorf("%s: %d, %.200s", path, a.Status, a.Body)
		}
		if took := time.Since(begun); took < 4*time.Second {
			t.Errorf("%s: over after %v: the test shows nothing", path, took)
		}
		g.Interrupt()
	}
}
