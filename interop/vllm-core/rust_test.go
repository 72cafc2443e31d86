//go:build interop

package vllmcore

import (
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/interop/ways"
	"weir/test/e2e/harness"
)

// rust starts vLLM's own Rust front end as released, and an engine core behind it.
func (s *setup) rust(args ...string) (url string, server, core *harness.Process) {
	s.t.Helper()
	program := os.Getenv("WEIR_VLLM_RS")
	if program == "" {
		s.t.Fatal("WEIR_VLLM_RS names no program (make interop fetches it)")
	}
	at, hands := harness.FreeAddress(s.t), strings.TrimPrefix(s.handshake, "tcp://")
	port, handshake := at[strings.LastIndexByte(at, ':')+1:], hands[strings.LastIndexByte(hands, ':')+1:]
	server = harness.StartCommand(s.t, exec.Command(program, append([]string{"serve", "../../models/weir-sim", "--served-model-name", "weir-sim",
		"--data-parallel-size-local", "0", "--data-parallel-rpc-port", handshake, "--port", port}, args...)...))
	core = s.core("--context", "32768", "--step", "0.001")
	url = "http://" + at
	harness.Eventually(s.t, "ready", func() bool {
		resp, err := http.Get(url + "/health")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}, server, core)
	return url, server, core
}

// TestRustFrontEnd puts weir before vLLM's own Rust front end, as a relay and by ids. A
// client sees of each answer what it sees without weir.
func TestRustFrontEnd(t *testing.T) {
	harness.Beside(t, harness.Light)
	s, ctx := newSetup(t), harness.Context(t)
	url, server, core := s.rust("--enable-scale-out")
	relayed := harness.StartGateway(t, "serve", "--engine", "openai="+url+",model=weir-sim,verify=ids")
	byIDs := harness.StartGateway(t, "serve", "--engine", "vllm="+url+",model=weir-sim")
	direct := ways.Way{Name: "vLLM", URL: url, Model: "weir-sim"}
	relay := ways.Way{Name: "relay", URL: relayed.URL, Model: "weir-sim"}
	ids := ways.Way{Name: "by ids", URL: byIDs.URL, Model: "weir-sim"}

	ways.HangUp(t, 16, core, relayed, byIDs)
	t.Run("answers", func(t *testing.T) {
		stop := s.ids[4]
		ways.Same(t, direct, relay, ids, ways.Conversations(), []ways.Shape{
			{Name: "plain"},
			{Name: "one token", More: ways.Fields{"max_tokens": 1}},
			{Name: "all settings", More: ways.Fields{"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.25, "seed": 5, "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.5}},
			{Name: "an id that stops", More: ways.Fields{"stop_token_ids": []uint32{stop}}},
			{Name: "a stop string", More: ways.Fields{"stop": []string{harness.Said[9:14], "never"}}},
			{Name: "a stop string that stays", More: ways.Fields{"stop": []string{harness.Said[9:14]}, "include_stop_str_in_output": true}, Refused: "include_stop_str_in_output"},
			{Name: "min_tokens", More: ways.Fields{"stop_token_ids": []uint32{stop}, "min_tokens": 7}},
			{Name: "a long one", More: ways.Fields{"max_tokens": 600, "ignore_eos": true}},
			{Name: "a schema", More: ways.Fields{"response_format": ways.Fields{"type": "json_object"}}},
		})
	})
	// The front end has one choice for each request; by ids weir makes several requests of one.
	t.Run("choices", func(t *testing.T) {
		body := ways.Fields{"prompt": "Say it.", "max_tokens": 24, "n": 2}
		want := direct.Must(t, "/v1/completions", body)
		if d := cmp.Diff(want, relay.Must(t, "/v1/completions", body)); d != "" || want["status"][0] != http.StatusBadRequest {
			t.Errorf("vLLM and a relay: %v %s", want, d)
		}
		if got := ids.Must(t, "/v1/completions", body); got["status"][0] != http.StatusOK || len(got.Only(".choices[].finish_reason")) != 2 {
			t.Errorf("by ids: %v", got)
		}
	})
	t.Run("refusals", func(t *testing.T) {
		for name, body := range map[string]ways.Fields{
			"max_tokens":  {"prompt": "a", "max_tokens": -1},
			"temperature": {"prompt": "a", "temperature": -3},
			"too long":    {"prompt": strings.Repeat("word ", 40000)},
			"no prompt":   {},
		} {
			for _, w := range []ways.Way{direct, relay, ids} {
				if got := w.Must(t, "/v1/completions", body); got["status"][0] != http.StatusBadRequest {
					t.Errorf("%s: %s: %v", w.Name, name, got)
				}
			}
		}
	})
	t.Run("streams", func(t *testing.T) {
		for _, g := range []*harness.Gateway{relayed, byIDs} {
			const streams = 64
			errs := make(chan error)
			for range streams {
				go func() { errs <- g.Says(ctx, s.ids, 5) }()
			}
			for range streams {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
		}
	})
	ways.Die(t, server, relayed, byIDs)
}
