package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"weir/internal/lab/fleetsim"
	"weir/internal/load/experiment"
	"weir/internal/sim"
)

// pairLoads vary the two things that decide whether dividing a request pays: the length of its
// prompt, and the part of it that is cached at the engine that would decode.
var pairLoads = []load{
	{key: "short", name: "short: prompts of 200", settings: "rate=20,duration=120s,input=lognormal(200,200),output=lognormal(200,150)"},
	{key: "long", name: "long: prompts of 6k", settings: "rate=6,duration=120s,input=lognormal(6000,4000),output=lognormal(200,150)"},
	{key: "turns", name: "turns: sessions of 1 to 10 turns, a system prompt of 3k", settings: "rate=2,turns=uniform(1,10),think=3s,duration=120s,input=lognormal(400,400),output=lognormal(200,150),prefix=3000,groups=8"},
	{key: "mixed", name: "mixed: sessions of 1 to 4 turns, prompts from some tokens to 30k", settings: "rate=4,turns=uniform(1,4),think=2s,duration=120s,input=lognormal(2000,5000),output=lognormal(150,150)"},
}

// pairFleets are the fleets of these loads, by the roles of their engines.
var pairFleets = []string{"2+2", "1+3"}

// pairProfiles are the engines' costs of a step; the empty one is sim.PerBatch's default.
var pairProfiles = []string{"", "llama-3.1-8b-h100"}

// pairSettings are the utilisations, with stamps and without.
var pairSettings = []setting{{0.5, 1, 0, true}, {0.8, 1, 0, true}, {0.95, 1, 0, true}, {0.8, 1, 0, false}}

// pairMost bounds how much less the goodput of cost may be than that of the better policy.
const pairMost = 0.03

// pairs writes cost beside two policies: one always divides a request, the other never.
func pairs(w io.Writer, a ask) error {
	start := time.Now()
	ours := []string{"cost", fleetsim.WithQueue("cost")}
	fmt.Fprintf(w, "Written by `go run ./bench/routing -pairs -seeds %d -only '%s'`.\n\n", a.seeds, a.asked)
	fmt.Fprintln(w, "| engines | fleet | workload | util | stamps | divided | goodput /s | TTFT p50 ms | TTFT p99 ms | TPOT p99 ms | mean time to the end ms | share of the better goodput |\n|---|---|---|---|---|---|---|---|---|---|---|---|")
	cells, lost := 0, 0
	for _, profile := range pairProfiles {
		for _, text := range pairFleets {
			fleet, err := experiment.ParseFleet(text, 64)
			if err != nil {
				return err
			}
			for i := range pairLoads {
				l := &pairLoads[i]
				kind := "per-batch"
				o := fleetsim.Options{Engine: sim.Options{KVTokens: 400_000, Transfer: sim.Transfer{BytesPerToken: 128 << 10, Bandwidth: 25e9}}}
				for _, p := range sim.Profiles() {
					if p.Name == profile {
						o.Engine.Cost, kind = p.Cost, p.Name
					}
				}
				for n := range fleet.Engines() {
					o.Engines = append(o.Engines, fleetsim.Engine{Role: fleet.Role(n + 1)})
				}
				full := 0.0
				plans := make([]*fleetsim.Plan, a.seeds)
				for _, s := range pairSettings {
					if !a.only(fmt.Sprintf("%s %s %s %g %v", kind, text, l.key, s.utilisation, s.stamps)) {
						continue
					}
					if full == 0 {
						for i := range plans {
							if plans[i], err = fleetsim.NewSessions(l.settings, a.first+uint64(i)); err != nil {
								return err
							}
						}
						o.Plan = plans[0]
						if full, err = fleetsim.Saturation(context.Background(), o); err != nil {
							return err
						}
					}
					runs := map[string][]*fleetsim.Report{}
					for i, p := range plans {
						o.Plan, o.Seed, o.Speed, o.Stamps = p, a.first+uint64(i), full*s.utilisation, s.stamps
						for _, name := range append([]string{fleetsim.Divided, fleetsim.Undivided}, ours...) {
							o.Policy = name
							r, err := fleetsim.Run(context.Background(), o)
							if err != nil {
								return err
							}
							runs[name] = append(runs[name], r)
						}
					}
					of := func(format string, f func(r *fleetsim.Report) float64) (text string) {
						for i, name := range []string{ours[0], ours[1], fleetsim.Divided, fleetsim.Undivided} {
							if i > 0 {
								text += ", "
							}
							text += fmt.Sprintf(format, mean(runs[name], f))
						}
						return text
					}
					good := func(r *fleetsim.Report) float64 { return r.Goodput }
					rival := fleetsim.Divided
					if mean(runs[fleetsim.Undivided], good) > mean(runs[rival], good) {
						rival = fleetsim.Undivided
					}
					better := mean(runs[rival], good)
					verdict := ""
					for i, name := range ours {
						if i > 0 {
							verdict += ", "
						}
						share, unsure := 1.0, 0.0
						if better > 0 {
							_, unsure = paired(runs[name], runs[rival], good)
							share, unsure = mean(runs[name], good)/better, unsure/better
						}
						cells++
						text := fmt.Sprintf("%.3f", share)
						if a.seeds > 1 {
							text += fmt.Sprintf(" ± %.3f", unsure)
						}
						if share < 1-pairMost {
							lost++
							text = "**" + text + "**"
						}
						verdict += text
					}
					fmt.Fprintf(w, "| %s | %s | %s | %g | %v | %s | %s | %s | %s | %s | %s | %s |\n", kind, text, l.key, s.utilisation, s.stamps,
						of("%.2f", func(r *fleetsim.Report) float64 { return float64(r.Divided) / float64(r.Finished) }), of("%.2f", good),
						of("%.0f", func(r *fleetsim.Report) float64 { return r.TTFT.P50 }), of("%.0f", func(r *fleetsim.Report) float64 { return r.TTFT.P99 }), of("%.1f", func(r *fleetsim.Report) float64 { return r.TPOT.P99 }),
						of("%.0f", func(r *fleetsim.Report) float64 { return r.E2E.Mean }), verdict)
				}
			}
		}
	}
	fmt.Fprintf(w, "\n%d goodputs, %d of them more than %.0f %% less than the better one's; %.0f s.\n", cells, lost, 100*pairMost, time.Since(start).Seconds())
	return nil
}
