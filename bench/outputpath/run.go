//go:build linux

package main

import (
	"bytes"
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
	"time"
)

// bench is a run of all that was asked for.
type bench struct {
	self    string // this program
	weir    string // weir's binary
	dir     string // for the run's files
	profile string // folder for CPU profiles of weir; empty: none
	times   Times
	retries int // of a disturbed cell
	log     io.Writer
}

// selfArgs gives the command line of a role of this program.
func (b *bench) selfArgs(role string, c *Cell) ([]string, error) {
	config, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	return []string{b.self, role, string(config)}, nil
}

// A cell is disturbed when other processes took more than this share of one
// CPU; it may then be measured again, and the least disturbed measurement
// counts.
const disturbance = 0.1

// cell runs one gateway under one load. A cell that could not be measured is a
// result that says why.
func (b *bench) cell(l Load, g Gateway) *Result {
	var best *Result
	for try := range 1 + b.retries {
		r, err := b.measure(l, g)
		if err != nil {
			r = &Result{Failed: err.Error()}
		}
		r.Load, r.Gateway, r.Again = l.Name, g.Name, try
		// What went wrong in any try is never measured away.
		if r.Failed != "" || r.Lost > 0 || r.Wrong > 0 {
			return r
		}
		if best == nil || r.OtherCPU < best.OtherCPU {
			best = r
		}
		best.Again = try
		if best.OtherCPU <= disturbance*b.times.Measure.Seconds() {
			break
		}
		fmt.Fprintf(b.log, "disturbed: %s\n", r.line())
	}
	return best
}

func (b *bench) measure(l Load, g Gateway) (*Result, error) {
	dir, err := os.MkdirTemp(b.dir, "cell")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	c := &Cell{Load: l, Times: b.times, Board: filepath.Join(dir, "board"), Relayed: g.Relayed}
	var admin string
	for _, addr := range []*string{&c.Engine, &c.Gateway, &admin} {
		if *addr, err = freeAddr(); err != nil {
			return nil, err
		}
	}
	role := "engine-plane"
	if g.Relayed {
		role = "engine-relay"
	}
	args, err := b.selfArgs(role, c)
	if err != nil {
		return nil, err
	}
	engine, err := start(args)
	if err != nil {
		return nil, err
	}
	defer engine.stop()
	if err := engine.awaitTCP(c.Engine); err != nil {
		return nil, err
	}
	if args, err = g.args(b, c, dir, admin); err != nil {
		return nil, err
	}
	gateway, err := start(args)
	if err != nil {
		return nil, err
	}
	defer gateway.stop()
	if err := gateway.awaitHTTP("http://" + c.Gateway + "/v1/models"); err != nil {
		return nil, err
	}
	isWeir := g.Name == nameRelay || g.Name == namePlane
	if isWeir {
		if err := gateway.awaitHTTP("http://" + admin + "/readyz"); err != nil {
			return nil, err
		}
	}
	c.PIDs, c.EnginePID = gateway.pids(), engine.cmd.Process.Pid
	var profiling sync.WaitGroup
	if isWeir && b.profile != "" {
		profiling.Go(func() { b.fetchProfile(c, g, admin) })
	}
	r, err := b.client(c)
	if err != nil {
		gateway.stop() // no load will begin that a profile could wait for
	}
	profiling.Wait()
	if err != nil {
		return nil, fmt.Errorf("%w; gateway: %.300s; engine: %.300s", err, gateway.err, engine.err)
	}
	if g.Name == namePlane && l.Probes > 0 {
		gateway.stop()
		if r.ProbeOwn, err = readTimeline(timelinePath(dir)); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// client runs the cell's client and reads its result.
func (b *bench) client(c *Cell) (*Result, error) {
	args, err := b.selfArgs("client", c)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(args[0], args[1:]...)
	var out, problem bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problem
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("client: %w: %s", err, strings.TrimSpace(problem.String()))
	}
	r := new(Result)
	if err := json.Unmarshal(out.Bytes(), r); err != nil {
		return nil, fmt.Errorf("client's result: %w", err)
	}
	return r, nil
}

// fetchProfile takes a CPU profile of weir in the middle of the window.
func (b *bench) fetchProfile(c *Cell, g Gateway, admin string) {
	board, err := openBoard(c.Board, c.capacity(), c.tokens())
	if err != nil {
		return
	}
	defer board.close()
	for {
		if at, ok := board.started(); ok {
			sleepUntil(at + int64(c.Times.Warm))
			break
		}
		if resp, err := http.Get("http://" + admin + "/healthz"); err != nil {
			return // the cell was given up
		} else {
			resp.Body.Close()
		}
		time.Sleep(50 * time.Millisecond)
	}
	seconds := max(1, int(c.Times.Measure.Seconds())-1)
	resp, err := http.Get(fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", admin, seconds))
	if err != nil {
		fmt.Fprintf(b.log, "profile: %v\n", err)
		return
	}
	defer resp.Body.Close()
	name := strings.ReplaceAll(c.Load.Name+" "+g.Name, " ", "-") + ".pprof"
	data, err := io.ReadAll(resp.Body)
	if err == nil {
		err = os.WriteFile(filepath.Join(b.profile, name), data, 0o644)
	}
	if err != nil {
		fmt.Fprintf(b.log, "profile: %v\n", err)
	}
}

// readTimeline reads the probes' output_path_delay from weir's timeline.
func readTimeline(path string) (*ProbeTimes, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return probesOf(data)
}

func probesOf(data []byte) (*ProbeTimes, error) {
	var delays []float64
	for line := range bytes.Lines(data) {
		var record struct {
			RequestID string `json:"request_id"`
			Delay     *int64 `json:"output_path_delay"`
		}
		if err := json.Unmarshal(line, &record); err != nil {
			return nil, fmt.Errorf("timeline: %w", err)
		}
		if strings.HasPrefix(record.RequestID, probeID+"-") && record.Delay != nil {
			delays = append(delays, float64(*record.Delay)/1e6)
		}
	}
	if len(delays) == 0 {
		return nil, fmt.Errorf("timeline: no probe has an output_path_delay")
	}
	slices.Sort(delays)
	return &ProbeTimes{Count: len(delays), P99: delays[(len(delays)*99-1)/100], Max: delays[len(delays)-1]}, nil
}
