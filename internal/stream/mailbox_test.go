package stream

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/infer"
)

func delta(attempt uint32, total int, ids ...uint32) *infer.Delta {
	return &infer.Delta{Attempt: attempt, IDs: ids, Total: total, Received: 1}
}

// Any interleaving of offers, takes and abandoned attempts gives exactly the
// ids of the last attempt, in order.
func TestMailboxIsLossless(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := New(1, 1<<20, nil)
		var want, got []uint32
		var used []Cell
		var finished bool
		next := uint32(0)
		attempt := m.NextAttempt()
		take := func() {
			cells := m.Take(used)
			for i := range cells {
				got = append(got, cells[i].IDs...)
				if cells[i].Total != len(got) {
					t.Fatalf("total %d after %d ids", cells[i].Total, len(got))
				}
				finished = finished || cells[i].Finish != nil
			}
			if cells != nil {
				used = cells
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "ops") {
			switch rapid.IntRange(0, 5).Draw(t, "op") {
			case 0, 1, 2:
				ids := make([]uint32, rapid.IntRange(0, 5).Draw(t, "n"))
				for i := range ids {
					next++
					ids[i] = next
				}
				want = append(want, ids...)
				m.Offer(delta(attempt, len(want), ids...))
				clear(ids) // the mailbox must have copied
			case 3:
				take()
			case 4: // an abandoned attempt's delta must leave no trace
				m.Offer(delta(attempt-1, 99, 7, 7, 7))
			case 5:
				if rapid.IntRange(0, 9).Draw(t, "again") == 0 {
					attempt = m.NextAttempt()
					want, got = want[:0], got[:0]
				}
			}
		}
		d := delta(attempt, len(want))
		d.Finish = &infer.Finish{Reason: infer.ReasonStop}
		m.Offer(d)
		take()
		if !slices.Equal(got, want) || !finished {
			t.Fatalf("got %v (finished %t), want %v", got, finished, want)
		}
	})
}

func TestMailboxRefusesWhatDoesNotAddUp(t *testing.T) {
	end := &infer.Finish{Reason: infer.ReasonStop}
	for name, offers := range map[string][]*infer.Delta{
		"lost id":     {delta(1, 1, 5), delta(1, 3, 6)},
		"repeated":    {delta(1, 1, 5), delta(1, 1, 5)},
		"backwards":   {delta(1, 2, 5, 6), delta(1, 1, 7)},
		"over limit":  {delta(1, 5, 1, 2, 3, 4, 5)},
		"after end":   {{Attempt: 1, Total: 0, Finish: end}, delta(1, 1, 5)},
		"end twice":   {{Attempt: 1, Finish: end}, {Attempt: 1, Finish: end}},
		"bad choice":  {{Attempt: 1, Choice: 1}},
		"wrong final": {delta(1, 1, 5), {Attempt: 1, Total: 2, Finish: end}},
	} {
		t.Run(name, func(t *testing.T) {
			m := New(1, 4, nil)
			m.NextAttempt()
			for _, d := range offers {
				m.Offer(d)
			}
			m.Offer(delta(1, 0))
			cells := m.Take(nil)
			if len(cells) != 1 || cells[0].Finish == nil || cells[0].Finish.Err == nil ||
				cells[0].Finish.Err.Code != infer.CodeIntegrity {
				t.Fatalf("cells %+v, want an integrity failure", cells)
			}
		})
	}
}

// A sleeper is woken exactly by the offer that follows its empty Take.
func TestMailboxWakes(t *testing.T) {
	m := New(1, 100, nil)
	m.NextAttempt()
	m.Offer(delta(1, 1, 1))
	select {
	case <-m.Ready():
		t.Fatal("woken although nobody slept")
	default:
	}
	used := m.Take(nil)
	for i := range 3 {
		if got := m.Take(used); got != nil {
			t.Fatalf("took %v from an empty mailbox", got)
		}
		used = nil
		m.Offer(delta(1, i+2, 9))
		select {
		case <-m.Ready():
		default:
			t.Fatal("not woken")
		}
		used = m.Take(used)
	}
}

func TestMailboxAllocatesNothingPerToken(t *testing.T) {
	m := New(1, 1<<30, nil)
	m.NextAttempt()
	var used []Cell
	d := delta(1, 0, 42)
	if n := testing.AllocsPerRun(1000, func() {
		d.Total++
		m.Offer(d)
		used = m.Take(used)
	}); n > 0 {
		t.Fatalf("%v allocations per token", n)
	}
}

func BenchmarkOfferTake(b *testing.B) {
	m := New(1, 1<<40, nil)
	m.NextAttempt()
	var used []Cell
	d := delta(1, 0, 42)
	b.ReportAllocs()
	for b.Loop() {
		d.Total++
		m.Offer(d)
		used = m.Take(used)
	}
}
