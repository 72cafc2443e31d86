//go:build interop

package limits

import (
	"log/slog"
	"strconv"
	"testing"
	"time"

	"weir/internal/tenancy"
	"weir/internal/tenancy/shared"
	"weir/test/e2e/harness"
)

// Gateways whose clocks are hours apart have one minute and one day, which are the server's. A
// clock of the server that is set back gives nothing and takes nothing, and one that passes
// midnight, or is set ahead over it, begins one new day within 23 hours.
func TestClocks(t *testing.T) {
	harness.Beside(t, harness.Light)
	redis := start(t, harness.FreeAddress(t))
	l, err := shared.ParseLocation("redis://" + redis.addr)
	if err != nil {
		t.Fatal(err)
	}
	var accounts []*tenancy.Account
	apart := []time.Duration{-3 * time.Hour, 0, 40 * time.Hour}
	for range apart {
		s := shared.New(shared.Options{Location: l, Prefix: "clocks:", Wait: 10 * time.Second, Outage: tenancy.OutageRefuse, Log: slog.New(slog.DiscardHandler)})
		harness.Eventually(t, "the server is there", func() bool {
			s.Start()
			up := s.View().State == shared.Up
			if !up {
				s.Close()
			}
			return up
		})
		t.Cleanup(s.Close)
		a := tenancy.NewAccount(tenancy.Limits{RequestsPerMinute: 30, TokensPerDay: 1000}, time.Now())
		s.Restore("one", a, time.Now())
		accounts = append(accounts, a)
	}
	began := time.Now()
	enter := func(i int) tenancy.Refusal {
		a := accounts[i%len(accounts)]
		r := a.Enter(time.Now().Add(apart[i%len(accounts)]))
		if r.Reason == "" {
			a.Leave()
		}
		return r
	}
	admitted := 0
	for i := range 90 {
		if enter(i).Reason == "" {
			admitted++
		}
	}
	if most := 31 + int(time.Since(began).Seconds()/2); admitted < 30 || admitted > most {
		t.Errorf("%d requests of 30 a minute, want 30 to %d", admitted, most)
	}
	set := func(fields ...string) { redis.cli(append([]string{"hset", "clocks:limits:one"}, fields...)...) }
	get := func(field string) int64 {
		n, err := strconv.ParseInt(redis.cli("hget", "clocks:limits:one", field), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	// The server's clock is set back by an hour: as it was counted last in an hour from now.
	ahead := func(requests string) {
		set("at", strconv.FormatInt(get("at")+3_600_000_000, 10), "requests", requests)
	}
	ahead("0.9")
	if r := enter(0); r.Reason != tenancy.OverRequestsPerMinute || r.After > time.Second {
		t.Errorf("0.9 requests are left when the clock is set back, and %+v", r)
	}
	ahead("1.1")
	if r := enter(1); r.Reason != "" {
		t.Errorf("1.1 requests are left when the clock is set back, and %+v", r)
	}
	// It was yesterday when a budget was used up.
	day := get("day")
	set("requests", "30", "used", "5000")
	if r := enter(0); r.Reason != tenancy.OverTokensPerDay {
		t.Errorf("%+v", r)
	}
	set("day", strconv.FormatInt(day-1, 10), "requests", "30")
	if r := enter(1); r.Reason != "" || get("day") != day || get("used") != 0 {
		t.Errorf("%+v on a new day, %d tokens are used", r, get("used"))
	}
	// Once more within the day: a clock that is set back and ahead again.
	set("day", strconv.FormatInt(day-1, 10), "requests", "30", "used", "5000")
	if r := enter(2); r.Reason != tenancy.OverTokensPerDay {
		t.Errorf("a day is renewed twice: %+v", r)
	}
}
