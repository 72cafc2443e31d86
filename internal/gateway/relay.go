package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"

	"weir/internal/infer"
	"weir/internal/openai"
	"weir/internal/sse"
	"weir/internal/trace"
)

// A relay's buffer begins small, because thousands of streams may be idle, and
// grows up to one held tail and one read.
const (
	relayBufferMin = 4 << 10
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
	x.silence = x.bound()
	x.pull = &pull{x: x, declared: declaredLength(resp.Header), buf: make([]byte, relayBufferMin)}
	if x.endpoint != openai.Other && resp.Status < 400 && x.carriesSSE {
		x.pull.judged = true
		x.pull.inspector = openai.NewInspector(x.endpoint, x.head.Choices())
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
	whole    int  // of it, what may be forwarded
	ended    bool // the engine's answer was read to its end
	read     int64
	declared int64 // length of the answer by its head, -1 without
	splitter sse.Splitter
	done     bool
	// judged streams are those whose rules are known (docs/integrity.md): their
	// events are looked at, and a whole one ends with [DONE].
	judged    bool
	inspector openai.Inspector
	fault     *infer.Error // what is wrong with what follows buf[:whole]
	usage     []byte       // the beginning of the latest usage object
	open      bool         // the last write ended inside an event too large to hold
}

// resume goes on with a stream that has left net/http.
func (p *pull) resume() error {
	if err := p.flush(); err != nil {
		return err
	}
	if err := p.faulty(); err != nil {
		return err
	}
	if p.ended {
		return p.finish()
	}
	return p.copy()
}

// copy moves the answer to its end, or until the stream leaves net/http with
// its first output, which is still to be flushed then.
func (p *pull) copy() error {
	x := p.x
	for {
		x.hold()
		x.enter(trace.Engine)
		p.grow()
		x.silence.begin()
		n, err := x.response.Body.Read(p.buf[p.held:])
		x.silence.pause()
		x.enter(trace.Receive)
		if n > 0 {
			if x.rec.FirstReceived == 0 {
				x.silence.limitTo(x.g.opts.IdleTimeout)
				x.rec.FirstReceived = trace.Now()
				x.rec.LiveAtFirstToken = int(x.g.live.Load())
			}
			if werr := p.forward(n); werr != nil {
				return werr
			}
		}
		p.ended = err == io.EOF
		if x.detached && !x.resumed {
			return nil
		}
		if p.ended {
			return p.finish()
		}
		if err != nil {
			return p.readError(err)
		}
	}
}

// grow makes room for a read.
func (p *pull) grow() {
	if p.held < len(p.buf) {
		return
	}
	buf := make([]byte, min(2*len(p.buf), relayBufferMax))
	copy(buf, p.buf[:p.held])
	p.buf = buf
}

// forward writes as much of what is held as may be written.
func (p *pull) forward(n int) error {
	x := p.x
	p.read += int64(n)
	if p.declared >= 0 && p.read > p.declared {
		return p.engineFault("the engine's answer is longer than it declared")
	}
	whole := p.held + n
	if x.carriesSSE {
		r := p.splitter.Feed(p.buf[p.held:whole])
		whole, p.open = r.Len, r.Open
		p.done = r.Done
	}
	if p.judged {
		whole = p.judge(whole)
	} else {
		p.noteUsage(p.buf[:whole])
	}
	p.held += n
	p.whole = whole
	if whole == 0 {
		return p.faulty()
	}
	if !x.committed {
		if p.head(); x.detached {
			return nil // resume flushes
		}
	}
	if err := p.flush(); err != nil {
		return err
	}
	return p.faulty()
}

// judge looks at the whole events that are due and gives the length of those
// that may be forwarded.
func (p *pull) judge(whole int) int {
	good, err := p.inspector.Events(p.buf[:whole])
	if err == nil {
		return whole
	}
	p.fault, p.open = infer.AsError(err), false
	p.fault.Engine = p.x.target.Name
	p.fault.Retryable = good == 0 && !p.x.committed
	return good
}

func (p *pull) faulty() error {
	if p.fault != nil {
		return p.fault
	}
	return nil
}

// flush writes what may be written.
func (p *pull) flush() error {
	p.x.enter(trace.Flush)
	if err := p.x.write(p.buf[:p.whole], false); err != nil {
		return err
	}
	p.held = copy(p.buf, p.buf[p.whole:p.held])
	p.whole = 0
	return nil
}

// head passes the engine's response head on, with the request's id in it.
func (p *pull) head() {
	h := p.x.w.Header()
	id := h.Get("X-Request-Id")
	for name, values := range p.x.response.Header {
		h[name] = values
	}
	h.Set("X-Request-Id", id)
	p.x.commit(p.x.response.Status)
}

// finish judges the end of the engine's answer.
func (p *pull) finish() error {
	x := p.x
	if x.carriesSSE {
		if p.held > 0 || p.open || p.judged && !p.done {
			return p.engineFault("the engine's stream ended before it was complete")
		}
	}
	if p.declared >= 0 && p.read < p.declared {
		return p.engineFault("the engine's answer is shorter than it declared")
	}
	x.enter(trace.Flush)
	if !x.committed {
		x.carriesSSE = false // an empty answer is no stream to leave net/http for
		p.head()
	}
	if err := x.write(nil, true); err != nil {
		return err
	}
	x.complete = true
	switch {
	case x.response.Status >= 400:
		return x.statusError(x.response.Status)
	case p.judged && p.inspector.Failed():
		x.relayedError = true
		return &infer.Error{Code: infer.CodeEngine, Engine: x.target.Name, Message: "the engine ended the stream with an error of its own"}
	}
	return nil
}

// engineFault is a failure of the engine's.
func (p *pull) engineFault(message string) error {
	return &infer.Error{Code: infer.CodeEngine, Engine: p.x.target.Name, Retryable: true, Message: message}
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
	if errors.As(context.Cause(x.attempt), &idle) {
		return idle
	}
	return err
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
	u, ok := p.inspector.Usage()
	if !p.judged {
		u, ok = openai.ParseUsage(p.usage)
	}
	if ok {
		rec := p.x.rec
		rec.PromptTokens, rec.CompletionTokens, rec.CachedTokens = u.PromptTokens, u.CompletionTokens, max(u.CachedTokens, 0)
	}
}
