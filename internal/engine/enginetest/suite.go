package enginetest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"weir/internal/infer"
)

// Run runs the conformance suite, one rig per case.
func Run(t *testing.T, start func(t *testing.T) Rig) {
	for _, c := range []struct {
		name string
		test func(b *Bench)
	}{
		{"ids arrive in order and end once", inOrder},
		{"many at once keep apart", manyAtOnce},
		{"stamps are in order", stamps},
		{"facts are reported", facts},
		{"delta before the confirmation", beforeConfirmation},
		{"refused in the wire's own way", refused},
		{"hand-over is bounded by its context", boundedHandover},
		{"context after the hand-over does nothing", contextAfterwards},
		{"abort ends once", abortOnce},
		{"ids in flight after an abort still arrive", abortInFlight},
		{"engine failure is an error", engineFailure},
		{"a wrong count ends its own stream only", miscount},
		{"log probabilities go with their ids", logprobs},
		{"log probabilities of fewer ids are a fault", logprobsMissing},
		{"log probabilities of more ids are a fault", logprobsSpare},
		{"loss of the connection ends all, and it comes back", loss},
		{"a probe by a fence", fence},
		{"metrics outlive the connection", metrics},
		{"loss during the hand-over", lossDuringHandover},
		{"a panic ends one request, or one session", panicOnce},
		{"a panic at the end too", panicTwice},
		{"not connected", notConnected},
		{"end of Run ends all", endOfRun},
		{"end of Run during the hand-over", endDuringHandover},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := Start(t, start(t))
			c.test(b)
		})
	}
}

func wantIDs(b *Bench, c *Call, want []uint32) {
	b.T.Helper()
	if got := c.Sink.IDs(); !slices.Equal(got, want) {
		b.T.Fatalf("ids %v, want %v", got, want)
	}
}

// wantError checks the error of a failed Generate or a terminal delta. One after
// output is as retryable as one before: whether the client has had any is not the
// adapter's to know.
func wantError(b *Bench, err error, retryable bool, codes ...infer.Code) {
	b.T.Helper()
	var e *infer.Error
	if !errors.As(err, &e) {
		b.T.Fatalf("error %v, want an *infer.Error", err)
	}
	if !slices.Contains(codes, e.Code) || e.Retryable != retryable {
		b.T.Fatalf("error %v (retryable %v), want one of %v (retryable %v)", e, e.Retryable, codes, retryable)
	}
	if e.Message == "" {
		b.T.Fatalf("error %v has no message for the caller", e)
	}
}

func inOrder(b *Bench) {
	c := b.Accept(6)
	id := c.Request.ID
	b.Rig.Peer.Step(Out{ID: id, IDs: []uint32{11}})
	b.Rig.Peer.Step(Out{ID: id, IDs: []uint32{12, 13}})
	b.Rig.Peer.Step(Out{ID: id, IDs: []uint32{14, 15}})
	b.Rig.Peer.Step(Out{ID: id, IDs: []uint32{16}, Finish: infer.ReasonLength})
	b.WantFinish(c, infer.ReasonLength)
	wantIDs(b, c, []uint32{11, 12, 13, 14, 15, 16})
	c.Gen.Abort() // costs nothing after the end
	b.Barrier()   // and whatever came after the end would be a fault by now
	if b.Rig.Peer.Aborted(done(), id) == nil {
		b.T.Fatal("an abort after the end reached the engine")
	}
}

// done is a context that has ended, to ask without waiting.
func done() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func manyAtOnce(b *Bench) {
	const streams, length = 64, 100
	r := rand.New(rand.NewPCG(1, 2))
	calls := make([]*Call, streams)
	for i := range calls {
		calls[i] = b.Go(b.Ctx, length)
	}
	want := make([][]uint32, streams)
	for i, c := range calls {
		b.Wait(c)
		if c.Err != nil {
			b.T.Fatal(c.Err)
		}
		for n := range length {
			want[i] = append(want[i], uint32(i*length+n))
		}
	}
	sent := make([]int, streams)
	for left := streams; left > 0; {
		var step []Out
		for i, c := range calls {
			if sent[i] == length || r.IntN(3) == 0 {
				continue
			}
			n := min(1+r.IntN(4), length-sent[i])
			o := Out{ID: c.Request.ID, IDs: want[i][sent[i] : sent[i]+n]}
			if sent[i] += n; sent[i] == length {
				o.Finish = infer.ReasonLength
				left--
			}
			step = append(step, o)
		}
		if len(step) > 0 {
			b.Rig.Peer.Step(step...)
		}
	}
	for i, c := range calls {
		b.WantFinish(c, infer.ReasonLength)
		wantIDs(b, c, want[i])
	}
}

func stamps(b *Bench) {
	c := b.Accept(2)
	l := &c.Leg
	if l.Engine == "" || l.ToServer == 0 || l.Acked < l.ToServer {
		b.T.Fatalf("leg %+v", l)
	}
	b.Rig.Peer.Step(Out{ID: c.Request.ID, IDs: []uint32{1}})
	b.Rig.Peer.Step(Out{ID: c.Request.ID, IDs: []uint32{2}, Finish: infer.ReasonStop})
	b.WantFinish(c, infer.ReasonStop)
	s := c.Sink.Stamps()
	switch {
	case !b.Rig.Clock:
		if s != nil {
			b.T.Fatalf("stamps %+v from a wire that has none", s)
		}
	case s == nil || s.FirstOutput == 0:
		b.T.Fatalf("stamps %+v from a wire that has them", s)
	}
}

func facts(b *Bench) {
	s := b.WaitReady(true)
	if len(s.Facts.Models) == 0 || s.Err != nil {
		b.T.Fatalf("state %+v", s)
	}
}

func beforeConfirmation(b *Bench) {
	b.Rig.Peer.Hold()
	c := b.Go(b.Ctx, 4)
	b.Must(b.Rig.Peer.Arrived(b.Ctx, c.Request.ID))
	b.Rig.Peer.Step(Out{ID: c.Request.ID, IDs: []uint32{5}})
	b.Must(c.Sink.WaitIDs(b.Ctx, 1))
	b.Rig.Peer.Confirm(c.Request.ID)
	b.Wait(c)
	if c.Err != nil {
		b.T.Fatal(c.Err)
	}
	b.Rig.Peer.Step(Out{ID: c.Request.ID, IDs: []uint32{6}, Finish: infer.ReasonStop})
	b.WantFinish(c, infer.ReasonStop)
	wantIDs(b, c, []uint32{5, 6})
}

func refused(b *Bench) {
	for _, code := range []infer.Code{infer.CodeInvalid, infer.CodeOverloaded, infer.CodeUnavailable} {
		if slices.Contains(b.Rig.NoWord, code) {
			continue
		}
		b.Rig.Peer.Refuse(code)
		c := b.Go(b.Ctx, 4)
		b.Wait(c)
		wantError(b, c.Err, code != infer.CodeInvalid, code)
	}
	b.Barrier() // it is still of use
}

func boundedHandover(b *Bench) {
	ctx, cancel := context.WithCancel(b.Ctx)
	b.Rig.Peer.Hold()
	c := b.Go(ctx, 4)
	b.Must(b.Rig.Peer.Arrived(b.Ctx, c.Request.ID))
	cancel()
	b.Wait(c)
	wantError(b, c.Err, false, infer.CodeCancelled)
	b.Must(b.Rig.Peer.Aborted(b.Ctx, c.Request.ID))
	// The engine had the request after all.
	b.Rig.Peer.Step(Out{ID: c.Request.ID, IDs: []uint32{5, 6}})
	b.Rig.Peer.Step(Out{ID: c.Request.ID, Finish: infer.ReasonAbort})
	late := b.Go(b.Ctx, 1)
	b.Must(b.Rig.Peer.Arrived(b.Ctx, late.Request.ID))
	b.Rig.Peer.Confirm(late.Request.ID)
	b.Wait(late)
	b.Rig.Peer.Step(Out{ID: late.Request.ID, IDs: []uint32{9}, Finish: infer.ReasonStop})
	b.WantFinish(late, infer.ReasonStop)
	wantIDs(b, late, []uint32{9})
	wantIDs(b, c, nil)
}

func contextAfterwards(b *Bench) {
	ctx, cancel := context.WithCancel(b.Ctx)
	c := b.Go(ctx, 4)
	b.Wait(c)
	if c.Err != nil {
		b.T.Fatal(c.Err)
	}
	cancel()
	b.Barrier()
	b.Rig.Peer.Step(Out{ID: c.Request.ID, IDs: []uint32{5}, Finish: infer.ReasonStop})
	b.WantFinish(c, infer.ReasonStop)
	wantIDs(b, c, []uint32{5})
}

func abortOnce(b *Bench) {
	c := b.Accept(100)
	b.Rig.Peer.Step(Out{ID: c.Request.ID, IDs: []uint32{5}})
	b.Must(c.Sink.WaitIDs(b.Ctx, 1))
	c.Gen.Abort()
	c.Gen.Abort()
	b.Must(b.Rig.Peer.Aborted(b.Ctx, c.Request.ID))
	b.Rig.Peer.Step(Out{ID: c.Request.ID, Finish: infer.ReasonAbort})
	b.WantFinish(c, infer.ReasonAbort)
	c.Gen.Abort()
	b.Barrier()
}

func abortInFlight(b *Bench) {
	c := b.Accept(100)
	c.Gen.Abort()
	b.Must(b.Rig.Peer.Aborted(b.Ctx, c.Request.ID))
	b.Rig.Peer.Step(Out{ID: c.Request.ID, IDs: []uint32{5, 6}})
	b.Rig.Peer.Step(Out{ID: c.Request.ID, IDs: []uint32{7}, Finish: infer.ReasonAbort})
	b.WantFinish(c, infer.ReasonAbort)
	wantIDs(b, c, []uint32{5, 6, 7})
}

func engineFailure(b *Bench) {
	c, d := b.Accept(4), b.Accept(4)
	b.Rig.Peer.Step(Out{ID: c.Request.ID, IDs: []uint32{5}, Finish: infer.ReasonError}, Out{ID: d.Request.ID, Finish: infer.ReasonError})
	wantError(b, b.WantFinish(c, infer.ReasonError).Err, true, infer.CodeEngine)
	wantError(b, b.WantFinish(d, infer.ReasonError).Err, true, infer.CodeEngine)
	wantIDs(b, c, []uint32{5})
	b.Barrier()
}

func miscount(b *Bench) {
	c, d := b.Accept(10), b.Accept(10)
	b.Rig.Peer.Step(Out{ID: c.Request.ID, IDs: []uint32{5}}, Out{ID: d.Request.ID, IDs: []uint32{8}})
	b.Rig.Peer.Miscount(c.Request.ID, 6)
	wantError(b, b.WantFinish(c, infer.ReasonError).Err, true, infer.CodeIntegrity)
	wantIDs(b, c, []uint32{5})
	b.Must(b.Rig.Peer.Aborted(b.Ctx, c.Request.ID))
	b.Rig.Peer.Step(Out{ID: d.Request.ID, IDs: []uint32{9}, Finish: infer.ReasonStop})
	b.WantFinish(d, infer.ReasonStop)
	wantIDs(b, d, []uint32{8, 9})
}

// asks starts a request for log probabilities; nil where the wire has none, and
// has refused it.
func asks(b *Bench, maxTokens, top int) *Call {
	req := b.Request(maxTokens)
	req.Logprobs = &top
	c := b.GoWith(b.Ctx, req)
	b.Wait(c)
	if b.WaitReady(true).Facts.Carries&infer.CarriesLogprobs == 0 {
		wantError(b, c.Err, false, infer.CodeUnsupported)
		return nil
	}
	if c.Err != nil {
		b.T.Fatal(c.Err)
	}
	return c
}

// score makes up log probabilities that say which id they are of.
func score(top int, ids ...uint32) *infer.Logprobs {
	l := new(infer.Logprobs)
	for _, id := range ids {
		l.Own = append(l.Own, -float32(id)/64)
		for k := range top {
			l.TopIDs = append(l.TopIDs, id+uint32(k))
			l.Top = append(l.Top, -float32(id)/64-float32(k)/4)
		}
	}
	return l
}

func logprobs(b *Bench) {
	// Two with different numbers of alternatives, one with none, and one that did
	// not ask, in the same steps.
	c, d, e := asks(b, 4, 2), asks(b, 4, 3), asks(b, 4, 0)
	plain := b.Accept(4)
	if c == nil {
		return
	}
	b.Rig.Peer.Step(
		Out{ID: c.Request.ID, IDs: []uint32{11}, Logprobs: score(2, 11)},
		Out{ID: plain.Request.ID, IDs: []uint32{31, 32}},
		Out{ID: d.Request.ID, IDs: []uint32{21, 22}, Logprobs: score(3, 21, 22)},
		Out{ID: e.Request.ID, IDs: []uint32{41}, Logprobs: score(0, 41)})
	b.Rig.Peer.Step(
		Out{ID: d.Request.ID, IDs: []uint32{23}, Logprobs: score(3, 23)},
		Out{ID: c.Request.ID, IDs: []uint32{12, 13}, Logprobs: score(2, 12, 13)})
	b.Rig.Peer.Step(
		Out{ID: e.Request.ID, IDs: []uint32{42, 43, 44}, Logprobs: score(0, 42, 43, 44), Finish: infer.ReasonLength},
		Out{ID: plain.Request.ID, IDs: []uint32{33, 34}, Finish: infer.ReasonLength},
		Out{ID: c.Request.ID, IDs: []uint32{14}, Logprobs: score(2, 14), Finish: infer.ReasonLength},
		Out{ID: d.Request.ID, IDs: []uint32{24}, Logprobs: score(3, 24), Finish: infer.ReasonLength})
	for _, x := range []struct {
		c    *Call
		top  int
		want []uint32
	}{{c, 2, []uint32{11, 12, 13, 14}}, {d, 3, []uint32{21, 22, 23, 24}}, {e, 0, []uint32{41, 42, 43, 44}}, {plain, -1, []uint32{31, 32, 33, 34}}} {
		b.WantFinish(x.c, infer.ReasonLength)
		wantIDs(b, x.c, x.want)
		got, want := x.c.Sink.Logprobs(), infer.Logprobs{}
		if x.top >= 0 {
			want = *score(x.top, x.want...)
		}
		if !slices.Equal(got.Own, want.Own) || !slices.Equal(got.TopIDs, want.TopIDs) || !slices.Equal(got.Top, want.Top) {
			b.T.Errorf("log probabilities %v, want %v", got, want)
		}
	}
}

func logprobsMissing(b *Bench) { logprobsFault(b, score(2, 12)) }
func logprobsSpare(b *Bench)   { logprobsFault(b, score(2, 12, 13, 14)) }

// logprobsFault sends two ids with log probabilities that are not of two.
func logprobsFault(b *Bench, wrong *infer.Logprobs) {
	c := asks(b, 10, 2)
	if c == nil {
		return
	}
	b.Rig.Peer.Step(Out{ID: c.Request.ID, IDs: []uint32{11}, Logprobs: score(2, 11)})
	b.Must(c.Sink.WaitIDs(b.Ctx, 1))
	b.Rig.Peer.Step(Out{ID: c.Request.ID, IDs: []uint32{12, 13}, Logprobs: wrong})
	wantError(b, b.WantFinish(c, infer.ReasonError).Err, true, infer.CodeIntegrity)
	wantIDs(b, c, []uint32{11})
}

func loss(b *Bench) {
	const streams = 32
	calls := make([]*Call, streams)
	var step []Out
	for i := range calls {
		calls[i] = b.Accept(100)
		if i%2 == 0 {
			step = append(step, Out{ID: calls[i].Request.ID, IDs: []uint32{uint32(i)}})
		}
	}
	b.Rig.Peer.Step(step...)
	for i := 0; i < streams; i += 2 {
		b.Must(calls[i].Sink.WaitIDs(b.Ctx, 1))
	}
	b.Rig.Peer.Cut()
	for _, c := range calls {
		f := b.WantFinish(c, infer.ReasonError)
		wantError(b, f.Err, true, infer.CodeEngine, infer.CodeUnavailable)
		c.Gen.Abort()
	}
	if s := b.WaitReady(false); s.Err == nil {
		b.T.Fatal("not ready without saying why")
	}
	b.Rig.Peer.Restore()
	b.WaitReady(true)
	b.Barrier()
}

func lossDuringHandover(b *Bench) {
	b.Rig.Peer.Hold()
	silent, heard := b.Go(b.Ctx, 4), b.Go(b.Ctx, 4)
	b.Must(b.Rig.Peer.Arrived(b.Ctx, silent.Request.ID))
	b.Must(b.Rig.Peer.Arrived(b.Ctx, heard.Request.ID))
	b.Rig.Peer.Step(Out{ID: heard.Request.ID, IDs: []uint32{5}})
	b.Must(heard.Sink.WaitIDs(b.Ctx, 1))
	b.Rig.Peer.Cut()
	b.Wait(silent)
	wantError(b, silent.Err, true, infer.CodeEngine, infer.CodeUnavailable)
	// Ids are as good as a confirmation, so this one was accepted and then lost.
	b.Wait(heard)
	if heard.Err != nil {
		b.T.Fatalf("Generate failed after it had delivered ids: %v", heard.Err)
	}
	wantError(b, b.WantFinish(heard, infer.ReasonError).Err, true, infer.CodeEngine, infer.CodeUnavailable)
}

func panicOnce(b *Bench)  { panics(b, 1) }
func panicTwice(b *Bench) { panics(b, 2) }

// panics makes the sink of one of two requests panic so many times. Each request that
// the panic ends gets one terminal delta; everything else continues.
func panics(b *Bench, times int) {
	c, d := b.Accept(10), b.Accept(10)
	c.Sink.Panic(int32(times))
	b.Rig.Peer.Step(Out{ID: c.Request.ID, IDs: []uint32{5}}, Out{ID: d.Request.ID, IDs: []uint32{8}})
	if times == 1 {
		// Another engine is not asked: the panic may be about the request.
		wantError(b, b.WantFinish(c, infer.ReasonError).Err, false, infer.CodeInternal)
	}
	b.Must(b.Rig.Panics.Await(b.Ctx, times))
	if b.Rig.Alone {
		b.Rig.Peer.Step(Out{ID: d.Request.ID, IDs: []uint32{9}, Finish: infer.ReasonStop})
		b.WantFinish(d, infer.ReasonStop)
		wantIDs(b, d, []uint32{8, 9})
	} else {
		wantError(b, b.WantFinish(d, infer.ReasonError).Err, true, infer.CodeInternal)
		b.Rig.Peer.Cut() // as an engine that connects again
		b.WaitReady(false)
		b.Rig.Peer.Restore()
		b.WaitReady(true)
	}
	b.Barrier()
	all := b.Rig.Panics.All()
	if len(all) != times {
		b.T.Fatalf("%d panics were told of, want %d", len(all), times)
	}
	for _, p := range all {
		if p.Value != "a sink's" || !bytes.Contains(p.Stack, []byte("enginetest.(*Recorder).Offer")) {
			b.T.Errorf("%v\n%s", p, p.Stack)
		}
	}
}

func notConnected(b *Bench) {
	b.Rig.Peer.Cut()
	b.WaitReady(false)
	c := b.Go(b.Ctx, 4)
	b.Wait(c)
	wantError(b, c.Err, true, infer.CodeUnavailable)
}

func endOfRun(b *Bench) {
	c, d := b.Accept(4), b.Accept(4)
	b.Rig.Peer.Step(Out{ID: c.Request.ID, IDs: []uint32{5}})
	b.Must(c.Sink.WaitIDs(b.Ctx, 1))
	b.Stop()
	// Every terminal delta was given before Run returned.
	for _, call := range []*Call{c, d} {
		f, err := call.Sink.WaitFinish(done())
		b.Must(err)
		wantError(b, f.Err, true, infer.CodeEngine, infer.CodeUnavailable)
	}
	late := b.Go(b.Ctx, 4)
	b.Wait(late)
	wantError(b, late.Err, true, infer.CodeUnavailable)
}

func endDuringHandover(b *Bench) {
	b.Rig.Peer.Hold()
	c := b.Go(b.Ctx, 4)
	b.Must(b.Rig.Peer.Arrived(b.Ctx, c.Request.ID))
	b.Stop()
	b.Wait(c)
	wantError(b, c.Err, true, infer.CodeEngine, infer.CodeUnavailable)
}
