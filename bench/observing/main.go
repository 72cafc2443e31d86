//go:build linux

// Command observing measures what it costs to see what weir does: everything that watches it
// on, against everything off, over the batched plane.
//
//	go run ./bench/observing                        # 2,048 streams, 7 pairs: some 6 minutes
//	go run ./bench/observing -without otlp,scrape   # to find what costs
//	go run ./bench/observing -quick                 # a smoke test of the benchmark
//
// On are: records in memory and in a file, spans to a collector (which is this process), an
// access line for each request, the watch with its flight recorder, a scrape of /metrics each
// second, and what an open page asks for. A pair is one cell with and one without, which of
// them first by turns, so that what changes on the machine touches both alike. The load is
// bench/outputpath's: streams at an even rate, and new requests besides, which are what
// records, spans and lines are made of. What counts is the median of the pairs' ratios.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	collectorpb "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"weir/internal/lab"
	"weir/internal/lab/cell"
	"weir/internal/lab/client"
)

func main() { lab.Main("observing", run) }

// part is one thing that watches weir.
type part struct {
	name string
	// on and off are the flags with and without it.
	on, off []string
	// asks are what is asked of the admin listener each second.
	asks []string
}

// parts are all of them; dir is the gateway's folder and collector an address.
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

// known are their names.
func known() (names []string) {
	for _, p := range parts("", "") {
		names = append(names, p.name)
	}
	return names
}

// observed makes the gateway with the parts that are wanted, all others off. asks collects
// what is asked of it, at its admin listener's address.
func observed(name string, wanted func(string) bool, collector string, asks func(admin string, paths []string)) lab.Gateway {
	return lab.Gateway{Name: name, Weir: true, Args: func(b *lab.Bench, c *cell.Cell, dir, admin string) ([]string, error) {
		args := []string{b.Weir, "serve", "--listen", c.Gateway, "--admin-listen", admin, "--engine", "weir=" + c.Engine, "--log-level", "warn"}
		if b.Profile != "" {
			args = append(args, "--pprof")
		}
		var paths []string
		for _, p := range parts(dir, collector) {
			if wanted(p.name) {
				args, paths = append(args, p.on...), append(paths, p.asks...)
			} else {
				args = append(args, p.off...)
			}
		}
		asks(admin, paths)
		return args, nil
	}}
}

// Compared is what a pair showed, with everything on over everything off.
type Compared struct {
	Off, On *client.Result
	// CPU is of CPU a token, P99 of tokens' delay, First of new requests' first output.
	CPU, P99, First float64
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("observing", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var (
		pairs   = flags.Int("n", 7, "pairs")
		streams = flags.Int("streams", 2048, "streams")
		rate    = flags.Float64("rate", 20, "tokens a second of each")
		probes  = flags.Int("probes", 400, "new requests in each window")
		measure = flags.Duration("measure", 20*time.Second, "measured window of each cell")
		without = flags.String("without", "", "parts to leave off in the cells that have the others on, comma-separated: "+strings.Join(known(), ", "))
		quick   = flags.Bool("quick", false, "a smoke test: a sixteenth of the streams, short windows, one pair")
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
		load.Streams, load.Probes, *pairs = load.Streams/16, load.Probes/20, 1
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
	collector, err := collect()
	if err != nil {
		return err
	}
	defer collector.server.Stop()

	one := func(name string, wanted func(string) bool) *client.Result {
		asking, stop := context.WithCancel(ctx)
		var asked sync.WaitGroup
		g := observed(name, wanted, collector.addr, func(admin string, paths []string) {
			asked.Go(func() { ask(asking, admin, paths) })
		})
		r := b.Cell(ctx, load, g)
		stop()
		asked.Wait()
		fmt.Fprintln(stderr, lab.Line(r))
		return r
	}
	var all []Compared
	for i := range *pairs {
		var c Compared
		steps := []func(){
			func() { c.Off = one("off", func(string) bool { return false }) },
			func() { c.On = one("on", func(name string) bool { return !slices.Contains(left, name) }) },
		}
		if i%2 == 1 {
			slices.Reverse(steps)
		}
		for _, step := range steps {
			step()
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for _, r := range []*client.Result{c.Off, c.On} {
			if r.Failed != "" || r.Lost > 0 || r.Wrong > 0 || r.Errors > 0 {
				return fmt.Errorf("a cell went wrong: %s", lab.Line(r))
			}
		}
		c.CPU, c.P99, c.First = c.On.CPUPerMega/c.Off.CPUPerMega, c.On.P99/c.Off.P99, c.On.ProbeFirst.P99/c.Off.ProbeFirst.P99
		all = append(all, c)
		fmt.Fprintf(stdout, "pair %d: CPU a token %.3f (%.2f of %.2f CPU s/M), p99 of the delay %.3f (%.2f of %.2f ms), of first outputs %.3f (%.2f of %.2f ms)\n",
			i+1, c.CPU, c.On.CPUPerMega, c.Off.CPUPerMega, c.P99, c.On.P99, c.Off.P99, c.First, c.On.ProbeFirst.P99, c.Off.ProbeFirst.P99)
	}
	if err := lab.WriteJSON(*out, all); err != nil {
		return err
	}
	on := slices.DeleteFunc(known(), func(name string) bool { return slices.Contains(left, name) })
	fmt.Fprintf(stdout, "on over off, %s, %d streams, median of %d pairs and their range: CPU a token %s, p99 of the delay %s, of first outputs %s; the collector took %d spans\n",
		strings.Join(on, ", "), load.Streams, len(all), spread(all, func(c *Compared) float64 { return c.CPU }), spread(all, func(c *Compared) float64 { return c.P99 }),
		spread(all, func(c *Compared) float64 { return c.First }), collector.taken.Load())
	if !slices.Contains(left, "otlp") && collector.taken.Load() == 0 {
		return errors.New("the collector was sent nothing")
	}
	return nil
}

// spread is the median of a figure and its range.
func spread(all []Compared, of func(*Compared) float64) string {
	values := make([]float64, len(all))
	for i := range all {
		values[i] = of(&all[i])
	}
	return fmt.Sprintf("%.3f (%.3f to %.3f)", lab.Median(values), slices.Min(values), slices.Max(values))
}

// prepare makes what the cells need; clean removes it.
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

// ask asks an admin listener for some pages once a second, each to its end, until ctx ends.
func ask(ctx context.Context, admin string, paths []string) {
	each := time.NewTicker(time.Second)
	defer each.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-each.C:
		}
		for _, path := range paths {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+path, nil)
			if err != nil {
				return
			}
			if resp, err := http.DefaultClient.Do(req); err == nil { // it may not be up, or be gone
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		}
	}
}

// taker is a collector of spans, which keeps none.
type taker struct {
	addr   string
	server *grpc.Server
	taken  atomic.Int64 // spans
}

func collect() (*taker, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	t := &taker{addr: l.Addr().String(), server: grpc.NewServer()}
	t.server.RegisterService(&grpc.ServiceDesc{ServiceName: "opentelemetry.proto.collector.trace.v1.TraceService", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Export", Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			r := &collectorpb.ExportTraceServiceRequest{}
			if err := decode(r); err != nil {
				return nil, err
			}
			for _, of := range r.GetResourceSpans() {
				for _, s := range of.GetScopeSpans() {
					t.taken.Add(int64(len(s.GetSpans())))
				}
			}
			return &collectorpb.ExportTraceServiceResponse{}, nil
		}}}}, nil)
	go func() { _ = t.server.Serve(l) }() // it ends with the server
	return t, nil
}
