//go:build linux

// Command scale prints what weir costs on this machine beside what the cost model of
// docs/scale.md predicts, and predicts what another machine takes.
//
//	go run ./bench/scale                                     # measures; some four minutes
//	go run ./bench/scale -streams 20000 -wires plane         # at another size
//	go run ./bench/scale -predict -cores 64 -streams 100000  # measures nothing
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"weir/internal/lab"
	"weir/internal/lab/proc"
)

func main() { lab.Main("scale", run) }

// idleWanted bounds the memory of an idle stream of HTTP/1.1, in bytes.
const idleWanted = 10e3

// bencher measures.
type bencher struct {
	weir    string   // the binary
	self    []string // this program
	dir     string
	profile string // a folder for heap profiles; empty: none
	cores   int
	log     io.Writer
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("scale", flag.ContinueOnError)
	flags.SetOutput(stderr)
	b := &bencher{log: stderr, cores: runtime.GOMAXPROCS(0)}
	l := load{Memory: 64e9}
	var (
		predict = flags.Bool("predict", false, "predict, and measure nothing")
		idle    = flags.Int("idle", 9000, "idle streams of which the memory is measured; 0: none")
		only    = flags.String("wires", "relay,plane,sglang", "wires to engines: "+strings.Join(wires(), ", "))
		askedBy = flags.String("clients", strings.Join(clients(), ","), "clients of the idle streams")
		repeats = flags.Int("n", 1, "repeats")
		measure = flags.Duration("measure", 6*time.Second, "measured window of each load; 0: no CPU is measured")
	)
	flags.StringVar(&b.weir, "weir", "", "weir's binary; built from ./cmd/weir unless given")
	flags.StringVar(&b.profile, "profile", "", "write heap profiles of idle streams to this folder")
	flags.IntVar(&l.Cores, "cores", b.cores, "cores to predict for")
	flags.IntVar(&l.Streams, "streams", 2048, "streams that have tokens all the time, to measure and to predict for")
	flags.IntVar(&l.Engines, "engines", 16, "engines")
	flags.Float64Var(&l.Rate, "rate", 20, "tokens a second of a stream, to predict for")
	flags.Float64Var(&l.Answer, "answer", 400, "tokens of an answer, to predict for")
	flags.Float64Var(&l.Prompt, "prompt", 1000, "tokens of a prompt, to predict for")
	flags.Float64Var(&l.SeenShare, "seen", 0.5, "share of a prompt's tokens that was seen before, to predict for")
	flags.Float64Var(&l.Memory, "memory", l.Memory, "bytes of memory, to predict for")
	flags.Float64Var(&l.NIC, "nic", 25e9, "bits a second of the network, to predict for")
	flags.Float64Var(&l.Files, "files", 1<<20, "files that the process may open (ulimit -n), to predict for")
	flags.Float64Var(&l.Ports, "ports", 28_000, "ports from which connections to one engine may come, to predict for")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen := strings.Split(*only, ",")
	for _, w := range chosen {
		if !slices.Contains(wires(), w) {
			return fmt.Errorf("-wires %q: the wires are %s", w, strings.Join(wires(), ", "))
		}
	}
	for _, c := range strings.Split(*askedBy, ",") {
		if !slices.Contains(clients(), c) {
			return fmt.Errorf("-clients %q: the clients are %s", c, strings.Join(clients(), ", "))
		}
	}
	if l.Cores < 1 || l.Streams < 1 || l.Engines < 1 || l.Rate <= 0 || l.Answer < 1 || l.Prompt < 0 || l.SeenShare < 0 || l.SeenShare > 1 || l.Memory <= 0 || l.NIC <= 0 || l.Files <= 0 || l.Ports <= 0 {
		return errors.New("-cores, -streams, -engines, -rate, -answer, -memory, -nic, -files and -ports must be above 0, -prompt at least 0, and -seen between 0 and 1")
	}
	ms := slices.DeleteFunc(models(), func(m model) bool { return !slices.Contains(chosen, m.Wire) })
	if *predict {
		for _, m := range ms {
			m.print(stdout, &l)
		}
		return nil
	}
	clean, err := b.prepare(ctx)
	if err != nil {
		return err
	}
	defer clean()
	fmt.Fprintln(stdout, proc.Machine())
	var figures []figure
	for range *repeats {
		if *measure == 0 {
			break
		}
		for _, m := range ms {
			f, err := b.cells(ctx, &m, l.Streams, *measure)
			if err != nil {
				return err
			}
			figures = append(figures, f...)
			if l.Engines < fewEngines {
				continue
			}
			if f, err = b.engines(ctx, &m, l.Engines, *measure); err != nil {
				return err
			}
			figures = append(figures, f...)
		}
	}
	if len(figures) > 0 {
		printFigures(stdout, figures)
	}
	if *idle > 0 {
		return b.idle(ctx, stdout, chosen, strings.Split(*askedBy, ","), *idle, *repeats)
	}
	return nil
}

// idle measures and prints the memory of idle streams.
func (b *bencher) idle(ctx context.Context, w io.Writer, wires, clients []string, streams, repeats int) error {
	fmt.Fprintf(w, "\n| wire | client | idle streams | resident KB | objects KB | stacks KB | goroutines | live KB | |\n|---|---|---|---|---|---|---|---|---|\n")
	for range repeats {
		for _, wire := range wires {
			for _, client := range clients {
				r, err := b.measureIdle(ctx, wire, client, streams)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", wire, client, err)
				}
				verdict := "ok"
				if r.Resident > idleWanted {
					verdict = "above 10"
				}
				fmt.Fprintf(w, "| %s | %s | %d | %.1f | %.1f | %.1f | %.2f | %.1f | %s |\n", wire, client, r.Streams, r.Resident/1e3, r.Objects/1e3, r.Stacks/1e3, max(0, r.Goroutines), r.Live/1e3, verdict)
			}
		}
	}
	return nil
}

// prepare finds and builds what measuring needs; clean removes it.
func (b *bencher) prepare(ctx context.Context) (clean func(), err error) {
	if _, err := lab.RaiseFiles(); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	b.self = []string{self}
	if b.dir, err = os.MkdirTemp("", "scale"); err != nil {
		return nil, err
	}
	clean = func() { os.RemoveAll(b.dir) }
	if b.profile != "" {
		err = os.MkdirAll(b.profile, 0o755)
	}
	if b.weir == "" && err == nil {
		b.weir = filepath.Join(b.dir, "weir")
		err = lab.Build(ctx, b.weir, b.log)
	}
	if err != nil {
		clean()
		return nil, err
	}
	return clean, nil
}
