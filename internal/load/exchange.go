package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"weir/internal/trace"
	"weir/internal/wire/sse"
	"weir/internal/workload"
	"weir/internal/workload/content"
)

// exchange carries out one request after another and reuses its allocations. Its own
// goroutine sends the request and determines its outcome. Incoming bytes are handled in
// turns. On a polled connection the poller runs the turns, and each ends when no more bytes
// are there. Otherwise the exchange's goroutine runs a single turn that waits for
// everything.
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
	said    []byte // earlier messages of its session, as JSON, each with a comma
	half    *half  // of its requests, where they have one
	session int    // its number, from 1, and the turn's in it; 0 where there are none
	nth     int
	asked   *workload.Turn // what that turn asks; nil where there are none
	bodyBuf []byte         // of a response that is not a stream
	held    int            // bytes of the answer that count towards mostHeld

	// State of the current request. ctx belongs to the run and is used in turns.
	ctx      context.Context // of the run, for the turns
	stage    stage
	body     body
	keep     bool  // the connection may be used again
	sendErr  error // the request could not be written
	written  int   // of it, by launch
	launched *conn // by launch
	stopAt   int
	over     chan struct{} // where polled: the turns are over
	timer    *time.Timer
}

// stage is what a turn reads next.
type stage uint8

const (
	readingHead stage = iota
	readingStream
	readingWhole
)

// errOver ends the turns of a request.
var errOver = errors.New("the response is over")

// maxBody bounds a response that is not a stream.
const maxBody = 64 << 20

// The answers in flight together hold at most mostHeld bytes, so that a server that sends
// events or bodies without end on every connection does not end the generator. The first
// freeHeld bytes of an answer are not counted, which keeps the count off the path of an
// ordinary answer.
const (
	mostHeld = 128 << 20
	freeHeld = 1 << 20
)

// hold states that the answer holds n bytes now, and reports whether the answers together
// hold no more than they may.
func (x *exchange) hold(n int) error {
	n = max(n-freeHeld, 0)
	if n == x.held {
		return nil
	}
	all := x.client.held.Add(int64(n - x.held))
	grown := n > x.held
	x.held = n
	if grown && all > mostHeld {
		return fmt.Errorf("answers in flight hold more than %d MiB together", mostHeld>>20)
	}
	return nil
}

// free drops what the answer holds.
func (x *exchange) free() {
	if x.held > 0 {
		_ = x.hold(0) // less is never too much
		x.bodyBuf, x.events = nil, sse.Parser{}
	}
}

// mostEvents bounds the text events of an answer, each of which leaves its time. An answer has few
// more events than tokens, and the tokens have a bound in the request.
func (j *judge) mostEvents() int {
	const most, times, least = 1 << 20, 64, 1 << 12
	if j.maxTokens > 0 && j.maxTokens < most/times {
		return max(times*j.maxTokens, least)
	}
	return most
}

func newExchange(p *Plan, c *client, words *content.Words) *exchange {
	x := &exchange{plan: p, client: c, over: make(chan struct{}, 1), timer: time.NewTimer(0)}
	x.timer.Stop()
	x.sample.whole = p.NoStream
	x.judge = judge{
		sample:    &x.sample,
		words:     words,
		native:    p.API == Generate,
		trust:     p.API != Chat,
		usage:     p.NoStream || !p.NoUsage,
		maxTokens: p.OutputTokens,
		keep:      p.sessions(),
	}
	return x
}

// take begins a request: the generator has it now.
func (x *exchange) take(ctx context.Context, index int, intended int64) {
	s := &x.sample
	s.reset(index, intended)
	s.RequestID, s.AskedInput, s.AskedOutput = x.id, x.ask.input, x.ask.output
	s.Session, s.Turn = x.session, x.nth
	x.judge.maxTokens = x.ask.output
	s.Started = trace.Now()
	x.judge.reset()
	x.events = sse.Parser{Max: maxBody}
	x.ctx, x.keep = ctx, false
	if x.half != nil {
		x.half.begin(ctx, x.wire, x.plan.Timeout)
	}
}

// launch sends the rendered request at once if it can do so without waiting: over an idle,
// polled connection. do continues from there. So the request is sent in the caller's time
// and need not wait until a goroutine gets a core.
func (x *exchange) launch(ctx context.Context, index int, intended int64) {
	cn := x.client.spare()
	if cn == nil {
		return
	}
	if cn.socket == nil {
		x.client.put(cn)
		return
	}
	x.take(ctx, index, intended)
	x.begin(ctx, cn)
	x.launched = cn
	x.written, x.sendErr = cn.socket.try(x.wire)
}

// do sends the rendered request, or the rest that launch has left, and determines the
// sample's outcome.
func (x *exchange) do(ctx context.Context, index int, intended int64) {
	s := &x.sample
	defer x.free()
	if x.half != nil {
		defer x.half.end(s)
	}
	cn, reused := x.launched, true
	if x.launched = nil; cn == nil {
		x.take(ctx, index, intended)
		var err error
		if cn, reused, err = x.client.get(ctx); err != nil {
			s.LastByte = trace.Now()
			x.broken(KindConnect, err)
			return
		}
		x.begin(ctx, cn)
	}
	s.Reused = reused
	if cn.socket != nil {
		x.polled(ctx, cn)
	} else {
		_ = cn.SetDeadline(time.Now().Add(x.plan.Timeout)) // fails only when closed
		// Ending the run wakes whatever read or write is under way.
		stop := context.AfterFunc(ctx, func() { _ = cn.SetDeadline(time.Unix(1, 0)) })
		x.converse(cn)
		x.keep = stop() && x.keep
	}
	s.Reads = cn.buf.reads
	s.late, cn.late = cn.late, s.late[:0]
	s.lateness()
	if s.LastByte == 0 {
		s.LastByte = trace.Now()
	}
	if !x.keep {
		_ = cn.Close()
		return
	}
	cn.buf.reads = 0
	x.client.put(cn)
}

// begin makes ready for the response to a request that is about to be sent.
func (x *exchange) begin(ctx context.Context, cn *conn) {
	cn.slow.rate = 0
	x.ctx, x.stage, x.keep, x.sendErr, x.written, x.stopAt = ctx, readingHead, false, nil, 0, x.plan.StopReadingAfter
	x.sample.Sent = trace.Now()
	if cn.wire != nil {
		cn.wire.begin(x.sample.Sent)
	}
}

// converse writes the request and reads the response, waiting for both.
func (x *exchange) converse(cn *conn) {
	// A server may refuse before it has read everything; its answer says more than the
	// failed write.
	_, x.sendErr = cn.Write(x.wire)
	x.turn(cn)
}

// polled does the same on a socket that the poller reads.
func (x *exchange) polled(ctx context.Context, cn *conn) {
	x.timer.Reset(x.plan.Timeout)
	if x.sendErr == nil {
		x.sendErr = cn.socket.write(ctx, x.timer, x.wire[x.written:])
	}
	if errors.Is(x.sendErr, os.ErrDeadlineExceeded) || ctx.Err() != nil {
		x.broken(kindOf(os.ErrDeadlineExceeded, true), os.ErrDeadlineExceeded)
		return
	}
	if !cn.socket.listen(x, cn) {
		why := os.ErrDeadlineExceeded
		select {
		case <-x.over:
			why = nil
		case <-x.timer.C:
		case <-ctx.Done():
		}
		if why != nil && !cn.socket.leave(x) {
			x.keep = false
			x.broken(KindTimeout, why)
		}
	}
	x.timer.Stop()
}

// turn reads what has arrived, and reports whether the response is over. On a connection
// that never waits it returns false if more is to come.
func (x *exchange) turn(cn *conn) (over bool) {
	for {
		var err error
		switch x.stage {
		case readingHead:
			err = x.head(cn)
		case readingStream:
			err = x.stream()
		case readingWhole:
			err = x.whole()
		}
		if err != nil {
			return !errors.Is(err, errAgain)
		}
	}
}

// head reads the response's head.
func (x *exchange) head(cn *conn) error {
	s := &x.sample
	var h head
	var err error
	if s.FirstByte == 0 {
		err = cn.buf.fill()
	}
	if err == nil {
		s.FirstByte = cmp.Or(s.FirstByte, cn.buf.at)
		h, err = readHead(&cn.buf)
	}
	if errors.Is(err, errAgain) {
		return err
	}
	if err != nil {
		s.FirstByte = 0
		kind := kindOf(err, true)
		if x.sendErr != nil && kind != KindTimeout {
			kind, err = KindSend, x.sendErr
		}
		x.broken(kind, err)
		return errOver
	}
	s.Status = h.status
	if h.requestID != "" {
		s.RequestID = h.requestID
	}
	cn.slow.rate = x.plan.ReadRate
	x.body = h.body(&cn.buf)
	x.keep = h.keep && x.sendErr == nil
	switch {
	case h.status == 200 && !x.plan.NoStream && strings.HasPrefix(h.contentType, "text/event-stream"):
		x.stage = readingStream
	case h.status != 200 || strings.HasPrefix(h.contentType, "application/json"):
		x.stage, x.bodyBuf = readingWhole, x.bodyBuf[:0]
	default:
		x.keep = false
		s.fail(KindContentType, fmt.Sprintf("%q", h.contentType))
		return errOver
	}
	return nil
}

// stream reads what has arrived of a body of events.
func (x *exchange) stream() error {
	s, j := &x.sample, &x.judge
	data, err := x.body.next()
	s.Frames = x.body.frames
	if errors.Is(err, errAgain) {
		return err
	}
	now := x.body.src.at
	if err != nil {
		s.LastByte = now
		if errors.Is(err, io.EOF) {
			j.end(x.events.Partial())
			return errOver
		}
		return x.lost(err)
	}
	s.Bytes += int64(len(data))
	x.events.Feed(data)
	for ev, ok := x.events.Next(); ok; ev, ok = x.events.Next() {
		texts, answered := s.TextEvents, s.FirstToken != 0
		j.event(ev, now)
		if s.TextEvents == texts {
			continue
		}
		if most := j.mostEvents(); s.TextEvents > most {
			x.keep = false
			s.fail(KindBadEvent, fmt.Sprintf("more than %d events with text", most))
			return errOver
		}
		if since := x.body.src.since(x.events.Last()); since < now {
			s.later = later{since, now - since, x.body.src.reads - 1, !answered && s.FirstToken != 0}
		}
		if x.plan.KeepChunks {
			s.Chunks = append(s.Chunks, now)
		}
	}
	if err := cmp.Or(x.events.Err(), x.hold(x.events.Held()+len(j.answer))); err != nil {
		x.keep = false
		s.fail(KindBadEvent, err.Error())
		return errOver
	}
	if n := x.plan.HangUpAfter; n > 0 && s.Tokens >= n && !s.Done {
		return x.abandon()
	}
	if x.stopAt > 0 && s.Tokens >= x.stopAt {
		x.stopAt = 0
		if !x.stopReading(x.ctx) {
			return x.abandon()
		}
	}
	return nil
}

// lost ends a response whose connection failed.
func (x *exchange) lost(err error) error {
	x.keep = false
	x.broken(kindOf(err, false), err)
	return errOver
}

// abandon hangs up.
func (x *exchange) abandon() error {
	x.keep = false
	x.sample.Outcome = Abandoned
	return errOver
}

// stopReading waits as the plan demands, and reports whether to continue reading.
func (x *exchange) stopReading(ctx context.Context) (resume bool) {
	if x.plan.StopReadingFor == 0 {
		pause(ctx, x.plan.Timeout)
		return false
	}
	return pause(ctx, x.plan.StopReadingFor)
}

// whole reads what has arrived of a body that is not a stream: an answer, or a
// refusal.
func (x *exchange) whole() error {
	s := &x.sample
	data, err := x.body.next()
	s.Frames = x.body.frames
	if errors.Is(err, errAgain) {
		return err
	}
	s.LastByte = x.body.src.at
	s.Bytes += int64(len(data))
	x.bodyBuf = append(x.bodyBuf, data...)
	full := x.hold(len(x.bodyBuf))
	switch {
	case full != nil:
		x.keep = false
		s.fail(KindFraming, full.Error())
	case len(x.bodyBuf) > maxBody:
		x.keep = false
		s.fail(KindFraming, fmt.Sprintf("a body of more than %d bytes", maxBody))
	case err == nil:
		return nil
	case !errors.Is(err, io.EOF):
		return x.lost(err)
	case s.Status != 200:
		x.judge.refuse(s.Status, x.bodyBuf)
	default:
		x.judge.whole(x.bodyBuf, s.LastByte)
		if !x.plan.NoStream && x.judge.fault.kind != KindErrorEvent {
			s.fail(KindContentType, "a JSON answer where a stream was asked for")
		} else {
			x.judge.end(false)
		}
	}
	return errOver
}

// broken determines the outcome of a request whose connection failed. A previous answer of
// the server outranks the broken connection. The end of the run is not an error.
func (x *exchange) broken(kind Kind, err error) {
	s := &x.sample
	switch {
	case x.ctx.Err() != nil:
		s.Outcome = Unfinished
	case x.judge.fault.kind == KindErrorEvent:
		s.fail(KindErrorEvent, x.judge.fault.detail+"; then "+string(kind))
	case s.Events > 0:
		s.fail(kind, fmt.Sprintf("%v after %d tokens", err, s.Tokens))
	default:
		s.fail(kind, err.Error())
	}
}
