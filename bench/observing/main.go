//go:build linux

// Command observing measures the cost of observing weir over the batched plane: it compares
// a gateway with everything on that observes it and a gateway with everything off.
//
//	go run ./bench/observing                        # 2,048 streams, 7 rounds: some 6 minutes
//	go run ./bench/observing -without otlp,scrape   # to find the costly part
//	go run ./bench/observing -each -measure 10s     # the same, each part by itself
//	go run ./bench/observing -together              # on a machine that has other work
//	go run ./bench/observing -quick                 # a smoke test of the benchmark
//
// The parts are: records in memory and in a file, spans to a collector, an access line for
// each request, the watch with its flight recorder, a scrape of /metrics each second, and the
// calls of an open page. A round is one cell with everything off and one with everything on,
// or one for each part. Each round has the opposite order of the round before, so that changes
// of the machine affect all cells alike. The load is that of bench/outputpath: streams at an
// even rate, and new requests besides, which cause the records, spans and lines. The result is
// the median of the rounds' ratios.
//
// Collector, scraper and browser are one process of the lowest priority. In a fleet they run
// on other machines; here they would take the cores that the measured processes share.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"weir/internal/lab"
	"weir/internal/lab/cell"
	"weir/internal/lab/client"
)

func main() {
	if len(os.Args) == 4 && os.Args[1] == watching {
		if err := watch(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintf(os.Stderr, "observing: %v\n", err)
			os.Exit(1)
		}
		return
	}
	lab.Main("observing", run)
}

// part is one kind of observation of weir.
type part struct {
	name string
	// on and off are the flags with and without it.
	on, off []string
	// asks are the paths that are fetched from the admin listener each second.
	asks []string
}

// parts returns all parts. dir is the gateway's folder, and collector an address.
func parts(dir, collector string) []part {
	return []part{
		{name: "records", on: []string{"--timeline", filepath.Join(dir, "timeline.jsonl")}, off: []string{"--timeline", "off"}},
		{name: "otlp", on: []string{"--otlp", "http://" + collector}},
		{name: "access", on: []string{"--access-log", "1"}},
		{name: "watch", off: []string{"--stall-threshold", "0", "--watch-streams", "0", "--watch-output-delay", "0", "--watch-queue-wait", "0", "--watch-cpu", "0"}},
		{name: "profiles", on: []string{"--profiles-dir", filepath.Join(dir, "profiles")}},
		{name: "scrape", asks: []string{"/metrics"}},
		{name: "page", asks: []string{"/live", "/engines", "/records?order=total&since=1m&limit=5&reason=1"}},
	}
}

// known returns the names of all parts.
func known() (names []string) {
	for _, p := range parts("", "") {
		names = append(names, p.name)
	}
	return names
}

// observed makes the gateway with the wanted parts on and all others off. watched starts the
// process that observes the gateway. It gets the admin listener's address and the paths to
// fetch there, and returns the collector's address.
func observed(name string, wanted func(string) bool, watched func(admin string, paths []string) (collector string, err error)) lab.Gateway {
	return lab.Gateway{Name: name, Weir: true, Args: func(b *lab.Bench, c *cell.Cell, dir, admin string) ([]string, error) {
		var paths []string
		for _, p := range parts("", "") {
			if wanted(p.name) {
				paths = append(paths, p.asks...)
			}
		}
		collector, err := watched(admin, paths)
		if err != nil {
			return nil, err
		}
		args := []string{b.Weir, "serve", "--listen", c.Gateway, "--admin-listen", admin, "--engine", "weir=" + c.Engine, "--log-level", "warn"}
		if b.Profile != "" {
			args = append(args, "--pprof")
		}
		for _, p := range parts(dir, collector) {
			if wanted(p.name) {
				args = append(args, p.on...)
			} else {
				args = append(args, p.off...)
			}
		}
		return args, nil
	}}
}

// Compared has the figures of a cell with some parts on, as ratios to the cell of the same
// round with everything off.
type Compared struct {
	Name    string
	Off, On *client.Result
	// CPU is the ratio of CPU per token, P99 that of the tokens' delay, and First that of the
	// time to the first output of new requests.
	CPU, P99, First float64
}

// variant is a kind of cell, defined by the parts that are on.
type variant struct {
	name string
	on   []string
}

// variants returns the cells of a round, the one with everything off first. without leaves
// parts off. each adds a cell for each part by itself.
func variants(without []string, each bool) []variant {
	all := slices.DeleteFunc(known(), func(name string) bool { return slices.Contains(without, name) })
	list := []variant{{name: "off"}}
	if each {
		for _, name := range all {
			list = append(list, variant{name, []string{name}})
		}
	}
	return append(list, variant{"on", all})
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("observing", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var (
		rounds  = flags.Int("n", 7, "rounds")
		each    = flags.Bool("each", false, "a cell for each part by itself besides")
		atOnce  = flags.Bool("together", false, "the cells of a round at the same time, which divide streams and new requests: their ratio is less disturbed by other work, and what costs by the second counts for more")
		streams = flags.Int("streams", 2048, "streams")
		rate    = flags.Float64("rate", 20, "tokens a second of each")
		probes  = flags.Int("probes", 400, "new requests in each window")
		measure = flags.Duration("measure", 20*time.Second, "measured window of each cell")
		without = flags.String("without", "", "parts to leave off in the cells that have the others on, comma-separated: "+strings.Join(known(), ", "))
		quick   = flags.Bool("quick", false, "a smoke test: a sixteenth of the streams, short windows, one round")
		profile = flags.String("profile", "", "folder for a CPU profile of each kind of cell, the last of its kind; profiles cost CPU")
		weir    = flags.String("weir", "", "weir's binary; built from ./cmd/weir unless given")
		out     = flags.String("json", "", "write every cell's result to this file")
	)
	if err := flags.Parse(args); err != nil {
		return err
	}
	left := strings.FieldsFunc(*without, func(r rune) bool { return r == ',' })
	for _, name := range left {
		if !slices.Contains(known(), name) {
			return fmt.Errorf("-without %q: the parts are %s", name, strings.Join(known(), ", "))
		}
	}
	load := cell.Load{Name: "spread", Streams: *streams, Rate: *rate, Spread: true, Probes: *probes}
	times := cell.Times{Warm: 3 * time.Second, Measure: *measure, Tail: time.Second, Drain: 20 * time.Second}
	if *quick {
		load.Streams, load.Probes, *rounds = load.Streams/16, load.Probes/20, 1
		times = cell.Times{Warm: 500 * time.Millisecond, Measure: 2 * time.Second, Tail: 500 * time.Millisecond, Drain: 10 * time.Second}
	}
	b, clean, err := prepare(ctx, *weir, times, stderr)
	if err != nil {
		return err
	}
	defer clean()
	if b.Profile = *profile; b.Profile != "" {
		if err := os.MkdirAll(b.Profile, 0o755); err != nil {
			return err
		}
	}
	kinds, spans := variants(left, *each), 0
	if *atOnce {
		load.Streams, load.Probes = load.Streams/len(kinds), load.Probes/len(kinds)
	}
	cellOf := func(v variant) (*client.Result, int, error) {
		w := &watcher{self: b.Self}
		defer w.stop()
		g := observed(v.name, func(name string) bool { return slices.Contains(v.on, name) }, w.start)
		r := b.Cell(ctx, load, g)
		fmt.Fprintln(stderr, lab.Line(r))
		if r.Failed != "" || r.Lost > 0 || r.Wrong > 0 || r.Errors > 0 {
			return nil, 0, cmp.Or(ctx.Err(), fmt.Errorf("a cell went wrong: %s", lab.Line(r)))
		}
		spans := w.stop()
		if slices.Contains(v.on, "otlp") && spans == 0 {
			return nil, 0, errors.New("the collector was sent nothing")
		}
		return r, spans, nil
	}
	var all []Compared
	for i := range *rounds {
		round := slices.Clone(kinds)
		if i%2 == 1 {
			slices.Reverse(round)
		}
		results, failed := map[string]*client.Result{}, error(nil)
		var mu sync.Mutex
		var cells sync.WaitGroup
		for _, v := range round {
			cells.Go(func() {
				r, n, err := cellOf(v)
				mu.Lock()
				defer mu.Unlock()
				results[v.name], spans, failed = r, spans+n, cmp.Or(failed, err)
			})
			if *atOnce {
				continue
			}
			if cells.Wait(); failed != nil {
				return failed
			}
		}
		if cells.Wait(); failed != nil {
			return failed
		}
		off := results[kinds[0].name]
		for _, v := range kinds[1:] {
			on := results[v.name]
			c := Compared{Name: v.name, Off: off, On: on, CPU: on.CPUPerMega / off.CPUPerMega, P99: on.P99 / off.P99, First: on.ProbeFirst.P99 / off.ProbeFirst.P99}
			all = append(all, c)
			fmt.Fprintf(stdout, "round %d, %s: CPU a token %.3f (%.2f of %.2f CPU s/M), p99 of the delay %.3f (%.2f of %.2f ms), of first outputs %.3f (%.2f of %.2f ms); others had %.2f and %.2f CPUs\n",
				i+1, v.name, c.CPU, on.CPUPerMega, off.CPUPerMega, c.P99, on.P99, off.P99, c.First, on.ProbeFirst.P99, off.ProbeFirst.P99,
				on.OtherCPU/times.Measure.Seconds(), off.OtherCPU/times.Measure.Seconds())
		}
	}
	if err := lab.WriteJSON(*out, all); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "beside everything off, %d streams each, medians of %d rounds and their range:\n", load.Streams, *rounds)
	for _, v := range kinds[1:] {
		of := slices.DeleteFunc(slices.Clone(all), func(c Compared) bool { return c.Name != v.name })
		fmt.Fprintf(stdout, "%s (%s): CPU a token %s, p99 of the delay %s, of first outputs %s\n", v.name, strings.Join(v.on, ", "),
			spread(of, func(c *Compared) float64 { return c.CPU }), spread(of, func(c *Compared) float64 { return c.P99 }), spread(of, func(c *Compared) float64 { return c.First }))
	}
	fmt.Fprintf(stdout, "the collector took %d spans\n", spans)
	return nil
}

// spread returns the median of a figure and its range.
func spread(all []Compared, of func(*Compared) float64) string {
	values := make([]float64, len(all))
	for i := range all {
		values[i] = of(&all[i])
	}
	return fmt.Sprintf("%.3f (%.3f to %.3f)", lab.Median(values), slices.Min(values), slices.Max(values))
}

// prepare makes the bench that the cells need; clean removes it.
func prepare(ctx context.Context, weir string, times cell.Times, stderr io.Writer) (b *lab.Bench, clean func(), err error) {
	if _, err := lab.RaiseFiles(); err != nil {
		return nil, nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "observing")
	if err != nil {
		return nil, nil, err
	}
	clean = func() { os.RemoveAll(dir) }
	b = &lab.Bench{Self: []string{self}, Dir: dir, Weir: cmp.Or(weir, filepath.Join(dir, "weir")), Times: times, Log: stderr}
	if weir != "" {
		return b, clean, nil
	}
	if err := lab.Build(ctx, b.Weir, stderr); err != nil {
		clean()
		return nil, nil, err
	}
	return b, clean, nil
}
