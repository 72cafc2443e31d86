//go:build linux

package cell

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestSchedule(t *testing.T) {
	times := Times{Warm: time.Second, Measure: 10 * time.Second, Tail: time.Second}
	spread := NewSchedule(Load{Streams: 4, Rate: 20, Spread: true}, times)
	if spread.Tokens != 240 || spread.Due(0) != 0 || spread.Due(1) != 12_500_000 || spread.Due(4) != 50_000_000 {
		t.Errorf("spread: %+v, %d, %d", spread, spread.Due(1), spread.Due(4))
	}
	burst := NewSchedule(Load{Streams: 4, Rate: 20}, times)
	if burst.Due(3) != 0 || burst.Due(4) != 50_000_000 || burst.NextStep(1) != 50_000_000 || burst.NextStep(50_000_000) != 50_000_000 {
		t.Errorf("burst: %+v", burst)
	}
	// 20 tokens a second for 10 seconds of 4 streams.
	for _, s := range []Schedule{spread, burst} {
		if n := s.Between(int64(time.Second), int64(11*time.Second)); n != 800 {
			t.Errorf("%+v: %d tokens in the window", s, n)
		}
	}
	if idle := NewSchedule(Load{Streams: 4, Idle: true}, times); idle.Total() != 4 || idle.Due(3) != 0 {
		t.Errorf("idle: %+v", idle)
	}
}

// before is a count by definition, whatever the load.
func TestScheduleBefore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Load{Streams: rapid.IntRange(1, 40).Draw(t, "streams"), Rate: float64(rapid.IntRange(1, 200).Draw(t, "rate")), Spread: rapid.Bool().Draw(t, "spread")}
		s := NewSchedule(l, Times{Measure: time.Second})
		at := rapid.Int64Range(-1, int64(time.Second)).Draw(t, "at")
		want := 0
		for n := range s.Total() {
			if n > 0 && s.Due(n) < s.Due(n-1) {
				t.Fatalf("token %d is due before token %d", n, n-1)
			}
			if s.Due(n) < at {
				want++
			}
		}
		if got := s.before(at); got != want {
			t.Fatalf("before %d: %d, want %d", at, got, want)
		}
	})
}

func TestLimit(t *testing.T) {
	times := Times{Measure: time.Second}
	for _, c := range []struct {
		load   Load
		stream int
		first  bool
		want   int
	}{
		{Load{Streams: 2, Rate: 20, EndOnTime: true}, 1, true, 20},
		{Load{Streams: 2, Rate: 20}, 1, true, 20},
		{Load{Streams: 2, Rate: 20, Probes: 1}, 2, true, ProbeTokens},
		{Load{Streams: 2}, 1, true, 0},
		{Load{Streams: 4, Length: 120}, 0, true, 1},
		{Load{Streams: 4, Length: 120}, 2, true, 61},
		{Load{Streams: 4, Length: 120}, 2, false, 120},
		{Load{Streams: 2, Idle: true}, 1, true, 1},
	} {
		if got := (&Cell{Load: c.load, Times: times}).Limit(c.stream, c.first); got != c.want {
			t.Errorf("%+v, stream %d: limit %d, want %d", c.load, c.stream, got, c.want)
		}
	}
}

// A relayed engine that ends on time has no other limit.
func TestLimitOnTime(t *testing.T) {
	c := &Cell{Load: Load{Streams: 2, Rate: 20, EndOnTime: true, Probes: 1}, Times: Times{Measure: time.Second}, Relayed: true}
	if c.Limit(1, true) != 0 || c.Limit(2, true) != ProbeTokens {
		t.Errorf("limits %d and %d", c.Limit(1, true), c.Limit(2, true))
	}
}
