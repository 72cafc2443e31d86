package offline

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/workload"
	"weir/internal/workload/latency"
)

// Report is the result of a replay. Times are virtual, unless stated otherwise.
type Report struct {
	// Workload, Cost and Seed are as the caller put them.
	Workload string `json:"workload"`
	Cost     string `json:"cost"`
	Seed     uint64 `json:"seed"`
	Engine   Engine `json:"engine"`
	// Interrupted reports whether the replay ended before its workload; the other fields
	// then cover the requests taken until then.
	Interrupted bool `json:"interrupted"`

	// Requests = Finished + Refused + Unfinished. Only an interrupted replay has unfinished
	// requests.
	Requests   int `json:"requests"`
	Finished   int `json:"finished"`
	Refused    int `json:"refused"`
	Unfinished int `json:"unfinished"`
	// Refusals counts them by cause, with an example of each.
	Refusals []Refusal `json:"refusals,omitempty"`

	// Arrivals is the arrival process as it came, and Dispersion its index of
	// dispersion over windows of ten mean gaps.
	Arrivals   workload.Process `json:"arrivals"`
	Dispersion float64          `json:"dispersion"`

	// Tokens of the requests that finished. CachedTokens are those of prompts
	// that were found in the KV cache.
	PromptTokens  int64   `json:"prompt_tokens"`
	CachedTokens  int64   `json:"cached_tokens"`
	OutputTokens  int64   `json:"output_tokens"`
	CacheHitRate  float64 `json:"cache_hit_rate"` // cached share of prompt tokens
	Retractions   uint64  `json:"retractions"`
	EvictedTokens uint64  `json:"evicted_tokens"`

	// VirtualSeconds is the time from the first arrival to the last event. RealSeconds,
	// which the caller measures, is the duration of the replay.
	VirtualSeconds    float64 `json:"virtual_seconds"`
	RealSeconds       float64 `json:"real_seconds"`
	TokensPerSecond   float64 `json:"tokens_per_s"`
	RequestsPerSecond float64 `json:"requests_per_s"` // finished

	// TTFT is the time from arrival to the first token. TPOT is the mean time per token
	// after the first, for each request. ITL is the gap between a request's outputs, which
	// is one step or several. E2E is the time from arrival to the last token. Queue is the
	// time from arrival to the first place in a batch.
	TTFT  latency.Summary `json:"ttft_ms"`
	TPOT  latency.Summary `json:"tpot_ms"`
	ITL   latency.Summary `json:"itl_ms"`
	E2E   latency.Summary `json:"e2e_ms"`
	Queue latency.Summary `json:"queue_ms"`

	// Levels over time: the mean and percentiles are weighted by the virtual time for which
	// a level lasted. KVUsed are the tokens of the KV cache that requests hold, KVKept
	// those kept for later prompts. In a cache without a limit KVUsed are the tokens of
	// generating requests, and nothing is kept.
	Running Level `json:"running"`
	Waiting Level `json:"waiting"`
	KVUsed  Level `json:"kv_used_tokens"`
	KVKept  Level `json:"kv_kept_tokens"`

	// Steps is the number of the engine's steps, Busy the share of time that they fill.
	// Decode and Prefill count per step, over steps that have any: requests that got their
	// next token, and prompt tokens. StepTime is how long steps took.
	Steps    uint64          `json:"steps"`
	Busy     float64         `json:"busy"`
	Decode   Level           `json:"decode_batch"`
	Prefill  Level           `json:"prefill_tokens"`
	StepTime latency.Summary `json:"step_ms"`
}

// Engine are the options that shape the engine's figures.
type Engine struct {
	MaxRunning     int     `json:"max_running_requests"`
	MaxQueued      int     `json:"max_queued_requests"` // 0: no bound
	StepTokens     int     `json:"step_tokens"`
	ChunkedPrefill int     `json:"chunked_prefill_size"`
	ContextLength  int     `json:"context_length"`
	KVTokens       int     `json:"kv_tokens"` // 0: unlimited
	PageSize       int     `json:"page_size"`
	DPSize         int     `json:"dp_size"`
	Speculation    float64 `json:"speculation"`
}

// Refusal is why requests were not taken.
type Refusal struct {
	Cause   string `json:"cause"`
	Count   int    `json:"count"`
	Example string `json:"example"`
}

// Level summarises a number that changes with time or from step to step.
type Level struct {
	Mean float64 `json:"mean"`
	P50  int64   `json:"p50"`
	P90  int64   `json:"p90"`
	P99  int64   `json:"p99"`
	Max  int64   `json:"max"`
}

// longest is the largest latency that percentiles resolve: a backlog of a month.
const longest = 30 * 24 * time.Hour

// mostLevel is the largest level that percentiles resolve.
const mostLevel = 1 << 40

// level collects a Level.
type level struct {
	hist   *hdrhistogram.Histogram
	sum    float64
	weight int64
	most   int64
}

func newLevel() level { return level{hist: hdrhistogram.New(1, mostLevel, 3)} }

func (l *level) add(v, weight int64) {
	l.sum += float64(v) * float64(weight)
	l.weight += weight
	l.most = max(l.most, v)
	// Clamped values are always in range.
	_ = l.hist.RecordValues(min(v, mostLevel), weight)
}

func (l *level) summary() Level {
	if l.weight == 0 {
		return Level{}
	}
	at := func(q float64) int64 { return min(l.hist.ValueAtQuantile(q), l.most) }
	return Level{Mean: l.sum / float64(l.weight), P50: at(50), P90: at(90), P99: at(99), Max: l.most}
}

// figures collects a report.
type figures struct {
	arrivals                     []float64 // s
	finished, refused            int
	refusals                     map[string]*Refusal
	prompts, cached, outputs     int64
	ttft, tpot, itl, e2e, queued latency.Recorder
	running, waiting, kv, kept   level
	decode, prefill              level
	stepTime                     latency.Recorder
	busy                         int64 // ns
	gapNS, gapN                  int64 // gaps of one length, not yet recorded
}

func newFigures() figures {
	f := figures{refusals: map[string]*Refusal{}}
	for _, r := range []*latency.Recorder{&f.ttft, &f.tpot, &f.itl, &f.e2e, &f.queued, &f.stepTime} {
		*r = latency.New(longest)
	}
	for _, l := range []*level{&f.running, &f.waiting, &f.kv, &f.kept, &f.decode, &f.prefill} {
		*l = newLevel()
	}
	return f
}

func (f *figures) arrive(at int64) { f.arrivals = append(f.arrivals, float64(at)/1e9) }

// hold records that levels kept their values for a time.
func (f *figures) hold(loads []sim.Load, ns int64) {
	var sum sim.Load
	for i := range loads {
		l := &loads[i]
		sum.Running += l.Running
		sum.Waiting += l.Transferring + l.Waiting
		sum.KVUsed += l.KVUsed
		sum.KVIdle += l.KVIdle
	}
	f.running.add(int64(sum.Running), ns)
	f.waiting.add(int64(sum.Waiting), ns)
	f.kv.add(int64(sum.KVUsed), ns)
	f.kept.add(int64(sum.KVIdle), ns)
}

// step books a step's batch.
func (f *figures) step(s *sim.Step) {
	took := s.End - s.Start
	if took == 0 {
		return // nothing was computed: it tells of requests that ended
	}
	f.busy += took
	f.stepTime.Add(took)
	if s.Batch.Decode > 0 {
		f.decode.add(int64(s.Batch.Decode), 1)
	}
	if s.Batch.Prefill > 0 {
		f.prefill.add(int64(s.Batch.Prefill), 1)
	}
}

// gap books the time between two outputs of a request. In most steps all
// requests have the same, so equal ones are recorded together.
func (f *figures) gap(ns int64) {
	if ns != f.gapNS {
		f.flush()
		f.gapNS = ns
	}
	f.gapN++
}

func (f *figures) flush() {
	if f.gapN > 0 {
		f.itl.AddN(f.gapNS, f.gapN)
		f.gapN = 0
	}
}

func (f *figures) finish(r *Record) {
	f.finished++
	f.prompts += int64(r.Input)
	f.cached += int64(r.Cached)
	f.outputs += int64(r.Output)
	f.ttft.Add(int64(r.TTFT()))
	f.e2e.Add(r.Finish - r.Arrival)
	f.queued.Add(r.Stamps.QueueEnd - r.Arrival)
	if r.Output > 1 {
		f.tpot.Add(int64(r.TPOT()))
	}
}

// refuse counts a refusal under its code, or under its words where it has none.
func (f *figures) refuse(l *live, err error) {
	f.refused++
	cause := err.Error()
	var coded *infer.Error
	if errors.As(err, &coded) {
		cause = coded.Code.String()
	}
	r := f.refusals[cause]
	if r == nil {
		r = &Refusal{Cause: cause, Example: fmt.Sprintf("request %d", l.index+1)}
		if l.line > 0 {
			r.Example = fmt.Sprintf("line %d", l.line)
		}
		if coded != nil {
			r.Example += ": " + coded.Message
		}
		f.refusals[cause] = r
	}
	r.Count++
}

func (r *runner) report() *Report {
	f, o, n := &r.figures, r.opts, r.core.Counts()
	f.flush()
	out := &Report{
		Engine: Engine{
			MaxRunning: o.MaxRunning, MaxQueued: o.MaxQueued, StepTokens: o.StepTokens, ChunkedPrefill: o.ChunkedPrefill,
			ContextLength: o.ContextLength, KVTokens: o.KVTokens, PageSize: o.PageSize, DPSize: o.DPSize, Speculation: o.Speculation,
		},
		Interrupted: r.interrupted,
		Requests:    r.taken, Finished: f.finished, Refused: f.refused, Unfinished: r.taken - r.ended,
		Arrivals:     workload.Describe(slices.Values(f.arrivals)),
		PromptTokens: f.prompts, CachedTokens: f.cached, OutputTokens: f.outputs,
		VirtualSeconds: float64(r.now) / 1e9,
		TTFT:           f.ttft.Summary(), TPOT: f.tpot.Summary(), ITL: f.itl.Summary(), E2E: f.e2e.Summary(), Queue: f.queued.Summary(),
		Running: f.running.summary(), Waiting: f.waiting.summary(), KVUsed: f.kv.summary(), KVKept: f.kept.summary(),
		Retractions: n.Retracted, EvictedTokens: n.Evicted,
		Steps: n.Steps, Decode: f.decode.summary(), Prefill: f.prefill.summary(), StepTime: f.stepTime.Summary(),
	}
	if out.Arrivals.Rate > 0 {
		out.Dispersion = workload.Dispersion(slices.Values(f.arrivals), windowGaps/out.Arrivals.Rate)
	}
	if f.prompts > 0 {
		out.CacheHitRate = float64(f.cached) / float64(f.prompts)
	}
	if r.now > 0 {
		out.TokensPerSecond = float64(f.outputs) / out.VirtualSeconds
		out.RequestsPerSecond = float64(f.finished) / out.VirtualSeconds
		out.Busy = float64(f.busy) / float64(r.now)
	}
	for _, x := range f.refusals {
		out.Refusals = append(out.Refusals, *x)
	}
	slices.SortFunc(out.Refusals, func(a, b Refusal) int { return strings.Compare(a.Cause, b.Cause) })
	return out
}

// windowGaps is the length of a window of the index of dispersion, in mean
// gaps: long enough to see bursts, short enough for many windows.
const windowGaps = 10

// Text writes the report for a person.
func (r *Report) Text(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "workload    %s, seed %d\n", r.Workload, r.Seed)
	e := r.Engine
	fmt.Fprintf(&b, "engine      cost %s; %d running, %s queued, steps of %d tokens; KV %s",
		r.Cost, e.MaxRunning, orUnlimited(e.MaxQueued), e.StepTokens, orUnlimited(e.KVTokens))
	if e.KVTokens > 0 {
		fmt.Fprintf(&b, " tokens in pages of %d", e.PageSize)
	}
	if e.DPSize > 1 {
		fmt.Fprintf(&b, "; %d ranks, each with that", e.DPSize)
	}
	b.WriteString("\n")
	if r.Interrupted {
		fmt.Fprintf(&b, "INTERRUPTED after %s of virtual time: the figures are of the %d requests that arrived until then\n", latency.Seconds(r.VirtualSeconds), r.Requests)
	}
	fmt.Fprintf(&b, "requests    %d: %d finished, %d refused", r.Requests, r.Finished, r.Refused)
	if r.Unfinished > 0 {
		fmt.Fprintf(&b, ", %d unfinished", r.Unfinished)
	}
	b.WriteString("\n")
	for _, x := range r.Refusals {
		fmt.Fprintf(&b, "  refused   %d %s, e.g. %s\n", x.Count, x.Cause, x.Example)
	}
	if r.Arrivals.Rate > 0 {
		fmt.Fprintf(&b, "arrivals    %.3f/s realised, gap CV %.3f, lag-1 %.3f, dispersion %.2f\n",
			r.Arrivals.Rate, r.Arrivals.CV, r.Arrivals.Lag1, r.Dispersion)
	}
	fmt.Fprintf(&b, "tokens      %d prompt, %d of them cached (%.1f %%), %d out\n", r.PromptTokens, r.CachedTokens, 100*r.CacheHitRate, r.OutputTokens)
	fmt.Fprintf(&b, "throughput  %.1f tokens/s, %.3f requests/s\n", r.TokensPerSecond, r.RequestsPerSecond)
	fmt.Fprintf(&b, "steps       %d, busy %.1f %% of the time\n", r.Steps, 100*r.Busy)
	fmt.Fprintf(&b, "retractions %d; %d tokens evicted from the KV cache\n", r.Retractions, r.EvictedTokens)
	fmt.Fprintf(&b, "time        %s virtual in %s real", latency.Seconds(r.VirtualSeconds), latency.Seconds(r.RealSeconds))
	if r.RealSeconds > 0 {
		fmt.Fprintf(&b, ", %.0f times as fast", r.VirtualSeconds/r.RealSeconds)
	}
	b.WriteString("\n\n")
	r.tables(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// tables writes the latencies and the levels.
func (r *Report) tables(b *strings.Builder) {
	fmt.Fprintf(b, "%-14s %9s %9s %9s %9s %9s %9s\n", "ms", "count", "mean", "p50", "p90", "p99", "max")
	for _, row := range []struct {
		name string
		l    latency.Summary
	}{
		{"ttft", r.TTFT}, {"tpot", r.TPOT}, {"itl", r.ITL}, {"e2e", r.E2E}, {"queue", r.Queue}, {"step", r.StepTime},
	} {
		if l := row.l; l.Count > 0 {
			fmt.Fprintf(b, "%-14s %9d %9s %9s %9s %9s %9s\n", row.name, l.Count, latency.Millis(l.Mean), latency.Millis(l.P50), latency.Millis(l.P90), latency.Millis(l.P99), latency.Millis(l.Max))
		}
	}
	fmt.Fprintf(b, "\n%-14s %9s %9s %9s %9s %9s %9s\n", "level", "", "mean", "p50", "p90", "p99", "max")
	for _, row := range []struct {
		name string
		l    Level
	}{
		{"running", r.Running}, {"waiting", r.Waiting}, {"kv used", r.KVUsed}, {"kv kept", r.KVKept}, {"decode batch", r.Decode}, {"prefill tokens", r.Prefill},
	} {
		l := row.l
		fmt.Fprintf(b, "%-14s %9s %9.1f %9d %9d %9d %9d\n", row.name, "", l.Mean, l.P50, l.P90, l.P99, l.Max)
	}
}

func orUnlimited(n int) string {
	if n == 0 {
		return "unlimited"
	}
	return strconv.Itoa(n)
}
