//go:build linux

// Command pairs measures the cost of weir between clients and pairs of simulated engines, a
// prefill engine and a decode engine. It compares weir with the same engines and no gateway
// (the client sends both halves itself, as SGLang's mini load balancer does), with nginx
// before the decode engine, and with weir before one engine that serves whole requests.
// docs/bench/pairs.md has the figures.
//
//	go run ./bench/pairs                    # all loads, medians of 3
//	go run ./bench/pairs -loads short,ordinary -n 12 -warm 1s -measure 3s
//	go run ./bench/pairs -quick             # a smoke test of the benchmark
//
// Engines, gateway and nginx are processes of their own. The client (internal/load) is this
// process. All rows of a load are started once. Their windows come in turn, each repeat in the
// opposite order of the repeat before. Rows that leave most of the machine idle have their
// windows at the same time. So changes of the machine affect all rows alike, and a ratio
// compares two neighbouring windows. Single windows cannot be compared: a gateway's CPU time
// differs by half between them, even on a virtual machine that has nothing else to do. The CPU
// time of a gateway is read at both ends of a window, which begins when the load has been under
// way for a while. Every stream is verified word by word, and each engine must have nothing
// left at the end of a window.
package main

import (
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
	"weir/internal/lab/proc"
)

func main() { lab.Main("pairs", run) }

// spec is a load.
type spec struct {
	Name string
	// Streams is the size of a closed loop, Rate the requests a second of an open one.
	Streams int
	Rate    float64
	// Input is the length of prompts and Output are the lengths of answers, in the words of a
	// synthetic workload.
	Input  int
	Output string
	// Prefill and Decode are the durations of an engine's step, Transfer that of moving KV.
	Prefill, Decode, Transfer time.Duration
	Wires                     []string
	Rows                      []string
	// Together has the rows' windows at the same time instead of in turn, because the rows use
	// a small part of the machine.
	Together bool
}

// The rows of a load differ in what is between client and engines.
const (
	direct = "no gateway"
	proxy  = "nginx"
	pair   = "weir"
	one    = "weir, one engine"

	barePair = "bare relay"
	bareOne  = "bare relay, one engine"
)

// rows are the rows of a load over a wire. Over vLLM's pull a pair's exchanges come one after
// the other, and bare relays show what those alone cost.
func (s *spec) rows(wire string) []string {
	if s.Together && wire == pulled {
		return slices.Concat(s.Rows, []string{bareOne, barePair})
	}
	return s.Rows
}

// specs returns the loads. Paced loads leave the machine idle for two fifths of the time or more.
func specs() []spec {
	forms := []string{incremental, cumulative}
	paced := func(streams int) spec {
		return spec{Name: fmt.Sprintf("paced %d", streams), Streams: streams, Input: 32, Output: "uniform(32,224)", Prefill: 5 * time.Millisecond,
			Decode: time.Duration(streams) * time.Second / pacedRate, Transfer: time.Millisecond, Wires: forms, Rows: []string{direct, pair}}
	}
	return []spec{
		paced(2048), paced(4096),
		{Name: "flat out", Streams: 2048, Input: 32, Output: "uniform(32,224)", Prefill: time.Millisecond, Decode: time.Millisecond, Wires: forms, Rows: []string{proxy, pair}},
		{Name: "first token", Rate: 60, Input: 32, Output: "64", Prefill: 20 * time.Millisecond, Decode: 20 * time.Millisecond, Transfer: 5 * time.Millisecond, Wires: forms, Rows: []string{direct, pair}},
		{Name: "short", Rate: 300, Input: 32, Output: "4", Prefill: 2 * time.Millisecond, Decode: 5 * time.Millisecond, Wires: wires(), Rows: []string{one, pair}, Together: true},
		{Name: "ordinary", Rate: 30, Input: 1000, Output: "128", Prefill: 10 * time.Millisecond, Decode: 10 * time.Millisecond, Transfer: 5 * time.Millisecond, Wires: wires(), Rows: []string{one, pair}, Together: true},
		{Name: "long", Rate: 30, Input: 32, Output: "256", Prefill: 2 * time.Millisecond, Decode: 10 * time.Millisecond, Wires: wires(), Rows: []string{one, pair}, Together: true},
	}
}

// pacedRate is the number of tokens a second of all streams of a paced load together.
const pacedRate = 12_000

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == bareArgument {
		return serveBare(ctx, args[1:], stdout, stderr)
	}
	flags := flag.NewFlagSet("pairs", flag.ContinueOnError)
	flags.SetOutput(stderr)
	b := bencher{times: times{Warm: 4 * time.Second, Measure: 8 * time.Second}, log: stderr}
	var (
		repeats = flags.Int("n", 3, "repeats; the tables show medians")
		only    = flags.String("loads", "", "loads to run, comma-separated; all unless given")
		wires   = flags.String("wires", "", "wires to run, comma-separated; all of each load unless given")
		small   = flags.Bool("quick", false, "a smoke test: a sixteenth of the streams, short windows, no repeats")
		out     = flags.String("json", "", "write every row's result to this file")
	)
	flags.DurationVar(&b.times.Warm, "warm", b.times.Warm, "time before the window")
	flags.DurationVar(&b.times.Measure, "measure", b.times.Measure, "the window of each row")
	flags.StringVar(&b.weir, "weir", "", "weir's binary; built from ./cmd/weir unless given")
	flags.StringVar(&b.profile, "profile", "", "write CPU profiles of weir to this folder (costs some CPU)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := choose(*only, *wires)
	if err != nil {
		return err
	}
	if *small {
		*repeats, b.times = 1, times{Warm: time.Second, Measure: 2 * time.Second}
		for i := range chosen {
			chosen[i].Streams /= 16
			chosen[i].Rate /= 4
		}
	}
	if _, err := lab.RaiseFiles(); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "pairs"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	if b.weir == "" {
		b.weir = filepath.Join(b.dir, "weir")
		if err := lab.Build(ctx, b.weir, stderr); err != nil {
			return err
		}
	}
	if b.verify, err = words(); err != nil {
		return err
	}
	results, err := b.all(ctx, chosen, *repeats)
	if err := errors.Join(err, lab.WriteJSON(*out, results)); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s; medians of %d windows of %v\n", proc.Machine(), *repeats, b.times.Measure)
	print(stdout, results)
	return judge(results)
}

// choose finds the loads and wires that comma-separated lists name. An empty list means all.
func choose(only, wires string) (chosen []spec, err error) {
	var known []string
	for _, s := range specs() {
		known = append(known, s.Name)
		if only != "" && !slices.Contains(strings.Split(only, ","), s.Name) {
			continue
		}
		if wires != "" {
			s.Wires = slices.DeleteFunc(s.Wires, func(w string) bool { return !slices.Contains(strings.Split(wires, ","), w) })
		}
		if len(s.Wires) > 0 {
			chosen = append(chosen, s)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("-loads %q -wires %q: the loads are %s", only, wires, strings.Join(known, ", "))
	}
	return chosen, nil
}

// all measures the loads over each of their wires.
func (b *bencher) all(ctx context.Context, loads []spec, repeats int) (results []*result, err error) {
	for _, s := range loads {
		for _, wire := range s.Wires {
			of, err := b.load(ctx, &s, wire, repeats)
			results = append(results, of...)
			if err != nil {
				return results, fmt.Errorf("%s, %s, %w", s.Name, wire, err)
			}
		}
	}
	return results, nil
}

// load measures every row of a load.
func (b *bencher) load(ctx context.Context, s *spec, wire string, repeats int) (results []*result, err error) {
	var rows []*row
	defer func() {
		for _, r := range rows {
			r.stop()
		}
	}()
	for _, name := range s.rows(wire) {
		r, err := b.start(ctx, s, wire, name)
		rows = append(rows, r)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	turns := make([][]*row, 0, len(rows))
	for _, r := range rows {
		turns = append(turns, []*row{r})
	}
	if s.Together {
		turns = [][]*row{rows}
	}
	for i := range repeats {
		for _, turn := range turns {
			of, err := together(ctx, turn, i+1)
			if err != nil {
				return results, err
			}
			for _, r := range of {
				fmt.Fprintf(b.log, "%d/%d %s\n", i+1, repeats, r)
			}
			results = append(results, of...)
		}
		slices.Reverse(turns)
	}
	return results, nil
}

// together measures one window of some rows, at the same time.
func together(ctx context.Context, rows []*row, repeat int) ([]*result, error) {
	results, errs := make([]*result, len(rows)), make([]error, len(rows))
	var all sync.WaitGroup
	for i, r := range rows {
		all.Go(func() { results[i], errs[i] = r.measure(ctx, repeat) })
	}
	all.Wait()
	ours := 0.0
	for i, r := range rows {
		if errs[i] != nil {
			return nil, fmt.Errorf("%s: %w", r.name, errs[i])
		}
		ours += (results[i].Gateway + results[i].Engines) / results[i].seconds
	}
	for _, r := range results { // the other rows do not count as other processes
		r.Others -= ours - (r.Gateway+r.Engines)/r.seconds
	}
	return results, nil
}
