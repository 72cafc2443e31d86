package fleetsim_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/internal/lab/fleetsim"
	"weir/internal/workload"
)

// failure is a known way in which a routing policy fails, as a script in virtual time.
type failure struct {
	name string
	// workload are a synthetic workload's settings, or lines of a trace.
	workload string
	engines  int
	change   func(o *fleetsim.Options)
	// fails is the policy that is known to fail so.
	fails string
	// failed judges a run; better is that of another policy, to be compared with.
	failed func(r, better *fleetsim.Report) bool
	better string
}

// most is the largest share of requests that an engine got.
func most(r *fleetsim.Report) float64 {
	n := 0
	for _, e := range r.Engines {
		n = max(n, e.Given)
	}
	return float64(n) / float64(r.Requests)
}

var failures = []failure{
	{
		// The load is 0 whenever a session asks, and the prefix is on one engine.
		name: "paced sessions pile up", engines: 4, fails: "smg-cache-aware",
		workload: "rate=1,turns=8,think=3s,duration=3m,input=300,output=60,prefix=2000,groups=1",
		failed:   func(r, _ *fleetsim.Report) bool { return most(r) > 0.9 },
	},
	{
		name: "one system prompt", engines: 4, fails: "smetric-1s", better: "round-robin",
		workload: "rate=13,duration=2m,input=400,output=150,prefix=3000,groups=1",
		failed:   func(r, b *fleetsim.Report) bool { return r.TTFT.Mean > 1.5*b.TTFT.Mean },
	},
	{
		name: "affinity without load", engines: 4, fails: "smetric-10s", better: "round-robin",
		workload: "rate=1,turns=10,think=4s,duration=3m,input=800,output=100,prefix=1000,groups=1",
		change:   func(o *fleetsim.Options) { o.Engine.KVTokens = 150_000 },
		failed:   func(r, b *fleetsim.Report) bool { return r.TTFT.P99 > 2*b.TTFT.P99 },
	},
	{
		// Eight long prompts of one prefix on one engine are fewer than any margin.
		name: "one deep queue", engines: 4, fails: "smg-cache-aware", better: "least-load",
		workload: "rate=1.2,arrival=gamma(4),duration=4m,input=30000,output=20,prefix=15000,groups=1",
		failed:   func(r, b *fleetsim.Report) bool { return r.TTFT.Mean > 1.5*b.TTFT.Mean },
	},
	{
		name: "a herd against old reports", engines: 8, fails: "least-reported", better: "power-of-two",
		workload: "rate=25,duration=6m,input=lognormal(1500,1500),output=60",
		change:   func(o *fleetsim.Options) { o.Gateways, o.Age = 4, time.Second },
		failed:   func(r, b *fleetsim.Report) bool { return r.TTFT.P99 > 1.2*b.TTFT.P99 },
	},
	{
		name: "a restarted engine attracts all", engines: 4, fails: "smg-cache-aware", better: "round-robin",
		workload: "rate=12,duration=3m,input=lognormal(2500,1500),output=80",
		change: func(o *fleetsim.Options) {
			for i := range 8 {
				at := time.Duration(i+1) * 20 * time.Second
				o.Events = append(o.Events, fleetsim.Event{At: at, Engine: i % 4, Kind: fleetsim.Fail}, fleetsim.Event{At: at + 2*time.Second, Engine: i % 4, Kind: fleetsim.Join})
			}
		},
		failed: func(r, b *fleetsim.Report) bool { return r.TTFT.P99 > 1.3*b.TTFT.P99 },
	},
	{
		// The index has the prefix, and the engine another one for each session: what is
		// believed to be a hit is computed whole, and counts as no load.
		name: "salted prompts", engines: 4, fails: "llm-d", better: "round-robin",
		workload: "rate=7,duration=1m,input=300,output=60,prefix=12000,groups=1",
		change:   func(o *fleetsim.Options) { o.Salted = true },
		failed:   func(r, b *fleetsim.Report) bool { return r.HitRate == 0 && r.TTFT.Mean > 2*b.TTFT.Mean },
	},
	{
		// The shared part is never 0.80 of the prompt, so that affinity is off unseen.
		name: "a threshold that is never met", engines: 8, fails: "llm-d", better: fleetsim.Oracle,
		workload: "rate=6,duration=3m,input=3000,output=100,prefix=8000,groups=40",
		change:   func(o *fleetsim.Options) { o.Engine.KVTokens = 120_000 },
		failed:   func(r, b *fleetsim.Report) bool { return r.HitRate < 0.9*b.HitRate },
	},
	{
		name: "eight equal prompts at once", engines: 8, fails: "least-load",
		workload: eightEqual(),
		failed: func(r, _ *fleetsim.Report) bool {
			return r.PromptTokens-r.CachedTokens > r.PromptTokens/2
		},
	},
}

// eightEqual asks eight times for each of twenty prompts, within 100 ms, while each
// engine decodes a few short ones: where it has nothing else to do, to compute a prompt
// eight times delays nobody.
func eightEqual() string {
	var b strings.Builder
	line := func(at, input, output, id int) {
		ids := make([]string, (input+511)/512)
		for k := range ids {
			ids[k] = fmt.Sprint(id + k)
		}
		fmt.Fprintf(&b, `{"timestamp": %d, "input_length": %d, "output_length": %d, "hash_ids": [%s]}`+"\n", at, input, output, strings.Join(ids, ", "))
	}
	for ms := range 20 * 5000 {
		if ms%50 == 0 {
			line(ms, 200, 150, 10_000+ms)
		}
		if i, at := ms/5000, ms%5000; at >= 2000 && at < 2096 && at%12 == 0 {
			line(ms, 8192, 20, 100*i)
		}
	}
	return b.String()
}

// TestKnownFailures has a policy fail in each way that is known, and cost not.
func TestKnownFailures(t *testing.T) {
	for _, f := range shorter(failures...) {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			var p *fleetsim.Plan
			if strings.HasPrefix(f.workload, "{") {
				w, err := workload.NewTrace(strings.NewReader(f.workload), "script", "", workload.Options{Seed: 1})
				if err != nil {
					t.Fatal(err)
				}
				if p, err = fleetsim.NewTrace(w, "script"); err != nil {
					t.Fatal(err)
				}
			} else {
				p = plan(t, f.workload)
			}
			reports := map[string]*fleetsim.Report{}
			for _, name := range slices.Compact([]string{f.fails, f.better, "cost"}) {
				if name != "" {
					r := run(t, p, f.engines, name, f.change)
					reports[name] = r
					t.Logf("%s: TTFT p50 %.0f, p99 %.0f, mean %.0f; cached %.2f; most %.2f", name, r.TTFT.P50, r.TTFT.P99, r.TTFT.Mean, r.HitRate, most(r))
				}
			}
			if !f.failed(reports[f.fails], reports[f.better]) {
				t.Errorf("%s does not fail", f.fails)
			}
			if f.failed(reports["cost"], reports[f.better]) {
				t.Error("cost fails")
			}
		})
	}
}
