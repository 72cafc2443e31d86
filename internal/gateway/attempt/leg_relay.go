package attempt

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"weir/internal/dialect"
	"weir/internal/engine"
	"weir/internal/gateway/answer"
	"weir/internal/gateway/drive"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/internal/lifetime"
	"weir/internal/observe/metrics"
	"weir/internal/trace"
)

// relayLeg is the leg of a relay engine, whose answer is pulled: by a goroutine that
// waits in a read, or without waiting, once its socket is polled.
type relayLeg struct {
	engineWait
	answer   *answer.Relayed
	request  context.Context // the caller's
	ctx      lifetime.Part   // ends with it, and when the attempt is abandoned
	response *engine.RelayResponse
	verifier dialect.Verifier
	why      string           // its stream is not verified, in a word
	waits    *engine.Deferral // holds the hang-up back; nil: nothing does
	events   bool             // the answer is a stream of events
	ending   bool             // and has had its end marker
	taken    int64            // when it was read last
	flushed  int64            // the time in the stage flush by then
	told     int              // of its events, those that shown was told of

	waitingReads
	polledReads
}

// waitingReads is the state of a relay's leg whose reads wait.
type waitingReads struct {
	buf    []byte
	unread []byte // of buf
	err    error  // what the read said, due after unread
	filled bool   // half of buf or more: there may be more that has waited already
	// If its reads keep waiting, each is a batch of a single stream. receive is nil until that is
	// known. since is the time of the current read, or 0 if there is none.
	receive *metrics.Receive
	batches metrics.Batches
	since   int64
}

// polledReads is the state of a relay's leg whose socket is polled.
type polledReads struct {
	polled   engine.Polled
	stopPoll func()
	hup      atomic.Bool // the engine has ended its side: the socket is read to its end
	driven   *drive.Stream
	reads    int  // of this turn
	drained  bool // the socket held nothing more
}

// open begins the answer by its head.
func (l *relayLeg) open(e dialect.Endpoint, h *dialect.Head) *answer.Relayed {
	resp := l.response
	kind := resp.Fields.Get("Content-Type")
	if kind != "text/event-stream" && kind != "application/json" {
		kind, _, _ = mime.ParseMediaType(kind)
	}
	o := answer.RelayedOptions{
		Endpoint: e, Engine: l.target.Name, Status: resp.Status, Events: kind == "text/event-stream",
		JSON: kind == "application/json" || strings.HasSuffix(kind, "+json"), Framed: resp.Framed, Declared: resp.Length,
		Bounds: relayBounds(e, h, l.target.Facts.ContextLength),
	}
	if coding := resp.Fields.Get("Content-Encoding"); coding != "identity" {
		o.Coding = coding
	}
	l.events = o.Events
	if resp.Status < 400 && o.Events {
		o.Inspector, o.Verifier = e.NewInspector(h), l.verifier
	}
	if l.silence == nil {
		l.expect()
	}
	l.buf = l.of.buffers.Take().room[:]
	l.answer = answer.NewRelayed(o)
	return l.answer
}

// expect bounds the wait for the engine's first output.
func (l *relayLeg) expect() {
	l.silence = l.of.silences.begin(l.target.Name, l.of.opts.FirstTimeout, l.of.opts.IdleTimeout, func(e *infer.Error) { l.ctx.End(e) })
	l.rec.Awaits(&l.silence.wait)
}

// ask returns the body to send to the engine. It is the caller's body with the engine's
// name for the model, with the fields that verification of a stream needs or that make it
// state its usage, and for a decode half with the fields by which it meets the prefill half.
func (l *relayLeg) ask(by dialect.Endpoint, q *prepare.Prepared, path string) []byte {
	var asked *dialect.Asked
	e, ok := by.(dialect.Verifiable)
	switch verify := l.target.Facts.Verify; {
	case verify == infer.VerifyOff:
		l.why = "off"
	case verify == infer.VerifyUnknown:
		l.why = "engine"
	case !ok:
		l.why = "endpoint"
	case q.Head.Stream:
		if asked, l.verifier, l.why = e.Verify(q.Head, verify); l.verifier == nil {
			asked = nil
		}
	}
	if c, ok := by.(dialect.Counted); ok && l.verifier == nil && q.Head.Stream && l.of.opts.Counting {
		if counting, v := c.Count(q.Head); v != nil {
			asked, l.verifier = counting, &counted{v, l.why}
		}
	}
	asked = q.Salted(asked, l.target.Engine, path)
	if l.partner != nil {
		if asked == nil {
			asked = q.Head.Ask()
		}
		l.partner.ask(asked, infer.RoleDecode, path)
	}
	if asked == nil {
		return q.Head.Splice(l.target.Model)
	}
	return asked.Splice(l.target.Model)
}

// counted is a Verifier that only has the stream state its usage.
type counted struct {
	dialect.Verifier
	why string // the stream is not verified, in a word
}

// Verified implements dialect.Verifier.
func (c *counted) Verified() (ok bool, why string) { return false, c.why }

// verified reports whether a stream that ended whole was verified, and if not, why.
func (l *relayLeg) verified() (ok bool, why string) {
	if l.verifier == nil {
		return false, l.why
	}
	return l.verifier.Verified()
}

// Head implements drive.Leg: it passes the engine's response head on. An empty answer is no
// stream.
func (l *relayLeg) Head(h http.Header, first answer.Part) (status int, events bool) {
	l.response.Fields.Put(h)
	if l.response.Length >= 0 {
		h["Content-Length"] = []string{strconv.FormatInt(l.response.Length, 10)}
	}
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil // net/http would guess one
	}
	l.response.Fields = nil // the response's now
	return l.response.Status, l.events && len(first.Out) > 0
}

// turnReads bounds the reads of one turn, so that an engine that sends without
// end holds up no other stream.
const turnReads = 4

// Take implements drive.Leg. It is stage 8, receive.
func (l *relayLeg) Take(h *drive.Hand, round int) (ok bool, err error) {
	in, s := &h.In, &h.Scratch
	in.N, in.Err = 0, nil
	l.of.room.Tell(l.booking, &h.Tally)
	if n := l.answer.Events(); n > l.told { // of what was taken last
		l.shown.took(h, l.rec.Record, l.taken, l.taken, l.flushed, n-l.told, n-l.told)
		l.told = n
	}
	l.silence.pause()
	if !l.ending && l.err == nil && l.answer.Done() { // a stream that has had its end marker must end soon
		l.ending = true
		l.silence.limitTo(min(answer.EndGrace, l.of.opts.IdleTimeout), answersEnd)
	}
	if len(l.unread) == 0 && l.err == nil && l.Ready() {
		l.read()
	}
	switch {
	case l.ctx.Err() != nil:
		in.Err = context.Cause(&l.ctx)
	case len(l.unread) > 0 || l.err != nil:
		in.N = copy(l.answer.Room(s), l.unread)
		if l.unread = l.unread[in.N:]; len(l.unread) == 0 {
			l.unread = nil // for which buf need not live on
			in.Err, l.err = l.err, nil
		}
	case l.polled == nil || !l.tryRead(in, s, round):
		l.begin()
		return false, nil
	}
	in.Now = l.rec.Enter(trace.Receive)
	if in.N > 0 {
		l.taken, l.flushed = in.Now, l.rec.Ledger.Spent[trace.Flush]
		l.shown.pace(l.rec.Record, in.Now, in.Now, l.flushed, 0)
		l.first(in.Now)
		l.booking.Read(in.Now, l.answer.Events())
	}
	in.Err = l.readError(in.Err)
	return true, nil
}

// tryRead reads what there is. It reports whether there was anything.
func (l *relayLeg) tryRead(in *answer.Input, s *answer.Scratch, round int) bool {
	if round == 0 {
		l.reads, l.drained = 0, false
	}
	for !l.drained {
		if l.reads++; l.reads > turnReads {
			l.driven.Notify() // behind all others that are ready
			break
		}
		in.N, l.drained, in.Err = l.polled.TryRead(l.answer.Room(s))
		if in.N > 0 {
			l.drained = l.drained && !l.hup.Load()
		}
		if in.N > 0 || in.Err != nil {
			return true
		}
	}
	return false
}

// readError returns why the engine's answer could not be read to its end. An abandoned
// attempt carries its cause.
func (l *relayLeg) readError(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if l.request.Err() != nil {
		return infer.AsError(context.Cause(l.request))
	}
	var idle *infer.Error
	if errors.As(context.Cause(&l.ctx), &idle) {
		return idle
	}
	return infer.AsError(err)
}

// Stop implements drive.Leg. A relay's answer has no choices that weir ends.
func (l *relayLeg) Stop([]answer.Stop, bool) {}

// Whole implements drive.Leg.
func (l *relayLeg) Whole() bool { return l.answer.Done() }

// More implements drive.Leg.
func (l *relayLeg) More() bool { return l.filled }

// Ready implements drive.Leg: a part of the answer was read from the socket together with the head,
// so that reading it does not wait.
func (l *relayLeg) Ready() bool {
	if l.polled != nil {
		return false
	}
	b, ok := l.response.Body.(interface{ Buffered() bool })
	return len(l.unread) > 0 || l.err != nil || ok && b.Buffered()
}

// Glance implements drive.Leg: it reads what the socket has.
func (l *relayLeg) Glance() bool {
	polled, ok := l.response.Body.(engine.Polled)
	if !ok || l.Ready() || l.polled != nil {
		return ok && l.polled == nil
	}
	n, _, err := polled.TryRead(l.buf)
	if n == 0 && err == nil {
		return false
	}
	l.unread, l.err = l.buf[:n], err
	return true
}

// Wait implements drive.Leg: it reads.
func (l *relayLeg) Wait() {
	if len(l.unread) > 0 || l.err != nil {
		return // it came with the head
	}
	l.read()
}

func (l *relayLeg) read() {
	if l.filled && len(l.buf) < relayBufferMax {
		l.buf = make([]byte, 2*len(l.buf))
	}
	l.batched()
	l.begin()
	n, err := l.response.Body.Read(l.buf)
	l.silence.pause()
	if l.receive != nil {
		l.since = trace.Now()
	}
	l.unread, l.err = l.buf[:n], err
	l.filled = 2*n > len(l.buf) // of what was read, framing is gone
}

// batched counts what was read last, which has been dealt with.
func (l *relayLeg) batched() {
	if l.since != 0 {
		l.batches.Count(l.receive, 1, l.since, trace.Now())
		l.since = 0
	}
}

// Drive implements drive.Leg: it gives the answer's socket to the poller. One that cannot be polled,
// as over TLS, is read by the stream's own goroutine to its end.
func (l *relayLeg) Drive(s *drive.Stream) bool {
	polled, ok := l.response.Body.(engine.Polled)
	var fd int
	if ok {
		fd, ok = polled.Detach()
	}
	if !ok {
		l.receive = l.of.metrics.Receive(drive.RelayKind)
		return false
	}
	l.polled, l.driven = polled, s
	l.release()
	var err error
	if l.stopPoll, err = s.Poll(fd, &l.hup); err != nil {
		// The answer cannot go back to being read as before.
		l.err = &infer.Error{Code: infer.CodeInternal, Message: "the engine's connection cannot be polled", Cause: err}
	}
	l.stopWatching = l.ctx.AtEnd(s.Notify)
	return true
}

// Close implements drive.Leg.
func (l *relayLeg) Close() {
	l.engineWait.close()
	l.batched()
	if l.stopPoll != nil {
		l.driven.Unpoll(l.stopPoll)
	}
	if l.answer != nil {
		if n := l.answer.Events(); n > l.told { // the stream ended with them
			l.shown.pace(l.rec.Record, l.taken, l.taken, l.flushed, n-l.told)
			l.told = n
		}
	}
	if l.response != nil {
		l.response.Body.Close()
	}
	l.ctx.End(nil)
	l.unread = nil
	l.release()
	if l.waits != nil {
		l.lingers()
	}
}

// release lets go of the buffer. What was not taken of it still refers to it.
func (l *relayLeg) release() {
	if len(l.buf) == relayBufferMin && len(l.unread) == 0 {
		l.of.buffers.Give(relayBuffer{(*[relayBufferMin]byte)(l.buf)})
	}
	l.buf = nil
}

// lingers tracks a decode half that continues after its leg was closed. It ends at the
// gateway's cut at the latest.
func (l *relayLeg) lingers() {
	of := l.of
	if l.waits.Held() == nil {
		return
	}
	if of.base.Err() != nil {
		l.waits.Released()
		return
	}
	l.partner.frees(l.waits.Released)
	if l.waits.Held() == nil {
		return
	}
	of.lingering.Go(func() { l.waits.Outlast(of.base.Done()) })
}
