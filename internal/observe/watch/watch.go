package watch

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/observe/busy"
	"weir/internal/trace"
)

// Options configure a Watch. Registry is required; everything else has a working zero
// value.
type Options struct {
	Registry prometheus.Registerer
	Log      *slog.Logger
	// Stood is NewCanary's.
	Stood func(time.Duration)
	// StallThreshold is from when on a time in which nothing was read is a stall; 0 is
	// never.
	StallThreshold time.Duration
	// SlowOperation is from when on an operation that holds a core is logged; 0 is never.
	SlowOperation time.Duration
	Limits        Limits
	Profiles      *Profiles // nil: none are kept
	// Load returns the work of the process. Pending returns, cheaply, how many streams have
	// output that was not taken. Nil means unknown.
	Load    func() Load
	Pending func() int64
}

// Load is the work that a process has.
type Load struct {
	Streams, Pending int64
	// Blocked is how many streams wait for clients that do not read.
	Blocked   int64
	QueueWait time.Duration // of the request that waits longest for an engine
}

// Watch observes the process: stalls by the canary, triggers by looks.
//
// Goroutines: the canary's, one that looks, and one while a profile is taken. All have
// ended when Run returns. A nil Watch does nothing.
type Watch struct {
	o      Options
	canary *Canary
	meter  busy.Meter
	delays delays
	cores  int

	metrics watchMetrics

	reading sync.Mutex // of figures
	figures figures

	// The canary's.
	tick  Sample
	known [4]Sample // the latest looks', the latest first; under reading

	latest   atomic.Int64 // the end of the latest stall
	ended    atomic.Int64 // of the latest request
	foreign  foreign      // the canary's
	logged   int64        // until when long operations were logged; look's
	mu       sync.Mutex
	stalls   [maxStalls]Stall // a ring
	total    int              // put into it
	stalled  bool             // since the look before
	pending  int64            // the fewest since then
	state    State
	spread   [delaySeconds]spread // of the last seconds, a ring
	events   chan Trigger
	detector *Detector
}

// delaySeconds is how long back a percentile goes.
const delaySeconds = 10

// lookEvery is the interval of looks; reading the kernel's counters costs some 100 us.
const lookEvery = 250 * time.Millisecond

// New makes a watch; Run lets it watch.
func New(o Options) *Watch {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Load == nil {
		o.Load = func() Load { return Load{} }
	}
	if o.Pending == nil {
		o.Pending = func() int64 { return 0 }
	}
	w := &Watch{o: o, canary: NewCanary(o.Registry, o.Stood), cores: runtime.GOMAXPROCS(0), pending: math.MaxInt64,
		figures: newFigures(), detector: NewDetector(o.Limits), events: make(chan Trigger, NumTriggers)}
	w.canary.seen = w.saw
	w.state.Triggers, w.state.Running, w.state.Busy = []ActiveTrigger{}, []RunningSpan{}, []Share{}
	w.register(o.Registry)
	return w
}

// Meter is for those who do named operations; nil of a nil Watch.
func (w *Watch) Meter() *busy.Meter {
	if w == nil {
		return nil
	}
	return &w.meter
}

// Delayed notes how long a first token took from its engine to its client.
func (w *Watch) Delayed(d time.Duration) {
	if w != nil {
		w.delays.observe(d)
	}
}

// figures reads the parts of a sample that are not read with each tick.
type figures struct {
	system  *system
	gc      debug.GCStats
	runtime []metrics.Sample
	latency []uint64 // the histogram's counts, at the look before
}

func newFigures() figures {
	return figures{system: newSystem(), runtime: []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}, {Name: "/sched/latencies:seconds"}}}
}

func (f *figures) read(to *Sample) {
	f.system.read(to)
	debug.ReadGCStats(&f.gc)
	to.GCPause = f.gc.PauseTotal
	metrics.Read(f.runtime)
	if v := f.runtime[0].Value; v.Kind() == metrics.KindFloat64 {
		to.GCCPU = time.Duration(v.Float64() * 1e9)
	}
}

// schedP99 returns the 99th percentile of the time that goroutines waited for a core since
// the call before, according to the runtime's samples.
func (f *figures) schedP99() time.Duration {
	v := f.runtime[1].Value
	if v.Kind() != metrics.KindFloat64Histogram {
		return 0
	}
	h := v.Float64Histogram()
	n := uint64(0)
	before := func(i int) uint64 {
		if i < len(f.latency) {
			return f.latency[i]
		}
		return 0
	}
	for i, c := range h.Counts {
		n += c - before(i)
	}
	left, p := int64((n+99)/100), 0.0
	for i, c := range slices.Backward(h.Counts) {
		if n == 0 {
			break
		}
		if left -= int64(c - before(i)); left <= 0 {
			p = h.Buckets[i+1]
			if math.IsInf(p, 0) {
				p = h.Buckets[i]
			}
			break
		}
	}
	f.latency = append(f.latency[:0], h.Counts...)
	return time.Duration(p * 1e9)
}

// saw is called by the canary at each of its moments: at read everything was read that was
// late by at most d. It reads what costs less than a microsecond, so that the activity
// during a stall is known to within 10 ms.
func (w *Watch) saw(read int64, d time.Duration) {
	now := Sample{At: read, CPU: cpuTime(), Busy: w.meter.Spent(read)}
	pending := w.o.Pending()
	if limit := w.o.StallThreshold; limit > 0 && d > limit && w.tick.At != 0 {
		w.stall(read-int64(d), read, &now)
	}
	w.mu.Lock()
	w.pending = min(w.pending, pending)
	w.mu.Unlock()
	w.tick = now
}

// stall records and logs a stall that has ended, and starts a capture.
func (w *Watch) stall(from, to int64, after *Sample) {
	spans := w.meter.During(from, to)
	w.reading.Lock()
	w.figures.read(after)
	before := w.knownAt(from)
	if before.At == 0 { // nobody had looked yet
		before = *after
	}
	w.knows(after)
	w.reading.Unlock()
	before.CPU, before.Busy = w.tick.CPU, w.tick.Busy
	s := explain(from, to, &before, after, spans, w.cores)
	load := w.o.Load()
	s.Start, s.Streams, s.Pending = trace.Wall(from).UTC(), load.Streams, load.Pending
	s.Idle = load.Streams == 0 && w.ended.Load() <= from && !s.named()
	ours := s.HeldBy != HeldByNobody && !s.Idle
	w.mu.Lock()
	w.stalls[w.total%maxStalls] = s
	w.total++
	w.stalled = w.stalled || ours
	w.mu.Unlock()
	w.latest.Store(to)
	if s.Idle {
		w.metrics.idle.Inc()
		return
	}
	w.metrics.stalls.WithLabelValues(s.HeldBy).Inc()
	w.metrics.stalled.Add(s.MS / 1e3)
	if !ours {
		if of, due := w.foreign.add(&s, s.Start); due {
			w.o.Log.Warn("stall: others had the cores while requests were in flight; the next line about such stalls comes in an hour or later",
				"stalls", of.count, "longest_ms", math.Round(of.longest), "since", s.Start.Format(time.RFC3339Nano), "why", s.Why, "streams", s.Streams)
		}
		return
	}
	var ran []string
	for i := range s.Operations {
		ran = append(ran, s.Operations[i].words())
	}
	words := []any{"ms", math.Round(s.MS), "since", s.Start.Format(time.RFC3339Nano), "held_by", s.HeldBy, "why", s.Why, "operations", strings.Join(ran, "; "), "streams", s.Streams, "pending", s.Pending,
		"cpu_ms", math.Round(s.CPUMS), "run_delay_ms", math.Round(s.RunDelayMS), "steal_ms", math.Round(s.StealMS)}
	w.o.Log.Warn("stall: nothing was read, whatever was ready", words...)
	select {
	case w.events <- TriggerStall:
	default: // one waits to be seen
	}
}

// knows keeps a sample.
func (w *Watch) knows(s *Sample) {
	copy(w.known[1:], w.known[:])
	w.known[0] = *s
}

// knownAt returns the latest sample from before a moment. When a stall ends, a look may
// come before the canary, and such a sample includes the stall.
func (w *Watch) knownAt(at int64) (s Sample) {
	for _, s = range w.known {
		if s.At <= at {
			return s
		}
	}
	return s
}

// Stalls returns the latest, the latest first, and how many there were.
func (w *Watch) Stalls() (latest []Stall, total int) {
	latest = []Stall{}
	if w == nil {
		return latest, 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range min(w.total, maxStalls) {
		latest = append(latest, w.stalls[(w.total-1-i)%maxStalls])
	}
	return latest, w.total
}

// Overlap returns the stalls within a time, the latest of them, in order. A request without
// a stall pays two loads.
func (w *Watch) Overlap(from, to int64) (seen []trace.Stall) {
	if w == nil || w.o.StallThreshold == 0 {
		return nil
	}
	w.ended.Store(to) // requests that end at once differ by less than a stall
	due := w.canary.due.Load()
	now := due != 0 && to-due > int64(w.o.StallThreshold)
	if w.latest.Load() <= from && !now {
		return nil
	}
	w.mu.Lock()
	for i := range min(w.total, maxStalls) {
		s := &w.stalls[(w.total-1-i)%maxStalls]
		if s.end() <= from || len(seen) == trace.MaxStalls {
			break
		}
		if s.StartNS < to {
			seen = append(seen, trace.Stall{Start: s.StartNS, End: s.end(), Why: s.HeldBy})
		}
	}
	w.mu.Unlock()
	slices.Reverse(seen)
	if now && (len(seen) == 0 || seen[len(seen)-1].End <= due) {
		// It continues, or has just ended: the canary has not reported it yet.
		seen = append(seen[max(0, len(seen)+1-trace.MaxStalls):], trace.Stall{Start: due, End: to})
	}
	return seen
}

// Run watches until ctx ends.
func (w *Watch) Run(ctx context.Context) error {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tasks.Go(func() { w.look(ctx, &tasks) })
	return w.canary.Run(ctx)
}

// look looks until ctx ends.
func (w *Watch) look(ctx context.Context, tasks *sync.WaitGroup) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	before := Sample{At: trace.Now(), CPU: cpuTime()}
	w.reading.Lock()
	w.figures.read(&before)
	w.figures.schedP99()
	w.knows(&before)
	w.reading.Unlock()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-w.events: // a stall, which has its look at once
		}
		after := Sample{At: trace.Now(), CPU: cpuTime()}
		after.Busy = w.meter.Spent(after.At)
		w.reading.Lock()
		w.figures.read(&after)
		sched := w.figures.schedP99()
		w.knows(&after)
		w.reading.Unlock()
		w.logLong(&after)
		change, state := w.judge(&before, &after, sched)
		w.tell(&change, state)
		if w.o.Profiles != nil && len(change.Began) > 0 {
			why := change.Began[0]
			tasks.Go(func() { w.o.Profiles.Capture(ctx, why) })
		}
		if after.At-before.At >= int64(lookEvery)/2 { // of less nothing can be said
			before = after
		}
	}
}

// logLong logs the operations that have ended since the look before and held a core for long. The
// time of an operation is by the clock, so it has held one only if the process used as much CPU.
func (w *Watch) logLong(after *Sample) {
	since := w.logged
	w.logged = after.At
	if w.o.SlowOperation <= 0 || since == 0 {
		return
	}
	for _, s := range w.meter.During(since, after.At) {
		took := s.End - s.Began
		if s.End == 0 || s.End <= since || took < int64(w.o.SlowOperation) {
			continue
		}
		w.reading.Lock()
		before := w.knownAt(s.Began)
		w.reading.Unlock()
		if used := after.CPU - before.CPU; int64(used) >= took/4*3 {
			w.o.Log.Info("an operation held a core", "operation", s.Op.String(), "ms", math.Round(millis(took)), "request_id", s.RequestID)
		}
	}
}

// judge makes a look of two samples, and returns what it changed.
func (w *Watch) judge(before, after *Sample, sched time.Duration) (Change, *State) {
	load, passed := w.o.Load(), max(after.At-before.At, 1)
	open, limit := descriptors()
	running := w.meter.Running()
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.delays.read()
	second := uint64(after.At) / uint64(time.Second)
	if uint64(before.At)/uint64(time.Second) != second {
		w.spread[second%delaySeconds] = now
	}
	l := Look{At: after.At, CPUShare: float64(after.CPU-before.CPU) / float64(passed) / float64(w.cores), Streams: load.Streams,
		Pending: w.pending, QueueWait: load.QueueWait, Stalled: w.stalled}
	if l.Pending == math.MaxInt64 {
		l.Pending = load.Pending
	}
	l.OutputP99, l.Outputs = now.p99(&w.spread[(second+1)%delaySeconds]) // some ten seconds ago
	w.pending, w.stalled = math.MaxInt64, false
	c := w.detector.Look(l)
	w.state = State{
		At: trace.Wall(after.At).UTC(), CPUShare: l.CPUShare, Cores: w.cores, RunDelayMS: millis(after.RunDelay - before.RunDelay), StealMS: millis(after.Steal - before.Steal),
		ThrottledMS: millis(after.Throttled - before.Throttled), GCPauseMS: millis(after.GCPause - before.GCPause), GCCPUMS: millis(after.GCCPU - before.GCCPU), SchedP99MS: millis(sched), OverMS: millis(passed),
		Streams: load.Streams, Pending: load.Pending, Blocked: load.Blocked, QueueWaitMS: millis(load.QueueWait), OutputP99MS: millis(l.OutputP99), Descriptors: open, DescriptorLimit: limit,
		Busy: shares(after.Busy.Sub(before.Busy), passed), Running: runningSpans(running, after.At), Triggers: []ActiveTrigger{},
	}
	for _, t := range w.detector.Active() {
		w.state.Triggers = append(w.state.Triggers, ActiveTrigger{t.String(), millis(after.At - w.detector.states[t].began)})
	}
	for _, t := range c.Began {
		w.metrics.triggers.WithLabelValues(t.String()).Inc()
	}
	w.metrics.count(after)
	state := w.state
	return c, &state
}

// State is the latest look: what was observed since the look before.
type State struct {
	At       time.Time `json:"at"`
	OverMS   float64   `json:"over_ms"`
	CPUShare float64   `json:"cpu_share"` // of Cores
	Cores    int       `json:"cores"`
	// RunDelayMS is how long the thread waited for a core that waited longest; StealMS is the
	// machine's.
	RunDelayMS      float64         `json:"run_delay_ms"`
	StealMS         float64         `json:"steal_ms"`
	ThrottledMS     float64         `json:"throttled_ms"`
	GCPauseMS       float64         `json:"gc_pause_ms"`
	GCCPUMS         float64         `json:"gc_cpu_ms"`
	SchedP99MS      float64         `json:"scheduling_p99_ms"`
	Streams         int64           `json:"streams"`
	Pending         int64           `json:"pending"`
	Blocked         int64           `json:"blocked_writes"`
	QueueWaitMS     float64         `json:"queue_wait_ms"`
	OutputP99MS     float64         `json:"output_delay_p99_ms"` // of ten seconds
	Descriptors     int64           `json:"descriptors"`
	DescriptorLimit int64           `json:"descriptor_limit"`
	Busy            []Share         `json:"busy"`
	Running         []RunningSpan   `json:"running"`
	Triggers        []ActiveTrigger `json:"triggers"`
}

// Share is how busy the process was with an operation, as a share of one core.
type Share struct {
	Operation string  `json:"operation"`
	Share     float64 `json:"share"`
}

// RunningSpan is an operation that runs.
type RunningSpan struct {
	Operation string  `json:"operation"`
	RequestID string  `json:"request_id,omitzero"`
	MS        float64 `json:"ms"`
}

// ActiveTrigger is a trigger that lasts.
type ActiveTrigger struct {
	Trigger string  `json:"trigger"`
	MS      float64 `json:"ms"`
}

// shares returns the time spent as shares of one core, the largest first.
func shares(spent busy.Spent, of int64) []Share {
	all := []Share{}
	for op, ns := range spent {
		if s := math.Round(float64(ns)/float64(of)*1e3) / 1e3; s > 0 {
			all = append(all, Share{busy.Op(op).String(), s})
		}
	}
	slices.SortFunc(all, func(a, b Share) int { return cmp.Compare(b.Share, a.Share) })
	return all
}

// maxRunning is how many of the running operations are reported.
const maxRunning = 16

func runningSpans(running []busy.Span, now int64) []RunningSpan {
	all := []RunningSpan{}
	for _, s := range running[:min(len(running), maxRunning)] {
		all = append(all, RunningSpan{s.Op.String(), s.RequestID, millis(max(now-s.Began, 0))})
	}
	return all
}

// State returns the state at the latest look.
func (w *Watch) State() State {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state
}

// tell logs each trigger that begins, continues or ends.
func (w *Watch) tell(c *Change, s *State) {
	for _, e := range c.Ended {
		w.o.Log.Info("a trigger is over", "trigger", e.Trigger.String(), "after", e.After.Round(time.Millisecond))
	}
	if !c.Line {
		return
	}
	var names, busyWith, runs []string
	for _, t := range s.Triggers {
		names = append(names, t.Trigger)
	}
	for _, b := range s.Busy {
		busyWith = append(busyWith, fmt.Sprintf("%s %.0f%%", b.Operation, 100*b.Share))
	}
	for _, r := range s.Running[:min(len(s.Running), 4)] {
		runs = append(runs, fmt.Sprintf("%s %.0f ms %s", r.Operation, r.MS, r.RequestID))
	}
	w.o.Log.Warn("under watch", "trigger", strings.Join(names, ","), "cpu", math.Round(s.CPUShare*100)/100, "streams", s.Streams, "pending", s.Pending,
		"busy", strings.Join(busyWith, ", "), "runs", strings.Join(runs, ", "), "queue_wait_ms", math.Round(s.QueueWaitMS), "output_delay_p99_ms", math.Round(s.OutputP99MS))
}
