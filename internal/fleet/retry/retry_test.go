package retry

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const second = int64(time.Second)

// A lone failure is repeated at once, also where there are few requests.
func TestFloor(t *testing.T) {
	b := New(Limits{}, 0)
	for i := range int64(20) {
		now := i * second
		if wait, why := b.Decide(now, &Failure{Attempts: 1}, 1); wait > Jitter/10 || why != Granted {
			t.Fatalf("after %d s: %v %v", i, wait, why)
		}
	}
}

// Many requests that fail at once wait for their turns, one behind the other. Those that would wait
// longer than Patience fail.
func TestBurst(t *testing.T) {
	b := New(Limits{Floor: 10, Share: -1}, 0)
	granted, latest := 0, time.Duration(0)
	for range 1000 {
		wait, why := b.Decide(0, &Failure{Attempts: 1}, 0)
		if why != Granted {
			if why != Spent {
				t.Fatal(why)
			}
			break
		}
		if wait < latest {
			t.Fatalf("%v after %v", wait, latest)
		}
		granted, latest = granted+1, wait
	}
	if want := 100 + 100; granted != want || latest > Patience {
		t.Errorf("%d granted, the latest after %v; want %d", granted, latest, want)
	}
}

// A load earns by its requests, and what is left of it is forgotten.
func TestShare(t *testing.T) {
	b := New(Limits{Share: 0.5, Floor: -1}, 0)
	if _, why := b.Decide(0, &Failure{Attempts: 1}, 0); why != Spent {
		t.Fatalf("without any request: %v", why)
	}
	for range 200 {
		b.Requested(0)
	}
	if left := b.Left(0); left != 100 {
		t.Errorf("%v left", left)
	}
	if left := b.Left(int64(Memory)); math.Abs(left-100/math.E) > 1e-6 {
		t.Errorf("%v left after %v", left, Memory)
	}
	if left := b.Left(100 * int64(Memory)); left > 1e-6 {
		t.Errorf("%v left after long", left)
	}
}

// The emptier the bucket, the further retries are drawn apart.
func TestJitter(t *testing.T) {
	b := New(Limits{Floor: 10, Share: -1}, 0)
	var waits []time.Duration
	for range 100 {
		wait, _ := b.Decide(0, &Failure{}, 1)
		waits = append(waits, wait)
	}
	if waits[0] != 0 || waits[99] < Jitter*9/10 || waits[99] > Jitter {
		t.Errorf("from %v to %v", waits[0], waits[99])
	}
}

func TestAllow(t *testing.T) {
	for _, test := range []struct {
		name string
		f    Failure
		wait time.Duration
		why  Refusal
	}{
		{"failed once", Failure{Attempts: 1, Begun: 1}, 0, Granted},
		{"no use elsewhere", Failure{Attempts: 1, Final: true}, 0, Final},
		{"the client has some of it", Failure{Attempts: 1, Begun: 1, Seen: true}, 0, Seen},
		{"more than an answer may come of it", Failure{Attempts: 1, Begun: 1, Effects: true}, 0, Effects},
		{"but it was not begun", Failure{Attempts: 1, NotRun: true, Effects: true}, 0, Granted},
		{"two engines may have died of it", Failure{Attempts: 2, Begun: 2}, 0, Exhausted},
		{"two refused it", Failure{Attempts: 2, NotRun: true}, 0, Granted},
		{"four did", Failure{Attempts: 4, NotRun: true}, 0, Exhausted},
		{"the abort goes first", Failure{Attempts: 1, Begun: 1, Silent: true}, AbortGrace, Granted},
	} {
		if wait, why := New(Limits{}, 0).Decide(0, &test.f, 0); wait != test.wait || why != test.why {
			t.Errorf("%s: %v %v, want %v %v", test.name, wait, why, test.wait, test.why)
		}
	}
	var none *Budget
	none.Requested(0)
	if wait, why := none.Decide(0, &Failure{}, 1); wait != 0 || why != Granted || !math.IsInf(none.Left(0), 1) {
		t.Errorf("no bound: %v %v", wait, why)
	}
}

// For any failures at any times: in no stretch of time do more retries begin than the share of its
// requests, the floor, and the content that the bucket may have had at its beginning.
func TestNeverExceeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Limits{Share: rapid.SampledFrom([]float64{-1, 0.05, 0.2, 1}).Draw(t, "share"), Floor: rapid.SampledFrom([]float64{-1, 0.5, 10}).Draw(t, "floor")}
		share, floor := max(l.Share, 0), max(l.Floor, 0)
		b := New(l, 0)
		rest := b.rest()
		// fails is the share of requests that fail, which changes: 1 is a total failure.
		now, fails := int64(0), 0.0
		var requests, begun []int64
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				fails = rapid.SampledFrom([]float64{0, 0.1, 1}).Draw(t, "fails")
			case 1:
				now += rapid.Int64Range(0, 60*second).Draw(t, "pause")
			default:
				now += rapid.Int64Range(0, second/2).Draw(t, "passed")
			}
			for range rapid.IntRange(0, 30).Draw(t, "requests") {
				b.Requested(now)
				requests = append(requests, now)
				if rapid.Float64Range(0, 1).Draw(t, "draw") >= fails {
					continue
				}
				wait, why := b.Decide(now, &Failure{Attempts: 1, Begun: 1}, rapid.Float64Range(0, 1).Draw(t, "random"))
				switch {
				case why == Granted && wait > Patience+Jitter, why != Granted && why != Spent:
					t.Fatalf("%v %v", wait, why)
				case why == Granted:
					begun = append(begun, now+int64(wait))
				}
			}
		}
		// From the beginning to any moment; a turn is drawn later by the jitter, never
		// earlier.
		for _, at := range begun {
			count, earned := 0, rest+1e-6
			for _, x := range begun {
				if x <= at {
					count++
				}
			}
			for _, x := range requests {
				if x <= at {
					earned += share
				}
			}
			if earned += floor * float64(at) / 1e9; float64(count) > earned {
				t.Fatalf("%d retries until %v, of %.2f", count, time.Duration(at), earned)
			}
		}
	})
}

// A storm: everything fails for a minute at a hundred requests a second. Engines get the
// share more, and no more than that.
func TestTotalFailure(t *testing.T) {
	b := New(Limits{Share: 0.2, Floor: 1}, 0)
	const rate, seconds = 100, 60
	retries := 0
	for i := range int64(rate * seconds) {
		now := i * second / rate
		b.Requested(now)
		if _, why := b.Decide(now, &Failure{Attempts: 1, Begun: 1}, 0.5); why == Granted {
			retries++
		}
	}
	most := rate*seconds/5 + seconds + 10 + int(Patience/time.Second)
	if retries > most || retries < most*9/10 {
		t.Errorf("%d retries of %d requests, want about %d", retries, rate*seconds, most)
	}
}

// A clock that is read at several places goes back a little.
func TestClockGoesBack(t *testing.T) {
	b := New(Limits{}, 100*second)
	before := b.Left(100 * second)
	if got := b.Left(99 * second); got != before {
		t.Errorf("%v, then %v", before, got)
	}
}
