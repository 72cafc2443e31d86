package gcpace

import (
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

const mb = 1 << 20

// process is a process in virtual time, whose collector works as Go's does.
type process struct {
	at        time.Duration
	allocated int64
	live      int64
	roots     int64
	percent   int
	cycles    int64
	serving   bool
	stays     float64 // the part of what is allocated that stays live
	pace      *Pace
	heap      int64 // allocated since the last collection, and what it left
	most      int64 // that the heap has had
	collected []time.Duration
}

func newProcess(live int64, limits ...int64) *process {
	return &process{live: live, heap: live, percent: plainPercent, serving: true, pace: New(Look{}, limits...)}
}

// goal is the size that the heap reaches before it is collected.
func (p *process) goal() int64 {
	return max(p.live+(p.live+p.roots)*int64(p.percent)/100, 4*mb*int64(p.percent)/100)
}

// runs allocates at a rate for some time, with the looks that a keeper takes. Go collects after
// two minutes in any case.
func (p *process) runs(rate int64, lasts time.Duration) *process {
	p.collected, p.most = nil, 0
	end, last := p.at+lasts, p.at
	for p.at < end {
		next := min(end-p.at, last+2*time.Minute-p.at)
		if p.percent > plainPercent {
			next = min(next, looks)
		}
		collects := time.Duration(float64(p.goal()-p.heap)/float64(rate)*float64(time.Second)) <= next
		if collects {
			next = time.Duration(max(0, float64(p.goal()-p.heap)) / float64(rate) * float64(time.Second))
		}
		p.at += next
		bytes := int64(next.Seconds() * float64(rate))
		p.allocated, p.heap = p.allocated+bytes, p.heap+bytes
		p.most = max(p.most, p.heap)
		if collects || p.at >= last+2*time.Minute {
			p.collected = append(p.collected, p.at)
			p.cycles++
			p.live += int64(p.stays * float64(p.heap-p.live))
			p.heap, last = p.live, p.at
			p.at += time.Millisecond
		}
		p.percent = p.pace.Percent(Look{At: p.at, Allocated: p.allocated, Cycles: p.cycles, Live: p.live, Roots: p.roots, Serving: p.serving})
	}
	return p
}

// apart is the time between the last two collections.
func (p *process) apart() time.Duration {
	if n := len(p.collected); n > 1 {
		return p.collected[n-1] - p.collected[n-2]
	}
	return 2 * time.Minute
}

// A process that serves and allocates 1 MB a second stays small. A flood that begins soon gets
// the room that puts collections seconds apart. Seconds after it the heap is small again.
func TestFlood(t *testing.T) {
	p := newProcess(20*mb).runs(mb, time.Minute).runs(mb, time.Minute)
	if p.most > 26*mb {
		t.Errorf("20 MB live and 1 MB a second: the heap grows to %d MB", p.most/mb)
	}
	if p.runs(30*mb, 6*time.Second); len(p.collected) > 4 {
		t.Errorf("%d collections in the first 6 s of a flood", len(p.collected))
	}
	if p.runs(30*mb, time.Minute); p.apart() < 9*Serving/10 {
		t.Errorf("collections beside the flood are %v apart", p.apart())
	}
	p.runs(mb, 10*time.Second)
	if p.goal() > 26*mb {
		t.Errorf("ten seconds after the flood the heap grows to %d MB", p.goal()/mb)
	}
}

// From the first collection on that shows that streams begin which stay, the heap has half of
// Go's own room. A flood of requests after that, whose answers end, gets its room.
func TestGrowing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newProcess(rapid.Int64Range(leastHeap, 100*mb).Draw(t, "live")).runs(mb, 5*time.Minute)
		rate := rapid.Int64Range(10*mb, 500*mb).Draw(t, "rate")
		p.stays = rapid.Float64Range(0.15, 0.5).Draw(t, "stays")
		for range 5 {
			if p.runs(rate, 2*time.Second); p.percent > plainPercent/2 {
				t.Fatalf("GOGC %d while %.2f of what is allocated stays", p.percent, p.stays)
			}
		}
		p.stays = 0
		p.runs(rate, 10*time.Second)
		if p.runs(rate, 20*time.Second); p.apart() < 9*Serving/10 && p.goal()-p.live < mostRoom*9/10 && p.percent < mostPercent {
			t.Fatalf("collections are %v apart in a flood after that, %d MB live, %d MB a second", p.apart(), p.live/mb, rate/mb)
		}
	})
}

// While nobody waits, no rate makes the heap larger than Go's own pace does.
func TestResting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newProcess(rapid.Int64Range(leastHeap, 1000*mb).Draw(t, "live"))
		p.serving = false
		for range 3 {
			p.runs(rapid.Int64Range(1, 2000*mb).Draw(t, "rate"), 5*time.Second)
			if p.most > 2*p.live+p.live/50 {
				t.Fatalf("the heap grows to %d MB with %d live", p.most/mb, p.live/mb)
			}
		}
	})
}

// At any steady rate collections become as far apart as the bounds allow, and no further apart
// than the heap's least room makes them.
func TestSteady(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		live := rapid.Int64Range(leastHeap, 4000*mb).Draw(t, "live")
		rate := rapid.Int64Range(mb/10, 2000*mb).Draw(t, "rate")
		limit := rapid.Int64Range(64*mb, 1<<40).Draw(t, "limit")
		p := newProcess(live, limit)
		p.roots = rapid.Int64Range(0, 64*mb).Draw(t, "roots")
		p.runs(rate, time.Minute)
		room, base := p.goal()-live, live+p.roots
		slack := base/100 + base/50 // GOGC is a whole number
		if bound := max(min(limit/16, mostRoom), base, leastRoom) + slack; room > bound {
			t.Fatalf("%d MB of room, at most %d", room/mb, bound/mb)
		}
		if percent := p.percent; percent < leastPercent || percent > mostPercent {
			t.Fatalf("GOGC %d", percent)
		}
		took := time.Duration(float64(room) / float64(rate) * float64(time.Second))
		bound := p.percent == mostPercent || room >= min(limit/16, mostRoom)-slack
		if took < Serving*9/10 && !bound {
			t.Fatalf("%v apart with %d MB of room, GOGC %d", took, room/mb, p.percent)
		}
		if least := max(leastRoom, base/100*leastPercent) + slack; took > Serving*11/10 && room > least {
			t.Fatalf("%v apart with %d MB of room, where %d MB are the least", took, room/mb, least/mb)
		}
	})
}

// A look that shows no time, or fewer bytes than the one before, does no harm.
func TestOddLooks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := New(Look{}, rapid.Int64().Draw(t, "limit"))
		for range 20 {
			l := Look{At: time.Duration(rapid.Int64().Draw(t, "at")), Serving: rapid.Bool().Draw(t, "serving")}
			for _, n := range []*int64{&l.Allocated, &l.Cycles, &l.Live, &l.Roots} {
				*n = rapid.Int64Range(0, math.MaxInt64/4).Draw(t, "bytes")
			}
			if got := p.Percent(l); got < leastPercent || got > mostPercent {
				t.Fatalf("GOGC %d", got)
			}
			if p.rate < 0 || math.IsNaN(p.rate) {
				t.Fatalf("a rate of %v", p.rate)
			}
		}
	})
}

// A process in a small control group does not grow beyond Go's own pace by more than a sixteenth.
func TestLimits(t *testing.T) {
	p := newProcess(10*mb, math.MaxInt64, 256*mb).runs(100*mb, 10*time.Second)
	if got := p.goal() - p.live; got < 15*mb || got > 17*mb {
		t.Errorf("%d MB of room in a group of 256 MB", got/mb)
	}
	p.live = 100 * mb
	if p.runs(100*mb, 10*time.Second); p.percent != plainPercent {
		t.Errorf("GOGC %d where Go's own pace gives more than the limit", p.percent)
	}
}

func TestMemoryFiles(t *testing.T) {
	if got := memoryFiles("0::/a.slice/weir.service\n"); !slices.Equal(got, []string{"/sys/fs/cgroup/a.slice/weir.service/memory.max", "/sys/fs/cgroup/memory.max"}) {
		t.Error(got)
	}
	if got := memoryFiles("3:cpu,cpuacct:/x\n2:memory:/x\nnonsense\n"); !slices.Equal(got, []string{"/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
		t.Error(got)
	}
}

func TestTotalMemory(t *testing.T) {
	for info, want := range map[string]int64{
		"MemTotal:       24684104 kB\nMemFree: 1 kB\n": 24684104 << 10,
		"MemFree: 1 kB\n": math.MaxInt64, "": math.MaxInt64, "MemTotal: much kB\n": math.MaxInt64,
	} {
		if got := totalMemory(info); got != want {
			t.Errorf("%q: %d, want %d", info, got, want)
		}
	}
}

// The keeper looks after each collection of this process, and only then while GOGC is not above
// Go's own pace, as while nobody waits.
func TestKeeper(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(plainPercent))
	var serving atomic.Bool
	set := make(chan int, 100)
	k := newKeeper(func(p int) int {
		select {
		case set <- p:
		default: // collections after the test
		}
		return p
	}, serving.Load, math.MaxInt64)
	defer k.timed.Stop()
	k.percent = 1 // whatever is right is far from it
	k.collected()
	select {
	case p := <-set:
		if p < leastPercent || p > plainPercent {
			t.Errorf("GOGC is set to %d while nobody waits", p)
		}
	default:
		t.Error("GOGC is not set at the start")
	}
	looked := func() int64 {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.pace.last.Cycles
	}
	var kept []byte
	for range 4 {
		kept = make([]byte, 8*mb)
		before := k.measure().Cycles
		runtime.GC()
		for deadline := time.Now().Add(time.Minute); looked() <= before; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("no look within a minute of the collection after the %dth", before)
			}
		}
	}
	runtime.KeepAlive(kept)
	serving.Store(true)
	l := k.measure()
	if l.Allocated < 32*mb || l.Live == 0 || l.Roots == 0 || l.Cycles < 4 || !l.Serving || l.At <= 0 {
		t.Errorf("a look without figures: %+v", l)
	}
}

// The keeper sets GOGC only if it changes by more than an eighth, and looks each second while it is
// above Go's own pace.
func TestKeeperSets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var set []int
		k := newKeeper(func(p int) int { set = append(set, p); return p }, func() bool { return true }, math.MaxInt64)
		defer k.timed.Stop()
		var looks atomic.Int64
		at := Look{Cycles: 1, Live: 100 * mb, Serving: true}
		k.pace, k.read = New(at), func() Look { looks.Add(1); return at }
		should, last, sets := New(at), plainPercent, 0
		for _, rate := range []int64{10, 10, 10, 10, 11, 11, 12, 12, 40, 40, 40, 40, 41, 40, 41, 39, 10, 10, 10} {
			at.At, at.Allocated = at.At+time.Second, at.Allocated+rate*mb
			k.look()
			want := should.Percent(at)
			if 8*max(want-last, last-want) > last {
				last, sets = want, sets+1
			}
			if len(set) != sets || sets > 0 && set[sets-1] != last || k.percent != last {
				t.Fatalf("GOGC was set to %v, and should be %d, by %d changes", set, last, sets)
			}
			before := looks.Load()
			time.Sleep(time.Second - 1) // of which the next looks are put off by the last one
			synctest.Wait()
			if looks.Load() != before {
				t.Fatalf("%d looks within a second", looks.Load()-before)
			}
		}
		if sets < 5 || sets > 15 {
			t.Errorf("GOGC was set %d times: %v", sets, set)
		}
		for _, c := range []struct {
			rate int64
			want int64 // looks in ten seconds
		}{{40, 10}, {1, 0}} {
			for range 20 {
				at.At, at.Allocated = at.At+time.Second, at.Allocated+c.rate*mb
				k.look()
			}
			// Looks that show no time change nothing.
			before := looks.Load()
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if looks.Load()-before != c.want {
				t.Errorf("%d looks in 10 s at GOGC %d, want %d", looks.Load()-before, k.percent, c.want)
			}
		}
	})
}
