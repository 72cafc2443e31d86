package judge

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/engine"
	"weir/internal/fleet/health"
	"weir/internal/infer"
	"weir/internal/trace"
)

// fenced is an engine whose loop goes on: its fences are answered, and its requests when the
// test says so.
type fenced struct {
	core

	mu        sync.Mutex
	requests  []infer.Request
	sinks     []engine.Sink
	ranks     []int
	aborted   int
	underWay  int
	mostAtOne int
}

func (f *fenced) Generates() bool                           { return false }
func (f *fenced) Probe(context.Context, engine.Probe) error { return nil }
func (f *fenced) Generate(_ context.Context, req *infer.Request, _ uint32, sink engine.Sink, leg *trace.Leg) (engine.Generation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests, f.sinks, f.ranks = append(f.requests, *req), append(f.sinks, sink), append(f.ranks, leg.DPRank)
	f.underWay++
	f.mostAtOne = max(f.mostAtOne, f.underWay)
	return f, nil
}

func (f *fenced) Abort() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.aborted++
	f.underWay--
}

// judged runs a judge of a, which is as p says, and b.
func judged(t *testing.T, o Options, p Presence) (a *Rank) {
	j := New(o)
	a = j.Add("a", -1, nil)
	a.Is(p)
	j.Add("b", -1, nil).Is(Presence{Ready: true, Fresh: true, Serves: []string{"m"}})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); j.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	return a
}

// seen gives how many samples the engine was sent, how many of them were aborted, how many it
// had at one time, and the latest.
func (f *fenced) seen() (n, aborted, mostAtOne int, last infer.Request, sink engine.Sink) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n = len(f.requests); n > 0 {
		last, sink = f.requests[n-1], f.sinks[n-1]
	}
	return n, f.aborted, f.mostAtOne, last, sink
}

// answer is what ends a sample well.
func answer(sink engine.Sink) {
	sink.Offer(&infer.Delta{IDs: []uint32{7}, Total: 1})
	sink.Offer(&infer.Delta{Finish: &infer.Finish{}})
}

// An engine that answers its fences and no request is sampled by requests of one token: one
// that is waited for, and one beside it, which is aborted when it is not answered. The first
// that is answered brings it back.
func TestSample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fenced{core: *newCore()}
		a := judged(t, Options{}, Presence{Ready: true, Fresh: true, Serves: []string{"m"}, Prober: e, Tokens: e})
		var attempt Attempt
		a.HandOver(&attempt, trace.Now(), 10, "req-1", engine.Probe{Model: "m1"}, nil)
		time.Sleep(9 * time.Second)
		if n, _, _, last, _ := e.seen(); n > 0 {
			t.Errorf("it is sampled before it was probed: %+v", last)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		// It is silent for 10 s, and sampled every other second from then on.
		n, aborted, mostAtOne, last, sink := e.seen()
		if n < 4 || n > 6 || aborted != n-2 || mostAtOne != 2 {
			t.Fatalf("%d samples, %d aborted, %d at once", n, aborted, mostAtOne)
		}
		if last.MaxTokens != 1 || len(last.Prompt) != 1 || last.Model != "m1" || e.ranks[n-1] != -1 || last.ID == e.requests[n-2].ID || len(last.ID) != len("weir-probe-0123456789abcdef") {
			t.Errorf("sampled by %+v at rank %d", last, e.ranks[n-1])
		}
		if a.View().State != health.Soft || a.Takes() != health.Otherwise {
			t.Errorf("unanswered: %+v", a.View())
		}
		answer(sink)
		synctest.Wait()
		if a.Takes() != health.Freely || a.View().Limit != 1 {
			t.Errorf("answered: %+v", a.View())
		}
		// The one that is waited for was dropped.
		counts := a.Probes()
		if got := counts[ProbeGeneration]; got[health.Answered] != 1 || got[ProbeUnanswered] != int64(n-2) || got[ProbeDropped] != 1 || counts[ProbeFence][health.Answered] == 0 {
			t.Errorf("counted %v", counts)
		}
		attempt.End(trace.Now(), health.GaveUp)
	})
}

// waiting is a request that notes that its engine went down.
type waiting struct{ why chan string }

func (w waiting) Down(why string)       { w.why <- why }
func (w waiting) Had() (int, bool)      { return 0, false }
func (w waiting) Stalled(time.Duration) {}

// An engine that answers its fences and no request goes down when the sample that is waited for
// was not answered: who waits there is told. Its fences do not bring it back, a sample does.
func TestSilentSampleIsEvidence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fenced{core: *newCore()}
		a := judged(t, Options{}, Presence{Ready: true, Fresh: true, Serves: []string{"m"}, Prober: e, Tokens: e})
		var attempt Attempt
		w := waiting{make(chan string, 1)}
		a.HandOver(&attempt, trace.Now(), 10, "req-1", engine.Probe{Model: "m1"}, w)
		time.Sleep(20 * time.Second)
		if a.View().State == health.Down {
			t.Errorf("after 20 s: %+v", a.View())
		}
		if why := <-w.why; !strings.Contains(why, "a request of weir's own was not answered") {
			t.Errorf("it is down: %s", why)
		}
		attempt.End(trace.Now(), health.GaveUp)
		time.Sleep(60 * time.Second)
		n, aborted, mostAtOne, _, sink := e.seen()
		if a.View().State != health.Down || n < 30 || aborted < n-2 || mostAtOne != 2 {
			t.Errorf("%d samples, %d aborted, %d at once: %+v", n, aborted, mostAtOne, a.View())
		}
		answer(sink)
		synctest.Wait()
		if a.Takes() != health.Freely || a.View().Limit != 1 {
			t.Errorf("answered: %+v", a.View())
		}
	})
}

// bounded is an engine that knows the bound of a request, and answers none: it ends each a
// moment before the gateway does.
type bounded struct{ fenced }

func (b *bounded) Generate(ctx context.Context, _ *infer.Request, _ uint32, _ engine.Sink, _ *trace.Leg) (engine.Generation, error) {
	bound, _ := ctx.Deadline()
	select {
	case <-time.After(time.Until(bound) - time.Microsecond):
		return nil, &infer.Error{Code: infer.CodeDeadline, Engine: "a"}
	case <-ctx.Done():
		return nil, infer.AsError(ctx.Err())
	}
}

// A sample that ends by its bound was not answered, whichever side has noticed that first: it
// begins no wait anew.
func TestSampleEndedByTheEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &bounded{fenced{core: *newCore()}}
		a := judged(t, Options{}, Presence{Ready: true, Fresh: true, Serves: []string{"m"}, Prober: e, Tokens: e})
		var attempt Attempt
		a.HandOver(&attempt, trace.Now(), 10, "req-1", engine.Probe{Model: "m1"}, nil)
		time.Sleep(21 * time.Second)
		if v := a.View(); v.State != health.Down {
			t.Errorf("after 21 s: %+v", v)
		}
		attempt.End(trace.Now(), health.GaveUp)
	})
}

// counting is an engine whose fences say how much it has computed.
type counting struct {
	fenced
	computed atomic.Uint64
}

func (c *counting) Computed() uint64 { return c.computed.Load() }

// Work for others is a sign of life, if the fence reports it. Without further work the engine is
// down, and it is back as soon as it works again, although samples wait behind others' work.
func TestComputesForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &counting{fenced: fenced{core: *newCore()}}
		a := judged(t, Options{}, Presence{Ready: true, Fresh: true, Serves: []string{"m"}, Prober: e, Tokens: e})
		var attempt Attempt
		a.HandOver(&attempt, trace.Now(), 10, "req-1", engine.Probe{Model: "m1"}, nil)
		for range 600 {
			time.Sleep(time.Second)
			e.computed.Add(100)
			if a.View().State == health.Down {
				t.Fatalf("it works: %+v", a.View())
			}
		}
		if n, _, _, _, _ := e.seen(); n < 250 {
			t.Errorf("%d samples in ten minutes", n)
		}
		time.Sleep(40 * time.Second)
		synctest.Wait()
		if a.View().State != health.Down {
			t.Errorf("it has computed nothing for 40 s: %+v", a.View())
		}
		attempt.End(trace.Now(), health.GaveUp)
		e.computed.Add(100)
		time.Sleep(3 * time.Second)
		if a.View().Takes != health.Freely {
			t.Errorf("it computes again: %+v", a.View())
		}
	})
}

// prefilling is an engine that computes prompts, and generates nothing.
type prefilling struct{ counting }

func (p *prefilling) Generate(ctx context.Context, req *infer.Request, attempt uint32, sink engine.Sink, leg *trace.Leg) (engine.Generation, error) {
	p.computed.Add(uint64(len(req.Prompt)))
	return p.counting.Generate(ctx, req, attempt, sink, leg)
}

// Work on the samples themselves is no sign of life: an engine that answers none of them goes down
// and stays down.
func TestComputesSamplesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &prefilling{counting{fenced: fenced{core: *newCore()}}}
		a := judged(t, Options{}, Presence{Ready: true, Fresh: true, Serves: []string{"m"}, Prober: e, Tokens: e})
		var attempt Attempt
		a.HandOver(&attempt, trace.Now(), 10, "req-1", engine.Probe{Model: "m1"}, nil)
		for _, at := range []time.Duration{21 * time.Second, time.Minute} {
			time.Sleep(at)
			if v := a.View(); v.State != health.Down || v.Ejections != 1 {
				t.Errorf("%v later: %+v", at, v)
			}
		}
		attempt.End(trace.Now(), health.GaveUp)
	})
}

// pages is an engine that has a page beside its probe.
type pages struct {
	core
	reached chan error
}

func (p *pages) Reach(context.Context) error { return <-p.reached }

// Where nothing may be generated a hung engine is asked whether it is there, and avoided.
func TestNoGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &pages{core: *newCore(), reached: make(chan error, 100)}
		for range cap(e.reached) {
			e.reached <- nil
		}
		a := judged(t, Options{NoGeneration: true}, Presence{Ready: true, Fresh: true, Serves: []string{"m"}, Prober: e})
		var attempt Attempt
		a.HandOver(&attempt, trace.Now(), 10, "req-1", engine.Probe{}, nil)
		time.Sleep(25 * time.Second)
		synctest.Wait()
		if len(e.asked) > 0 || a.View().State != health.Soft || a.Probes()[ProbePage][health.Answered] == 0 {
			t.Errorf("asked %v: %+v, %v", e.asked, a.View(), a.Probes())
		}
		attempt.End(trace.Now(), health.GaveUp)
		// A fenced one is not sampled.
		f := &fenced{core: *newCore()}
		b := judged(t, Options{NoGeneration: true}, Presence{Ready: true, Fresh: true, Serves: []string{"m"}, Prober: f, Tokens: f})
		b.HandOver(&attempt, trace.Now(), 10, "req-2", engine.Probe{}, nil)
		time.Sleep(25 * time.Second)
		synctest.Wait()
		if len(f.requests) > 0 || b.Probes()[ProbeFence][health.Answered] == 0 {
			t.Errorf("sampled: %v, %v", f.requests, b.Probes())
		}
		attempt.End(trace.Now(), health.GaveUp)
	})
}

// refusing is an engine that does not take the sample.
type refusing struct {
	fenced
	err error
}

func (r *refusing) Generate(context.Context, *infer.Request, uint32, engine.Sink, *trace.Leg) (engine.Generation, error) {
	return nil, r.err
}

// The errors with which an engine answers a sample.
func TestSampleErrors(t *testing.T) {
	for _, c := range []struct {
		err  error
		want error
	}{
		{&infer.Error{Code: infer.CodeOverloaded}, engine.ErrBusy},
		{infer.Invalid("prompt", "no such id"), engine.ErrNoProbe},
		{&infer.Error{Code: infer.CodeDeadline}, context.DeadlineExceeded},
		{&infer.Error{Code: infer.CodeEngine}, nil},
	} {
		err := engine.Sample(t.Context(), &refusing{err: c.err}, "m", -1)
		if err == nil || c.want != nil && !errors.Is(err, c.want) || c.want == nil && (errors.Is(err, engine.ErrBusy) || errors.Is(err, engine.ErrNoProbe)) {
			t.Errorf("%v: %v, want %v", c.err, err, c.want)
		}
	}
}
