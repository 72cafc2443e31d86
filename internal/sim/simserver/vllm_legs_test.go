package simserver

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/sim"
	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/flags"
)

// transferring returns the options of an engine of vLLM's that takes part in pairs.
func transferring(name string, push bool, kv int) Options {
	return Options{
		Sim:  sim.Options{KVTokens: kv, Transfer: sim.Transfer{BytesPerToken: 1000, Bandwidth: 1e6}},
		Legs: engine.LegsOptions{EngineID: "engine-" + name},
		VLLM: flags.VLLM{PromptTokensDetails: true, Transfer: &flags.Transfer{Push: push, Host: name, Port: 5600}},
	}
}

// prefilled sends a prefill leg, and gives what it answers under
// kv_transfer_params.
func prefilled(t *testing.T, h *half, id string) jsontext.Value {
	t.Helper()
	a := h.c.post(context.Background(), h.vllm+"/v1/completions",
		`{"prompt":"`+prompt40+`","max_tokens":1,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}}`, "X-Request-Id", id)
	var answer struct {
		Params jsontext.Value `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal([]byte(a.text), &answer); err != nil || a.status != 200 || answer.Params.Kind() != '{' {
		t.Fatalf("%d %s: %v", a.status, a.text, err)
	}
	if a.took > 11*time.Millisecond {
		t.Errorf("the prefill leg was answered after %v", a.took)
	}
	return answer.Params
}

func decodeBody(params string, more string) string {
	return fmt.Sprintf(`{"prompt":%q,"max_tokens":12,"ignore_eos":true%s,"kv_transfer_params":%s}`, prompt40, more, params)
}

// TestVLLMPull hands on what a prefill engine answers: the decode engine says what
// one alone says, and both have nothing left.
func TestVLLMPull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t)
		p, d := c.start("p", transferring("p", false, 4096)), c.start("d", transferring("d", false, 4096))
		alone := texts(t, c.post(context.Background(), c.start("alone", Options{}).vllm+"/v1/completions", decodeBody("null", "")))
		for i, more := range []string{"", `,"stream":true,"stream_options":{"include_usage":true}`} {
			params := prefilled(t, p, fmt.Sprintf("id%d", i))
			for _, want := range []string{
				`"do_remote_prefill":true,"do_remote_decode":false`, `"remote_engine_id":"engine-p"`, `"remote_host":"p","remote_port":5600`, fmt.Sprintf(`"remote_request_id":"cmpl-id%d-0-`, i),
				`"tp_size":1`, `"remote_num_tokens":40`, `"remote_blocks_expiry_time":null`, `"transfer_mode":"pull"`, fmt.Sprintf(`"remote_prefill_cached_tokens":%d`, i*32),
			} {
				if !strings.Contains(string(params), want) {
					t.Errorf("no %s in %s", want, params)
				}
			}
			if i == 0 && !strings.Contains(string(params), `"remote_block_ids":[[1,2,3]]`) {
				t.Errorf("blocks in %s", params)
			}
			if s := p.e.State(); s.Kept != 1 {
				t.Fatalf("the prefill engine holds %d", s.Kept)
			}
			a := c.post(context.Background(), d.vllm+"/v1/completions", decodeBody(string(params), more))
			if got := texts(t, a); strings.TrimSuffix(got, "|") != strings.TrimSuffix(alone, "|") || a.status != 200 {
				t.Errorf("%d %s, want %s", a.status, a.text, alone)
			}
			// The second prompt is in the decode engine's own cache but for its end.
			transfer := 40 * time.Millisecond
			if i == 1 {
				transfer = 8 * time.Millisecond
			}
			if want := transfer + 12*5*time.Millisecond; a.took != want {
				t.Errorf("decode took %v, want %v", a.took, want)
			}
			if want := fmt.Sprintf(`"cached_tokens":%d`, i*32); !strings.Contains(a.text, want) {
				t.Errorf("no %s in %s", want, a.text)
			}
			rest(t, p, d)
		}
	})
}

// TestVLLMPush sends both legs at once with one X-Request-Id: they meet by it.
func TestVLLMPush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t)
		p, d := c.start("p", transferring("p", true, 4096)), c.start("d", transferring("d", true, 4096))
		alone := texts(t, c.post(context.Background(), c.start("alone", Options{}).vllm+"/v1/completions", decodeBody("null", "")))
		params := `{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"engine-p","remote_host":"p","remote_port":5600,"tp_size":1,"remote_request_id":"any","remote_block_ids":null}`
		for _, first := range []time.Duration{0, time.Second} { // of the decode leg
			got := make(chan saidAnswer)
			go func() {
				got <- c.post(context.Background(), d.vllm+"/v1/completions", decodeBody(params, ""), "X-Request-Id", "same")
			}()
			time.Sleep(first)
			if answer := prefilled(t, p, "same"); !strings.Contains(string(answer), `"transfer_mode":"push"`) || strings.Contains(string(answer), "expiry") {
				t.Errorf("%s", answer)
			}
			if a := <-got; texts(t, a) != alone {
				t.Errorf("%d %s, want %s", a.status, a.text, alone)
			}
		}
		rest(t, p, d)
	})
}

// TestVLLMPairFails has pairs of vLLM's come to nothing.
func TestVLLMPairFails(t *testing.T) {
	edit := func(params jsontext.Value, name, value string) string {
		var m map[string]jsontext.Value
		_ = json.Unmarshal(params, &m)
		if m[name] = jsontext.Value(value); value == "" {
			delete(m, name)
		}
		b, _ := json.Marshal(m)
		return string(b)
	}
	for _, x := range []struct {
		name    string
		push    bool
		policy  bool // recompute
		params  func(c *couple, p *half, answered jsontext.Value) string
		wait    time.Duration // of the client
		says    string
		at      time.Duration
		dies    string
		garbled bool
	}{
		{name: "prefill engine killed", params: func(_ *couple, p *half, a jsontext.Value) string { p.kill(); return string(a) }, says: "500 Internal server error", at: 5 * time.Second},
		{name: "recomputed", policy: true, params: func(_ *couple, p *half, a jsontext.Value) string { p.kill(); return string(a) }, says: "200", at: 5*time.Second + 10*time.Millisecond + 55*time.Millisecond},
		{name: "another engine id", params: func(_ *couple, _ *half, a jsontext.Value) string { return edit(a, "remote_engine_id", `"other"`) }, says: "500 Internal server error", at: 0},
		{name: "no remote_request_id", params: func(_ *couple, _ *half, a jsontext.Value) string { return edit(a, "remote_request_id", "") }, wait: time.Hour, says: "0", at: time.Hour},
		{name: "no blocks", params: func(_ *couple, _ *half, a jsontext.Value) string { return edit(a, "remote_block_ids", "[]") }, says: "0", dies: "AssertionError"},
		{name: "pushed, a key is missing", push: true, params: func(_ *couple, _ *half, a jsontext.Value) string { return edit(a, "remote_request_id", "") }, says: "0", dies: "KeyError: 'remote_request_id'"},
		{name: "pushed, other ids", push: true, params: func(_ *couple, _ *half, a jsontext.Value) string { return string(a) }, wait: 25 * time.Second, says: "0", at: 25 * time.Second},
		{name: "twice", params: func(c *couple, p *half, a jsontext.Value) string {
			c.post(context.Background(), "http://d:8000/v1/completions", decodeBody(string(a), ""))
			return string(a)
		}, says: "200", at: 8*time.Millisecond + 60*time.Millisecond},
		{name: "expired", params: func(_ *couple, _ *half, a jsontext.Value) string { time.Sleep(31 * time.Second); return string(a) }, says: "200", at: 100 * time.Millisecond},
		{name: "expired and evicted", params: func(c *couple, p *half, a jsontext.Value) string {
			time.Sleep(31 * time.Second)
			c.post(context.Background(), p.vllm+"/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":1}`, strings.Repeat("x", 120)))
			return string(a)
		}, says: "200", at: 100 * time.Millisecond, garbled: true},
		{name: "no params at all", params: func(*couple, *half, jsontext.Value) string { return "null" }, says: "200", at: 10*time.Millisecond + 55*time.Millisecond},
	} {
		t.Run(strings.NewReplacer(" ", "-", ",", "").Replace(x.name), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCouple(t)
				o := transferring("d", x.push, 4096)
				o.VLLM.Transfer.Recompute = x.policy
				p, d := c.start("p", transferring("p", x.push, 128)), c.start("d", o)
				alone := texts(t, c.post(context.Background(), c.start("alone", Options{}).vllm+"/v1/completions", decodeBody("null", "")))
				params := x.params(c, p, prefilled(t, p, "one"))
				ctx := context.Background()
				if x.wait > 0 {
					bounded, cancel := context.WithTimeout(ctx, x.wait)
					defer cancel()
					ctx = bounded
				}
				a := c.post(ctx, d.vllm+"/v1/completions", decodeBody(params, ""), "X-Request-Id", "other")
				got := fmt.Sprint(a.status)
				if a.status > 200 {
					got = brief(t, a)
				}
				if got != x.says || a.took != x.at {
					t.Errorf("%s after %v, want %s after %v: %s %v", got, a.took, x.says, x.at, a.text, a.err)
				}
				if a.status == 200 && (texts(t, a) == alone) == x.garbled {
					t.Errorf("garbled: want %v, %s, alone %s", x.garbled, a.text, alone)
				}
				synctest.Wait()
				if died := d.e.Died(); (died != nil) != (x.dies != "") || died != nil && !strings.Contains(died.Error(), x.dies) {
					t.Errorf("the engine died of %v, want %q", died, x.dies)
				}
				time.Sleep(10 * time.Minute) // leases end
				for _, h := range []*half{p, d} {
					if s := h.e.State(); h.e.runs() && (s.Running != 0 || s.Waiting != 0 || s.Kept != 0) {
						t.Errorf("%s: %+v", h.vllm, s)
					}
				}
			})
		})
	}
}

// TestVLLMPrefillLost kills a prefill engine whose KV is awaited: who reads it finds out
// at once, who waits for it to be written never does.
func TestVLLMPrefillLost(t *testing.T) {
	for _, push := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newCouple(t)
			p, d := c.start("p", transferring("p", push, 4096)), c.start("d", transferring("d", push, 4096))
			p.fault("stuck")
			params := prefilled(t, p, "same")
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			answer := make(chan saidAnswer)
			go func() {
				answer <- c.post(ctx, d.vllm+"/v1/completions", decodeBody(string(params), ""), "X-Request-Id", "same")
			}()
			time.Sleep(time.Second)
			p.kill()
			a := <-answer
			if want := time.Second; !push && (a.status != 500 || a.took != want) || push && (a.status != 0 || a.took != time.Minute) {
				t.Errorf("push %v: %d after %v: %s %v", push, a.status, a.took, a.text, a.err)
			}
			time.Sleep(time.Second)
			rest(t, d)
		})
	}
}

// TestVLLMOwedKV hangs up on decode halves whose KV is to be pushed: their pages are kept
// until the prefill half has written it, without a bound, and for ever where that one is
// given up before.
func TestVLLMOwedKV(t *testing.T) {
	for _, given := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newCouple(t)
			p, d := c.start("p", transferring("p", true, 4096)), c.start("d", transferring("d", true, 4096))
			params := `{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"engine-p","remote_host":"p","remote_port":5600,"tp_size":1,"remote_request_id":"any","remote_block_ids":null}`
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			c.post(ctx, d.vllm+"/v1/completions", decodeBody(params, ""), "X-Request-Id", "same")
			time.Sleep(time.Hour)
			if s := d.e.State(); s.Owed != 1 || s.KVOwed < 40 || s.KVUsed != 0 || s.Running+s.Waiting+s.Kept != 0 || s.Aborted != 1 {
				t.Errorf("it is given up, and nobody has written: %+v", s)
			}
			if given {
				ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
				defer cancel()
				c.post(ctx, p.vllm+"/v1/completions", `{"prompt":"`+prompt40+`","max_tokens":1,"kv_transfer_params":{"do_remote_decode":true}}`, "X-Request-Id", "same")
			} else {
				prefilled(t, p, "same")
			}
			time.Sleep(time.Hour)
			if s := d.e.State(); (s.Owed == 1) != given || (s.KVOwed > 0) != given {
				t.Errorf("the prefill half given up: %v: %+v", given, s)
			}
			if s := p.e.State(); s.Running+s.Waiting+s.Kept != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}
