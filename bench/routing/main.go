// Command routing replays workloads through fleets of simulated engines, under weir's
// policies and under published ones, and writes the table of this folder.
//
//	go run ./bench/routing -o bench/routing/table.md
//	go run ./bench/routing -queue -o bench/routing/queue.md
//	go run ./bench/routing -trace conversation_trace.jsonl
//	go run ./bench/routing -only 'chat.*0\.95'
//	go run ./bench/routing -check bench/routing/part.json
//
// A cell is a workload at a utilisation, with a number of gateways, an age of the
// reports between gateways and engines, and with stamps or without. Each cell compares
// cost with the reference that is best there. A figure is lost if it is worse by more
// than 5 % (and 1 ms), and the 95 % interval of the paired difference over the seeds
// lies above that bound.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"weir/internal/fleet/balance"
	"weir/internal/lab/fleetsim"
	"weir/internal/sim"
	"weir/internal/workload"
)

// load is a workload and its fleet.
type load struct {
	key, name, settings string
	engines, kv         int
	profile             string // of sim.Profiles; sim.PerBatch's default where there is none
	caches              []int  // tokens of each engine's KV cache where they are unlike
}

// Rates are near the capacity of the fleets. So a utilisation spreads the workload over
// some minutes, and a session takes a small part of them.
var loads = []load{
	{"chat", "chat: 8 system prompts of 2k, sessions of 1 to 8 turns", "rate=8,turns=uniform(1,8),think=5s,duration=150s,input=lognormal(600,600),output=lognormal(200,150),prefix=2000,groups=8", 4, 400_000, "", nil},
	{"agents", "agents: 3 prompts of 4k, 1 to 4 calls at once", "rate=5,turns=uniform(1,6),branch=uniform(1,4),think=1s,duration=150s,input=lognormal(1500,2500),output=lognormal(80,80),prefix=4000,groups=3", 4, 400_000, "", nil},
	{"documents", "documents: 60 of 12k, Zipf 1, few fit", "rate=30,duration=150s,input=lognormal(300,300),output=lognormal(150,100),prefix=lognormal(12000,6000),groups=60,zipf=1", 4, 150_000, "", nil},
	{"unshared", "nothing shared", "rate=32,duration=150s,input=lognormal(1500,2000),output=lognormal(200,200)", 4, 400_000, "", nil},
	{"uneven", "documents on engines with caches of 75k, 75k, 300k and 300k", "rate=30,duration=150s,input=lognormal(300,300),output=lognormal(150,100),prefix=lognormal(12000,6000),groups=60,zipf=1", 4, 150_000, "", []int{75_000, 75_000, 300_000, 300_000}},
	{"chat-h100", "chat on Llama 3.1 8B, H100: 12 system prompts of 3k", "rate=12,turns=uniform(1,8),think=5s,duration=150s,input=lognormal(900,900),output=lognormal(200,150),prefix=3000,groups=12", 4, 467_280, "llama-3.1-8b-h100", nil},
}

type setting struct {
	utilisation float64
	gateways    int
	age         time.Duration
	stamps      bool
}

// settings are not the full grid. They have every utilisation with one gateway that sees
// everything, and a few cells with several gateways, with ages and without stamps.
var settings = []setting{
	{0.5, 1, 0, true}, {0.5, 4, 100 * time.Millisecond, false}, {0.8, 1, 0, true}, {0.95, 1, 0, true}, {1.1, 1, 0, true},
	{0.8, 1, 0, false}, {0.5, 2, time.Second, false}, {0.5, 2, 10 * time.Millisecond, false}, {0.5, 4, time.Second, false},
}

// ask has the choices of the command line.
type ask struct {
	seeds    int
	trace    string
	requests int                   // of the trace; 0 is all
	only     func(key string) bool // the cells
	asked    string                // as on the command line
	field    field
	first    uint64 // seed
}

// field has the policies that are compared: ours must beat the best of the rivals.
type field struct {
	ours   string
	rivals []string
	beside []string // run as well, but are no rivals
}

// pushed has every policy as it is published: a request goes to an engine at once.
func pushed() field { return field{ours: "cost", rivals: others()} }

// behind has cost behind the queue, and the references both ways.
func behind() field {
	f := field{ours: fleetsim.WithQueue("cost"), rivals: others(), beside: []string{"cost"}}
	for _, name := range others() {
		f.rivals = append(f.rivals, fleetsim.WithQueue(name))
	}
	return f
}

func main() {
	out := flag.String("o", "", "write the table there as well")
	trace := flag.String("trace", "", "also replay this trace (8 engines, KV 400,000 tokens)")
	requests := flag.Int("trace-requests", 0, "only so many of its requests")
	quick := flag.Int("quick", 0, "only so many of the settings")
	only := flag.String("only", "", "only the cells whose keys match, as in 'chat 0.95|documents'; a key is WORKLOAD UTILISATION GATEWAYS AGE STAMPS")
	ablations := flag.Bool("ablations", false, "compare cost with its ablations, and with no reference")
	queued := flag.Bool("queue", false, "have cost behind the queue, beside each reference as published and behind the queue")
	divide := flag.Bool("pairs", false, "hold cost on fleets of prefill and decode engines against always and never dividing a request; a key is ENGINES FLEET WORKLOAD UTILISATION STAMPS")
	first := flag.Uint64("first-seed", 1, "with -pairs: the first seed")
	seeds := flag.Int("seeds", 3, "seeds of arrivals, lengths and ties")
	part := flag.String("check", "", "run the cells of this file, and fail where cost has got worse than there; with -only those of its cells")
	accept := flag.Bool("accept", false, "with -check: write what was found there")
	flag.Parse()
	some, err := regexp.Compile(*only)
	if err != nil {
		fail(fmt.Errorf("-only: %w", err))
	}
	a := ask{seeds: *seeds, trace: *trace, requests: *requests, only: some.MatchString, asked: *only, first: *first}
	if *quick > 0 {
		settings = settings[:min(*quick, len(settings))]
	}
	if *part != "" {
		if err := check(os.Stdout, *part, some, *accept); err != nil {
			fail(err)
		}
		return
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
	write, field := table, pushed()
	if *queued {
		field = behind()
	}
	a.field = field
	switch {
	case *divide:
		write = pairs
	case *ablations:
		write = ablated
	}
	if err := write(w, a); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "routing:", err)
	os.Exit(1)
}

// others returns the references, and weir's policies besides cost and session.
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

// figures are the compared figures. A smaller value is better in each.
var figures = []struct {
	name string
	of   func(r *fleetsim.Report) float64
	atMS float64 // a difference must exceed this, besides 5 %
}{
	{"TTFT p50", func(r *fleetsim.Report) float64 { return r.TTFT.P50 }, 1},
	{"TTFT p99", func(r *fleetsim.Report) float64 { return r.TTFT.P99 }, 1},
	{"goodput", func(r *fleetsim.Report) float64 { return -r.Goodput }, 0},
}

// cell is a workload in a setting, and its runs, by policy.
type cell struct {
	*load
	*setting
	field
	runs map[string][]*fleetsim.Report
}

// key names the cell on a command line and in a file.
func (c *cell) key() string {
	return fmt.Sprintf("%s %g %d %v %v", c.load.key, c.utilisation, c.gateways, c.age, c.stamps)
}

// cells calls do with each cell that a chooses.
func cells(a ask, policies func(seed int, runs map[string][]*fleetsim.Report) []string, do func(c *cell)) error {
	all := loads
	if a.trace != "" {
		all = append(all, load{key: "trace", name: "trace " + a.trace[strings.LastIndex(a.trace, "/")+1:], engines: 8, kv: 400_000})
	}
	for i := range all {
		l := &all[i]
		var wanted []*cell
		for i := range settings {
			c := &cell{l, &settings[i], a.field, map[string][]*fleetsim.Report{}}
			if l.settings == "" && !(c.gateways == 1 && c.utilisation == 0.8) || !a.only(c.key()) {
				continue
			}
			wanted = append(wanted, c)
		}
		if len(wanted) == 0 {
			continue
		}
		plans := make([]*fleetsim.Plan, a.seeds)
		for i := range plans {
			var err error
			if l.settings != "" {
				plans[i], err = fleetsim.NewSessions(l.settings, uint64(i+1))
			} else {
				plans[i], err = fromTrace(a.trace, a.requests, uint64(i+1))
			}
			if err != nil {
				return err
			}
		}
		o := fleetsim.Options{Engine: sim.Options{KVTokens: l.kv}, Engines: make([]fleetsim.Engine, l.engines)}
		for i, tokens := range l.caches {
			o.Engines[i].KVTokens = tokens
		}
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
		for _, c := range wanted {
			for i, p := range plans {
				o.Plan, o.Seed, o.Speed, o.Gateways, o.Age, o.Stamps = p, uint64(i+1), full*c.utilisation, c.gateways, c.age, c.stamps
				found, err := fleetsim.Compare(context.Background(), o, policies(i, c.runs))
				if err != nil {
					return err
				}
				for _, r := range append(found.Runs, found.Oracle) {
					r.Samples = fleetsim.Samples{} // they are large, and of no use here
					c.runs[r.Policy] = append(c.runs[r.Policy], r)
				}
			}
			do(c)
		}
	}
	return nil
}

// contenders is the number of references that go on after the first seed: the best ones
// in each figure.
const contenders = 2

// further returns the policies to run with a seed: all policies with the first seed, then
// ours and the references that may be the best.
func (who *field) further(seed int, runs map[string][]*fleetsim.Report) []string {
	names := append([]string{who.ours}, who.beside...)
	if seed == 0 {
		return append(names, who.rivals...)
	}
	for _, f := range figures {
		best := slices.Clone(who.rivals)
		slices.SortStableFunc(best, func(a, b string) int { return cmp.Compare(f.of(runs[a][0]), f.of(runs[b][0])) })
		names = append(names, best[:contenders]...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// captured returns NaN if the oracle reuses next to nothing.
func captured(runs, oracle []*fleetsim.Report) float64 {
	hits := func(r *fleetsim.Report) float64 { return r.HitRate }
	if mean(oracle, hits) < 0.001 {
		return math.NaN()
	}
	return mean(runs, hits) / mean(oracle, hits)
}

func maxMean(r *fleetsim.Report) float64 { return r.MaxMean }

func (s *setting) String() string {
	return fmt.Sprintf("%.2g | %d, %v | %v", s.utilisation, s.gateways, s.age, s.stamps)
}

func (l *load) String() string { return fmt.Sprintf("%s (%d x %dk KV)", l.name, l.engines, l.kv/1000) }

// verdict is one figure of a cell.
type verdict struct {
	cost, best, oracle float64
	by                 string // the policy that reached best
	lost               bool
}

// judge compares our figures with those of the best rival that ran with every seed.
func (c *cell) judge() (all []verdict) {
	for _, f := range figures {
		v := verdict{cost: mean(c.runs[c.ours], f.of), best: math.Inf(1), oracle: mean(c.runs[fleetsim.Oracle], f.of)}
		for _, name := range c.rivals {
			if len(c.runs[name]) < len(c.runs[c.ours]) {
				continue
			}
			if m := mean(c.runs[name], f.of); m < v.best {
				v.best, v.by = m, name
			}
		}
		if c.utilisation <= 1 || f.name == "goodput" {
			v.lost = worse(c.runs[c.ours], c.runs[v.by], f.of, max(0.05*math.Abs(v.best), f.atMS))
		}
		all = append(all, v)
	}
	return all
}

func table(w io.Writer, a ask) error {
	start, who, flags := time.Now(), &a.field, ""
	if len(who.beside) > 0 {
		flags = " -queue"
	}
	fmt.Fprintf(w, "# Routing, offline\n\nWritten by `go run ./bench/routing%s -seeds %d -only '%s'`. An engine takes 4.21e-7 t² + 0.0152 t + 16.5 ms for a prompt of t tokens and 6 + 0.35 n ms for a step of n decoding requests, or what its profile says. Its KV cache has the size that is named. `captured` is the cached share of prompt tokens under %[4]s, divided by the oracle's. `max/mean` is the load of the busiest engine, divided by the mean load, under %[4]s and under the oracle. Each of the other figures is given three times: under %[4]s, under the reference that is best in it, with the reference's name, and under the oracle. A figure is **lost** where it is worse than the best reference's by more than 5 %% and 1 ms, with 95 %% confidence over the seeds. At a utilisation of 1.1 only goodput is judged. Every reference runs with the first seed. With the other seeds those run that were among the best %[5]d in some figure.\n\n", flags, a.seeds, a.asked, who.ours, contenders)
	if len(who.beside) > 0 {
		fmt.Fprintf(w, "Behind the queue (`+queue`) a request waits in the gateway until an engine has room for it. The other references give each request to an engine at once, as they are published.\n\n")
	}
	fmt.Fprintln(w, "| workload | util | gateways, age | stamps | captured | max/mean | TTFT p50 ms | TTFT p99 ms | goodput /s | |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|---|---|")
	product, good, count, lost := map[string][3]float64{}, map[string]int{}, 0, 0
	names := append(slices.Clone(who.beside), who.rivals...)
	err := cells(a, who.further, func(c *cell) {
		cost, oracle := c.runs[who.ours], c.runs[fleetsim.Oracle]
		row := fmt.Sprintf("| %v | %v | %s | %.2f, %.2f |", c.load, c.setting, portion(captured(cost, oracle)), mean(cost, maxMean), mean(oracle, maxMean))
		var verdicts []string
		for k, v := range c.judge() {
			row += fmt.Sprintf(" %.4g, %.4g %s, %.4g |", math.Abs(v.cost), math.Abs(v.best), v.by, math.Abs(v.oracle))
			if v.lost {
				verdicts = append(verdicts, "**lost** "+figures[k].name)
				lost++
			}
			for _, name := range names {
				p := product[name]
				q := math.Log(math.Abs(figures[k].of(cost[0])) / math.Abs(figures[k].of(c.runs[name][0])))
				if figures[k].name == "goodput" {
					if math.IsInf(q, 0) || math.IsNaN(q) {
						continue
					}
					good[name]++
				}
				p[k] += q
				product[name] = p
			}
		}
		count++
		fmt.Fprintf(w, "%s %s |\n", row, strings.Join(verdicts, ", "))
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%d cells, %d figures lost; %.0f s.\n\nThe next table divides each figure of %s by that of a reference. It gives the geometric mean of the quotients over all cells, of the first seed. A quotient below 1 is good for TTFT, and one above 1 for goodput. Cells in which either has no goodput are left out of its mean.\n\n| reference | TTFT p50 | TTFT p99 | goodput |\n|---|---|---|---|\n", count, lost, time.Since(start).Seconds(), who.ours)
	for _, name := range names {
		p := product[name]
		n := float64(count)
		fmt.Fprintf(w, "| %s | %.3f | %.3f | %s |\n", name, math.Exp(p[0]/n), math.Exp(p[1]/n), portion(math.Exp(p[2]/float64(good[name]))))
	}
	return nil
}

// portion writes a share. A share of nothing is NaN.
func portion(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return fmt.Sprintf("%.3f", v)
}

// ablated writes cost beside its ablations.
func ablated(w io.Writer, a ask) error {
	names := []string{"cost"}
	fmt.Fprintf(w, "# Ablations of cost, offline\n\nWritten by `go run ./bench/routing -ablations` (%d seeds, cells '%s'); cells as in table.md.\n\n", a.seeds, a.asked)
	for _, a := range fleetsim.Ablations() {
		names = append(names, a.Name)
		fmt.Fprintf(w, "- `%s`: %s\n", a.Name, a.What)
	}
	fmt.Fprint(w, "\n| workload | util | gateways, age | stamps | policy | captured | max/mean | TTFT p50 ms | TTFT p99 ms | TPOT p50 ms | goodput /s |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	product, count := map[string][5]float64{}, 0
	err := cells(a, func(int, map[string][]*fleetsim.Report) []string { return names }, func(c *cell) {
		count++
		for _, name := range names {
			r, cost := c.runs[name], c.runs["cost"]
			tpot := func(r *fleetsim.Report) float64 { return r.TPOT.P50 }
			fmt.Fprintf(w, "| %v | %v | %s | %s | %.2f | %.4g | %.4g | %.4g | %.4g |\n", c.load, c.setting, name, portion(captured(r, c.runs[fleetsim.Oracle])), mean(r, maxMean),
				mean(r, figures[0].of), mean(r, figures[1].of), mean(r, tpot), -mean(r, figures[2].of))
			p := product[name]
			for i, of := range []func(*fleetsim.Report) float64{func(r *fleetsim.Report) float64 { return max(r.HitRate, 1e-6) }, figures[0].of, figures[1].of, tpot, figures[2].of} {
				p[i] += math.Log(mean(r, of) / mean(cost, of))
			}
			product[name] = p
		}
	})
	if err != nil || count == 0 {
		return err
	}
	fmt.Fprintf(w, "\nThe next table divides each figure of an ablation by cost's. It gives the geometric mean of the quotients over the %d cells.\n\n| policy | cached | TTFT p50 | TTFT p99 | TPOT p50 | goodput |\n|---|---|---|---|---|---|\n", count)
	for _, name := range names[1:] {
		p := product[name]
		fmt.Fprintf(w, "| `%s` |", name)
		for _, x := range p {
			fmt.Fprintf(w, " %.3f |", math.Exp(x/float64(count)))
		}
		fmt.Fprintln(w)
	}
	return nil
}

func fromTrace(name string, requests int, seed uint64) (*fleetsim.Plan, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := workload.NewTrace(f, name, "", workload.Options{Seed: seed, Requests: requests})
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

// worse reports whether a's figure is above b's by more than bound, with 95 % confidence over
// the pairs. A single pair has no interval, and its difference alone decides.
func worse(a, b []*fleetsim.Report, of func(*fleetsim.Report) float64, bound float64) bool {
	m, unsure := paired(a, b, of)
	return m-unsure > bound
}

// paired returns the mean over the pairs of a's figure minus b's, and half of its 95 %
// interval.
func paired(a, b []*fleetsim.Report, of func(*fleetsim.Report) float64) (m, half float64) {
	by := make([]float64, len(a))
	for i := range a {
		by[i] = of(a[i]) - of(b[i])
	}
	return spread(by)
}

// spread returns the mean of values, and half of its 95 % interval, which is 0 for one value.
func spread(values []float64) (m, half float64) {
	n, s := float64(len(values)), 0.0
	for _, x := range values {
		m += x / n
	}
	if len(values) < 2 {
		return m, 0
	}
	for _, x := range values {
		s += (x - m) * (x - m)
	}
	// Student's t for 95 %, two-sided.
	ts := [...]float64{12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131}
	t := ts[min(len(values)-2, len(ts)-1)]
	return m, t * math.Sqrt(s/(n-1)/n)
}
