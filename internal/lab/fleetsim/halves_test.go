package fleetsim

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	engineapi "weir/internal/engine"
	"weir/internal/fleet/balance"
	"weir/internal/infer"
	"weir/internal/sim"
)

// apart are engines of which the first ones compute prompts, those after them generate, and
// the rest serve whole requests.
func apart(prefill, decode, whole int) []Engine {
	all := make([]Engine, prefill+decode+whole)
	for i := range all[:prefill] {
		all[i].Role = infer.RolePrefill
	}
	for i := range all[prefill : prefill+decode] {
		all[prefill+i].Role = infer.RoleDecode
	}
	return all
}

// link is what engines fetch KV by in tests.
var link = sim.Transfer{BytesPerToken: 128 << 10, Bandwidth: 10e9, Latency: 2 * time.Millisecond}

// drive makes a run and drives it to its end.
func drive(t *testing.T, o Options, settings string, seed uint64) (*run, *Report) {
	t.Helper()
	p, err := NewSessions(settings, seed)
	if err != nil {
		t.Fatal(err)
	}
	o.Plan, o.Seed, o.Stamps = p, seed, true
	o.Engine.KVTokens, o.Engine.Transfer = 200_000, link
	r, err := newRun(&o)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.loop(context.Background()); err != nil {
		t.Fatal(err)
	}
	return r, r.close()
}

// TestOnePair has a prefill and a decode engine behind a gateway show what sim.Pair shows,
// which joins the same two.
func TestOnePair(t *testing.T) {
	t.Parallel()
	const settings = "rate=6,duration=40s,input=lognormal(2000,2000),output=lognormal(60,60),prefix=1500,groups=4"
	got := map[int64]int64{} // the first token by the arrival
	r, report := drive(t, Options{Engines: apart(1, 1, 0), Way: engineapi.ByRoom, Policy: "cost", OnRequest: func(q *Record) { got[q.Arrival] = q.First }}, settings, 1)
	if report.Divided != report.Requests {
		t.Fatalf("%d of %d were divided", report.Divided, report.Requests)
	}
	var cores [2]*sim.Core
	for i := range cores {
		var err error
		if cores[i], err = sim.New(r.engines[i].o); err != nil {
			t.Fatal(err)
		}
	}
	pair := sim.NewPair(cores[0], cores[1])
	arrivals := map[sim.Ref]int64{} // of decode legs
	want := map[int64]int64{}
	advance := func(to int64) {
		for {
			core, s := pair.Advance(to)
			if s == nil {
				return
			}
			for i := range s.First {
				if core == cores[1] {
					want[arrivals[s.First[i].Ref]] = s.End
				}
			}
		}
	}
	for n, at := range r.o.Plan.arrivals {
		for due, ok := pair.Due(); ok && due < int64(at); due, ok = pair.Due() {
			advance(due)
		}
		q := &r.o.Plan.prompts[n][0].request
		key := time.Duration(at).String()
		if _, err := pair.SubmitPrefill(int64(at), int64(at), key, q.Half(sim.LegPrefill, true, false)); err != nil {
			t.Fatal(err)
		}
		ref, err := pair.SubmitDecode(int64(at), int64(at), key, q.Half(sim.LegDecode, false, true))
		if err != nil {
			t.Fatal(err)
		}
		arrivals[ref] = int64(at)
	}
	for due, ok := pair.Due(); ok; due, ok = pair.Due() {
		advance(due)
	}
	// Simultaneous events sometimes happen in another order there.
	same, off := 0, 0.0
	for at, first := range want {
		if got[at] == first {
			same++
		}
		off += float64(got[at]-first) / float64(first-at) / float64(len(want))
	}
	if len(want) != len(got) || same < len(want)*9/10 || math.Abs(off) > 0.01 {
		t.Errorf("%d requests, in a pair %d; %d have their first token at the same moment, in the mean it takes %.3f of the time longer", len(got), len(want), same, off)
	}
}

// TestEveryHalfEnds has engines of both sides fail, join and slow down: each request ends once,
// and neither an engine nor any books have anything left of it.
func TestEveryHalfEnds(t *testing.T) {
	t.Parallel()
	policies := []string{"cost", "round-robin", "session", "dynamo", Divided, Undivided, Oracle, "cost-no-ties"}
	if testing.Short() {
		policies = policies[:1]
	}
	for _, way := range []engineapi.Way{engineapi.ByPull, engineapi.ByPush, engineapi.ByRoom} {
		for i, policy := range policies {
			if i%2 == 1 && policy != Oracle {
				policy = WithQueue(policy)
			}
			ended := map[[2]int]bool{}
			o := Options{
				Engines: apart(2, 2, i%2), Way: way, Policy: policy, Gateways: 1 + i%3, Age: time.Duration(i%3) * 20 * time.Millisecond,
				OnRequest: func(q *Record) {
					if at := [2]int{q.Session, q.Turn}; ended[at] {
						t.Errorf("%v ended twice", at)
					} else {
						ended[at] = true
					}
					whole := q.Finish > 0 && q.First >= q.Arrival && q.Finish >= q.First && q.Cached < q.Input
					if q.Prefill >= 0 && q.Finish > 0 {
						whole = whole && q.Prefill < 2 && q.Engine >= 2 && q.Answered > q.Arrival && q.First > q.Answered
					}
					if !q.Failed && !whole {
						t.Errorf("%+v", q)
					}
				},
			}
			o.Engine.MaxRunning = 24
			for n, kind := range []EventKind{Fail, Join} {
				for engine := range 4 {
					o.Events = append(o.Events, Event{At: time.Duration(10+7*engine+3*n) * time.Second, Engine: engine, Kind: kind})
				}
			}
			o.Events = append(o.Events, Event{At: 42 * time.Second, Engine: 0, Kind: Slow, By: 4}, Event{At: 44 * time.Second, Engine: 3, Kind: Evict})
			r, report := drive(t, o, "rate=4,turns=uniform(1,4),think=1s,duration=50s,input=lognormal(1500,1500),output=lognormal(60,60),prefix=2000,groups=4", 1)
			if report.Requests != len(ended) || report.Finished+report.Failed != report.Requests || report.Finished < 8*report.Requests/10 {
				t.Errorf("%v, %s: of %d requests %d ended, %d finished, %d failed", way, policy, report.Requests, len(ended), report.Finished, report.Failed)
			}
			if divided := report.Divided > 0; divided == strings.HasPrefix(policy, Undivided) && way != engineapi.ByRoom {
				t.Errorf("%v, %s: %d were divided", way, policy, report.Divided)
			}
			for i, e := range r.engines {
				if n := e.core.Counts(); n.Running+n.Waiting+n.Kept > 0 || slices.ContainsFunc(e.live, func(l *leg) bool { return l != nil }) || len(e.unstarted)+e.coming+e.decoding != 0 {
					t.Errorf("%v, %s: engine %d is left with %+v; %d unstarted, %d coming, %d decoding", way, policy, i, n, len(e.unstarted), e.coming, e.decoding)
				}
				for _, g := range r.gateways {
					if k := g.books[i].Rank; k.InFlight() != 0 || k.Prefills() != 0 || k.Pending() != 0 || k.Held() != k.Books(0).Held && o.Gateways == 1 || g.books[i].Cache.InUse() != 0 {
						t.Errorf("%v, %s: the books of engine %d have %d in flight, %d prefills, %d tokens, %d blocks", way, policy, i, k.InFlight(), k.Prefills(), k.Held(), g.books[i].Cache.InUse())
					}
				}
			}
		}
	}
}

// TestForced holds the policies that always and never divide to that.
func TestForced(t *testing.T) {
	t.Parallel()
	for policy, want := range map[string]bool{Divided: true, Undivided: false, WithQueue(Divided): true, WithQueue(Undivided): false} {
		_, r := drive(t, Options{Engines: apart(1, 2, 0), Policy: policy}, "rate=4,duration=20s,input=lognormal(800,1200),output=60", 1)
		if r.Divided != map[bool]int{true: r.Requests}[want] || r.Finished != r.Requests {
			t.Errorf("%s: %d of %d requests were divided", policy, r.Divided, r.Requests)
		}
	}
}

// TestNoSuchFleet refuses fleets that serve nothing.
func TestNoSuchFleet(t *testing.T) {
	p, err := NewSessions("rate=1,duration=2s,input=10,output=2", 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		engines []Engine
		way     engineapi.Way
		says    string
	}{
		{apart(2, 0, 1), engineapi.ByPull, "without a decode engine"},
		{apart(0, 2, 0), engineapi.ByRoom, "without a prefill engine"},
	} {
		if _, err := Run(t.Context(), Options{Plan: p, Engines: test.engines, Way: test.way, Policy: "cost"}); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Error(err)
		}
	}
	if r, err := Run(t.Context(), Options{Plan: p, Engines: apart(0, 2, 0), Policy: "cost"}); err != nil || r.Finished != r.Requests || r.Divided != 0 {
		t.Errorf("decode engines alone: %v, %+v", err, r)
	}
	if !balance.Patient(new(balance.Cost)) || !balance.Patient(&outside{chooser: new(forced)}) || balance.Patient(&outside{chooser: new(oracle)}) {
		t.Error("who knows what it costs to wait?")
	}
}

// TestBesideForced holds cost's choice of what to divide against always and against never doing
// so, in a part of bench/routing -pairs so small that each change runs it: on no load is its
// goodput more than 3 % less than the better one's. Runs are in virtual time, so that this holds
// on whatever machine.
func TestBesideForced(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		settings string
		engines  []Engine
	}{
		"short": {"rate=18,duration=30s,input=lognormal(200,200),output=lognormal(150,100)", apart(2, 2, 0)},
		"long":  {"rate=8,duration=30s,input=lognormal(6000,4000),output=lognormal(150,100)", apart(1, 3, 0)},
		"turns": {"rate=3,turns=uniform(1,8),think=2s,duration=30s,input=lognormal(400,400),output=lognormal(150,100),prefix=3000,groups=8", apart(1, 3, 0)},
		"mixed": {"rate=6,turns=uniform(1,4),think=2s,duration=30s,input=lognormal(2000,5000),output=lognormal(150,150)", apart(2, 2, 0)},
	} {
		if testing.Short() && name != "long" {
			continue
		}
		goodput := map[string]float64{}
		for _, policy := range []string{"cost", WithQueue("cost"), Divided, Undivided} {
			for seed := uint64(1); seed <= 2; seed++ {
				_, r := drive(t, Options{Engines: test.engines, Policy: policy}, test.settings, seed)
				goodput[policy] += r.Goodput / 2
			}
		}
		t.Logf("%s: %v", name, goodput)
		for _, policy := range []string{"cost", WithQueue("cost")} {
			if better := max(goodput[Divided], goodput[Undivided]); goodput[policy] < 0.97*better || better == 0 {
				t.Errorf("%s: the goodput of %s is %.2f/s, and that of always or never dividing %.2f", name, policy, goodput[policy], better)
			}
		}
	}
}
