//go:build linux

// Command outputpath measures the cost of carrying the output of thousands of
// streams from an engine to their clients. It compares weir with nginx,
// httputil.ReverseProxy and two controls that must fail. Package internal/lab
// measures; docs/bench/outputpath.md describes the method.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/bench/peers"
	"weir/internal/lab"
	"weir/internal/lab/cell"
	"weir/internal/lab/client"
)

func main() { lab.Main("outputpath", run) }

// loads are the loads of a full run.
func loads() []cell.Load {
	return []cell.Load{
		{Name: "spread", Streams: 2048, Rate: 20, Spread: true},
		{Name: "burst", Streams: 4096, Rate: 20},
		{Name: "founding", Streams: 4096, Rate: 33, Probes: 400},
		{Name: "flat out", Streams: 512},
		{Name: "short", Streams: 64, Length: 2, Prompt: 400},
		{Name: "answers", Streams: 2048, Rate: 20, Spread: true, Length: 120},
		{Name: "first", Streams: 256, Rate: 20, Spread: true, Probes: 400},
		{Name: lab.Alone, Streams: 1000, Rate: 20, Spread: true},
		{Name: cell.HangUps, Streams: 1000, Rate: 20, Spread: true, Flood: cell.HangUps, FloodRate: 2000},
		{Name: cell.BadBodies, Streams: 1000, Rate: 20, Spread: true, Flood: cell.BadBodies, FloodRate: 2000},
		{Name: cell.OneToken, Streams: 1000, Rate: 20, Spread: true, Flood: cell.OneToken, FloodRate: 2000},
		{Name: cell.HangUps + " apart", Streams: 1000, Rate: 20, Spread: true, Flood: cell.HangUps, FloodRate: 2000, Apart: true},
		{Name: cell.BadBodies + " apart", Streams: 1000, Rate: 20, Spread: true, Flood: cell.BadBodies, FloodRate: 2000, Apart: true},
		{Name: cell.OneToken + " apart", Streams: 1000, Rate: 20, Spread: true, Flood: cell.OneToken, FloodRate: 2000, Apart: true},
		{Name: "idle", Streams: 9000, Idle: true},
	}
}

// quick makes a load small, for a smoke test of the benchmark itself.
func quick(l cell.Load) cell.Load {
	l.Probes /= 20
	if l.Rate > 0 || l.Idle {
		l.Streams /= 16
	}
	return l
}

// forGateway adapts a load to a gateway. An engine on the plane has no connection
// per stream that could slow it down. There, and over the other wires of ids, "as
// fast as possible" is a rate that no gateway here can carry.
func forGateway(l cell.Load, g lab.Gateway) cell.Load {
	if g.Relayed {
		return l
	}
	switch {
	case l.Idle && g.Wire == "":
		l.Streams = l.Streams * 10 / 9
	case l.Rate == 0:
		l.Rate = 1000
	}
	return l
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("outputpath", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var (
		repeats = flags.Int("n", 3, "repeats; the table shows medians")
		retries = flags.Int("retries", 2, "times a cell is measured anew when other processes took more than a tenth of a CPU")
		small   = flags.Bool("quick", false, "a smoke test: a sixteenth of the streams where they have a rate, short windows, no repeats")
		measure = flags.Duration("measure", 10*time.Second, "measured window of each cell")
		warm    = flags.Duration("warm", 3*time.Second, "time before the window")
		only    = flags.String("loads", "", "loads to run, comma-separated; all unless given; with another number of streams behind its name (\"spread 64\") a load keeps the rate of a stream, or where all step at one instant the rate of all")
		who     = flags.String("gateways", "", "gateways to run, comma-separated; all but those that others publish unless given; \"peers\" are those")
		folder  = flags.String("peers", peers.Folder, "where make bench-peers set up the gateways that others publish")
		probes  = flags.Int("probes", -1, "new requests in the window of each load that has a rate; the load's own number unless given")
		onTime  = flags.Bool("on-time", false, "relayed engines end their streams at the load's end even where the gateway is behind")
		read    = flags.String("read", "", "print the tables of results kept by -json, comma-separated, and measure nothing")
		weir    = flags.String("weir", "", "weir's binary; built from ./cmd/weir unless given")
		out     = flags.String("json", "", "write every cell's result to this file")
		procs   = flags.Int("procs", 0, "cores that weir may use (GOMAXPROCS); all unless given")
		profile = flags.String("profile", "", "write CPU profiles of weir to this folder (costs some CPU)")
		traces  = flags.Bool("traces", false, "with -profile: execution traces of a second instead, for go tool trace")
	)
	if err := flags.Parse(args); err != nil {
		return err
	}
	b := &lab.Bench{Weir: *weir, Profile: *profile, Traces: *traces, Retries: *retries, Log: stderr,
		Times: cell.Times{Warm: *warm, Measure: *measure, Tail: time.Second, Drain: 20 * time.Second}}
	if *small {
		*repeats, b.Times = 1, cell.Times{Warm: 500 * time.Millisecond, Measure: 2 * time.Second, Tail: 500 * time.Millisecond, Drain: 10 * time.Second}
	}
	if *read != "" {
		return printKept(stdout, strings.Split(*read, ","))
	}
	chosen, err := choose(*only, *who, *folder)
	if err != nil {
		return err
	}
	if *procs > 0 {
		for i := range chosen.gateways {
			if g := &chosen.gateways[i]; g.Weir {
				g.Env = append(g.Env, "GOMAXPROCS="+strconv.Itoa(*procs))
			}
		}
	}
	for i := range chosen.loads {
		l := &chosen.loads[i]
		if l.EndOnTime = *onTime; *probes >= 0 && l.Rate > 0 {
			l.Probes = *probes
		}
	}
	if *small {
		for i := range chosen.loads {
			chosen.loads[i] = quick(chosen.loads[i])
		}
	}
	clean, err := prepare(ctx, b, stderr)
	if err != nil {
		return err
	}
	defer clean()
	results := runCells(ctx, b, chosen, *repeats)
	for _, g := range chosen.gateways {
		if g.Peer {
			fmt.Fprintf(stdout, "%s %s\n", g.Name, peers.Version(*folder, g.Name))
		}
	}
	medians := lab.Medians(results)
	lab.PrintTables(stdout, medians, *repeats, b.Times.Measure)
	lab.PrintFloods(stdout, medians)
	if err := lab.WriteJSON(*out, results); err != nil {
		return err
	}
	problems := lab.Judge(results)
	for _, p := range problems {
		fmt.Fprintln(stdout, "FAIL:", p)
	}
	if len(problems) > 0 {
		return errors.New("the run failed")
	}
	return nil
}

// selection has the loads and gateways to run.
type selection struct {
	loads    []cell.Load
	gateways []lab.Gateway
}

// choose finds the loads and gateways that comma-separated lists name. An empty
// list means all, without the gateways that others publish.
func choose(only, who, folder string) (selection, error) {
	s := selection{loads: loads()}
	if only != "" {
		s.loads = nil
		for name := range strings.SplitSeq(only, ",") {
			l, err := load(name)
			if err != nil {
				return s, err
			}
			s.loads = append(s.loads, l)
		}
	}
	var known []string
	for _, g := range slices.Concat(lab.Gateways(), peers.All(folder)) {
		known = append(known, g.Name)
		if who == "" && !g.Peer || slices.Contains(strings.Split(who, ","), g.Name) || g.Peer && slices.Contains(strings.Split(who, ","), "peers") {
			s.gateways = append(s.gateways, g)
		}
	}
	for name := range strings.SplitSeq(who, ",") {
		if name != "" && name != "peers" && !slices.Contains(known, name) {
			return s, fmt.Errorf("-gateways %q: the gateways are %s", name, strings.Join(known, ", "))
		}
	}
	return s, nil
}

// load finds a load by its name. A number behind the name replaces the number of
// streams. If streams step at one instant, the size of the step matters, so the rate
// of all streams together stays.
func load(name string) (cell.Load, error) {
	var known []string
	for _, l := range loads() {
		known = append(known, l.Name)
		rest, ok := strings.CutPrefix(name, l.Name)
		if !ok {
			continue
		}
		if rest == "" {
			return l, nil
		}
		n, err := strconv.Atoi(strings.TrimPrefix(rest, " "))
		if err != nil || rest[0] != ' ' || n < 1 || n > 20_000 {
			continue
		}
		if !l.Spread {
			l.Rate *= float64(l.Streams) / float64(n)
		}
		l.Name, l.Streams = name, n
		return l, nil
	}
	return cell.Load{}, fmt.Errorf("-loads %q: the loads are %s, each with a number of streams behind it where another is wanted (1 to 20000)", name, strings.Join(known, ", "))
}

// prepare finds, makes or builds the files that the run needs; clean removes them.
func prepare(ctx context.Context, b *lab.Bench, stderr io.Writer) (clean func(), err error) {
	if _, err := lab.RaiseFiles(); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	b.Self = []string{self}
	if b.Profile != "" {
		if err := os.MkdirAll(b.Profile, 0o755); err != nil {
			return nil, err
		}
	}
	if b.Dir, err = os.MkdirTemp("", "outputpath"); err != nil {
		return nil, err
	}
	clean = func() { os.RemoveAll(b.Dir) }
	if b.Weir != "" {
		return clean, nil
	}
	b.Weir = filepath.Join(b.Dir, "weir")
	if err := lab.Build(ctx, b.Weir, stderr); err != nil {
		clean()
		return nil, err
	}
	return clean, nil
}

// runCells runs every cell. In each repeat the gateways of a load run one after the
// other, so that changes of the machine affect all alike.
func runCells(ctx context.Context, b *lab.Bench, s selection, repeats int) []*client.Result {
	var results []*client.Result
	for i := range repeats {
		for _, l := range s.loads {
			for _, g := range s.gateways {
				if g.Control && l.Idle {
					continue // there is nothing to get wrong
				}
				if at := saturated(results, l, g); at != "" {
					fmt.Fprintf(b.Log, "%d/%d %s is not asked for %s: it delivered less than half of %s\n", i+1, repeats, g.Name, l.Name, at)
					continue
				}
				r := b.Cell(ctx, forGateway(l, g), g)
				results = append(results, r)
				fmt.Fprintf(b.Log, "%d/%d %s\n", i+1, repeats, lab.Line(r))
				if ctx.Err() != nil {
					return results
				}
			}
		}
	}
	return results
}

// saturated names a load of fewer streams of which the gateway delivered less than
// half. A load of more streams then shows nothing new and takes long to end.
func saturated(results []*client.Result, l cell.Load, g lab.Gateway) string {
	for _, r := range results {
		if r.Gateway != g.Name || !g.Peer || r.Failed != "" || r.Share >= 0.5 || l.Rate == 0 {
			continue
		}
		smaller, err := load(r.Load)
		if err == nil && smaller.Streams < l.Streams && kind(smaller.Name) == kind(l.Name) {
			return r.Load
		}
	}
	return ""
}

// kind is a load's name without its number of streams.
func kind(name string) string {
	if i := strings.LastIndexByte(name, ' '); i >= 0 {
		if _, err := strconv.Atoi(name[i+1:]); err == nil {
			return name[:i]
		}
	}
	return name
}

// printKept prints the results that earlier runs kept as one table.
func printKept(stdout io.Writer, files []string) error {
	var all []*client.Result
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		var results []*client.Result
		if err := json.Unmarshal(data, &results); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, results...)
	}
	lab.PrintRanges(stdout, all)
	return nil
}
