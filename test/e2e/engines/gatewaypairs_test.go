package engines

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"weir/test/e2e/harness"
)

// couple is a gateway before a prefill and a decode engine, over one wire.
type couple struct {
	*harness.Gateway
	prefill, decode half
}

// wirePairs are the wires over which simulated engines serve halves, as --engine KIND, and
// how these are started.
var wirePairs = map[string]struct {
	kind, wire, other string
	prefill, decode   []string
	options           string
}{
	"sglang":          {"sglang", "sglang", "bootstrap", []string{"--role", "prefill", "--disaggregation-bootstrap-port", "0"}, []string{"--role", "decode"}, ""},
	"relay to sglang": {"openai", "sglang", "bootstrap", []string{"--role", "prefill", "--disaggregation-bootstrap-port", "0"}, []string{"--role", "decode"}, ""},
	"relay to vllm, pull": {"openai", "vllm", "nixl", []string{"--nixl-side-channel-port", "0", "--kv-transfer-config", `{"kv_connector":"NixlConnector","kv_role":"kv_producer","kv_connector_extra_config":{"kv_lease_duration":2}}`},
		[]string{"--nixl-side-channel-port", "0", "--kv-transfer-config", `{"kv_connector":"NixlConnector","kv_role":"kv_consumer","kv_connector_extra_config":{"kv_lease_duration":2}}`}, "role"},
	"relay to vllm, push": {"openai", "vllm", "nixl", []string{"--nixl-side-channel-port", "0", "--kv-transfer-config", `{"kv_connector":"NixlPushConnector","kv_role":"kv_producer","engine_id":"P","kv_connector_extra_config":{"kv_lease_duration":2}}`},
		[]string{"--nixl-side-channel-port", "0", "--kv-transfer-config", `{"kv_connector":"NixlPushConnector","kv_role":"kv_consumer","kv_connector_extra_config":{"kv_lease_duration":2}}`}, "role"},
}

// startCouple starts both engines and the gateway. more are the decode engine's arguments.
func startCouple(t *testing.T, name string, more ...string) *couple {
	t.Helper()
	w := wirePairs[name]
	c := &couple{prefill: startHalf(t, w.wire, w.other, append(w.prefill, "--max-total-tokens", "65536")...)}
	decodeOther := w.other
	if w.wire == "sglang" {
		decodeOther = ""
	}
	c.decode = startHalf(t, w.wire, decodeOther, append(append(w.decode, "--max-total-tokens", "65536"), more...)...)
	spec := func(h half, name string) string {
		s := w.kind + "=" + h.url + ",name=" + name
		if w.options == "role" {
			s += ",role=" + map[string]string{"p": "prefill", "d": "decode"}[name]
		}
		return s
	}
	c.Gateway = harness.StartGateway(t, "serve", "--policy", "round-robin", "--engine", spec(c.prefill, "p"), "--engine", spec(c.decode, "d"))
	harness.Eventually(t, "both engines", func() bool {
		var page []struct{ Ready bool }
		return json.Unmarshal(harness.Get(t, c.Admin+"/engines").Body, &page) == nil && len(page) == 2 && page[0].Ready && page[1].Ready
	})
	return c
}

// free waits until neither engine nor the gateway has anything left of a request.
func (c *couple) free(t *testing.T) {
	t.Helper()
	c.Balanced()
	c.prefill.rests(t)
	c.decode.rests(t)
}

// end ends all of it.
func (c *couple) end() {
	c.Interrupt()
	c.prefill.Interrupt()
	c.decode.Interrupt()
}

// A pair says what one engine says, streamed and not, of many requests at once, and leaves
// nothing behind.
func TestPairsThroughGateway(t *testing.T) {
	harness.Beside(t, harness.Light)
	for name, w := range wirePairs {
		t.Run(name, func(t *testing.T) {
			c := startCouple(t, name)
			alone := startHalf(t, w.wire, "")
			one := harness.StartGateway(t, "serve", "--engine", w.kind+"="+alone.url)
			const n = 24
			ask := func(g *harness.Gateway, i int) string {
				a := harness.Post(t, g.URL+"/v1/completions", fmt.Sprintf(`{"model":"weir-sim","prompt":"Once upon a time number %d","max_tokens":%d,"temperature":0,"ignore_eos":true,"stream":%v}`, i, 5+i, i%2 == 0))
				if a.Status != 200 {
					t.Errorf("%d %s", a.Status, a.Body)
				}
				if i%2 == 0 {
					text, done := harness.Streamed(a)
					if !done {
						t.Errorf("no end: %s", a.Body)
					}
					return text
				}
				var o struct{ Choices []struct{ Text string } }
				if err := json.Unmarshal(a.Body, &o); err != nil || len(o.Choices) != 1 {
					t.Errorf("%s: %v", a.Body, err)
					return ""
				}
				return o.Choices[0].Text
			}
			var all sync.WaitGroup
			for i := range n {
				all.Go(func() {
					if got, want := ask(c.Gateway, i), ask(one, i); got != want || got == "" {
						t.Errorf("request %d: the pair says %q, one engine %q", i, got, want)
					}
				})
			}
			all.Wait()
			c.free(t)
			if ended := c.Balanced(); ended["finished"] != n {
				t.Errorf("ended %v", ended)
			}
			c.end()
			one.Interrupt()
			alone.Interrupt()
			legs := 0
			for _, r := range c.pairs() {
				if len(r) == 2 && r[0] == "p finished" && r[1] == "d finished" {
					legs++
				}
			}
			if legs != n {
				t.Errorf("%d of %d requests were pairs: %v", legs, n, c.pairs())
			}
		})
	}
}

// pairs gives the legs of each request's last attempt, after the gateway has ended.
func (c *couple) pairs() (of [][]string) {
	for _, r := range c.Records() {
		if len(r.Attempts) == 0 {
			continue
		}
		var legs []string
		for _, l := range r.Attempts[len(r.Attempts)-1].Legs {
			legs = append(legs, fmt.Sprint(l["engine"], " ", l["outcome"]))
		}
		of = append(of, legs)
	}
	return of
}

// A prefill engine that is killed while its decode engine waits ends the request, which says
// so, and a client that hangs up in any stage frees both engines.
func TestPairsThroughGatewayEnd(t *testing.T) {
	harness.Beside(t, harness.Light)
	for name := range wirePairs {
		t.Run(name, func(t *testing.T) {
			c := startCouple(t, name, "--heartbeat-timeout", "200ms")
			// Hung up on after so many bytes of the answer: before it, and in it.
			for _, after := range []int{0, 1} {
				conn, err := net.Dial("tcp", strings.TrimPrefix(c.URL, "http://"))
				if err != nil {
					t.Fatal(err)
				}
				body := `{"model":"weir-sim","prompt":"Once upon a time","max_tokens":9999,"ignore_eos":true,"stream":true}`
				fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
				if after > 0 {
					if _, err := io.ReadFull(conn, make([]byte, after)); err != nil {
						t.Error(err)
					}
				} else {
					harness.Eventually(t, "the request", func() bool { return harness.Metric(t, c.Admin, "weir_requests_received_total") > 0 })
				}
				conn.Close()
				c.free(t)
			}
			c.prefill.Kill()
			a := harness.Post(t, c.URL+"/v1/completions", `{"model":"weir-sim","prompt":"Once upon a time","max_tokens":5,"ignore_eos":true}`)
			// vLLM's decode engine does it whole; SGLang's cannot.
			if whole := wirePairs[name].wire == "vllm"; whole != (a.Status == 200) || !whole && a.Status < 500 {
				t.Errorf("%d %s", a.Status, a.Body)
			}
			c.Balanced()
			c.decode.rests(t)
			c.Interrupt()
			c.decode.Interrupt()
		})
	}
}
