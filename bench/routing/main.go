// Command routing replays workloads through fleets of simulated engines under weir's
// policies and those that others publish, and writes the table of this folder.
//
//	go run ./bench/routing -o bench/routing/table.md
//	go run ./bench/routing -trace conversation_trace.jsonl
//
// A cell is a workload at a utilisation, with a number of gateways and an age of what
// they and the engines tell each other, with stamps or without. In each, cost is held
// against the reference that is best there: a figure is lost where it is worse by more
// than 5 % (and 1 ms) and the 95 % interval of the paired difference over the seeds
// leaves out less.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"weir/internal/balance"
	"weir/internal/fleetsim"
	"weir/internal/sim"
	"weir/internal/workload"
)

// load is a workload and the fleet that it is for.
type load struct {
	name, settings string
	engines, kv    int
	profile        string // of sim.Profiles; sim.PerBatch's default where there is none
}

// Rates are about what the fleets can do, so that a utilisation spreads the workload
// over some minutes, of which sessions take a small part.
var loads = []load{
	{"chat: 8 system prompts of 2k, sessions of 1 to 8 turns", "rate=8,turns=uniform(1,8),think=5s,duration=150s,input=lognormal(600,600),output=lognormal(200,150),prefix=2000,groups=8", 4, 400_000, ""},
	{"agents: 3 prompts of 4k, 1 to 4 calls at once", "rate=5,turns=uniform(1,6),branch=uniform(1,4),think=1s,duration=150s,input=lognormal(1500,2500),output=lognormal(80,80),prefix=4000,groups=3", 4, 400_000, ""},
	{"documents: 60 of 12k, Zipf 1, few fit", "rate=30,duration=150s,input=lognormal(300,300),output=lognormal(150,100),prefix=lognormal(12000,6000),groups=60,zipf=1", 4, 150_000, ""},
	{"nothing shared", "rate=32,duration=150s,input=lognormal(1500,2000),output=lognormal(200,200)", 4, 400_000, ""},
	{"chat on Llama 3.1 8B, H100: 12 system prompts of 3k", "rate=12,turns=uniform(1,8),think=5s,duration=150s,input=lognormal(900,900),output=lognormal(200,150),prefix=3000,groups=12", 4, 467_280, "llama-3.1-8b-h100"},
}

type setting struct {
	utilisation float64
	gateways    int
	age         time.Duration
	stamps      bool
}

// settings are thinned: every utilisation alone, and the rest at 0.5.
var settings = []setting{
	{0.5, 1, 0, true}, {0.5, 4, 100 * time.Millisecond, false}, {0.8, 1, 0, true}, {0.95, 1, 0, true}, {1.1, 1, 0, true},
	{0.5, 1, 0, false}, {0.5, 2, 10 * time.Millisecond, false}, {0.5, 4, time.Second, false},
}

func main() {
	out := flag.String("o", "", "write the table there as well")
	trace := flag.String("trace", "", "also replay this trace (8 engines, KV 400,000 tokens)")
	quick := flag.Int("quick", 0, "only so many of the settings")
	ablations := flag.Bool("ablations", false, "compare cost with its ablations, and with no reference")
	seeds := flag.Int("seeds", 3, "seeds of arrivals, lengths and ties")
	flag.Parse()
	if *quick > 0 {
		settings = settings[:min(*quick, len(settings))]
	}
	var w io.Writer = os.Stdout
	if *out != "" {
		f, err := os.Create(*out)
		if err != nil {
			fail(err)
		}
		defer f.Close()
		w = io.MultiWriter(os.Stdout, f)
	}
	write := table
	if *ablations {
		write = ablated
	}
	if err := write(w, *seeds, *trace); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "routing:", err)
	os.Exit(1)
}

// ours and others are the policies that are compared; the best of others is the one to
// be beaten.
var ours = []string{"cost"}

func others() (names []string) {
	for _, name := range balance.Names() {
		if name != "cost" && name != "session" {
			names = append(names, name)
		}
	}
	for _, r := range fleetsim.References() {
		names = append(names, r.Name)
	}
	return names
}

// figures are what is compared; of each, less is better.
var figures = []struct {
	name string
	of   func(r *fleetsim.Report) float64
	atMS float64 // what a difference must exceed besides 5 %
}{
	{"TTFT p50", func(r *fleetsim.Report) float64 { return r.TTFT.P50 }, 1},
	{"TTFT p99", func(r *fleetsim.Report) float64 { return r.TTFT.P99 }, 1},
	{"goodput", func(r *fleetsim.Report) float64 { return -r.Goodput }, 0},
}

// cells calls do with the runs of each cell, by policy.
func cells(seeds int, trace string, policies func(seed int, runs map[string][]*fleetsim.Report) []string, do func(l *load, s *setting, runs map[string][]*fleetsim.Report)) error {
	all := loads
	if trace != "" {
		all = append(all, load{name: "trace " + trace[strings.LastIndex(trace, "/")+1:], engines: 8, kv: 400_000})
	}
	for i := range all {
		l := &all[i]
		plans := make([]*fleetsim.Plan, seeds)
		for i := range plans {
			var err error
			if l.settings != "" {
				plans[i], err = fleetsim.NewSessions(l.settings, uint64(i+1))
			} else {
				plans[i], err = fromTrace(trace, uint64(i+1))
			}
			if err != nil {
				return err
			}
		}
		o := fleetsim.Options{Engine: sim.Options{KVTokens: l.kv}, Engines: make([]fleetsim.Engine, l.engines)}
		for _, p := range sim.Profiles() {
			if p.Name == l.profile {
				o.Engine.Cost = p.Cost
			}
		}
		o.Plan = plans[0]
		full, err := fleetsim.Saturation(context.Background(), o)
		if err != nil {
			return err
		}
		for i := range settings {
			s := &settings[i]
			if l.settings == "" && !(s.gateways == 1 && s.utilisation == 0.8) {
				continue
			}
			runs := map[string][]*fleetsim.Report{}
			for i, p := range plans {
				o.Plan, o.Seed, o.Speed, o.Gateways, o.Age, o.Stamps = p, uint64(i+1), full*s.utilisation, s.gateways, s.age, s.stamps
				c, err := fleetsim.Compare(context.Background(), o, policies(i, runs))
				if err != nil {
					return err
				}
				for _, r := range append(c.Runs, c.Oracle) {
					runs[r.Policy] = append(runs[r.Policy], r)
				}
			}
			do(l, s, runs)
		}
	}
	return nil
}

// contenders are how many of the references go on after the first seed, of the best in
// each figure.
const contenders = 2

// further are the policies that are run with a seed: all with the first, then ours and
// the references that may be the best.
func further(seed int, runs map[string][]*fleetsim.Report) (names []string) {
	if seed == 0 {
		return append(names, append(ours, others()...)...)
	}
	names = append(names, ours...)
	for _, f := range figures {
		best := others()
		slices.SortStableFunc(best, func(a, b string) int { return cmp.Compare(f.of(runs[a][0]), f.of(runs[b][0])) })
		names = append(names, best[:contenders]...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// captured is 1 where the oracle reuses nothing.
func captured(runs, oracle []*fleetsim.Report) float64 {
	hits := func(r *fleetsim.Report) float64 { return r.HitRate }
	if mean(oracle, hits) == 0 {
		return 1
	}
	return mean(runs, hits) / mean(oracle, hits)
}

func maxMean(r *fleetsim.Report) float64 { return r.MaxMean }

func (s *setting) String() string {
	return fmt.Sprintf("%.2g | %d, %v | %v", s.utilisation, s.gateways, s.age, s.stamps)
}

func (l *load) String() string { return fmt.Sprintf("%s (%d x %dk KV)", l.name, l.engines, l.kv/1000) }

func table(w io.Writer, seeds int, trace string) error {
	start := time.Now()
	fmt.Fprintf(w, "# Routing, offline\n\nWritten by `go run ./bench/routing` (%d seeds, %d of %d settings). Engines: prefill ms = 4.21e-7 t² + 0.0152 t + 16.5, decode ms = 6 + 0.35 n, or the profile named, KV as named. captured and max/mean: of cost, beside the oracle's. Each figure has cost's, then the best reference's with its name, then the oracle's. **lost**: worse than the best by more than 5 %% (and 1 ms) with 95 %% confidence over the seeds; at 1.1 only goodput counts. All references run with the first seed, with the others the best %d in each figure.\n\n", seeds, len(settings), 8, contenders)
	fmt.Fprintln(w, "| workload | util | gateways, age | stamps | captured | max/mean | TTFT p50 ms | TTFT p99 ms | goodput /s | |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|---|---|")
	product, count, lost := map[string][3]float64{}, 0, 0
	err := cells(seeds, trace, further, func(l *load, s *setting, runs map[string][]*fleetsim.Report) {
		cost, oracle := runs["cost"], runs[fleetsim.Oracle]
		row := fmt.Sprintf("| %v | %v | %.3f | %.2f, %.2f |", l, s, captured(cost, oracle), mean(cost, maxMean), mean(oracle, maxMean))
		var verdict []string
		for k, f := range figures {
			best, at := math.Inf(1), ""
			for _, name := range others() {
				p := product[name]
				p[k] += math.Log(math.Abs(f.of(cost[0])) / math.Abs(f.of(runs[name][0])))
				product[name] = p
				if len(runs[name]) < seeds {
					continue
				}
				if m := mean(runs[name], f.of); m < best {
					best, at = m, name
				}
			}
			row += fmt.Sprintf(" %.4g, %.4g %s, %.4g |", math.Abs(mean(cost, f.of)), math.Abs(best), at, math.Abs(mean(oracle, f.of)))
			if s.utilisation > 1 && f.name != "goodput" {
				continue
			}
			if worse(cost, runs[at], f.of, max(0.05*math.Abs(best), f.atMS)) {
				verdict = append(verdict, "**lost** "+f.name)
				lost++
			}
		}
		count++
		fmt.Fprintf(w, "%s %s |\n", row, strings.Join(verdict, ", "))
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%d cells, %d figures lost; %.0f s.\n\nCost's figure over each reference's, geometric mean of all cells, first seed (below 1 is better for TTFT, above 1 for goodput):\n\n| reference | TTFT p50 | TTFT p99 | goodput |\n|---|---|---|---|\n", count, lost, time.Since(start).Seconds())
	for _, name := range others() {
		p := product[name]
		n := float64(count)
		fmt.Fprintf(w, "| %s | %.3f | %.3f | %.3f |\n", name, math.Exp(p[0]/n), math.Exp(p[1]/n), math.Exp(p[2]/n))
	}
	return nil
}

// ablated writes cost beside its ablations.
func ablated(w io.Writer, seeds int, trace string) error {
	names := slices.Clone(ours)
	fmt.Fprintf(w, "# Ablations of cost, offline\n\nWritten by `go run ./bench/routing -ablations` (%d seeds); cells as in table.md.\n\n", seeds)
	for _, a := range fleetsim.Ablations() {
		names = append(names, a.Name)
		fmt.Fprintf(w, "- `%s`: %s\n", a.Name, a.What)
	}
	fmt.Fprint(w, "\n| workload | util | gateways, age | stamps | policy | captured | max/mean | TTFT p50 ms | TTFT p99 ms | TPOT p50 ms | goodput /s |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	return cells(seeds, trace, func(int, map[string][]*fleetsim.Report) []string { return names }, func(l *load, s *setting, runs map[string][]*fleetsim.Report) {
		for _, name := range names {
			r := runs[name]
			fmt.Fprintf(w, "| %v | %v | %s | %.3f | %.2f | %.4g | %.4g | %.4g | %.4g |\n", l, s, name, captured(r, runs[fleetsim.Oracle]), mean(r, maxMean),
				mean(r, figures[0].of), mean(r, figures[1].of), mean(r, func(r *fleetsim.Report) float64 { return r.TPOT.P50 }), -mean(r, figures[2].of))
		}
	})
}

func fromTrace(name string, seed uint64) (*fleetsim.Plan, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := workload.NewTrace(f, name, "", workload.Options{Seed: seed})
	if err != nil {
		return nil, err
	}
	return fleetsim.NewTrace(t, name)
}

func mean(runs []*fleetsim.Report, of func(*fleetsim.Report) float64) (m float64) {
	for _, r := range runs {
		m += of(r) / float64(len(runs))
	}
	return m
}

// worse says that a's figure is above b's by more than bound, with 95 % confidence over
// the pairs; with one pair, that it is.
func worse(a, b []*fleetsim.Report, of func(*fleetsim.Report) float64, bound float64) bool {
	n := float64(len(a))
	m, s := 0.0, 0.0
	for i := range a {
		m += (of(a[i]) - of(b[i])) / n
	}
	for i := range a {
		d := of(a[i]) - of(b[i]) - m
		s += d * d
	}
	if len(a) > 1 {
		// Student's t for 95 %, two-sided.
		t := []float64{12.71, 4.303, 3.182, 2.776, 2.571}[min(len(a)-2, 4)]
		m -= t * math.Sqrt(s/(n-1)/n)
	}
	return m > bound
}
