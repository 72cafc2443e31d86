//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"weir/internal/lab"
	"weir/internal/lab/cell"
	"weir/internal/lab/client"
	"weir/internal/lab/proc"
)

// figure is a figure of the model beside what was measured.
type figure struct {
	Wire, Of, Unit  string
	Model, Measured float64
	Note            string
}

// cells measures CPU and memory of a wire under load.
func (b *bencher) cells(ctx context.Context, m *model, streams int, measure time.Duration) ([]figure, error) {
	bench := &lab.Bench{Self: b.self, Weir: b.weir, Dir: b.dir, Log: b.log,
		// All streams have their first tokens at once, each of which costs as much as a request.
		Times: cell.Times{Warm: measure/3 + time.Duration(streams)*400*time.Microsecond, Measure: measure, Tail: time.Second, Drain: 20 * time.Second}}
	g := lab.Named(map[string]string{"relay": lab.Relay, "plane": lab.Plane}[m.Wire])
	run := func(l cell.Load) (*client.Result, error) {
		r := bench.Cell(ctx, l, g)
		switch {
		case r.Failed != "":
			return nil, fmt.Errorf("%s, %s: %s", m.Wire, l.Name, r.Failed)
		case r.Lost > 0 || r.Wrong > 0:
			return nil, fmt.Errorf("%s, %s: %d tokens lost, %d wrong", m.Wire, l.Name, r.Lost, r.Wrong)
		}
		return r, nil
	}
	// A rate that leaves two fifths of the machine idle, or all streams would have theirs merged.
	rate := min(20, 0.15e6*float64(b.cores)/2/float64(streams)/m.Token*2)
	spread, err := run(cell.Load{Name: "spread", Streams: streams, Rate: rate, Spread: true})
	if err != nil {
		return nil, err
	}
	flatOut := cell.Load{Name: "short", Streams: 64, Length: 2, Prompt: 400}
	if m.Wire == "plane" {
		flatOut.Rate = 1000 // nothing keeps its engine behind, so no gateway carries that
	}
	short, err := run(flatOut)
	if err != nil {
		return nil, err
	}
	busy := func(r *client.Result) string {
		return fmt.Sprintf("%.0f tokens/s, %.2f tokens a write, p99 %.1f ms, others %.2f CPUs", r.Delivered, r.PerWrite, r.P99, r.OtherCPU/measure.Seconds())
	}
	return []figure{
		{m.Wire, "a token", "us of CPU", m.Token, spread.CPUPerMega, busy(spread)},
		{m.Wire, "a request of two tokens", "us of CPU", m.Request, short.CPUPerRequest, fmt.Sprintf("%.0f requests/s", short.Requests)},
		{m.Wire, fmt.Sprintf("%d streams", streams), "cores", m.Token * spread.Delivered / 1e6, spread.CPU / measure.Seconds(), ""},
		{m.Wire, fmt.Sprintf("%d streams", streams), "MB resident", (m.Base + float64(streams)*m.Stream) / 1e6, spread.Resident, "they have tokens all the time"},
	}, nil
}

// fewEngines is how many engines cost too little to be measured.
const fewEngines = 10

// engines measures what engines cost that do nothing: one simulated engine at many loopback
// addresses.
func (b *bencher) engines(ctx context.Context, m *model, n int, wait time.Duration) ([]figure, error) {
	kind := kindOf(m.Wire)
	e, err := lab.Start([]string{b.weir, "engine", "--wire", kind + "=0.0.0.0:0", "--admin-listen", "127.0.0.1:0"}, lab.Environment())
	if err != nil {
		return nil, err
	}
	defer e.Stop()
	at, err := e.AwaitLine(ctx, kind+" ")
	if err != nil {
		return nil, err
	}
	port := at[strings.LastIndexByte(at, ':')+1:]
	use := func(n int) (cpu, resident float64, err error) {
		var flags []string
		for i := range n {
			addr := fmt.Sprintf("127.0.%d.%d:%s", 1+i/200, 1+i%200, port)
			if m.Wire == "relay" {
				addr = "http://" + addr
			}
			flags = append(flags, "--engine", kind+"="+addr)
		}
		g, err := b.startGateway(ctx, flags...)
		if err != nil {
			return 0, 0, err
		}
		defer g.kill()
		if err := lab.Sleep(ctx, wait/2); err != nil {
			return 0, 0, err
		}
		before, err := proc.Of(g.PIDs())
		if err != nil {
			return 0, 0, err
		}
		if err := lab.Sleep(ctx, wait); err != nil {
			return 0, 0, err
		}
		after, err := proc.Of(g.PIDs())
		if err != nil {
			return 0, 0, err
		}
		return (after.CPU - before.CPU) / wait.Seconds(), float64(after.Resident), nil
	}
	cpu1, resident1, err := use(1)
	if err != nil {
		return nil, err
	}
	cpu, resident, err := use(1 + n)
	if err != nil {
		return nil, err
	}
	return []figure{
		{m.Wire, "an engine that does nothing", "us of CPU a second", m.Idle, 1e6 * (cpu - cpu1) / float64(n), fmt.Sprintf("of %d", n)},
		{m.Wire, "an engine", "KB resident", m.Engine / 1e3, (resident - resident1) / float64(n) / 1e3, ""},
		{m.Wire, "a gateway with one engine", "MB resident", m.Base / 1e6, resident1 / 1e6, ""},
	}, nil
}

func printFigures(w io.Writer, all []figure) {
	fmt.Fprintf(w, "\n| wire | of | model | measured | ratio | |\n|---|---|---|---|---|---|\n")
	for _, f := range all {
		fmt.Fprintf(w, "| %s | %s | %.4g %s | %.4g | %.2f | %s |\n", f.Wire, f.Of, f.Model, f.Unit, f.Measured, f.Measured/f.Model, f.Note)
	}
}
