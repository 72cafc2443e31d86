package serve

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/internal/load"
	"weir/test/e2e/harness"
)

// 512 streams at once, on both paths, every token verified; afterwards the
// gateway's, the client's and the engines' own counts agree.
func Test512Streams(t *testing.T) {
	t.Parallel()
	const streams, requests, tokens = 512, 1024, 32
	ask := func(t *testing.T, g *harness.Gateway) {
		t.Helper()
		harness.WantClean(t, harness.RunPlan(t, load.Plan{URL: g.URL, Concurrency: streams, Requests: requests, OutputTokens: tokens, Body: map[string]any{"ignore_eos": true}}), requests, tokens)
	}

	t.Run("plane", func(t *testing.T) {
		harness.Beside(t, harness.Heavy)
		g := harness.StartGateway(t, append([]string{"up", "--submit-timeout", harness.Unhurried}, harness.FastSim...)...)
		ask(t, g)
		ended := g.Balanced()
		if ended["finished"] != requests {
			t.Errorf("ended %v", ended)
		}
		received := 0
		for _, engine := range g.Engines() {
			s := harness.EngineState(t, engine)
			if s.Running != 0 || s.Waiting != 0 || s.Finished != s.Received {
				t.Errorf("engine state %+v", s)
			}
			received += s.Received
		}
		if received != requests {
			t.Errorf("the engines received %d requests, want %d", received, requests)
		}
		if out := harness.Metric(t, g.Admin, "weir_output_tokens_total"); out != requests*tokens {
			t.Errorf("weir_output_tokens_total %v, want %d", out, requests*tokens)
		}
		g.Interrupt()
		if n := len(g.Records()); n != requests {
			t.Errorf("%d timeline records, want %d", n, requests)
		}
	})
	for name, args := range map[string][]string{"relay": nil, "sglang": nil, "sglang incremental": {"--incremental-streaming-output"}, "vllm": nil, "vllm scale-out": {"--enable-scale-out"}} {
		t.Run(name, func(t *testing.T) {
			harness.Beside(t, harness.Heavy)
			path, _, _ := strings.Cut(name, " ")
			a, b := harness.StartSim(t, slices.Concat(harness.FastSim, args)...), harness.StartSim(t, slices.Concat(harness.FastSim, args)...)
			g := harness.StartGateway(t, "serve", "--policy", "round-robin", "--engine", a.Spec(path), "--engine", b.Spec(path))
			// A gateway is ready with its first engine; requests before the second would all be that one's.
			harness.Eventually(t, "both ready", func() bool { return harness.Metric(t, g.Admin, "weir_engine_ready") == 2 })
			ask(t, g)
			if ended := g.Balanced(); ended["finished"] != requests {
				t.Errorf("ended %v", ended)
			}
			sa, sb := harness.EngineState(t, a.Admin), harness.EngineState(t, b.Admin)
			// Not half each: an engine that the machine has no time for may be avoided.
			if sa.Finished+sb.Finished != requests || sa.Running+sb.Running != 0 || sa.Finished == 0 || sb.Finished == 0 {
				t.Errorf("engine states %+v %+v, want %d finished, and some of each", sa, sb, requests)
			}
			g.Interrupt()
		})
	}
}

// Without streaming, and through completions with a prompt of ids.
func TestWholeAnswers(t *testing.T) {
	harness.Beside(t, harness.Light)
	g := harness.StartGateway(t, append([]string{"up"}, harness.FastSim...)...)
	for _, api := range []load.API{load.Chat, load.Completions} {
		harness.WantClean(t, harness.RunPlan(t, load.Plan{URL: g.URL, API: api, Concurrency: 4, Requests: 16, OutputTokens: 20, NoStream: true,
			Body: map[string]any{"ignore_eos": true}}), 16, 20)
	}
	text := harness.Post(t, g.URL+"/v1/completions", `{"model":"weir-sim","prompt":"the same","max_tokens":8,"seed":5,"stop":[" zzz"]}`)
	again := harness.Post(t, g.URL+"/v1/completions", `{"model":"weir-sim","prompt":["the same"],"max_tokens":8,"seed":5}`)
	cut := func(b []byte) string {
		_, rest, _ := strings.Cut(string(b), `"choices"`)
		return rest
	}
	if text.Status != 200 || cut(text.Body) != cut(again.Body) {
		t.Errorf("one seed, two answers:\n%s\n%s", text.Body, again.Body)
	}
	g.Interrupt()
}

// A client that hangs up frees its engine, whatever it was waiting for.
func TestHangUpFreesTheEngine(t *testing.T) {
	t.Parallel()
	for _, path := range harness.Paths {
		t.Run(path, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			s := harness.StartSim(t, "--cost", "constant", "--decode-cost", "50ms", "--max-running-requests", "2")
			g := harness.StartGateway(t, "serve", "--queue", "off", "--engine", s.Spec(path))
			// Two stream, two wait in the engine's queue.
			var conns []net.Conn
			for range 4 {
				conn, err := net.Dial("tcp", strings.TrimPrefix(g.URL, "http://"))
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				body := `{"model":"weir-sim","stream":true,"ignore_eos":true,"max_tokens":5000,"messages":[{"role":"user","content":"go on"}]}`
				harness.PostRaw(t, conn, body)
				conns = append(conns, conn)
			}
			harness.Eventually(t, "2 running and 2 waiting", func() bool {
				st := harness.EngineState(t, s.Admin)
				return st.Running == 2 && st.Waiting == 2
			})
			for _, c := range conns {
				c.Close()
			}
			harness.Eventually(t, "free", func() bool {
				st := harness.EngineState(t, s.Admin)
				return st.Running == 0 && st.Waiting == 0
			})
			if ended := g.Balanced(); ended["cancelled"] != 4 {
				t.Errorf("ended %v, want 4 cancelled", ended)
			}
			g.Interrupt()
		})
	}
}

// A client that does not read is given up after the write deadline; nobody else
// is disturbed.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	for _, path := range harness.Paths {
		t.Run(path, func(t *testing.T) {
			harness.Beside(t, harness.Heavy)
			s := harness.StartSim(t, "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "500us")
			g := harness.StartGateway(t, "serve", "--engine", s.Spec(path), "--write-timeout", "1s")
			conn := harness.DialNarrow(t, g)
			body := `{"model":"weir-sim","stream":true,"ignore_eos":true,"max_tokens":100000,"messages":[{"role":"user","content":"go on"}]}`
			harness.PostRaw(t, conn, body, "X-Request-Id", strings.Repeat("x", 128)) // a long id makes large events
			harness.Eventually(t, "streaming", func() bool { return harness.EngineState(t, s.Admin).Running == 1 })
			harness.WantClean(t, harness.RunPlan(t, load.Plan{URL: g.URL, Concurrency: 8, Requests: 64, OutputTokens: 50, Body: map[string]any{"ignore_eos": true}}), 64, 50)
			harness.Eventually(t, "free", func() bool { return harness.EngineState(t, s.Admin).Running == 0 })
			g.Balanced()
			if n := harness.Metric(t, g.Admin, "weir_requests_total", `code="slow_client"`); n != 1 {
				t.Errorf("%v requests ended for their slow client, want 1", n)
			}
			g.Interrupt()
		})
	}
}

// Ctrl-C lets what is in flight end, refuses what comes after, and exits 0.
func TestDrain(t *testing.T) {
	harness.Beside(t, harness.Light)
	g := harness.StartGateway(t, "up", "--cost", "constant", "--decode-cost", "20ms")
	resp, err := http.Post(g.URL+"/v1/chat/completions", "application/json", strings.NewReader(
		`{"model":"weir-sim","stream":true,"ignore_eos":true,"max_tokens":50,"messages":[{"role":"user","content":"x"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	if _, err := r.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	g.Interrupt()
	rest, err := io.ReadAll(r)
	if err != nil || !bytes.HasSuffix(rest, []byte("data: [DONE]\n\n")) {
		t.Errorf("the stream in flight ended with %v and %.100q", err, rest[max(0, len(rest)-100):])
	}
	if records := g.Records(); len(records) != 1 || records[0].Outcome != "finished" || records[0].CompletionTokens != 50 {
		t.Errorf("records %+v", records)
	}
}

// The stages explain the whole of a request's time, and a delay put into one
// shows in that one and in no other.
func TestTimeline(t *testing.T) {
	t.Parallel()
	// A busy machine adds to any stage of any request, but takes nothing away: what the
	// gateway itself needs is the least of several requests, of so many as it takes.
	const tries = 20
	t.Run("residual", func(t *testing.T) {
		harness.Beside(t, harness.Light)
		var p99 time.Duration
		for range tries {
			g := harness.StartGateway(t, append([]string{"up"}, harness.FastSim...)...)
			harness.RunPlan(t, load.Plan{URL: g.URL, Concurrency: 32, Requests: 400, OutputTokens: 16})
			g.Interrupt()
			var residuals []int64
			for _, r := range g.Records() {
				residuals = append(residuals, max(r.Residual, -r.Residual))
			}
			if len(residuals) != 400 {
				t.Fatalf("%d records, want 400", len(residuals))
			}
			slices.Sort(residuals)
			if p99 = time.Duration(residuals[len(residuals)*99/100]); p99 <= time.Millisecond {
				return
			}
		}
		t.Errorf("residual p99 is %v, want at most 1 ms", p99)
	})

	const delay = 50 * time.Millisecond
	stages := []string{"read", "parse", "gate", "render", "pool_wait", "tokenize", "queue", "route",
		"dispatch", "receive", "merge", "detokenize", "extract", "encode", "flush", "finish"}
	// least lowers each stage's time to the least of five requests more, and gives the
	// longest time that one of them was the engine's.
	least := func(t *testing.T, least map[string]time.Duration, delayed string, args ...string) (engine time.Duration) {
		t.Helper()
		g := harness.StartGateway(t, append([]string{"up", "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "1ms"}, args...)...)
		for range 5 {
			if a := harness.Post(t, g.URL+"/v1/chat/completions",
				`{"model":"weir-sim","stream":true,"max_tokens":3,"messages":[{"role":"user","content":"where is the time?"}]}`); a.Status != 200 {
				t.Fatalf("status %d: %s", a.Status, a.Body)
			}
		}
		g.Interrupt()
		for _, r := range g.Records() {
			if delayed == "receive" && time.Duration(r.Stages["dispatch"]) >= delay {
				continue // the output was there before a busy gateway heard that the engine has the request
			}
			engine = max(engine, time.Duration(r.Stages["engine"]))
			for _, s := range append(stages, "engine") {
				ns := time.Duration(r.Stages[s])
				if before, known := least[s]; !known || ns < before {
					least[s] = ns
				}
			}
		}
		return engine
	}
	for _, delayed := range append(stages, "engine") {
		t.Run(delayed, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			args := []string{"--debug-stage-delay", delayed + "=" + delay.String()}
			if delayed == "engine" {
				// As much as it takes a busy gateway to hear that the engine has the request is
				// dispatch: of the engine's time it does take away.
				args = []string{"--prefill-cost", (delay + delay/2).String()}
			}
			var wrong []string
			took := map[string]time.Duration{}
			for range tries {
				engine := least(t, took, delayed, args...)
				wrong = nil
				if len(took) == 0 {
					wrong = append(wrong, "no request told the stages apart")
				}
				if delayed == "engine" && engine < delay {
					wrong = append(wrong, fmt.Sprintf("the engine took %v at most, want %v", engine, delay))
				}
				for stage, got := range took {
					switch {
					case stage == delayed && stage != "engine" && got < delay:
						t.Fatalf("stage %s took %v, want the %v that were put in", stage, got, delay)
					case stage == delayed && got >= 2*delay:
						wrong = append(wrong, fmt.Sprintf("stage %s took %v, want the %v that were put in", stage, got, delay))
					case stage != delayed && got >= delay:
						wrong = append(wrong, fmt.Sprintf("stage %s took %v although the delay was in %s", stage, got, delayed))
					}
				}
				if wrong == nil {
					return
				}
			}
			t.Error(strings.Join(wrong, "; "))
		})
	}
}

// With a flush interval writes merge, nothing is lost, and the first token is
// not held.
func TestFlushInterval(t *testing.T) {
	t.Parallel()
	for _, path := range harness.Few(t, harness.Paths) {
		t.Run(path, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			s := harness.StartSim(t, "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "5ms")
			g := harness.StartGateway(t, "serve", "--engine", s.Spec(path), "--flush-interval", "3s")
			r := harness.RunPlan(t, load.Plan{URL: g.URL, Concurrency: 8, Requests: 16, OutputTokens: 100, Body: map[string]any{"ignore_eos": true}})
			harness.WantClean(t, r, 16, 100)
			// 100 tokens take 500 ms: a first write, what then has gathered, as a relay reads
			// it into a buffer that grows, and the end.
			limit := 16 * (8 + float64(r.E2E.Max)/3000)
			if writes := harness.Metric(t, g.Admin, "weir_output_writes_total"); writes > limit {
				t.Errorf("%v writes for %d tokens, at most %v are due", writes, r.Tokens, limit)
			}
			if r.TTFT.P50 > 2500 {
				t.Errorf("the first token took %v ms", r.TTFT.P50)
			}
			g.Interrupt()
		})
	}
}

// A constraint on the output reaches the engine on every path that can carry it, and is
// refused by name on the others.
func TestGuides(t *testing.T) {
	harness.Beside(t, harness.Light)
	s := harness.StartSim(t, harness.FastSim...)
	const ask = `{"model":"weir-sim","max_tokens":300,"messages":[{"role":"user","content":"x"}],`
	const schema = `{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":3}},"required":["name","age"],"additionalProperties":false}`
	for _, path := range harness.Paths {
		t.Run(path, func(t *testing.T) {
			g := harness.StartGateway(t, "serve", "--engine", s.Spec(path))
			for _, field := range []string{`"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":` + schema + `}}`, `"structured_outputs":{"json":` + schema + `}`} {
				if path == "relay" && strings.HasPrefix(field, `"structured`) {
					continue // the plain OpenAI face has no such field
				}
				a := harness.Post(t, g.URL+"/v1/chat/completions", ask+field+`}`)
				var body struct {
					Choices []struct {
						Message      struct{ Content string }
						FinishReason string `json:"finish_reason"`
					}
				}
				if err := json.Unmarshal(a.Body, &body); err != nil || a.Status != 200 || len(body.Choices) != 1 {
					t.Fatalf("%s: %d %s: %v", field, a.Status, a.Body, err)
				}
				var doc map[string]any
				if err := json.Unmarshal([]byte(body.Choices[0].Message.Content), &doc); err != nil {
					t.Fatalf("%s: %v", a.Body, err)
				}
				name, isText := doc["name"].(string)
				age, isNumber := doc["age"].(float64)
				if len(doc) != 2 || !isText || name == "" || !isNumber || age < 3 || age != float64(int(age)) || body.Choices[0].FinishReason != "stop" {
					t.Errorf("%s: %s", field, a.Body)
				}
			}
			if path == "relay" {
				g.Interrupt()
				return
			}
			a := harness.Post(t, g.URL+"/v1/chat/completions", ask+`"guided_regex":"a+"}`)
			if a.Status != 400 || !strings.Contains(string(a.Body), "regex") {
				t.Errorf("%d %s", a.Status, a.Body)
			}
			a = harness.Post(t, g.URL+"/v1/chat/completions", ask+`"guided_regex":"a+","guided_choice":["x"]}`)
			if a.Status != 400 {
				t.Errorf("%d %s", a.Status, a.Body)
			}
			g.Balanced()
			g.Interrupt()
		})
	}
}

// With return_token_ids an answer holds the ids that the engine gave, the end id
// included, and the prompt's, on each path on which weir sees them.
func TestReturnTokenIDs(t *testing.T) {
	harness.Beside(t, harness.Light)
	s := harness.StartSim(t, harness.FastSim...)
	for _, path := range harness.Paths {
		if path == "relay" {
			continue // the engine's own affair
		}
		t.Run(path, func(t *testing.T) {
			g := harness.StartGateway(t, "serve", "--engine", s.Spec(path))
			type answer struct {
				Choices []struct {
					Text    string
					Delta   struct{ Content string }
					Message struct{ Content string }
					Tokens  []uint32 `json:"token_ids"`
					Prompt  []uint32 `json:"prompt_token_ids"`
				}
				Prompt []uint32 `json:"prompt_token_ids"`
				Usage  *struct {
					Prompt     int `json:"prompt_tokens"`
					Completion int `json:"completion_tokens"`
				}
			}
			for _, ask := range []string{
				`/v1/completions {"model":"weir-sim","prompt":"Once upon a time","max_tokens":12,"ignore_eos":true`,
				`/v1/chat/completions {"model":"weir-sim","messages":[{"role":"user","content":"Once upon"}],"max_tokens":12,"ignore_eos":true`,
			} {
				url, body, _ := strings.Cut(ask, " ")
				var texts []string
				for _, streamed := range []string{`,"stream":true,"stream_options":{"include_usage":true}`, ``} {
					a := harness.Post(t, g.URL+url, body+`,"return_token_ids":true`+streamed+`}`)
					if a.Status != 200 || a.Err != nil {
						t.Fatalf("%d %s: %v", a.Status, a.Body, a.Err)
					}
					var text string
					var tokens, prompt []uint32
					said := 0
					for _, event := range strings.Split(strings.TrimSpace(string(a.Body)), "\n\n") {
						event = strings.TrimPrefix(event, "data: ")
						if event == "[DONE]" {
							continue
						}
						var c answer
						if err := json.Unmarshal([]byte(event), &c); err != nil {
							t.Fatalf("%s: %v", event, err)
						}
						for _, choice := range c.Choices {
							text += choice.Text + choice.Delta.Content + choice.Message.Content
							tokens, prompt = append(tokens, choice.Tokens...), append(prompt, choice.Prompt...)
						}
						if prompt = append(prompt, c.Prompt...); c.Usage != nil {
							said = c.Usage.Completion
							if c.Usage.Prompt != len(prompt) {
								t.Errorf("%d ids of a prompt of %d", len(prompt), c.Usage.Prompt)
							}
						}
					}
					if len(tokens) != 12 || said != 12 {
						t.Errorf("%d ids, usage %d: %s", len(tokens), said, a.Body)
					}
					list, err := json.Marshal(tokens)
					if err != nil {
						t.Fatal(err)
					}
					back := harness.Post(t, g.URL+"/detokenize", `{"model":"weir-sim","tokens":`+string(list)+`}`)
					var decoded struct{ Prompt string }
					if err := json.Unmarshal(back.Body, &decoded); err != nil || decoded.Prompt != text {
						t.Errorf("the ids are %q, the text is %q: %v", decoded.Prompt, text, err)
					}
					texts = append(texts, text)
				}
				if texts[0] != texts[1] {
					t.Errorf("streamed %q, whole %q", texts[0], texts[1])
				}
			}
			g.Interrupt()
		})
	}
}
