//go:build linux

// Command accuracy measures the error of weir bench, against an engine of known
// times: at 100, 500 and 1000 streams, at 500 requests a second, and at 10,000
// streams. It also measures how many events a second one core takes.
// docs/bench/accuracy.md describes the method.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"weir/internal/lab"
	"weir/internal/lab/calibrate"
	"weir/internal/lab/proc"
	"weir/internal/load"
)

func main() { lab.Main("accuracy", run) }

// cell is one load of the matrix.
type cell struct {
	Name string
	o    calibrate.Options
}

// cells returns the matrix. TTFT is 50 ms and ITL is 10 ms unless a cell sets them.
func cells() []cell {
	closed := func(streams, tokens int) calibrate.Options {
		return calibrate.Options{Streams: streams, Requests: 2 * streams, Tokens: tokens}
	}
	delayed := func(o calibrate.Options) calibrate.Options {
		o.DelayAcks = true
		return o
	}
	return []cell{
		{"100 streams", closed(100, 400)},
		{"500 streams", closed(500, 400)},
		{"1000 streams", closed(1000, 400)},
		{"1000, delayed acks", delayed(closed(1000, 400))},
		{"1000 at 50/s", calibrate.Options{Streams: 1000, Requests: 2000, Tokens: 200, ITL: 20 * time.Millisecond}},
		{"500 requests/s", calibrate.Options{Rate: 500, Requests: 4000, Tokens: 20}},
		{"10000 streams", calibrate.Options{Streams: 10000, Requests: 10000, Tokens: 60, TTFT: 2 * time.Second, ITL: 200 * time.Millisecond}},
	}
}

// Result is one cell's outcome.
type Result struct {
	Cell   string
	Repeat int
	Failed string `json:",omitempty"`
	// Others is the work of all processes but engine and generator, in CPUs.
	Others float64
	*load.Calibration
}

// Baseline is the document that -json writes.
type Baseline struct {
	Machine string
	Started time.Time
	Results []Result
	Peers   []*Peer `json:",omitempty"`
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("accuracy", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var (
		repeats = flags.Int("n", 3, "repeats of each cell")
		only    = flags.String("cells", "", "cells to run, comma-separated; all unless given")
		small   = flags.Bool("quick", false, "a smoke test of the benchmark itself: a twentieth of the streams, once")
		out     = flags.String("json", "", "write every cell's result to this file")
		python  = flags.String("python", "", "an interpreter with SGLang's load generator (interop/engines/requirements.txt): it then runs the closed loops of up to 1000 streams too")
		profile = flags.String("profile", "", "write a CPU profile of the generator to this file")
	)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if _, err := lab.RaiseFiles(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	chosen, err := choose(*only)
	if err != nil {
		return err
	}
	if *small {
		*repeats = 1
	}
	if *profile != "" {
		f, err := os.Create(*profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	b := Baseline{Machine: proc.Machine(), Started: time.Now()}
	fmt.Fprintf(stdout, "%s\n\n%s\n", b.Machine, header)
	for i := range *repeats {
		for _, c := range chosen {
			if *small {
				c.o = quick(c.o)
			}
			c.o.Self, c.o.Seed = []string{self}, uint64(i+1)
			r := measure(ctx, c)
			r.Repeat = i + 1
			b.Results = append(b.Results, r)
			fmt.Fprintln(stdout, line(&r))
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
	if *python != "" {
		if err := peers(ctx, &b, *python, chosen, *small, self, stdout); err != nil {
			return err
		}
	}
	if err := lab.WriteJSON(*out, b); err != nil {
		return err
	}
	return judge(b.Results)
}

// mostPeerStreams is the largest number of streams that a peer runs.
const mostPeerStreams = 1000

// peers runs the same cells with a published tool. It comes after our own cells, so
// that nothing of the tool runs while ours are measured.
func peers(ctx context.Context, b *Baseline, python string, chosen []cell, small bool, self string, stdout io.Writer) error {
	tokenizer, err := filepath.Abs("models/weir-sim")
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "\n%s\n", peerHeader)
	for _, c := range chosen {
		if small {
			c.o = quick(c.o)
		}
		if c.o.Streams > mostPeerStreams {
			continue
		}
		c.o.Self = []string{self}
		p, err := sglang(ctx, python, tokenizer, c)
		if err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
		if p == nil {
			continue
		}
		b.Peers = append(b.Peers, p)
		fmt.Fprintln(stdout, peerLine(p))
	}
	return nil
}

// quick makes a cell small enough for a test of the benchmark.
func quick(o calibrate.Options) calibrate.Options {
	o.Streams, o.Rate, o.Requests, o.Tokens = o.Streams/20, o.Rate/20, max(20, o.Requests/20), min(o.Tokens, 20)
	o.TTFT, o.ITL = min(o.TTFT, 100*time.Millisecond), min(o.ITL, 10*time.Millisecond)
	return o
}

func choose(only string) ([]cell, error) {
	var out []cell
	var known []string
	for _, c := range cells() {
		known = append(known, c.Name)
		if only == "" || slices.Contains(strings.Split(only, ","), c.Name) {
			out = append(out, c)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("-cells %q: the cells are %s", only, strings.Join(known, ", "))
	}
	return out, nil
}

func measure(ctx context.Context, c cell) Result {
	r := Result{Cell: c.Name}
	before, err := proc.MachineCPU()
	if err == nil {
		started := time.Now()
		if r.Calibration, err = calibrate.Run(ctx, c.o); err == nil {
			var after float64
			if after, err = proc.MachineCPU(); err == nil {
				took := time.Since(started).Seconds()
				own := (r.EngineCPU + r.CPUShare*float64(r.Cores)) * r.Elapsed
				r.Others = max(0, after-before-own) / took
			}
		}
	}
	if err != nil {
		r.Failed = err.Error()
	}
	return r
}

const header = "                           events     TTFT error ms       ITL error ms        slip    read late     us per  generator  engine            together unknown  others\n" +
	"cell                n         /s     p50     p99     max   sigma     p99   p99 ms   p99 ms      event       CPUs    CPUs  late p99        %       %    CPUs"

func line(r *Result) string {
	if r.Failed != "" {
		return fmt.Sprintf("%-18s %2d  failed: %s", r.Cell, r.Repeat, r.Failed)
	}
	of := func(events int64) float64 { return 100 * float64(events) / max(1, float64(r.Requests*r.Tokens)) }
	slip := "-"
	if r.Slip != nil {
		slip = fmt.Sprintf("%.3f", float64(r.Slip.P99))
	}
	return fmt.Sprintf("%-18s %2d  %9.0f %7.3f %7.3f %7.3f %7.3f %7.3f  %7s  %7.3f    %7.2f    %7.2f %7.2f  %8.3f  %7.2f %7.2f  %6.2f", r.Cell, r.Repeat, r.EventsPerSecond,
		r.TTFTError.P50, r.TTFTError.P99, r.TTFTError.Max, r.ITLError.Sigma, r.ITLError.P99, slip, float64(r.Receive.Late.P99), r.CPUPerEvent,
		r.CPUShare*float64(r.Cores), r.EngineCPU, r.EngineLate.P99, of(r.Receive.Together), of(r.Receive.Unknown), r.Others)
}

// judge returns an error for every failure that a slow machine does not explain.
func judge(results []Result) error {
	for i := range results {
		r := &results[i]
		switch {
		case r.Failed != "":
			return fmt.Errorf("%s: %s", r.Cell, r.Failed)
		case r.Complete != r.Requests || r.Unknown > 0:
			return fmt.Errorf("%s: %d of %d requests complete, %d tokens without a time", r.Cell, r.Complete, r.Requests, r.Unknown)
		}
	}
	return nil
}
