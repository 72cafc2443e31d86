package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"weir/internal/load"
)

// The stages of a request as a client sees it, in their order. If an engine gives no
// stamps, its stages are one: StageEngine.
const (
	StageClient    = "client"        // from the intended time until the request was sent
	StageTransport = "transport"     // until the gateway, or without one the engine, had its first byte
	StageRead      = "read"          // until the gateway had the whole body
	StageTemplate  = "template"      // in the gateway, the chat template
	StageTokenWait = "tokenize wait" // in the gateway, for the tokenizing pool
	StageTokenize  = "tokenize"      // in the gateway, text to ids
	StageQueue     = "router queue"  // in the gateway, for an engine
	StageRetry     = "retries"       // earlier attempts at engines
	StageRouter    = "router"        // the rest of the gateway's time before the engine
	StageDispatch  = "dispatch"      // from the gateway to the engine
	StageIntake    = "engine intake" // until the engine had it in its queue
	StageWaiting   = "engine queue"  // until it was first in a batch
	StageBootstrap = "bootstrap"     // of a pair, until its halves had met
	StagePrefill   = "prefill"       // until the first token, or the prompt's end where that is all that is told
	StageTransfer  = "transfer"      // of a pair, until the prompt's KV was at the decode engine
	StageToRunning = "to running"    // of a pair, until the decode engine ran it
	StageEngine    = "engine"        // an engine's time that it does not tell apart
	StageOutput    = "engine output" // until the first output was sent
	StageHop       = "hop"           // until the gateway had read it: the engine's server process and the network
	StagePath      = "output path"   // until the gateway gave it to the kernel
	StageDelivery  = "delivery"      // until the client received it
	StageDecode    = "decode"        // until the last content was received, but for
	StageFlush     = "flush"         // the gateway's writes, which last where a client does not read
	StageEnd       = "end"           // until the last byte was
)

// stageOrder is the order in which a request meets them.
var stageOrder = []string{StageClient, StageTransport, StageRead, StageTemplate, StageTokenWait, StageTokenize, StageQueue, StageRetry, StageRouter, StageDispatch,
	StageIntake, StageWaiting, StageBootstrap, StagePrefill, StageTransfer, StageToRunning, StageEngine, StageOutput, StageHop, StagePath, StageDelivery, StageDecode, StageFlush, StageEnd}

// Stages are the names of all, in the order in which a request meets them.
func Stages() []string { return slices.Clone(stageOrder) }

// Span is a stage of a request.
type Span struct {
	Stage string
	// Start and For are nanoseconds; Start is since the intended time.
	Start, For int64
}

// Spans divides a request into stages; for a stream the first output has its place. The
// spans follow one another without gaps, from the intended time to the last byte. residual
// is the time that they do not explain; it is negative if stamps of different clocks
// contradict each other.
func (r *Row) Spans() (spans []Span, residual int64) {
	at := r.Intended
	var sum int64
	until := func(stage string, stamp int64) {
		if stamp == 0 {
			return
		}
		if d := stamp - at; d > 0 {
			spans = append(spans, Span{stage, at - r.Intended, d})
			sum += d
		}
		at = max(at, stamp)
	}
	until(StageClient, r.Sent)
	if g := r.Gateway; g != nil {
		until(StageTransport, r.Arrival)
		r.router(g, until, &at)
	}
	r.engine(until)
	if g := r.Gateway; g != nil {
		if r.FirstOutput != 0 {
			until(StageHop, r.FirstReceived)
		}
		flushed := max(g.Stages["flush"], 0)
		if !g.Stream && r.FirstSent != 0 && r.FirstSent >= r.LastReceived { // it was written when its engine was done
			until(StageDecode, r.LastReceived)
			until(StagePath, r.FirstSent)
			until(StageFlush, min(at+flushed, r.LastToken))
			until(StageEnd, r.LastByte)
			return spans, r.LastByte - r.Intended - sum
		}
		// The client's kernel has the bytes before the gateway's write returns, much
		// earlier if the gateway loses its core inside of the write.
		wrote := cmp.Or(r.FirstSent, r.FirstFlushed)
		until(StagePath, min(wrote, cmp.Or(r.FirstContent, wrote)))
		until(StageDelivery, r.FirstContent)
		if r.LastToken > at {
			if r.FirstSent != 0 && r.FirstFlushed != 0 && r.FirstFlushed > r.FirstSent { // of the first write the time is known
				flushed = max(0, flushed-(r.FirstFlushed-r.FirstSent))
			}
			// The duration of the others is known, but not their times: they are put last.
			until(StageDecode, r.LastToken-min(flushed, r.LastToken-at))
			until(StageFlush, r.LastToken)
		}
	}
	until(StageDelivery, r.FirstContent)
	until(StageDecode, r.LastToken)
	until(StageEnd, r.LastByte)
	return spans, r.LastByte - r.Intended - sum
}

// router divides the gateway's time before the engine into the stages of its ledger, the
// attempts before the last, and the rest. A request that was sent to no engine has all of
// its time there.
func (r *Row) router(g *Record, until func(string, int64), at *int64) {
	sent := r.ToServer
	if sent == 0 && r.FirstReceived == 0 {
		sent = cmp.Or(r.FirstFlushed, r.LastByte)
	}
	if sent == 0 {
		return
	}
	for _, part := range [...]struct{ stage, of string }{
		{StageRead, "read"}, {StageTemplate, "render"}, {StageTokenWait, "pool_wait"}, {StageTokenize, "tokenize"}, {StageQueue, "queue"},
	} {
		until(part.stage, *at+min(max(g.Stages[part.of], 0), max(0, sent-*at)))
	}
	if len(g.Attempts) > 1 && len(g.Attempts[0].Legs) > 0 {
		if first := g.Attempts[0].Legs[0].ToServer; first != 0 {
			until(StageRetry, *at+min(max(g.leg().ToServer-first, 0), max(0, sent-*at)))
		}
	}
	until(StageRouter, sent)
}

// engine divides the engine's time to the first output, as far as the engine reports
// stamps.
func (r *Row) engine(until func(string, int64)) {
	first := cmp.Or(r.FirstOutput, r.FirstReceived)
	if first == 0 && r.Gateway != nil && r.ToServer != 0 { // it was waited for until the end
		first = cmp.Or(r.FirstContent, r.LastByte)
	}
	if r.paired() {
		r.pair(until)
		until(StageEngine, first)
		return
	}
	if r.QueueStart == 0 || r.QueueEnd == 0 {
		until(StageEngine, first)
		return
	}
	if r.Gateway != nil {
		until(StageDispatch, r.ServerCreated)
	} else {
		until(StageTransport, r.ServerCreated)
	}
	until(StageIntake, r.QueueStart)
	until(StageWaiting, r.QueueEnd)
	if computed := cmp.Or(r.ServerFirstToken, r.PrefillEnd); computed == 0 {
		until(StageEngine, first)
		return
	} else {
		until(StagePrefill, computed)
	}
	if r.FirstOutput != 0 {
		until(StageOutput, r.FirstOutput)
		return
	}
	until(StageEngine, first)
}

// pair divides the time of a pair until the decode engine runs it, as far as both engines
// report stamps. Two stages that cannot be separated count as the engine's.
func (r *Row) pair(until func(string, int64)) {
	untold := false
	for _, p := range [...]struct {
		stage string
		at    int64
	}{{StageBootstrap, r.Met}, {StagePrefill, r.Prefilled}, {StageTransfer, r.Transferred}, {StageToRunning, r.Running}} {
		switch {
		case p.at == 0:
			untold = untold || p.stage != StageBootstrap // which not all pairs have
		case untold:
			until(StageEngine, p.at)
			untold = false
		default:
			until(p.stage, p.at)
		}
	}
}

// Part is a stage's part of a band's mean time.
type Part struct {
	Stage string  `json:"stage"`
	Mean  float64 `json:"mean_ms"`
	Share float64 `json:"share"`
	// Excess is how much more it is than in the faster half.
	Excess float64 `json:"excess_ms"`
}

// Band is a range of the requests in the order of their latency, and where
// their time went.
type Band struct {
	Metric   string  `json:"metric"` // ttft or e2e, from the intended time
	From     float64 `json:"from_percentile"`
	To       float64 `json:"to_percentile"`
	Requests int     `json:"requests"`
	Mean     float64 `json:"mean_ms"`
	// Excess is how much more it is than the mean of the faster half.
	Excess float64 `json:"excess_ms"`
	Stages []Part  `json:"stages"`
	// Residual is the mean time that the stages do not explain.
	Residual float64 `json:"residual_ms"`
	Sentence string  `json:"sentence"`
}

// bands are the ranges, each with the number of requests from which on it has
// some of its own.
var bands = []struct {
	from, to float64
	least    int
	name     string
}{{0, 0.5, 2, "the faster half"}, {0.5, 0.9, 10, "those between p50 and p90"}, {0.9, 0.99, 20, "those between p90 and p99"}, {0.99, 1, 100, "the slowest 1 %"}}

// taken is a request taken apart.
type taken struct {
	total, residual int64
	by              map[string]int64
}

// Attribute reports which stage holds the additional time of slow requests over the faster
// half, for bands of time to first content and of the whole time.
func Attribute(rows []Row) []Band {
	firsts, wholes := parted(rows)
	return append(banded("ttft", firsts), banded("e2e", wholes)...)
}

// parted takes the complete streams apart, to their first content and as a whole.
func parted(rows []Row) (firsts, wholes []taken) {
	for i := range rows {
		r := &rows[i]
		if r.Outcome != load.Complete || !r.Streamed() || r.FirstContent == 0 {
			continue
		}
		spans, residual := r.Spans()
		first, whole := taken{by: map[string]int64{}}, taken{by: map[string]int64{}, residual: residual}
		for _, s := range spans {
			whole.by[s.Stage] += s.For
			if s.Stage != StageDecode && s.Stage != StageFlush && s.Stage != StageEnd {
				first.by[s.Stage] += s.For
				first.residual -= s.For
			}
		}
		whole.total, first.total = r.LastByte-r.Intended, r.FirstContent-r.Intended
		first.residual += first.total
		firsts, wholes = append(firsts, first), append(wholes, whole)
	}
	return firsts, wholes
}

// median attributes a metric of the requests around the median; banded has sorted them.
func median(metric string, all []taken) []Band {
	if len(all) < 100 {
		return nil
	}
	b := average(all[len(all)*49/100 : len(all)*51/100])
	b.Metric, b.From, b.To = metric, 49, 51
	half := average(all[:len(all)/2])
	compare(&b, &half)
	b.Sentence = b.say("those around the median")
	return []Band{b}
}

// banded attributes one metric.
func banded(metric string, all []taken) []Band {
	slices.SortStableFunc(all, func(a, b taken) int { return cmp.Compare(a.total, b.total) })
	var out []Band
	for _, band := range bands {
		if len(all) < band.least {
			break
		}
		from, to := int(band.from*float64(len(all))), int(band.to*float64(len(all)))
		b := average(all[from:to])
		b.Metric, b.From, b.To = metric, 100*band.from, 100*band.to
		if len(out) > 0 {
			compare(&b, &out[0])
		}
		b.Sentence = b.say(band.name)
		out = append(out, b)
	}
	return out
}

// average returns the means of some requests.
func average(some []taken) Band {
	b := Band{Requests: len(some)}
	n := float64(len(some)) * 1e6
	sums := map[string]int64{}
	var total, residual int64
	for _, t := range some {
		total += t.total
		residual += t.residual
		for stage, d := range t.by {
			sums[stage] += d
		}
	}
	b.Mean, b.Residual = float64(total)/n, float64(residual)/n
	for _, stage := range stageOrder {
		if d := sums[stage]; d > 0 {
			p := Part{Stage: stage, Mean: float64(d) / n}
			if b.Mean > 0 {
				p.Share = p.Mean / b.Mean
			}
			b.Stages = append(b.Stages, p)
		}
	}
	return b
}

// compare fills in the additional time of a band over the faster half.
func compare(b, half *Band) {
	b.Excess = b.Mean - half.Mean
	before := map[string]float64{}
	for _, p := range half.Stages {
		before[p.Stage] = p.Mean
	}
	for i := range b.Stages {
		b.Stages[i].Excess = b.Stages[i].Mean - before[b.Stages[i].Stage]
	}
}

// say puts a band into a sentence.
func (b *Band) say(name string) string {
	what := "to first content"
	if b.Metric == "e2e" {
		what = "to the last byte"
	}
	parts := slices.Clone(b.Stages)
	if b.From == 0 {
		slices.SortStableFunc(parts, func(x, y Part) int { return cmp.Compare(y.Mean, x.Mean) })
		var most []string
		for _, p := range parts[:min(3, len(parts))] {
			most = append(most, fmt.Sprintf("%s %.1f ms (%.0f %%)", p.Stage, p.Mean, 100*p.Share))
		}
		return fmt.Sprintf("%s took %.1f ms %s: %s; residual %.1f ms", upper(name), b.Mean, what, strings.Join(most, ", "), tenths(b.Residual))
	}
	slices.SortStableFunc(parts, func(x, y Part) int { return cmp.Compare(y.Excess, x.Excess) })
	text := fmt.Sprintf("%s took %.1f ms %s, %.1f ms more than the faster half", upper(name), b.Mean, what, b.Excess)
	if len(parts) > 0 && b.Excess > 0 && parts[0].Excess > 0 {
		text += fmt.Sprintf(": %.0f %% of that is %s (+%.1f ms)", 100*min(1, parts[0].Excess/b.Excess), parts[0].Stage, parts[0].Excess)
		if len(parts) > 1 && parts[1].Excess > 0.1*b.Excess {
			text += fmt.Sprintf(", then %s (+%.1f ms)", parts[1].Stage, parts[1].Excess)
		}
	}
	return fmt.Sprintf("%s; residual %.1f ms", text, tenths(b.Residual))
}

// tenths rounds to the printed precision, so that nothing is printed as -0.0.
func tenths(ms float64) float64 { return math.Round(ms*10)/10 + 0 }

// upper begins a sentence.
func upper(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
