//go:build interop

package engines

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// TestPairs puts what SGLang publishes for prefill and decode apart before two halves: its mini
// load balancer, its router, and the gateway that the router became. A client of each gets the
// answer of a single engine, field by field.
func TestPairs(t *testing.T) {
	harness.Beside(t, harness.Light)
	alone := startEngine(t, "--max-total-tokens", "100000", "--incremental-streaming-output").sglang
	for _, name := range balancers {
		t.Run(name, func(t *testing.T) {
			prefill, registry := startHalf(t, "prefill")
			decode, _ := startHalf(t, "decode")
			url := balance(t, name, prefill, registry, decode)
			for _, x := range []struct {
				name, path, body string
			}{
				{"text", "/generate", `{"text":"Once upon","sampling_params":{"max_new_tokens":12,"ignore_eos":true}}`},
				{"ids", "/generate", `{"input_ids":[11,12,13,14],"sampling_params":{"max_new_tokens":5}}`},
				{"batch", "/generate", `{"text":["Once upon","a time","there was"],"sampling_params":{"max_new_tokens":9,"ignore_eos":true}}`},
				{"logprobs", "/generate", `{"text":"Once upon a time","return_logprob":true,"logprob_start_len":0,"sampling_params":{"max_new_tokens":6,"ignore_eos":true}}`},
				{"stops", "/generate", `{"text":"Once upon","sampling_params":{"max_new_tokens":64}}`},
				{"chat", "/v1/chat/completions", `{"model":"weir-sim","messages":[{"role":"user","content":"Hello"}],"max_tokens":12,"ignore_eos":true}`},
				{"completion", "/v1/completions", `{"model":"weir-sim","prompt":"Once upon","max_tokens":12,"ignore_eos":true}`},
			} {
				if name != "mini-lb" && x.name == "batch" {
					continue // they take no lists of texts (422)
				}
				t.Run(x.name, func(t *testing.T) {
					want, got := answer(t, alone+x.path, x.body), answer(t, url+x.path, x.body)
					if !reflect.DeepEqual(got, want) {
						t.Errorf("a pair answers\n%v\nan engine alone\n%v", got, want)
					}
					if x.name == "batch" || x.name == "logprobs" {
						return // whose streams the three handle each in its own way
					}
					body := `{"stream":true,` + x.body[1:]
					if direct, through := words(t, alone+x.path, body), words(t, url+x.path, body); len(direct) == 0 || strings.Join(direct, " ") != strings.Join(through, " ") {
						t.Errorf("streamed: %q through a pair, %q without", through, direct)
					}
				})
			}
			free(t, prefill, decode)
		})
	}
}

// balancers are what SGLang publishes for prefill and decode apart.
var balancers = []string{"mini-lb", "sglang-router", "smg"}

// startHalf runs a half of pairs. A prefill half has a registry, at the port bootstrap.
func startHalf(t *testing.T, role string) (url, bootstrap string) {
	p := harness.Start(t, "engine", "--wire", "sglang=127.0.0.1:0", "--role", role, "--disaggregation-bootstrap-port", "0", "--max-total-tokens", "100000", "--incremental-streaming-output", "--kv-bandwidth", "2e9")
	t.Cleanup(p.Interrupt)
	if url = p.Line("sglang"); role == "prefill" {
		_, bootstrap, _ = net.SplitHostPort(strings.TrimPrefix(p.Line("bootstrap"), "http://"))
	}
	return url, bootstrap
}

// balance runs a balancer before two halves, until it has had an answer of them.
func balance(t *testing.T, name, prefill, bootstrap, decode string) (url string) {
	t.Helper()
	at := harness.FreeAddress(t)
	host, port, _ := net.SplitHostPort(at)
	_, metrics, _ := net.SplitHostPort(harness.FreeAddress(t))
	router := []string{harness.Python(t), "-m", "sglang_router.launch_router"}
	args := map[string][]string{
		"mini-lb":       append(router, "--mini-lb"),
		"sglang-router": append(router, "--prometheus-port", metrics),
		"smg":           {filepath.Join(filepath.Dir(harness.Python(t)), "smg"), "launch", "--prometheus-port", metrics},
	}[name]
	args = append(args, "--policy", "random", "--host", host, "--port", port, "--pd-disaggregation", "--prefill", prefill, bootstrap, "--decode", decode)
	balancer := harness.StartCommand(t, exec.Command(args[0], args[1:]...))
	url = "http://" + at
	harness.Eventually(t, "a pair's first answer", func() bool {
		resp, err := http.Post(url+"/generate", "application/json", strings.NewReader(`{"text":"first","sampling_params":{"max_new_tokens":2}}`))
		return err == nil && harness.Read(resp).Status == http.StatusOK
	}, balancer)
	return url
}

// answer returns an answer without what differs from request to request: ids and
// times.
func answer(t *testing.T, url, body string) any {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	b := harness.Read(resp)
	var v any
	if err := json.Unmarshal(b.Body, &v); err != nil || b.Status != http.StatusOK {
		t.Fatalf("%s: %d %s: %v", url, b.Status, b.Body, err)
	}
	return plain(v)
}

// plain takes ids and times out of a JSON value.
func plain(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	case map[string]any:
		maps.DeleteFunc(v, func(name string, _ any) bool {
			return name == "id" || name == "created" || name == "e2e_latency" || strings.HasSuffix(name, "_ts")
		})
		for name := range v {
			v[name] = plain(v[name])
		}
	case float64:
		return fmt.Sprintf("%.6f", v)
	}
	return v
}
