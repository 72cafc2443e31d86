package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"weir/internal/content"
	"weir/internal/sse"
	"weir/internal/trace"
)

// exchange carries out one request after another, in the goroutine that calls
// it; what it allocated for one serves the next.
type exchange struct {
	plan   *Plan
	client *client

	sample  Sample
	judge   judge
	events  sse.Parser
	storage []byte // of the rendered request
	wire    []byte // the rendered request
	id      string // its X-Request-Id
	ask     ask
	bodyBuf []byte // of a response that is not a stream
}

// maxBody bounds a response that is not a stream.
const maxBody = 64 << 20

func newExchange(p *Plan, c *client, words *content.Words) *exchange {
	x := &exchange{plan: p, client: c}
	x.sample.whole = p.NoStream
	x.judge = judge{
		sample:    &x.sample,
		words:     words,
		native:    p.API == Generate,
		trust:     p.API != Chat,
		usage:     p.NoStream || !p.NoUsage,
		maxTokens: p.OutputTokens,
	}
	return x
}

// do sends the rendered request and settles the sample's outcome.
func (x *exchange) do(ctx context.Context, index int, intended int64) {
	s := &x.sample
	s.reset(index, intended)
	s.RequestID, s.AskedInput, s.AskedOutput = x.id, x.ask.input, x.ask.output
	x.judge.maxTokens = x.ask.output
	s.Started = trace.Now()
	x.judge.reset()
	x.events = sse.Parser{Max: maxBody}

	cn, reused, err := x.client.get(ctx)
	if err != nil {
		s.LastByte = trace.Now()
		x.broken(ctx, KindConnect, err)
		return
	}
	s.Reused = reused
	_ = cn.SetDeadline(time.Now().Add(x.plan.Timeout)) // fails only when closed
	// Ending the run wakes whatever read or write is under way.
	stop := context.AfterFunc(ctx, func() { _ = cn.SetDeadline(time.Unix(1, 0)) })
	keep := x.converse(ctx, cn)
	s.Reads = cn.buf.reads
	if s.LastByte == 0 {
		s.LastByte = trace.Now()
	}
	if !stop() || !keep {
		_ = cn.Close()
		return
	}
	cn.buf.reads = 0
	x.client.put(cn)
}

// converse writes the request and reads the response, and says whether the
// connection may be used again.
func (x *exchange) converse(ctx context.Context, cn *conn) (keep bool) {
	s := &x.sample
	cn.slow.rate = 0
	s.Sent = trace.Now()
	_, sendErr := cn.Write(x.wire)
	// A server may refuse before it has read everything; its answer says more
	// than the failed write.
	err := cn.buf.fill()
	s.FirstByte = trace.Now()
	var h head
	if err == nil {
		h, err = readHead(&cn.buf)
	}
	if err != nil {
		s.FirstByte = 0
		kind := kindOf(err, true)
		if sendErr != nil && kind != KindTimeout {
			kind, err = KindSend, sendErr
		}
		x.broken(ctx, kind, err)
		return false
	}
	s.Status = h.status
	if h.requestID != "" {
		s.RequestID = h.requestID
	}
	cn.slow.rate = x.plan.ReadRate
	b := h.body(&cn.buf)
	switch {
	case h.status == 200 && !x.plan.NoStream && strings.HasPrefix(h.contentType, "text/event-stream"):
		keep = x.stream(ctx, &b)
	case h.status != 200 || strings.HasPrefix(h.contentType, "application/json"):
		keep = x.whole(ctx, &b)
	default:
		s.fail(KindContentType, fmt.Sprintf("%q", h.contentType))
	}
	s.Frames = b.frames
	return keep && h.keep && sendErr == nil
}

// stream reads a body of events.
func (x *exchange) stream(ctx context.Context, b *body) (keep bool) {
	s, j := &x.sample, &x.judge
	stopAt := x.plan.StopReadingAfter
	for {
		data, err := b.next()
		now := trace.Now()
		if err != nil {
			s.LastByte = now
			if !errors.Is(err, io.EOF) {
				x.broken(ctx, kindOf(err, false), err)
				return false
			}
			j.end(x.events.Partial())
			return true
		}
		s.Bytes += int64(len(data))
		x.events.Feed(data)
		for ev, ok := x.events.Next(); ok; ev, ok = x.events.Next() {
			texts := s.TextEvents
			j.event(ev, now)
			if x.plan.KeepChunks && s.TextEvents > texts {
				s.Chunks = append(s.Chunks, now)
			}
		}
		if err := x.events.Err(); err != nil {
			s.fail(KindBadEvent, err.Error())
			return false
		}
		if n := x.plan.HangUpAfter; n > 0 && s.Tokens >= n && !s.Done {
			s.Outcome = Abandoned
			return false
		}
		if stopAt > 0 && s.Tokens >= stopAt {
			stopAt = 0
			if !x.stopReading(ctx) {
				s.Outcome = Abandoned
				return false
			}
		}
	}
}

// stopReading waits as the plan asks, and says whether to read on.
func (x *exchange) stopReading(ctx context.Context) (resume bool) {
	if x.plan.StopReadingFor == 0 {
		pause(ctx, x.plan.Timeout)
		return false
	}
	return pause(ctx, x.plan.StopReadingFor)
}

// whole reads a body that is not a stream: an answer, or a refusal.
func (x *exchange) whole(ctx context.Context, b *body) (keep bool) {
	s := &x.sample
	x.bodyBuf = x.bodyBuf[:0]
	for {
		data, err := b.next()
		s.LastByte = trace.Now()
		s.Bytes += int64(len(data))
		x.bodyBuf = append(x.bodyBuf, data...)
		if len(x.bodyBuf) > maxBody {
			s.fail(KindFraming, fmt.Sprintf("a body of more than %d bytes", maxBody))
			return false
		}
		if err == nil {
			continue
		}
		if !errors.Is(err, io.EOF) {
			x.broken(ctx, kindOf(err, false), err)
			return false
		}
		if s.Status != 200 {
			x.judge.refuse(s.Status, x.bodyBuf)
			return true
		}
		x.judge.whole(x.bodyBuf, s.LastByte)
		if !x.plan.NoStream && x.judge.fault.kind != KindErrorEvent {
			s.fail(KindContentType, "a JSON answer where a stream was asked for")
			return true
		}
		x.judge.end(false)
		return true
	}
}

// broken settles the outcome of a request whose connection failed. What the
// server said before it outranks how it then hung up; the end of the run is
// nobody's fault.
func (x *exchange) broken(ctx context.Context, kind Kind, err error) {
	s := &x.sample
	switch {
	case ctx.Err() != nil:
		s.Outcome = Unfinished
	case x.judge.fault.kind == KindErrorEvent:
		s.fail(KindErrorEvent, x.judge.fault.detail+"; then "+string(kind))
	case s.Events > 0:
		s.fail(kind, fmt.Sprintf("%v after %d tokens", err, s.Tokens))
	default:
		s.fail(kind, err.Error())
	}
}
