package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/internal/load"
)

// startWire runs a simulated engine that speaks one wire, and gives its URL
// and that of its state.
func startWire(t *testing.T, wire string, args ...string) (url, admin string) {
	t.Helper()
	p := start(t, append([]string{"engine", "--wire", wire + "=127.0.0.1:0", "--admin-listen", "127.0.0.1:0"}, args...)...)
	return p.line(wire), p.line("admin")
}

// An engine speaks several wires at once, each at its own address, about the
// same requests.
func TestEngineWires(t *testing.T) {
	beside(t, light)
	p := start(t, append([]string{"engine", "--wire", "sglang=127.0.0.1:0", "--wire", "vllm=127.0.0.1:0", "--wire", "openai=127.0.0.1:0", "--wire", "weir=127.0.0.1:0",
		"--served-model-name", "mine", "--incremental-streaming-output", "--enable-metrics", "--weight-version", "v7", "--context-length", "1000",
		"--max-total-tokens", "4096", "--page-size", "1", "--dp-size", "2", "--stream-interval", "2", "--enable-priority-scheduling", "--priority-scheduling-preemption-threshold", "0", "--schedule-conservativeness", "0.5", "--chunked-prefill-size", "64",
		"--lora-paths", "fine=/somewhere,other"}, fast...)...)
	sglang, vllm, openai := p.line("sglang"), p.line("vllm"), p.line("openai")
	p.line("weir")

	var texts []string
	for _, url := range []string{vllm, openai, sglang} {
		a := post(t, url+"/v1/completions", `{"model":"mine","prompt":"Once upon","max_tokens":12,"ignore_eos":true}`)
		var c struct{ Choices []struct{ Text string } }
		if err := json.Unmarshal(a.body, &c); err != nil || a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		texts = append(texts, c.Choices[0].Text)
	}
	a := post(t, sglang+"/generate", `{"text":"Once upon","sampling_params":{"max_new_tokens":12,"ignore_eos":true}}`)
	var g struct {
		Text string
		Meta struct {
			Weights string `json:"weight_version"`
			Cached  int    `json:"cached_tokens"`
		} `json:"meta_info"`
	}
	if err := json.Unmarshal(a.body, &g); err != nil || g.Meta.Weights != "v7" {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if texts = append(texts, g.Text); len(slices.Compact(texts)) != 1 {
		t.Errorf("the wires say different things: %q", texts)
	}

	// Two tokens at a time, but for the first, and each once.
	stream := post(t, sglang+"/generate", `{"text":"Once upon","stream":true,"priority":5,"lora_path":"fine","routed_dp_rank":1,"sampling_params":{"max_new_tokens":11,"ignore_eos":true}}`)
	ids := 0
	for event := range strings.SplitSeq(strings.TrimSpace(string(stream.body)), "\n\n") {
		if event == "data: [DONE]" {
			continue
		}
		var e struct {
			IDs  []int `json:"output_ids"`
			Meta struct {
				Completion int `json:"completion_tokens"`
				Rank       int `json:"dp_rank"`
			} `json:"meta_info"`
		}
		if err := json.Unmarshal([]byte(strings.TrimPrefix(event, "data: ")), &e); err != nil {
			t.Fatalf("%v: %s", err, event)
		}
		ids += len(e.IDs)
		if e.Meta.Completion != ids || e.Meta.Rank != 1 || (ids > 1 && len(e.IDs)%2 != 0) {
			t.Errorf("%d ids so far: %s", ids, event)
		}
	}
	if ids != 11 || !bytes.HasSuffix(stream.body, []byte("data: [DONE]\n\n")) {
		t.Errorf("%d ids: %s", ids, stream.body)
	}
	for url, part := range map[string]string{
		sglang + "/server_info":    `"incremental_streaming_output":true`,
		sglang + "/v1/loads":       `"max_total_num_tokens":4096`,
		sglang + "/metrics":        `sglang:num_requests_total{model_name="mine"} 5`,
		vllm + "/metrics":          `vllm:request_success_total{engine="0",finished_reason="length",model_name="mine"} 5`,
		vllm + "/v1/models":        `"id":"other"`,
		sglang + "/admin/state":    `"finished":5`,
		openai + "/v1/models/mine": `"max_model_len":1000`,
	} {
		if a := get(t, url); a.status != 200 || !strings.Contains(string(a.body), part) {
			t.Errorf("%s: %d, no %s in %s", url, a.status, part, a.body)
		}
	}
	began := time.Now()
	if a := get(t, sglang+"/health"); a.status != 200 || time.Since(began) < time.Second {
		t.Errorf("health: %d after %v", a.status, time.Since(began))
	}
	p.interrupt()
}

// The gateway relays both engines' APIs: every stream whole, every token
// verified, counts equal on both sides.
func TestRelayOfEngineWires(t *testing.T) {
	t.Parallel()
	const requests, tokens = 256, 32
	for _, wire := range []string{"vllm", "sglang"} {
		t.Run(wire, func(t *testing.T) {
			beside(t, heavy)
			url, admin := startWire(t, wire, fast...)
			g := startGateway(t, "serve", "--engine", "openai="+url)
			r := run(t, load.Plan{URL: g.url, Concurrency: 64, Requests: requests, OutputTokens: tokens, Body: map[string]any{"ignore_eos": true}})
			wantClean(t, r, requests, tokens)
			if ended := g.balanced(); ended["finished"] != requests {
				t.Errorf("ended %v", ended)
			}
			if s := engineState(t, admin); s.Finished != requests || s.Running != 0 {
				t.Errorf("engine %+v", s)
			}
			// Several choices, log probabilities, ids and usage pass too.
			body := `{"model":"weir-sim","prompt":"Once upon","max_tokens":8,"n":2,"logprobs":2,"return_token_ids":true,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`
			a := post(t, g.url+"/v1/completions", body)
			if a.status != 200 || a.err != nil || !bytes.HasSuffix(a.body, []byte("data: [DONE]\n\n")) || !bytes.Contains(a.body, []byte(`"token_logprobs":[-`)) || !bytes.Contains(a.body, []byte(`"token_ids":[`)) {
				t.Errorf("%d %v %.600s", a.status, a.err, a.body)
			}
			g.interrupt()
		})
	}
}

// What an engine does to its streams a gateway's client sees: a cut is an error
// event and a broken connection, an engine's own error event passes, and
// another engine answers where nothing had come.
func TestRelayOfEngineFaults(t *testing.T) {
	t.Parallel()
	for _, wire := range []string{"vllm", "sglang"} {
		for _, c := range []struct {
			fault string
			retry bool
		}{{"unavailable", true}, {"cut,after=0", true}, {"cut,after=10", false}, {"reset,after=10", false}, {"garble,after=5", false}, {"stray,after=5", false}} {
			t.Run(wire+" "+c.fault, func(t *testing.T) {
				beside(t, light)
				bad, _ := startWire(t, wire, append([]string{"--fault", c.fault}, fast...)...)
				good, _ := startWire(t, wire, fast...)
				g := startGateway(t, "serve", "--engine", "openai="+bad, "--engine", "openai="+good)
				eventually(t, "both ready", func() bool { return metric(t, g.admin, "weir_engine_ready") == 2 })
				broken := 0
				for range 4 {
					a := post(t, g.url+"/v1/chat/completions", askStream)
					done, failed := bytes.HasSuffix(a.body, []byte("data: [DONE]\n\n")), bytes.Contains(a.body, []byte(`data: {"error":`))
					if a.status != 200 || done == failed || done != (a.err == nil) {
						t.Errorf("status %d, done %t, error event %t, read error %v: %.200s", a.status, done, failed, a.err, a.body)
					}
					if failed {
						broken++
					}
				}
				if (broken == 0) != c.retry {
					t.Errorf("%d of 4 streams broke", broken)
				}
				g.balanced()
				g.interrupt()
			})
		}
	}
}

// A full queue of SGLang's is a 200 whose stream has nothing but an error. The
// gateway hands it on, and a refusal before the stream too.
func TestRelayOfAFullQueue(t *testing.T) {
	beside(t, light)
	url, admin := startWire(t, "sglang", "--max-running-requests", "1", "--max-queued-requests", "1", "--cost", "constant", "--decode-cost", "50ms")
	g := startGateway(t, "serve", "--engine", "openai="+url)
	ctx, leave := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	for i := range 2 {
		waiting.Go(func() {
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, g.url+"/v1/chat/completions", strings.NewReader(strings.Replace(askStream, "40", "4000", 1)))
			req.Header.Set("Content-Type", "application/json")
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
		eventually(t, "taken", func() bool { s := engineState(t, admin); return s.Running == 1 && s.Waiting == i })
	}
	if a := post(t, g.url+"/v1/chat/completions", askStream); a.status != 200 || !bytes.Contains(a.body, []byte("The request queue is full.")) {
		t.Errorf("streamed: %d %s", a.status, a.body)
	}
	if a := post(t, g.url+"/v1/chat/completions", strings.Replace(askStream, `"stream":true,`, "", 1)); a.status != 503 {
		t.Errorf("whole: %d %s", a.status, a.body)
	}
	leave()
	waiting.Wait()
	eventually(t, "free", func() bool { s := engineState(t, admin); return s.Running+s.Waiting == 0 })
	g.interrupt()
}

// The flags are checked where they stand.
func TestEngineFlags(t *testing.T) {
	beside(t, light)
	for args, want := range map[string]string{
		"--wire smoke":                 "sglang, vllm, openai, weir",
		"--page-size 0":                "--page-size",
		"--dp-size 0":                  "--dp-size",
		"--stream-interval 0":          "--stream-interval",
		"--max-total-tokens=-1":        "--max-total-tokens",
		"--wire vllm --wire sglang":    "address of its own",
		"--offline x --enable-metrics": "--enable-metrics",
	} {
		p := start(t, append([]string{"engine"}, strings.Fields(args)...)...)
		p.exits(2)
		if !strings.Contains(p.stderr.String(), want) {
			t.Errorf("%s: %s", args, p.stderr.String())
		}
	}
}
