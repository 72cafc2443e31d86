package enginetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"weir/internal/engine"
	"weir/internal/infer"
)

// PairRig is two engines that serve halves of requests, and one that serves them whole. Each
// generates the same for the same request.
type PairRig struct {
	Prefill, Decode, Whole PairEngine
	// Way is how halves meet, and Halves makes those of a request, which has a number of
	// its own, at a rank of the prefill engine; -1: none is named. By ByPull, the decode
	// half gets what the prefill half answers.
	Way    engine.Way
	Halves func(id string, number, rank int) (prefill, decode *infer.Half)
	// Bounded is set if the engines themselves end what does not meet.
	Bounded bool
}

// PairEngine is one of them.
type PairEngine struct {
	Adapter Adapter
	// Fault has faults strike the halves that come from now on.
	Fault func(faults ...string)
	// Left returns the number of requests that the engine has or holds KV for. gone is
	// set if a fault has ended the engine.
	Left func() (requests int, gone bool)
}

// PairOptions say what engines a test wants.
type PairOptions struct {
	// Ranks is the number of data-parallel ranks of the two that serve halves; 0 is 1.
	Ranks int
	// Brief has a half wait for no more than a tenth of a second for what its engine bounds.
	Brief bool
}

// RunPairs runs the suite of adapters that carry halves of requests. What the gateway does
// is done by hand: whatever ends one half ends the other.
func RunPairs(t *testing.T, start func(t *testing.T, o PairOptions) PairRig) {
	for _, ranks := range []int{1, 2} {
		t.Run(fmt.Sprintf("as an engine alone, of %d ranks", ranks), func(t *testing.T) {
			alike(startPairs(t, start(t, PairOptions{Ranks: ranks})), ranks)
		})
	}
	t.Run("ended at each stage", func(t *testing.T) { endedAtEach(startPairs(t, start(t, PairOptions{}))) })
	for _, x := range []struct {
		side, fault string
		brief, dies bool
	}{
		{side: "prefill", fault: "unmet", brief: true}, {side: "decode", fault: "unmet", brief: true},
		{side: "prefill", fault: "misrank", brief: true}, {side: "decode", fault: "misrank", brief: true},
		{side: "prefill", fault: "stuck", brief: true}, {side: "decode", fault: "stuck", brief: true},
		{side: "prefill", fault: "evict"}, {side: "prefill", fault: "abort"}, {side: "prefill", fault: "fail"}, {side: "prefill", fault: "unavailable"},
		{side: "decode", fault: "fail"}, {side: "decode", fault: "unavailable"},
		{side: "prefill", fault: "die,stage=bootstrap", dies: true}, {side: "prefill", fault: "die,stage=prefill", dies: true}, {side: "prefill", fault: "die,stage=transfer", dies: true},
		{side: "decode", fault: "die,stage=bootstrap", dies: true}, {side: "decode", fault: "die,stage=transfer", dies: true}, {side: "decode", fault: "die,stage=decode", dies: true},
	} {
		t.Run(x.side+" "+strings.ReplaceAll(x.fault, ",", " "), func(t *testing.T) {
			r := startPairs(t, start(t, PairOptions{Brief: x.brief}))
			struck := r.Prefill
			if x.side == "decode" {
				struck = r.Decode
			}
			r.fails(struck, x.fault, x.brief, x.dies)
		})
	}
}

// pairs is a rig whose adapters run.
type pairs struct {
	PairRig
	t                      *testing.T
	prefill, decode, whole *Bench
	numbers                atomic.Int64
}

// number returns the next one.
func (r *pairs) number() int { return int(r.numbers.Add(1)) }

// halve makes the halves of a request.
func (r *pairs) halve(req *infer.Request) (prefill, decode *infer.Request) {
	prefill, decode = new(*req), new(*req)
	prefill.Half, decode.Half = r.Halves(req.ID, r.number(), r.prefill.Rank)
	return prefill, decode
}

func startPairs(t *testing.T, rig PairRig) *pairs {
	r := &pairs{PairRig: rig, t: t}
	for to, e := range map[**Bench]PairEngine{&r.prefill: rig.Prefill, &r.decode: rig.Decode, &r.whole: rig.Whole} {
		*to = Start(t, Rig{Engine: e.Adapter, Panics: new(Panics)})
	}
	return r
}

// request makes a request. Every third asks for log probabilities.
func (r *pairs) request(maxTokens int) *infer.Request {
	n := r.number()
	req := r.whole.Request(maxTokens)
	req.ID = fmt.Sprintf("pair-%08d", n)
	req.IgnoreEOS = true
	req.Prompt = nil
	for i := range 20 + 7*(n%5) {
		req.Prompt = append(req.Prompt, uint32(1+(n*31+i*17)%250))
	}
	if n%3 == 0 {
		req.Logprobs = new(2)
	}
	return req
}

// ended is what a half came to.
type ended struct {
	finish *infer.Finish
	err    *infer.Error
}

func (e ended) failed() bool { return e.err != nil || e.finish.Reason == infer.ReasonAbort }

// end waits for the end of a half.
func end(ctx context.Context, c *Call) <-chan ended {
	out := make(chan ended, 1)
	go func() {
		<-c.done
		if c.Err != nil {
			out <- ended{err: infer.AsError(c.Err)}
			return
		}
		f, err := c.Sink.WaitFinish(ctx)
		if err != nil {
			out <- ended{err: infer.AsError(err)}
			return
		}
		out <- ended{finish: f, err: f.Err}
	}()
	return out
}

// abort has a half aborted once it was given to its engine. released says that the other
// half hands nothing over any more.
func abort(c *Call, released bool) {
	go func() {
		<-c.done
		if c.Gen == nil {
			return
		}
		c.Gen.Abort()
		if released {
			engine.Released(c.Gen)
		}
	}()
}

// GivenUp checks that the abort of a decode half that is given up before its engine has confirmed it
// waits as any other does: until its first id, as nobody has it who could release it.
func GivenUp(b *Bench, at infer.Bootstrap) {
	b.T.Helper()
	b.Rig.Peer.Hold()
	req := b.Request(9)
	req.Half = &infer.Half{Role: infer.RoleDecode, Bootstrap: at}
	ctx, giveUp := context.WithCancel(b.Ctx)
	c := b.GoWith(ctx, req)
	b.Must(b.Rig.Peer.Arrived(b.Ctx, req.ID))
	giveUp()
	b.Wait(c)
	wantError(b, c.Err, false, infer.CodeCancelled)
	soon, cancel := context.WithTimeout(b.Ctx, 50*time.Millisecond)
	defer cancel()
	if b.Rig.Peer.Aborted(soon, req.ID) == nil {
		b.T.Error("the abort of a decode half that was given up in its hand-over did not wait")
	}
	b.Rig.Peer.Step(Out{ID: req.ID, IDs: []uint32{5}})
	b.Must(b.Rig.Peer.Aborted(b.Ctx, req.ID))
	b.Rig.Peer.Step(Out{ID: req.ID, Finish: infer.ReasonAbort})
	wantIDs(b, c, nil)
}

// both serves a request in halves. patience bounds what the engines do not; 0 is none.
func (r *pairs) both(req *infer.Request, patience time.Duration) (p, d *Call, pe, de ended) {
	r.t.Helper()
	prefill, decode := r.halve(req)
	var bound <-chan time.Time
	if patience > 0 {
		bound = time.After(patience)
	}
	p = r.prefill.GoWith(r.prefill.Ctx, prefill)
	pEnd := end(r.prefill.Ctx, p)
	if r.Way == engine.ByPull {
		select {
		case pe = <-pEnd:
		case <-bound:
			abort(p, false)
			pe = <-pEnd
		}
		if pe.failed() {
			return p, nil, pe, de
		}
		decode.Half.Params, pEnd = pe.finish.Params, nil
	}
	d = r.decode.GoWith(r.decode.Ctx, decode)
	dEnd := end(r.decode.Ctx, d)
	for pEnd != nil || dEnd != nil {
		select {
		case pe = <-pEnd:
			if pEnd = nil; pe.failed() {
				abort(d, true)
			}
		case de = <-dEnd:
			if dEnd = nil; de.failed() {
				abort(p, false)
			}
		case <-bound:
			abort(p, false)
			if pEnd == nil {
				abort(d, true)
			}
		}
	}
	return p, d, pe, de
}

// alone serves a request whole.
func (r *pairs) alone(req *infer.Request) *Call {
	r.t.Helper()
	c := r.whole.GoWith(r.whole.Ctx, req)
	if e := <-end(r.whole.Ctx, c); e.failed() {
		r.t.Fatalf("a whole request ends with %+v", e)
	}
	return c
}

// rest waits until engines that are there have nothing left.
func (r *pairs) rest() {
	r.t.Helper()
	for side, e := range map[string]PairEngine{"prefill": r.Prefill, "decode": r.Decode} {
		for {
			n, gone := e.Left()
			if n == 0 || gone {
				break
			}
			select {
			case <-r.whole.Ctx.Done():
				r.t.Fatalf("the %s engine still has %d requests", side, n)
			case <-time.After(time.Millisecond):
			}
		}
	}
}

// alike holds pairs to what an engine alone says, many at once and one after the other.
func alike(r *pairs, ranks int) {
	const rounds, together = 4, 6
	for round := range rounds {
		if ranks > 1 {
			r.prefill.Rank, r.decode.Rank = round%ranks, round/ranks%ranks
		}
		type one struct {
			req          *infer.Request
			prefill, got *Call
		}
		served := make(chan one)
		for i := range together {
			req := r.request(1 + 7*i)
			go func() {
				p, d, pe, de := r.both(req, 0)
				if d == nil || pe.failed() || de.failed() || de.finish.Reason != infer.ReasonLength {
					r.t.Errorf("a pair ends with %+v and %+v", pe, de)
					served <- one{}
					return
				}
				served <- one{req, p, d}
			}()
		}
		for range together {
			s := <-served
			if s.req == nil {
				continue
			}
			want := r.alone(s.req)
			if ids, first, alone := s.got.Sink.IDs(), s.prefill.Sink.IDs(), want.Sink.IDs(); !slices.Equal(ids, alone) || len(ids) != s.req.MaxTokens || !slices.Equal(first, ids[:1]) {
				r.t.Errorf("a pair gives %v after %v, an engine alone %v", ids, first, alone)
			}
			if got, alone := s.got.Sink.Logprobs(), want.Sink.Logprobs(); !slices.Equal(got.Own, alone.Own) || !slices.Equal(got.TopIDs, alone.TopIDs) {
				r.t.Errorf("a pair's log probabilities are %v, an engine's alone %v", got, alone)
			}
		}
		r.rest()
	}
}

// endedAtEach has pairs ended from outside, at each stage. The engines go on.
func endedAtEach(r *pairs) {
	single := func(b *Bench, decode bool) *Call {
		req, other := r.halve(r.request(50))
		if decode {
			req = other
		}
		c := b.GoWith(b.Ctx, req)
		if b.Wait(c); c.Err != nil {
			r.t.Fatal(c.Err)
		}
		return c
	}
	wantEnd := func(what string, c *Call, ctx context.Context) {
		r.t.Helper()
		if e := <-end(ctx, c); !e.failed() {
			r.t.Errorf("%s: a half that was ended ends with %+v", what, e)
		}
		c.Gen.Abort() // costs nothing
	}
	if r.Way != engine.ByPull {
		p := single(r.prefill, false)
		p.Gen.Abort()
		wantEnd("a prefill half without a decode half", p, r.prefill.Ctx)
		d := single(r.decode, true)
		d.Gen.Abort()
		engine.Released(d.Gen)
		wantEnd("a decode half without a prefill half", d, r.decode.Ctx)
		r.rest()

		r.Decode.Fault("stuck")
		prefill, decode := r.halve(r.request(50))
		p, d = r.prefill.GoWith(r.prefill.Ctx, prefill), r.decode.GoWith(r.decode.Ctx, decode)
		r.prefill.Wait(p)
		r.decode.Wait(d)
		if p.Err != nil || d.Err != nil {
			r.t.Fatal(p.Err, d.Err)
		}
		// The prefill half is ended in the middle of the transfer, at once, and with it
		// the decode half.
		d.Gen.Abort()
		p.Gen.Abort()
		wantEnd("a prefill half in the transfer", p, r.prefill.Ctx)
		engine.Released(d.Gen)
		wantEnd("a decode half in the transfer", d, r.decode.Ctx)
		r.rest()
		r.Decode.Fault()
	}

	prefill, decode := r.halve(r.request(100_000))
	p := r.prefill.GoWith(r.prefill.Ctx, prefill)
	if r.Way == engine.ByPull {
		e := <-end(r.prefill.Ctx, p)
		if e.failed() {
			r.t.Fatalf("%+v", e)
		}
		decode.Half.Params = e.finish.Params
	}
	d := r.decode.GoWith(r.decode.Ctx, decode)
	r.decode.Must(d.Sink.WaitIDs(r.decode.Ctx, 3))
	r.decode.Wait(d)
	d.Gen.Abort()
	wantEnd("a decode half that decodes", d, r.decode.Ctx)
	if e := <-end(r.prefill.Ctx, p); e.failed() {
		r.t.Errorf("its prefill half ended with %+v", e)
	}
	r.rest()
	if p, d, pe, de := r.both(r.request(5), 0); pe.failed() || de.failed() || len(p.Sink.IDs()) != 1 || len(d.Sink.IDs()) != 5 {
		r.t.Errorf("afterwards a pair ends with %+v and %+v", pe, de)
	}
}

// fails has a fault strike a pair. What follows is an explicit error, and no request is
// left in an engine.
func (r *pairs) fails(struck PairEngine, fault string, brief, dies bool) {
	struck.Fault(fault)
	req := r.request(5)
	var patience time.Duration
	if !r.Bounded {
		patience = time.Second
	}
	_, d, pe, de := r.both(req, patience)
	if !pe.failed() && (d == nil || !de.failed()) {
		r.t.Fatalf("the pair ends with %+v and %+v", pe.finish, de.finish)
	}
	told := false
	for _, e := range []ended{pe, de} {
		if e.err == nil {
			continue
		}
		if e.err.Message == "" || !e.err.Retryable || !slices.Contains([]infer.Code{infer.CodeEngine, infer.CodeUnavailable, infer.CodeOverloaded}, e.err.Code) {
			r.t.Errorf("a half ends with %v, retryable %v", e.err, e.err.Retryable)
		}
		told = true
		if brief && !e.err.Handover {
			r.t.Errorf("%v is said to be the engine's own fault", e.err)
		}
	}
	if !told && r.Bounded {
		r.t.Errorf("neither half says an error: %+v, %+v", pe.finish, de.finish)
	}
	r.rest()
	n, gone := struck.Left()
	for dies && !gone && r.whole.Ctx.Err() == nil { // its connections break before it says so
		time.Sleep(time.Millisecond)
		n, gone = struck.Left()
	}
	if gone != dies {
		r.t.Errorf("the engine that was struck is gone: %v, with %d requests", gone, n)
	}
}
