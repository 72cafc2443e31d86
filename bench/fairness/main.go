// Command fairness gives a fleet on virtual time ten times the load that it can serve. One of a
// hundred tenants sends 95 % of the requests. The command shows the service that the others get:
// with turns by shares, with turns by arrival, and without the greedy tenant.
//
//	go run ./bench/fairness
//	go run ./bench/fairness -seeds 5 -for 2m
//
// It ends with 1 unless each of the others gets its share within 5 %, and their TTFT p99 is at
// most 1.5 times the one without the greedy tenant. The queue by arrival must miss both bounds in
// the same run. Otherwise there was no overload, and the run shows nothing.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"weir/internal/lab/fleetsim"
	"weir/internal/sim"
)

// The figures that must come out.
const (
	off   = 0.05
	times = 1.5
)

func main() {
	o := fleetsim.Overload{Engine: sim.Options{KVTokens: 400_000}}
	profile := flag.String("profile", "llama-3.1-8b-h100", "the engines' cost profile")
	flag.IntVar(&o.Engines, "engines", 8, "number of engines")
	flag.IntVar(&o.MaxRunning, "max-running", 64, "requests that an engine runs at once")
	flag.BoolVar(&o.Strict, "strict", true, "give an engine no more than it runs, as --engine URL,max-running=N does")
	flag.StringVar(&o.Work, "work", "input=lognormal(1500,2000),output=lognormal(200,200)", "what each request is")
	flag.StringVar(&o.Policy, "policy", "cost", "how engines are chosen")
	flag.Float64Var(&o.Load, "load", 10, "requests that come, as a multiple of what the fleet can do")
	flag.IntVar(&o.Tenants, "tenants", 100, "number of tenants")
	flag.Float64Var(&o.Greedy, "greedy", 0.95, "the part of the requests that one tenant sends")
	flag.DurationVar(&o.For, "for", 40*time.Second, "how long requests come")
	flag.DurationVar(&o.Patience, "patience", 10*time.Second, "how long a request waits")
	flag.DurationVar(&o.Warm, "warm", 10*time.Second, "how long it is until requests count: a fleet that is idle fills at once")
	seeds := flag.Uint64("seeds", 3, "number of runs, of different chance")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if ok, err := run(ctx, &o, *profile, *seeds); err != nil {
		fmt.Fprintln(os.Stderr, "fairness:", err)
		os.Exit(2)
	} else if !ok {
		os.Exit(1)
	}
}

func run(ctx context.Context, o *fleetsim.Overload, profile string, seeds uint64) (ok bool, err error) {
	for _, p := range sim.Profiles() {
		if p.Name == profile {
			o.Engine.Cost = p.Cost
		}
	}
	if o.Engine.Cost == nil {
		return false, fmt.Errorf("there is no profile %q", profile)
	}
	if seeds == 0 || o.Tenants < 2 || o.Engines < 1 || o.MaxRunning < 1 || !(o.Load > 0) || !(o.Greedy > 0 && o.Greedy < 1) {
		return false, fmt.Errorf("give at least one seed and engine, two tenants, a load above 0 and a greedy part between 0 and 1")
	}
	ok = true
	fmt.Println("| seed | turns | least that a tenant gets of its share | served of the others | TTFT p50 | TTFT p99 | greedy one's, a second | |")
	fmt.Println("|---|---|---|---|---|---|---|---|")
	for seed := uint64(1); seed <= seeds; seed++ {
		o.Seed = seed
		capacity, err := o.Capacity(ctx)
		if err != nil {
			return false, err
		}
		all, err := o.Run(ctx, capacity)
		if err != nil {
			return false, err
		}
		without := &all[len(all)-1]
		for i := range all {
			s := &all[i]
			verdict := ""
			if wrong := s.Judge(without, off, times); s.Name == fleetsim.ByArrival {
				if verdict = "control, fails: " + strings.Join(wrong, ", "); len(wrong) < 2 {
					verdict, ok = "CONTROL PASSES", false
				}
			} else if wrong != nil {
				verdict, ok = "MISSED: "+strings.Join(wrong, ", "), false
			}
			fmt.Printf("| %d | %s | %.1f %% | %d of %d | %.0f ms | %.0f ms | %.1f | %s |\n", seed, s.Name, 100*s.Least, s.Served, s.Asked, s.TTFT.P50, s.TTFT.P99, s.Greedy, verdict)
		}
		fmt.Printf("| %d | the fleet can do %.1f requests a second | | | | | | |\n", seed, capacity)
	}
	return ok, nil
}
