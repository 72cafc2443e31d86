package fleetsim_test

import (
	"math"
	"testing"
	"time"

	"weir/internal/lab/fleetsim"
	"weir/internal/sim"
)

// long is sessions with prompts of very different lengths, which come faster than four engines
// compute them now and then.
const long = "rate=3,turns=uniform(1,10),think=5s,duration=1m,input=lognormal(3000,1.2),output=150,prefix=3000,groups=8"

// Behind the queue requests begin no later than pushed at once, whether the policy looks at what
// engines have to do or at nothing. The bounds are of the mean of three seeds: one seed's longest
// prompts are a matter of chance.
func TestQueueBesidePushing(t *testing.T) {
	for _, test := range []struct {
		policy, settings string
		p99, p50         float64 // at most so many times that of pushing
	}{
		{"cost", long, 1.05, 1.05},
		{"round-robin", "rate=7.7,turns=uniform(1,8),think=5s,duration=1m,input=600,output=200,prefix=2000,groups=8", 1, 1.05},
	} {
		p50, p99 := 1.0, 1.0
		seeds := shorter[uint64](2, 1, 3)
		for _, seed := range seeds {
			p := seeded(t, test.settings, seed)
			pushed, held := run(t, p, 4, test.policy, nil), run(t, p, 4, fleetsim.WithQueue(test.policy), nil)
			if held.Requests != pushed.Requests || held.Finished != held.Requests {
				t.Errorf("%s: %d of %d ended behind the queue, %d of %d pushed", test.policy, held.Finished, held.Requests, pushed.Finished, pushed.Requests)
			}
			t.Logf("%s: TTFT p50 %.0f ms, p99 %.0f ms behind the queue, and pushed %.0f and %.0f", test.policy, held.TTFT.P50, held.TTFT.P99, pushed.TTFT.P50, pushed.TTFT.P99)
			p50 *= math.Pow(held.TTFT.P50/pushed.TTFT.P50, 1/float64(len(seeds)))
			p99 *= math.Pow(held.TTFT.P99/pushed.TTFT.P99, 1/float64(len(seeds)))
		}
		if p50 > test.p50 || p99 > test.p99 {
			t.Errorf("%s: TTFT p50 behind the queue is %.3f times that of pushing, and p99 %.3f times", test.policy, p50, p99)
		}
	}
}

// Engines that are full get as much done behind the queue as with everything pushed, however
// few tokens answers have, so that many end in each step and others must be there at once.
// Answers of one length end together when all began together, and how many prompts a step has
// then would decide.
func TestQueueKeepsEnginesFull(t *testing.T) {
	for _, settings := range []string{"input=20,output=1", "input=20,output=exponential(2)", "input=20,output=exponential(8)", "input=200,output=uniform(1,32)", "input=200,output=exponential(100)"} {
		for _, fleet := range []struct {
			engines int
			policy  string
		}{{1, "cost"}, {2, "cost"}, {2, "least-load"}} {
			p := plan(t, "concurrency=512,requests=4000,"+settings)
			span := func(policy string) float64 {
				return run(t, p, fleet.engines, policy, func(o *fleetsim.Options) { o.Engine.MaxRunning = 64 }).VirtualSeconds
			}
			pushed, held := span(fleet.policy), span(fleetsim.WithQueue(fleet.policy))
			if held > 1.04*pushed {
				t.Errorf("%s, %s: %.2f s behind the queue for what takes %.2f s with everything pushed", settings, fleet.policy, held, pushed)
			}
		}
	}
}

// A request that waits for an engine counts there as the place that it waits for. If only the small
// time of its prompt counted, all would wait for the one engine whose steps have prompts anyway,
// while the other runs empty.
func TestQueueWaitsForPlaces(t *testing.T) {
	p := plan(t, "rate=120,duration=40s,input=200,output=uniform(8,24)")
	p50 := func(policy string) float64 {
		return run(t, p, 2, policy, func(o *fleetsim.Options) {
			o.Engine.MaxRunning, o.Engine.Cost = 32, sim.Constant{Prefill: 15 * time.Millisecond, Decode: 20 * time.Millisecond}
		}).TTFT.P50
	}
	if cost, least := p50("cost+queue"), p50("least-load+queue"); cost > 1.3*least {
		t.Errorf("half of the requests begin within %.0f ms, and %.0f by the least load", cost, least)
	}
}

// Each request that waits ends, whatever happens to engines; if none is left it fails.
func TestQueueOutlivesEngines(t *testing.T) {
	p := plan(t, "rate=20,duration=1m,input=500,output=100")
	r := run(t, p, 3, "cost+queue", func(o *fleetsim.Options) {
		o.Engine.MaxRunning = 8
		o.Events = []fleetsim.Event{
			{At: 10 * time.Second, Engine: 0, Kind: fleetsim.Fail}, {At: 20 * time.Second, Engine: 1, Kind: fleetsim.Fail},
			{At: 25 * time.Second, Engine: 0, Kind: fleetsim.Join}, {At: 30 * time.Second, Engine: 2, Kind: fleetsim.Slow, By: 5},
		}
	})
	if r.Finished+r.Failed != r.Requests || r.Finished < r.Requests*9/10 {
		t.Errorf("of %d requests %d ended and %d failed", r.Requests, r.Finished, r.Failed)
	}
	r = run(t, p, 1, "cost+queue", func(o *fleetsim.Options) {
		o.Engine.MaxRunning = 2
		o.Events = []fleetsim.Event{{At: 10 * time.Second, Engine: 0, Kind: fleetsim.Fail}}
	})
	if r.Finished+r.Failed != r.Requests || r.Finished == 0 || r.Failed == 0 {
		t.Errorf("of %d requests %d ended and %d failed", r.Requests, r.Finished, r.Failed)
	}
}

// At ten times what the engines can do, those that are served are served in time, and about as
// many of them as at the most: the others are refused at once. Pushed, all are late.
func TestQueueInOverload(t *testing.T) {
	goodput := func(policy string, rate string) (good, served float64) {
		p := plan(t, "rate="+rate+",duration=12s,input=1000,output=50")
		n, in := 0, 0
		r := run(t, p, 2, policy, func(o *fleetsim.Options) {
			o.Engine.MaxRunning = 32
			o.Patience = 1500 * time.Millisecond
			o.OnRequest = func(q *fleetsim.Record) {
				if q.First > 0 && q.First <= int64(12*time.Second) {
					n++
					if q.TTFT() <= 2000 {
						in++
					}
				}
			}
		})
		if r.Finished+r.Refused+r.Failed != r.Requests {
			t.Errorf("%s at %s/s: of %d requests %d ended, %d were refused, %d failed", policy, rate, r.Requests, r.Finished, r.Refused, r.Failed)
		}
		return float64(in) / 12, float64(n) / 12
	}
	peak := 0.0
	for _, rate := range []string{"20", "40", "60", "80"} {
		good, _ := goodput("cost+queue", rate)
		peak = max(peak, good)
	}
	good, served := goodput("cost+queue", "600")
	if good < 0.97*peak || good < 0.97*served {
		t.Errorf("at ten times the load %.1f/s of %.1f served in time, and at the most %.1f", good, served, peak)
	}
	if pushed, _ := goodput("cost", "600"); pushed > peak/2 {
		t.Errorf("pushed, %.1f/s are served in time of %.1f at the most: the load is none", pushed, peak)
	}
}
