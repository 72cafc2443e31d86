//go:build linux

package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"weir/internal/lab/cell"
	"weir/internal/lab/client"
	"weir/internal/lab/ports"
)

// Bench runs cells, one at a time.
type Bench struct {
	// Self is the command line that makes this program a process of a cell,
	// once a role and the cell are appended to it (RunRole).
	Self []string
	// Weir is weir's binary.
	Weir string
	// Dir is a folder for the run's files.
	Dir string
	// Profile is a folder for CPU profiles of weir; empty: none. With Traces it gets execution
	// traces of a second instead.
	Profile string
	Traces  bool
	Times   cell.Times
	// Retries is how often a disturbed cell is measured anew.
	Retries int
	// Env is the gateways' environment; nil: this process's own.
	Env []string
	// Log gets a line about each disturbed cell.
	Log io.Writer
}

// selfArgs returns the command line of a role of this program.
func (b *Bench) selfArgs(role string, c *cell.Cell) ([]string, error) {
	spec, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	return append(slices.Clone(b.Self), role, string(spec)), nil
}

// disturbance is the share of one CPU above which what other processes took
// makes a cell disturbed; it may then be measured again, and the least
// disturbed measurement counts.
const disturbance = 0.1

// Disturbed reports whether other processes took more than a tenth of a CPU while
// a result was measured.
func (b *Bench) Disturbed(r *client.Result) bool {
	return r.OtherCPU > disturbance*b.Times.Measure.Seconds()
}

// Cell runs one gateway under one load. If a cell could not be measured, its result holds
// the reason.
func (b *Bench) Cell(ctx context.Context, l cell.Load, g Gateway) *client.Result {
	var best *client.Result
	for try := range 1 + b.Retries {
		r, err := b.measure(ctx, l, g)
		switch {
		case ctx.Err() != nil:
			r = &client.Result{Failed: errInterrupted.Error()}
		case err != nil:
			r = &client.Result{Failed: err.Error()}
		}
		r.Load, r.Gateway, r.Peer, r.Again = l.Name, g.Name, g.Peer, try
		// A failure in any try is kept.
		if r.Failed != "" || r.Lost > 0 || r.Wrong > 0 {
			return r
		}
		if best == nil || r.OtherCPU < best.OtherCPU {
			best = r
		}
		best.Again = try
		if !b.Disturbed(best) {
			break
		}
		fmt.Fprintf(b.Log, "disturbed: %s\n", Line(r))
	}
	return best
}

func (b *Bench) measure(ctx context.Context, l cell.Load, g Gateway) (*client.Result, error) {
	dir, err := os.MkdirTemp(b.Dir, "cell")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	c := &cell.Cell{Load: l, Times: b.Times, Board: filepath.Join(dir, "board"), Relayed: g.Relayed, Wire: g.Wire}
	p, err := b.startPair(ctx, g, c, dir)
	if err != nil {
		return nil, err
	}
	defer p.stop()
	c.PIDs, c.EnginePID = p.gateway.PIDs(), p.engine.cmd.Process.Pid
	var flooding *Process
	if l.Flood != "" {
		floods, stop, err := b.startFlood(ctx, g, c)
		if err != nil {
			return nil, err
		}
		defer stop()
		flooding = floods
	}
	var profiling sync.WaitGroup
	if g.Weir && b.Profile != "" {
		profiling.Go(func() { b.fetchProfile(c, g, p.admin) })
	}
	r, err := b.client(ctx, c)
	if err != nil {
		p.gateway.Stop() // no load will begin that a profile could wait for
	}
	profiling.Wait()
	if err != nil {
		return nil, fmt.Errorf("%w; gateway: %s; engine: %s", err, &p.gateway.err, &p.engine.err)
	}
	if l.Flood != "" && r.Flooded == 0 {
		return nil, fmt.Errorf("no request of the flood was over: %s; gateway: %s", &flooding.err, &p.gateway.err)
	}
	if g.Timed && l.Probes > 0 {
		p.gateway.Stop()
		if r.ProbeOwn, err = readTimeline(timelinePath(dir)); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// pair is an engine and the gateway in front of it.
type pair struct {
	engine, gateway *Process
	admin           string // the gateway's second address
}

func (p *pair) stop() {
	p.gateway.Stop()
	p.engine.Stop()
}

// startPair starts the engine and the gateway of a cell, whose addresses it chooses, and waits
// until both serve. dir is a folder for the gateway alone.
func (b *Bench) startPair(ctx context.Context, g Gateway, c *cell.Cell, dir string) (p *pair, err error) {
	p = new(pair)
	for _, addr := range []*string{&c.Engine, &c.Gateway, &p.admin} {
		if *addr, err = ports.Free(); err != nil {
			return nil, err
		}
	}
	role := "engine-plane"
	switch {
	case g.Relayed || g.Wire != "":
		role = "engine-http"
	case g.DialsIn:
		role = "engine-core"
	}
	if g.Header != nil {
		c.Header = g.Header(c)
	}
	args, err := g.Args(b, c, dir, p.admin)
	if err != nil {
		return nil, err
	}
	engineArgs, err := b.selfArgs(role, c)
	if err != nil {
		return nil, err
	}
	if p.engine, err = Start(engineArgs, b.Env); err != nil {
		return nil, err
	}
	if !g.DialsIn {
		err = p.engine.AwaitTCP(ctx, c.Engine)
	}
	if err == nil {
		p.gateway, err = b.startGateway(ctx, g, c, args)
	}
	if err != nil {
		p.engine.Stop()
		return nil, err
	}
	if g.Weir {
		if err := p.gateway.AwaitHTTP(ctx, "http://"+p.admin+"/readyz"); err != nil {
			p.stop()
			return nil, err
		}
	}
	return p, nil
}

// startFlood starts the flood of a cell, of the lowest priority: it stands for other machines,
// and must not take the cores from the processes that are measured. A flood that goes apart gets
// a second gateway of the same kind first, with an engine of its own. stop ends all of them.
func (b *Bench) startFlood(ctx context.Context, g Gateway, c *cell.Cell) (flooding *Process, stop func(), err error) {
	at, second := *c, func() {}
	if c.Load.Apart {
		dir, err := os.MkdirTemp(b.Dir, "apart")
		if err != nil {
			return nil, nil, err
		}
		p, err := b.startPair(ctx, g, &at, dir)
		if err != nil {
			return nil, nil, err
		}
		second = p.stop
		c.FloodPIDs = append(p.gateway.PIDs(), p.engine.cmd.Process.Pid)
	}
	args, err := b.selfArgs("flood", &at)
	if err == nil {
		flooding, err = Start(args, b.Env)
	}
	if err != nil {
		second()
		return nil, nil, err
	}
	stop = func() { flooding.Stop(); second() }
	if err := flooding.yields(); err != nil {
		stop()
		return nil, nil, err
	}
	c.FloodPIDs = append(c.FloodPIDs, flooding.cmd.Process.Pid)
	return flooding, stop, nil
}

// StartGateway starts a gateway in front of a relayed engine, without a load: c has the
// addresses of both. The caller stops it.
func (b *Bench) StartGateway(ctx context.Context, g Gateway, c *cell.Cell) (*Process, error) {
	dir, err := os.MkdirTemp(b.Dir, "gateway")
	if err != nil {
		return nil, err
	}
	admin, err := ports.Free()
	if err != nil {
		return nil, err
	}
	args, err := g.Args(b, c, dir, admin)
	if err != nil {
		return nil, err
	}
	return b.startGateway(ctx, g, c, args)
}

// startGateway starts a gateway and waits until it serves.
func (b *Bench) startGateway(ctx context.Context, g Gateway, c *cell.Cell, args []string) (*Process, error) {
	env := b.Env
	if len(g.Env) > 0 {
		if env == nil {
			env = os.Environ()
		}
		env = append(slices.Clone(env), g.Env...)
	}
	p, err := Start(args, env)
	if err != nil {
		return nil, err
	}
	ready := g.Ready
	if ready == "" {
		ready = "/v1/models"
	}
	err = p.AwaitHTTP(ctx, "http://"+c.Gateway+ready)
	if err == nil && g.Peer {
		err = p.AwaitQuiet(ctx)
	}
	if err != nil {
		p.Stop()
		return nil, err
	}
	return p, nil
}

// client runs the cell's client and reads its result.
func (b *Bench) client(ctx context.Context, c *cell.Cell) (*client.Result, error) {
	args, err := b.selfArgs("client", c)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = b.Env
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	var out, problem bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problem
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("client: %w: %s", err, strings.TrimSpace(problem.String()))
	}
	r := new(client.Result)
	if err := json.Unmarshal(out.Bytes(), r); err != nil {
		return nil, fmt.Errorf("client's result: %w", err)
	}
	return r, nil
}

// fetchProfile takes a CPU profile or a trace of weir in the middle of the window.
func (b *Bench) fetchProfile(c *cell.Cell, g Gateway, admin string) {
	board, err := c.OpenBoard()
	if err != nil {
		return
	}
	defer board.Close()
	for {
		if at, ok := board.Started(); ok {
			cell.SleepUntil(at + int64(c.Times.Warm))
			break
		}
		if resp, err := http.Get("http://" + admin + "/healthz"); err != nil {
			return // the cell was given up
		} else {
			resp.Body.Close()
		}
		time.Sleep(50 * time.Millisecond)
	}
	kind, ending, seconds := "profile", ".pprof", max(1, int(c.Times.Measure.Seconds())-1)
	if b.Traces {
		kind, ending, seconds = "trace", ".trace", 1
	}
	name := strings.ReplaceAll(c.Load.Name+" "+g.Name, " ", "-") + ending
	if err := SaveProfile(context.Background(), fmt.Sprintf("http://%s/debug/pprof/%s?seconds=%d", admin, kind, seconds), filepath.Join(b.Profile, name)); err != nil {
		fmt.Fprintf(b.Log, "profile: %v\n", err)
	}
}

// readTimeline reads the probes' output_path_delay from weir's timeline.
func readTimeline(path string) (*client.ProbeTimes, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return probesOf(data)
}

func probesOf(data []byte) (*client.ProbeTimes, error) {
	var delays []float64
	for line := range bytes.Lines(data) {
		var record struct {
			RequestID string `json:"request_id"`
			Delay     *int64 `json:"output_path_delay"`
		}
		if err := json.Unmarshal(line, &record); err != nil {
			return nil, fmt.Errorf("timeline: %w", err)
		}
		if strings.HasPrefix(record.RequestID, cell.ProbeID+"-") && record.Delay != nil {
			delays = append(delays, float64(*record.Delay)/1e6)
		}
	}
	if len(delays) == 0 {
		return nil, fmt.Errorf("timeline: no probe has an output_path_delay")
	}
	slices.Sort(delays)
	return &client.ProbeTimes{Count: len(delays), P50: delays[(len(delays)-1)/2], P99: delays[(len(delays)*99-1)/100], Max: delays[len(delays)-1]}, nil
}
