//go:build interop

package sglang

import (
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/interop/ways"
	"weir/test/e2e/harness"
)

// rust starts SGLang's own Rust server as released, before a scheduler that is played.
func (s *setup) rust(args ...string) (url string, server *harness.Process) {
	s.t.Helper()
	at := harness.FreeAddress(s.t)
	_, port, _ := net.SplitHostPort(at)
	server = s.start("rust_server.py", append([]string{"--model", "../../models/weir-sim", "--port", port, "--say", s.said()}, args...)...)
	server.Find("ready", func(l string) bool { return strings.Contains(l, `"ready"`) })
	return "http://" + at, server
}

// TestRustServer puts weir before SGLang's own Rust server, as a relay and by ids, in both
// forms of its streams. A client sees of each answer what it sees without weir.
func TestRustServer(t *testing.T) {
	for _, form := range []string{"cumulative", "incremental"} {
		t.Run(form, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			s := newSetup(t)
			var args, flags []string
			if form == "incremental" {
				args, flags = []string{"--incremental"}, []string{"--incremental-streaming-output"}
			}
			url, server := s.rust(args...)
			relayed := harness.StartGateway(t, "serve", "--engine", "openai="+url+",model=weir-sim")
			byIDs := harness.StartGateway(t, append([]string{"serve", "--engine", "sglang=" + url + ",model=weir-sim"}, flags...)...)
			direct := ways.Way{Name: "SGLang", URL: url, Model: "weir-sim"}
			relay := ways.Way{Name: "relay", URL: relayed.URL, Model: "weir-sim"}
			ids := ways.Way{Name: "by ids", URL: byIDs.URL, Model: "weir-sim"}

			ways.HangUp(t, 16, server, relayed, byIDs)
			ways.Same(t, direct, relay, ids, ways.Conversations(), []ways.Shape{
				{Name: "plain"},
				{Name: "one token", More: ways.Fields{"max_tokens": 1}},
				{Name: "all settings", More: ways.Fields{"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.25, "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.5}},
				{Name: "an id that stops", More: ways.Fields{"stop_token_ids": []uint32{s.ids[4]}}, Dropped: "/v1/completions"},
				{Name: "a stop string", More: ways.Fields{"stop": []string{harness.Said[9:14], "never"}}},
				{Name: "min_tokens", More: ways.Fields{"stop_token_ids": []uint32{s.ids[4]}, "min_tokens": 7}, Dropped: "/v1/completions"},
				{Name: "a long one", More: ways.Fields{"max_tokens": 600, "ignore_eos": true}},
				{Name: "two choices", More: ways.Fields{"n": 2}},
				{Name: "a schema", More: ways.Fields{"response_format": ways.Fields{"type": "json_object"}}},
			})
			// SGLang's own API. How many events repeat an answer in the cumulative form depends
			// on time, so that streams are compared in the other.
			native := ways.Fields{"text": "Say it.", "sampling_params": ways.Fields{"max_new_tokens": 24, "stop_token_ids": []uint32{s.ids[6]}}}
			for _, body := range []ways.Fields{native, native.With(ways.Fields{"stream": form == "incremental"})} {
				want, got := direct, ids
				want.Model, got.Model = "", ""
				const path = "/generate"
				seen := []string{"status", "type", "done", ".output_ids", ".text", ".meta_info.prompt_tokens", ".meta_info.completion_tokens", ".meta_info.finish_reason"}
				if d := cmp.Diff(want.Must(t, path, body).Only(seen...), got.Must(t, path, body).Only(seen...)); d != "" {
					t.Errorf("%v: SGLang and by ids: %s", body, d)
				}
			}
			for name, body := range map[string]ways.Fields{
				"max_tokens":  {"prompt": "a", "max_tokens": -1},
				"temperature": {"prompt": "a", "temperature": -3},
				"no prompt":   {},
			} {
				for _, w := range []ways.Way{direct, relay, ids} {
					if got := w.Must(t, "/v1/completions", body); got["status"][0] != http.StatusBadRequest {
						t.Errorf("%s: %s: %v", w.Name, name, got)
					}
				}
			}
			s.many(relayed, 64)
			s.many(byIDs, 64)

			ways.Die(t, server, relayed, byIDs)
		})
	}
}
