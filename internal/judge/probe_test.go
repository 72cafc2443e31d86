package judge

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/engine"
	"weir/internal/health"
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

// An engine that answers its fences and no request is sampled, by one request of one token at
// a time, which is aborted when it is not answered. The first that is answered brings it back.
func TestSample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fenced{core: *newCore()}
		a := judged(t, Options{}, Presence{Ready: true, Fresh: true, Serves: []string{"m"}, Prober: e, Tokens: e})
		var attempt Attempt
		a.HandOver(&attempt, trace.Now(), 10, "req-1", engine.Probe{Model: "m1"}, nil)
		time.Sleep(9 * time.Second)
		if e.mu.Lock(); len(e.requests) > 0 {
			t.Errorf("it is sampled before it was probed: %+v", e.requests)
		}
		e.mu.Unlock()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		e.mu.Lock()
		n := len(e.requests)
		// It is silent for 10 s, and sampled every other second from then on.
		if n < 4 || n > 6 || e.aborted != n-1 || e.mostAtOne != 1 {
			t.Fatalf("%d samples, %d aborted, %d at once", n, e.aborted, e.mostAtOne)
		}
		last := e.requests[n-1]
		if last.MaxTokens != 1 || len(last.Prompt) != 1 || last.Model != "m1" || e.ranks[n-1] != -1 || last.ID == e.requests[n-2].ID || len(last.ID) != len("weir-probe-0123456789abcdef") {
			t.Errorf("sampled by %+v at rank %d", last, e.ranks[n-1])
		}
		sink := e.sinks[n-1]
		e.mu.Unlock()
		if a.View().State != health.Soft || a.Takes() != health.Otherwise {
			t.Errorf("unanswered: %+v", a.View())
		}
		sink.Offer(&infer.Delta{IDs: []uint32{7}, Total: 1})
		sink.Offer(&infer.Delta{Finish: &infer.Finish{}})
		synctest.Wait()
		if a.Takes() != health.Freely || a.View().Limit != 1 {
			t.Errorf("answered: %+v", a.View())
		}
		counts := a.Probes()
		if got := counts[ProbeGeneration]; got[health.Answered] != 1 || got[ProbeUnanswered] != int64(n-1) || counts[ProbeFence][health.Answered] == 0 {
			t.Errorf("counted %v", counts)
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

// What an engine says of a sample.
func TestSampleErrors(t *testing.T) {
	for _, c := range []struct {
		err  error
		want error
	}{
		{&infer.Error{Code: infer.CodeOverloaded}, engine.ErrBusy},
		{infer.Invalid("prompt", "no such id"), engine.ErrNoProbe},
		{&infer.Error{Code: infer.CodeEngine}, nil},
	} {
		err := engine.Sample(t.Context(), &refusing{err: c.err}, "m", -1)
		if err == nil || c.want != nil && !errors.Is(err, c.want) || c.want == nil && (errors.Is(err, engine.ErrBusy) || errors.Is(err, engine.ErrNoProbe)) {
			t.Errorf("%v: %v, want %v", c.err, err, c.want)
		}
	}
}
