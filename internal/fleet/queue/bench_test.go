package queue

import (
	"runtime"
	"testing"

	"weir/internal/fleet/cost"
	"weir/internal/tenancy"
)

const crowd = 100_000

// crowded is a queue with so many waiting for eight ranks that are full.
func crowded(n int) (w *world, waiting []*Request) {
	w = newWorld(Limits{}, 8, 4)
	for range 8 * 4 {
		w.come(&Request{Model: "m"})
	}
	waiting = make([]*Request, n)
	all := make([]Request, n)
	for i := range all {
		waiting[i] = &all[i]
		all[i] = Request{Model: "m", Answers: 1, Expires: w.now + 3600e9 + int64(i), Bytes: 1000}
		w.q.Enter(waiting[i], w.now)
		w.q.Wait(waiting[i], w.now)
	}
	return w, waiting
}

// turned reports whether anybody was to decide.
func turned(w *world) (any bool) {
	w.q.Turn(w.now, func(*Request) { any = true })
	return any
}

// BenchmarkIdle is what a request pays that does not wait.
func BenchmarkIdle(b *testing.B) {
	w := newWorld(Limits{}, 8, 4)
	r := &Request{Model: "m", Answers: 1}
	b.ReportAllocs()
	for b.Loop() {
		r.Place = 0
		w.now++
		if !w.q.Enter(r, w.now) || !w.q.Give(r, w.ranks[3], w.now) || turned(w) {
			b.Fatal("it had to wait")
		}
	}
}

// BenchmarkEnqueue is one more that waits, with 100,000 that do.
func BenchmarkEnqueue(b *testing.B) {
	w, _ := crowded(crowd)
	b.ReportAllocs()
	n := 0
	more := make([]Request, 1000)
	for b.Loop() {
		r := &more[n]
		*r = Request{Model: "m", Answers: 1, Expires: w.now + 7200e9, Bytes: 1000}
		if w.q.Enter(r, w.now) || w.q.Wait(r, w.now) != None || turned(w) {
			b.Fatal("it did not wait")
		}
		if n++; n == len(more) {
			b.StopTimer()
			for i := range more {
				w.q.Cancel(&more[i], w.now)
			}
			n = 0
			b.StartTimer()
		}
	}
}

// BenchmarkPick is one that leaves, with 100,000 that wait: its turn, its rank, and who is
// next.
func BenchmarkPick(b *testing.B) {
	w, _ := crowded(crowd)
	rank := w.ranks[5]
	rank.SetLimits(cost.Limits{})
	b.ReportAllocs()
	for b.Loop() {
		w.now++
		var left *Request
		w.q.Turn(w.now, func(r *Request) {
			if left == nil && w.q.Give(r, rank, w.now) {
				left = r
			}
		})
		if left == nil {
			b.Fatal("nobody left")
		}
		b.StopTimer()
		r := left
		r.Place = 0
		w.q.Enter(r, w.now)
		w.q.Wait(r, w.now)
		b.StartTimer()
	}
}

// BenchmarkCancel is one that hangs up, anywhere among 100,000.
func BenchmarkCancel(b *testing.B) {
	w, waiting := crowded(crowd)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		r := waiting[i]
		w.q.Cancel(r, w.now)
		if turned(w) {
			b.Fatal("there was room")
		}
		b.StopTimer()
		r.Place = 0
		w.q.Enter(r, w.now)
		w.q.Wait(r, w.now)
		i = (i + 7919) % len(waiting)
		b.StartTimer()
	}
}

// BenchmarkRefuse is one that is refused, since as many wait as may.
func BenchmarkRefuse(b *testing.B) {
	w, _ := crowded(crowd)
	w.q.limits.Requests = crowd
	b.ReportAllocs()
	for b.Loop() {
		if why, _ := w.q.Refuses(tenancy.Anyone, "m", 0, 1000, w.now); why != Full {
			b.Fatal(why)
		}
	}
}

// BenchmarkMemory reports what a request takes in the queue while it waits.
func BenchmarkMemory(b *testing.B) {
	var before, after runtime.MemStats
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		w, waiting := crowded(crowd)
		runtime.GC()
		runtime.ReadMemStats(&after)
		// The list that the benchmark itself keeps is not the queue's.
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/crowd-8, "B/waiting")
		runtime.KeepAlive(w)
		runtime.KeepAlive(waiting)
	}
}

// One that does not wait allocates nothing, and neither does one that leaves or hangs up.
func TestAllocatesNothing(t *testing.T) {
	w := newWorld(Limits{}, 8, 4)
	r := &Request{Model: "m", Answers: 1}
	w.come(r)
	if n := testing.AllocsPerRun(100, func() {
		r.Place = 0
		if !w.q.Enter(r, w.now) || !w.q.Give(r, w.ranks[1], w.now) || turned(w) {
			t.Fatal("it had to wait")
		}
	}); n != 0 {
		t.Errorf("%v allocations for one that does not wait", n)
	}
	w, waiting := crowded(1000)
	i := 0
	if n := testing.AllocsPerRun(100, func() {
		w.q.Cancel(waiting[i], w.now)
		i++
		if turned(w) {
			t.Fatal("there was room")
		}
	}); n != 0 {
		t.Errorf("%v allocations for one that hangs up", n)
	}
}
