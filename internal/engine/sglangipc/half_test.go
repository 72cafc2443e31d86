package sglangipc

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	"weir/internal/engine/sglangipc/schedtest"
	"weir/internal/infer"
)

// halves starts an adapter before the schedulers of a half.
func halves(t *testing.T, mode string) (*peer, *enginetest.Bench) {
	p := newPeerSaying(t, map[string]any{"dp_size": 2, "bootstrap_host": "10.0.0.1",
		"started": map[string]any{"skip_tokenizer_init": false, "disaggregation_mode": mode, "disaggregation_bootstrap_port": 8998}})
	return p, enginetest.Start(t, enginetest.Rig{Engine: New(p.options()), Peer: p, Panics: &p.panics})
}

// request returns what the schedulers have read of one.
func (p *peer) request(id string) (m schedtest.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, add := range p.adds {
		if add.ID() == id {
			m = add
		}
	}
	return m
}

// An engine says its role and where it is met, gets the halves of its role alone, with what
// they need to meet, and is probed by those that have no other.
func TestHalves(t *testing.T) {
	room := engine.Meets{Way: engine.ByRoom, Host: "10.0.0.1", Port: 8998, Ranks: 2}
	for mode, want := range map[string]struct {
		role  infer.Role
		meets engine.Meets
		limit int64 // of ids, of a request for 9
	}{
		"prefill": {infer.RolePrefill, room, 1},
		"decode":  {infer.RoleDecode, engine.Meets{Way: engine.ByRoom}, 9},
	} {
		t.Run(mode, func(t *testing.T) {
			p, b := halves(t, mode)
			if f := b.WaitReady(true).Facts; f.Role != want.role || !f.RoleSaid || f.Meets != want.meets {
				t.Errorf("it says %v (%v) and %+v", f.Role, f.RoleSaid, f.Meets)
			}
			whole := b.Go(b.Ctx, 9)
			if b.Wait(whole); whole.Err == nil || infer.AsError(whole.Err).Code != infer.CodeUnsupported {
				t.Errorf("a whole request: %v", whole.Err)
			}
			req := b.Request(9)
			req.MinTokens = 2
			req.Half = &infer.Half{Role: want.role, Bootstrap: infer.Bootstrap{Host: "10.0.0.9", Port: 7, Room: 1<<63 - 1, Rank: 1}}
			b.Rank = 0
			c := b.GoWith(b.Ctx, req)
			if b.Wait(c); c.Err != nil {
				t.Fatal(c.Err)
			}
			m := p.request(req.ID)
			got := map[string]any{"host": m.Fields["bootstrap_host"]}
			for name, field := range map[string]string{"port": "bootstrap_port", "room": "bootstrap_room", "prefill": "disagg_prefill_dp_rank", "routed": "routed_dp_rank"} {
				got[name] = schedtest.Number(m.Fields[field])
			}
			sampling := m.Fields["sampling_params"].(map[string]any)
			got["most"], got["least"] = schedtest.Number(sampling["max_new_tokens"]), schedtest.Number(sampling["min_new_tokens"])
			if diff := cmp.Diff(map[string]any{"host": "10.0.0.9", "port": int64(7), "room": int64(1<<63 - 1), "prefill": int64(1), "routed": int64(0),
				"most": want.limit, "least": min(want.limit, 2)}, got); diff != "" {
				t.Error(diff)
			}

			probed := make(chan error)
			go func() { probed <- b.Rig.Engine.(engine.Prober).Probe(b.Ctx, engine.Probe{Rank: 1, Model: "test"}) }()
			var probe schedtest.Message
			b.Must(p.mu.Await(b.Ctx, "a probe", func() bool {
				probe = p.adds[len(p.adds)-1]
				return probe.ID() != req.ID
			}))
			if host, room := probe.Fields["bootstrap_host"], schedtest.Number(probe.Fields["bootstrap_room"]); host != "2.2.2.2" || room != 1 || probe.Rank() != 1 {
				t.Errorf("probed with room %d at %v, of rank %d", room, host, probe.Rank())
			}
			p.Step(enginetest.Out{ID: probe.ID(), IDs: []uint32{3}, Finish: infer.ReasonLength})
			if err := <-probed; err != nil {
				t.Error(err)
			}
		})
	}
}

// A prefill half has drawn one id when it ends, and its engine says a length of 0. More
// than one is none.
func TestPrefillEnd(t *testing.T) {
	p, b := halves(t, "prefill")
	start := func() *enginetest.Call {
		req := b.Request(9)
		req.Half = &infer.Half{Role: infer.RolePrefill, Bootstrap: infer.Bootstrap{Host: "h", Rank: -1}}
		c := b.GoWith(b.Ctx, req)
		if b.Wait(c); c.Err != nil {
			t.Fatal(c.Err)
		}
		return c
	}
	say := func(c *enginetest.Call, ids ...uint32) {
		if err := p.now().Step(0, schedtest.Output{ID: c.Request.ID, IDs: ids, Count: len(ids), Prompt: 3, Finish: length(0)}); err != nil {
			t.Fatal(err)
		}
	}
	c := start()
	say(c, 7)
	b.WantFinish(c, infer.ReasonLength)
	if ids := c.Sink.IDs(); len(ids) != 1 || ids[0] != 7 {
		t.Errorf("ids %v", ids)
	}
	c = start()
	say(c, 7, 8)
	if f := b.WantFinish(c, infer.ReasonError); f.Err.Code != infer.CodeIntegrity {
		t.Error(f.Err)
	}
	c = start()
	c.Gen.Abort() // at once
	b.Must(p.Aborted(b.Ctx, c.Request.ID))
	p.Step(enginetest.Out{ID: c.Request.ID, Finish: infer.ReasonAbort})
	b.WantFinish(c, infer.ReasonAbort)
}

// The abort of a decode half reaches the schedulers when it has had an id, or when nothing
// is handed over any more. What the two engines were to each other is neither's fault.
func TestDeferredAbort(t *testing.T) {
	p, b := halves(t, "decode")
	half := func() *enginetest.Call {
		req := b.Request(9)
		req.Half = &infer.Half{Role: infer.RoleDecode, Bootstrap: infer.Bootstrap{Host: "h", Rank: -1}}
		c := b.GoWith(b.Ctx, req)
		if b.Wait(c); c.Err != nil {
			t.Fatal(c.Err)
		}
		return c
	}
	decoding, unmet, failed := half(), half(), half()
	for _, c := range []*enginetest.Call{decoding, unmet, failed} {
		c.Gen.Abort()
	}
	last := half() // what was to be said before is said
	for _, c := range []*enginetest.Call{decoding, unmet, failed} {
		if p.Aborted(done(), c.Request.ID) == nil {
			t.Errorf("the abort of %s did not wait", c.Request.ID)
		}
	}
	p.Step(enginetest.Out{ID: decoding.Request.ID, IDs: []uint32{5}})
	engine.Released(unmet.Gen)
	for _, c := range []*enginetest.Call{decoding, unmet} {
		b.Must(p.Aborted(b.Ctx, c.Request.ID))
		p.Step(enginetest.Out{ID: c.Request.ID, Finish: infer.ReasonAbort})
		b.WantFinish(c, infer.ReasonAbort)
	}
	why := abortReason(500)
	why["message"] = "Decode transfer failed for request rank=0 with exception KVTransferError(bootstrap_room=7): Lost connection"
	for _, c := range []*enginetest.Call{failed, last} {
		if err := p.now().Step(0, schedtest.Output{ID: c.Request.ID, Prompt: 3, Finish: why}); err != nil {
			t.Fatal(err)
		}
		if f := b.WantFinish(c, infer.ReasonError); f.Err.Code != infer.CodeEngine || !f.Err.Handover || !f.Err.Retryable {
			t.Error(f.Err)
		}
	}
	enginetest.GivenUp(b, infer.Bootstrap{Host: "h", Rank: -1})
}

// The abort of a decode half is sent at once to schedulers that keep its pages by themselves.
func TestHeldAbort(t *testing.T) {
	p := newPeerSaying(t, map[string]any{"dp_size": 1, "sglang": "0.5.23",
		"started": map[string]any{"skip_tokenizer_init": false, "disaggregation_mode": "decode", "disaggregation_bootstrap_port": 8998, "disaggregation_transfer_backend": "nixl"}})
	b := enginetest.Start(t, enginetest.Rig{Engine: New(p.options()), Peer: p, Panics: &p.panics})
	req := b.Request(9)
	req.Half = &infer.Half{Role: infer.RoleDecode, Bootstrap: infer.Bootstrap{Host: "h", Rank: -1}}
	c := b.GoWith(b.Ctx, req)
	if b.Wait(c); c.Err != nil {
		t.Fatal(c.Err)
	}
	began := time.Now()
	c.Gen.Abort()
	b.Must(p.Aborted(b.Ctx, req.ID))
	if took := time.Since(began); took > 20*time.Second { // one that waits takes 30 s
		t.Errorf("the abort came after %v", took)
	}
	p.Step(enginetest.Out{ID: req.ID, Finish: infer.ReasonAbort})
	b.WantFinish(c, infer.ReasonAbort)
}
