package vllmcore

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/tinylib/msgp/msgp"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	"weir/internal/engine/vllmcore/coretest"
	"weir/internal/infer"
	"weir/internal/trace"
)

// last returns the request that came last.
func (p *peer) last() coretest.Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.adds[len(p.adds)-1]
}

// A prefill half asks for one id, whatever is asked of the other half, and what the engine
// answers goes to the decode engine as it came.
func TestHalves(t *testing.T) {
	p := newPeer(t, "0.33.0")
	b := startBench(t, p, nil)
	b.WaitReady(true)
	meets := &engine.Meets{Way: engine.ByPull}
	req := b.Request(40)
	two := 2
	req.MinTokens, req.Logprobs, req.Guide = 3, &two, &infer.Guide{Kind: infer.GuideRegex, Text: "a+"}
	req.Half = &infer.Half{Role: infer.RolePrefill, Params: meets.PrefillParams("a")}
	sink := b.NewSink(1)
	if _, err := b.Rig.Engine.Generate(b.Ctx, req, 1, sink, new(trace.Leg)); err != nil {
		t.Fatal(err)
	}
	add := p.last()
	if got := slices.Sorted(maps.Keys(add.Sampling)); coretest.Number(add.Sampling["max_tokens"]) != 1 ||
		!slices.Equal(got, []string{"_all_stop_token_ids", "_eos_token_id", "extra_args", "max_tokens", "stop_token_ids"}) {
		t.Errorf("asked of prefill: %v", add.Sampling)
	}
	if got := fmt.Sprint(add.Transfer()); got != "map[do_remote_decode:true do_remote_prefill:false]" {
		t.Errorf("params of prefill: %s", got)
	}
	handed := coretest.Prefilled(&add, "e\"ngine", "127.0.0.1", 5600, false)
	handed["remote_prefill_cached_tokens"] = int64(32)
	handed["more"] = []any{uint64(math.MaxUint64), int64(math.MinInt64), 0.25, nil, true, "é\n\u2028", map[string]any{}, []any{}}
	p.mu.Update(func() {
		// An engine may have left the prompt's end to the other.
		p.core.Send(coretest.Batch{Outputs: []coretest.Output{{ID: add.ID, IDs: []uint32{9}, Finish: finishLength, Prompt: len(add.Prompt) - 1, Cached: 1, Transfer: handed}}})
		p.requests[add.ID].ended_ = true
	})
	f, err := sink.WaitFinish(b.Ctx)
	if err != nil || f.Err != nil || f.Reason != infer.ReasonLength {
		t.Fatalf("%+v, %v", f, err)
	}
	if err := engine.CheckHanded(f.Params); err != nil {
		t.Errorf("%s: %v", f.Params, err)
	}

	req = b.Request(2)
	req.Half = &infer.Half{Role: infer.RoleDecode, Params: f.Params}
	sink = b.NewSink(1)
	if _, err := b.Rig.Engine.Generate(b.Ctx, req, 1, sink, new(trace.Leg)); err != nil {
		t.Fatal(err)
	}
	add = p.last()
	if got, want := fmt.Sprint(add.Transfer()), fmt.Sprint(handed); got != want {
		t.Errorf("handed on: %s, want %s", got, want)
	}
	if coretest.Number(add.Sampling["max_tokens"]) != 2 {
		t.Errorf("asked of decode: %v", add.Sampling)
	}
	p.Step(enginetest.Out{ID: req.ID, IDs: []uint32{1, 2}, Finish: infer.ReasonLength})
	if f, err = sink.WaitFinish(b.Ctx); err != nil || f.CachedTokens != 32 {
		t.Errorf("cached tokens are not prefill's: %+v, %v", f, err)
	}
	if s := sink.Stamps(); s == nil || s.QueueEnd == 0 || s.WaitingToRunning != s.QueueEnd {
		t.Errorf("it ran when %+v", s)
	}
}

// Engines say how their halves meet by what they answer to one, before anybody can use them.
func TestMeets(t *testing.T) {
	p, q := newPeer(t, "0.33.0"), &peer{}
	*q = peer{t: t, ctx: p.ctx, version: "0.33.0", index: 1, dir: p.dir, requests: map[string]*peerRequest{}, aborted: map[string]int{}}
	answer := func(id string, port int, finish int) func(a coretest.Request) coretest.Output {
		return func(a coretest.Request) coretest.Output {
			if len(a.Prompt) != 1 || coretest.Number(a.Sampling["max_tokens"]) != 1 || fmt.Sprint(a.Transfer()) != "map[do_remote_decode:true do_remote_prefill:false]" {
				t.Errorf("asked for %+v", a)
			}
			o := coretest.Output{ID: a.ID, IDs: []uint32{4}, Finish: finish, Prompt: 1}
			if id != "" {
				o.Transfer = coretest.Prefilled(&a, id, "10.0.0.1", port, true)
			}
			return o
		}
	}
	p.mu.Update(func() { p.meets = answer("e_dp0", 5600, finishLength) })
	b := startBench(t, p, func(o *Options) { o.Engines, o.AskHalves = 2, true })
	e := b.Rig.Engine.(*Engine)
	until := func(what string, ok func() bool) {
		t.Helper()
		for !ok() {
			if b.Ctx.Err() != nil {
				t.Fatalf("not %s: %+v", what, e.state())
			}
			time.Sleep(time.Millisecond) // of a poll
		}
	}
	said := func(rank int) bool {
		s := e.ranks[rank].current.Load()
		return s != nil && s.meeting.said.Load() != nil
	}
	want := engine.Meets{Way: engine.ByPush, Host: "10.0.0.1", Port: 5600, EngineID: "e", TP: 1, DCP: 1, PP: 1, Whole: true}
	for _, x := range []struct {
		meets func(a coretest.Request) coretest.Output
		ready bool
	}{
		{answer("other_dp1", 5601, finishLength), false},
		{answer("e_dp1", 5600, finishLength), false},
		{answer("e_dp1", 5601, finishStop), true},
	} {
		q.mu.Update(func() { q.meets = x.meets })
		q.Restore()
		until("answered", func() bool { return said(1) })
		if f := e.state().Facts; f.Meets != want || f.SideBySide == 2 != x.ready || f.Ranks[1].Ready != x.ready {
			t.Errorf("%+v", f)
		}
		q.Cut()
		until("gone", func() bool { return !said(1) })
	}
	for _, x := range []struct {
		says  string
		meets func(a coretest.Request) coretest.Output
	}{
		{"has not reported yet", nil},
		{"--kv-transfer-config", answer("", 0, finishLength)},
		{`prefill half with "error"`, answer("", 0, finishError)},
		{"want an id that ends in _dp0", answer("e", 5600, finishLength)},
	} {
		p.Cut()
		until("gone", func() bool { return !said(0) })
		p.mu.Update(func() { p.meets = x.meets })
		p.Restore()
		waitWord(b, x.says)
	}
}

// Parameters that would end the engine, or say nothing, are not sent. A decode half without
// handed-over parameters is a whole request.
func TestHalvesRefused(t *testing.T) {
	push := &engine.Meets{Way: engine.ByPush, Host: "h", Port: 1, EngineID: "e"}
	good := string(push.DecodeParams(-1, "r"))
	for _, x := range []struct {
		half infer.Half
		ok   bool
	}{
		{infer.Half{Role: infer.RolePrefill, Params: push.PrefillParams("r")}, true},
		{infer.Half{Role: infer.RoleDecode, Params: []byte(good)}, true},
		{infer.Half{Role: infer.RoleDecode}, true},
		{infer.Half{Role: infer.RolePrefill}, false},
		{infer.Half{Role: infer.RoleDecode, Params: []byte(`null`)}, false},
		{infer.Half{Role: infer.RoleDecode, Params: []byte(`{`)}, false},
		{infer.Half{Role: infer.RoleDecode, Params: []byte(strings.Replace(good, `"remote_request_id"`, `"x"`, 1))}, false},
		{infer.Half{Role: infer.RoleDecode, Params: []byte(strings.Replace(good, `"tp_size":1`, `"tp_size":null`, 1))}, false},
		{infer.Half{Role: infer.RoleDecode, Bootstrap: infer.Bootstrap{Host: "h", Room: 1}, Params: []byte(`[]`)}, false},
	} {
		req := &infer.Request{ID: "a", Prompt: []uint32{1}, MaxTokens: 8, Half: &x.half}
		if err := check(req, &Options{}, 0); (err == nil) != x.ok {
			t.Errorf("%s %s: %v", x.half.Role, x.half.Params, err)
		}
	}
}

// JSON becomes msgpack and msgpack JSON, and nothing of it is lost.
func FuzzParams(f *testing.F) {
	for _, s := range []string{`{"a":[[1,2,3],[]],"b":{"c":null},"d":-9223372036854775808,"e":18446744073709551615,"f":1.5,"g":"é\u2028\u0000\"","":true}`, `{}`, `{"a":1e400,"b":0.1,"c":1E2}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		v := jsontext.Value(bytes.Clone(raw))
		if v.Kind() != '{' || !v.IsValid() {
			return
		}
		wire := appendJSON([]byte{0xc0}, raw)[1:]
		if rest, err := msgp.Skip(wire); err != nil || len(rest) > 0 {
			t.Fatalf("%s: %v, %d bytes left", raw, err, len(rest))
		}
		back := paramsJSON(wire)
		if back == nil {
			t.Fatalf("%s: no JSON", raw)
		}
		var want, got any
		if err := json.Unmarshal(raw, &want); err != nil {
			return // a number that no float64 holds
		}
		if err := json.Unmarshal(back, &got); err != nil {
			t.Fatal(err)
		}
		if a, b := fmt.Sprint(want), fmt.Sprint(got); a != b {
			t.Fatalf("%s became %s", raw, back)
		}
	})
}

func BenchmarkParams(b *testing.B) {
	blocks := strings.Repeat("123456,", 1<<13) // of 128 Ki tokens
	raw := []byte(`{"remote_block_ids":[[` + blocks[:len(blocks)-1] + `]],"remote_engine_id":"e"}`)
	var wire []byte
	b.Run("to", func(b *testing.B) {
		for b.Loop() {
			wire = appendJSON(wire[:0], raw)
		}
	})
	b.Run("from", func(b *testing.B) {
		for b.Loop() {
			paramsJSON(wire)
		}
	})
}
