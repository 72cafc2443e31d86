// Package record keeps account of requests: the record of each with its stages, what others
// may read of those in flight, the trace context that engines receive, the times that a caller
// asks for, and at the end who gets the record. It knows neither the gateway nor the parts of
// a request. Its callers report what happened.
package record

import (
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"time"

	"weir/internal/infer"
	"weir/internal/observe/logs"
	"weir/internal/observe/metrics"
	"weir/internal/observe/timeline"
	"weir/internal/observe/watch"
	"weir/internal/trace"
)

// Options configure who gets the records of requests that have ended.
type Options struct {
	// Timeline takes the records of ended requests; nil keeps none.
	Timeline *timeline.Recorder
	// Usage takes the records of ended requests of known callers, for the usage log; nil
	// writes none.
	Usage *timeline.Recorder
	// Spans receives the records of ended requests that are part of a trace. If it is
	// nil, engines receive the trace context of callers unchanged.
	Spans interface{ Add(*trace.Record) }
	// SpanShare is the share of requests that have spans, among those whose callers
	// request neither spans nor none.
	SpanShare float64
	// Access configures the access log.
	Access AccessLog
	// StageDelay adds a delay to a stage, once per request. It exists to prove
	// that dashboards and alerts built on the stages point where they should.
	StageDelay map[trace.Stage]time.Duration
	// HoldCore makes those delays occupy a core, like work that nothing interrupts.
	HoldCore bool
}

// Recorder has what the accounts of all requests share.
type Recorder struct {
	opts    Options
	metrics *metrics.Metrics
	log     *slog.Logger
	watch   *watch.Watch
	live    atomic.Int64 // requests between Open and Leave
	flights flights

	failing, late, clipping logs.Throttles // by the name of the engine
}

// New makes a recorder. The watch may be nil.
func New(o Options, m *metrics.Metrics, log *slog.Logger, w *watch.Watch) *Recorder {
	return &Recorder{opts: o, metrics: m, log: log, watch: w}
}

// Live returns how many requests are in flight.
func (r *Recorder) Live() int64 { return r.live.Load() }

// Open opens the account of a request that arrived at a time, in the stage read. h is its head,
// from which a field that is for no engine is taken away.
func (r *Recorder) Open(q *Request, id string, h http.Header, arrival int64) {
	q.Record, q.ID, q.injects = newRecord(), id, r.opts.inject()
	q.Arrival, q.LiveAtArrival = arrival, int32(r.live.Add(1)-1)
	q.Ledger.Start(trace.Read, arrival)
	q.Publishing()
	q.Timed, q.Trace = asksTiming(h), r.traceOf(h)
	q.Publish(trace.Read, arrival)
}

// Close completes the record of a request that ended by e, and hands it to those who keep it.
// Usage is only for those who know the caller.
func (r *Recorder) Close(q *Request, e *infer.Error, known bool) {
	rec := q.Record
	if e != nil {
		rec.Code, rec.Message = e.Code.String(), e.Message
		if e.Code == infer.CodeInternal || e.Code == infer.CodeIntegrity {
			r.log.Error("request failed", "request_id", rec.RequestID, "client", rec.Client, "code", rec.Code, "bound", e.Bound(), "error", e.Error())
		}
	}
	dropCallers(rec)
	rec.Finished = trace.Now()
	rec.Ledger.Enter(trace.Finish, rec.Finished)
	rec.Stalls = r.watch.Overlap(rec.Arrival, rec.Finished)
	r.guarded(rec, func() { r.metrics.Ended(rec) })
	r.guarded(rec, func() { r.opts.Access.logAccess(rec, e) })
	if r.opts.Spans != nil && rec.Trace != nil {
		r.guarded(rec, func() { r.opts.Spans.Add(rec) })
	}
	if r.opts.Timeline != nil {
		r.guarded(rec, func() { r.opts.Timeline.Add(rec) })
	}
	if !known {
		return
	}
	r.guarded(rec, func() { r.metrics.Used(rec) })
	if r.opts.Usage != nil {
		r.guarded(rec, func() { r.opts.Usage.Add(rec) })
	}
}

// guarded hands a record to one of those who keep it. A panic there affects no other.
func (r *Recorder) guarded(rec *trace.Record, keep func()) {
	defer func() {
		if p := recover(); p != nil {
			r.Panic(rec.RequestID, p)
		}
	}()
	keep()
}

// Panic counts and logs a panic, and returns what the client receives for it.
func (r *Recorder) Panic(requestID string, p any) *infer.Error {
	r.metrics.Panicked("")
	r.log.Error("panic while serving a request", "request_id", requestID,
		"panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	return infer.Errorf(infer.CodeInternal, "internal error")
}

// Failed logs a request that its engine has failed, or that has waited for it in vain:
// of each engine one a minute, with how many there were.
func (r *Recorder) Failed(engine, id string, err *infer.Error) {
	r.failing.Of(r.log, "engine", engine).Log(slog.LevelError, "requests fail at an engine", fmt.Errorf("%s: %w", id, err), "request_id", id, "code", err.Code.String(), "bound", err.Bound())
}

// Late logs a part of an acknowledgement that took long: of each engine one a minute,
// with how many there were.
func (r *Recorder) Late(engine, id, part string, took time.Duration) {
	whose := "the engine's"
	if part == "send" || part == "read" {
		whose = "weir's own"
	}
	r.late.Of(r.log, "engine", engine).Log(slog.LevelWarn, "an acknowledgement was late", fmt.Errorf("%s: %v of it were %s: %s", id, took.Round(time.Millisecond), whose, part), "request_id", id)
}

// Clipped counts and logs an engine's counts that were clipped: of each engine one a minute.
func (r *Recorder) Clipped(engine, id string, u infer.Usage) {
	r.metrics.Clipped(engine)
	r.clipping.Of(r.log, "engine", engine).Log(slog.LevelWarn, "an engine states more tokens than a request can use", fmt.Errorf("%s: they count as %d and %d", id, u.PromptTokens, u.CompletionTokens), "request_id", id)
}
