package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"strings"
	"testing"

	"weir/internal/load"
	"weir/internal/workload"
	"weir/test/e2e/harness"
)

// pair is two simulated engines behind a gateway.
type pair struct {
	*harness.Gateway
	engines [2]*harness.Sim
}

// startPair starts them, the second engine with args of its own.
func startPair(t *testing.T, path string, args, second []string, serve ...string) pair {
	a, b := harness.StartSim(t, args...), harness.StartSim(t, second...)
	g := harness.StartGateway(t, append([]string{"serve", "--engine", a.Spec(path) + ",name=a", "--engine", b.Spec(path) + ",name=b"}, serve...)...)
	harness.Eventually(t, "both ready", func() bool { return harness.Metric(t, g.Admin, "weir_engine_ready") == 2 })
	return pair{g, [2]*harness.Sim{a, b}}
}

// finished is how many requests each engine has finished.
func (p *pair) finished(t *testing.T) (a, b int) {
	return harness.EngineState(t, p.engines[0].Admin).Finished, harness.EngineState(t, p.engines[1].Admin).Finished
}

// wantEven wants nothing in the books at rest.
func (p *pair) wantEven(t *testing.T) {
	t.Helper()
	harness.Eventually(t, "books are even at rest", func() bool {
		return harness.Metric(t, p.Admin, "weir_engine_booked_requests") == 0 && harness.Metric(t, p.Admin, "weir_engine_booked_prefill_tokens") == 0 &&
			harness.Metric(t, p.Admin, "weir_engine_booked_wait_seconds") == 0
	})
}

var kvSim = []string{"--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "1ms", "--max-total-tokens", "200000"}

// converse has sessions of several turns go by one after the other, an odd number of
// them so that turns do not keep a session in its place, and gives the share of the
// prompts' tokens that engines say they had.
func converse(t *testing.T, g pair) float64 {
	t.Helper()
	const sessions, turns = 5, 3
	said := make([]string, sessions)
	for range turns {
		for i := range sessions {
			if said[i] == "" {
				said[i] = strings.Repeat(fmt.Sprintf("In session %d this is said. ", i), 300)
			}
			body, err := json.Marshal(map[string]any{"model": "weir-sim", "prompt": said[i], "max_tokens": 4})
			if err != nil {
				t.Fatal(err)
			}
			a := harness.Post(t, g.URL+"/v1/completions", string(body))
			if a.Status != http.StatusOK {
				t.Fatalf("status %d: %s", a.Status, a.Body)
			}
			said[i] += " And then more was said."
		}
	}
	g.wantEven(t)
	told := harness.Metric(t, g.Admin, "weir_engine_reporting_prompt_tokens_total")
	if told < sessions*turns*1000 {
		t.Errorf("engines told of %v prompt tokens", told)
	}
	return harness.Metric(t, g.Admin, "weir_engine_reported_cached_tokens_total") / told
}

// Sessions go where their prompts are. By turns they go elsewhere.
func TestSessionsGoWhereTheirPromptsAre(t *testing.T) {
	for _, path := range []string{"plane", "sglang"} {
		t.Run(path, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			var byCost, turns pair
			// A busy machine makes an engine slow for a while, so that it costs more or is avoided.
			harness.OnceOf(t, 4, func() string {
				byCost = startPair(t, path, kvSim, kvSim)
				cached := converse(t, byCost)
				turns = startPair(t, path, kvSim, kvSim, "--policy", "round-robin")
				if other := converse(t, turns); cached < 0.5 || other > 0.4 {
					return fmt.Sprintf("%.2f of the prompts were cached by cost, %.2f by turns; 2 of 3 turns may find the one before, and 1 of 3 does by turns", cached, other)
				}
				predicted := harness.Metric(t, byCost.Admin, "weir_engine_predicted_cached_tokens_total") / harness.Metric(t, byCost.Admin, "weir_engine_prompt_tokens_total")
				if predicted < cached-0.1 || predicted > cached+0.1 {
					return fmt.Sprintf("%.2f was predicted to be cached, and %.2f was", predicted, cached)
				}
				return ""
			})
			byCost.Interrupt()
			choices(t, byCost.Timeline, "", true)
			turns.Interrupt()
			choices(t, turns.Timeline, "turn", true)
		})
	}
}

// choices checks what a timeline says of how engines were chosen.
func choices(t *testing.T, file, why string, cached bool) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		var r struct {
			Attempts []struct {
				Choice *struct {
					Why     string `json:"why"`
					Engines int    `json:"engines"`
					Prompt  int    `json:"prompt_tokens"`
					TTFT    int64  `json:"predicted_ttft"`
					Wait    *int64 `json:"predicted_wait"`
					Cached  *int   `json:"cached_tokens"`
					Best    []struct {
						Engine string `json:"engine"`
					} `json:"best"`
				} `json:"choice"`
			} `json:"attempts"`
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		for _, a := range r.Attempts {
			if c := a.Choice; c == nil || c.Engines != 2 || c.Why == "" || why != "" && c.Why != why || c.Prompt == 0 || c.TTFT <= 0 || c.Wait == nil || len(c.Best) == 0 || (c.Cached != nil) != cached {
				t.Errorf("choice of %s", line)
			}
		}
	}
}

// An engine that is slower gets less, without anybody saying so.
func TestSlowerEngineGetsLess(t *testing.T) {
	for _, path := range []string{"plane", "relay"} {
		t.Run(path, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			sim := func(step string) []string {
				return []string{"--cost", "constant", "--prefill-cost", step, "--decode-cost", step}
			}
			harness.OnceOf(t, 4, func() (wrong string) {
				p := startPair(t, path, sim("10ms"), sim("40ms"))
				harness.WantClean(t, harness.RunPlan(t, load.Plan{URL: p.URL, API: load.Chat, Concurrency: 8, Requests: 160, OutputTokens: 12, Body: map[string]any{"ignore_eos": true}}), 160, 12)
				if fast, slow := p.finished(t); slow >= fast {
					wrong = fmt.Sprintf("the fast engine had %d requests, the one four times as slow %d", fast, slow)
				}
				p.wantEven(t)
				p.Interrupt()
				return wrong
			})
		})
	}
}

// Turns are exact where they are asked for, for all models and for one.
func TestTurns(t *testing.T) {
	for name, args := range map[string][]string{"all": {"--policy", "round-robin"}, "one": {"--model", "weir-sim,policy=round-robin"}} {
		t.Run(name, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			p := startPair(t, "plane", kvSim, kvSim, args...)
			for range 10 {
				if a := harness.Post(t, p.URL+"/v1/completions", `{"model":"weir-sim","prompt":"the same","max_tokens":2}`); a.Status != http.StatusOK {
					t.Fatalf("status %d: %s", a.Status, a.Body)
				}
			}
			if a, b := p.finished(t); a != 5 || b != 5 {
				t.Errorf("the engines had %d and %d of 10 requests", a, b)
			}
			p.Interrupt()
		})
	}
}

// Books are even after hang-ups, before the first token and in the middle, of streams
// and of answers that come whole, whether those for which the engines have no room wait there
// or in the gateway.
func TestBooksAfterHangUps(t *testing.T) {
	for _, path := range harness.Few(t, harness.Paths) {
		for _, queue := range []string{"on", "off"} {
			t.Run(path+"/queue "+queue, func(t *testing.T) {
				harness.Beside(t, harness.Light)
				slow := []string{"--cost", "constant", "--decode-cost", "50ms", "--max-running-requests", "2"}
				p := startPair(t, path, slow, slow, "--queue", queue)
				ctx, hangUp := context.WithCancel(t.Context())
				gone := make(chan struct{}, 12)
				for i := range 12 {
					body := strings.Replace(harness.AskStream, `"max_tokens":40`, `"max_tokens":4000`, 1) // none ends by itself
					if i%3 == 0 {
						body = strings.Replace(body, `"stream":true`, `"stream":false`, 1)
					}
					req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.URL+"/v1/chat/completions", strings.NewReader(body))
					if err != nil {
						t.Fatal(err)
					}
					req.Header.Set("Content-Type", "application/json")
					go func() {
						harness.Read(do(req))
						gone <- struct{}{}
					}()
				}
				harness.Eventually(t, "all are booked or wait, and some run", func() bool {
					booked := harness.Metric(t, p.Admin, "weir_engine_booked_requests")
					if queue == "on" {
						booked += harness.Metric(t, p.Admin, "weir_queue_requests")
					}
					return booked == 12 && harness.EngineState(t, p.engines[0].Admin).Running+harness.EngineState(t, p.engines[1].Admin).Running == 4
				})
				hangUp()
				for range 12 {
					<-gone
				}
				p.wantEven(t)
				harness.Eventually(t, "nobody waits", func() bool { return harness.Metric(t, p.Admin, "weir_queue_requests") == 0 })
				p.Interrupt()
			})
		}
	}
}

// do sends a request whose answer nobody may wait for.
func do(req *http.Request) *http.Response {
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return &http.Response{Body: http.NoBody}
	}
	return resp
}

// The predictions of weir fleet for a workload hold live: the same sessions, with as much of
// their prompts in the engines' caches. The test does not judge times.
func TestLiveAsOffline(t *testing.T) {
	const settings = "concurrency=16,turns=6,think=200ms,requests=96,input=200,output=4,prefix=200,groups=4"
	sim := []string{"--max-total-tokens", "200000"}
	// Offline all users begin at one instant, and live one after the other, so that more
	// of the first prompts find each other's beginnings.
	const within = 0.15
	for _, policy := range []string{"cost", "round-robin"} {
		t.Run(policy, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			out, said, code := harness.Finish(t, "", append([]string{"fleet", "synthetic:" + settings, "--engines", "2", "--policy", policy, "--json", "-"}, sim...)...)
			var study struct {
				Cells []struct {
					Runs []struct {
						Requests int     `json:"requests"`
						Prompt   float64 `json:"prompt_tokens"`
						Cached   float64 `json:"cache_hit_rate"`
					} `json:"runs"`
				} `json:"cells"`
			}
			if err := json.Unmarshal([]byte(out), &study); err != nil || code != 0 {
				t.Fatal(err, code, said)
			}
			offline := study.Cells[0].Runs[0]
			w, err := workload.NewSynthetic(settings, workload.Options{Seed: 1, Sessions: true})
			if err != nil {
				t.Fatal(err)
			}
			p := startPair(t, "plane", sim, sim, "--policy", policy)
			r := harness.RunPlan(t, load.Plan{URL: p.URL, Workload: w, Seed: 1, Body: map[string]any{"ignore_eos": true}})
			p.wantEven(t)
			told := harness.Metric(t, p.Admin, "weir_engine_reporting_prompt_tokens_total")
			cached := harness.Metric(t, p.Admin, "weir_engine_reported_cached_tokens_total") / told
			if r.Complete != 96 || offline.Requests != 96 || int64(told) != r.PromptTokens {
				t.Errorf("%d of 96 requests are complete, %d offline; engines told of %v prompt tokens, answers of %d", r.Complete, offline.Requests, told, r.PromptTokens)
			}
			// A template and words of two tokens come on top.
			if more := told / offline.Prompt; more < 0.99 || more > 1.15 {
				t.Errorf("the prompts have %v tokens, %v offline", told, offline.Prompt)
			}
			if math.Abs(cached-offline.Cached) > within {
				t.Errorf("%.3f of the prompts were cached, %.3f offline", cached, offline.Cached)
			}
			t.Logf("%.3f of the prompts were cached, %.3f offline; %.3f times as many tokens", cached, offline.Cached, told/offline.Prompt)
			p.Interrupt()
		})
	}
}
