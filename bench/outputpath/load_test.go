//go:build linux

package main

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestSchedule(t *testing.T) {
	times := Times{Warm: time.Second, Measure: 10 * time.Second, Tail: time.Second}
	spread := newSchedule(Load{Streams: 4, Rate: 20, Spread: true}, times)
	if spread.tokens != 240 || spread.due(0) != 0 || spread.due(1) != 12_500_000 || spread.due(4) != 50_000_000 {
		t.Errorf("spread: %+v, %d, %d", spread, spread.due(1), spread.due(4))
	}
	burst := newSchedule(Load{Streams: 4, Rate: 20}, times)
	if burst.due(3) != 0 || burst.due(4) != 50_000_000 || burst.nextStep(1) != 50_000_000 || burst.nextStep(50_000_000) != 50_000_000 {
		t.Errorf("burst: %+v", burst)
	}
	// 20 tokens a second for 10 seconds of 4 streams.
	for _, s := range []schedule{spread, burst} {
		if n := s.between(int64(time.Second), int64(11*time.Second)); n != 800 {
			t.Errorf("%+v: %d tokens in the window", s, n)
		}
	}
	if idle := newSchedule(Load{Streams: 4, Idle: true}, times); idle.total() != 4 || idle.due(3) != 0 {
		t.Errorf("idle: %+v", idle)
	}
}

// before is a count by definition, whatever the load.
func TestScheduleBefore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Load{Streams: rapid.IntRange(1, 40).Draw(t, "streams"), Rate: float64(rapid.IntRange(1, 200).Draw(t, "rate")), Spread: rapid.Bool().Draw(t, "spread")}
		s := newSchedule(l, Times{Measure: time.Second})
		at := rapid.Int64Range(-1, int64(time.Second)).Draw(t, "at")
		want := 0
		for n := range s.total() {
			if n > 0 && s.due(n) < s.due(n-1) {
				t.Fatalf("token %d is due before token %d", n, n-1)
			}
			if s.due(n) < at {
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
		want   int
	}{
		{Load{Streams: 2, Rate: 20}, 1, 20},
		{Load{Streams: 2, Rate: 20, Probes: 1}, 2, probeTokens},
		{Load{Streams: 2}, 1, 0},
		{Load{Streams: 2, Idle: true}, 1, 1},
	} {
		if got := (&Cell{Load: c.load, Times: times}).limit(c.stream); got != c.want {
			t.Errorf("%+v, stream %d: limit %d, want %d", c.load, c.stream, got, c.want)
		}
	}
}
