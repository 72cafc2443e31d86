package gateway

import (
	"math/rand/v2"
	"net/http"
	"strings"

	"weir/internal/trace"
)

// traceOf is the trace that a request is part of: its caller's, or where weir has spans one
// that begins here; else nil.
func (g *Gateway) traceOf(h http.Header) *trace.Context {
	if parents := h["Traceparent"]; len(parents) == 1 { // of several nobody knows which is meant
		if c := trace.JoinTrace(parents[0], strings.Join(h["Tracestate"], ",")); c != nil {
			return c
		}
	}
	if g.opts.Record.Spans == nil {
		return nil
	}
	return trace.NewTrace(rand.Float64() < g.opts.Record.SpanShare)
}

// callers sets the trace context that is sent to the engines of an attempt's legs.
func (g *Gateway) callers(rec *trace.Record, legs []trace.Leg) {
	if rec.Trace == nil {
		return
	}
	n := 0
	for i := range rec.Attempts {
		n += len(rec.Attempts[i].Legs)
	}
	for i := range legs {
		legs[i].Caller = rec.Trace.Caller(n+i, g.opts.Record.Spans != nil)
	}
}

// tellNoMore releases the trace context that was sent to the engines.
func tellNoMore(rec *trace.Record) {
	for i := range rec.Attempts {
		for k := range rec.Attempts[i].Legs {
			rec.Attempts[i].Legs[k].Caller = nil
		}
	}
}
