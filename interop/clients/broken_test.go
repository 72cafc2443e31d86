//go:build interop

package clients

import (
	"os/exec"
	"testing"

	"weir/test/e2e/harness"
)

// An engine breaks each stream after some tokens, and no other one is there. Each of the official
// clients raises what weir says of that, by each API, with its helper and without: none takes the
// answer for a whole one.
func TestBrokenStreams(t *testing.T) {
	sim := harness.StartSim(t, append(harness.FastSim[:len(harness.FastSim):len(harness.FastSim)], "--fault", "cut,after=9")...)
	ids := harness.StartGateway(t, "serve", "--engine", sim.Spec("sglang"))
	for way, g := range map[string]*harness.Gateway{
		"by ids":        ids,
		"by vLLM's ids": harness.StartGateway(t, "serve", "--engine", sim.Spec("vllm")),
		"over a relay":  harness.StartGateway(t, "serve", "--engine", "openai="+ids.URL), // it has all APIs
	} {
		t.Run(way, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			for client, script := range map[string][]string{"python": {harness.Python(t), "broken.py"}, "node": {node(t), "broken.mjs"}} {
				t.Run(client, func(t *testing.T) {
					harness.Checks(t, 7, exec.Command(script[0], append(script[1:], "--base-url", g.URL)...))
				})
			}
			t.Run("fetch, slowly", func(t *testing.T) {
				harness.Checks(t, 4, exec.Command(node(t), "slow_fetch.mjs", "--base-url", g.URL))
			})
		})
	}
}
