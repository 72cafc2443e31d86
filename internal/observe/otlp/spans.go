package otlp

import (
	"cmp"
	"strings"

	commonpb "go.opentelemetry.io/proto/slim/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/slim/otlp/trace/v1"

	"weir/internal/trace"
)

// maxText bounds the text of an attribute.
const maxText = 1024

// builder makes the spans of a record.
type builder struct {
	c     *trace.Context
	spans []*tracepb.Span
}

// spans returns the spans of a record: its own, and below it one for each stage that has a
// beginning and an end, one for each leg, and one for the output. There is none for a
// token.
func spans(r *trace.Record) []*tracepb.Span {
	b := &builder{c: r.Trace}
	root := b.span(r.Trace.Span, r.Trace.Parent, strings.TrimSpace(operation(r.Endpoint)+" "+r.Model), r.Arrival, r.Finished)
	root.Kind = tracepb.Span_SPAN_KIND_SERVER
	root.Attributes = []*commonpb.KeyValue{
		text(nameOperation, operation(r.Endpoint)), text(nameProvider, "weir"), text(nameRequestModel, r.Model), text(namePath, r.Endpoint), text(nameMethod, "POST"),
		text(nameRequestID, r.RequestID), text(nameOutcome, r.Outcome.String()), number(nameStatus, int64(r.Status)),
		number(nameInput, int64(r.PromptTokens)), number(nameOutput, int64(r.CompletionTokens)), number(nameCached, int64(r.CachedTokens)),
		number(nameAttempt, int64(len(r.Attempts))), number(nameLive, int64(r.LiveAtFirstToken)),
	}
	if r.Client.IsValid() {
		root.Attributes = append(root.Attributes, text(nameClient, r.Client.String()))
	}
	if ttft, ok := r.TTFT(); ok {
		root.Attributes = append(root.Attributes, seconds(nameTTFT, ttft))
	}
	for s, ns := range r.Ledger.Spent {
		if ns != 0 {
			root.Attributes = append(root.Attributes, seconds(nameStage+trace.Stage(s).String(), ns))
		}
	}
	fails(root, failure(r), r.Message)
	b.stages(r)
	n := 0
	for i := range r.Attempts {
		for k := range r.Attempts[i].Legs {
			b.leg(r, i, k, n)
			n++
		}
	}
	return b.spans
}

// stages makes the spans of stages that come once.
func (b *builder) stages(r *trace.Record) {
	prepared := cmp.Or(r.Rendered, r.Parsed)
	for i, s := range [...]struct {
		name     string
		from, to int64
	}{
		{trace.Read.String(), r.Arrival, r.Received}, {trace.Parse.String(), r.Received, r.Parsed}, {trace.Render.String(), r.Parsed, r.Rendered},
		{trace.PoolWait.String(), prepared, r.TokenizeStart}, {trace.Tokenize.String(), r.TokenizeStart, r.TokenizeEnd},
		{trace.Queue.String(), r.Queued, r.Routed}, {"output", r.FirstReceived, r.Finished},
	} {
		if s.from != 0 && s.to > s.from {
			b.span(b.c.Child(i), b.c.Span, s.name, s.from, s.to)
		}
	}
}

// leg makes the spans of a leg, the n-th of the request: its own, and as far as the engine
// has stamped them its engine's.
func (b *builder) leg(r *trace.Record, attempt, leg, n int) {
	l := &r.Attempts[attempt].Legs[leg]
	begin := cmp.Or(l.Handed, l.ToServer)
	if begin == 0 {
		return // it was given nothing
	}
	last := attempt == len(r.Attempts)-1
	end := cmp.Or(l.Answered, r.Finished)
	if !last { // it ended before the next one began
		end = max(begin, l.Acked, l.ToServer)
		if next := r.Attempts[attempt+1].Legs; len(next) > 0 {
			end = max(end, cmp.Or(next[0].Handed, end))
		}
	}
	own := b.c.Leg(n, 0)
	s := b.span(own, b.c.Span, strings.TrimSpace(l.Role+" "+l.Engine), begin, end)
	s.Kind = tracepb.Span_SPAN_KIND_CLIENT
	s.Attributes = []*commonpb.KeyValue{text(nameEngine, l.Engine), text(nameKind, l.Kind), text(nameRole, l.Role), text(nameWire, l.RequestID), number(nameAttempt, int64(attempt+1))}
	if l.DPRank >= 0 {
		s.Attributes = append(s.Attributes, number(nameRank, int64(l.DPRank)))
	}
	if why := r.Attempts[attempt].Choice.Why; why != "" {
		s.Attributes = append(s.Attributes, text(nameWhy, why))
	}
	if l.Outcome != "finished" && l.Outcome != "cancelled" {
		fails(s, l.Outcome, "")
	}
	e := &l.Stamps
	computed := cmp.Or(e.FirstToken, e.PrefillEnd)
	for i, part := range [...]struct {
		name     string
		from, to int64
	}{
		{"engine queue", e.QueueStart, e.QueueEnd}, {"prefill", cmp.Or(e.PrefillStart, e.QueueEnd), computed}, {"transfer", e.TransferStart, e.TransferEnd},
	} {
		if part.from != 0 && part.to >= part.from && part.to != 0 {
			b.span(b.c.Leg(n, 1+i), own, part.name, part.from, part.to)
		}
	}
}

// span adds a span.
func (b *builder) span(id, parent [8]byte, name string, from, to int64) *tracepb.Span {
	s := &tracepb.Span{
		TraceId: b.c.Trace[:], SpanId: id[:], Name: clip(name), TraceState: strings.ToValidUTF8(b.c.State, "\ufffd"), Flags: uint32(b.c.Flags),
		StartTimeUnixNano: uint64(trace.Wall(from).UnixNano()), EndTimeUnixNano: uint64(trace.Wall(max(from, to)).UnixNano()),
		Kind: tracepb.Span_SPAN_KIND_INTERNAL,
	}
	if parent != [8]byte{} {
		s.ParentSpanId = parent[:]
	}
	b.spans = append(b.spans, s)
	return s
}

// fails marks a span as failed if what is not empty.
func fails(s *tracepb.Span, what, message string) {
	if what != "" {
		s.Attributes = append(s.Attributes, text(nameErrorType, what))
		s.Status = &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR, Message: clip(message)}
	}
}

// clip makes any text valid for protobuf.
func clip(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxText)], "\ufffd")
}

func text(name, v string) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: name, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: clip(v)}}}
}

func number(name string, v int64) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: name, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: v}}}
}

func seconds(name string, ns int64) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: name, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_DoubleValue{DoubleValue: float64(ns) / 1e9}}}
}
