//go:build linux

package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"weir/internal/lab"
	"weir/internal/lab/forward"
	"weir/internal/lab/ports"
	"weir/internal/load"
	"weir/internal/trace"
	"weir/internal/workload/content"
)

// faultEngine is one engine of a faultBed.
type faultEngine struct {
	args    []string
	addr    string
	admin   string
	process *lab.Process
}

func (e *faultEngine) kill() error {
	err := e.process.Signal(syscall.SIGKILL)
	e.process.Stop()
	return err
}

// faultBed is a gateway and its engines, the first of which is to fail.
type faultBed struct {
	environment []string
	engines     []*faultEngine
	gateway     *lab.Process
	network     *forward.Forwarder // in front of the first engine; nil: none
	url, admin  string
	timeline    string
	rests       func(context.Context) error // is called when the load has ended; nil: nothing is
}

func (b *faultBed) stop() {
	if b.network != nil {
		b.network.Heal()
	}
	if b.gateway != nil {
		_ = b.gateway.Signal(syscall.SIGCONT) // it may have been stopped, or be gone
		b.gateway.Stop()
	}
	for _, e := range b.engines {
		if e.process != nil {
			_ = e.process.Signal(syscall.SIGCONT)
			e.process.Stop()
		}
	}
	if b.network != nil {
		b.network.Close()
	}
}

// start starts an engine, anew if it was there before.
func (b *faultBed) start(ctx context.Context, i int) (err error) {
	e := b.engines[i]
	if e.process, err = lab.Start(e.args, b.environment); err != nil {
		return err
	}
	return errors.Join(e.process.AwaitTCP(ctx, e.addr), e.process.AwaitTCP(ctx, e.admin))
}

// faultBedding describes the parts of a faultBed.
type faultBedding struct {
	kind    faultKind
	network bool     // a forwarder in front of the first engine
	engine  []string // flags of the engines
	serve   []string // of weir serve, besides
	env     []string // of the gateway
}

// startFaultBed starts three engines of a kind and a gateway. On failure the result
// contains what was started.
func (r *runner) startFaultBed(ctx context.Context, of faultBedding) (*faultBed, error) {
	b := &faultBed{environment: r.environment}
	var addrs [2 * faultEngines]string
	for i := range addrs {
		var err error
		if addrs[i], err = ports.Free(); err != nil {
			return b, err
		}
	}
	serve := slices.Clone(of.serve)
	for i := range faultEngines {
		e := &faultEngine{addr: addrs[2*i], admin: addrs[2*i+1]}
		e.args = append([]string{r.options.Binary, "engine", "--wire", of.kind.wire + "=" + e.addr, "--admin-listen", e.admin, "--cost", "constant",
			"--prefill-cost", faultPrefill.String(), "--decode-cost", faultDecode.String(), "--max-running-requests", "1024"}, of.engine...)
		b.engines = append(b.engines, e)
		if err := b.start(ctx, i); err != nil {
			return b, err
		}
		at := e.addr
		if of.network && i == 0 {
			var err error
			if b.network, err = forward.To(at); err != nil {
				return b, err
			}
			at = b.network.Addr
		}
		serve = append(serve, "--engine", fmt.Sprintf(of.kind.spec, at)+",name="+engineName(i))
	}
	return b, r.startFaultGateway(ctx, b, serve, of.env)
}

// startFaultGateway starts the gateway of a bed, and waits until all engines take requests.
func (r *runner) startFaultGateway(ctx context.Context, b *faultBed, serve, env []string) error {
	var api, admin string
	for _, addr := range []*string{&api, &admin} {
		var err error
		if *addr, err = ports.Free(); err != nil {
			return err
		}
	}
	b.url, b.admin = "http://"+api, "http://"+admin
	b.timeline = filepath.Join(r.dir, api+".jsonl")
	args := append([]string{r.options.Binary, "serve", "--listen", api, "--admin-listen", admin, "--timeline", b.timeline, "--log-level", "error"}, serve...)
	var err error
	if b.gateway, err = lab.Start(args, append(slices.Clone(r.environment), env...)); err != nil {
		return err
	}
	if err := b.gateway.AwaitHTTP(ctx, b.admin+"/readyz"); err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	for {
		states, err := b.states(within)
		if err == nil && !slices.ContainsFunc(states, func(s engineNow) bool { return !s.takes() }) {
			return nil
		}
		if err := lab.Sleep(within, 20*time.Millisecond); err != nil {
			return fmt.Errorf("the engines do not become ready: %v: %w", states, err)
		}
	}
}

func engineName(i int) string { return string(rune('a' + i)) }

// stutter stops the gateway for a while, lets it run for another, and so on, until end is
// called: then it runs.
func (b *faultBed) stutter(stands, runs time.Duration) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_ = b.gateway.Signal(syscall.SIGSTOP) // one that is gone fails the cell by itself
			_ = lab.Sleep(ctx, stands)            // ctx says the same
			_ = b.gateway.Signal(syscall.SIGCONT)
			_ = lab.Sleep(ctx, runs)
		}
	}()
	return func() { cancel(); <-done }
}

// setAll returns all engines faults.
func (b *faultBed) setAll(faults ...string) error {
	var errs []error
	for _, e := range b.engines {
		errs = append(errs, setFaults(context.Background(), e.admin, faults))
	}
	return errors.Join(errs...)
}

// setFaults replaces an engine's faults.
func setFaults(ctx context.Context, admin string, faults []string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if faults == nil {
		faults = []string{}
	}
	body, err := json.Marshal(map[string][]string{"faults": faults})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+admin+"/admin/faults", bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("the engine does not take the faults %q: %s", faults, resp.Status)
	}
	return nil
}

// engineNow is the gateway's view of an engine.
type engineNow struct {
	Ready bool
	Books struct {
		Booked float64 `json:"booked_wait_ms"`
		Unseen float64 `json:"unseen_wait_ms"`
	}
	Health *struct {
		State    string
		Why      string
		Takes    string
		Requests int
	}
}

func (e engineNow) takes() bool { return e.Ready && e.Health != nil && e.Health.Takes == "freely" }
func (e engineNow) out() bool   { return !e.Ready || e.Health == nil || e.Health.State == "down" }

// late returns for how long the gateway itself has been late so far.
func (b *faultBed) late(ctx context.Context) (float64, error) {
	families, err := lab.Scrape(ctx, b.admin+"/metrics")
	if err != nil {
		return 0, err
	}
	family := families[ownLateness]
	if family == nil {
		return 0, fmt.Errorf("the gateway's metrics: there is no %s", ownLateness)
	}
	return family.GetMetric()[0].GetCounter().GetValue(), nil
}

// states asks the gateway for its engines.
func (b *faultBed) states(ctx context.Context) (states []engineNow, err error) {
	if err := lab.FetchJSON(ctx, b.admin+"/engines", &states); err != nil {
		return nil, err
	}
	if len(states) != len(b.engines) {
		return nil, fmt.Errorf("%d engines", len(states))
	}
	return states, nil
}

// under runs a load while something happens, and fills in what its clients saw.
func (b *faultBed) under(ctx context.Context, streams int, words *content.Words, x *Faulted, happens func(context.Context, *watched) error) error {
	running, stop := context.WithCancel(ctx)
	defer stop()
	w := &watched{bed: b, x: x, wrong: make([]bool, len(b.engines))}
	done := make(chan error, 1)
	var report *load.Report
	go func() {
		var err error
		report, err = load.Run(running, load.Plan{URL: b.url, Model: "weir-sim", Concurrency: streams, Duration: time.Hour, OutputTokens: faultOutput,
			Body: map[string]any{"ignore_eos": true}, Verify: words, OnSample: w.ended})
		done <- err
	}()
	err := happens(ctx, w)
	stop()
	if err := errors.Join(err, <-done); err != nil {
		return err
	}
	if b.rests != nil {
		if err := b.rests(ctx); err != nil {
			return err
		}
	}
	x.Requests, x.Lost, x.Wrong = report.Requests, report.Lost, report.Corrupt
	x.Refused, x.Broken, x.FirstError = w.refused, w.broken, w.first
	b.gateway.Stop() // writes its timeline to the end
	data, err := os.ReadFile(b.timeline)
	if err != nil {
		return err
	}
	return w.waited(data)
}

// watched is a bed with its load, as it is watched.
type watched struct {
	bed *faultBed
	x   *Faulted
	// from and to are when the fault began and ended; 0 is not yet.
	from, to int64
	wrong    []bool
	// For a stopped engine: it had work, and how long it produced nothing.
	owed bool
	idle float64

	mu              sync.Mutex
	refused, broken int
	first           string
}

// ended takes down how a request ended.
func (w *watched) ended(s *load.Sample) {
	if s.Outcome != load.Errored {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.first == "" || s.Tokens == 0 && w.refused == 0 {
		w.first = fmt.Sprintf("%s: %.200s", s.Kind, s.Detail)
	}
	if s.Tokens == 0 {
		w.refused++
	} else {
		w.broken++
	}
}

// look asks for the engines, and takes down which are wrongly out.
func (w *watched) look(ctx context.Context) ([]engineNow, error) {
	states, err := w.bed.states(ctx)
	if err != nil {
		return nil, err
	}
	for i, s := range states {
		lives := w.x.Lives && !w.x.Stopped && w.x.Fault != "restarted"
		if s.out() && (i > 0 || lives || w.from == 0) {
			w.wrong[i] = true
		}
	}
	w.x.WronglyOut = 0
	for _, wrong := range w.wrong {
		w.x.WronglyOut += one(wrong)
	}
	return states, nil
}

// each looks repeatedly until done returns true, or d has passed.
func (w *watched) each(ctx context.Context, d time.Duration, done func([]engineNow) bool) error {
	for until := time.Now().Add(d); time.Now().Before(until); {
		states, err := w.look(ctx)
		if err != nil {
			return err
		}
		if done(states) {
			return nil
		}
		if err := lab.Sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

func (w *watched) wait(ctx context.Context, d time.Duration) error {
	return w.each(ctx, d, func([]engineNow) bool { return false })
}

func (w *watched) begin() time.Time {
	w.from = trace.Now()
	return time.Now()
}

func (w *watched) finish(began time.Time) time.Time {
	w.to = trace.Now()
	w.x.Lasted = time.Since(began).Seconds()
	return time.Now()
}

// lives watches engines work in spite of something that began then.
func (w *watched) lives(ctx context.Context, began time.Time, d time.Duration) error {
	err := w.each(ctx, d, func(states []engineNow) bool {
		w.avoided(states[0], began)
		return false
	})
	w.finish(began)
	return err
}

// stopped is the control of conditions that engines must survive: the first engine is
// stopped, which must be detected as usual, and comes back.
func (w *watched) stopped(ctx context.Context, v *victim) error {
	w.x.Stopped, w.x.Knowable = true, (2*silentFor).Seconds()+w.x.Answers
	if err := v.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	err := w.out(ctx, time.Now(), 2*noticed)
	ended := time.Now()
	err = errors.Join(err, v.signal(syscall.SIGCONT))
	return errors.Join(err, w.each(ctx, 3*backWithin, func(states []engineNow) bool {
		if a := states[0]; !a.out() && a.Health.State == "up" {
			w.x.Back = time.Since(ended).Seconds()
		}
		return w.x.Back >= 0
	}))
}

// during watches a fault until it was noticed, and somewhat longer.
func (w *watched) during(ctx context.Context, began time.Time) error {
	return errors.Join(w.out(ctx, began, noticed), w.wait(ctx, faultWarm))
}

// out watches until the first engine is out, at most for this long.
func (w *watched) out(ctx context.Context, began time.Time, lasts time.Duration) error {
	before, err := w.bed.late(ctx)
	if err != nil {
		return err
	}
	err = w.each(ctx, lasts, func(states []engineNow) bool {
		a := states[0]
		w.avoided(a, began)
		if w.x.Stopped && !a.out() {
			w.owes(a, began)
		}
		if !a.out() {
			return false
		}
		w.x.Out = time.Since(began).Seconds()
		if a.Health != nil {
			w.x.Why = a.Health.Why
		}
		return true
	})
	if err != nil {
		return err
	}
	now, err := w.bed.late(ctx)
	w.x.Late = now - before
	return err
}

// owes moves on when it can be known that an engine stands still: one that was given
// nothing of ours yet owes nothing, and three times the work that is booked there explain
// its silence and that of its probe.
func (w *watched) owes(a engineNow, began time.Time) {
	if w.owed = w.owed || a.Health.Requests > 0; !w.owed {
		w.idle = time.Since(began).Seconds()
	}
	explained := max(silentFor.Seconds(), 3*(a.Books.Booked+a.Books.Unseen)/1e3)
	w.x.Knowable = max(w.x.Knowable, w.idle+2*explained+w.x.Answers)
}

// avoided takes down when an engine no longer takes requests freely.
func (w *watched) avoided(a engineNow, began time.Time) {
	if w.x.Avoided < 0 && !a.takes() {
		w.x.Avoided = time.Since(began).Seconds()
	}
}

// returned watches until the engine has half of its share of the requests again, at least
// as long as it may take to be given new ones. Requests that wait there count, too.
func (w *watched) returned(ctx context.Context, ended time.Time) error {
	err := w.each(ctx, returns, func(states []engineNow) bool {
		a := states[0]
		if a.out() || a.Health.State != "up" {
			return false
		}
		others := 0
		for _, s := range states[1:] {
			if s.Health != nil {
				others += s.Health.Requests
			}
		}
		if w.x.Share < 0 && 4*a.Health.Requests >= others {
			w.x.Share = time.Since(ended).Seconds()
		}
		return w.x.Share >= 0 && time.Since(ended) > 2*backWithin
	})
	return errors.Join(err, w.wait(ctx, faultWarm))
}

// waited takes from the timeline which requests waited for the engine that failed although
// they began when that could be known, how long any waited for its first token, and when
// the first one began afterwards that the engine answered.
func (w *watched) waited(timeline []byte) error {
	for text := range bytes.Lines(timeline) {
		var line struct {
			Arrival  int64 `json:"arrival_time"`
			TTFT     int64
			Total    int64 `json:"total_latency"`
			Attempts []attempted
		}
		if err := json.Unmarshal(text, &line); err != nil {
			return fmt.Errorf("timeline: %w", err)
		}
		if n := len(line.Attempts); line.Arrival >= w.to && w.to > 0 && !w.x.Lives && line.TTFT > 0 && line.Attempts[n-1].of(engineName(0)) {
			if back := float64(line.Arrival-w.to) / 1e9; w.x.Back < 0 || back < w.x.Back {
				w.x.Back = back
			}
		}
		if line.Arrival < w.from || line.Arrival >= w.to {
			continue
		}
		took := line.TTFT
		if took == 0 {
			took = line.Total
		}
		w.x.Longest = max(w.x.Longest, float64(took)/1e9)
		if w.x.Pair && float64(took)/1e9 > float64(len(line.Attempts))*w.x.Knowable+tellsWithin.Seconds() {
			w.x.Overdue++
		}
		if took <= int64(waits) || line.Arrival < w.from+int64(later) {
			continue
		}
		for _, a := range line.Attempts {
			if a.of(engineName(0)) {
				w.x.Waited++
				break
			}
		}
	}
	return nil
}

// attempted is an attempt as the timeline has it.
type attempted struct {
	Legs []struct{ Engine string }
}

// of reports whether it was at the engine, whole or by half.
func (a *attempted) of(engine string) bool {
	for _, leg := range a.Legs {
		if leg.Engine == engine {
			return true
		}
	}
	return false
}
