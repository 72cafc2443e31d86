package engine

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"weir/internal/sim"
	"weir/internal/trace"
	"weir/internal/workload/content"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// idle returns an engine that nobody runs yet. Its time may be virtual.
func idle(t *testing.T, cost sim.Constant) *Engine {
	t.Helper()
	words, err := content.New(1024, func(id uint32) ([]byte, bool) {
		return []byte{' ', 'a' + byte(id%26), 'a' + byte(id/26%26), 'a' + byte(id/676)}, true
	})
	if err != nil {
		t.Fatal(err)
	}
	e, err := New(Options{Sim: sim.Options{Words: words, Cost: cost}, GoTimers: true})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestRunKeepsTheSchedule drives Run on a synthetic clock: results come at
// absolute deadlines, so that 1000 steps take 1000 step times and not a
// microsecond more, and an idle engine costs nothing.
func TestRunKeepsTheSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := idle(t, sim.Constant{Prefill: 30 * time.Millisecond, Decode: 7 * time.Millisecond})
		ctx, cancel := context.WithCancel(context.Background())
		go e.Run(ctx)
		time.Sleep(time.Hour) // idle, in synthetic time
		began := trace.Now()
		r, err := e.o.Prepare(sim.Params{Prompt: []uint32{1}, MaxTokens: 1000, IgnoreEOS: true})
		if err != nil {
			t.Fatal(err)
		}
		box := NewOutbox(0, nil)
		if err := e.Submit(ctx, &Job{Box: &box}, began, r); err != nil {
			t.Fatal(err)
		}
		var taken Batch
		n := 0
		for len(taken.Done) == 0 {
			<-box.Wake()
			box.Take(&taken)
			n += len(taken.ID)
		}
		if want := 30*time.Millisecond + 999*7*time.Millisecond; time.Duration(trace.Now()-began) != want || n != 1000 {
			t.Errorf("%d tokens took %v, want %v", n, time.Duration(trace.Now()-began), want)
		}
		if s := e.State(); s.Steps != 1000 || s.LateMax != 0 {
			t.Errorf("state %+v", s)
		}
		cancel()
		<-e.Done()
		if err := e.Submit(context.Background(), &Job{Box: &box}, began, r); err == nil {
			t.Error("a stopped engine accepts requests")
		}
	})
}

// An abort that overtakes its submission still aborts.
func TestAbortBeforeSubmission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := idle(t, sim.Constant{Prefill: time.Millisecond, Decode: time.Millisecond})
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go e.Run(ctx)
		r, err := e.o.Prepare(sim.Params{Prompt: []uint32{1}, IgnoreEOS: true})
		if err != nil {
			t.Fatal(err)
		}
		box := NewOutbox(0, nil)
		j := &Job{Box: &box}
		e.End(j, "abort")
		if err := e.Submit(context.Background(), j, 0, r); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s := e.State(); s.Aborted != 1 || s.Running != 0 {
			t.Errorf("state %+v", s)
		}
	})
}

// Requests that wait for Run when it never comes, or ends, are answered.
func TestSubmitEndsWithContextAndEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := idle(t, sim.Constant{Prefill: time.Millisecond, Decode: time.Millisecond})
		r, err := e.o.Prepare(sim.Params{Prompt: []uint32{1}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := e.Submit(ctx, &Job{Box: &Outbox{}}, 0, r); err == nil {
			t.Error("a submission outlives its context")
		}
		e.inbox.close()
		if err := e.Submit(context.Background(), &Job{Box: &Outbox{}}, 0, r); err == nil {
			t.Error("a closed inbox accepts")
		}
	})
}

// TestOutboxLosesNothing merges random steps and compares with what went in.
func TestOutboxLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const slots = 5
		b := NewOutbox(0, nil)
		var want, got [slots][]uint32
		next := uint32(1)
		take := func() {
			var taken Batch
			if !b.Take(&taken) {
				return
			}
			for i, slot := range taken.Slot {
				got[slot] = append(got[slot], taken.ID[i])
				if int(taken.Total[i]) != len(got[slot]) {
					t.Fatalf("slot %d: total %d, received %d", slot, taken.Total[i], len(got[slot]))
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"step": func(t *rapid.T) {
				for _, slot := range rapid.SliceOfNDistinct(rapid.Uint32Range(0, slots-1), 0, slots, rapid.ID[uint32]).Draw(t, "slots") {
					want[slot] = append(want[slot], next)
					b.building.Add(slot, next, uint32(len(want[slot])))
					next++
				}
				b.flush(0, 1, 0)
			},
			"take": func(*rapid.T) { take() },
		})
		take()
		for slot := range slots {
			if len(got[slot]) != len(want[slot]) {
				t.Fatalf("slot %d: %v, want %v", slot, got[slot], want[slot])
			}
			for i := range got[slot] {
				if got[slot][i] != want[slot][i] {
					t.Fatalf("slot %d: %v, want %v", slot, got[slot], want[slot])
				}
			}
		}
	})
}

func TestLatenessQuantiles(t *testing.T) {
	var l lateness
	if l.quantile(0.99) != 0 {
		t.Error("an empty histogram must give 0")
	}
	for i := range 100 {
		l.add(time.Duration(i) * time.Millisecond)
	}
	if q := l.quantile(0.5); q < 50*time.Millisecond || q > 100*time.Millisecond {
		t.Errorf("median %v", q)
	}
	if l.quantile(1) != 99*time.Millisecond {
		t.Errorf("maximum %v", l.quantile(1))
	}
}
