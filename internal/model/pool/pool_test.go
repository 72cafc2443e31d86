package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"weir/internal/infer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// in runs f with a pool in a bubble of virtual time.
func in(t *testing.T, o Options, f func(t *testing.T, p *Pool)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := New(o)
		defer p.Close()
		f(t, p)
	})
}

// running is a Run under way.
type running struct {
	times Times
	err   error
	done  chan struct{}
}

// start calls RunYielding in a goroutine and waits until it stands.
func start(p *Pool, ctx context.Context, cost int, fn func(yield func())) *running {
	r := &running{done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.times, r.err = p.RunYielding(ctx, cost, fn)
	}()
	synctest.Wait()
	return r
}

// busy is work that takes a time.
func busy(d time.Duration) func(func()) {
	return func(func()) { time.Sleep(d) }
}

func codeOf(err error) infer.Code { return infer.AsError(err).Code }

func TestTimes(t *testing.T) {
	in(t, Options{Workers: 1, Lane: -1}, func(t *testing.T, p *Pool) {
		ctx := t.Context()
		first := start(p, ctx, 10, busy(3*time.Second))
		second := start(p, ctx, 10, busy(2*time.Second))
		if p.Waiting() != 1 || p.WaitingCost() != 10 || p.Running() != 1 {
			t.Errorf("waiting %d, cost %d, running %d", p.Waiting(), p.WaitingCost(), p.Running())
		}
		time.Sleep(time.Second)
		if got := p.OldestWait(); got != time.Second {
			t.Errorf("oldest wait %v", got)
		}
		<-first.done
		<-second.done
		wait := time.Duration(second.times.Start - second.times.Queued)
		work := time.Duration(second.times.End - second.times.Start)
		if wait != 3*time.Second || work != 2*time.Second {
			t.Errorf("waited %v and worked %v", wait, work)
		}
		if s := p.Stats(); s.Completed != 2 || s.Wait != 3*time.Second || s.Work != 5*time.Second {
			t.Errorf("stats %+v", s)
		}
		if p.OldestWait() != 0 || p.Waiting() != 0 || p.WaitingCost() != 0 {
			t.Errorf("oldest wait %v, waiting %d, cost %d", p.OldestWait(), p.Waiting(), p.WaitingCost())
		}
	})
}

// TestWorkers checks that as many jobs run as there are workers and no more.
func TestWorkers(t *testing.T) {
	in(t, Options{Workers: 3}, func(t *testing.T, p *Pool) {
		var jobs []*running
		for range 7 {
			jobs = append(jobs, start(p, t.Context(), 100<<10, busy(time.Second)))
		}
		if p.Running() != 3 || p.Workers() != 3 {
			t.Errorf("running %d of %d", p.Running(), p.Workers())
		}
		begin := time.Now()
		for _, j := range jobs {
			<-j.done
		}
		if took := time.Since(begin); took != 3*time.Second {
			t.Errorf("seven jobs of 1 s on three workers took %v", took)
		}
	})
}

// TestShortestFirst checks the order of what waits together, and that a long
// job ages into its turn.
func TestShortestFirst(t *testing.T) {
	in(t, Options{Workers: 1, Lane: -1}, func(t *testing.T, p *Pool) {
		var order []int
		job := func(cost int) func(func()) {
			return func(func()) { order = append(order, cost) }
		}
		head := start(p, t.Context(), 1, busy(time.Second))
		var jobs []*running
		for _, cost := range []int{500_000, 40, 200_000, 3_000} {
			jobs = append(jobs, start(p, t.Context(), cost, job(cost)))
		}
		time.Sleep(patience * 500_000) // the long job's patience is over
		jobs = append(jobs, start(p, t.Context(), 7, job(7)))
		<-head.done
		for _, j := range jobs {
			<-j.done
		}
		if want := []int{40, 3_000, 200_000, 500_000, 7}; !slices.Equal(order, want) {
			t.Errorf("order %v, want %v", order, want)
		}
	})
}

// TestSmallPassesLarge is the law the pool is there for: with every worker on
// a large job a small one waits for one yield, and no extra core is used.
func TestSmallPassesLarge(t *testing.T) {
	in(t, Options{Workers: 2}, func(t *testing.T, p *Pool) {
		large := func(yield func()) {
			for range 100 {
				time.Sleep(250 * time.Microsecond)
				yield()
			}
		}
		var jobs []*running
		for range 6 {
			jobs = append(jobs, start(p, t.Context(), 160<<10, large))
		}
		for range 20 {
			small := start(p, t.Context(), 2<<10, busy(100*time.Microsecond))
			<-small.done
			if wait := time.Duration(small.times.Start - small.times.Queued); wait > 250*time.Microsecond {
				t.Fatalf("a small job waited %v behind large ones", wait)
			}
		}
		for _, j := range jobs {
			<-j.done
		}
		if s := p.Stats(); s.LetBy != 20 || s.Lane != 0 {
			t.Errorf("%d small jobs were let by and %d had the lane, want 20 and 0", s.LetBy, s.Lane)
		}
	})
}

// TestLane checks that small jobs do not wait for work that never yields, however
// many such jobs have waited longer, and that it costs those no time.
func TestLane(t *testing.T) {
	const jobs, each = 16, 20 * time.Millisecond
	longest := func(t *testing.T, o Options) (wait time.Duration, lane uint64) {
		in(t, o, func(t *testing.T, p *Pool) {
			head := start(p, t.Context(), 1<<20, busy(time.Second)) // longer than the patience of the others
			var large []*running
			for range jobs {
				large = append(large, start(p, t.Context(), 1<<20, busy(each)))
			}
			<-head.done
			at := time.Now()
			var small []*running
			for range 10 {
				small = append(small, start(p, t.Context(), 2<<10, busy(100*time.Microsecond)))
				time.Sleep(5 * time.Millisecond)
			}
			for _, j := range slices.Concat(large, small) {
				if <-j.done; j.err != nil {
					t.Fatal(j.err)
				}
			}
			for _, j := range small {
				wait = max(wait, time.Duration(j.times.Start-j.times.Queued))
			}
			lane = p.Stats().Lane
			if took := time.Since(at); took < jobs*each || lane > 0 && took != jobs*each {
				t.Errorf("the large jobs took %v", took)
			}
		})
		return wait, lane
	}
	if wait, lane := longest(t, Options{Workers: 1}); wait != DefaultLane || lane != 10 {
		t.Errorf("a small job waited %v, and %d had the lane; want %v and 10", wait, lane, DefaultLane)
	}
	if wait, lane := longest(t, Options{Workers: 1, Lane: -1}); wait < jobs*each-5*time.Millisecond || lane != 0 {
		t.Errorf("without a lane a small job waited %v, and %d had it: the test shows nothing", wait, lane)
	}
}

// TestLaneIsForWant checks that no number of small jobs opens the lane as long as
// workers take some, or large ones let some by: a core is I/O's.
func TestLaneIsForWant(t *testing.T) {
	for _, large := range []bool{false, true} {
		in(t, Options{Workers: 1}, func(t *testing.T, p *Pool) {
			var jobs []*running
			if large {
				jobs = append(jobs, start(p, t.Context(), 1<<20, yielding(100)))
			}
			most := 0
			for range 300 {
				jobs = append(jobs, start(p, t.Context(), 100, func(func()) {
					most = max(most, p.Running())
					time.Sleep(time.Millisecond)
				}))
			}
			for _, j := range jobs {
				<-j.done
			}
			want := 1
			if large {
				want = 2 // one is suspended
			}
			if s := p.Stats(); s.Lane != 0 || most != want {
				t.Errorf("%d small jobs had the lane, and %d jobs ran at once", s.Lane, most)
			}
		})
	}
}

// TestLetByKeepsOn checks that a storm of small jobs slows a large one and
// does not stop it.
func TestLetByKeepsOn(t *testing.T) {
	in(t, Options{Workers: 1}, func(t *testing.T, p *Pool) {
		large := start(p, t.Context(), 160<<10, func(yield func()) {
			for range 40 {
				time.Sleep(250 * time.Microsecond)
				yield()
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		var storm []*running
		for range 300 {
			storm = append(storm, start(p, ctx, 100, busy(time.Millisecond)))
		}
		<-large.done
		if took := time.Duration(large.times.End - large.times.Start); took > 40*(250*time.Microsecond+time.Millisecond) {
			t.Errorf("the large job took %v", took)
		}
		cancel()
		for _, j := range storm {
			<-j.done
		}
	})
}

// yielding is work of so many steps of 250 us with a yield after each.
func yielding(steps int) func(func()) {
	return func(yield func()) {
		for range steps {
			time.Sleep(250 * time.Microsecond)
			yield()
		}
	}
}

// TestShorterPassesMuchLarger checks that a job which is not small is let by
// where it is an eighth as long at most, and lets small ones by itself.
func TestShorterPassesMuchLarger(t *testing.T) {
	in(t, Options{Workers: 1}, func(t *testing.T, p *Pool) {
		large := start(p, t.Context(), 1<<20, yielding(400))
		half := start(p, t.Context(), 512<<10, yielding(1))
		eighth := start(p, t.Context(), 128<<10, yielding(40))
		time.Sleep(time.Millisecond) // inside the eighth
		small := start(p, t.Context(), 100, busy(time.Microsecond))
		for _, j := range []*running{small, eighth, large, half} {
			<-j.done
		}
		for _, c := range []struct {
			name string
			j    *running
			wait time.Duration
		}{
			{"an eighth", eighth, 250 * time.Microsecond},
			{"a small one", small, 250 * time.Microsecond},
			{"half", half, time.Duration(large.times.End - half.times.Queued)},
		} {
			if got := time.Duration(c.j.times.Start - c.j.times.Queued); got > c.wait || c.j == half && got != c.wait {
				t.Errorf("%s waited %v, want %v", c.name, got, c.wait)
			}
		}
		if s := p.Stats(); s.LetBy != 2 || s.Work != 441*250*time.Microsecond+time.Microsecond {
			t.Errorf("stats %+v", s)
		}
	})
}

// TestGivesHalf checks that jobs which are not small take at most as long from
// a large one as it has had itself, and one job more.
func TestGivesHalf(t *testing.T) {
	in(t, Options{Workers: 1}, func(t *testing.T, p *Pool) {
		large := start(p, t.Context(), 1<<20, yielding(200))
		var others []*running
		for range 100 {
			others = append(others, start(p, t.Context(), 100<<10, yielding(16)))
		}
		<-large.done
		own, other := 200*250*time.Microsecond, 16*250*time.Microsecond
		if took := time.Duration(large.times.End - large.times.Start); took > 2*own+other || took < 2*own-other {
			t.Errorf("the large job took %v of which %v its own", took, own)
		}
		for _, j := range others {
			<-j.done
		}
	})
}

// TestMaxWait checks both ends of a wait's bound: a job that would wait longer
// is refused before any work, and one that has waited so long leaves.
func TestMaxWait(t *testing.T) {
	in(t, Options{Workers: 1, Lane: -1, MaxWait: 3 * time.Second}, func(t *testing.T, p *Pool) {
		ran := false
		head := start(p, t.Context(), 1000, busy(10*time.Second))
		waits := start(p, t.Context(), 1000, func(func()) { ran = true })
		at := time.Now()
		<-waits.done
		var e *infer.Error
		if !errors.As(waits.err, &e) || e.Code != infer.CodeDeadline || e.RetryAfter != 3*time.Second || time.Since(at) != 3*time.Second || ran || p.Waiting() != 0 {
			t.Errorf("ended with %v after %v, ran: %v, %d waiting", waits.err, time.Since(at), ran, p.Waiting())
		}
		<-head.done // 10 ms a unit is known now
		jobs := []*running{start(p, t.Context(), 100, busy(time.Second)), start(p, t.Context(), 200, busy(time.Second)), start(p, t.Context(), 200, busy(time.Second))}
		at = time.Now()
		over := start(p, t.Context(), 100, func(func()) { ran = true })
		<-over.done
		if !errors.As(over.err, &e) || e.Code != infer.CodeDeadline || e.RetryAfter != 4*time.Second || time.Since(at) != 0 || ran {
			t.Errorf("ended with %v after %v, ran: %v", over.err, time.Since(at), ran)
		}
		for _, j := range jobs {
			<-j.done
		}
		if jobs[0].err != nil || jobs[1].err != nil || jobs[2].err != nil {
			t.Errorf("ended with %v, %v and %v", jobs[0].err, jobs[1].err, jobs[2].err)
		}
		if s := p.Stats(); s.Refused != 2 || s.Cancelled != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestQueueLimit(t *testing.T) {
	in(t, Options{Workers: 1, Lane: -1, QueueLimit: 2, QueueCost: 1000}, func(t *testing.T, p *Pool) {
		ctx, cancel := context.WithCancel(t.Context())
		jobs := []*running{start(p, ctx, 5000, busy(time.Second))} // a first one may be any size
		jobs = append(jobs, start(p, ctx, 5000, busy(time.Second)))
		over := start(p, ctx, 1, busy(time.Second))
		<-over.done
		var e *infer.Error
		if !errors.As(over.err, &e) || e.Code != infer.CodeOverloaded || e.RetryAfter < time.Second || !strings.Contains(e.Message, "1 prompts wait") {
			t.Errorf("over the cost: %v", over.err)
		}
		cancel()
		for _, j := range jobs {
			<-j.done
		}
		if jobs[0].err != nil || codeOf(jobs[1].err) != infer.CodeCancelled {
			t.Errorf("ended with %v and %v", jobs[0].err, jobs[1].err)
		}
		jobs = nil
		for range 3 {
			jobs = append(jobs, start(p, t.Context(), 1, busy(time.Second)))
		}
		over = start(p, t.Context(), 1, busy(time.Second))
		<-over.done
		if codeOf(over.err) != infer.CodeOverloaded {
			t.Errorf("over the limit: %v", over.err)
		}
		for _, j := range jobs {
			if <-j.done; j.err != nil {
				t.Error(j.err)
			}
		}
		if s := p.Stats(); s.Refused != 2 || s.Cancelled != 1 {
			t.Errorf("stats %+v", s)
		}
	})
}

// TestDeadline checks that a job is refused before any work when its wait
// would outlast its deadline, once the pool knows its speed.
func TestDeadline(t *testing.T) {
	in(t, Options{Workers: 1, Lane: -1}, func(t *testing.T, p *Pool) {
		if _, err := p.Run(t.Context(), 1000, func() { time.Sleep(time.Second) }); err != nil {
			t.Fatal(err)
		}
		var jobs []*running
		for range 4 {
			jobs = append(jobs, start(p, t.Context(), 1000, busy(time.Second)))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		at := time.Now()
		late := start(p, ctx, 1000, busy(time.Second))
		<-late.done
		var e *infer.Error
		if !errors.As(late.err, &e) || e.Code != infer.CodeDeadline || e.RetryAfter != 3*time.Second || time.Since(at) != 0 {
			t.Errorf("got %v after %v", late.err, time.Since(at))
		}
		ctx, cancel = context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		jobs = append(jobs, start(p, ctx, 1000, busy(time.Second)))
		for _, j := range jobs {
			if <-j.done; j.err != nil {
				t.Error(j.err)
			}
		}
	})
}

// TestCancel checks that a job whose caller is gone leaves the queue at once
// and that a running one is waited for.
func TestCancel(t *testing.T) {
	in(t, Options{Workers: 1, Lane: -1}, func(t *testing.T, p *Pool) {
		ctx, cancel := context.WithCancel(t.Context())
		head := start(p, ctx, 1, busy(time.Second))
		ran := false
		waiting := start(p, ctx, 1, func(func()) { ran = true })
		at := time.Now()
		cancel()
		<-waiting.done
		if codeOf(waiting.err) != infer.CodeCancelled || time.Since(at) != 0 || ran || p.Waiting() != 0 {
			t.Errorf("ended with %v after %v, ran: %v, %d waiting", waiting.err, time.Since(at), ran, p.Waiting())
		}
		<-head.done
		if head.err != nil || time.Since(at) != time.Second {
			t.Errorf("the running job ended with %v after %v", head.err, time.Since(at))
		}
		why, stop := context.WithCancelCause(t.Context())
		stop(infer.Errorf(infer.CodeSlowClient, "too slow"))
		if _, err := p.Run(why, 1, func() { ran = true }); codeOf(err) != infer.CodeSlowClient {
			t.Errorf("with a context that ended for a reason: %v", err)
		}
		if _, err := p.Run(ctx, 1, func() { ran = true }); codeOf(err) != infer.CodeCancelled || ran {
			t.Errorf("with a context that is done: %v, ran: %v", err, ran)
		}
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Options{Workers: 1, Lane: -1})
		ended := false
		head := start(p, t.Context(), 1, func(func()) { time.Sleep(time.Second); ended = true })
		waiting := start(p, t.Context(), 1, busy(time.Second))
		p.Close()
		if !ended {
			t.Error("Close did not wait for the running job")
		}
		<-head.done
		<-waiting.done
		if head.err != nil || codeOf(waiting.err) != infer.CodeUnavailable {
			t.Errorf("ended with %v and %v", head.err, waiting.err)
		}
		if _, err := p.Run(t.Context(), 1, func() {}); codeOf(err) != infer.CodeUnavailable {
			t.Errorf("after Close: %v", err)
		}
	})
}

// TestPanic checks that a panic is its caller's and that the worker lives on.
func TestPanic(t *testing.T) {
	in(t, Options{Workers: 1}, func(t *testing.T, p *Pool) {
		func() {
			defer func() {
				if v := fmt.Sprint(recover()); !strings.Contains(v, "in the pool: boom") || !strings.Contains(v, "TestPanic") {
					t.Errorf("recovered %.80q", v)
				}
			}()
			p.Run(t.Context(), 1, func() { panic("boom") })
		}()
		if _, err := p.Run(t.Context(), 1, func() {}); err != nil {
			t.Error(err)
		}
	})
}

// TestDefaults checks that the zero Options work, on the real clock.
func TestDefaults(t *testing.T) {
	p := New(Options{})
	defer p.Close()
	if p.Workers() < 1 {
		t.Fatalf("%d workers", p.Workers())
	}
	var mu sync.Mutex
	sum := 0
	var calls sync.WaitGroup
	for i := range 100 {
		calls.Go(func() {
			times, err := p.Run(t.Context(), i*1000, func() { mu.Lock(); sum += i; mu.Unlock() })
			if err != nil || times.Queued > times.Start || times.Start > times.End {
				t.Errorf("%+v, %v", times, err)
			}
		})
	}
	calls.Wait()
	if sum != 4950 {
		t.Errorf("the jobs add up to %d", sum)
	}
}

// TestQueueLaws checks the queue against a list that is searched each time.
func TestQueueLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q queue
		var model []*job
		now := int64(1)
		least := func(jobs []*job, most int) *job {
			var best *job
			for _, j := range jobs {
				if j.cost <= most && (best == nil || j.order < best.order) {
					best = j
				}
			}
			return best
		}
		drop := func(j *job) {
			model = slices.DeleteFunc(model, func(m *job) bool { return m == j })
		}
		order := func(j *job) int64 {
			if j == nil {
				return -1
			}
			return j.order
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				now += rapid.Int64Range(1, 1_000_000).Draw(t, "later")
				cost := rapid.IntRange(1, 100_000).Draw(t, "cost")
				j := &job{cost: cost, times: Times{Queued: now}}
				q.push(j)
				model = append(model, j)
			},
			"pop": func(t *rapid.T) {
				class := rapid.IntRange(0, 18).Draw(t, "class")
				want := least(model, 1<<class)
				got := q.pop(class)
				if order(got) != order(want) {
					t.Fatalf("popped order %d of class %d, want %d", order(got), class, order(want))
				}
				drop(got)
			},
			"remove": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip("none waits")
				}
				j := rapid.SampledFrom(model).Draw(t, "job")
				if !q.remove(j) || q.remove(j) {
					t.Fatal("a job can be removed once")
				}
				drop(j)
			},
			"": func(t *rapid.T) {
				var cost, small, oldest int64
				for _, j := range model {
					cost += int64(j.cost)
					if j.cost <= DefaultSmall {
						small += int64(j.cost)
					}
					if oldest == 0 || j.times.Queued < oldest {
						oldest = j.times.Queued
					}
				}
				all, some := q.cost(classes-1), q.cost(classOf(DefaultSmall))
				if q.len() != len(model) || all != cost || some != small || q.oldest() != oldest {
					t.Fatalf("len %d, cost %d, small %d, oldest %d; want %d, %d, %d, %d",
						q.len(), all, some, q.oldest(), len(model), cost, small, oldest)
				}
			},
		})
	})
}

// BenchmarkRun measures what the pool itself costs a job.
func BenchmarkRun(b *testing.B) {
	p := New(Options{})
	defer p.Close()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Run(b.Context(), 1, func() {}); err != nil {
			b.Fatal(err)
		}
	}
}

// One job that the system put aside does not make the pool refuse those that
// come after it.
func TestRateForgives(t *testing.T) {
	var r rate
	const size = 160 << 10
	for range 10 {
		r.add(size, 5e6)
	}
	r.add(size, 200e6)
	if got := r.estimate(900*size, 1); got > 25*time.Second {
		t.Errorf("900 prompts are expected to take %v after one slow one, want about %v", got, 900*5*time.Millisecond)
	}
	for range 200 {
		r.add(size, 5e6)
	}
	if got := r.estimate(900*size, 1); got < 4400*time.Millisecond || got > 5*time.Second {
		t.Errorf("900 prompts are expected to take %v long after it", got)
	}
	for range 200 { // it follows what has changed for good
		r.add(size, 50e6)
	}
	if got := r.estimate(900*size, 1); got < 40*time.Second {
		t.Errorf("900 prompts that take ten times as long are expected to take %v", got)
	}
}
