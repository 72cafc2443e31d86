//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/internal/lab"
	"weir/internal/lab/cell"
	"weir/internal/lab/ports"
	"weir/internal/lab/proc"
	"weir/internal/load"
	"weir/internal/model"
	"weir/internal/trace"
	"weir/internal/workload"
	"weir/internal/workload/content"
	"weir/models"
)

// The wires between gateway and engines.
const (
	incremental = "sglang incremental" // POST /generate, from the client on
	cumulative  = "sglang cumulative"
	relayed     = "relay to sglang" // chats
	pulled      = "relay to vllm pull"
	pushed      = "relay to vllm push"
)

func wires() []string { return []string{incremental, cumulative, relayed, pulled, pushed} }

// times are the two parts of a row's run: the window begins after Warm and lasts Measure.
type times struct{ Warm, Measure time.Duration }

// bencher measures rows, one at a time.
type bencher struct {
	weir, dir, profile string
	times              times
	verify             *content.Words
	log                io.Writer
	rows               int // so many have begun
}

// words returns the words that simulated engines write.
func words() (*content.Words, error) {
	m, err := model.Load(models.Sim())
	if err != nil {
		return nil, err
	}
	return content.New(m.VocabSize, m.Tokenizer.OrdinaryBytes)
}

// result has the measurements of a row.
type result struct {
	Load, Wire, Row string
	Repeat          int
	// These count the window only: output tokens, requests begun, and CPU seconds.
	Tokens, Requests         float64
	Gateway, Engines, Client float64
	// Used is the share of the machine that was busy. Others is the work of other processes, in
	// CPUs.
	Used, Others float64
	TTFT         float64 // ms, median
	// These count the whole row.
	Complete, Failed, Lost int
	Why                    string
	// Prefills and Decodes are the mean numbers of requests at the prefill and the decode
	// engine, as the engines report them. Gauges are weir's numbers of the same.
	Prefills, Decodes float64
	Gauges            [2]float64
	Left              int    // requests that engines and weir's books still had at the row's end
	Goroutines        [2]int // of weir, before the row's requests and after
	seconds           float64
}

// perRequest and perToken return the gateway's microseconds, or 0 without a gateway.
func (r *result) perRequest() float64 { return r.micros(r.Requests) }
func (r *result) perToken() float64   { return r.micros(r.Tokens) }

func (r *result) micros(of float64) float64 {
	if of == 0 {
		return 0
	}
	return r.Gateway * 1e6 / of
}

func (r *result) String() string {
	return fmt.Sprintf("%s, %s, %s: %.0f tok/s, %.0f req/s; CPU gateway %.2f engines %.2f client %.2f, %.0f%% used, others %.2f; ttft %.1f ms; %d complete, %d failed, %d lost %s; prefills %.1f decodes %.1f, gauges %.1f, goroutines %d",
		r.Load, r.Wire, r.Row, r.Tokens/r.seconds, r.Requests/r.seconds, r.Gateway, r.Engines, r.Client, 100*r.Used, r.Others, r.TTFT, r.Complete, r.Failed, r.Lost, r.Why, r.Prefills, r.Decodes, r.Gauges, r.Goroutines)
}

// row is a row whose processes run. It measures one window after the other.
type row struct {
	*bencher
	spec      *spec
	wire      string
	name      string
	number    int
	result    *result // of the window at hand
	processes []*lab.Process
	engines   []*lab.Process
	gateway   *lab.Process
	urls      []string // of the engines
	admin     string   // of weir
	plan      load.Plan
}

// start starts the processes of a row. They run until stop, even if start fails.
func (b *bencher) start(ctx context.Context, s *spec, wire, name string) (*row, error) {
	b.rows++
	r := &row{bencher: b, spec: s, wire: wire, name: name, number: b.rows, plan: load.Plan{API: load.Generate, KeepChunks: true, Verify: b.verify, InputTokens: s.Input, Body: map[string]any{"ignore_eos": true}}}
	return r, r.begin(ctx)
}

func (r *row) stop() {
	for _, p := range slices.Backward(r.processes) {
		p.Stop()
	}
}

// measure measures one window of a row.
func (r *row) measure(ctx context.Context, repeat int) (*result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.result = &result{Load: r.spec.Name, Wire: r.wire, Row: r.name, Repeat: repeat}
	r.plan.Seed = uint64(repeat)
	var err error
	if r.admin != "" {
		if r.result.Goroutines[0], err = r.goroutines(ctx); err != nil {
			return nil, err
		}
	}
	if err := r.window(ctx); err != nil {
		return nil, err
	}
	return r.result, r.rests(ctx)
}

func (r *row) process(ctx context.Context, line string, args ...string) (*lab.Process, string, error) {
	p, err := lab.Start(append([]string{r.weir}, args...), lab.Environment())
	if err != nil {
		return nil, "", err
	}
	r.processes = append(r.processes, p)
	word, err := p.AwaitLine(ctx, line)
	return p, word, err
}

// engine starts an engine of a role, and returns its value for --engine.
func (r *row) engine(ctx context.Context, role string) (spec string, err error) {
	s, w := r.spec, r.wire
	args := []string{"engine", "--role=" + role, "--cost=constant", "--prefill-cost=" + s.Prefill.String(), "--decode-cost=" + s.Decode.String(), "--max-running-requests=16384"}
	wire, kind := "sglang", "openai"
	switch {
	case w == pulled || w == pushed:
		wire = "vllm"
		connector := map[string]string{pulled: "NixlConnector", pushed: "NixlPushConnector"}[w]
		if role != "both" {
			args = append(args, "--nixl-side-channel-port=0", fmt.Sprintf(`--kv-transfer-config={"kv_connector":%q,"engine_id":%q}`, connector, role))
		}
	case role == "prefill":
		args = append(args, "--disaggregation-bootstrap-port=0")
	}
	if w == incremental {
		args = append(args, "--incremental-streaming-output")
	}
	if w == incremental || w == cumulative {
		kind = "sglang"
	}
	if role == "decode" {
		args = append(args, "--kv-latency="+s.Transfer.String())
	}
	p, url, err := r.process(ctx, wire+" ", append(args, "--wire="+wire+"=127.0.0.1:0")...)
	if err != nil {
		return "", fmt.Errorf("engine: %w", err)
	}
	r.engines, r.urls = append(r.engines, p), append(r.urls, url)
	if role == "prefill" && wire == "sglang" && r.name != pair {
		registry, err := p.AwaitLine(ctx, "bootstrap ")
		if err != nil {
			return "", err
		}
		r.plan.Halves = &load.Halves{Prefill: url, Host: "127.0.0.1"}
		if r.plan.Halves.Port, err = strconv.Atoi(registry[strings.LastIndexByte(registry, ':')+1:]); err != nil {
			return "", err
		}
	}
	spec = kind + "=" + url
	if wire == "vllm" && role != "both" {
		spec += ",role=" + role
	}
	return spec, nil
}

// begin starts the row's processes.
func (r *row) begin(ctx context.Context) error {
	serve := []string{"serve", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--log-level=error", "--timeline=" + filepath.Join(r.dir, fmt.Sprintf("timeline-%d", r.number))}
	if r.wire == incremental {
		serve = append(serve, "--incremental-streaming-output")
	}
	if r.profile != "" {
		serve = append(serve, "--pprof")
	}
	roles := []string{"prefill", "decode"}
	if r.name == one || r.name == bareOne {
		roles = []string{"both"}
	}
	for _, role := range roles {
		spec, err := r.engine(ctx, role)
		if err != nil {
			return err
		}
		serve = append(serve, "--engine="+spec)
	}
	decode := r.urls[len(r.urls)-1]
	if r.wire != incremental && r.wire != cumulative {
		r.plan.API = load.Chat
	}
	switch r.name {
	case direct:
		r.plan.URL = decode
	case proxy:
		return r.nginx(ctx, decode)
	case barePair, bareOne:
		return r.bare(ctx)
	default:
		gateway, url, err := r.process(ctx, "gateway ", serve...)
		if err != nil {
			return fmt.Errorf("gateway: %w", err)
		}
		if r.admin, err = gateway.AwaitLine(ctx, "admin "); err != nil {
			return err
		}
		r.gateway, r.plan.URL = gateway, url
		if err := gateway.AwaitHTTP(ctx, r.admin+"/readyz"); err != nil {
			return err
		}
		return r.joined(ctx, len(roles))
	}
	return nil
}

// goroutines returns the number of weir's goroutines.
func (r *row) goroutines(ctx context.Context) (int, error) {
	families, err := lab.Scrape(ctx, r.admin+"/metrics")
	if err != nil {
		return 0, err
	}
	m := families["go_goroutines"].GetMetric()
	if len(m) != 1 {
		return 0, errors.New("/metrics has no go_goroutines")
	}
	return int(m[0].GetGauge().GetValue()), nil
}

// nginx starts nginx before the decode engine.
func (r *row) nginx(ctx context.Context, decode string) error {
	addr, err := ports.Free()
	if err != nil {
		return err
	}
	b := &lab.Bench{Dir: r.dir, Env: lab.Environment(), Log: r.log}
	if r.gateway, err = b.StartGateway(ctx, lab.Named(lab.Nginx), &cell.Cell{Engine: strings.TrimPrefix(decode, "http://"), Gateway: addr, Relayed: true}); err != nil {
		return err
	}
	r.processes = append(r.processes, r.gateway)
	r.plan.URL = "http://" + addr
	return nil
}

// joined waits until the gateway has all n engines.
func (r *row) joined(ctx context.Context, n int) error {
	return wait(ctx, "the gateway's engines", func() (bool, error) {
		var page []struct{ Ready bool }
		if err := lab.FetchJSON(ctx, r.admin+"/engines", &page); err != nil {
			return false, err
		}
		ready := 0
		for _, e := range page {
			if e.Ready {
				ready++
			}
		}
		return ready == n, nil
	})
}

// wait waits until is reports true, for at most a minute.
func wait(ctx context.Context, what string, is func() (bool, error)) error {
	// Longer than the half minute for which the abort of a decode half may be delayed
	// (engine.Deferral).
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for {
		if ok, err := is(); ok || err != nil {
			return err
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: not within a minute", what)
		}
	}
}

// used has the CPU time of all processes up to one moment.
type used struct {
	at                                time.Time
	gateway, engines, client, machine float64
}

func (r *row) used() (u used, err error) {
	pids := func(of ...*lab.Process) (all []int) {
		for _, p := range of {
			if p != nil {
				all = append(all, p.PIDs()...)
			}
		}
		return all
	}
	u.at = time.Now()
	for _, x := range []struct {
		pids []int
		into *float64
	}{{pids(r.gateway), &u.gateway}, {pids(r.engines...), &u.engines}, {[]int{os.Getpid()}, &u.client}} {
		of, err := proc.Of(x.pids)
		if err != nil {
			return u, err
		}
		*x.into = of.CPU
	}
	u.machine, err = proc.MachineCPU()
	return u, err
}

// window runs the load and measures within its window.
func (r *row) window(ctx context.Context) (err error) {
	length := r.times.Warm + r.times.Measure
	s, res := r.spec, r.result
	settings := fmt.Sprintf("rate=%v,duration=%v,input=%d,output=%s", s.Rate, length, s.Input, s.Output)
	if s.Streams > 0 {
		settings = fmt.Sprintf("concurrency=%d,duration=%v,input=%d,output=%s", s.Streams, length, s.Input, s.Output)
	}
	if r.plan.Workload, err = workload.NewSynthetic(settings, workload.Options{Seed: r.plan.Seed}); err != nil {
		return err
	}
	loading, end := context.WithCancel(ctx)
	defer end()
	var samples collected
	r.plan.OnSample = samples.add
	type outcome struct {
		report *load.Report
		err    error
	}
	ended := make(chan outcome, 1)
	go func() {
		report, err := load.Run(loading, r.plan)
		ended <- outcome{report, err}
	}()
	_ = lab.Sleep(ctx, r.times.Warm)
	from, err := r.used()
	if err != nil {
		return err
	}
	if r.profile != "" && r.admin != "" {
		go r.fetchProfile(ctx)
	}
	n := 0
	for next := time.Now(); time.Since(from.at) < r.times.Measure-time.Second; n++ {
		if err := r.look(ctx); err != nil {
			return err
		}
		next = next.Add(time.Second)
		_ = lab.Sleep(ctx, time.Until(next))
	}
	_ = lab.Sleep(ctx, time.Until(from.at.Add(r.times.Measure)))
	to, err := r.used()
	if err != nil {
		return err
	}
	if s.Streams > 0 {
		end() // streams end in the middle
	}
	o := <-ended
	if o.err != nil {
		return o.err
	}
	for _, x := range []*float64{&res.Prefills, &res.Decodes, &res.Gauges[0], &res.Gauges[1]} {
		*x /= float64(max(n, 1))
	}
	res.seconds = to.at.Sub(from.at).Seconds()
	res.Gateway, res.Engines, res.Client = to.gateway-from.gateway, to.engines-from.engines, to.client-from.client
	all := to.machine - from.machine
	res.Used, res.Others = all/res.seconds/float64(runtime.NumCPU()), (all-res.Gateway-res.Engines-res.Client)/res.seconds
	res.Complete, res.Failed, res.Lost = o.report.Complete, o.report.Errored+o.report.Corrupt, o.report.Lost
	for kind, example := range o.report.Examples {
		if res.Why = string(kind) + ": " + example; kind != "" {
			break
		}
	}
	samples.within(trace.At(from.at), trace.At(to.at), res)
	return ctx.Err()
}

// state is an engine's report about itself.
type state struct{ Running, Waiting, Kept int }

// look adds the requests at the engines to the result's sums.
func (r *row) look(ctx context.Context) error {
	for i, url := range r.urls {
		var s state
		if err := lab.FetchJSON(ctx, url+"/admin/state", &s); err != nil {
			return err
		}
		if i < len(r.urls)-1 {
			r.result.Prefills += float64(s.Running + s.Waiting + s.Kept)
		} else {
			r.result.Decodes += float64(s.Running)
		}
	}
	if r.admin == "" {
		return nil
	}
	books, err := r.books(ctx)
	for i, n := range books {
		r.result.Gauges[i] += float64(n)
	}
	return err
}

// books returns the requests that weir counts at prefill engines, and as decoding.
func (r *row) books(ctx context.Context) (n [2]int, err error) {
	var page []struct {
		Books struct {
			Prefills int `json:"inflight_prefills"`
			Decodes  int `json:"running_decodes"`
		}
	}
	err = lab.FetchJSON(ctx, r.admin+"/engines", &page)
	for _, e := range page {
		n[0], n[1] = n[0]+e.Books.Prefills, n[1]+e.Books.Decodes
	}
	return n, err
}

// rests waits until engines and books have nothing left of the row's requests, and counts
// weir's goroutines again. It does not matter how the requests ended.
func (r *row) rests(ctx context.Context) error {
	var left []string
	err := wait(ctx, "the end of all requests", func() (bool, error) {
		r.result.Left, left = 0, nil
		for _, url := range r.urls {
			var s state
			if err := lab.FetchJSON(ctx, url+"/admin/state", &s); err != nil {
				return false, err
			}
			r.result.Left += s.Running + s.Waiting + s.Kept
			left = append(left, fmt.Sprintf("an engine has %d running, %d waiting, %d kept", s.Running, s.Waiting, s.Kept))
		}
		if r.admin != "" {
			books, err := r.books(ctx)
			if err != nil {
				return false, err
			}
			r.result.Left += books[0] + books[1]
			left = append(left, fmt.Sprintf("weir counts %d at prefill, %d decoding", books[0], books[1]))
		}
		return r.result.Left == 0, nil
	})
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.Join(left, "; "))
	}
	if r.admin != "" {
		r.result.Goroutines[1], err = r.goroutines(ctx)
	}
	return err
}

// fetchProfile takes a CPU profile of weir within the window.
func (r *row) fetchProfile(ctx context.Context) {
	name := strings.NewReplacer(" ", "-", ",", "").Replace(r.result.Load + " " + r.result.Wire + " " + r.result.Row)
	err := lab.SaveProfile(ctx, fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", r.admin, int(r.times.Measure.Seconds())-1),
		filepath.Join(r.profile, fmt.Sprintf("%s-%d.pprof", name, r.result.Repeat)))
	if err != nil {
		fmt.Fprintf(r.log, "profile: %v\n", err)
	}
}
