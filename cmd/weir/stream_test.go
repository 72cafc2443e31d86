package main

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
	"sync"
	"testing"
	"time"

	"weir/internal/content"
	"weir/internal/load"
	"weir/internal/tokenizer"
	"weir/models"
)

// simModel is the simulated engine's model. Loading it takes a second of a busy
// machine under the race detector, so that tests share one.
var simModel = sync.OnceValues(func() (*tokenizer.Model, error) { return tokenizer.Load(models.Sim()) })

var simWords = sync.OnceValues(func() (*content.Words, error) {
	m, err := simModel()
	if err != nil {
		return nil, err
	}
	return content.New(m.VocabSize, m.Tokenizer.OrdinaryBytes)
})

// words is the simulated engine's word list.
func words(t *testing.T) *content.Words {
	t.Helper()
	w, err := simWords()
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// run carries out a plan with every stream verified.
func run(t *testing.T, plan load.Plan) *load.Report {
	t.Helper()
	plan.Model = models.SimName
	plan.Verify = words(t)
	plan.Timeout = 5 * time.Minute
	report, err := load.Run(t.Context(), plan)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func wantClean(t *testing.T, r *load.Report, requests, tokens int) {
	t.Helper()
	if r.Complete != requests || r.Lost != 0 || r.ErroredShare != 0 || int(r.Tokens) != requests*tokens {
		t.Errorf("%d of %d complete, %d lost, %.1f %% errored, %d tokens of %d; %v %v",
			r.Complete, requests, r.Lost, 100*r.ErroredShare, r.Tokens, requests*tokens, r.Errors, r.Examples)
	}
}

var fast = []string{"--cost", "constant", "--prefill-cost", "2ms", "--decode-cost", "10ms", "--max-running-requests", "1024"}

// 512 streams at once, on both paths, every token verified; afterwards the
// gateway's, the client's and the engines' own counts agree.
func Test512Streams(t *testing.T) {
	t.Parallel()
	const streams, requests, tokens = 512, 1024, 32
	ask := func(t *testing.T, g *gateway) {
		t.Helper()
		wantClean(t, run(t, load.Plan{URL: g.url, Concurrency: streams, Requests: requests, OutputTokens: tokens, Body: map[string]any{"ignore_eos": true}}), requests, tokens)
	}

	t.Run("plane", func(t *testing.T) {
		beside(t, heavy)
		g := startGateway(t, append([]string{"up"}, fast...)...)
		ask(t, g)
		ended := g.balanced()
		if ended["finished"] != requests {
			t.Errorf("ended %v", ended)
		}
		received := 0
		for _, engine := range g.engines() {
			s := engineState(t, engine)
			if s.Running != 0 || s.Waiting != 0 || s.Finished != s.Received {
				t.Errorf("engine state %+v", s)
			}
			received += s.Received
		}
		if received != requests {
			t.Errorf("the engines received %d requests, want %d", received, requests)
		}
		if out := metric(t, g.admin, "weir_output_tokens_total"); out != requests*tokens {
			t.Errorf("weir_output_tokens_total %v, want %d", out, requests*tokens)
		}
		g.interrupt()
		if n := len(g.records()); n != requests {
			t.Errorf("%d timeline records, want %d", n, requests)
		}
	})
	for name, args := range map[string][]string{"relay": nil, "sglang": nil, "sglang incremental": {"--incremental-streaming-output"}} {
		t.Run(name, func(t *testing.T) {
			beside(t, heavy)
			path, _, _ := strings.Cut(name, " ")
			a, b := startSim(t, slices.Concat(fast, args)...), startSim(t, slices.Concat(fast, args)...)
			g := startGateway(t, "serve", "--engine", a.spec(path), "--engine", b.spec(path))
			// A gateway is ready with its first engine; requests before the second would all be that one's.
			eventually(t, "both ready", func() bool { return metric(t, g.admin, "weir_engine_ready") == 2 })
			ask(t, g)
			if ended := g.balanced(); ended["finished"] != requests {
				t.Errorf("ended %v", ended)
			}
			sa, sb := engineState(t, a.admin), engineState(t, b.admin)
			if sa.Finished+sb.Finished != requests || sa.Running+sb.Running != 0 || sa.Finished != sb.Finished {
				t.Errorf("engine states %+v %+v, want %d finished, half each", sa, sb, requests)
			}
			g.interrupt()
		})
	}
}

// engines gives the admin URLs of up's simulated engines.
func (g *gateway) engines() []string {
	var urls []string
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range g.lines {
		if _, rest, ok := strings.Cut(l, "state "); ok && strings.HasPrefix(l, "engine") {
			urls = append(urls, strings.TrimSuffix(rest, "/admin/state"))
		}
	}
	return urls
}

// Without streaming, and through completions with a prompt of ids.
func TestWholeAnswers(t *testing.T) {
	beside(t, light)
	g := startGateway(t, append([]string{"up"}, fast...)...)
	for _, api := range []load.API{load.Chat, load.Completions} {
		wantClean(t, run(t, load.Plan{URL: g.url, API: api, Concurrency: 4, Requests: 16, OutputTokens: 20, NoStream: true,
			Body: map[string]any{"ignore_eos": true}}), 16, 20)
	}
	text := post(t, g.url+"/v1/completions", `{"model":"weir-sim","prompt":"the same","max_tokens":8,"seed":5,"stop":[" zzz"]}`)
	again := post(t, g.url+"/v1/completions", `{"model":"weir-sim","prompt":["the same"],"max_tokens":8,"seed":5}`)
	cut := func(b []byte) string {
		_, rest, _ := strings.Cut(string(b), `"choices"`)
		return rest
	}
	if text.status != 200 || cut(text.body) != cut(again.body) {
		t.Errorf("one seed, two answers:\n%s\n%s", text.body, again.body)
	}
	g.interrupt()
}

// A client that hangs up frees its engine, whatever it was waiting for.
func TestHangUpFreesTheEngine(t *testing.T) {
	t.Parallel()
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			beside(t, light)
			s := startSim(t, "--cost", "constant", "--decode-cost", "50ms", "--max-running-requests", "2")
			g := startGateway(t, "serve", "--engine", s.spec(path))
			// Two stream, two wait in the engine's queue.
			var conns []net.Conn
			for range 4 {
				conn, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				body := `{"model":"weir-sim","stream":true,"ignore_eos":true,"max_tokens":5000,"messages":[{"role":"user","content":"go on"}]}`
				postRaw(t, conn, body)
				conns = append(conns, conn)
			}
			eventually(t, "2 running and 2 waiting", func() bool {
				st := engineState(t, s.admin)
				return st.Running == 2 && st.Waiting == 2
			})
			for _, c := range conns {
				c.Close()
			}
			eventually(t, "free", func() bool {
				st := engineState(t, s.admin)
				return st.Running == 0 && st.Waiting == 0
			})
			if ended := g.balanced(); ended["cancelled"] != 4 {
				t.Errorf("ended %v, want 4 cancelled", ended)
			}
			g.interrupt()
		})
	}
}

// A client that does not read is given up after the write deadline; nobody else
// is disturbed.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			beside(t, heavy)
			s := startSim(t, "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "500us")
			g := startGateway(t, "serve", "--engine", s.spec(path), "--write-timeout", "1s")
			conn := dialNarrow(t, g)
			body := `{"model":"weir-sim","stream":true,"ignore_eos":true,"max_tokens":100000,"messages":[{"role":"user","content":"go on"}]}`
			postRaw(t, conn, body, "X-Request-Id", strings.Repeat("x", 128)) // a long id makes large events
			eventually(t, "streaming", func() bool { return engineState(t, s.admin).Running == 1 })
			wantClean(t, run(t, load.Plan{URL: g.url, Concurrency: 8, Requests: 64, OutputTokens: 50, Body: map[string]any{"ignore_eos": true}}), 64, 50)
			eventually(t, "free", func() bool { return engineState(t, s.admin).Running == 0 })
			g.balanced()
			if n := metric(t, g.admin, "weir_requests_total", `code="slow_client"`); n != 1 {
				t.Errorf("%v requests ended for their slow client, want 1", n)
			}
			g.interrupt()
		})
	}
}

// Ctrl-C lets what is in flight end, refuses what comes after, and exits 0.
func TestDrain(t *testing.T) {
	beside(t, light)
	g := startGateway(t, "up", "--cost", "constant", "--decode-cost", "20ms")
	resp, err := http.Post(g.url+"/v1/chat/completions", "application/json", strings.NewReader(
		`{"model":"weir-sim","stream":true,"ignore_eos":true,"max_tokens":50,"messages":[{"role":"user","content":"x"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	if _, err := r.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	g.interrupt()
	rest, err := io.ReadAll(r)
	if err != nil || !bytes.HasSuffix(rest, []byte("data: [DONE]\n\n")) {
		t.Errorf("the stream in flight ended with %v and %.100q", err, rest[max(0, len(rest)-100):])
	}
	if records := g.records(); len(records) != 1 || records[0].Outcome != "finished" || records[0].CompletionTokens != 50 {
		t.Errorf("records %+v", records)
	}
}

// The stages explain the whole of a request's time, and a delay put into one
// shows in that one and in no other.
func TestTimeline(t *testing.T) {
	t.Run("residual", func(t *testing.T) {
		g := startGateway(t, append([]string{"up"}, fast...)...)
		run(t, load.Plan{URL: g.url, Concurrency: 32, Requests: 400, OutputTokens: 16})
		g.interrupt()
		var residuals []int64
		for _, r := range g.records() {
			residuals = append(residuals, max(r.Residual, -r.Residual))
		}
		slices.Sort(residuals)
		if p99 := time.Duration(residuals[len(residuals)*99/100]); len(residuals) != 400 || p99 > time.Millisecond {
			t.Errorf("residual p99 of %d records is %v, want at most 1 ms", len(residuals), p99)
		}
	})

	const delay = 50 * time.Millisecond
	stages := []string{"read", "decode", "gate", "render", "pool_wait", "tokenize", "queue", "route",
		"dispatch", "receive", "merge", "detokenize", "parse", "encode", "flush", "finish"}
	measure := func(args ...string) map[string]int64 {
		g := startGateway(t, append([]string{"up", "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "1ms"}, args...)...)
		for range 5 {
			if a := post(t, g.url+"/v1/chat/completions",
				`{"model":"weir-sim","stream":true,"max_tokens":3,"messages":[{"role":"user","content":"where is the time?"}]}`); a.status != 200 {
				t.Fatalf("status %d: %s", a.status, a.body)
			}
		}
		g.interrupt()
		median := map[string]int64{}
		all := map[string][]int64{}
		for _, r := range g.records() {
			for _, s := range append(stages, "engine") {
				all[s] = append(all[s], r.Stages[s])
			}
		}
		for s, v := range all {
			slices.Sort(v)
			median[s] = v[len(v)/2]
		}
		return median
	}
	for _, delayed := range append(stages, "engine") {
		t.Run(delayed, func(t *testing.T) {
			args := []string{"--debug-stage-delay", delayed + "=" + delay.String()}
			if delayed == "engine" {
				args = []string{"--prefill-cost", (delay + time.Millisecond).String()}
			}
			// A machine with other work may delay the median of five once, not thrice.
			var wrong []string
			for range 3 {
				wrong = nil
				for stage, ns := range measure(args...) {
					got := time.Duration(ns)
					switch {
					case stage == delayed && (got < delay || got > delay+25*time.Millisecond):
						wrong = append(wrong, fmt.Sprintf("stage %s took %v, want the %v that were put in", stage, got, delay))
					case stage != delayed && got > 25*time.Millisecond:
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
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			s := startSim(t, "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "5ms")
			g := startGateway(t, "serve", "--engine", s.spec(path), "--flush-interval", "1s")
			r := run(t, load.Plan{URL: g.url, Concurrency: 4, Requests: 16, OutputTokens: 100, Body: map[string]any{"ignore_eos": true}})
			wantClean(t, r, 16, 100)
			// 100 tokens take 500 ms: a first write, what then has gathered, as a relay reads
			// it into a buffer that grows, and the end.
			limit := 16 * (8 + float64(r.E2E.Max)/1000)
			if writes := metric(t, g.admin, "weir_output_writes_total"); writes > limit {
				t.Errorf("%v writes for %d tokens, at most %v are due", writes, r.Tokens, limit)
			}
			if r.TTFT.P50 > 900 {
				t.Errorf("the first token took %v ms", r.TTFT.P50)
			}
			g.interrupt()
		})
	}
}

// What the output must match reaches the engine on every path that can carry it,
// and is refused by name where it cannot be.
func TestGuides(t *testing.T) {
	beside(t, light)
	s := startSim(t, fast...)
	const ask = `{"model":"weir-sim","max_tokens":300,"messages":[{"role":"user","content":"x"}],`
	const schema = `{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":3}},"required":["name","age"],"additionalProperties":false}`
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			g := startGateway(t, "serve", "--engine", s.spec(path))
			for _, field := range []string{`"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":` + schema + `}}`, `"structured_outputs":{"json":` + schema + `}`} {
				if path == "relay" && strings.HasPrefix(field, `"structured`) {
					continue // the plain OpenAI face has no such field
				}
				a := post(t, g.url+"/v1/chat/completions", ask+field+`}`)
				var body struct {
					Choices []struct {
						Message      struct{ Content string }
						FinishReason string `json:"finish_reason"`
					}
				}
				if err := json.Unmarshal(a.body, &body); err != nil || a.status != 200 || len(body.Choices) != 1 {
					t.Fatalf("%s: %d %s: %v", field, a.status, a.body, err)
				}
				var doc map[string]any
				if err := json.Unmarshal([]byte(body.Choices[0].Message.Content), &doc); err != nil {
					t.Fatalf("%s: %v", a.body, err)
				}
				name, isText := doc["name"].(string)
				age, isNumber := doc["age"].(float64)
				if len(doc) != 2 || !isText || name == "" || !isNumber || age < 3 || age != float64(int(age)) || body.Choices[0].FinishReason != "stop" {
					t.Errorf("%s: %s", field, a.body)
				}
			}
			if path == "relay" {
				g.interrupt()
				return
			}
			a := post(t, g.url+"/v1/chat/completions", ask+`"guided_regex":"a+"}`)
			if a.status != 400 || !strings.Contains(string(a.body), "regex") {
				t.Errorf("%d %s", a.status, a.body)
			}
			a = post(t, g.url+"/v1/chat/completions", ask+`"guided_regex":"a+","guided_choice":["x"]}`)
			if a.status != 400 {
				t.Errorf("%d %s", a.status, a.body)
			}
			g.balanced()
			g.interrupt()
		})
	}
}

// With return_token_ids an answer holds the ids that the engine gave, the end id
// included, and the prompt's, on each path on which weir sees them.
func TestReturnTokenIDs(t *testing.T) {
	beside(t, light)
	s := startSim(t, fast...)
	for _, path := range paths {
		if path == "relay" {
			continue // the engine's own affair
		}
		t.Run(path, func(t *testing.T) {
			g := startGateway(t, "serve", "--engine", s.spec(path))
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
					a := post(t, g.url+url, body+`,"return_token_ids":true`+streamed+`}`)
					if a.status != 200 || a.err != nil {
						t.Fatalf("%d %s: %v", a.status, a.body, a.err)
					}
					var text string
					var tokens, prompt []uint32
					said := 0
					for _, event := range strings.Split(strings.TrimSpace(string(a.body)), "\n\n") {
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
						t.Errorf("%d ids, usage %d: %s", len(tokens), said, a.body)
					}
					list, err := json.Marshal(tokens)
					if err != nil {
						t.Fatal(err)
					}
					back := post(t, g.url+"/detokenize", `{"model":"weir-sim","tokens":`+string(list)+`}`)
					var decoded struct{ Prompt string }
					if err := json.Unmarshal(back.body, &decoded); err != nil || decoded.Prompt != text {
						t.Errorf("the ids are %q, the text is %q: %v", decoded.Prompt, text, err)
					}
					texts = append(texts, text)
				}
				if texts[0] != texts[1] {
					t.Errorf("streamed %q, whole %q", texts[0], texts[1])
				}
			}
			g.interrupt()
		})
	}
}
