//go:build interop_engines

package real

import (
	"bufio"
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"weir/test/e2e/harness"

	"github.com/google/go-cmp/cmp"
)

// shown is what a client sees of a stream: for each path of fields the values of all
// events, so that a field that is there in one of two streams alone shows, and how many
// events the engine made of its tokens does not.
type shown map[string][]any

// lastOf are fields of which each event has the count so far.
var lastOf = []string{".usage.prompt_tokens", ".usage.completion_tokens", ".usage.total_tokens"}

func (s shown) take(path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		s[path+"{}"] = []any{true}
		for k, v := range v {
			s.take(path+"."+k, v)
		}
	case []any:
		for _, v := range v {
			s.take(path+"[]", v)
		}
	case string:
		switch {
		case path == ".id" || path == ".system_fingerprint": // of the request; of the process
			s[path] = []any{true}
		case strings.HasSuffix(path, "content") || strings.HasSuffix(path, ".text") || strings.HasSuffix(path, "reasoning"):
			if len(s[path]) == 0 {
				s[path] = []any{""}
			}
			s[path][0] = s[path][0].(string) + v
		case path == ".object" || path == ".model" || strings.HasSuffix(path, ".role"):
			s[path] = []any{v}
		default:
			s[path] = append(s[path], v)
		}
	case nil:
		s[path+"=null"] = []any{true}
	default:
		last := path == ".created" || strings.HasSuffix(path, ".index")
		for _, l := range lastOf {
			last = last || path == l
		}
		if path == ".created" {
			v = true
		}
		if last {
			s[path] = []any{v}
			return
		}
		s[path] = append(s[path], v)
	}
}

// stream asks for a stream and gives what a client sees of it.
func (w way) stream(t *testing.T, path string, body fields) shown {
	t.Helper()
	resp, err := w.post(harness.Context(t), path, body.with(fields{"stream": true}))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	s := shown{"status": []any{resp.StatusCode}, "type": []any{resp.Header.Get("Content-Type")}}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			if lines.Text() != "" {
				s["line"] = append(s["line"], lines.Text())
			}
			continue
		}
		if data == "[DONE]" {
			s["done"] = append(s["done"], true)
			continue
		}
		var v any
		if err := json.Unmarshal([]byte(data), &v); err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		s.take("", v)
	}
	if err := lines.Err(); err != nil {
		t.Errorf("%s%s: %v", w.name, path, err)
	}
	return s
}

// A relayed stream that weir verifies by its ids has what vLLM's own stream has, and
// nothing more, whatever the caller asked for; and it is verified to its end.
func TestVerifiedStreams(t *testing.T) {
	port := freePort(t)
	server := vllm(t, nil, "--port", port)
	relay := serve(t, "--engine", "openai=http://127.0.0.1:"+port+",verify=ids")
	relay.ready(true, server)
	direct, checked := way{"vLLM itself", "http://127.0.0.1:" + port, "tiny"}, way{"verified relay", relay.URL, "tiny"}

	usage := fields{"stream_options": fields{"include_usage": true}}
	continuous := fields{"stream_options": fields{"include_usage": true, "continuous_usage_stats": true}}
	chatBase := fields{"messages": chat["messages"], "temperature": 0, "max_tokens": 24}
	completionBase := fields{"prompt": completion["prompt"], "temperature": 0, "max_tokens": 24}
	first, err := direct.ask(harness.Context(t), chatPath, chat, nil)
	if err != nil || first.Status != 200 {
		t.Fatalf("%+v, %v", first, err)
	}
	stopID := json.Number(strings.Split(first.IDs, ",")[5])
	inside := string([]rune(first.Text)[9:14])
	verified := 0
	for _, test := range []struct {
		name string
		more fields
	}{
		{"plain", nil},
		{"ids asked for", fields{"return_token_ids": true}},
		{"seeded", fields{"temperature": 1, "seed": 5}},
		{"an id that stops", fields{"stop_token_ids": []json.Number{stopID}}},
		{"an end id", fields{"logit_bias": fields{imEnd: 100}}},
		{"the other end id", fields{"logit_bias": fields{eos: 100}}},
		{"a stop string", fields{"stop": []string{inside, "never"}}},
		{"a stop string that stays", fields{"stop": []string{inside}, "include_stop_str_in_output": true}},
		{"min_tokens", fields{"logit_bias": fields{imEnd: 99}, "min_tokens": 5}},
		{"special tokens", fields{"logit_bias": fields{"32739": 100}}},
		{"special tokens shown", fields{"logit_bias": fields{"32739": 100}, "skip_special_tokens": false}},
		{"one token", fields{"max_tokens": 1}},
		{"a long one", fields{"max_tokens": 600, "ignore_eos": true}},
		{"json", fields{"response_format": fields{"type": "json_object"}, "max_tokens": 60}},
	} {
		for path, base := range map[string]fields{chatPath: chatBase, completionPath: completionBase} {
			for name, options := range map[string]fields{"": nil, "usage": usage, "continuous usage": continuous} {
				body := base.with(test.more).with(options)
				want, got := direct.stream(t, path, body), checked.stream(t, path, body)
				verified++
				if len(want["done"]) != 1 {
					t.Errorf("%s: vLLM's own stream has no end: %v", test.name, want)
				}
				if ids := len(got[".choices[].token_ids[]"]) > 0; ids != (test.name == "ids asked for") {
					t.Errorf("%s %s%s: ids are shown: %t", test.name, name, path, ids)
				}
				if d := cmp.Diff(want, got); d != "" {
					t.Errorf("%s %s%s: vLLM itself against a verified relay: %s", test.name, name, path, d)
				}
			}
		}
	}
	// Several choices, with their counts.
	for path, base := range map[string]fields{chatPath: chatBase, completionPath: completionBase} {
		for _, options := range []fields{usage, continuous} {
			body := base.with(options).with(fields{"n": 3, "temperature": 1, "seed": 7})
			want, got := direct.stream(t, path, body), checked.stream(t, path, body)
			verified++
			for _, s := range []shown{want, got} { // the choices' texts come in any order
				maps.DeleteFunc(s, func(path string, _ []any) bool {
					return strings.HasSuffix(path, "content") || strings.HasSuffix(path, ".text") || strings.HasSuffix(path, ".index")
				})
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("three choices%s: vLLM itself against a verified relay: %s", path, d)
			}
		}
	}
	if n := harness.Metric(t, relay.Admin, "weir_relay_streams_total", `verified="ids"`); int(n) != verified {
		t.Errorf("%v of %d streams were verified by their ids", n, verified)
	}
}
