//go:build linux

package scenario

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"weir/internal/lab"
	"weir/internal/load"
	"weir/internal/trace"
	"weir/internal/workload"
	"weir/internal/workload/content"
)

// The replicas scenario: eight engines behind one, two and four gateways, and two gateways that
// are restarted under streams.
const (
	ReplicaEngines = 8
	replicaStreams = 1000 // of the rolling restarts
	replicaMost    = 4000
	replicaUtil    = 0.8
	// ReplicaProfile, ReplicaTokens and ReplicaRunning are the engines: their cost, the tokens
	// of the KV cache, and the requests that one runs at once.
	ReplicaProfile = "llama-3.3-70b-h100-tp4"
	ReplicaTokens  = 400_000
	ReplicaRunning = 64
	// Prompts of replicaGroups groups begin alike. Gateways that do not know of each other
	// have copies of a group's beginning at as many engines as there are gateways.
	replicaGroups = 320
	replicaWork   = "input=lognormal(400,400),output=lognormal(200,150),prefix=2000"
	// ReplicaOffline is the length of the same on virtual time, once for each seed. The slowest 1 %
	// are requests of the first seconds, whose caches are empty: one seed is one draw of these.
	ReplicaOffline = 5 * time.Minute
	replicaSeeds   = 8
	// ReplicaAge is how old what gateways know of each other is at most.
	ReplicaAge = 10 * time.Millisecond
	// replicaLeast is the least length of a restart's streams.
	replicaLeast = time.Second
	// replicaWarm is for how long a live load fills the caches, which begin empty: engines cannot
	// keep up until they have the groups' beginnings. It is not measured.
	replicaWarm = 20 * time.Second
	// replicaRead is how long a load must be measured so that the slowest 1 % can be read.
	replicaRead = 40 * time.Second

	// The figures.
	replicaCaptured = 0.95
	replicaTimes    = 1.1
	// replicaLost is how much of the engines' time the machine may lose in the run with one
	// gateway.
	replicaLost = 0.02
)

// Replicated is one number of gateways under the load.
type Replicated struct {
	// Where is live or offline.
	Where    string `json:"where"`
	Gateways int    `json:"gateways"`
	// Alone gateways do not know of each other.
	Alone bool `json:"alone"`
	// NotMeasured is why there are no figures.
	NotMeasured string `json:"not_measured,omitempty"`

	Offered float64 `json:"offered_per_second"`
	// Seeds is the number of offline runs. Requests are those of all, and times the geometric
	// means; 0: one live run.
	Seeds    int     `json:"seeds,omitempty"`
	Measured float64 `json:"measured_seconds"` // of a live load after it has warmed up
	Requests int     `json:"requests"`         // that came in this time
	Failed   int     `json:"failed"`           // of all
	// FirstError is an example of what failed.
	FirstError string  `json:"first_error,omitempty"`
	Cached     float64 `json:"cached_share"` // of prompt tokens
	TTFT50     float64 `json:"ttft_p50_seconds"`
	TTFT99     float64 `json:"ttft_p99_seconds"`
	LostTokens int     `json:"lost_tokens"`
	Corrupt    int     `json:"repeated_or_wrong"` // requests
	Lost       float64 `json:"engine_lost_share"` // of their time, which the machine had not for the engines
}

func (x *Replicated) name() string {
	text := fmt.Sprintf("%s, %d", x.Where, x.Gateways)
	if x.Alone {
		text += " alone"
	}
	return text
}

// Widowed is a load on four gateways, one of which is killed.
type Widowed struct {
	NotMeasured string `json:"not_measured,omitempty"`
	Gateways    int    `json:"gateways"`
	// Own are the requests of the killed gateway's clients.
	Own        int    `json:"its_clients_requests"`
	OwnFailed  int    `json:"its_clients_failed"`
	Others     int    `json:"other_clients_requests"`
	Noticed    int    `json:"other_clients_failed"`
	FirstError string `json:"first_error_of_others,omitempty"`
	Corrupt    int    `json:"lost_repeated_or_wrong"` // requests of all
}

// Restarted is a rolling restart of two gateways under streams.
type Restarted struct {
	Kind string `json:"kind"`
	// Covered reports whether the time to drain covers the streams.
	Covered     bool   `json:"drain_covers_streams"`
	NotMeasured string `json:"not_measured,omitempty"`

	Life      float64 `json:"stream_seconds"`
	Drain     float64 `json:"drain_seconds"`
	Together  int     `json:"most_streams_at_once"`
	Streams   int     `json:"streams"`
	Complete  int     `json:"complete"`
	Explicit  int     `json:"ended_by_explicit_error"`
	Otherwise int     `json:"ended_otherwise"`
	// FirstError is an example of the requests that ended in another way or, if the
	// drain covers them, with an error.
	FirstError string `json:"first_error,omitempty"`
	Corrupt    int    `json:"lost_repeated_or_wrong"`
}

// replicas puts one, two and four gateways in front of the same engines. The control has
// gateways that do not know of each other.
func replicas(ctx context.Context, r *runner) *Report {
	report := &Report{Rows: []Row{}}
	words, err := simWords()
	if err != nil {
		return report.failed("the engines' words: %v", err)
	}
	each, err := r.replayed(ctx, fmt.Sprintf("synthetic:rate=100,duration=20s,%s,groups=%d", replicaWork, replicaGroups/ReplicaEngines), replicaFlags())
	if err != nil {
		return report.failed("what the engines can do could not be found: %v", err)
	}
	rate := each * ReplicaEngines * replicaUtil
	began, spent := time.Now(), spentByOthers()
	report.Replicas = &Replicas{}
	for _, where := range []string{"offline", "live"} {
		for _, x := range replicaRuns() {
			x.Where, x.Offered = where, rate
			lasts := ReplicaOffline
			if where == "live" {
				lasts = replicaLasts(&r.options)
			}
			fmt.Fprintf(r.options.Progress, "%-16s %.1f requests/s for %v ... ", x.name(), rate, lasts.Round(time.Second))
			var err error
			if where == "live" {
				err = r.replicated(ctx, &x, words)
			} else {
				err = r.simulated(ctx, &x)
			}
			if r.interrupted(ctx) {
				return report
			}
			if err != nil {
				x.NotMeasured = r.unmeasured(err)
			} else {
				fmt.Fprintf(r.options.Progress, "%.1f %% cached, TTFT p99 %.3f s\n", 100*x.Cached, x.TTFT99)
			}
			report.Replicas.Runs = append(report.Replicas.Runs, x)
		}
	}
	w := &report.Replicas.Killed
	fmt.Fprintf(r.options.Progress, "one of 4 is killed ... ")
	if err := r.widowed(ctx, w, rate, words); err != nil && ctx.Err() == nil {
		w.NotMeasured = r.unmeasured(err)
	} else if !r.interrupted(ctx) {
		fmt.Fprintf(r.options.Progress, "%d of %d of its clients' and %d of %d of the others' requests failed\n", w.OwnFailed, w.Own, w.Noticed, w.Others)
	}
	for _, k := range r.options.replicaKinds() {
		for _, covered := range []bool{true, false} {
			if ctx.Err() != nil {
				return report
			}
			x := Restarted{Kind: k.name, Covered: covered}
			fmt.Fprintf(r.options.Progress, "%-10s two are restarted, drain covers streams: %v ... ", k.name, covered)
			err := r.rolled(ctx, &x, k, words)
			if r.interrupted(ctx) {
				return report
			}
			if err != nil {
				x.NotMeasured = r.unmeasured(err)
			} else {
				fmt.Fprintf(r.options.Progress, "%d of %d whole, %d explicit errors, %d otherwise\n", x.Complete, x.Streams, x.Explicit, x.Otherwise)
			}
			report.Replicas.Restarted = append(report.Replicas.Restarted, x)
		}
	}
	report.Others = max(spentByOthers()-spent, 0) / time.Since(began).Seconds()
	report.Verdicts = judgeReplicas(report.Replicas)
	return report
}

// Replicas are the results of replicas.
type Replicas struct {
	Runs      []Replicated `json:"runs"`
	Killed    Widowed      `json:"killed"`
	Restarted []Restarted  `json:"restarted"`
}

func replicaRuns() []Replicated {
	return []Replicated{{Gateways: 1}, {Gateways: 2}, {Gateways: 4}, {Gateways: 2, Alone: true}, {Gateways: 4, Alone: true}}
}

func replicaFlags() []string {
	return []string{"--cost", "profile=" + ReplicaProfile, "--max-total-tokens", strconv.Itoa(ReplicaTokens), "--max-running-requests", strconv.Itoa(ReplicaRunning)}
}

// replicaKinds are the kinds of engines of the rolling restarts: a relay, ids over HTTP, and
// the plane.
func (o *Options) replicaKinds() []faultKind {
	return slices.DeleteFunc(faultKinds(), func(k faultKind) bool {
		if len(o.Kinds) == 0 {
			return k.name != "vllm" && k.name != "vllm-ids" && k.name != "plane"
		}
		return !slices.Contains(o.Kinds, k.name)
	})
}

// ReplicaKinds lists what Options.Kinds of replicas may name.
func ReplicaKinds() (names []string) {
	for _, k := range faultKinds() {
		names = append(names, k.name)
	}
	return names
}

// replicaLasts is how long each live load lasts: five have a ninth of the time each, the load
// under which a gateway is killed has half of that, and the restarts have the rest.
func replicaLasts(o *Options) time.Duration { return o.Duration / 9 }

// replicaWarms is how long a live load warms up.
func replicaWarms(o *Options) time.Duration { return min(replicaWarm, replicaLasts(o)/3) }

// replicaLife is how long a stream of a restart lasts. A restart takes about five times as long.
func (o *Options) replicaLife() time.Duration {
	return o.Duration * 3 / 9 / time.Duration(5*2*max(1, len(o.replicaKinds())))
}

// checkReplicas checks the options of replicas.
func (o *Options) checkReplicas() error {
	if o.Streams > replicaMost {
		return Invalid{"--streams", fmt.Errorf("%d streams are more than one process can verify word by word; give at most %d", o.Streams, replicaMost)}
	}
	if o.replicaLife() < replicaLeast {
		least := (replicaLeast * time.Duration(2*5*3*len(o.replicaKinds()))).Truncate(time.Second)
		return Invalid{"--duration", fmt.Errorf("%v is too short for streams to be in the midst of their answers; give at least %v", o.Duration, least)}
	}
	return nil
}

// ReplicaWorkload is the load on all gateways together.
func ReplicaWorkload(rate float64, lasts time.Duration) string {
	return fmt.Sprintf("rate=%.5f,duration=%v,%s,groups=%d", rate, lasts, replicaWork, replicaGroups)
}

// simulated carries out the runs on virtual time, by weir fleet. The control is far off with any
// seed.
func (r *runner) simulated(ctx context.Context, x *Replicated) error {
	x.Seeds, x.Measured = replicaSeeds, ReplicaOffline.Seconds()
	if x.Alone {
		x.Seeds = 1
	}
	n := float64(x.Seeds)
	for seed := 1; seed <= x.Seeds; seed++ {
		of, err := r.replays(ctx, x, seed)
		if err != nil {
			return err
		}
		x.Requests, x.Failed, x.Cached = x.Requests+of.Requests, x.Failed+of.Requests-of.Finished, x.Cached+of.Cached/n
		x.TTFT50, x.TTFT99 = x.TTFT50+math.Log(of.TTFT.P50/1e3)/n, x.TTFT99+math.Log(of.TTFT.P99/1e3)/n
	}
	x.TTFT50, x.TTFT99 = math.Exp(x.TTFT50), math.Exp(x.TTFT99)
	return nil
}

// replicaReplay is what weir fleet reports of a run.
type replicaReplay struct {
	Requests, Finished int
	Cached             float64                    `json:"cache_hit_rate"`
	TTFT               struct{ P50, P99 float64 } `json:"ttft_ms"`
}

// replays carries out one run on virtual time.
func (r *runner) replays(ctx context.Context, x *Replicated, seed int) (of replicaReplay, err error) {
	age := ReplicaAge
	switch {
	case x.Gateways == 1:
		age = 0
	case x.Alone:
		age = 1000 * time.Hour
	}
	args := []string{r.options.Binary, "fleet", "synthetic:" + ReplicaWorkload(x.Offered, ReplicaOffline), "--engines", strconv.Itoa(ReplicaEngines), "--policy", "cost", "--queue", "on", "--speed", "1", "--seed", strconv.Itoa(seed),
		"--gateways", strconv.Itoa(x.Gateways), "--age", age.String(), "--json", "-"}
	p, err := lab.Start(append(args, replicaFlags()...), r.environment)
	if err != nil {
		return of, err
	}
	defer p.Stop()
	within, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	out, err := p.Wait(within)
	if err != nil {
		return of, fmt.Errorf("weir fleet does not end: %w", err)
	}
	var answer struct {
		Cells []struct {
			Runs []replicaReplay
		}
	}
	if err := json.Unmarshal(out, &answer); err != nil || len(answer.Cells) != 1 || len(answer.Cells[0].Runs) != 1 {
		return of, fmt.Errorf("weir fleet: %w: %s", err, p.Problem())
	}
	return answer.Cells[0].Runs[0], nil
}

// replicated carries out one live run: each gateway gets every n-th request.
func (r *runner) replicated(ctx context.Context, x *Replicated, words *content.Words) error {
	b, err := r.startReplicas(ctx, replicaBedding{kind: planeKind(), engines: ReplicaEngines, engine: replicaFlags(), options: ",max-running=" + strconv.Itoa(ReplicaRunning), gateways: x.Gateways, alone: x.Alone})
	defer b.stop()
	if err != nil {
		return err
	}
	before, err := b.lost(ctx)
	if err != nil {
		return err
	}
	lasts := replicaLasts(&r.options)
	starts := time.Now().Add(500 * time.Millisecond)
	warms := replicaWarms(&r.options)
	seen := &replicasSeen{from: trace.Stamp(starts) + int64(warms)}
	x.Measured = (lasts - warms).Seconds()
	if err := b.offer(ctx, starts, x.Offered, lasts, words, func(_ int, s *load.Sample) { seen.take(s) }); err != nil {
		return err
	}
	seen.figures(x)
	after, err := b.lost(ctx)
	x.Lost = (after - before) / (ReplicaEngines * lasts.Seconds())
	return err
}

func planeKind() faultKind { return faultKinds()[0] }

// offer returns each gateway its part of a load, and waits for the end of all requests. take is
// called with the number of the gateway.
func (b *replicaBed) offer(ctx context.Context, starts time.Time, rate float64, lasts time.Duration, words *content.Words, take func(gateway int, s *load.Sample)) error {
	running, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	errs := make([]error, len(b.replicas))
	for i, g := range b.replicas {
		w, err := workload.NewSynthetic(ReplicaWorkload(rate, lasts), workload.Options{Seed: 1, Texts: true})
		if err != nil {
			return err
		}
		all.Go(func() {
			_, errs[i] = load.Run(running, load.Plan{URL: g.url, Model: "weir-sim", Workload: w, Seed: 1, Worker: i + 1, Workers: len(b.replicas), StartAt: starts,
				Body: map[string]any{"ignore_eos": true}, Verify: words, OnSample: func(s *load.Sample) { take(i, s) }})
			if errs[i] != nil {
				stop()
			}
		})
	}
	all.Wait()
	return cmp.Or(ctx.Err(), errors.Join(errs...))
}

// replicasSeen are the requests of a run. Those that were to come from some moment on are
// measured, and all are verified.
type replicasSeen struct {
	from int64

	mu             sync.Mutex
	prompt, cached int
	ttft           []float64
	failed, wrong  int
	lost           int
	first          string
}

func (s *replicasSeen) take(x *load.Sample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x.Outcome != load.Complete {
		if s.failed++; s.first == "" {
			s.first = fmt.Sprintf("%s: %.200s", cmp.Or(string(x.Kind), x.Outcome.String()), x.Detail)
		}
		s.wrong += one(x.Outcome == load.Corrupt)
		s.lost += one(x.Kind == load.KindLost)
		return
	}
	if x.Intended < s.from {
		return
	}
	s.prompt, s.cached = s.prompt+x.PromptTokens, s.cached+x.CachedTokens
	s.ttft = append(s.ttft, float64(x.FirstToken-x.Intended)/1e9)
}

func (s *replicasSeen) figures(x *Replicated) {
	slices.Sort(s.ttft)
	x.Requests, x.Failed, x.FirstError, x.Corrupt, x.LostTokens = len(s.ttft), s.failed, s.first, s.wrong, s.lost
	x.TTFT50, x.TTFT99 = percentile(s.ttft, 0.5), percentile(s.ttft, 0.99)
	x.Cached = float64(s.cached) / float64(max(s.prompt, 1))
}

// widowed kills one of four gateways under load. The clients of the others must not notice.
func (r *runner) widowed(ctx context.Context, x *Widowed, rate float64, words *content.Words) error {
	x.Gateways = 4
	b, err := r.startReplicas(ctx, replicaBedding{kind: planeKind(), engines: ReplicaEngines, engine: replicaFlags(), options: ",max-running=" + strconv.Itoa(ReplicaRunning), gateways: x.Gateways})
	defer b.stop()
	if err != nil {
		return err
	}
	lasts := replicaLasts(&r.options) / 2
	starts := time.Now().Add(500 * time.Millisecond)
	kill := make(chan error, 1)
	time.AfterFunc(time.Until(starts)+lasts/2, func() { kill <- b.replicas[0].process.Signal(syscall.SIGKILL) })
	var mu sync.Mutex
	err = b.offer(ctx, starts, rate, lasts, words, func(gateway int, s *load.Sample) {
		mu.Lock()
		defer mu.Unlock()
		failed := s.Outcome != load.Complete
		x.Corrupt += one(s.Outcome == load.Corrupt)
		if gateway == 0 {
			x.Own, x.OwnFailed = x.Own+1, x.OwnFailed+one(failed)
			return
		}
		x.Others, x.Noticed = x.Others+1, x.Noticed+one(failed)
		if failed && x.FirstError == "" {
			x.FirstError = fmt.Sprintf("%s: %.200s", cmp.Or(string(s.Kind), s.Outcome.String()), s.Detail)
		}
	})
	if err != nil {
		return err
	}
	return <-kill // the load has lasted for longer than until then
}

// The streams of rolling restarts.
const (
	rolledEngines = 2
	rolledStep    = 40 * time.Millisecond
	rolledInput   = 32 // tokens
)

// rolled restarts two gateways, one after the other, under streams that come through a
// service.
func (r *runner) rolled(ctx context.Context, x *Restarted, k faultKind, words *content.Words) error {
	life := r.options.replicaLife()
	drain, delay := 4*life+10*time.Second, 5*time.Minute // a second signal ends the delay
	if !x.Covered {
		drain = life / 8
	}
	x.Life, x.Drain = life.Seconds(), drain.Seconds()
	b, err := r.startReplicas(ctx, replicaBedding{kind: k, engines: rolledEngines, gateways: 2,
		engine: []string{"--cost", "constant", "--prefill-cost", rolledStep.String(), "--decode-cost", rolledStep.String(), "--max-running-requests", strconv.Itoa(2 * r.options.Streams)},
		serve:  []string{"--shutdown-delay", delay.String(), "--drain-timeout", drain.String()}})
	defer b.stop()
	if err != nil {
		return err
	}
	s, err := startService(b.replicas)
	if err != nil {
		return err
	}
	defer s.stop()
	running, stop := context.WithCancel(ctx)
	defer stop()
	f := &flow{life: life, streams: r.options.Streams, plan: load.Plan{URL: s.url, Model: "weir-sim", Rate: float64(r.options.Streams) / life.Seconds(), Arrival: workload.Constant,
		Timeout: time.Minute + 10*life, InputTokens: rolledInput, OutputTokens: int(life / rolledStep), Body: map[string]any{"ignore_eos": true}, Verify: words}}
	over := make(chan struct{})
	offered := make(chan error, 1)
	go func() { offered <- f.run(running, over) }()
	if err := f.roll(running, b, s); err != nil {
		stop()
		<-offered
		return err
	}
	close(over)
	if err := <-offered; err != nil {
		return err
	}
	f.figures(x)
	return nil
}

// flow is streams that come at a constant rate.
type flow struct {
	life    time.Duration
	streams int // at once
	plan    load.Plan
	live    load.Live

	mu                                   sync.Mutex
	complete, explicit, otherwise, wrong int
	firstExplicit, firstOther            string
	together                             int64
}

// run begins streams until over is closed, and waits for the end of all.
func (f *flow) run(ctx context.Context, over <-chan struct{}) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	errs := make(chan error, 1)
	wave := max(f.life/4, 250*time.Millisecond)
	from := time.Now().Add(100 * time.Millisecond)
	for n := uint64(1); ; n++ {
		plan := f.plan
		plan.StartAt, plan.Duration, plan.Seed, plan.OnSample, plan.Live = from, wave, n, f.take, &f.live
		all.Go(func() {
			if _, err := load.Run(ctx, plan); err != nil {
				select {
				case errs <- err:
				default: // the first one is enough
				}
			}
		})
		from = from.Add(wave)
		select {
		case <-over:
			all.Wait()
			select {
			case err := <-errs:
				return err
			default:
				return nil
			}
		case err := <-errs:
			stop()
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Until(from)):
		}
	}
}

// roll restarts the gateways of a bed, one after the other, while streams are there.
func (f *flow) roll(ctx context.Context, b *replicaBed, s *service) error {
	for _, g := range b.replicas {
		if err := f.filled(ctx); err != nil {
			return err
		}
		if err := b.restart(ctx, g, s); err != nil {
			return fmt.Errorf("a gateway's restart: %w", err)
		}
	}
	return f.filled(ctx) // those that begin after the last restart are served too
}

// filled waits until nine tenths of the streams are there at once.
func (f *flow) filled(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, 10*f.life+30*time.Second)
	defer cancel()
	for {
		r := f.live.Read()
		now := r.Begun - r.Ended()
		f.together = max(f.together, now)
		if now >= int64(f.streams*9/10) {
			return nil
		}
		if lab.Sleep(within, 20*time.Millisecond) != nil {
			return fmt.Errorf("%d of %d streams are there at once: %w", now, f.streams, cmp.Or(ctx.Err(), within.Err()))
		}
	}
}

// take counts a stream that has ended. An explicit error is one that the client gets as such:
// an error event in the stream, or a status other than 200.
func (f *flow) take(s *load.Sample) {
	f.mu.Lock()
	defer f.mu.Unlock()
	why := fmt.Sprintf("%s: %.200s", cmp.Or(string(s.Kind), s.Outcome.String()), s.Detail)
	switch {
	case s.Outcome == load.Complete:
		f.complete++
	case s.Outcome == load.Errored && (s.Kind == load.KindErrorEvent || strings.HasPrefix(string(s.Kind), string(load.KindStatus))):
		f.explicit++
		f.firstExplicit = cmp.Or(f.firstExplicit, why)
	default:
		f.otherwise++
		f.wrong += one(s.Outcome == load.Corrupt)
		f.firstOther = cmp.Or(f.firstOther, why)
	}
}

func (f *flow) figures(x *Restarted) {
	f.mu.Lock()
	defer f.mu.Unlock()
	x.Streams, x.Complete, x.Explicit, x.Otherwise, x.Corrupt = f.complete+f.explicit+f.otherwise, f.complete, f.explicit, f.otherwise, f.wrong
	x.Together = int(f.together)
	x.FirstError = f.firstOther
	if x.Covered {
		x.FirstError = cmp.Or(f.firstOther, f.firstExplicit)
	}
}

// judgeReplicas judges all of a run.
func judgeReplicas(all *Replicas) (verdicts []Verdict) {
	of := map[string]*Replicated{}
	for i := range all.Runs {
		x := &all.Runs[i]
		if x.NotMeasured != "" {
			verdicts = append(verdicts, verdict(false, Failed, "%s gateways: not measured: %s", x.name(), x.NotMeasured))
			continue
		}
		of[x.name()] = x
		if x.Where == "live" {
			verdicts = append(verdicts, verdict(x.Corrupt == 0 && x.Failed == 0, Failed, "%s gateways: each request is answered, and no token is lost, repeated or exchanged: %s failed", x.name(), example(x.Failed, x.FirstError)))
		}
	}
	for _, where := range []string{"offline", "live"} {
		single := of[where+", 1"]
		if single == nil {
			verdicts = append(verdicts, verdict(false, Failed, "%s: one gateway was not measured, so there is nothing to compare with", where))
			continue
		}
		for _, n := range []string{"2", "4"} {
			x, alone := of[where+", "+n], of[where+", "+n+" alone"]
			if x == nil || alone == nil {
				verdicts = append(verdicts, verdict(false, Failed, "%s: %s gateways were not run beside the control", where, n))
				continue
			}
			if short := min(single.Measured, x.Measured, alone.Measured); short < replicaRead.Seconds() {
				verdicts = append(verdicts, figure(false, "%s, %s gateways: not judged: %.0f s after the caches have warmed up are too short for a p99; give at least --duration %v", where, n, short, 9*(replicaWarm+replicaRead)))
				continue
			}
			captured, times := x.beside(single)
			soon := figure(times <= replicaTimes && (where == "offline" || single.Lost <= replicaLost), "%s, %s gateways: TTFT p99 is at most %.4g times that of one%s: %.2f times, %.3f s and %.3f s", where, n, replicaTimes, x.over(), times, x.TTFT99, single.TTFT99)
			if lost := max(single.Lost, x.Lost); soon.Outcome == Missed && lost > replicaLost {
				soon.Text += fmt.Sprintf("; the machine had no time for the engines for %.0f %% of theirs", 100*lost)
			}
			verdicts = append(verdicts,
				figure(captured >= replicaCaptured, "%s, %s gateways: at least %.4g of one's reuse is captured: %.3f, %.1f %% and %.1f %% of prompt tokens", where, n, replicaCaptured, captured, 100*x.Cached, 100*single.Cached),
				soon)
			captured, times = alone.beside(single)
			control := verdict(captured < replicaCaptured && times > replicaTimes, Failed, "%s: the control, %s gateways that do not know of each other, captures less and is later: %.3f, %.2f times", where, n, captured, times)
			if control.Outcome == Failed {
				control.Text += "; it kept up, so this run shows nothing: give it more --duration"
			}
			verdicts = append(verdicts, control)
		}
	}
	return append(verdicts, append(all.Killed.judge(), judgeRestarts(all.Restarted)...)...)
}

// over names the runs that a time is of.
func (x *Replicated) over() string {
	if x.Seeds < 2 {
		return ""
	}
	return fmt.Sprintf(" in the geometric mean of %d seeds", x.Seeds)
}

// beside compares a run with that of one gateway.
func (x *Replicated) beside(single *Replicated) (captured, times float64) {
	if single.Cached > 0 {
		captured = x.Cached / single.Cached
	}
	return captured, x.TTFT99 / max(single.TTFT99, 0.001)
}

func (x *Widowed) judge() []Verdict {
	if x.NotMeasured != "" {
		return []Verdict{verdict(false, Failed, "a gateway that is killed: not measured: %s", x.NotMeasured)}
	}
	return []Verdict{
		verdict(x.Others > 0 && x.Noticed == 0 && x.Corrupt == 0, Failed, "one of %d gateways is killed: of the %d requests of the others' clients, failed: %s; answers with lost or wrong tokens: %d", x.Gateways, x.Others, example(x.Noticed, x.FirstError), x.Corrupt),
		verdict(x.OwnFailed > 0, Failed, "its own clients notice: %d of %d requests failed", x.OwnFailed, x.Own),
	}
}

func judgeRestarts(rows []Restarted) (verdicts []Verdict) {
	for i := range rows {
		x := &rows[i]
		switch {
		case x.NotMeasured != "":
			verdicts = append(verdicts, verdict(false, Failed, "%s: the rolling restart was not measured: %s", x.Kind, x.NotMeasured))
		case x.Covered:
			verdicts = append(verdicts, verdict(x.Complete > 0 && x.Complete == x.Streams, Failed, "%s: where the time to drain covers the streams, none is lost by the restarts: %d of %d are whole; not: %s",
				x.Kind, x.Complete, x.Streams, example(x.Explicit+x.Otherwise, x.FirstError)))
		default:
			verdicts = append(verdicts,
				verdict(x.Otherwise == 0, Failed, "%s: where it does not, each stream is whole or ends with an explicit error: %d whole, %d errors; otherwise: %s", x.Kind, x.Complete, x.Explicit, example(x.Otherwise, x.FirstError)),
				verdict(x.Explicit > 0, Failed, "%s: a short time to drain ends streams, so the restarts met some: %d", x.Kind, x.Explicit))
		}
	}
	if len(rows) == 0 {
		verdicts = append(verdicts, verdict(false, Failed, "no rolling restart was run"))
	}
	return verdicts
}

// replicasTables are the rows for a person.
func replicasTables(all *Replicas) [][][]string {
	runs := [][]string{{"gateways", "offered", "requests", "failed", "cached", "TTFT", "", "engines'"}, {"", "/s", "", "", "%", "p50 s", "p99 s", "lost %"}}
	for _, x := range all.Runs {
		if x.NotMeasured == "" { // otherwise its verdict says why
			runs = append(runs, []string{x.name(), fmt.Sprintf("%.1f", x.Offered), fmt.Sprint(x.Requests), fmt.Sprint(x.Failed), fmt.Sprintf("%.1f", 100*x.Cached), fmt.Sprintf("%.3f", x.TTFT50), fmt.Sprintf("%.3f", x.TTFT99), fmt.Sprintf("%.1f", 100*x.Lost)})
		}
	}
	restarts := [][]string{{"restarts", "stream", "drain", "at", "streams", "whole", "explicit", "otherwise"}, {"", "s", "s", "once", "", "", "errors", ""}}
	for _, x := range all.Restarted {
		if x.NotMeasured == "" {
			restarts = append(restarts, []string{x.Kind, fmt.Sprintf("%.1f", x.Life), fmt.Sprintf("%.1f", x.Drain), fmt.Sprint(x.Together), fmt.Sprint(x.Streams), fmt.Sprint(x.Complete), fmt.Sprint(x.Explicit), fmt.Sprint(x.Otherwise)})
		}
	}
	return [][][]string{runs, restarts}
}
