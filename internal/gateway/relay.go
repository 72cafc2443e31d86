package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"weir/internal/api"
	"weir/internal/engine"
	"weir/internal/infer"
	"weir/internal/openai"
	"weir/internal/sse"
	"weir/internal/trace"
)

// A relay's buffer begins small, because thousands of streams may wait for their
// first output, and grows up to one held tail and one read.
const (
	relayBufferMin = 1 << 10
	relayBufferMax = sse.DefaultMax + 16<<10
)

// relay is the output path of a relay engine: it reads from the engine and
// writes to the client, byte for byte. Of a stream of events it only forwards
// whole ones, so that an error event of weir's own never lands inside one.
func (x *exchange) relay() error {
	if err := x.elsewhere(); err != nil {
		return err
	}
	resp := x.response
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	x.carriesSSE = kind == "text/event-stream"
	x.silence = x.newSilence(x.g.opts.FirstTimeout, func(e *infer.Error) { x.abandon(e) })
	x.pull = &pull{x: x, declared: declaredLength(resp.Header), framed: resp.Framed, buf: make([]byte, relayBufferMin)}
	if resp.Status < 400 && x.carriesSSE {
		x.pull.inspector = x.endpoint.NewInspector(x.head)
	}
	return x.pull.copy()
}

// elsewhere turns an overloaded engine's refusal into a retryable error when
// another engine could take the request. Otherwise the refusal is passed on as
// the engine wrote it.
func (x *exchange) elsewhere() error {
	status := x.response.Status
	if status != http.StatusServiceUnavailable && status != http.StatusTooManyRequests || !x.couldRetry() {
		return nil
	}
	return &infer.Error{Code: infer.CodeOverloaded, Engine: x.target.Name, Retryable: true,
		Message: "the engine is overloaded"}
}

// statusError records a refusal that the engine wrote and the client has read.
func (x *exchange) statusError(status int) error {
	x.relayedError = true
	e := infer.Errorf(infer.CodeInvalid, "the engine answered with status %d", status)
	switch {
	case status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests:
		e.Code = infer.CodeOverloaded
	case status >= 500:
		e.Code, e.Engine = infer.CodeEngine, x.target.Name
	}
	return e
}

// pull moves one answer. buf[:held] is what was read and not yet forwarded.
type pull struct {
	x        *exchange
	buf      []byte
	held     int
	filled   bool  // half of it or more, by the last read
	whole    int   // of it, what may be forwarded
	ended    bool  // the engine's answer was read to its end
	failed   error // or could not be
	read     int64
	framed   bool  // the answer tells where it ends
	declared int64 // length of the answer by its head, -1 without
	splitter sse.Splitter
	doneAt   int64 // when a judged stream was found so, nothing being wrong with it
	over     bool  // and the engine has not ended the answer in time
	// inspector judges a stream whose rules are known (docs/integrity.md): its
	// events are looked at, and a whole one has its end marker. nil: is not judged.
	inspector api.Inspector
	fault     *infer.Error // what is wrong with what follows buf[:whole]
	usage     []byte       // the beginning of the latest usage object
	open      bool         // the last write ended inside an event too large to hold

	// Of a stream that is driven by workers.
	polled   engine.Polled
	stopPoll func()
	hup      atomic.Bool // the engine has ended its side: the socket is read to its end
}

// copy moves the answer to its end, or until the stream leaves net/http with
// its first output, which is still to be flushed then.
func (p *pull) copy() error {
	x := p.x
	for {
		if !p.filled { // else there may be more that has waited already
			x.hold()
		}
		x.silence.begin(x.enter(trace.Engine))
		p.grow()
		n, err := x.response.Body.Read(p.buf[p.held:])
		p.filled = 2*n > len(p.buf)-p.held // of what was read, framing is gone
		x.silence.pause()
		if p.took(n, err); x.detached && !x.resumed {
			return nil
		}
		if err := p.flush(); err != nil || x.complete {
			return err
		}
	}
}

// resume goes on with a stream that has left net/http.
func (p *pull) resume() error {
	if err := p.flush(); err != nil || p.x.complete {
		return err
	}
	return p.copy()
}

// grow makes room for a read: more when the buffer is full of an event that is
// not whole, and when the last read might have brought more.
func (p *pull) grow() {
	if p.held < len(p.buf) && !p.filled {
		return
	}
	if p.filled = false; len(p.buf) == relayBufferMax {
		return
	}
	buf := make([]byte, min(2*len(p.buf), relayBufferMax))
	copy(buf, p.buf[:p.held])
	p.buf = buf
}

// flush writes what may be written, and the response's end with the answer's.
func (p *pull) flush() error {
	x := p.x
	last, wrong := p.due()
	if p.whole > 0 || last {
		x.enter(trace.Flush)
		if !x.committed {
			x.carriesSSE = false // an empty answer is no stream to leave net/http for
			p.head()
		}
		if err := x.write(p.buf[:p.whole], last); err != nil {
			return err
		}
		p.forwarded()
		if last {
			x.complete = true
			return p.outcome()
		}
	}
	return wrong
}

// poll gives the answer's socket to the poller; false when the answer cannot be
// polled.
func (p *pull) poll() bool {
	x := p.x
	polled, ok := x.response.Body.(engine.Polled)
	if !ok {
		return false
	}
	fd, ok := polled.Detach()
	if !ok {
		return false
	}
	p.polled = polled
	var err error
	if p.stopPoll, err = x.g.polls.poll(fd, p.ready); err != nil {
		// The answer cannot go back to being read as before.
		p.failed = &infer.Error{Code: infer.CodeInternal, Message: "the engine's connection cannot be polled", Cause: err}
	}
	x.stopAwaiting = context.AfterFunc(x.attempt.ctx, x.schedule)
	return true
}

// ready gives the stream a turn because the engine has sent something, or has
// ended its side.
func (p *pull) ready(w *worker, hup bool) {
	if hup {
		p.hup.Store(true)
	}
	if p.x.claim(running) {
		p.x.turn(w)
	}
}

// turnReads bounds the reads of one turn, so that an engine that sends without
// end holds up no other stream.
const turnReads = 4

// advance is a turn's work: copy, but never waiting.
func (p *pull) advance(w *worker) (v verdict, err error) {
	x := p.x
	x.silence.pause()
	own := p.borrow(w)
	defer func() { p.buf = append(own, p.buf[:p.held]...) }()
	drained := false
	for reads := 0; ; reads++ {
		last, wrong := p.due()
		if p.whole > 0 || last {
			x.complete = last
			v, err := x.tryWrite(w, p.buf[:p.whole], last)
			if p.forwarded(); v != waits {
				return v, err
			}
		}
		switch {
		case wrong != nil:
			return ended, wrong
		case x.attempt.ctx.Err() != nil:
			p.failed = context.Cause(x.attempt.ctx)
			continue
		case reads == turnReads:
			x.schedule() // behind all others that are ready
			drained = true
		}
		if drained {
			x.silence.begin(x.enter(trace.Engine))
			return waits, nil
		}
		var n int
		n, drained, err = p.polled.TryRead(p.buf[p.held:])
		if n > 0 {
			drained = drained && !p.hup.Load()
		}
		p.took(n, err)
	}
}

// ownBuffer is what a driven stream keeps between turns.
const ownBuffer = 1 << 10

// borrow makes the worker's buffer the stream's for a turn: between turns it
// holds none, but for the beginning of an event, for which the one given back
// has room.
func (p *pull) borrow(w *worker) (own []byte) {
	if w.read == nil {
		w.read = make([]byte, relayBufferMax)
	}
	copy(w.read, p.buf[:p.held])
	if cap(p.buf) <= ownBuffer {
		own = p.buf[:0]
	}
	p.buf = w.read
	return own
}

// took takes in the n bytes behind buf[:held] that a read brought, and its
// error.
func (p *pull) took(n int, err error) {
	x := p.x
	p.ended = err == io.EOF
	if err != nil && !p.ended {
		p.failed = err
	}
	if n <= 0 {
		return
	}
	now := x.enter(trace.Receive)
	if x.rec.FirstReceived == 0 {
		x.silence.limitTo(x.g.opts.IdleTimeout)
		x.rec.FirstReceived = now
		x.rec.LiveAtFirstToken = int(x.g.live.Load())
	}
	p.read += int64(n)
	if p.declared >= 0 && p.read > p.declared {
		excess := int(min(p.read-p.declared, int64(n)))
		p.fault = p.kept(p.engineFault(flawLength, "the engine's answer is longer than it declared"), p.held+n-excess, p.held+n)
		return
	}
	p.whole = p.held + n
	if x.carriesSSE {
		r := p.splitter.Feed(p.buf[p.held:p.whole])
		p.whole, p.open = r.Len, r.Open
	}
	p.held += n
	if p.inspector != nil {
		p.judge()
		if p.inspector.Done() && p.fault == nil && p.declared < 0 {
			p.close(now)
		}
	} else {
		p.noteUsage(p.buf[:p.whole])
	}
	if p.whole > 0 && !x.committed {
		p.head()
	}
}

// doneGrace is how long an engine may take to end an answer whose stream has had
// its end marker. The client has the whole stream then, and must not be held up
// for what adds nothing to it; but nearly always the end is on its way, and with
// it the engine's connection can be used again.
const doneGrace = time.Second

// close bounds the wait for the end of an answer whose stream has had its end
// marker.
func (p *pull) close(now int64) {
	if p.doneAt == 0 {
		p.doneAt = now
		p.x.silence.limitTo(min(doneGrace, p.x.g.opts.IdleTimeout))
	}
	p.over = now-p.doneAt > int64(doneGrace) // comments must not hold it open either
}

// forwarded takes what was written out of the buffer.
func (p *pull) forwarded() {
	p.held = copy(p.buf, p.buf[p.whole:p.held])
	p.whole = 0
}

// judge looks at the whole events that are due; those from the first that is
// not in order may not be forwarded.
func (p *pull) judge() {
	good, err := p.inspector.Events(p.buf[:p.whole])
	if err == nil {
		return
	}
	p.fault, p.whole, p.open = p.kept(infer.AsError(err), good, p.held), good, false
	p.fault.Engine = p.x.target.Name
	p.fault.Retryable = good == 0 && !p.x.committed
}

// head passes the engine's response head on, with the request's id in it.
func (p *pull) head() {
	h := p.x.w.Header()
	id := h.Get("X-Request-Id")
	for name, values := range p.x.response.Header {
		h[name] = values
	}
	setRequestID(h, p.x.endpoint, id)
	p.x.response.Header = nil // the response's now
	p.x.commit(p.x.response.Status)
}

// due says what comes after buf[:whole]: the response's end, or what is wrong.
func (p *pull) due() (last bool, wrong error) {
	switch {
	case p.fault != nil:
		return false, p.fault
	case p.failed != nil:
		err := p.readError(p.failed)
		if p.doneAt != 0 && p.held == p.whole && infer.AsError(err).Code == infer.CodeDeadline {
			return true, nil
		}
		return false, err
	case p.over && p.held == p.whole:
		return true, nil
	case !p.ended:
		return false, nil
	case p.x.carriesSSE && (p.held > p.whole || p.open || p.inspector != nil && !p.inspector.Done() && !(p.framed && p.inspector.Whole())):
		return false, p.kept(p.engineFault(flawEnd, "the engine's stream ended before it was complete"), p.whole, p.held)
	case p.declared >= 0 && p.read < p.declared:
		return false, p.kept(p.engineFault(flawLength, "the engine's answer is shorter than it declared"), p.whole, p.held)
	}
	return true, nil
}

// outcome is how the request ended, once the whole answer has been passed on.
func (p *pull) outcome() error {
	x := p.x
	switch {
	case x.response.Status >= 400:
		return x.statusError(x.response.Status)
	case p.inspector != nil && p.inspector.Failed():
		x.relayedError = true
		return &infer.Error{Code: infer.CodeEngine, Engine: x.target.Name, Message: "the engine ended the stream with an error of its own"}
	}
	return nil
}

// engineFault is a failure of the engine's.
func (p *pull) engineFault(reason infer.Flaw, message string) *infer.Error {
	return &infer.Error{Code: infer.CodeEngine, Engine: p.x.target.Name, Retryable: true, Message: message, Cause: reason}
}

// declaredLength is the length that an answer's head declares, or -1.
func declaredLength(h http.Header) int64 {
	n, err := strconv.ParseInt(h.Get("Content-Length"), 10, 64)
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// readError says why the engine's answer could not be read to its end. An
// abandoned attempt carries its cause.
func (p *pull) readError(err error) error {
	x := p.x
	if x.ctx.Err() != nil {
		return x.gone()
	}
	var idle *infer.Error
	if errors.As(context.Cause(x.attempt.ctx), &idle) {
		return idle
	}
	return p.kept(infer.AsError(err), p.whole, p.held)
}

// usageMark begins the object that a stream's last events carry.
var usageMark = []byte(`"usage":{`)

// usageMax bounds what is kept of a usage object.
const usageMax = 1 << 10

// noteUsage keeps the latest usage object that the engine sends, for the
// record; it is read once, at the end.
func (p *pull) noteUsage(events []byte) {
	if i := bytes.LastIndex(events, usageMark); i >= 0 {
		from := i + len(usageMark) - 1
		p.usage = append(p.usage[:0], events[from:min(len(events), from+usageMax)]...)
	}
}

// recordUsage puts the token counts that the engine stated into the record.
func (p *pull) recordUsage() {
	var u infer.Usage
	var ok bool
	if p.inspector != nil {
		u, ok = p.inspector.Usage()
	} else {
		u, ok = openai.ParseUsage(p.usage)
	}
	if ok {
		rec := p.x.rec
		rec.PromptTokens, rec.CompletionTokens, rec.CachedTokens = u.PromptTokens, u.CompletionTokens, max(u.CachedTokens, 0)
	}
}
