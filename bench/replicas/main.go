//go:build linux

// Command replicas compares several gateways in front of eight engines with one, on virtual
// time and over many seeds: the load of weir scenario replicas.
//
//	go run ./bench/replicas -seeds 12
//	go run ./bench/replicas -seeds 1 -slowest
//
// Each seed has its own arrivals, lengths and prompts, which all numbers of gateways get. The
// row "1 again" is one gateway whose requests come 0.01 % sooner: the noise of the figures
// themselves. A request is cold if it comes within the first -cold, and warm otherwise.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"weir/internal/lab"
	"weir/internal/lab/fleetsim"
	"weir/internal/lab/scenario"
	"weir/internal/load/report"
	"weir/internal/sim"
)

// options are the load and the rows.
type options struct {
	settings string
	seeds    int
	age      time.Duration
	cold     time.Duration
	slowest  bool
	stderr   io.Writer
}

func main() { lab.Main("replicas", run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("replicas", flag.ContinueOnError)
	flags.SetOutput(stderr)
	o := options{stderr: stderr}
	rate := flags.Float64("rate", 72.1, "requests per second: 0.8 of what the engines can do")
	lasts := flags.Duration("duration", scenario.ReplicaOffline, "virtual time of each run")
	flags.IntVar(&o.seeds, "seeds", 12, "seeds of arrivals, lengths and prompts")
	flags.DurationVar(&o.age, "age", scenario.ReplicaAge, "how old is what gateways know of each other")
	flags.DurationVar(&o.cold, "cold", time.Minute, "requests that come before that are cold")
	flags.BoolVar(&o.slowest, "slowest", false, "list the slowest 1 % of the requests of each run")
	if err := flags.Parse(args); err != nil {
		return err
	}
	o.settings = scenario.ReplicaWorkload(*rate, *lasts)
	return o.run(ctx, stdout)
}

// rows are the compared fleets. Requests come a little sooner where again is set.
var rows = []struct {
	name     string
	gateways int
	again    bool
}{{"1", 1, false}, {"1 again", 1, true}, {"2", 2, false}, {"4", 4, false}}

// outcome has the figures of a run.
type outcome struct {
	cached          float64
	all, cold, warm float64 // TTFT p99, ms
}

func (o *options) run(ctx context.Context, w io.Writer) error {
	found := make([][]outcome, len(rows))
	for seed := uint64(1); seed <= uint64(o.seeds); seed++ {
		plan, err := fleetsim.NewSessions(o.settings, seed)
		if err != nil {
			return err
		}
		for i, row := range rows {
			x, records, err := o.once(ctx, plan, row.gateways, seed, row.again)
			if err != nil {
				return err
			}
			found[i] = append(found[i], x)
			fmt.Fprintf(o.stderr, "seed %d, %s: %.1f %% cached, TTFT p99 %.0f ms, cold %.0f, warm %.0f\n", seed, row.name, 100*x.cached, x.all, x.cold, x.warm)
			if o.slowest {
				list(w, fmt.Sprintf("seed %d, %s", seed, row.name), records)
			}
		}
	}
	fmt.Fprintf(w, "%s\n%d engines of %s, %d seeds, what gateways know of each other is %v old, cold is before %v\n\n", o.settings, scenario.ReplicaEngines, scenario.ReplicaProfile, o.seeds, o.age, o.cold)
	fmt.Fprintf(w, "%-9s %-22s %-30s %-30s %s\n", "gateways", "captured", "TTFT p99, times one's", "cold", "warm")
	for i, row := range rows[1:] {
		mine, one := found[i+1], found[0]
		fmt.Fprintf(w, "%-9s %-22s %-30s %-30s %s\n", row.name,
			spread(mine, one, func(x outcome) float64 { return x.cached }),
			spread(mine, one, func(x outcome) float64 { return x.all }),
			spread(mine, one, func(x outcome) float64 { return x.cold }),
			spread(mine, one, func(x outcome) float64 { return x.warm }))
	}
	fmt.Fprintf(w, "\nmedian (least to most), then the geometric mean ± half of its 95 %% interval over the seeds\n")
	return nil
}

// once runs the plan once.
func (o *options) once(ctx context.Context, plan *fleetsim.Plan, gateways int, seed uint64, again bool) (x outcome, records []fleetsim.Record, err error) {
	run := fleetsim.Options{
		Plan: plan, Policy: fleetsim.WithQueue("cost"), Gateways: gateways, Stamps: true, Seed: seed, Engines: make([]fleetsim.Engine, scenario.ReplicaEngines),
		Engine:    sim.Options{KVTokens: scenario.ReplicaTokens, MaxRunning: scenario.ReplicaRunning, PageSize: 16, ContextLength: 131072},
		OnRequest: func(r *fleetsim.Record) { records = append(records, *r) },
	}
	if again {
		run.Speed = 1.0001
	}
	if gateways > 1 {
		run.Age = o.age
	}
	for _, p := range sim.Profiles() {
		if p.Name == scenario.ReplicaProfile {
			run.Engine.Cost = p.Cost
		}
	}
	out, err := fleetsim.Run(ctx, run)
	if err != nil {
		return x, nil, err
	}
	x.cached = out.HitRate
	x.all = p99(records, func(*fleetsim.Record) bool { return true })
	x.cold = p99(records, func(r *fleetsim.Record) bool { return r.Arrival < int64(o.cold) })
	x.warm = p99(records, func(r *fleetsim.Record) bool { return r.Arrival >= int64(o.cold) })
	return x, records, nil
}

// p99 returns the TTFT that 1 % of the requests exceed.
func p99(records []fleetsim.Record, of func(*fleetsim.Record) bool) float64 {
	var all []float64
	for i := range records {
		if r := &records[i]; r.First > 0 && of(r) {
			all = append(all, r.TTFT())
		}
	}
	if len(all) == 0 {
		return math.NaN()
	}
	slices.Sort(all)
	return all[min(len(all)*99/100, len(all)-1)]
}

// list writes the slowest 1 % of the requests, by arrival.
func list(w io.Writer, name string, records []fleetsim.Record) {
	limit := p99(records, func(*fleetsim.Record) bool { return true })
	slow := slices.DeleteFunc(slices.Clone(records), func(r fleetsim.Record) bool { return r.First == 0 || r.TTFT() < limit })
	slices.SortFunc(slow, func(a, b fleetsim.Record) int { return int(a.Arrival - b.Arrival) })
	fmt.Fprintf(w, "%s: the slowest 1 %%\n%9s %8s %7s %8s %9s %6s %7s %9s\n", name, "arrival s", "gateway", "engine", "TTFT ms", "predicted", "input", "cached", "elsewhere")
	for i := range slow {
		r := &slow[i]
		fmt.Fprintf(w, "%9.3f %8d %7d %8.0f %9.0f %6d %7d %9d\n", float64(r.Arrival)/1e9, r.Gateway+1, r.Engine+1, r.TTFT(), r.PredictedMS, r.Input, r.Cached, r.Elsewhere)
	}
	fmt.Fprintln(w)
}

// spread writes the quotients of a figure over the seeds.
func spread(mine, one []outcome, of func(outcome) float64) string {
	var all, logs []float64
	for i := range mine {
		q := of(mine[i]) / of(one[i])
		all, logs = append(all, q), append(logs, math.Log(q))
	}
	mean, half := report.StudentOf(logs)
	return fmt.Sprintf("%.3f (%.2f-%.2f), %.3f ± %.3f", lab.Median(all), slices.Min(all), slices.Max(all), math.Exp(mean), math.Exp(mean)*half)
}
