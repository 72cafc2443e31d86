// Package otlp sends the records of requests (package trace) to a collector as spans, by
// OpenTelemetry's protocol over gRPC.
//
// Spans are made from a record when its request has ended: a request pays for one send to a
// channel, and a token for nothing. Invariants: no goroutine waits for the collector; the
// queue for it is bounded, and lost records are counted. OpenTelemetry's SDK would keep a
// span for each stage while the request is in flight, and make them on its path.
package otlp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	collectorpb "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/slim/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/slim/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"weir/internal/infer"
	"weir/internal/trace"
)

// Options configure an Exporter.
type Options struct {
	// URL is the collector's, http://HOST:PORT or https://HOST:PORT.
	URL string
	// Headers are sent with each call, as comma-separated NAME=VALUE in the form of
	// OTEL_EXPORTER_OTLP_HEADERS; special characters in a value are percent-encoded. They
	// may contain a key.
	Headers string
	// Version is this program's.
	Version string
	// Queue bounds the records that wait; 0 means 4096.
	Queue int
	// Log receives a line when the collector becomes unreachable or reachable again. With
	// nil there is no log.
	Log *slog.Logger
}

// Exporter sends records. Its one goroutine makes the spans and sends them.
type Exporter struct {
	opts    Options
	conn    *grpc.ClientConn
	queue   chan *trace.Record
	closing chan struct{}
	calls   context.Context // ends lastTime after closing
	cut     context.CancelFunc
	once    sync.Once
	ended   sync.WaitGroup
	sent    atomic.Uint64
	dropped atomic.Uint64
}

const (
	maxBatch  = 256                    // records of one call
	gather    = 500 * time.Millisecond // for which a batch is waited for to fill
	callTime  = 10 * time.Second       // of one call
	lastTime  = 2 * time.Second        // of all calls after Close
	firstWait = time.Second            // after a call that failed; doubled up to mostWait
	mostWait  = 30 * time.Second
	method    = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
)

// New makes an exporter. It connects when there is something to send. Close must be called.
func New(opts Options) (*Exporter, error) {
	u, err := url.Parse(opts.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Port() == "" || u.Path != "" && u.Path != "/" || u.User != nil {
		return nil, fmt.Errorf("%q: want http://HOST:PORT or https://HOST:PORT of a collector's gRPC, mostly port 4317", opts.URL)
	}
	if opts.Queue == 0 {
		opts.Queue = 4096
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	headers, err := parseHeaders(opts.Headers)
	if err != nil {
		return nil, err
	}
	secure := insecure.NewCredentials()
	if u.Scheme == "https" {
		secure = credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12})
	}
	conn, err := grpc.NewClient("dns:///"+net.JoinHostPort(u.Hostname(), u.Port()), grpc.WithTransportCredentials(secure))
	if err != nil {
		return nil, err
	}
	e := &Exporter{opts: opts, conn: conn, queue: make(chan *trace.Record, opts.Queue), closing: make(chan struct{})}
	e.calls, e.cut = context.WithCancel(metadata.NewOutgoingContext(context.Background(), headers))
	e.ended.Go(e.run)
	return e, nil
}

// ErrHeaders reports that Options.Headers are wrong. Its text contains no value.
var ErrHeaders = errors.New("want NAME=VALUE, several with commas between them")

// parseHeaders reads headers. A name is an HTTP token, and gRPC reserves some names.
func parseHeaders(text string) (metadata.MD, error) {
	headers := metadata.MD{}
	if strings.TrimSpace(text) == "" {
		return headers, nil
	}
	for i, part := range strings.Split(text, ",") {
		name, value, ok := strings.Cut(part, "=")
		name = strings.ToLower(strings.TrimSpace(name))
		value, err := url.PathUnescape(strings.TrimSpace(value))
		wrong := func(why string) error { return fmt.Errorf("%w: number %d %s", ErrHeaders, i+1, why) }
		switch {
		case !ok || name == "":
			return nil, wrong("has no name, or no =")
		case strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" || strings.HasPrefix(name, "grpc-") || strings.HasSuffix(name, "-bin"):
			return nil, wrong("has a name that gRPC does not carry")
		case err != nil:
			return nil, wrong("has a value with a % that begins no two hex digits")
		case strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c > '~' }):
			return nil, wrong("has a value that is not plain ASCII")
		}
		headers.Append(name, value)
	}
	return headers, nil
}

// Add hands over the record of a request that has ended, which must not change any more. It
// never waits. It ignores records of traces that are not sampled.
func (e *Exporter) Add(r *trace.Record) {
	if r.Trace == nil || !r.Trace.Sampled() {
		return
	}
	select {
	case <-e.closing:
		e.dropped.Add(1)
		return
	default:
	}
	select {
	case e.queue <- r:
	default:
		e.dropped.Add(1)
	}
}

// Sent counts the records that the collector has accepted, and Dropped those that it will
// not get.
func (e *Exporter) Sent() uint64 { return e.sent.Load() }

// Dropped is described at Sent.
func (e *Exporter) Dropped() uint64 { return e.dropped.Load() }

// Close sends what waits, for two seconds at most, and ends the exporter.
func (e *Exporter) Close() error {
	e.once.Do(func() { close(e.closing) })
	last := time.AfterFunc(lastTime, e.cut) // also of a call that is under way
	e.ended.Wait()
	last.Stop()
	e.cut()
	return e.conn.Close()
}

// run sends batches until the exporter is closed, and then the rest.
func (e *Exporter) run() {
	failed := false
	for {
		batch, open := e.gather()
		for wait := firstWait; open && len(batch) > 0; wait = min(2*wait, mostWait) {
			err := e.send(batch)
			if failed, open = e.told(failed, err), true; err == nil || !again(err) {
				e.lost(len(batch), err)
				batch = nil
				break
			}
			select {
			case <-time.After(wait):
			case <-e.closing:
				open = false
			}
		}
		if open {
			continue
		}
		for len(batch)+len(e.queue) > 0 {
			for len(batch) < maxBatch && len(e.queue) > 0 { // a collector refuses messages of more than 4 MiB
				batch = append(batch, <-e.queue)
			}
			e.lost(len(batch), e.send(batch))
			batch = nil
		}
		return
	}
}

// lost counts a batch as sent, or as lost by err.
func (e *Exporter) lost(records int, err error) {
	var some *partial
	switch {
	case err == nil:
		e.sent.Add(uint64(records))
	case errors.As(err, &some): // of whose records is not known
		e.sent.Add(uint64(records) - min(uint64(records), uint64(some.spans)))
		e.dropped.Add(min(uint64(records), uint64(some.spans)))
	default:
		e.dropped.Add(uint64(records))
	}
}

// told logs once that the collector fails, and once that it works again.
func (e *Exporter) told(failed bool, err error) bool {
	switch {
	case err != nil && !failed:
		e.opts.Log.Warn("spans cannot be sent; up to "+fmt.Sprint(e.opts.Queue)+" requests' wait, further ones are dropped", "collector", e.opts.URL, "error", err)
	case err == nil && failed:
		e.opts.Log.Info("spans are sent again", "collector", e.opts.URL, "dropped", e.Dropped())
	}
	return err != nil
}

// gather waits for records; open is false when the exporter is closed.
func (e *Exporter) gather() (batch []*trace.Record, open bool) {
	select {
	case r := <-e.queue:
		batch = append(batch, r)
	case <-e.closing:
		return nil, false
	}
	enough := time.NewTimer(gather)
	defer enough.Stop()
	for len(batch) < maxBatch {
		select {
		case r := <-e.queue:
			batch = append(batch, r)
		case <-enough.C:
			return batch, true
		case <-e.closing:
			return batch, false
		}
	}
	return batch, true
}

// partial is the error for spans that the collector rejected.
type partial struct {
	spans int64
	why   string
}

// Error implements error.
func (p *partial) Error() string {
	return fmt.Sprintf("the collector refused %d spans: %s", p.spans, p.why)
}

// again reports whether a call that failed may be made again, as the protocol has it.
func again(err error) bool {
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.OutOfRange, codes.Unavailable, codes.DataLoss:
		return true
	case codes.ResourceExhausted:
		// Without RetryInfo it may mean that the message is too large, which it stays.
		return slices.ContainsFunc(status.Convert(err).Proto().GetDetails(), func(detail *anypb.Any) bool {
			return detail.MessageName() == "google.rpc.RetryInfo"
		})
	}
	return false
}

// send makes the spans of records and has the collector take them.
func (e *Exporter) send(batch []*trace.Record) (err error) {
	defer infer.Catch(&err, func(p *infer.Panic) {
		e.opts.Log.Error("panic while sending spans", "panic", fmt.Sprint(p.Value), "stack", string(p.Stack))
	})
	ctx, cancel := context.WithTimeout(e.calls, callTime)
	defer cancel()
	scope := &tracepb.ScopeSpans{Scope: &commonpb.InstrumentationScope{Name: "weir", Version: e.opts.Version}, SchemaUrl: schema}
	for _, r := range batch {
		scope.Spans = append(scope.Spans, spans(r)...)
	}
	request := &collectorpb.ExportTraceServiceRequest{ResourceSpans: []*tracepb.ResourceSpans{{
		Resource:   &resourcepb.Resource{Attributes: []*commonpb.KeyValue{text(nameService, "weir"), text(nameVersion, e.opts.Version)}},
		ScopeSpans: []*tracepb.ScopeSpans{scope}, SchemaUrl: schema,
	}}}
	reply := &collectorpb.ExportTraceServiceResponse{}
	if err = e.conn.Invoke(ctx, method, request, reply); err != nil {
		return err
	}
	if p := reply.GetPartialSuccess(); p.GetRejectedSpans() > 0 {
		return &partial{p.GetRejectedSpans(), p.GetErrorMessage()}
	}
	return nil
}
