//go:build interop

package engines

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"reflect"
	"strconv"
	"sync"
	"testing"

	"weir/test/e2e/harness"
)

// tap stands before an engine and keeps what it was asked for at a path.
type tap struct {
	url  string
	mu   sync.Mutex
	seen []map[string]any
}

func newTap(t *testing.T, engine, path string) *tap {
	to, err := url.Parse(engine)
	if err != nil {
		t.Fatal(err)
	}
	p, proxy := &tap{}, httputil.NewSingleHostReverseProxy(to)
	proxy.FlushInterval = -1
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == path {
			body, _ := io.ReadAll(r.Body)
			d := json.NewDecoder(bytes.NewReader(body))
			d.UseNumber()
			var v map[string]any
			if err := d.Decode(&v); err != nil {
				t.Errorf("%s: %v", body, err)
			}
			p.mu.Lock()
			p.seen = append(p.seen, v)
			p.mu.Unlock()
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	p.url = srv.URL
	return p
}

// startPair runs a gateway before two halves, until both are ready.
func startPair(t *testing.T, kind, prefill, decode string) *harness.Gateway {
	t.Helper()
	g := harness.StartGateway(t, "serve", "--engine", kind+"="+prefill, "--engine", kind+"="+decode)
	t.Cleanup(g.Interrupt)
	harness.Eventually(t, "both engines", func() bool {
		return bytes.Contains(harness.Get(t, g.Admin+"/readyz").Body, []byte("2 of 2"))
	}, g.Process)
	return g
}

// free waits until engines have nothing left.
func free(t *testing.T, engines ...string) {
	t.Helper()
	for _, e := range engines {
		harness.Eventually(t, "the end of all legs", func() bool {
			resp, err := http.Get(e + "/admin/state")
			var s struct{ Running, Waiting, Kept int }
			return err == nil && json.Unmarshal(harness.Read(resp).Body, &s) == nil && s.Running+s.Waiting+s.Kept == 0
		})
	}
}

// last returns the latest body, of so many.
func (p *tap) last(t *testing.T, n int) map[string]any {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.seen) != n {
		t.Fatalf("%d requests came, want %d", len(p.seen), n)
	}
	return maps.Clone(p.seen[n-1])
}

// spelled are members that the routers write into every body with SGLang's own defaults.
var spelled = map[string]any{"echo": false, "no_stop_trim": false, "return_hidden_states": false, "skip_special_tokens": true,
	"continue_final_message": false, "logprobs": false, "separate_reasoning": true, "stream_reasoning": true}

// asSent takes out of a half what a router has written there that the client did not, and
// gives the bound of a chat the client's name again.
func asSent(half map[string]any) map[string]any {
	maps.DeleteFunc(half, func(name string, v any) bool {
		is, ok := spelled[name]
		return ok && is == v
	})
	if n, ok := half["max_completion_tokens"]; ok {
		delete(half, "max_completion_tokens")
		half["max_tokens"] = n
	}
	return half
}

// TestLegs holds the halves that weir makes of a relayed request to those that SGLang's own
// balancers make of it, field by field: the same members, of the same types, and the same
// values where these are not a room of each request's own.
func TestLegs(t *testing.T) {
	harness.Beside(t, harness.Light)
	for _, c := range []struct{ path, body string }{
		{"/v1/completions", `{"model":"weir-sim","prompt":"Once upon","max_tokens":7,"ignore_eos":true,"temperature":0.5,"stop":["xyz"],"stream":true}`},
		{"/v1/chat/completions", `{"model":"weir-sim","messages":[{"role":"user","content":"Hello"}],"max_tokens":7,"ignore_eos":true,"stream":false}`},
	} {
		t.Run(c.path, func(t *testing.T) {
			prefill, bootstrap := startHalf(t, "prefill")
			decode, _ := startHalf(t, "decode")
			legs := func(t *testing.T, start func(prefill, decode string) string) (p, d map[string]any) {
				tapP, tapD := newTap(t, prefill, c.path), newTap(t, decode, c.path)
				url := start(tapP.url, tapD.url)
				resp, err := http.Post(url+c.path, "application/json", bytes.NewReader([]byte(c.body)))
				if err != nil {
					t.Fatal(err)
				}
				if a := harness.Read(resp); a.Status != http.StatusOK {
					t.Fatalf("%d %s", a.Status, a.Body)
				}
				p, d = tapP.last(t, 1), tapD.last(t, 1)
				number, ok := p["bootstrap_room"].(json.Number)
				if n, err := strconv.ParseInt(string(number), 10, 64); !ok || err != nil || n < 0 || p["bootstrap_room"] != d["bootstrap_room"] {
					t.Errorf("rooms %v and %v", p["bootstrap_room"], d["bootstrap_room"])
				}
				delete(p, "bootstrap_room")
				delete(d, "bootstrap_room")
				return p, d
			}
			ownP, ownD := legs(t, func(prefill, decode string) string {
				return startPair(t, "openai", prefill, decode).URL
			})
			if ownP["bootstrap_port"] != json.Number(bootstrap) {
				t.Errorf("weir meets at port %v, want %s", ownP["bootstrap_port"], bootstrap)
			}
			// weir's prefill half is not streamed, and theirs is; its answer is nobody's.
			delete(ownP, "stream")
			for _, name := range balancers {
				t.Run(name, func(t *testing.T) {
					p, d := legs(t, func(prefill, decode string) string { return balance(t, name, prefill, bootstrap, decode) })
					delete(p, "stream")
					if p = asSent(p); !reflect.DeepEqual(p, ownP) {
						t.Errorf("its prefill half is\n%v\nweir's\n%v", p, ownP)
					}
					if d = asSent(d); !reflect.DeepEqual(d, ownD) {
						t.Errorf("its decode half is\n%v\nweir's\n%v", d, ownD)
					}
				})
			}
		})
	}
}

// TestPromptScores holds weir to SGLang's mini load balancer, which puts the prefill engine's log
// probabilities of a prompt before the decode engine's: the same of /generate, streamed and not.
// It leaves those of alternatives to the decode engine, which has none.
func TestPromptScores(t *testing.T) {
	harness.Beside(t, harness.Light)
	prefill, bootstrap := startHalf(t, "prefill")
	decode, _ := startHalf(t, "decode")
	theirs, ours := balance(t, "mini-lb", prefill, bootstrap, decode), startPair(t, "sglang", prefill, decode)
	scores := func(url, body string) (last map[string]any) {
		resp, err := http.Post(url+"/generate", "application/json", bytes.NewReader([]byte(body)))
		if err != nil {
			t.Fatal(err)
		}
		a := harness.Read(resp)
		for part := range bytes.SplitSeq(a.Body, []byte("\n\n")) {
			part = bytes.TrimPrefix(bytes.TrimSpace(part), []byte("data: "))
			if len(part) == 0 || string(part) == "[DONE]" {
				continue
			}
			var o struct {
				Meta map[string]any `json:"meta_info"`
			}
			if err := json.Unmarshal(part, &o); err != nil || a.Status != http.StatusOK {
				t.Fatalf("%d %s: %v", a.Status, part, err)
			}
			if list, _ := o.Meta["input_token_logprobs"].([]any); len(list) > 0 {
				last = o.Meta
			}
		}
		return last
	}
	for _, body := range []string{
		`{"text":"Once upon a time","return_logprob":true,"logprob_start_len":0,"sampling_params":{"max_new_tokens":6,"ignore_eos":true}}`,
		`{"input_ids":[11,12,13,14],"return_logprob":true,"logprob_start_len":2,"top_logprobs_num":2,"sampling_params":{"max_new_tokens":6,"ignore_eos":true}}`,
		`{"input_ids":[11,12,13,14],"return_logprob":true,"logprob_start_len":1,"stream":true,"sampling_params":{"max_new_tokens":6,"ignore_eos":true}}`,
	} {
		want, got := scores(theirs, body), scores(ours.URL, body)
		if list, _ := want["input_token_logprobs"].([]any); len(list) == 0 || !reflect.DeepEqual(list, got["input_token_logprobs"]) {
			t.Errorf("%s:\nweir tells\n%v\nthe balancer\n%v", body, got["input_token_logprobs"], list)
		}
		if tops, _ := got["input_top_logprobs"].([]any); bytes.Contains([]byte(body), []byte("top_")) && len(tops) != 2 {
			t.Errorf("%s: alternatives %v", body, tops)
		}
	}
	free(t, prefill, decode)
}

// TestPairsThrough puts weir in the middle of two halves, as a relay and over ids: what its
// client has is what an engine alone says.
func TestPairsThrough(t *testing.T) {
	harness.Beside(t, harness.Light)
	alone := startEngine(t, "--max-total-tokens", "100000", "--incremental-streaming-output").sglang
	for _, kind := range []string{"openai", "sglang"} {
		t.Run(kind, func(t *testing.T) {
			prefill, _ := startHalf(t, "prefill")
			decode, _ := startHalf(t, "decode")
			g := startPair(t, kind, prefill, decode)
			for _, c := range []struct{ path, body string }{
				{"/v1/chat/completions", `{"model":"weir-sim","messages":[{"role":"user","content":"Hello"}],"max_tokens":12,"ignore_eos":true}`},
				{"/v1/completions", `{"model":"weir-sim","prompt":"Once upon","max_tokens":12,"ignore_eos":true}`},
				{"/v1/completions", `{"model":"weir-sim","prompt":"Once upon a time","max_tokens":64}`},
			} {
				if kind == "openai" { // whose answers pass as they are
					if want, got := answer(t, alone+c.path, c.body), answer(t, g.URL+c.path, c.body); !reflect.DeepEqual(got, want) {
						t.Errorf("%s: a pair answers\n%v\nan engine alone\n%v", c.body, got, want)
					}
				}
				body := `{"stream":true,` + c.body[1:]
				if direct, through := words(t, alone+c.path, body), words(t, g.URL+c.path, body); len(direct) == 0 || !reflect.DeepEqual(direct, through) {
					t.Errorf("%s: %q through a pair, %q without", body, through, direct)
				}
			}
			free(t, prefill, decode)
		})
	}
}
