package otlp

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	collectorpb "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"weir/internal/infer"
	"weir/internal/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// collector is a server that takes spans.
type collector struct {
	url    string
	server *grpc.Server

	mu       sync.Mutex
	requests []*collectorpb.ExportTraceServiceRequest
	answer   func(n int) (*collectorpb.ExportTraceServiceResponse, error) // to the n-th call
	calls    int
	headers  metadata.MD // of the latest call
	came     chan struct{}
}

func newCollector(t *testing.T, answer func(n int) (*collectorpb.ExportTraceServiceResponse, error)) *collector {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{url: "http://" + l.Addr().String(), server: grpc.NewServer(), answer: answer, came: make(chan struct{}, 100)}
	service, call, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	c.server.RegisterService(&grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{MethodName: call,
		Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			r := &collectorpb.ExportTraceServiceRequest{}
			if err := decode(r); err != nil {
				return nil, err
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.calls++
			c.headers, _ = metadata.FromIncomingContext(ctx)
			reply, err := &collectorpb.ExportTraceServiceResponse{}, error(nil)
			if c.answer != nil {
				reply, err = c.answer(c.calls)
			}
			if err == nil {
				c.requests = append(c.requests, r)
			}
			c.came <- struct{}{}
			return reply, err
		}}}}, nil)
	var served sync.WaitGroup
	served.Go(func() { _ = c.server.Serve(l) }) // ends by Stop
	t.Cleanup(func() {
		c.server.Stop()
		served.Wait()
	})
	return c
}

// spans returns those that were taken.
func (c *collector) spans() (all []*tracepb.Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.requests {
		for _, rs := range r.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				all = append(all, ss.Spans...)
			}
		}
	}
	return all
}

// wait waits until a call has come.
func (c *collector) wait(t *testing.T) {
	t.Helper()
	select {
	case <-c.came:
	case <-time.After(time.Minute):
		t.Fatal("no call came")
	}
}

// served is the record of a request whose first engine has failed it.
func served(id string) *trace.Record {
	now := trace.Now()
	at := func(ms int64) int64 { return now + ms*1e6 }
	r := &trace.Record{
		RequestID: id, Trace: trace.JoinTrace("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "a=b"),
		Endpoint: "/v1/chat/completions", Model: "m", Stream: true, Status: 200, PromptTokens: 11, CompletionTokens: 7,
		Arrival: at(0), Received: at(1), Parsed: at(2), Rendered: at(3), TokenizeStart: at(4), TokenizeEnd: at(5), Queued: at(6), Routed: at(30),
		FirstReceived: at(60), FirstFlushed: at(61), Finished: at(200),
		Attempts: []trace.Attempt{
			{Repeated: true, Legs: []trace.Leg{{Role: "full", Engine: "a", DPRank: -1, Outcome: "engine", Handed: at(10)}}},
			{Legs: []trace.Leg{{Role: "full", Engine: "b", Kind: "weir", DPRank: 2, Outcome: "finished", Handed: at(31), ToServer: at(32), Acked: at(33),
				Stamps: infer.Stamps{QueueStart: at(34), QueueEnd: at(40), PrefillStart: at(40), PrefillEnd: at(58), FirstToken: at(58), FirstOutput: at(59)}}}},
		},
	}
	r.Ledger.Start(trace.Read, r.Arrival)
	r.Ledger.Enter(trace.Engine, at(35))
	r.Ledger.Enter(trace.Finish, r.Finished)
	return r
}

// A record becomes a span of its caller's trace. Its children are its stages and legs, each in the
// parent's trace, with the ids that engines received, and none for a token.
func TestSpans(t *testing.T) {
	r := served("x")
	all := spans(r)
	byID, names := map[string]*tracepb.Span{}, []string{}
	for _, s := range all {
		byID[string(s.SpanId)] = s
		names = append(names, s.Name)
		if hex.EncodeToString(s.TraceId) != "4bf92f3577b34da6a3ce929d0e0e4736" || len(s.SpanId) != 8 || s.TraceState != "a=b" || s.EndTimeUnixNano < s.StartTimeUnixNano {
			t.Errorf("%v", s)
		}
	}
	if want := "chat m, read, parse, render, pool_wait, tokenize, queue, output, full a, full b, engine queue, prefill"; strings.Join(names, ", ") != want || len(byID) != len(all) {
		t.Errorf("spans %v of %d ids, want %s", names, len(byID), want)
	}
	root := all[0]
	if hex.EncodeToString(root.ParentSpanId) != "00f067aa0ba902b7" || root.Kind != tracepb.Span_SPAN_KIND_SERVER || root.Status != nil ||
		root.EndTimeUnixNano-root.StartTimeUnixNano != 200e6 || root.StartTimeUnixNano != uint64(trace.Wall(r.Arrival).UnixNano()) {
		t.Errorf("%v", root)
	}
	for _, s := range all[1:] {
		parent := byID[string(s.ParentSpanId)]
		if parent == nil || s.StartTimeUnixNano < parent.StartTimeUnixNano || s.EndTimeUnixNano > parent.EndTimeUnixNano {
			t.Errorf("%s is not within its parent: %v", s.Name, s)
		}
	}
	said := map[string]any{}
	for _, a := range root.Attributes {
		switch {
		case a.Value.GetStringValue() != "":
			said[a.Key] = a.Value.GetStringValue()
		case a.Value.GetDoubleValue() != 0:
			said[a.Key] = a.Value.GetDoubleValue()
		default:
			said[a.Key] = a.Value.GetIntValue()
		}
	}
	for name, want := range map[string]any{
		"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.usage.input_tokens": int64(11), "gen_ai.usage.output_tokens": int64(7),
		"http.response.status_code": int64(200), "weir.request_id": "x", "weir.attempt": int64(2), "weir.ttft": 0.061, "weir.stage.engine": 0.165,
	} {
		if said[name] != want {
			t.Errorf("%s is %v, want %v", name, said[name], want)
		}
	}
	for n, name := range []string{"full a", "full b"} {
		id := r.Trace.Leg(n, 0)
		if s := byID[string(id[:])]; s == nil || s.Name != name || !strings.Contains(r.Trace.Caller(n, true).Parent, hex.EncodeToString(id[:])) {
			t.Errorf("the engine of leg %d is told of %x, which is %v", n, id, s)
		} else if (s.Status.GetCode() == tracepb.Status_STATUS_CODE_ERROR) != (n == 0) {
			t.Errorf("%s: status %v", name, s.Status)
		}
	}
}

// For any texts in a record, its spans are valid protobuf, and bounded.
func TestSpansOfHostileTexts(t *testing.T) {
	bad := strings.Repeat("\xff\x00<script>", 1000)
	r := served(bad)
	r.Model, r.Endpoint, r.Outcome, r.Code, r.Message, r.Trace.State = bad, "/"+bad, infer.Failed, "engine", bad, bad[:200]
	r.Attempts[0].Legs[0].Engine, r.Attempts[0].Choice.Why = bad, bad
	b, err := proto.Marshal(&tracepb.ScopeSpans{Spans: spans(r)})
	if err != nil || len(b) > 64<<10 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if s := spans(r)[0]; s.Status.GetCode() != tracepb.Status_STATUS_CODE_ERROR {
		t.Errorf("%v", s.Status)
	}
}

// Records of traces that are kept are sent, those of others are not, and what waits at the
// end is sent, too.
func TestExporter(t *testing.T) {
	c := newCollector(t, nil)
	e, err := New(Options{URL: c.url, Version: "1"})
	if err != nil {
		t.Fatal(err)
	}
	not := served("not sampled")
	not.Trace.Flags = 0
	none := served("no trace")
	none.Trace = nil
	for _, r := range []*trace.Record{served("a"), not, none} {
		e.Add(r)
	}
	c.wait(t)
	e.Add(served("b"))
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	ids := map[string]int{}
	for _, s := range c.spans() {
		for _, a := range s.Attributes {
			if a.Key == nameRequestID {
				ids[a.Value.GetStringValue()]++
			}
		}
	}
	if fmt.Sprint(ids) != "map[a:1 b:1]" || e.Sent() != 2 || e.Dropped() != 0 {
		t.Errorf("%v came; %d sent, %d dropped", ids, e.Sent(), e.Dropped())
	}
	e.Add(served("late"))
	if e.Dropped() != 1 {
		t.Errorf("%d dropped after the end, want 1", e.Dropped())
	}
}

// A collector that fails for a while gets what has waited, once each; what there was no
// room for is counted.
func TestCollectorFails(t *testing.T) {
	c := newCollector(t, func(n int) (*collectorpb.ExportTraceServiceResponse, error) {
		if n == 1 {
			return nil, status.Error(codes.Unavailable, "not now")
		}
		return &collectorpb.ExportTraceServiceResponse{}, nil
	})
	var log bytes.Buffer
	e, err := New(Options{URL: c.url, Queue: 2, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	e.Add(served("a"))
	c.wait(t) // it is refused, and tried again later
	for i := range 5 {
		e.Add(served(fmt.Sprint(i)))
	}
	c.wait(t)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	roots := 0
	for _, s := range c.spans() {
		if s.Kind == tracepb.Span_SPAN_KIND_SERVER {
			roots++
		}
	}
	if roots != 3 || e.Sent() != 3 || e.Dropped() != 3 {
		t.Errorf("%d came; %d sent, %d dropped; want 3, 3, 3", roots, e.Sent(), e.Dropped())
	}
	if strings.Count(log.String(), "cannot be sent") != 1 || strings.Count(log.String(), "sent again") != 1 {
		t.Errorf("log:\n%s", &log)
	}
}

// Spans that a collector refuses for good are dropped and counted, and so are those that it refuses
// in part.
func TestCollectorRefuses(t *testing.T) {
	for name, answer := range map[string]func(int) (*collectorpb.ExportTraceServiceResponse, error){
		"all": func(int) (*collectorpb.ExportTraceServiceResponse, error) {
			return nil, status.Error(codes.InvalidArgument, "no")
		},
		"some": func(int) (*collectorpb.ExportTraceServiceResponse, error) {
			return &collectorpb.ExportTraceServiceResponse{PartialSuccess: &collectorpb.ExportTracePartialSuccess{RejectedSpans: 1, ErrorMessage: "one"}}, nil
		},
	} {
		c := newCollector(t, answer)
		e, err := New(Options{URL: c.url})
		if err != nil {
			t.Fatal(err)
		}
		e.Add(served("a"))
		c.wait(t)
		if err := e.Close(); err != nil || e.Sent() != 0 || e.Dropped() != 1 {
			t.Errorf("%s: %d sent, %d dropped, %v", name, e.Sent(), e.Dropped(), err)
		}
	}
}

// A message that is too large for a collector stays too large, so its spans are dropped and the next
// ones are sent. A collector that is only busy says when to ask again.
func TestCollectorHasNoRoom(t *testing.T) {
	busy := status.New(codes.ResourceExhausted, "busy").Proto()
	busy.Details = append(busy.Details, &anypb.Any{TypeUrl: "type.googleapis.com/google.rpc.RetryInfo"})
	for _, test := range []struct {
		why           error
		sent, dropped uint64
	}{
		{status.Error(codes.ResourceExhausted, "received message larger than max"), 1, 1},
		{status.ErrorProto(busy), 2, 0},
	} {
		c := newCollector(t, func(n int) (*collectorpb.ExportTraceServiceResponse, error) {
			if n == 1 {
				return nil, test.why
			}
			return &collectorpb.ExportTraceServiceResponse{}, nil
		})
		e, err := New(Options{URL: c.url})
		if err != nil {
			t.Fatal(err)
		}
		e.Add(served("a"))
		c.wait(t)
		e.Add(served("b"))
		c.wait(t)
		if err := e.Close(); err != nil || e.Sent() != test.sent || e.Dropped() != test.dropped {
			t.Errorf("%v: %d sent, %d dropped, %v", test.why, e.Sent(), e.Dropped(), err)
		}
	}
}

// Records that wait at the end are sent in messages of the usual size.
func TestManyAtTheEnd(t *testing.T) {
	c := newCollector(t, func(n int) (*collectorpb.ExportTraceServiceResponse, error) {
		if n == 1 {
			return nil, status.Error(codes.Unavailable, "not now")
		}
		return &collectorpb.ExportTraceServiceResponse{}, nil
	})
	e, err := New(Options{URL: c.url})
	if err != nil {
		t.Fatal(err)
	}
	e.Add(served("a"))
	c.wait(t) // the next try is a second later
	for range 2 * maxBatch {
		e.Add(served("b"))
	}
	if err := e.Close(); err != nil || e.Sent() != 1+2*maxBatch || e.Dropped() != 0 {
		t.Errorf("%d sent, %d dropped, %v", e.Sent(), e.Dropped(), err)
	}
	for _, r := range c.requests {
		roots := 0
		for _, s := range r.ResourceSpans[0].ScopeSpans[0].Spans {
			if s.Kind == tracepb.Span_SPAN_KIND_SERVER {
				roots++
			}
		}
		if roots > maxBatch {
			t.Errorf("a message has the spans of %d requests", roots)
		}
	}
}

// A collector that takes connections and never answers does not hold up the end of the process.
func TestSilentCollector(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	e, err := New(Options{URL: "http://" + l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	for range maxBatch { // a call begins at once
		e.Add(served("a"))
	}
	for len(e.queue) > 0 {
		time.Sleep(time.Millisecond)
	}
	e.Add(served("b"))
	began := time.Now()
	if err := e.Close(); err != nil || e.Dropped() != maxBatch+1 {
		t.Errorf("%d dropped, %v", e.Dropped(), err)
	}
	if took := time.Since(began); took > callTime/2 {
		t.Errorf("the end took %v, want about %v", took, lastTime)
	}
}

// Where nobody listens nothing waits, and all is counted as lost at the end.
func TestNoCollector(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	e, err := New(Options{URL: "http://" + addr, Queue: 8})
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		e.Add(served("a"))
	}
	if err := e.Close(); err != nil || e.Sent() != 0 || e.Dropped() != 1000 {
		t.Errorf("%d sent, %d dropped, %v; want all dropped", e.Sent(), e.Dropped(), err)
	}
	for _, bad := range []string{"", "localhost:4317", "http://localhost", "ftp://a:1", "http://a:1/v1/traces", "http://u:p@a:1"} {
		if _, err := New(Options{URL: bad}); err == nil || !strings.Contains(err.Error(), "http://HOST:PORT") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// BenchmarkAdd is what a request pays while the collector cannot be reached, and
// BenchmarkSpans what the exporter pays elsewhere for one.
func BenchmarkAdd(b *testing.B) {
	e, err := New(Options{URL: "http://127.0.0.1:1", Queue: 1})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	r := served("a")
	b.ReportAllocs()
	for b.Loop() {
		e.Add(r)
	}
}

func BenchmarkSpans(b *testing.B) {
	r := served("a")
	b.ReportAllocs()
	for b.Loop() {
		spans(r)
	}
}

// The collector gets the headers with each call, as the convention writes them.
func TestHeaders(t *testing.T) {
	c := newCollector(t, nil)
	e, err := New(Options{URL: c.url, Headers: " Api-Key = a%2Cb%20c ,x-scope-orgid=7,x-scope-orgid=8"})
	if err != nil {
		t.Fatal(err)
	}
	e.Add(served("x"))
	c.wait(t)
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if key, tenants := c.headers.Get("api-key"), c.headers.Get("x-scope-orgid"); len(key) != 1 || key[0] != "a,b c" || strings.Join(tenants, " ") != "7 8" {
		t.Errorf("the collector got %v and %v", key, tenants)
	}
	for _, wrong := range []string{"s3cret", "=s3cret", "a=1,,b=2", "a b=s3cret", "grpc-x=s3cret", "a-bin=s3cret", "a=%zzs3cret", "a=s3cret%0a", "a=s3cret\u00fc"} {
		e, err := New(Options{URL: "http://127.0.0.1:1", Headers: wrong})
		if err == nil {
			_ = e.Close()
			t.Errorf("%q is taken", wrong)
		} else if !errors.Is(err, ErrHeaders) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}
