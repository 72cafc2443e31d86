package engines

import (
	"encoding/json"
	"net/http"
	"testing"

	"weir/internal/load"
	"weir/test/e2e/harness"
)

// engineNow is an engine as /engines has it.
type engineNow struct {
	Name, Kind, Instance string
	Ready                bool
	Events               struct {
		Knowledge     string
		Blocks        int
		Bad, Rebuilds int
		Odd           map[string]int
	} `json:"kv_events"`
}

func enginesOf(t *testing.T, g *harness.Gateway) (now []engineNow) {
	t.Helper()
	if err := json.Unmarshal(harness.Get(t, g.Admin+"/engines").Body, &now); err != nil {
		t.Fatal(err)
	}
	return now
}

// A server that restarts at once, so that no connection to it is refused, is another one on each
// wire. Placeholders among its KV events cost nothing of what is known of its cache.
func TestRestartAndPlaceholders(t *testing.T) {
	harness.Beside(t, harness.Light)
	e := harness.StartSim(t, append([]string{"--enable-metrics", "--max-total-tokens", "8192", "--kv-events-config", `{"endpoint":"tcp://127.0.0.1:0","replay_endpoint":"tcp://127.0.0.1:0"}`}, harness.FastSim...)...)
	specs := map[string]string{
		"plane": e.Spec("plane"), "sglang": e.Spec("sglang"), "vllm": e.Spec("vllm"), "relayed-sglang": "openai=" + e.SGLang, "relayed-vllm": "openai=" + e.VLLM, "found": e.VLLM,
	}
	args := []string{"serve", "--policy", "round-robin"}
	for name, spec := range specs {
		args = append(args, "--engine", spec+",name="+name)
	}
	g := harness.StartGateway(t, args...)
	ask := func() {
		t.Helper()
		const n = 24
		if r := harness.RunPlan(t, load.Plan{URL: g.URL, Concurrency: 4, Requests: n, OutputTokens: 40, Body: map[string]any{"ignore_eos": true}}); r.Complete != n {
			t.Errorf("%d of %d complete: %v %v", r.Complete, n, r.Errors, r.Examples)
		}
	}
	ready := func() bool {
		all := enginesOf(t, g)
		for _, now := range all {
			if !now.Ready || now.Instance == "" {
				return false
			}
		}
		return len(all) == len(specs)
	}
	harness.Eventually(t, "all engines say who they are", ready)
	e.SetFaults("offload")
	ask()
	harness.Eventually(t, "placeholders are passed over", func() bool {
		for _, now := range enginesOf(t, g) {
			if of := now.Events; now.Kind != "openai" && (of.Knowledge != "known" || of.Blocks == 0 || of.Odd["placeholder"] == 0 || of.Bad+of.Rebuilds > 0) {
				return false
			}
		}
		return true
	})
	if n := harness.Metric(t, g.Admin, "weir_engine_kv_odd_events", `engine="vllm"`, `kind="placeholder"`); n == 0 {
		t.Error("the metric has no placeholders")
	}
	was := map[string]string{}
	for _, now := range enginesOf(t, g) {
		was[now.Name] = now.Instance
	}
	e.SetFaults("restart")
	ask()
	harness.Eventually(t, "all engines are others", func() bool {
		for _, now := range enginesOf(t, g) {
			if !now.Ready || now.Instance == was[now.Name] {
				return false
			}
		}
		return true
	})
	if a := harness.Get(t, g.Admin+"/readyz"); a.Status != http.StatusOK {
		t.Errorf("%d %s", a.Status, a.Body)
	}
}
