//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "outputpath:", err)
		os.Exit(1)
	}
}

// roles are what a child of a run can be.
func roles() map[string]func(*Cell) error {
	return map[string]func(*Cell) error{
		"engine-relay":         runRelayEngine,
		"engine-plane":         runPlaneEngine,
		"gateway-reverseproxy": runReverseProxy,
		"gateway-latest":       func(c *Cell) error { return runControl(c, true) },
		"gateway-single":       func(c *Cell) error { return runControl(c, false) },
		"client": func(c *Cell) error {
			r, err := runClient(c)
			if err != nil {
				return err
			}
			return json.NewEncoder(os.Stdout).Encode(r)
		},
	}
}

func run(args []string) error {
	if err := raiseFiles(); err != nil {
		return err
	}
	if len(args) == 2 {
		if role := roles()[args[0]]; role != nil {
			c := new(Cell)
			if err := json.Unmarshal([]byte(args[1]), c); err != nil {
				return err
			}
			return role(c)
		}
	}
	return runAll(args)
}

// raiseFiles lets this process and its children open as many files as the
// streams of a load need; where it may not raise the limit, it takes what
// there is.
func raiseFiles() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("getrlimit: %w", err)
	}
	want := syscall.Rlimit{Cur: 65536, Max: max(65536, limit.Max)}
	if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &want) == nil {
		return nil
	}
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("setrlimit: %w", err)
	}
	return nil
}

// loads are the loads of a full run.
func loads() []Load {
	return []Load{
		{Name: "spread", Streams: 2048, Rate: 20, Spread: true},
		{Name: "burst", Streams: 4096, Rate: 20},
		{Name: "founding", Streams: 4096, Rate: 33, Probes: 400},
		{Name: "flat out", Streams: 512},
		{Name: "idle", Streams: 9000, Idle: true},
	}
}

// quick makes a load small enough for a smoke test of the benchmark itself.
func quick(l Load) Load {
	l.Probes /= 20
	if l.Rate > 0 || l.Idle {
		l.Streams /= 16
	}
	return l
}

// forGateway adapts a load to a gateway: an engine on the plane has no
// connection per stream that could slow it down, so "as fast as possible" is a
// rate above what anything here carries.
func forGateway(l Load, g Gateway) Load {
	if g.Relayed {
		return l
	}
	switch {
	case l.Idle:
		l.Streams = l.Streams * 10 / 9
	case l.Rate == 0:
		l.Rate = 1000
	}
	return l
}

func runAll(args []string) error {
	flags := flag.NewFlagSet("outputpath", flag.ContinueOnError)
	var (
		repeats = flags.Int("n", 3, "repeats; the table shows medians")
		retries = flags.Int("retries", 2, "times a cell is measured anew when other processes took more than a tenth of a CPU")
		small   = flags.Bool("quick", false, "a smoke test: a sixteenth of the streams where they have a rate, short windows, no repeats")
		measure = flags.Duration("measure", 10*time.Second, "measured window of each cell")
		warm    = flags.Duration("warm", 3*time.Second, "time before the window")
		only    = flags.String("loads", "", "loads to run, comma-separated; all unless given")
		who     = flags.String("gateways", "", "gateways to run, comma-separated; all unless given")
		weir    = flags.String("weir", "", "weir's binary; built from ./cmd/weir unless given")
		out     = flags.String("json", "", "write every cell's result to this file")
		profile = flags.String("profile", "", "write CPU profiles of weir to this folder (costs some CPU)")
	)
	if err := flags.Parse(args); err != nil {
		return err
	}
	b := &bench{weir: *weir, profile: *profile, retries: *retries, log: os.Stderr,
		times: Times{Warm: *warm, Measure: *measure, Tail: time.Second, Drain: 20 * time.Second}}
	if *small {
		*repeats, b.times = 1, Times{Warm: 500 * time.Millisecond, Measure: 2 * time.Second, Tail: 500 * time.Millisecond, Drain: 10 * time.Second}
	}
	run, err := choose(*only, *who)
	if err != nil {
		return err
	}
	if *small {
		for i := range run.loads {
			run.loads[i] = quick(run.loads[i])
		}
	}
	if err := b.prepare(); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	results := b.runCells(run, *repeats)
	medians := mediansOf(results)
	printTables(os.Stdout, medians, *repeats, b.times.Measure)
	if *out != "" {
		data, err := json.MarshalIndent(results, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(*out, append(data, '\n'), 0o644); err != nil {
			return err
		}
	}
	problems := judge(results)
	for _, p := range problems {
		fmt.Println("FAIL:", p)
	}
	if len(problems) > 0 {
		return errors.New("the run failed")
	}
	return nil
}

// selection is what to run.
type selection struct {
	loads    []Load
	gateways []Gateway
}

func choose(only, who string) (selection, error) {
	var s selection
	var known []string
	for _, l := range loads() {
		known = append(known, l.Name)
		if named(only, l.Name) {
			s.loads = append(s.loads, l)
		}
	}
	if len(s.loads) == 0 {
		return s, fmt.Errorf("-loads %q: the loads are %s", only, strings.Join(known, ", "))
	}
	known = nil
	for _, g := range gateways() {
		known = append(known, g.Name)
		if named(who, g.Name) {
			s.gateways = append(s.gateways, g)
		}
	}
	if len(s.gateways) == 0 {
		return s, fmt.Errorf("-gateways %q: the gateways are %s", who, strings.Join(known, ", "))
	}
	return s, nil
}

// named says whether a comma-separated list has a name; the empty list has all.
func named(list, name string) bool {
	return list == "" || slices.Contains(strings.Split(list, ","), name)
}

// prepare finds or builds what the run needs.
func (b *bench) prepare() error {
	var err error
	if b.self, err = os.Executable(); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "outputpath"); err != nil {
		return err
	}
	if b.profile != "" {
		if err := os.MkdirAll(b.profile, 0o755); err != nil {
			return err
		}
	}
	if b.weir != "" {
		return nil
	}
	b.weir = filepath.Join(b.dir, "weir")
	build := exec.Command("go", "build", "-o", b.weir, "weir/cmd/weir")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build weir: %w", err)
	}
	return nil
}

// runCells runs every cell, the gateways of a load one after the other in each
// repeat, so that what changes on the machine touches all alike.
func (b *bench) runCells(s selection, repeats int) []*Result {
	var results []*Result
	for i := range repeats {
		for _, l := range s.loads {
			for _, g := range s.gateways {
				if g.Control && l.Idle {
					continue // there is nothing to get wrong
				}
				r := b.cell(forGateway(l, g), g)
				results = append(results, r)
				fmt.Fprintf(b.log, "%d/%d %s\n", i+1, repeats, r.line())
			}
		}
	}
	return results
}
