package engines

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// said is what a gateway says of an engine.
type said struct {
	Name        string
	Ready       bool
	Error, Note string
}

// engineSays waits until an engine's error or note has some words.
func engineSays(t *testing.T, g *harness.Gateway, name, words string) {
	t.Helper()
	var all []said
	harness.Eventually(t, name+" says "+words, func() bool {
		all = nil
		if json.Unmarshal(harness.Get(t, g.Admin+"/engines").Body, &all) != nil {
			return false
		}
		for _, e := range all {
			if e.Name == name && strings.Contains(e.Error+"; "+e.Note, words) {
				return true
			}
		}
		return false
	}, g.Process)
}

// wantAnswer asks for a completion and wants a status, and words in the answer.
func wantAnswer(t *testing.T, g *harness.Gateway, more string, status int, words ...string) {
	t.Helper()
	a := harness.Post(t, g.URL+"/v1/completions", `{"model":"weir-sim","prompt":"Once upon a time","max_tokens":5`+more+`}`)
	for _, word := range append(words, "") {
		if a.Status != status || !strings.Contains(string(a.Body), word) {
			t.Errorf("%s: %d %s, want %d and %q", more, a.Status, a.Body, status, word)
			return
		}
	}
}

// The binary detects fleets of halves that cannot work together when their engines join.
// Requests that arrive meanwhile get an error that names what is missing.
func TestBadPairsJoin(t *testing.T) {
	harness.Beside(t, harness.Light)
	prefill := func(t *testing.T, more ...string) half {
		return startHalf(t, "sglang", "bootstrap", append([]string{"--role", "prefill", "--disaggregation-bootstrap-port", "0"}, more...)...)
	}
	decode := func(t *testing.T, more ...string) half {
		return startHalf(t, "sglang", "", append([]string{"--role", "decode"}, more...)...)
	}
	const noEngine = http.StatusServiceUnavailable
	for _, kind := range []string{"sglang", "openai"} {
		serve := func(t *testing.T, specs ...string) *harness.Gateway {
			args := []string{"serve"}
			for _, s := range specs {
				args = append(args, "--engine", kind+"="+s)
			}
			return harness.StartUnready(t, args...)
		}
		t.Run(kind, func(t *testing.T) {
			t.Run("a role that the engine contradicts", func(t *testing.T) {
				p, d := prefill(t), decode(t)
				g := serve(t, p.url+",name=p", d.url+",name=d,role=prefill")
				engineSays(t, g, "d", "role=prefill, but the engine reports that it is a decode engine")
				wantAnswer(t, g, "", noEngine, "decode engine")
			})
			t.Run("prefill without decode", func(t *testing.T) {
				g := serve(t, prefill(t).url+",name=p")
				engineSays(t, g, "p", "no decode engine of its model is ready")
				wantAnswer(t, g, "", noEngine, "decode")
			})
			t.Run("decode without prefill", func(t *testing.T) {
				g := serve(t, decode(t).url+",name=d")
				engineSays(t, g, "d", "no prefill engine of its model is ready")
				wantAnswer(t, g, "", noEngine, "prefill")
			})
			t.Run("pages of different sizes", func(t *testing.T) {
				p, d := prefill(t, "--page-size", "64"), decode(t, "--page-size", "1")
				g := serve(t, p.url+",name=p", d.url+",name=d")
				engineSays(t, g, "d", "its KV pages have 1 tokens, and those of p have 64")
				wantAnswer(t, g, "", noEngine)
			})
			t.Run("one bootstrap address", func(t *testing.T) {
				p, q, d := prefill(t), prefill(t), decode(t)
				g := serve(t, p.url+",name=p", q.url+",name=q,role=prefill,bootstrap-port="+p.other, d.url+",name=d")
				engineSays(t, g, "q", "has the bootstrap address 127.0.0.1:"+p.other+", and so has p")
				harness.Eventually(t, "the first one serves", func() bool {
					return harness.Post(t, g.URL+"/v1/completions", `{"model":"weir-sim","prompt":"a","max_tokens":3}`).Status == http.StatusOK
				})
				if n := received(t, q); n != 0 {
					t.Errorf("the other one was given %d requests", n)
				}
			})
			t.Run("different models", func(t *testing.T) {
				p, d := prefill(t), decode(t)
				g := harness.StartUnready(t, "serve", "--model", "other="+modelFolder(t), "--engine", kind+"="+p.url+",name=p", "--engine", kind+"="+d.url+",name=d,model=other")
				engineSays(t, g, "p", "no decode engine of its model is ready")
				engineSays(t, g, "d", "no prefill engine of its model is ready")
				wantAnswer(t, g, "", noEngine, "decode")
				if a := harness.Post(t, g.URL+"/v1/completions", `{"model":"other","prompt":"a","max_tokens":3}`); a.Status != noEngine || !strings.Contains(string(a.Body), "prefill") {
					t.Errorf("%d %s", a.Status, a.Body)
				}
			})
		})
	}
}

// received is how many requests an engine has had.
func received(t *testing.T, h half) int {
	t.Helper()
	var s struct{ Received int }
	if err := json.Unmarshal(harness.Get(t, h.url+"/admin/state").Body, &s); err != nil {
		t.Fatal(err)
	}
	return s.Received
}

// A request that no pair can serve is refused by name, or served whole by an engine that can.
// A prefill engine's error reaches the client at once, though the decode engine still waits.
func TestBadPairsAsk(t *testing.T) {
	harness.Beside(t, harness.Light)
	for name, w := range wirePairs {
		t.Run(name, func(t *testing.T) {
			c := startCouple(t, name)
			g := c.Gateway
			// Fields that steer engines. Over token ids, no field of these names is known either.
			before := received(t, c.decode)
			for _, field := range []string{`"bootstrap_host":"10.0.0.1"`, `"bootstrap_port":9`, `"bootstrap_room":7`, `"kv_transfer_params":{"do_remote_prefill":true}`} {
				key, _, _ := strings.Cut(strings.TrimPrefix(field, `"`), `"`)
				wantAnswer(t, g, ","+field, http.StatusBadRequest, key)
			}
			if n := received(t, c.decode) - before; n != 0 {
				t.Errorf("%d of them reached the decode engine", n)
			}

			a := harness.Post(t, g.URL+"/v1/completions", `{"model":"weir-sim","prompt":"Once upon a time","max_tokens":5,"n":3}`)
			var several struct{ Choices []struct{ Text string } }
			_ = json.Unmarshal(a.Body, &several)
			switch {
			case name == "relay to sglang": // which gives all choices one room
				if a.Status != http.StatusBadRequest || !strings.Contains(string(a.Body), "several answers (n)") {
					t.Errorf("n=3: %d %s", a.Status, a.Body)
				}
			case a.Status != http.StatusOK || len(several.Choices) != 3:
				t.Errorf("n=3: %d %s", a.Status, a.Body)
			}

			// The log probabilities of a prompt are the prefill engine's.
			switch name {
			case "relay to sglang":
				wantAnswer(t, g, `,"echo":true,"logprobs":1`, http.StatusBadRequest, `"param":"echo"`, "log probabilities of the prompt")
			case "sglang":
				a := harness.Post(t, g.URL+"/generate", `{"text":"Once","return_logprob":true,"logprob_start_len":0,"sampling_params":{"max_new_tokens":3}}`)
				if a.Status != http.StatusOK || !strings.Contains(string(a.Body), `"input_token_logprobs":[[null,`) {
					t.Errorf("%d %s", a.Status, a.Body)
				}
			}

			if a := harness.Post(t, c.prefill.url+"/admin/faults", `{"faults":["fail"]}`); a.Status != http.StatusOK {
				t.Fatalf("%d %s", a.Status, a.Body)
			}
			began := time.Now()
			a = harness.Post(t, g.URL+"/v1/completions", fmt.Sprintf(`{"model":"weir-sim","prompt":%q,"max_tokens":5}`, strings.Repeat("Once upon a time ", 8)))
			took := time.Since(began)
			whole := w.wire == "vllm" && a.Status == http.StatusOK // the decode engine alone
			if !whole && (a.Status < 500 || !strings.Contains(string(a.Body), "error")) || took > 2*time.Second {
				t.Errorf("the prefill engine's error: after %v %d %s", took, a.Status, a.Body)
			}
			c.free(t)
			c.end()
		})
	}
}
