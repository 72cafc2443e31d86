package judge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/engine"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/health"
	"weir/internal/infer"
	"weir/internal/trace"
)

// core is an engine whose probes are answered when the test says so.
type core struct {
	answers chan error

	mu    sync.Mutex
	asked []engine.Probe
	ended int // by their context
}

func (c *core) Run(context.Context, func(engine.State)) {}
func (c *core) Generates() bool                         { return true }
func (c *core) Probe(ctx context.Context, p engine.Probe) error {
	c.mu.Lock()
	c.asked = append(c.asked, p)
	c.mu.Unlock()
	select {
	case err := <-c.answers:
		return err
	case <-ctx.Done():
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ended++
		return ctx.Err()
	}
}

type told struct {
	name, request string
	state         health.State
}

// rig runs a judge of two engines in a bubble.
func rig(t *testing.T) (a, b *Rank, core *core, tell func() []told, books *cost.Rank) {
	var all []told
	var mu sync.Mutex
	j := New(Options{Changed: func(m health.Member, v health.View, request string) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, told{m.Engine, request, v.State})
	}})
	core, books = newCore(), cost.NewModel(cost.Typical).Join(trace.Now(), 0)
	a, b = j.Add("a", -1, nil), j.Add("b", -1, nil)
	a.Is(Presence{Ready: true, Fresh: true, Serves: []string{"m"}, Prober: core, Books: books})
	b.Is(Presence{Ready: true, Fresh: true, Serves: []string{"m"}})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); j.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	return a, b, core, func() []told {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}, books
}

func newCore() *core { return &core{answers: make(chan error)} }

// A hung engine is avoided, probed as it was asked before, out, and back by itself. Each
// change that an operator must know of is told once.
func TestHungEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, core, tell, _ := rig(t)
		var attempt Attempt
		want := engine.Probe{Rank: -1, Model: "m1", Path: "/v1/completions"}
		a.HandOver(&attempt, trace.Now(), 10, "req-1", want, nil)
		for _, step := range []struct {
			after time.Duration
			takes health.Takes
		}{{900 * time.Millisecond, health.Freely}, {300 * time.Millisecond, health.Otherwise}, {9 * time.Second, health.AtLast}, {11 * time.Second, health.Never}} {
			time.Sleep(step.after)
			synctest.Wait()
			if got := a.Takes(); got != step.takes {
				t.Fatalf("after %v it takes %v: %+v", step.after, got, a.View())
			}
		}
		if len(core.asked) == 0 || core.asked[0] != want {
			t.Errorf("asked %+v", core.asked)
		}
		if b.Takes() != health.Freely {
			t.Error("the other one takes less, too")
		}
		if n := a.Probes()[ProbeGeneration]; n[ProbeUnanswered] == 0 || n[ProbeDropped] > 0 {
			t.Errorf("it is down by probes of which it is said: %v", n)
		}
		core.answers <- nil
		synctest.Wait()
		if got := a.Takes(); got != health.Freely || a.View().Limit != 1 {
			t.Errorf("its probe was answered, and it takes %v: %+v", got, a.View())
		}
		attempt.End(trace.Now(), health.GaveUp)
		attempt.End(trace.Now(), health.Fault) // which counts for nothing
		if got, want := tell(), []told{{"a", "req-1", health.Probing}, {"a", "req-1", health.Down}, {"a", "req-1", health.Up}}; !slices.Equal(got, want) {
			t.Errorf("told %v", got)
		}
		var next Attempt
		a.HandOver(&next, trace.Now(), 10, "req-2", want, nil)
		if a.Takes() != health.Otherwise {
			t.Error("a second request at once")
		}
		next.Start(trace.Now())
		next.End(trace.Now(), health.Done)
	})
}

// Tokens that the engine's books count are progress.
func TestTokensAreProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, core, tell, books := rig(t)
		var attempt Attempt
		a.HandOver(&attempt, trace.Now(), -1, "req-1", engine.Probe{}, nil)
		booking := books.Book(trace.Now(), cost.Work{Length: 10, New: 10, Output: 100})
		booking.First(trace.Now(), -1, 0)
		attempt.Start(trace.Now())
		for range 60 {
			time.Sleep(500 * time.Millisecond)
			books.Tokens(trace.Now(), 1)
			if a.Takes() != health.Freely {
				t.Fatalf("%+v", a.View())
			}
		}
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if a.Takes() != health.AtLast || len(core.asked) == 0 {
			t.Errorf("without tokens: %+v", a.View())
		}
		// Its streams go on, and the probes are given up.
		books.Tokens(trace.Now(), 1)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		core.mu.Lock()
		defer core.mu.Unlock()
		if a.Takes() != health.Freely || core.ended != len(core.asked) {
			t.Errorf("with tokens again: %+v, %d of %d probes given up", a.View(), core.ended, len(core.asked))
		}
		if got := tell(); len(got) != 2 {
			t.Errorf("told %v", got)
		}
		attempt.End(trace.Now(), health.Done)
		booking.End(trace.Now(), 61)
	})
}

// An engine without a probe is avoided, and never out.
func TestNoProber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b, _, _, _ := rig(t)
		var attempt Attempt
		b.HandOver(&attempt, trace.Now(), 0, "req-1", engine.Probe{}, nil)
		for range 100 {
			time.Sleep(time.Second)
			if takes := b.Takes(); takes == health.Never {
				t.Fatalf("%+v", b.View())
			}
		}
		if b.Takes() == health.Freely {
			t.Error("it takes all")
		}
		attempt.End(trace.Now(), health.GaveUp)
	})
}

func TestOf(t *testing.T) {
	failed := func(code infer.Code, cause error) *infer.Error {
		return &infer.Error{Code: code, Engine: "e", Cause: cause}
	}
	for want, errs := range map[health.End][]*infer.Error{
		health.Done:     {nil},
		health.GaveUp:   {failed(infer.CodeDeadline, nil), failed(infer.CodeCancelled, nil), failed(infer.CodeExpired, nil), failed(infer.CodeInternal, nil), {Code: infer.CodeUnavailable}},
		health.Overload: {failed(infer.CodeOverloaded, nil)},
		health.Rejected: {failed(infer.CodeInvalid, nil), failed(infer.CodeContext, nil)},
		health.Refused:  {failed(infer.CodeUnavailable, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED})},
		health.Cut:      {failed(infer.CodeUnavailable, errors.New("lost")), failed(infer.CodeEngine, io.ErrUnexpectedEOF), failed(infer.CodeEngine, syscall.ECONNRESET)},
		health.Fault:    {failed(infer.CodeEngine, errors.New("it broke")), failed(infer.CodeIntegrity, nil)},
	} {
		for _, e := range errs {
			if got := Of(e); got != want {
				t.Errorf("%v is %v, want %v", e, got, want)
			}
		}
	}
}

// One that is nil, as in tests without a fleet, takes all.
func TestNil(t *testing.T) {
	var e *Rank
	var a Attempt
	e.HandOver(&a, 0, 0, "", engine.Probe{}, nil)
	a.Start(0)
	a.End(0, health.Done)
	if e.Takes() != health.Freely {
		t.Error("it does not take all")
	}
}

// An engine that asks for a pause gets it, for so long as it says and not for longer than
// it may, and that is no judgement. A new process has asked for nothing.
func TestRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, core, tell, _ := rig(t)
		rests := func(want time.Duration) {
			t.Helper()
			if got := a.Rests(trace.Now()); got != want || (a.Takes() == health.Never) != (want > 0) {
				t.Errorf("it rests %v, want %v, and takes %v", got, want, a.Takes())
			}
		}
		rests(0)
		a.Rest(trace.Now(), 3*time.Second)
		a.Rest(trace.Now(), time.Second) // the longer one holds
		rests(3 * time.Second)
		time.Sleep(3 * time.Second)
		rests(0)
		a.Rest(trace.Now(), time.Hour)
		rests(MaxRest)
		a.Is(Presence{Serves: []string{"m"}, Prober: core})
		a.Is(Presence{Ready: true, Fresh: true, Serves: []string{"m"}, Prober: core})
		rests(0)
		if len(tell()) > 0 || a.View().State != health.Up {
			t.Errorf("told %v, %+v", tell(), a.View())
		}
		var none *Rank
		none.Rest(0, time.Hour)
		if none.Rests(0) != 0 || none.Takes() != health.Freely {
			t.Error("one that nobody judges rests")
		}
	})
}

// A gateway that waits for a core again and again, and reads all that has come whenever it
// has one, is in time to see that an engine hangs.
func TestStarvedGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, core, _, _ := rig(t)
		var attempt Attempt
		a.HandOver(&attempt, trace.Now(), 0, "req-1", engine.Probe{}, nil)
		for range 220 {
			a.judge.Late(25 * time.Millisecond)
			time.Sleep(50 * time.Millisecond)
			a.judge.Late(15 * time.Millisecond)
			time.Sleep(50 * time.Millisecond)
		}
		core.mu.Lock()
		defer core.mu.Unlock()
		if a.Takes() != health.Never || len(core.asked) == 0 || a.judge.Missed() > 0 {
			t.Errorf("after 22 s of silence: %+v, %d probes, late for %v", a.View(), len(core.asked), a.judge.Missed())
		}
		attempt.End(trace.Now(), health.GaveUp)
	})
}

// While the gateway itself stands still no engine owes anything.
func TestOwnLateness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, core, tell, _ := rig(t)
		var attempt Attempt
		a.HandOver(&attempt, trace.Now(), 0, "req-1", engine.Probe{}, nil)
		for range 600 { // a minute of which it was late for all but a hundredth
			a.judge.Late(99 * time.Millisecond)
			time.Sleep(100 * time.Millisecond)
		}
		synctest.Wait()
		if a.Takes() != health.Freely || len(core.asked) > 0 || len(tell()) > 0 {
			t.Errorf("%+v, %d probes, told %v", a.View(), len(core.asked), tell())
		}
		if missed := a.judge.Missed(); missed < 59*time.Second || missed > 60*time.Second {
			t.Errorf("it was late for %v, want 59.4 s", missed)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if a.Takes() != health.Otherwise {
			t.Errorf("in time, and without a word for 2 s: %+v", a.View())
		}
		attempt.Sent(trace.Now(), trace.Now())
		if a.Takes() != health.Freely {
			t.Errorf("its request was sent just now: %+v", a.View())
		}
		attempt.End(trace.Now(), health.Done)
		attempt.Sent(trace.Now(), trace.Now())
	})
}

// A probe that a bound of somebody else's has ended says no more than one that is not
// answered: the rank is down when it has been silent for long enough, and not before.
func TestProbeEndedByAnotherBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, core, _, _ := rig(t)
		var attempt Attempt
		a.HandOver(&attempt, trace.Now(), 0, "req-1", engine.Probe{}, nil)
		time.Sleep(11 * time.Second)
		for _, err := range []error{os.ErrDeadlineExceeded, context.DeadlineExceeded} {
			core.answers <- fmt.Errorf("probe: %w", err)
			synctest.Wait()
			if a.Takes() != health.AtLast {
				t.Errorf("after %v: %+v", err, a.View())
			}
			time.Sleep(2 * time.Second)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if a.Takes() != health.Never {
			t.Errorf("after 25 s of silence: %+v", a.View())
		}
		attempt.End(trace.Now(), health.GaveUp)
	})
}

// A step's work explains no more silence than that step, however many requests have come since the
// engine last showed progress.
func TestHungUnderSmallRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, _, _, books := rig(t)
		work := cost.Work{Length: 10, New: 10, Output: 2}
		at := int64(1) // of the books, which are no clock of this bubble's
		for range 20 { // each takes a tenth of a second
			b := books.Book(at, work)
			b.First(at+1e8, -1, 0)
			at += 2e8
			b.End(at, 2)
		}
		if books.Cold() {
			t.Fatal("nothing was learned")
		}
		attempts, bookings := make([]Attempt, 80), make([]*cost.Booking, 80)
		for i := range attempts {
			a.HandOver(&attempts[i], trace.Now(), 100, "req", engine.Probe{}, nil)
			bookings[i] = books.Book(at, work)
		}
		time.Sleep(21 * time.Second)
		synctest.Wait()
		if v := a.View(); v.State != health.Down {
			t.Errorf("after 21 s it is %+v", v)
		}
		for i := range attempts {
			bookings[i].End(at, 0)
			attempts[i].End(trace.Now(), health.GaveUp)
		}
	})
}

// An engine that hangs under a queue of an hour is out within minutes: its next request would
// show something long before the last one.
func TestHungUnderAQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, _, _, books := rig(t)
		work := cost.Work{Length: 20_000, New: 20_000, Output: 2}
		at := int64(1) // of the books, which are no clock of this bubble's
		for range 20 { // each takes two seconds
			b := books.Book(at, work)
			b.First(at+2e9, -1, 0)
			at += 3e9
			b.End(at, 2)
		}
		if books.Cold() {
			t.Fatal("nothing was learned")
		}
		attempts, bookings := make([]Attempt, 1800), make([]*cost.Booking, 1800)
		for i := range attempts {
			a.HandOver(&attempts[i], trace.Now(), 2000, "req", engine.Probe{}, nil)
			bookings[i] = books.Book(at, work)
		}
		for _, c := range []struct {
			after time.Duration
			state health.State
		}{{5 * time.Second, health.Soft}, {55 * time.Second, health.Down}} {
			time.Sleep(c.after)
			synctest.Wait()
			if v := a.View(); v.State != c.state {
				t.Errorf("it is %+v, want %v", v, c.state)
			}
		}
		for i := range attempts {
			bookings[i].End(at, 0)
			attempts[i].End(trace.Now(), health.GaveUp)
		}
	})
}

// deaf is an engine that reads no probe for a while, and answers late those that it is sent
// afterwards.
type deaf struct {
	core
	until time.Time
	late  time.Duration
}

func (d *deaf) Probe(ctx context.Context, _ engine.Probe) error {
	answer := time.NewTimer(d.late)
	defer answer.Stop()
	if time.Now().Before(d.until) {
		answer.Stop() // it is lost
	}
	select {
	case <-answer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// An engine that hung and takes three seconds for any answer afterwards, as on a machine that
// has no core free, is back as soon as it has answered, and not only when the probe is
// repeated that is waited for.
func TestBackWithLateAnswers(t *testing.T) {
	for _, hung := range []time.Duration{22 * time.Second, 22500 * time.Millisecond, 25 * time.Second, 27 * time.Second, 31 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			e := &deaf{core: *newCore(), until: time.Now().Add(hung), late: 3 * time.Second}
			a := judged(t, Options{}, Presence{Ready: true, Fresh: true, Serves: []string{"m"}, Prober: e})
			var attempt Attempt
			a.HandOver(&attempt, trace.Now(), 10, "req-1", engine.Probe{}, nil)
			time.Sleep(hung)
			if a.View().State != health.Down {
				t.Errorf("hung for %v: %+v", hung, a.View())
			}
			attempt.End(trace.Now(), health.GaveUp)
			time.Sleep(5200 * time.Millisecond) // two until it is probed, and its three
			if a.View().Takes != health.Freely {
				t.Errorf("%v after it had hung for %v: %+v", 5200*time.Millisecond, hung, a.View())
			}
		})
	}
}

// An engine that answers its probe within its time is not out because the gateway stood still
// for a part of that.
func TestOwnLatenessWhileProbing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &deaf{core: *newCore(), late: 13 * time.Second}
		a := judged(t, Options{}, Presence{Ready: true, Fresh: true, Serves: []string{"m"}, Prober: e})
		var attempt Attempt
		a.HandOver(&attempt, trace.Now(), 10, "req-1", engine.Probe{}, nil)
		time.Sleep(11 * time.Second)
		for range 50 {
			a.judge.Late(100 * time.Millisecond)
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(7500 * time.Millisecond)
		if v := a.View(); v.State != health.Soft {
			t.Errorf("its probe was answered after 13 s, for 5 of which the gateway was late: %+v", v)
		}
		attempt.End(trace.Now(), health.GaveUp)
	})
}

// A rank that stood still until it was avoided, and goes on before a probe is due, is not
// believed to have others' work: requests would be kept away from it for half a minute.
func TestStoodStillIsNobodysWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(-time.Duration(trace.Now()) + time.Second) // books' times are positive, and a bubble begins in 2000
		a, _, _, _, books := rig(t)
		ask := func(tokens int, standing time.Duration) {
			now := trace.Now()
			b := books.Book(now, cost.Work{Length: tokens, New: tokens, Output: 8})
			var attempt Attempt
			a.HandOver(&attempt, now, 10, "req", engine.Probe{}, nil)
			time.Sleep(standing)
			if soft := a.View().State == health.Soft; soft != (standing > 0) {
				t.Errorf("after %v: %+v", standing, a.View())
			}
			began := trace.Now()
			time.Sleep(time.Duration(tokens) * 50 * time.Microsecond)
			b.First(trace.Now(), -1, began)
			attempt.Start(trace.Now())
			for range 8 {
				books.Tokens(trace.Now(), 1)
				time.Sleep(5 * time.Millisecond)
			}
			b.End(trace.Now(), 8)
			attempt.End(trace.Now(), health.Done)
		}
		for i := range 40 {
			ask(500+i*397%4000, 0)
		}
		before := books.Unseen(trace.Now())
		ask(500, 1500*time.Millisecond)
		if more := books.Unseen(trace.Now()) - before; books.Cold() || more > 1 {
			t.Errorf("%.0f ms of others' work; nothing was learned: %v", more, books.Cold())
		}
	})
}
