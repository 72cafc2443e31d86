package calibrate

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"weir/internal/lab"
	"weir/internal/lab/cell"
	"weir/internal/lab/ports"
	"weir/internal/lab/proc"
	"weir/internal/load"
)

// Run measures the generator.
func Run(ctx context.Context, o Options) (*load.Calibration, error) {
	engine, err := startEngine(ctx, &o)
	if err != nil {
		return nil, err
	}
	defer engine.stop()

	var mu sync.Mutex
	var seen samples
	plan := o.plan(engine.url)
	plan.OnSample = func(s *load.Sample) {
		mu.Lock()
		defer mu.Unlock()
		seen.add(s, engine.truth, &o)
	}
	before, err := proc.Of(engine.PIDs())
	if err != nil {
		return nil, err
	}
	r, err := load.Run(ctx, plan)
	if err != nil {
		return nil, fmt.Errorf("calibrate: %w", err)
	}
	after, err := proc.Of(engine.PIDs())
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("calibrate: %w", ctx.Err())
	}
	if r.Complete == 0 {
		return nil, fmt.Errorf("calibrate: no request was complete: %v", r.Examples)
	}
	c := seen.calibration(&o, r)
	c.EngineCPU = (after.CPU - before.CPU) / r.Elapsed
	c.Judge()
	return c, nil
}

// Known holds an engine's own stamps while another generator loaded it. Times are
// milliseconds.
type Known struct {
	Requests         int
	TTFTP50, TTFTP99 float64
	ITLMean          float64
	ITLSigma         float64
	EngineCPU        float64 // cores
	// TTFT and ITL are all values, in nanoseconds and unsorted.
	TTFT, ITL []int64 `json:"-"`
}

// Watch starts a reference engine, passes its URL to drive, which loads it, and returns
// what the engine did. Options.Requests bounds the number of requests that it keeps.
func Watch(ctx context.Context, o Options, drive func(url string) error) (*Known, error) {
	engine, err := startEngine(ctx, &o)
	if err != nil {
		return nil, err
	}
	defer engine.stop()
	started := time.Now()
	if err := drive(engine.url); err != nil {
		return nil, err
	}
	took := time.Since(started)
	used, err := proc.Of(engine.PIDs())
	if err != nil {
		return nil, err
	}
	k := &Known{EngineCPU: used.CPU / took.Seconds()}
	var ttft, itl []int64
	for i := range o.Requests {
		before, ok := engine.truth.Arrival(i)
		if !ok {
			continue
		}
		k.Requests++
		for n := range o.Tokens {
			at, ok := engine.truth.Token(i, n)
			if !ok {
				break
			}
			if n == 0 {
				ttft = append(ttft, at-before)
			} else {
				itl = append(itl, at-before)
			}
			before = at
		}
	}
	t, gaps := summed(ttft), summed(itl)
	k.TTFTP50, k.TTFTP99, k.ITLMean, k.ITLSigma = t.P50, t.P99, gaps.Mean, gaps.Sigma
	k.TTFT, k.ITL = ttft, itl
	return k, nil
}

// engineProcess is the engine of known times.
type engineProcess struct {
	*lab.Process
	url   string
	truth cell.Truth
	dir   string // of the memory that it shares
}

func startEngine(ctx context.Context, o *Options) (e *engineProcess, err error) {
	if err := o.normalize(); err != nil {
		return nil, err
	}
	addr, err := ports.Free()
	if err != nil {
		return nil, err
	}
	e = &engineProcess{url: "http://" + addr}
	if e.dir, err = os.MkdirTemp("", "weir-calibrate"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			e.stop()
			err = fmt.Errorf("the engine of known times: %w", err)
		}
	}()
	x := &cell.Reference{Listen: addr, Board: filepath.Join(e.dir, "board"), Requests: o.Requests, Tokens: o.Tokens, TTFT: o.TTFT, ITL: o.ITL}
	truth, err := x.OpenTruth()
	if err != nil {
		return e, err
	}
	e.truth = truth
	spec, err := json.Marshal(x)
	if err != nil {
		return e, err
	}
	if e.Process, err = lab.Start(append(slices.Clone(o.Self), lab.ReferenceRole, string(spec)), nil); err != nil {
		return e, err
	}
	return e, e.AwaitHTTP(ctx, e.url+"/v1/models")
}

// stop ends the engine, as far as it was begun.
func (e *engineProcess) stop() {
	if e.Process != nil {
		e.Stop()
	}
	if e.truth != (cell.Truth{}) {
		e.truth.Close()
	}
	os.RemoveAll(e.dir)
}

// samples are errors of measurement, in nanoseconds.
type samples struct {
	ttft, itl       []int64
	ttftRaw, itlRaw []int64 // held against the times asked for
	late            []int64 // the engine's
	missing         int     // tokens whose time is not known
}

// add compares the generator's measurement of a request with the engine's stamps.
func (m *samples) add(s *load.Sample, truth cell.Truth, o *Options) {
	if s.Outcome != load.Complete {
		return
	}
	arrived, ok := truth.Arrival(s.Index)
	first, ok2 := truth.Token(s.Index, 0)
	if !ok || !ok2 || len(s.Chunks) == 0 {
		m.missing += s.Tokens
		return
	}
	m.ttft = append(m.ttft, (s.FirstContent-s.Sent)-(first-arrived))
	m.ttftRaw = append(m.ttftRaw, s.FirstContent-s.Sent-int64(o.TTFT))
	before := first
	for k, at := range s.Chunks {
		wrote, ok := truth.Token(s.Index, k)
		if !ok {
			m.missing++
			continue
		}
		m.late = append(m.late, wrote-arrived-int64(o.TTFT)-int64(k)*int64(o.ITL))
		if k > 0 {
			m.itl = append(m.itl, (at-s.Chunks[k-1])-(wrote-before))
			m.itlRaw = append(m.itlRaw, at-s.Chunks[k-1]-int64(o.ITL))
		}
		before = wrote
	}
}

// calibration sums up.
func (m *samples) calibration(o *Options, r *load.Report) *load.Calibration {
	c := &load.Calibration{
		Streams: o.Streams, Rate: o.Rate, Requests: r.Requests, Complete: r.Complete, Tokens: o.Tokens, TTFT: ms(int64(o.TTFT)), ITL: ms(int64(o.ITL)),
		TTFTError: summed(m.ttft), TTFTRaw: summed(m.ttftRaw), ITLError: summed(m.itl), ITLRaw: summed(m.itlRaw), EngineLate: summed(m.late),
		Elapsed: r.Elapsed, EventsPerSecond: float64(r.TextEvents) / r.Elapsed, CPUPerEvent: r.CPUPerEvent, CPUShare: r.Generator.CPUShare, Cores: r.Generator.Cores, Receive: r.Receive, Unknown: m.missing,
	}
	if o.Rate > 0 {
		c.Slip = &r.Slip
	}
	return c
}

func ms(ns int64) float64 { return float64(ns) / 1e6 }

// summed returns the figures of errors.
func summed(ns []int64) load.ErrorOf {
	if len(ns) == 0 {
		return load.ErrorOf{}
	}
	var sum, squares float64
	sizes := make([]int64, len(ns))
	for i, v := range ns {
		sum += ms(v)
		squares += ms(v) * ms(v)
		sizes[i] = max(v, -v)
	}
	slices.Sort(sizes)
	at := func(q float64) float64 { return ms(sizes[min(len(sizes)-1, int(q*float64(len(sizes))))]) }
	n := float64(len(ns))
	mean := sum / n
	return load.ErrorOf{Count: len(ns), Mean: mean, Sigma: math.Sqrt(max(0, squares/n-mean*mean)), P50: at(0.5), P99: at(0.99), Max: ms(sizes[len(sizes)-1])}
}
