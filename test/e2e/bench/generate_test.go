package bench

import (
	"encoding/json"
	"testing"

	"weir/internal/load"
	"weir/test/e2e/harness"
)

// The load generator loads the gateway's /generate as it does an engine's, and verifies every
// word of every stream.
func TestGenerateBench(t *testing.T) {
	harness.Beside(t, harness.Heavy)
	s := harness.StartSim(t, harness.FastSim...)
	for _, flags := range [][]string{nil, {"--incremental-streaming-output"}} {
		g := harness.StartGateway(t, append([]string{"serve", "--engine", s.Spec("plane")}, flags...)...)
		harness.WantClean(t, harness.RunPlan(t, load.Plan{URL: g.URL, API: load.Generate, Concurrency: 64, Requests: 128, OutputTokens: 16, Body: map[string]any{"ignore_eos": true}}), 128, 16)
		var info struct {
			Incremental bool `json:"incremental_streaming_output"`
		}
		if err := json.Unmarshal(harness.Get(t, g.URL+"/server_info").Body, &info); err != nil || info.Incremental != (flags != nil) {
			t.Errorf("%v %+v", err, info)
		}
	}
}
