package relay

import (
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// A relayed model, which has no folder here, and the built-in one have further names; the
// engine is asked by its own.
func TestAliases(t *testing.T) {
	harness.Beside(t, harness.Light)
	s := harness.StartSim(t)
	relayed := harness.StartGateway(t, "serve", "--engine", s.Spec("relay"), "--model", "weir-sim,alias=gpt-4o,alias=chat")
	defer relayed.Interrupt()
	other := harness.StartGateway(t, "serve", "--engine", s.Spec("relay")+",model=mine/chat", "--model", "mine/chat=,alias=gpt-4o,max-tokens=50")
	defer other.Interrupt()
	plane := harness.StartGateway(t, "serve", "--engine", s.Spec("plane"), "--model", "weir-sim,alias=gpt-4o,alias=chat")
	defer plane.Interrupt()
	relayed.WantModels("chat gpt-4o weir-sim")
	other.WantModels("gpt-4o mine/chat")
	plane.WantModels("chat gpt-4o weir-sim")
	for _, g := range []*harness.Gateway{relayed, other, plane} {
		if a := harness.Post(t, g.URL+"/v1/chat/completions", strings.Replace(harness.AskStream, "weir-sim", "gpt-4o", 1)); a.Status != 200 {
			t.Errorf("%d %s", a.Status, a.Body)
		} else {
			harness.WantComplete(t, a)
		}
	}
	// The settings of the model apply to its aliases.
	if a := harness.Post(t, other.URL+"/v1/chat/completions", `{"model":"gpt-4o","max_tokens":51,"messages":[{"role":"user","content":"x"}]}`); a.Status != 400 || !strings.Contains(string(a.Body), "50") {
		t.Errorf("%d %s", a.Status, a.Body)
	}
}
