package engines

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

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
	points            []string // of a pair, as far as the wire tells them
}{
	"sglang": {"sglang", "sglang", "bootstrap", []string{"--role", "prefill", "--disaggregation-bootstrap-port", "0", "--enable-metrics"}, []string{"--role", "decode", "--enable-metrics"}, "",
		[]string{"met", "prefilled", "transferred", "running", "first_output"}},
	"relay to sglang": {"openai", "sglang", "bootstrap", []string{"--role", "prefill", "--disaggregation-bootstrap-port", "0"}, []string{"--role", "decode"}, "", []string{"transferred", "first_output"}},
	"relay to vllm, pull": {"openai", "vllm", "nixl", []string{"--nixl-side-channel-port", "0", "--kv-transfer-config", `{"kv_connector":"NixlConnector","kv_role":"kv_producer","kv_connector_extra_config":{"kv_lease_duration":2}}`},
		[]string{"--nixl-side-channel-port", "0", "--kv-transfer-config", `{"kv_connector":"NixlConnector","kv_role":"kv_consumer","kv_connector_extra_config":{"kv_lease_duration":2}}`}, "role", []string{"prefilled", "first_output"}},
	"relay to vllm, push": {"openai", "vllm", "nixl", []string{"--nixl-side-channel-port", "0", "--kv-transfer-config", `{"kv_connector":"NixlPushConnector","kv_role":"kv_producer","engine_id":"P","kv_connector_extra_config":{"kv_lease_duration":2}}`},
		[]string{"--nixl-side-channel-port", "0", "--kv-transfer-config", `{"kv_connector":"NixlPushConnector","kv_role":"kv_consumer","kv_connector_extra_config":{"kv_lease_duration":2}}`}, "role", []string{"prefilled", "first_output"}},
	"vllm, pull": {"vllm", "vllm", "nixl", []string{"--nixl-side-channel-port", "0", "--kv-transfer-config", `{"kv_connector":"NixlConnector","kv_role":"kv_producer","kv_connector_extra_config":{"kv_lease_duration":2}}`},
		[]string{"--nixl-side-channel-port", "0", "--kv-transfer-config", `{"kv_connector":"NixlConnector","kv_role":"kv_consumer","kv_connector_extra_config":{"kv_lease_duration":2}}`}, "role", []string{"prefilled", "first_output"}},
	"vllm, push": {"vllm", "vllm", "nixl", []string{"--nixl-side-channel-port", "0", "--kv-transfer-config", `{"kv_connector":"NixlPushConnector","kv_role":"kv_producer","engine_id":"P","kv_connector_extra_config":{"kv_lease_duration":2}}`},
		[]string{"--nixl-side-channel-port", "0", "--kv-transfer-config", `{"kv_connector":"NixlPushConnector","kv_role":"kv_consumer","kv_connector_extra_config":{"kv_lease_duration":2}}`}, "role", []string{"prefilled", "first_output"}},
}

// startCouple starts both engines and the gateway. more are the decode engine's arguments.
func startCouple(t *testing.T, name string, more ...string) *couple {
	t.Helper()
	return startCoupleOf(t, name, nil, more)
}

// startCoupleOf is startCouple with more arguments of either engine.
func startCoupleOf(t *testing.T, name string, prefill, decode []string) *couple {
	t.Helper()
	w := wirePairs[name]
	both := []string{"--max-total-tokens", "65536"}
	c := &couple{prefill: startHalf(t, w.wire, w.other, slices.Concat(w.prefill, both, prefill)...)}
	decodeOther := w.other
	if w.wire == "sglang" {
		decodeOther = ""
	}
	c.decode = startHalf(t, w.wire, decodeOther, slices.Concat(w.decode, both, decode)...)
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

// A pair gives the same answers as a single engine, streamed and whole, to many requests at
// once. It leaves nothing behind.
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
			for _, point := range []string{"met", "prefilled", "transferred", "running", "first_output"} {
				want := 0.0
				if slices.Contains(w.points, point) {
					want = n
				}
				if got := harness.Metric(t, c.Admin, "weir_pair_point_seconds_count", "point", point); got != want {
					t.Errorf("the point %s was told of %v pairs, want %v", point, got, want)
				}
			}
			c.end()
			one.Interrupt()
			alone.Interrupt()
			// A client that closes once it has its answer ends the wait for the prefill half's last word.
			pairs, cut := 0, 0
			for _, r := range c.Records() {
				legs := legsOf(r)
				if len(legs) != 2 || legs[1] != "d finished" {
					continue
				}
				switch {
				case legs[0] == "p finished", legs[0] == "p cancelled" && lastWordMissed(r):
					pairs++
				case legs[0] == "p cancelled":
					cut++
				}
			}
			if pairs+cut != n || cut > 2 {
				t.Errorf("%d of %d requests were pairs: %v", pairs, n, c.pairs())
			}
		})
	}
}

// pairs returns the legs of each request's last attempt, after the gateway has ended.
func (c *couple) pairs() (of [][]string) {
	for _, r := range c.Records() {
		if len(r.Attempts) > 0 {
			of = append(of, legsOf(r))
		}
	}
	return of
}

// legsOf returns the legs of a request's last attempt, none of one without an attempt.
func legsOf(r harness.Record) (legs []string) {
	if len(r.Attempts) == 0 {
		return nil
	}
	for _, l := range r.Attempts[len(r.Attempts)-1].Legs {
		legs = append(legs, fmt.Sprint(l["engine"], " ", l["outcome"]))
	}
	return legs
}

// lastWordMissed reports whether the gateway has waited for the prefill half for as long as it
// does after the decode half was successful, and then cancelled it. It takes a machine without
// a core to spare.
func lastWordMissed(r harness.Record) bool {
	return time.Duration(r.Stages["finish"]) >= 500*time.Millisecond
}

// A prefill engine that is killed while its decode engine waits ends the request with an
// error. A client that hangs up in any stage frees both engines.
func TestPairsThroughGatewayEnd(t *testing.T) {
	harness.Beside(t, harness.Light)
	for name := range wirePairs {
		t.Run(name, func(t *testing.T) {
			c := startCouple(t, name, "--heartbeat-timeout", "200ms")
			// Hung up on after this many bytes of the answer: before it, and in it.
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

// A vLLM decode engine keeps the pages of a pushed half that was given up until its KV has
// been written into them. Clients that leave earlier leak no pages, since weir lets the
// prefill half run to its end. The control gives both halves up, and the pages leak.
func TestPushedPairsOwe(t *testing.T) {
	harness.Beside(t, harness.Light)
	const name, n = "relay to vllm, push", 8
	c := startCoupleOf(t, name, []string{"--prefill-cost", "1s"}, nil)
	left := func() (s struct {
		Owed, Received, Aborted int
		KV                      int `json:"kv_owed_tokens"`
	}) {
		if err := json.Unmarshal(harness.Get(t, c.decode.url+"/admin/state").Body, &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	received := func(want int) {
		harness.Eventually(t, "the decode halves", func() bool { return left().Received >= want }, c.decode.Process)
	}
	hangUp := func(conns []net.Conn) {
		for _, conn := range conns {
			conn.Close()
		}
	}
	send := func(at, body, header string) net.Conn {
		conn, err := net.Dial("tcp", strings.TrimPrefix(at, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s", header, len(body), body)
		return conn
	}
	began := left().Received
	var conns []net.Conn
	for i := range n {
		conns = append(conns, send(c.URL, fmt.Sprintf(`{"model":"weir-sim","prompt":"Number %d once upon a time","max_tokens":99,"ignore_eos":true,"stream":true}`, i), ""))
	}
	received(began + n)
	hangUp(conns)
	harness.Eventually(t, "the decode halves given up", func() bool { return left().Aborted >= n }, c.decode.Process)
	c.free(t)
	harness.Eventually(t, "no page is kept", func() bool { s := left(); return s.Owed == 0 && s.KV == 0 }, c.decode.Process)

	conns = conns[:0]
	for i := range n {
		id := fmt.Sprintf("X-Request-Id: control-%d\r\n", i)
		conns = append(conns,
			send(c.prefill.url, fmt.Sprintf(`{"prompt":"Number %d in the control","max_tokens":1,"kv_transfer_params":{"do_remote_decode":true}}`, i), id),
			send(c.decode.url, fmt.Sprintf(`{"prompt":"Number %d in the control","max_tokens":99,"ignore_eos":true,"kv_transfer_params":{"do_remote_prefill":true,"remote_engine_id":"P","remote_host":"127.0.0.1","remote_port":%s,"remote_request_id":"x","tp_size":1,"remote_block_ids":null}}`, i, c.prefill.other), id))
	}
	received(began + 2*n)
	hangUp(conns)
	c.prefill.rests(t)
	c.decode.rests(t)
	if s := left(); s.Owed != n || s.KV == 0 {
		t.Errorf("the control has %+v, want the pages of %d halves lost", s, n)
	}
	c.end()
}

// Engines that do both halves stand beside pairs of the same model, and the cost chooses among
// them. With a few long prompts under way, some requests go whole to the engine that does
// both, some go to a pair, and short ones go to vLLM's decode engine alone. Every answer is
// the one that a single engine gives.
func TestPairsBesideWhole(t *testing.T) {
	harness.Beside(t, harness.Light)
	for name, w := range wirePairs {
		t.Run(name, func(t *testing.T) {
			slow := []string{"--cost", "profile=llama-3.1-8b-h100", "--max-total-tokens", "262144"}
			decodeOther := w.other
			if w.wire == "sglang" {
				decodeOther = ""
			}
			p, d := startHalf(t, w.wire, w.other, append(slices.Clip(w.prefill), slow...)...), startHalf(t, w.wire, decodeOther, append(slices.Clip(w.decode), slow...)...)
			b, alone := startHalf(t, w.wire, "", slow...), startHalf(t, w.wire, "")
			roles := [3]string{}
			if w.options == "role" {
				roles = [3]string{",role=prefill", ",role=decode", ",role=both"}
			}
			c := &couple{prefill: p, decode: d}
			c.Gateway = harness.StartGateway(t, "serve", "--engine", w.kind+"="+p.url+",name=p"+roles[0], "--engine", w.kind+"="+d.url+",name=d"+roles[1], "--engine", w.kind+"="+b.url+",name=b"+roles[2])
			harness.Eventually(t, "three engines", func() bool {
				var page []struct{ Ready bool }
				ready := json.Unmarshal(harness.Get(t, c.Admin+"/engines").Body, &page) == nil && len(page) == 3
				for _, e := range page {
					ready = ready && e.Ready
				}
				return ready
			})
			const n = 96
			var all sync.WaitGroup
			for i := range n {
				all.Go(func() {
					prompt := fmt.Sprintf("Number %d, once upon a time", i)
					if i%2 == 0 {
						prompt += strings.Repeat(" there was a fox and a dog", 800)
					}
					a := harness.Post(t, c.URL+"/v1/completions", fmt.Sprintf(`{"model":"weir-sim","prompt":%q,"max_tokens":60,"temperature":0,"ignore_eos":true,"stream":true}`, prompt))
					want := harness.Post(t, alone.url+"/v1/completions", fmt.Sprintf(`{"model":"weir-sim","prompt":%q,"max_tokens":60,"temperature":0,"ignore_eos":true,"stream":true}`, prompt))
					got, done := harness.Streamed(a)
					if one, _ := harness.Streamed(want); !done || got == "" || got != one {
						t.Errorf("request %d: %d, %d bytes of %d", i, a.Status, len(got), len(one))
					}
				})
				time.Sleep(10 * time.Millisecond)
			}
			all.Wait()
			c.free(t)
			b.rests(t)
			c.end()
			b.Interrupt()
			went := map[string]int{}
			for _, legs := range c.pairs() {
				went[strings.Join(legs, ", ")]++
			}
			t.Logf("%v", went)
			if went["b finished"] == 0 || went["p finished, d finished"] == 0 || (went["d finished"] > 0) != (w.wire == "vllm") {
				t.Errorf("requests went to %v", went)
			}
		})
	}
}

// For a repeated prompt the gateway predicts that the prefill engine has it cached, and the
// engine reports the same. The gateway predicts nothing for SGLang's decode engine, which
// caches no prompts without a flag.
func TestPairsCached(t *testing.T) {
	harness.Beside(t, harness.Light)
	for name, w := range wirePairs {
		t.Run(name, func(t *testing.T) {
			flags := []string{"--enable-cache-report"}
			if w.wire == "vllm" {
				flags = nil // a prefill engine says it in what it hands on
			}
			c := startCoupleOf(t, name, flags, flags)
			ask := func() {
				a := harness.Post(t, c.URL+"/v1/completions", fmt.Sprintf(`{"model":"weir-sim","prompt":%q,"max_tokens":3,"ignore_eos":true}`, strings.Repeat("Once upon a time there was a fox. ", 40)))
				if a.Status != 200 {
					t.Fatalf("%d %s", a.Status, a.Body)
				}
				c.free(t)
			}
			ask()
			ask()
			ask()
			c.end()
			all := c.Records()
			choice := all[len(all)-1].Attempts[0].Choice
			type option struct {
				Engine string
				Cached int `json:"predicted_cached_tokens"`
			}
			var said struct {
				Cached  *int `json:"cached_tokens"`
				Best    []option
				Prefill struct{ Best []option }
			}
			if err := json.Unmarshal(choice, &said); err != nil || len(said.Best) != 1 || len(said.Prefill.Best) != 1 {
				t.Fatalf("%s: %v", choice, err)
			}
			p, d := said.Prefill.Best[0].Cached, said.Best[0].Cached
			if p == 0 || (d > 0) != (w.wire == "vllm") {
				t.Errorf("believed to have %d at p and %d at d: %s", p, d, choice)
			}
			if said.Cached == nil || *said.Cached < p-16 || *said.Cached > p+64 {
				t.Errorf("believed %d, and the prefill engine had %v: %s", p, said.Cached, choice)
			}
		})
	}
}
