package simserver

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"weir/internal/engine/plane/planepb"
	"weir/internal/sim"
	"weir/internal/trace"
	"weir/internal/workload/content"
)

// TestRunKeepsTheSchedule drives Run on a synthetic clock: results come at
// absolute deadlines, so that 1000 steps take 1000 step times and not a
// microsecond more, and an idle engine costs nothing.
func TestRunKeepsTheSchedule(t *testing.T) {
	tok := newToyTokenizer()
	words, err := content.New(toyVocab, func(id uint32) ([]byte, bool) { return tok.Text(id), true })
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		e, err := New(Options{Sim: sim.Options{Words: words, Cost: sim.Constant{Prefill: 30 * time.Millisecond, Decode: 7 * time.Millisecond}}})
		if err != nil {
			t.Fatal(err)
		}
		e.goTimers = true // whose time is the test's
		ctx, cancel := context.WithCancel(context.Background())
		go e.Run(ctx)
		time.Sleep(time.Hour) // idle, in synthetic time
		began := trace.Now()
		r, err := e.prepare.Prepare(sim.Params{Prompt: []uint32{1}, MaxTokens: 1000, IgnoreEOS: true})
		if err != nil {
			t.Fatal(err)
		}
		box := outbox{wake: make(chan struct{}, 1)}
		if err := e.submit(ctx, &job{box: &box}, began, r); err != nil {
			t.Fatal(err)
		}
		var taken batch
		n := 0
		for len(taken.done) == 0 {
			<-box.wake
			box.take(&taken)
			n += len(taken.id)
		}
		if want := 30*time.Millisecond + 999*7*time.Millisecond; time.Duration(trace.Now()-began) != want || n != 1000 {
			t.Errorf("%d tokens took %v, want %v", n, time.Duration(trace.Now()-began), want)
		}
		if s := e.State(); s.Steps != 1000 || s.LateMax != 0 {
			t.Errorf("state %+v", s)
		}
		cancel()
		<-e.done
		if err := e.submit(context.Background(), &job{box: &box}, began, r); err == nil {
			t.Error("a stopped engine accepts requests")
		}
	})
}

// An abort that overtakes its submission still aborts.
func TestAbortBeforeSubmission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		r, err := b.e.prepare.Prepare(sim.Params{Prompt: []uint32{1}, IgnoreEOS: true})
		if err != nil {
			t.Fatal(err)
		}
		box := outbox{wake: make(chan struct{}, 1)}
		j := &job{box: &box}
		b.e.end(j, "abort")
		if err := b.e.submit(context.Background(), j, 0, r); err != nil {
			t.Fatal(err)
		}
		b.settle("the abort", func(s State) bool { return s.Aborted == 1 && s.Running == 0 })
	})
}

// Requests that wait for Run when it never comes, or ends, are answered.
func TestSubmitEndsWithContextAndEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		e, err := New(Options{Sim: sim.Options{Words: b.words}})
		if err != nil {
			t.Fatal(err)
		}
		r, err := e.prepare.Prepare(sim.Params{Prompt: []uint32{1}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := e.submit(ctx, &job{box: &outbox{}}, 0, r); err == nil {
			t.Error("a submission outlives its context")
		}
		e.inbox.close()
		if err := e.submit(context.Background(), &job{box: &outbox{}}, 0, r); err == nil {
			t.Error("a closed inbox accepts")
		}
	})
}

// TestOutboxLosesNothing merges random steps and compares with what went in.
func TestOutboxLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const slots = 5
		b := outbox{wake: make(chan struct{}, 1)}
		var g grouping
		var want, got [slots][]uint32
		next := uint32(1)
		take := func() {
			var taken batch
			if !b.take(&taken) {
				return
			}
			var m planepb.Step
			g.merge(&taken, slots, &m)
			rest := m.Id
			for i, slot := range m.Slot {
				got[slot] = append(got[slot], rest[:m.Count[i]]...)
				rest = rest[m.Count[i]:]
				if int(m.Total[i]) != len(got[slot]) {
					t.Fatalf("slot %d: total %d, received %d", slot, m.Total[i], len(got[slot]))
				}
			}
			if len(rest) > 0 {
				t.Fatalf("%d ids belong to nobody", len(rest))
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"step": func(t *rapid.T) {
				for _, slot := range rapid.SliceOfNDistinct(rapid.Uint32Range(0, slots-1), 0, slots, rapid.ID[uint32]).Draw(t, "slots") {
					want[slot] = append(want[slot], next)
					b.building.add(slot, next, uint32(len(want[slot])))
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
