package relay

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"weir/internal/load"
	"weir/test/e2e/harness"
)

// The gateway relays both engines' APIs: every stream whole, every token
// verified, counts equal on both sides.
func TestRelayOfEngineWires(t *testing.T) {
	t.Parallel()
	const requests, tokens = 256, 32
	for _, wire := range []string{"vllm", "sglang"} {
		t.Run(wire, func(t *testing.T) {
			harness.Beside(t, harness.Heavy)
			url, admin := harness.StartWire(t, wire, harness.FastSim...)
			g := harness.StartGateway(t, "serve", "--engine", "openai="+url)
			r := harness.RunPlan(t, load.Plan{URL: g.URL, Concurrency: 64, Requests: requests, OutputTokens: tokens, Body: map[string]any{"ignore_eos": true}})
			harness.WantClean(t, r, requests, tokens)
			if ended := g.Balanced(); ended["finished"] != requests {
				t.Errorf("ended %v", ended)
			}
			if s := harness.EngineState(t, admin); s.Finished != requests || s.Running != 0 {
				t.Errorf("engine %+v", s)
			}
			// Several choices, log probabilities, ids and usage pass too.
			body := `{"model":"weir-sim","prompt":"Once upon","max_tokens":8,"n":2,"logprobs":2,"return_token_ids":true,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`
			a := harness.Post(t, g.URL+"/v1/completions", body)
			if a.Status != 200 || a.Err != nil || !bytes.HasSuffix(a.Body, []byte("data: [DONE]\n\n")) || !bytes.Contains(a.Body, []byte(`"token_logprobs":[-`)) || !bytes.Contains(a.Body, []byte(`"token_ids":[`)) {
				t.Errorf("%d %v %.600s", a.Status, a.Err, a.Body)
			}
			g.Interrupt()
		})
	}
}

// A gateway's client sees the faults that an engine has in its streams: a cut is an error event and
// a broken connection, an engine's own error event passes, and another engine answers if nothing
// had come yet.
func TestRelayOfEngineFaults(t *testing.T) {
	t.Parallel()
	for _, wire := range []string{"vllm", "sglang"} {
		for _, c := range []struct {
			fault string
			retry bool
		}{{"unavailable", true}, {"cut,after=0", true}, {"cut,after=10", false}, {"reset,after=10", false}, {"garble,after=5", false}, {"stray,after=5", false}} {
			t.Run(wire+" "+c.fault, func(t *testing.T) {
				harness.Beside(t, harness.Light)
				bad, _ := harness.StartWire(t, wire, append([]string{"--fault", c.fault}, harness.FastSim...)...)
				good, _ := harness.StartWire(t, wire, harness.FastSim...)
				g := harness.StartGateway(t, "serve", "--policy", "round-robin", "--engine", "openai="+bad, "--engine", "openai="+good)
				harness.Eventually(t, "both ready", func() bool { return harness.Metric(t, g.Admin, "weir_engine_ready") == 2 })
				broken := 0
				for range 4 {
					a := harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream)
					done, failed := bytes.HasSuffix(a.Body, []byte("data: [DONE]\n\n")), bytes.Contains(a.Body, []byte(`data: {"error":`))
					if a.Status != 200 || done == failed || done != (a.Err == nil) {
						t.Errorf("status %d, done %t, error event %t, read error %v: %.200s", a.Status, done, failed, a.Err, a.Body)
					}
					if failed {
						broken++
					}
				}
				if (broken == 0) != c.retry {
					t.Errorf("%d of 4 streams broke", broken)
				}
				g.Balanced()
				g.Interrupt()
			})
		}
	}
}

// A full queue of SGLang's is a 200 whose stream has nothing but an error. The
// gateway hands it on, and a refusal before the stream too.
func TestRelayOfAFullQueue(t *testing.T) {
	harness.Beside(t, harness.Light)
	url, admin := harness.StartWire(t, "sglang", "--max-running-requests", "1", "--max-queued-requests", "1", "--cost", "constant", "--decode-cost", "50ms")
	g := harness.StartGateway(t, "serve", "--engine", "openai="+url)
	ctx, leave := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	for i := range 2 {
		waiting.Go(func() {
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+"/v1/chat/completions", strings.NewReader(strings.Replace(harness.AskStream, "40", "4000", 1)))
			req.Header.Set("Content-Type", "application/json")
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
		harness.Eventually(t, "taken", func() bool { s := harness.EngineState(t, admin); return s.Running == 1 && s.Waiting == i })
	}
	if a := harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream); a.Status != 200 || !bytes.Contains(a.Body, []byte("The request queue is full.")) {
		t.Errorf("streamed: %d %s", a.Status, a.Body)
	}
	if a := harness.Post(t, g.URL+"/v1/chat/completions", strings.Replace(harness.AskStream, `"stream":true,`, "", 1)); a.Status != 503 {
		t.Errorf("whole: %d %s", a.Status, a.Body)
	}
	leave()
	waiting.Wait()
	harness.Eventually(t, "free", func() bool { s := harness.EngineState(t, admin); return s.Running+s.Waiting == 0 })
	g.Interrupt()
}
