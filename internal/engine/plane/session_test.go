package plane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	"weir/internal/engine/mux"
	"weir/internal/engine/plane/planepb"
	"weir/internal/infer"
)

// start runs an Engine against a peer.
func start(t *testing.T, p *peer, o Options) (*enginetest.Bench, *Engine) {
	e := New(o)
	return enginetest.Start(t, enginetest.Rig{Engine: e, Peer: p, Clock: true}), e
}

// last returns the peer's session of now.
func (p *peer) last() *peerSession {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.session
}

// aborted counts the aborts that the peer has seen.
func (p *peer) aborted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.aborts
}

func slotOf(p *peer, c *enginetest.Call) uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests[c.Request.ID].slot
}

// A fault that ends a session ends its generations with an integrity error that holds evidence, and
// the next session works.
func TestSessionFaultsOverTheWire(t *testing.T) {
	marshal := func(s *planepb.Step) raw {
		b, err := proto.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, c := range []struct {
		name string
		want mux.FaultReason
		bad  func(slot uint32) any
	}{
		{"gap", FaultSequence, func(slot uint32) any {
			return &planepb.Step{Sequence: 3, Slot: []uint32{slot}, Total: []uint32{2}, Id: []uint32{6}}
		}},
		{"repeated", FaultSequence, func(slot uint32) any {
			return &planepb.Step{Sequence: 1, Slot: []uint32{slot}, Total: []uint32{1}, Id: []uint32{5}}
		}},
		{"unknown slot", FaultSlot, func(slot uint32) any {
			return &planepb.Step{Sequence: 2, Slot: []uint32{slot + 1}, Total: []uint32{1}, Id: []uint32{5}}
		}},
		{"columns", FaultColumns, func(slot uint32) any {
			return &planepb.Step{Sequence: 2, Slot: []uint32{slot}, Total: []uint32{2}}
		}},
		{"truncated", mux.FaultMalformed, func(slot uint32) any {
			b := marshal(&planepb.Step{Sequence: 2, Slot: []uint32{slot}, Total: []uint32{2}, Id: []uint32{600}})
			return b[:len(b)-1]
		}},
		{"garbage", mux.FaultMalformed, func(uint32) any { return raw("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff") }},
		{"oversized", FaultOversized, func(slot uint32) any {
			return &planepb.Step{Sequence: 2, Slot: make([]uint32, 5000)}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPeer(t, "bufconn")
			o := p.options()
			o.MaxStep, o.BackoffMin = 4096, time.Millisecond
			b, e := start(t, p, o)
			call, unheard := b.Accept(10), b.Accept(10)
			p.Step(enginetest.Out{ID: call.Request.ID, IDs: []uint32{5}})
			b.Must(call.Sink.WaitIDs(b.Ctx, 1))
			slot := slotOf(p, call)
			if c.want == FaultSlot {
				slot = slotOf(p, unheard) // the one above it is free
			}
			p.last().send(c.bad(slot))
			end := b.WantFinish(call, infer.ReasonError)
			var fault *mux.Fault
			if !errors.As(end.Err, &fault) || fault.Reason != c.want || len(fault.Frames) == 0 || !end.Err.Retryable {
				t.Fatalf("finish %v", end)
			}
			if end.Err.Code != infer.CodeIntegrity || end.Err.Engine != "e1" {
				t.Fatalf("finish %+v", end.Err)
			}
			if end := b.WantFinish(unheard, infer.ReasonError); !end.Err.Retryable {
				t.Fatalf("finish %v of one without output", end)
			}
			if n := e.Figures().Lost[mux.LossIntegrity]; n != 1 {
				t.Fatalf("%d sessions lost by integrity", n)
			}
			if !slices.Equal(call.Sink.IDs(), []uint32{5}) {
				t.Fatalf("ids %v", call.Sink.IDs())
			}
		})
	}
}

func TestComesBackAfterIntegrityLoss(t *testing.T) {
	p := newPeer(t, "bufconn")
	b, e := start(t, p, p.options())
	call := b.Accept(10)
	before := p.last()
	before.send(&planepb.Step{Sequence: 9})
	b.WantFinish(call, infer.ReasonError)
	b.Must(p.mu.Await(b.Ctx, "a new session", func() bool { return p.session != before }))
	for e.current.Load() == nil || e.current.Load().id == before.id {
		b.WaitReady(true)
	}
	b.Barrier()
	if f := e.Figures(); f.Sessions != 2 || f.Live != 0 {
		t.Fatalf("figures %+v", f)
	}
}

func TestEngineEndsSession(t *testing.T) {
	for code, why := range map[codes.Code]mux.Loss{
		codes.OK: mux.LossEngine, codes.Internal: mux.LossEngine, codes.ResourceExhausted: mux.LossEngine,
		codes.Unavailable: mux.LossConnection,
	} {
		t.Run(code.String(), func(t *testing.T) {
			p := newPeer(t, "bufconn")
			b, e := start(t, p, p.options())
			call := b.Accept(10)
			s := p.last()
			s.endWith = status.Error(code, "scripted") // nil for OK
			s.stop.Do(func() { close(s.end) })
			if end := b.WantFinish(call, infer.ReasonError); end.Err.Code != infer.CodeEngine {
				t.Fatalf("finish %v", end)
			}
			if f := e.Figures(); f.Lost[why] != 1 {
				t.Fatalf("figures %+v", f)
			}
		})
	}
}

// The codes of Submit's refusals, and what each means for slot and session.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		code      codes.Code
		want      infer.Code
		retryable bool
		live      int // slots held afterwards
		lost      uint64
	}{
		{codes.InvalidArgument, infer.CodeInvalid, false, 0, 0},
		{codes.ResourceExhausted, infer.CodeOverloaded, true, 0, 0},
		{codes.Unavailable, infer.CodeUnavailable, true, 0, 0},
		{codes.Internal, infer.CodeEngine, true, 0, 0},
		{codes.AlreadyExists, infer.CodeIntegrity, true, 1, 0},
		{codes.FailedPrecondition, infer.CodeUnavailable, true, 0, 1},
	} {
		t.Run(c.code.String(), func(t *testing.T) {
			p := newPeer(t, "bufconn")
			b, e := start(t, p, p.options())
			before := p.last()
			p.mu.Update(func() { p.refuse = c.code })
			call := b.Go(b.Ctx, 4)
			b.Wait(call)
			var err *infer.Error
			if !errors.As(call.Err, &err) || err.Code != c.want || err.Retryable != c.retryable || err.Engine != "e1" {
				t.Fatalf("error %+v", call.Err)
			}
			if c.lost > 0 {
				b.Must(p.mu.Await(b.Ctx, "a new session", func() bool { return p.session != before }))
				if n := e.Figures().Lost[mux.LossForgotten]; n != c.lost {
					t.Fatalf("%d sessions forgotten", n)
				}
			} else if f := e.Figures(); f.Live != c.live {
				t.Fatalf("%d slots held, want %d", f.Live, c.live)
			}
			b.WaitReady(true)
		})
	}
}

func TestTooLargeToSubmit(t *testing.T) {
	p := newPeer(t, "bufconn")
	o := p.options()
	o.MaxSubmit = 1000
	b, e := start(t, p, o)
	req := b.Request(4)
	req.Prompt = make([]uint32, 2000)
	call := &enginetest.Call{Sink: b.NewSink(1)}
	_, err := e.Generate(b.Ctx, req, 1, call.Sink, &call.Leg)
	if got := infer.AsError(err); got.Code != infer.CodeTooLarge || got.Retryable || e.Figures().Live != 0 {
		t.Fatalf("error %v, figures %+v", err, e.Figures())
	}
	b.Barrier()
}

// A Submit that hangs ends with its context; the slot stays held, and when the
// engine turns out to have the request, it is aborted again and dropped.
func TestSubmitHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t, "bufconn")
		b, e := start(t, p, p.options())
		p.Hold()
		ctx, cancel := context.WithTimeout(b.Ctx, 5*time.Second)
		defer cancel()
		began := time.Now()
		call := b.Go(ctx, 4)
		b.Wait(call)
		if got := infer.AsError(call.Err); got.Code != infer.CodeDeadline || !got.Retryable || got.Engine != "e1" {
			t.Fatalf("error %+v", got)
		}
		if d := time.Since(began); d != 5*time.Second {
			t.Fatalf("after %v", d)
		}
		b.Must(p.Aborted(b.Ctx, call.Request.ID))
		p.Step(enginetest.Out{ID: call.Request.ID, IDs: []uint32{5}})
		synctest.Wait()
		if f := e.Figures(); f.Live != 1 || f.Late != 1 || p.aborted() != 2 {
			t.Fatalf("figures %+v, %d aborts", f, p.aborted())
		}
		p.Step(enginetest.Out{ID: call.Request.ID, Finish: infer.ReasonAbort})
		synctest.Wait()
		if f := e.Figures(); f.Live != 0 {
			t.Fatalf("figures %+v", f)
		}
		b.Stop()
		p.Cut()
	})
}

// An engine that falls silent is given up after the bound, not before, and one
// that only leaves pings unanswered is not.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t, "bufconn")
		b, e := start(t, p, p.options())
		call := b.Accept(1000)
		p.mu.Update(func() { p.mute = true })
		for range 50 {
			time.Sleep(2 * time.Second) // of the bubble's clock
			p.Step(enginetest.Out{ID: call.Request.ID, IDs: []uint32{5}})
		}
		synctest.Wait()
		if got := len(call.Sink.IDs()); got != 50 || e.Figures().Sessions != 1 {
			t.Fatalf("%d ids, figures %+v", got, e.Figures())
		}
		time.Sleep(28 * time.Second)
		synctest.Wait()
		if e.Figures().Lost[mux.LossSilent] != 0 {
			t.Fatal("given up before the bound")
		}
		time.Sleep(4 * time.Second)
		synctest.Wait()
		end, err := call.Sink.WaitFinish(done())
		if err != nil || end.Err.Code != infer.CodeEngine || e.Figures().Lost[mux.LossSilent] != 1 {
			t.Fatalf("%v, finish %v, figures %+v", err, end, e.Figures())
		}
		b.Stop()
		p.Cut()
	})
}

// The tries to connect are spaced, the state says why there is no session, and
// says so once.
func TestBackoffWhileGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t, "bufconn")
		p.Cut()
		e := New(p.options())
		ctx, cancel := context.WithCancel(t.Context())
		var states []engine.State
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			e.Run(ctx, func(s engine.State) { states = append(states, s) })
		}()
		time.Sleep(time.Minute)
		synctest.Wait()
		// 5 s at most and 2.5 s at least between tries, a few more at first.
		if n := e.Figures().ConnectFailures; n < 12 || n > 32 {
			t.Errorf("%d tries in a minute", n)
		}
		if len(states) != 1 || states[0].Ready || states[0].Err == nil {
			t.Errorf("states %+v", states)
		}
		p.Restore()
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if len(states) != 2 || !states[1].Ready || !slices.Equal(states[1].Facts.Models, []string{"test"}) || states[1].Facts.Instance != "one" {
			t.Errorf("states %+v", states)
		}
		cancel()
		<-ended
		if last := states[len(states)-1]; last.Ready || e.Figures().Lost[mux.LossClosed] != 1 {
			t.Errorf("state %+v, figures %+v", last, e.Figures())
		}
		p.Cut()
	})
}

func TestConnectRefusals(t *testing.T) {
	for _, c := range []struct {
		name string
		prep func(p *peer)
	}{
		{"another protocol", func(p *peer) { p.facts.Protocol = 2 }},
		{"no opening step", func(p *peer) { p.opening = &planepb.Step{Sequence: 4} }},
		{"opening step with ids", func(p *peer) { p.opening = &planepb.Step{Slot: []uint32{0}} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPeer(t, "bufconn")
			c.prep(p)
			e := New(p.options())
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			e.Run(ctx, func(s engine.State) {
				if s.Ready || s.Err == nil {
					t.Errorf("state %+v", s)
				}
				cancel()
			})
			if f := e.Figures(); f.Sessions != 0 {
				t.Errorf("figures %+v", f)
			}
		})
	}
}

// An engine that takes the connection and says nothing is given up after
// ConnectTimeout.
func TestConnectTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t, "bufconn")
		blocked := make(chan struct{})
		p.mu.Update(func() { p.describe = blocked })
		e := New(p.options())
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		e.Run(ctx, func(s engine.State) {
			if s.Ready || time.Since(began) != 10*time.Second {
				t.Errorf("state %+v after %v", s, time.Since(began))
			}
			cancel()
		})
		close(blocked)
		p.Cut()
	})
}

// Another machine's clock is brought to ours, with a bound on the error that
// holds; our own needs nothing.
func TestClockOffset(t *testing.T) {
	for _, same := range []bool{true, false} {
		t.Run(fmt.Sprint("same=", same), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPeer(t, "bufconn")
				if !same {
					p.facts.BootId, p.skew = "another", int64(time.Hour)
				}
				b, e := start(t, p, p.options())
				time.Sleep(100 * time.Millisecond) // of the bubble's clock
				synctest.Wait()
				if f := e.Figures(); !f.ClockKnown || f.Pings != map[bool]uint64{true: 1, false: soundings}[same] {
					t.Fatalf("figures %+v", f)
				}
				call := b.Accept(4)
				p.Step(enginetest.Out{ID: call.Request.ID, IDs: []uint32{5}, Finish: infer.ReasonStop})
				b.WantFinish(call, infer.ReasonStop)
				s, f := call.Sink.Stamps(), e.Figures()
				if same && (s.ClockUncertain != 0 || f.ClockOffset != 0) {
					t.Fatalf("stamps %+v, offset %v", s, f.ClockOffset)
				}
				if !same && ((f.ClockOffset-time.Hour).Abs() > f.ClockUncertain || s.ClockUncertain == 0) {
					t.Fatalf("offset %v, uncertain %v, stamps %+v", f.ClockOffset, f.ClockUncertain, s)
				}
				early, late := call.Leg.ToServer-s.ClockUncertain, call.Leg.Acked+s.ClockUncertain
				if created := call.Leg.Stamps.ServerCreated; created < early || created > late {
					t.Fatalf("server created %d outside of %d to %d", created, early, late)
				}
				if s.FirstOutput < early || s.FirstToken != s.FirstOutput-1 {
					t.Fatalf("stamps %+v, submitted %d", s, call.Leg.ToServer)
				}
				b.Stop()
				p.Cut()
			})
		})
	}
}

// Aborts leave at once although thousands of streams run, and in few messages.
func TestAbortsLeaveTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t, "bufconn")
		b, e := start(t, p, p.options())
		streams := 4096
		if testing.Short() {
			streams = 512
		}
		calls := make([]*enginetest.Call, streams)
		for i := range calls {
			calls[i] = b.Go(b.Ctx, 100)
		}
		for _, c := range calls {
			b.Wait(c)
			if c.Err != nil {
				t.Fatal(c.Err)
			}
		}
		began := time.Now()
		for _, c := range calls {
			c.Gen.Abort()
			c.Gen.Abort()
		}
		synctest.Wait()
		// No timer stands between an abort and the wire.
		if n := p.aborted(); n != streams || time.Since(began) != 0 || e.Figures().Aborts != uint64(streams) {
			t.Fatalf("%d aborts after %v", n, time.Since(began))
		}
		b.Stop()
		p.Cut()
	})
}

func TestBadRequests(t *testing.T) {
	big := 1 << 40
	for param, req := range map[string]*infer.Request{
		"max_tokens": {MaxTokens: big},
		"min_tokens": {MaxTokens: 1, MinTokens: 2},
		"top_k":      {MaxTokens: 1, Sampling: infer.Sampling{TopK: &big}},
	} {
		if _, err := submission(req, infer.CarriesAll); err == nil || err.Code != infer.CodeInvalid || err.Param != param {
			t.Errorf("%s: %v", param, err)
		}
	}
	k, seed, temp, top := 40, int64(1)<<60, 0.5, 0.9
	wire, err := submission(&infer.Request{
		ID: "a", Prompt: []uint32{1}, MaxTokens: 5, MinTokens: 2, IgnoreEOS: true, StopIDs: []uint32{7},
		Sampling: infer.Sampling{TopK: &k, Seed: &seed, Temperature: &temp, TopP: &top, MinP: &temp, PresencePenalty: &temp,
			FrequencyPenalty: &top, RepetitionPenalty: &top, LogitBias: []infer.Bias{{ID: 3, Value: -1}}},
		Guide: &infer.Guide{Kind: infer.GuideChoice, Choices: []string{"a", "b"}},
	}, infer.CarriesAll)
	if err != nil {
		t.Fatal(err)
	}
	k32 := int32(40)
	want := &planepb.SubmitRequest{
		RequestId: "a", Prompt: []uint32{1}, MaxTokens: 5, MinTokens: 2, IgnoreEos: true, StopIds: []uint32{7},
		TopK: &k32, Seed: &seed, Temperature: &temp, TopP: &top, MinP: &temp, PresencePenalty: &temp, FrequencyPenalty: &top, RepetitionPenalty: &top,
		LogitBias: []*planepb.LogitBias{{Id: 3, Value: -1}},
		Guide:     &planepb.Guide{Kind: &planepb.Guide_Choice{Choice: &planepb.Choices{Text: []string{"a", "b"}}}},
	}
	if !proto.Equal(wire, want) {
		t.Errorf("wire %v, want %v", wire, want)
	}
	// An engine that has not said that it carries something is not sent it.
	for kind := range infer.GuideStructuralTag + 1 {
		g := infer.Guide{Kind: kind, Text: "x"}
		req := &infer.Request{MaxTokens: 1, Guide: &g}
		if _, err := submission(req, infer.CarriesAll&^(infer.CarriesJSONSchema<<kind)); err == nil || err.Code != infer.CodeUnsupported {
			t.Errorf("guide %d: %v", kind, err)
		}
		if wire, err := submission(req, infer.CarriesAll); err != nil || wire.Guide.GetKind() == nil {
			t.Errorf("guide %d: %v, %v", kind, wire, err)
		}
	}
}

func TestFields(t *testing.T) {
	enginetest.Fields(t, "../../../docs/engines.md", "weir", func(req *infer.Request) ([]byte, *infer.Error) {
		wire, bad := submission(req, infer.CarriesAll)
		if bad != nil {
			return nil, bad
		}
		b, err := proto.Marshal(wire)
		if err != nil {
			t.Fatal(err)
		}
		return b, nil
	})
}

// submission is the wire's message for a request.
func submission(req *infer.Request, carries infer.Carries) (*planepb.SubmitRequest, *infer.Error) {
	wire := new(planepb.SubmitRequest)
	return wire, submitRequest(wire, req, carries)
}
