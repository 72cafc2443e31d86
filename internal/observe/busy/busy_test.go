package busy

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"weir/internal/trace"
)

const ms = int64(time.Millisecond)

// A running operation is shown with its request, and its time counts while it runs.
func TestRunning(t *testing.T) {
	var m Meter
	first, second := "req-1", "req-2"
	a := m.Begin(Tokenize, &first, 10*ms)
	b := m.Begin(Pick, &second, 20*ms)
	c := m.Begin(Encode, nil, 30*ms)
	got := m.Running()
	want := []Span{{Tokenize, "req-1", 10 * ms, 0}, {Pick, "req-2", 20 * ms, 0}, {Encode, "", 30 * ms, 0}}
	if len(got) != 3 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Fatalf("runs %+v, want %+v", got, want)
	}
	if s := m.Spent(40 * ms); s[Tokenize] != 30*ms || s[Pick] != 20*ms || s[Encode] != 10*ms || s[Hash] != 0 {
		t.Errorf("spent %v", s)
	}
	m.End(a, 50*ms)
	m.End(b, 21*ms)
	m.End(c, 60*ms)
	if got := m.Running(); len(got) != 0 {
		t.Errorf("runs %+v after the end", got)
	}
	spent, ended := m.Totals()
	if spent[Tokenize] != 40*ms || spent[Pick] != ms || ended[Tokenize] != 1 || ended[Pick] != 1 || ended[Template] != 0 {
		t.Errorf("totals %v, %v", spent, ended)
	}
	// The pick was short; of the others one had ended by then.
	during := m.During(52*ms, 55*ms)
	if len(during) != 1 || during[0] != (Span{Encode, "", 30 * ms, 60 * ms}) {
		t.Errorf("during 52 to 55: %+v", during)
	}
}

// More spans than there are slots are counted, and their ends free nobody else's slot.
func TestOver(t *testing.T) {
	var m Meter
	var all []Mark
	for range 3 * numSlots {
		all = append(all, m.Begin(Hash, nil, 0))
	}
	if n := len(m.Running()); n > numSlots || n < numSlots/2 {
		t.Errorf("%d run", n)
	}
	for _, mark := range all {
		m.End(mark, ms)
	}
	spent, ended := m.Totals()
	if ended[Hash] != 3*numSlots || spent[Hash] != 3*numSlots*ms || len(m.Running()) != 0 {
		t.Errorf("%v spent by %v, %d run", spent, ended, len(m.Running()))
	}
}

// A nil one measures nothing, and neither does a mark of nothing.
func TestNil(t *testing.T) {
	var none *Meter
	none.End(none.Begin(Pick, nil, 1), none.Now())
	if s, _ := none.Totals(); s != (Spent{}) || none.Running() != nil || none.During(0, 1) != nil || none.Spent(9) != (Spent{}) {
		t.Error("nil has measured something")
	}
	var m Meter
	m.End(Mark{}, 5)
	if _, ended := m.Totals(); ended != [NumOps]int64{} {
		t.Errorf("ended %v", ended)
	}
}

// Many goroutines begin and end while others look: no count is lost, and what is seen to
// run is whole.
func TestConcurrently(t *testing.T) {
	var m Meter
	const each, goroutines = 2000, 8
	id := "req"
	var workers, looking sync.WaitGroup
	done := make(chan struct{})
	looking.Go(func() {
		for {
			for _, s := range m.Running() {
				if s.Op != Pick && s.Op != Hash || s.Began <= 0 || s.RequestID != "req" {
					t.Errorf("%+v runs", s)
				}
			}
			m.Spent(trace.Now())
			select {
			case <-done:
				return
			default:
				runtime.Gosched()
			}
		}
	})
	for i := range goroutines {
		workers.Go(func() {
			for range each {
				m.End(m.Begin(Hash+Op(i%2), &id, 1), 2)
			}
		})
	}
	workers.Wait()
	close(done)
	looking.Wait()
	_, ended := m.Totals()
	if ended[Hash]+ended[Pick] != each*goroutines {
		t.Errorf("ended %v", ended)
	}
}

// BenchmarkSpan is what an operation costs a request, the clock read twice.
func BenchmarkSpan(b *testing.B) {
	id := "req-0123456789abcdef0123456789"
	b.Run("on", func(b *testing.B) {
		var m Meter
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				m.End(m.Begin(Pick, &id, m.Now()), m.Now())
			}
		})
	})
	b.Run("clock", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				_, _ = trace.Now(), trace.Now()
			}
		})
	})
	b.Run("off", func(b *testing.B) {
		var m *Meter
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				m.End(m.Begin(Pick, &id, m.Now()), m.Now())
			}
		})
	})
}

// BenchmarkSpent is what the watch pays each time it looks.
func BenchmarkSpent(b *testing.B) {
	var m Meter
	for b.Loop() {
		m.Spent(1)
	}
}
