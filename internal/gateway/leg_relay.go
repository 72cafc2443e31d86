package gateway

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
	"weir/internal/gateway/freelist"
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
	// If its reads keep waiting, each is a batch of a single stream. of is nil until that is
	// known. since is the time of the current read, or 0 if there is none.
	of      *metrics.Receive
	batches batches
	since   int64
}

// polledReads is the state of a relay's leg whose socket is polled.
type polledReads struct {
	polled   engine.Polled
	stopPoll func()
	hup      atomic.Bool // the engine has ended its side: the socket is read to its end
	requeue  func()      // asks for another turn
	reads    int         // of this turn
	drained  bool        // the socket held nothing more
}

// A buffer for reads that wait begins small, because thousands of streams may wait
// for their first output.
const (
	relayBufferMin = 1 << 10
	relayBufferMax = 64 << 10
)

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
	l.buf = l.g.relayBuffers.Take().room[:]
	l.answer = answer.NewRelayed(o)
	return l.answer
}

// expect bounds the wait for the engine's first output.
func (l *relayLeg) expect() {
	l.silence = l.g.silences.begin(l.target.Name, l.g.opts.Attempt.FirstTimeout, l.g.opts.Attempt.IdleTimeout, func(e *infer.Error) { l.ctx.End(e) })
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
	if c, ok := by.(dialect.Counted); ok && l.verifier == nil && q.Head.Stream && l.g.opts.Attempt.Counting {
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

// head implements leg: it passes the engine's response head on. An empty answer is no
// stream.
func (l *relayLeg) head(h http.Header, first answer.Part) (status int, events bool) {
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

// take implements leg. It is stage 8, receive.
func (l *relayLeg) take(w *worker, round int) (ok bool, err error) {
	in, s := &w.in, &w.scratch
	in.N, in.Err = 0, nil
	l.g.room.Tell(l.booking, &w.tally)
	if n := l.answer.Events(); n > l.told { // of what was taken last
		l.shown.took(w, l.rec.Record, l.taken, l.taken, l.flushed, n-l.told, n-l.told)
		l.told = n
	}
	l.silence.pause()
	if !l.ending && l.err == nil && l.answer.Done() { // a stream that has had its end marker must end soon
		l.ending = true
		l.silence.limitTo(min(answer.EndGrace, l.g.opts.Attempt.IdleTimeout), answersEnd)
	}
	if len(l.unread) == 0 && l.err == nil && l.ready() {
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
			l.requeue() // behind all others that are ready
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

// stop implements leg. A relay's answer has no choices that weir ends.
func (l *relayLeg) stop([]answer.Stop, bool) {}

// whole implements leg.
func (l *relayLeg) whole() bool { return l.answer.Done() }

// more implements leg.
func (l *relayLeg) more() bool { return l.filled }

// ready implements leg: a part of the answer was read from the socket together with the head,
// so that reading it does not wait.
func (l *relayLeg) ready() bool {
	if l.polled != nil {
		return false
	}
	b, ok := l.response.Body.(interface{ Buffered() bool })
	return len(l.unread) > 0 || l.err != nil || ok && b.Buffered()
}

// glance implements leg: it reads what the socket has.
func (l *relayLeg) glance() bool {
	polled, ok := l.response.Body.(engine.Polled)
	if !ok || l.ready() || l.polled != nil {
		return ok && l.polled == nil
	}
	n, _, err := polled.TryRead(l.buf)
	if n == 0 && err == nil {
		return false
	}
	l.unread, l.err = l.buf[:n], err
	return true
}

// wait implements leg: it reads.
func (l *relayLeg) wait() {
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
	if l.of != nil {
		l.since = trace.Now()
	}
	l.unread, l.err = l.buf[:n], err
	l.filled = 2*n > len(l.buf) // of what was read, framing is gone
}

// batched counts what was read last, which has been dealt with.
func (l *relayLeg) batched() {
	if l.since != 0 {
		l.batches.count(l.of, 1, l.since, trace.Now())
		l.since = 0
	}
}

// drive implements leg: it gives the answer's socket to the poller. One that cannot be polled,
// as over TLS, is read by the stream's own goroutine to its end.
func (l *relayLeg) drive(x *exchange) bool {
	polled, ok := l.response.Body.(engine.Polled)
	var fd int
	if ok {
		fd, ok = polled.Detach()
	}
	if !ok {
		l.of = l.g.opts.Metrics.Receive(relayKind)
		return false
	}
	l.polled, l.requeue = polled, x.Notify
	l.release()
	// The engine has sent something, or has ended its side.
	ready := func(w *worker, hup bool) {
		if hup {
			l.hup.Store(true)
		}
		if x.claim(running) {
			x.turn(w)
		}
	}
	var err error
	if l.stopPoll, err = l.g.polls.poll(fd, ready); err != nil {
		// The answer cannot go back to being read as before.
		l.err = &infer.Error{Code: infer.CodeInternal, Message: "the engine's connection cannot be polled", Cause: err}
	} else {
		l.g.polled.Add(1)
	}
	l.stopWatching = l.ctx.AtEnd(x.Notify)
	return true
}

// close implements leg.
func (l *relayLeg) close() {
	l.engineWait.close()
	l.batched()
	if l.stopPoll != nil {
		l.stopPoll()
		l.g.polled.Add(-1)
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
		l.g.relayBuffers.Give(relayBuffer{(*[relayBufferMin]byte)(l.buf)})
	}
	l.buf = nil
}

// relayBuffer is one of relayBufferMin. Others are not kept.
type relayBuffer struct{ room *[relayBufferMin]byte }

func newRelayBuffers() *freelist.List[relayBuffer] {
	return &freelist.List[relayBuffer]{Make: func() relayBuffer { return relayBuffer{new([relayBufferMin]byte)} }}
}
