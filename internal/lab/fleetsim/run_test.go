package fleetsim_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/internal/fleet/balance"
	"weir/internal/lab/fleetsim"
	"weir/internal/sim"
	"weir/internal/sim/offline"
	"weir/internal/workload"
	"weir/internal/workload/content"
)

var words = func() *content.Words {
	w, err := content.New(1024, func(n uint32) ([]byte, bool) {
		return []byte{' ', 'a' + byte(n%26), 'a' + byte(n/26%26), 'a' + byte(n/676%26)}, true
	})
	if err != nil {
		panic(err)
	}
	return w
}()

// plan makes one of a synthetic workload.
func plan(t testing.TB, settings string) *fleetsim.Plan { return seeded(t, settings, 1) }

// seeded makes one whose lengths and arrivals are others with each seed.
func seeded(t testing.TB, settings string, seed uint64) *fleetsim.Plan {
	t.Helper()
	p, err := fleetsim.NewSessions(settings, seed)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// run replays on this many engines alike, but for what change says.
func run(t testing.TB, p *fleetsim.Plan, engines int, policy string, change func(o *fleetsim.Options)) *fleetsim.Report {
	t.Helper()
	o := fleetsim.Options{
		Plan: p, Engine: sim.Options{Words: words, KVTokens: 400_000}, Engines: make([]fleetsim.Engine, engines),
		Policy: policy, Stamps: true, Seed: 1,
	}
	if change != nil {
		change(&o)
	}
	r, err := fleetsim.Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

const chat = "rate=2,turns=uniform(1,6),think=2s,branch=uniform(1,3),duration=3m,input=lognormal(400,400),output=lognormal(120,80),prefix=2000,groups=8"

// TestOneEngine has a fleet of one show what the engine's own replay shows.
func TestOneEngine(t *testing.T) {
	trace := func() *workload.Workload {
		f, err := os.Open("../../../docs/samples/synthetic-chat.jsonl")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		w, err := workload.NewTrace(f, "chat", "", workload.Options{Seed: 1, Speed: 2})
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	engine := sim.Options{Words: words, KVTokens: 100_000}
	alone, err := offline.Run(t.Context(), offline.Options{Engine: engine, Workload: trace()})
	if err != nil {
		t.Fatal(err)
	}
	p, err := fleetsim.NewTrace(trace(), "chat")
	if err != nil {
		t.Fatal(err)
	}
	for _, policy := range []string{"cost", fleetsim.Oracle} {
		r := run(t, p, 1, policy, func(o *fleetsim.Options) { o.Engine = engine })
		if r.Finished != alone.Finished || r.CachedTokens != alone.CachedTokens || r.PromptTokens != alone.PromptTokens || r.OutputTokens != alone.OutputTokens {
			t.Errorf("%s: %d finished, %d of %d cached; alone %d, %d of %d", policy, r.Finished, r.CachedTokens, r.PromptTokens, alone.Finished, alone.CachedTokens, alone.PromptTokens)
		}
		if math.Abs(r.TTFT.Mean-float64(alone.TTFT.Mean)) > 1e-6*r.TTFT.Mean || math.Abs(r.Load-alone.Busy) > 0.01 {
			t.Errorf("%s: TTFT %.6f ms, alone %.6f; load %.3f, alone %.3f", policy, r.TTFT.Mean, float64(alone.TTFT.Mean), r.Load, alone.Busy)
		}
	}
}

// shorter returns all cases, and the first one alone under -short, which make test sets:
// make quick runs them all.
func shorter[T any](cases ...T) []T {
	if testing.Short() {
		return cases[:1]
	}
	return cases
}

// TestEveryRequestEnds has engines fail, join and slow down under every policy, with one
// gateway and with several: each request ends once.
func TestEveryRequestEnds(t *testing.T) {
	t.Parallel()
	p := plan(t, chat)
	policies := fleetsim.Policies()
	if testing.Short() {
		policies = []string{"cost"}
	}
	for _, policy := range policies {
		for _, gateways := range shorter(3, 1) {
			ended := map[[2]int]bool{}
			r := run(t, p, 4, policy, func(o *fleetsim.Options) {
				o.Gateways, o.Age = gateways, time.Duration(gateways-1)*50*time.Millisecond
				o.Engines[3].Absent = true
				o.Events = []fleetsim.Event{
					{At: 30 * time.Second, Engine: 0, Kind: fleetsim.Fail}, {At: 50 * time.Second, Engine: 3, Kind: fleetsim.Join},
					{At: 70 * time.Second, Engine: 1, Kind: fleetsim.Slow, By: 3}, {At: 80 * time.Second, Engine: 0, Kind: fleetsim.Join},
					{At: 90 * time.Second, Engine: 1, Kind: fleetsim.Slow, By: 1}, {At: 100 * time.Second, Engine: 2, Kind: fleetsim.Evict},
				}
				o.OnRequest = func(q *fleetsim.Record) {
					if at := [2]int{q.Session, q.Turn}; ended[at] {
						t.Errorf("%v ended twice", at)
					} else {
						ended[at] = true
					}
					if !q.Failed && (q.First < q.Arrival || q.Finish < q.First || q.Cached >= q.Input) {
						t.Errorf("%+v", q)
					}
				}
			})
			given := 0
			for _, e := range r.Engines {
				given += e.Given
				if e.Given == 0 && slices.Contains(balance.Names(), policy) {
					t.Errorf("%s: an engine got nothing: %+v", policy, r.Engines)
				}
			}
			if r.Requests != len(ended) || r.Finished+r.Refused+r.Failed != r.Requests || r.Finished < 9*r.Requests/10 || given != r.Requests+r.Retries {
				t.Errorf("%s, %d gateways: %d ended; %+v", policy, gateways, len(ended), r)
			}
		}
	}
}

// TestSame has the same options give the same report, and another seed another one.
func TestSame(t *testing.T) {
	report := func(seed uint64) *fleetsim.Report {
		return run(t, plan(t, chat), 3, "cost", func(o *fleetsim.Options) { o.Seed, o.Gateways, o.Age = seed, 2, 10*time.Millisecond })
	}
	a, b, c := report(1), report(1), report(2)
	if diff := cmp.Diff(a, b); diff != "" {
		t.Errorf("-first +second\n%s", diff)
	}
	if a.TTFT == c.TTFT {
		t.Error("another seed changes nothing")
	}
}

// TestClosedLoop has users wait for their answers, until there were this many requests or
// the time is over, as in weir bench.
func TestClosedLoop(t *testing.T) {
	p := plan(t, "concurrency=16,turns=4,think=500ms,requests=256,input=300,output=60,prefix=1000,groups=4")
	turns := map[int]int{}
	r := run(t, p, 2, "cost", func(o *fleetsim.Options) {
		o.OnRequest = func(q *fleetsim.Record) { turns[q.Session]++ }
	})
	if r.Finished != 256 || len(turns) < 64 || len(turns) > 80 {
		t.Errorf("%d requests of %d sessions", r.Finished, len(turns))
	}
	// All but the system prompt's first use and each turn's own 300 are resident.
	if r.HitRate < 0.7 {
		t.Errorf("%.2f of the prompts was cached", r.HitRate)
	}
	run(t, plan(t, "concurrency=4,turns=8,think=500ms,duration=5s,input=300,output=60"), 2, "cost", func(o *fleetsim.Options) {
		o.OnRequest = func(q *fleetsim.Record) {
			if q.Arrival >= int64(5*time.Second) {
				t.Errorf("turn %d of session %d began at %v", q.Turn, q.Session, time.Duration(q.Arrival))
			}
		}
	})
}

func TestTruth(t *testing.T) {
	is := sim.PerBatch{Square: 2e-6, Linear: 0.08, PrefillBase: 40, DecodeBase: 25, Each: 0.9}
	c := fleetsim.Truth(is)
	for _, x := range [][2]float64{{c.Step, 40}, {c.Token, 0.08}, {c.Pair, 4e-6}, {c.Decode, 25}, {c.Decoder, 0.9}} {
		if math.Abs(x[0]/x[1]-1) > 1e-3 {
			t.Errorf("%+v", c)
		}
	}
}

func TestUnknownPolicy(t *testing.T) {
	_, err := fleetsim.Run(t.Context(), fleetsim.Options{Plan: plan(t, chat), Engine: sim.Options{Words: words}, Engines: make([]fleetsim.Engine, 1), Policy: "dynmo"})
	if err == nil || !strings.Contains(err.Error(), `did you mean "dynamo"?`) {
		t.Error(err)
	}
}

// TestReferencesInDocs holds the documentation's table against the references.
func TestReferencesInDocs(t *testing.T) {
	page, err := os.ReadFile("../../../docs/fleet-offline.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range fleetsim.References() {
		if row := fmt.Sprintf("| `%s` | %s | %s | %s |\n", r.Name, r.Formula, r.Settings, r.Source); !strings.Contains(string(page), row) {
			t.Errorf("docs/fleet-offline.md has no row %s", row)
		}
	}
}

// BenchmarkHour is an hour of four engines.
func BenchmarkHour(b *testing.B) {
	for b.Loop() {
		p := plan(b, "rate=1.5,turns=uniform(1,8),think=5s,duration=1h,input=lognormal(600,600),output=lognormal(200,150),prefix=2000,groups=8")
		r := run(b, p, 4, "cost", nil)
		b.ReportMetric(float64(r.Requests), "requests")
		b.ReportMetric(r.Load, "load")
	}
}
