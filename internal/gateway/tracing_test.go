package gateway

import (
	"strings"
	"sync"
	"testing"

	"weir/internal/gateway/record"
	"weir/internal/infer"
	"weir/internal/model/tokenizer"
	"weir/internal/trace"
)

// tracedRecords takes the records of traces.
type tracedRecords struct {
	mu  sync.Mutex
	all []*trace.Record
}

func (k *tracedRecords) Add(r *trace.Record) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all = append(k.all, r)
}

const (
	callersParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	callersTrace  = "00-4bf92f3577b34da6a3ce929d0e0e4736-"
)

// With spans an engine is told the span of its leg, in the caller's trace or one that
// begins here, and that span is the leg's in the record.
func TestEnginesAreToldOfSpans(t *testing.T) {
	r := &relayEngine{name: "r"}
	inBubble(t, Options{Record: record.Options{Spans: new(tracedRecords), SpanShare: 1}}, []any{r}, func(t *testing.T, b *bench) {
		spans := b.g.opts.Record.Spans.(*tracedRecords)
		spans.all = nil
		for i, parent := range []string{callersParent, "", "nonsense", callersParent + "0", callersParent[:53] + "00"} {
			c := b.post(chatPath, relayBody, "Traceparent", parent, "Tracestate", "x=y")
			f := r.forward(t, i+1)
			told, state := f.req.Header.Get("Traceparent"), f.req.Header.Get("Tracestate")
			f.send(relayToken + relayEnd)
			f.end()
			b.wantRecord(c, "finished", "")
			if len(spans.all) != i+1 {
				t.Fatalf("%q: %d records, want %d", parent, len(spans.all), i+1)
			}
			rec := spans.all[i]
			joined := i == 0 || i == 4
			if told != rec.Trace.Header(rec.Trace.Leg(0, 0)) || len(told) != 55 || rec.Leg().Caller != nil {
				t.Errorf("%q: the engine is told %q", parent, told)
			}
			if joined != strings.HasPrefix(told, callersTrace) || joined != (state == "x=y") || joined != (rec.Trace.Parent != [8]byte{}) || strings.HasSuffix(told, "-01") != (i != 4) {
				t.Errorf("%q: the engine is told %q, %q", parent, told, state)
			}
		}
	})
}

// Without spans a relay's engine gets the caller's fields as they came, and another engine
// what they say.
func TestTracesPass(t *testing.T) {
	r, e := &relayEngine{name: "r"}, &tokenEngine{name: "a"}
	var told []*trace.Caller
	inOneWay(t, Options{}, []any{r}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, relayBody, "Traceparent", "zz-of a later kind", "Tracestate", "x=y")
		f := r.forward(t, 1)
		if f.req.Header.Get("Traceparent") != "zz-of a later kind" || f.req.Header.Get("Tracestate") != "x=y" {
			t.Errorf("%v", f.req.Header)
		}
		f.send(relayToken + relayEnd)
		f.end()
		b.wantRecord(c, "finished", "")
	})
	e.told = func(l *trace.Leg) { told = append(told, l.Caller) }
	inOneWay(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		for i, headers := range [][]string{{"Traceparent", callersParent, "Tracestate", "x=y"}, nil} {
			c := b.post(chatPath, askStream(""), headers...)
			e.call(t, i+1).end(infer.ReasonStop, idsOf(t, " one", tokenizer.EncodeOptions{})...)
			b.wantRecord(c, "finished", "")
		}
	})
	if len(told) != 2 || told[0] == nil || *told[0] != (trace.Caller{Parent: callersParent, State: "x=y"}) || told[1] != nil {
		t.Errorf("the engine is told %+v", told)
	}
}
