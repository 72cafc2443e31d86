package engines

import (
	"strings"
	"testing"

	"weir/internal/load"
	"weir/test/e2e/harness"
)

// A stock vLLM is served by its ids, over the endpoint that it has. A restart with the flag
// is found without one of weir, and the words of weir engines say what the flag gives.
func TestVLLMEndpoints(t *testing.T) {
	harness.Beside(t, harness.Light)
	addr := harness.FreeAddress(t)
	g := harness.StartUnready(t, "serve", "--engine", "vllm=http://"+addr+",name=e")
	for _, test := range []struct {
		args []string
		path string
		note bool
	}{{nil, "/v1/completions", true}, {[]string{"--enable-scale-out", "--enable-prompt-tokens-details"}, "/inference/v1/generate", false}} {
		p := harness.Start(t, append(append([]string{"engine", "--wire", "vllm=" + addr, "--admin-listen", "127.0.0.1:0"}, harness.FastSim...), test.args...)...)
		admin := p.Line("admin")
		harness.Eventually(t, "the endpoint "+test.path, func() bool {
			out, _, _ := harness.Finish(t, "", "engines", "--admin", g.Admin, "--json")
			return strings.Contains(out, "vLLM 0.32.0 by "+test.path) && strings.Contains(out, "--enable-scale-out") == test.note
		})
		harness.WantClean(t, harness.RunPlan(t, load.Plan{URL: g.URL, Concurrency: 8, Requests: 32, OutputTokens: 20, Body: map[string]any{"ignore_eos": true}}), 32, 20)
		if s := harness.EngineState(t, admin); s.Finished != s.Received || s.Running != 0 || s.Finished < 32 {
			t.Errorf("%s: %+v", test.path, s)
		}
		// A stop id and a stop string are weir's to tell, and n is this many generations.
		a := harness.Post(t, g.URL+"/v1/completions", `{"model":"weir-sim","prompt":"the same","max_tokens":6,"ignore_eos":true,"n":2,"temperature":0,"return_token_ids":true}`)
		if a.Status != 200 || strings.Count(string(a.Body), `"token_ids":[`) < 2 || !strings.Contains(string(a.Body), `"completion_tokens":12`) {
			t.Errorf("%s: %d %s", test.path, a.Status, a.Body)
		}
		// A prompt whose echo is many reads long.
		long := `{"model":"weir-sim","stream":true,"max_tokens":5,"ignore_eos":true,"prompt":[` + strings.Repeat("100,", 39_999) + `100]}`
		if a := harness.Post(t, g.URL+"/v1/completions", long); a.Status != 200 || !strings.HasSuffix(string(a.Body), "data: [DONE]\n\n") {
			t.Errorf("%s: a long prompt: %d %.300s", test.path, a.Status, a.Body)
		}
		// vLLM's own refusals come in its words.
		if a := harness.Post(t, g.URL+"/v1/chat/completions", strings.Replace(harness.AskStream, `"max_tokens":40`, `"max_tokens":40,"logprobs":true,"top_logprobs":21`, 1)); a.Status != 400 {
			t.Errorf("%s: %d %s", test.path, a.Status, a.Body)
		}
		p.Kill()
		harness.Eventually(t, "its end", func() bool { return harness.Metric(t, g.Admin, "weir_engine_ready") == 0 })
	}
	g.Interrupt()
}
