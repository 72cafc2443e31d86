package record

import (
	"math/rand/v2"
	"net/http"
	"strings"

	"weir/internal/trace"
)

// traceOf is the trace that a request is part of: its caller's, or where weir has spans one
// that begins here; else nil.
func (r *Recorder) traceOf(h http.Header) *trace.Context {
	if parents := h["Traceparent"]; len(parents) == 1 { // of several nobody knows which is meant
		if c := trace.JoinTrace(parents[0], strings.Join(h["Tracestate"], ",")); c != nil {
			return c
		}
	}
	if r.opts.Spans == nil {
		return nil
	}
	return trace.NewTrace(rand.Float64() < r.opts.SpanShare)
}

// Callers sets the trace context that is sent to the engines of an attempt's legs.
func (r *Recorder) Callers(q *Request, legs []trace.Leg) {
	if q.Trace == nil {
		return
	}
	n := 0
	for i := range q.Attempts {
		n += len(q.Attempts[i].Legs)
	}
	for i := range legs {
		legs[i].Caller = q.Trace.Caller(n+i, r.opts.Spans != nil)
	}
}

// dropCallers releases the trace context that was sent to the engines.
func dropCallers(rec *trace.Record) {
	for i := range rec.Attempts {
		for k := range rec.Attempts[i].Legs {
			rec.Attempts[i].Legs[k].Caller = nil
		}
	}
}
