//go:build interop

package clients

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// A client reads nothing for three seconds of an answer of 3 MB, and its own clock says so. The
// record gives the client as much, and does not name it where the client reads as fast as it can.
// (curl --limit-rate is no such client: its kernel takes 10 MB and more that curl has not read, of
// which nothing tells weir.)
func TestSlowClient(t *testing.T) {
	sim := harness.StartSim(t, "--cost", "constant", "--prefill-cost", "20ms", "--decode-cost", "100us")
	for way, spec := range map[string]string{"by ids": sim.Spec("sglang"), "over a relay": sim.Spec("openai")} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, streamed %t", way, stream), func(t *testing.T) {
				harness.Beside(t, harness.Light)
				g := harness.StartGateway(t, "serve", "--engine", spec)
				body := filepath.Join(t.TempDir(), "body")
				harness.WriteFile(t, body, fmt.Sprintf(`{"model":"weir-sim","max_tokens":2000,"ignore_eos":true,"stream":%t,"logprobs":true,"top_logprobs":20,"messages":[{"role":"user","content":"hi"}]}`, stream))
				asks := func(pause string) (paused time.Duration, r harness.Reasoned) {
					t.Helper()
					before := harness.Metric(t, g.Admin, "weir_requests_total")
					out, err := exec.Command(harness.Python(t), "slow.py", strings.TrimPrefix(g.URL, "http://"), body, pause).CombinedOutput()
					var said struct {
						Paused float64
						Bytes  int
					}
					if err != nil || json.Unmarshal(out, &said) != nil || said.Bytes < 2e6 {
						t.Fatalf("%v: %s", err, out)
					}
					harness.Eventually(t, "ended", func() bool { return harness.Metric(t, g.Admin, "weir_requests_total") > before })
					return time.Duration(said.Paused * 1e9), g.Reasons("limit=1", 1)[0]
				}
				if _, r := asks("0"); ofClient(r.Reason.Stage) {
					t.Errorf("the client read as fast as it could, and: %s", r.Reason.Sentence)
				}
				paused, r := asks("3")
				if took := untaken(r); !ofClient(r.Reason.Stage) || took < paused-time.Second || took > paused+time.Second {
					t.Errorf("the client read nothing for %v, and the record gives it %v: %s", paused, took, r.Reason.Sentence)
				}
			})
		}
	}
}

// untaken returns how long a record says that the client did not take what weir wrote.
func untaken(r harness.Reasoned) (d time.Duration) {
	for _, s := range r.Reason.Stages {
		if ofClient(s.Stage) {
			d += time.Duration(s.MS * float64(time.Millisecond))
		}
	}
	return d
}

// ofClient reports whether a stage is its client's. The first write has a stage of its own: a pause falls
// into it where that write had more bytes than the kernel takes, as it has after weir was late itself.
func ofClient(stage string) bool { return stage == "delivery" || stage == "flush" }
