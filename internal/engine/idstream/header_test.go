package idstream

import (
	"testing"

	"weir/internal/trace"
)

// An engine is told of the trace that a request is part of, and of none where there is none.
func TestHeaderOfATrace(t *testing.T) {
	h := TraceOf(&trace.Caller{Parent: "00-a-b-01", State: "x=y"})
	if h.Get("Traceparent") != "00-a-b-01" || h.Get("Tracestate") != "x=y" || len(h) != 2 {
		t.Errorf("%v", h)
	}
	if h := TraceOf(&trace.Caller{Parent: "00-a-b-01"}); h.Get("Traceparent") == "" || len(h) != 1 {
		t.Errorf("%v", h)
	}
	if h := TraceOf(nil); len(h) != 0 {
		t.Errorf("%v", h)
	}
}
