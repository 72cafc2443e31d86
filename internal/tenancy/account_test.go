package tenancy

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weir/test/clocktest"
)

// simulated is a request of a simulation.
type simulated struct{ left int64 }

// Tokens are paid in one step, however many there are: they leave what as many single ones leave.
func TestPay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Now()
		perMinute := rapid.Int64Range(1, 1000).Draw(t, "limit")
		got, want := limiter(nil, perMinute, now), limiter(nil, perMinute, now)
		for range rapid.IntRange(1, 20).Draw(t, "times") {
			now = now.Add(time.Duration(rapid.IntRange(0, 90_000).Draw(t, "ms")) * time.Millisecond)
			n := rapid.Int64Range(-10, 5000).Draw(t, "tokens")
			pay(got, n, now)
			for range n {
				want.ReserveN(now, 1)
			}
			later := now.Add(time.Second)
			if a, b := got.TokensAt(later), want.TokensAt(later); math.Abs(a-b) > 1e-6*(1+math.Abs(b)) || got.Burst() != want.Burst() {
				t.Fatalf("%d of %d a minute leave %v, want %v", n, perMinute, a, b)
			}
		}
	})
	a := NewAccount(Limits{TokensPerMinute: 1}, time.Now())
	for _, n := range []int64{1 << 22, math.MaxInt64 / 4} {
		a.Charge(n)
		began := time.Now()
		r := a.Enter(began)
		if took := time.Since(began); took > time.Second || r.Reason != OverTokensPerMinute || r.After <= 0 {
			t.Fatalf("%d tokens hold the account for %v: %+v", n, took, r)
		}
	}
}

// A budget of a day, and a rate of tokens, are exceeded by no more than what the requests under
// way still got, whatever is charged when, and however the clock steps.
func TestBudgets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := time.Now()
		l := Limits{TokensPerDay: rapid.Int64Range(1, 1000).Draw(t, "day"), TokensPerMinute: rapid.Int64Range(1, 500).Draw(t, "minute"), Requests: rapid.Int64Range(0, 8).Draw(t, "requests")}
		a := NewAccount(l, start)
		now := start
		var under []*simulated
		var day, total, inFlight int64 // charged of the day and in all, and what is to come
		mostFlight := int64(0)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				now = now.Add(time.Duration(rapid.IntRange(0, 20_000).Draw(t, "ms")) * time.Millisecond)
			case 1:
				if refusal := a.Enter(now); refusal.Reason == "" {
					x := &simulated{rapid.Int64Range(1, 300).Draw(t, "tokens")}
					under, inFlight = append(under, x), inFlight+x.left
					mostFlight = max(mostFlight, inFlight)
					if day >= l.TokensPerDay {
						t.Fatalf("a request began with %d of %d tokens used", day, l.TokensPerDay)
					}
					if l.Requests > 0 && int64(len(under)) > l.Requests {
						t.Fatalf("%d requests at once, of %d", len(under), l.Requests)
					}
				}
			default:
				if len(under) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(under)-1).Draw(t, "which")
				n := rapid.Int64Range(1, under[i].left).Draw(t, "n")
				a.Charge(n)
				day, total, inFlight = day+n, total+n, inFlight-n
				if under[i].left -= n; under[i].left == 0 {
					a.Leave()
					under = append(under[:i], under[i+1:]...)
				}
			}
			if dayOf(now) != dayOf(start) {
				return // another day has a budget of its own
			}
			if day > l.TokensPerDay+mostFlight {
				t.Fatalf("%d tokens used of %d, with at most %d under way", day, l.TokensPerDay, mostFlight)
			}
			if may := float64(l.TokensPerMinute) * (1 + now.Sub(start).Minutes()); float64(total) > may+float64(mostFlight)+1 {
				t.Fatalf("%d tokens within %v at %d a minute, with at most %d under way", total, now.Sub(start), l.TokensPerMinute, mostFlight)
			}
		}
	})
}

// A clock that is set over midnight and back renews the budget once, and one that was set far
// ahead and back does not keep it from being renewed the next day.
func TestSteppingClock(t *testing.T) {
	now := time.Now() // goes on as it should, whatever the wall clock says
	today := dayOf(now)
	a := NewAccount(Limits{TokensPerDay: 10}, now)
	renewals := 0
	for _, ahead := range []int64{1, 0, 1, 0, 400, 0, -3, 0, 1, 0} {
		a.Charge(10)
		now = now.Add(time.Minute)
		if a.enter(now, today+ahead).Reason == "" {
			renewals++
		}
	}
	if renewals != 1 {
		t.Errorf("%d renewals within minutes, want 1", renewals)
	}
	if a.Charge(10); a.enter(now.Add(24*time.Hour), today+1).Reason != "" {
		t.Error("the day after does not renew the budget")
	}
}

// A minute of a rate is one of the monotonic clock: a wall clock that is set by hours neither fills a
// rate nor empties it.
func TestRatesClockIsSet(t *testing.T) {
	for _, by := range []time.Duration{0, 5 * time.Hour, -5 * time.Hour} {
		now := time.Now()
		a := NewAccount(Limits{RequestsPerMinute: 1, TokensPerMinute: 60}, now)
		for after, want := range []string{"", OverRequestsPerMinute, OverRequestsPerMinute} {
			if r := a.Enter(clocktest.Set(now.Add(time.Duration(after)*time.Second), by)); r.Reason != want || want != "" && r.After > time.Minute {
				t.Errorf("%d s later, with the clock set by %v: %+v, want %q", after, by, r, want)
			}
		}
		if r := a.Enter(clocktest.Set(now.Add(61*time.Second), -by)); r.Reason != "" {
			t.Errorf("a minute later, with the clock set back by %v: %+v", by, r)
		}
	}
}

// Rates say when to ask again, and a request that waits for that long is admitted.
func TestRates(t *testing.T) {
	now := time.Now()
	a := NewAccount(Limits{RequestsPerMinute: 6}, now)
	for range 6 {
		if r := a.Enter(now); r.Reason != "" {
			t.Fatalf("%+v", r)
		}
	}
	r := a.Enter(now)
	if r.Reason != OverRequestsPerMinute || r.Limit != 6 || r.After < 9*time.Second || r.After > 11*time.Second {
		t.Fatalf("%+v, want a wait of 10 s", r)
	}
	if r := a.Enter(now.Add(r.After + time.Millisecond)); r.Reason != "" {
		t.Fatalf("%+v after the wait", r)
	}
	a = NewAccount(Limits{TokensPerMinute: 60}, now)
	a.Charge(180)
	if r = a.Enter(now); r.Reason != OverTokensPerMinute || r.After < 120*time.Second || r.After > 122*time.Second {
		t.Fatalf("%+v, want a wait of 121 s", r)
	}
	if r := a.Enter(now.Add(r.After + time.Millisecond)); r.Reason != "" {
		t.Fatalf("%+v after the wait", r)
	}
}
