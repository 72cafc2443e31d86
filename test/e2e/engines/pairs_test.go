package engines

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// half is a simulated engine that does one half of requests.
type half struct {
	*harness.Process
	url, other string // of its wire, and the port where other halves find it
}

// startHalf runs one; other names the line of its second port, if it has one.
func startHalf(t *testing.T, wire, other string, args ...string) half {
	t.Helper()
	h := half{Process: harness.Start(t, append([]string{"engine", "--wire", wire + "=127.0.0.1:0", "--cost", "constant", "--prefill-cost", "2ms", "--decode-cost", "2ms"}, args...)...)}
	h.url = h.Line(wire)
	if other != "" {
		_, h.other, _ = net.SplitHostPort(strings.TrimPrefix(h.Line(other), "http://"))
	}
	return h
}

// rests waits until a half has nothing left of any request.
func (h half) rests(t *testing.T) {
	t.Helper()
	harness.Eventually(t, h.url+" at rest", func() bool {
		var s struct{ Running, Waiting, Kept int }
		return json.Unmarshal(harness.Get(t, h.url+"/admin/state").Body, &s) == nil && s.Running+s.Waiting+s.Kept == 0
	}, h.Process)
}

// Both legs of a request to two processes that speak as SGLang's halves do; and a
// prefill engine that is killed while its decode engine waits, and comes back.
func TestHalvesOfSGLang(t *testing.T) {
	harness.Beside(t, harness.Light)
	alone := startHalf(t, "sglang", "")
	start := func(port string, more ...string) half {
		return startHalf(t, "sglang", "bootstrap", append([]string{"--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", port}, more...)...)
	}
	_, port, _ := net.SplitHostPort(harness.FreeAddress(t))
	prefill := start(port, "--fault", "stuck,id=stuck")
	decode := startHalf(t, "sglang", "", "--role", "decode", "--heartbeat-timeout", "100ms", "--kv-bandwidth", "1e9", "--kv-latency", "1ms")
	body := func(rid string, room int) string {
		return fmt.Sprintf(`{"rid":%q,"text":"Once upon a time","sampling_params":{"max_new_tokens":9,"ignore_eos":true},"bootstrap_host":"127.0.0.1","bootstrap_port":%s,"bootstrap_room":%d}`, rid, port, room)
	}
	type said struct {
		Text    string
		Message string
		Meta    struct {
			CompletionTokens int `json:"completion_tokens"`
		} `json:"meta_info"`
	}
	ask := func(h half, body string) (s said) {
		t.Helper()
		a := harness.Post(t, h.url+"/generate", body)
		if err := json.Unmarshal(a.Body, &s); err != nil {
			t.Errorf("%d %s: %v", a.Status, a.Body, err)
		}
		return s
	}
	pair := func(prefill half, rid string, room int) (p, d said) {
		t.Helper()
		first := make(chan said)
		go func() { first <- ask(prefill, body(rid, room)) }()
		d = ask(decode, body(rid, room))
		return <-first, d
	}
	want := ask(alone, body("alone", 1))
	if p, d := pair(prefill, "first", 2); d.Text != want.Text || want.Text == "" || p.Meta.CompletionTokens != 1 || !strings.HasPrefix(d.Text, p.Text) {
		t.Errorf("prefill %+v, decode %+v, alone %+v", p, d, want)
	}
	prefill.rests(t)
	decode.rests(t)

	waiting := make(chan said)
	go func() { waiting <- ask(decode, body("stuck", 3)) }()
	go func() {
		if resp, err := harness.Client.Post(prefill.url+"/generate", "application/json", strings.NewReader(body("stuck", 3))); err == nil {
			resp.Body.Close() // it never comes to that
		}
	}()
	harness.Eventually(t, "the prefill engine holding KV", func() bool {
		var s struct{ Kept int }
		return json.Unmarshal(harness.Get(t, prefill.url+"/admin/state").Body, &s) == nil && s.Kept == 1
	}, prefill.Process)
	prefill.Kill()
	if d := <-waiting; !strings.Contains(d.Message, "Lost connection with prefill instance (bootstrap_addr: 127.0.0.1:"+port+")") {
		t.Errorf("the decode engine says %+v", d)
	}
	decode.rests(t)

	again := start(port)
	if _, d := pair(again, "again", 4); d.Text != want.Text {
		t.Errorf("afterwards %+v", d)
	}
	again.Interrupt()
	decode.Interrupt()
	alone.Interrupt()
}

// A vLLM prefill engine's answer is handed on to a decode engine. A prefill engine whose KV
// nobody fetches frees it when its lease ends.
func TestHalvesOfVLLM(t *testing.T) {
	harness.Beside(t, harness.Light)
	start := func(role string, more ...string) half {
		return startHalf(t, "vllm", "nixl", append([]string{"--nixl-side-channel-port", "0", "--max-total-tokens", "4096",
			"--kv-transfer-config", `{"kv_connector":"NixlConnector","kv_role":"` + role + `","kv_connector_extra_config":{"kv_lease_duration":2}}`}, more...)...)
	}
	prefill, decode := start("kv_producer"), start("kv_consumer")
	type said struct {
		Choices []struct{ Text string }
		Params  json.RawMessage `json:"kv_transfer_params"`
	}
	ask := func(h half, limit int, params string) (s said) {
		t.Helper()
		a := harness.Post(t, h.url+"/v1/completions", fmt.Sprintf(`{"prompt":"Once upon a time","max_tokens":%d,"ignore_eos":true,"kv_transfer_params":%s}`, limit, params))
		if err := json.Unmarshal(a.Body, &s); err != nil || a.Status != 200 || len(s.Choices) != 1 {
			t.Fatalf("%d %s: %v", a.Status, a.Body, err)
		}
		return s
	}
	whole := ask(prefill, 9, "null")
	first := ask(prefill, 1, `{"do_remote_decode":true,"do_remote_prefill":false}`)
	if d := ask(decode, 9, string(first.Params)); d.Choices[0].Text != whole.Choices[0].Text || whole.Choices[0].Text == "" {
		t.Errorf("decode says %+v, one engine %+v; %s", d, whole, first.Params)
	}
	prefill.rests(t)
	decode.rests(t)
	ask(prefill, 1, `{"do_remote_decode":true}`) // and nobody comes
	prefill.rests(t)
	prefill.Interrupt()
	decode.Interrupt()
}

// The fault die ends the process when a leg comes to its stage.
func TestHalfThatDies(t *testing.T) {
	harness.Beside(t, harness.Light)
	prefill := startHalf(t, "sglang", "bootstrap", "--role", "prefill", "--disaggregation-bootstrap-port", "0", "--fault", "die,stage=bootstrap")
	go func() {
		resp, err := harness.Client.Post(prefill.url+"/generate", "application/json", strings.NewReader(`{"text":"a","bootstrap_host":"127.0.0.1","bootstrap_room":1}`))
		if err == nil {
			resp.Body.Close()
		}
	}()
	prefill.Exits(1)
	if got := prefill.Stderr.String(); !strings.Contains(got, "killed by fault, in stage bootstrap of a request") {
		t.Errorf("it prints %q", got)
	}
}
