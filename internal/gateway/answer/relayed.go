package answer

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"time"

	"weir/internal/dialect"
	"weir/internal/infer"
	"weir/internal/wire/sse"
)

// readMax is the size of the read buffer: one held tail and one read.
const readMax = sse.DefaultMax + 16<<10

// verifiedMax is the same where the ids of a prompt may be in one event.
const verifiedMax = 4 << 20

// keptTail is the room that an answer keeps between reads for the beginning of an
// event.
const keptTail = 1 << 10

// EndGrace is the time that an engine has to end its response after the end marker of
// the stream. The client then has the whole stream and must not wait for the end.
// Nearly always the end arrives soon, and then the connection to the engine can be
// reused.
const EndGrace = time.Second

// RelayedOptions describe the answer of a relay engine, by its head.
type RelayedOptions struct {
	Endpoint dialect.Endpoint
	Engine   string // its name, for errors
	Status   int
	// Events is set if the answer is a stream of events. Inspector judges it; it is
	// nil if the rules of the stream are not known (docs/integrity.md).
	Events    bool
	Inspector dialect.Inspector
	// Verifier verifies what the Inspector found in order, and removes what the
	// caller did not ask for. It is nil if streams pass unchanged.
	Verifier dialect.Verifier
	// Coding is how the engine has coded the answer, such as gzip, which weir never asks for. A stream
	// whose events nobody can read is refused.
	Coding string
	// JSON is set if the answer is a JSON document.
	JSON bool
	// Framed is set if HTTP's framing marks the end of the answer. Otherwise the answer
	// ends with its connection, and only its content shows whether it is whole.
	// Declared is the length that its head declares, or -1.
	Framed   bool
	Declared int64
	// Bounds are those of the counts that the engine states.
	Bounds Bounds
}

// Relayed is the answer of a relay engine. Its bytes pass unchanged and are only
// inspected. Events of a stream pass whole, so that an error event of weir's own never
// lands inside one; an event that is too large to hold passes in parts.
type Relayed struct {
	o        RelayedOptions
	tail     []byte // the beginning of an event, read and not yet passed on
	read     int64  // bytes of the answer so far
	events   int    // and of a stream its events
	splitter sse.Splitter
	document wholeJSON    // of JSON that is not framed
	began    bool         // something was passed on
	open     bool         // and it ended inside an event
	doneAt   int64        // when the stream was found to have its end marker
	fault    *infer.Error // what is wrong with what follows the part that passes
	usage    usageNote
}

// NewRelayed returns an empty answer.
func NewRelayed(o RelayedOptions) *Relayed {
	r := &Relayed{o: o}
	if o.Verifier != nil {
		r.splitter.Max = verifiedMax
	}
	return r
}

// Room returns the room for the engine's next bytes.
func (r *Relayed) Room(s *Scratch) []byte {
	// A large event is read as far as it is there, so that it is not copied again for each
	// few bytes more.
	if need := max(readMax, 2*len(r.tail)); len(s.read) < need || len(s.read) > 2*max(need, readMax) {
		s.read = make([]byte, need)
	}
	return s.read[copy(s.read, r.tail):]
}

// Next implements Answer. The error of an answer comes with the part that is in order.
func (r *Relayed) Next(in *Input, s *Scratch, _ Stages) Part {
	buf, pass := r.tail, 0
	if in.N > 0 {
		buf = s.read[:len(r.tail)+in.N]
		buf, pass = r.look(buf, in)
	}
	out := buf[:pass]
	if r.o.Verifier != nil {
		out, pass = r.verify(s.out[:0], buf, pass)
	}
	part := Part{}
	part.Last, part.Err = r.due(in, buf, pass)
	if part.Last {
		part.Err = r.told()
	}
	if r.o.Verifier != nil {
		if part.Last || part.Err != nil {
			out = r.o.Verifier.Rest(out)
		}
		s.out = out
	}
	part.Out = out
	if !r.began && len(out) > 0 && r.fault == nil && r.o.Inspector != nil && r.o.Inspector.Failed() {
		part.Failed = r.failedAtOnce()
	}
	if in.N > 0 {
		r.keep(buf[pass:])
	}
	r.began = r.began || len(out) > 0 || part.Last
	return part
}

// verify appends what the caller gets of the events that pass, and gives how many bytes
// of them are in order.
func (r *Relayed) verify(dst, buf []byte, pass int) (out []byte, good int) {
	out, good, err := r.o.Verifier.Events(dst, buf[:pass])
	if err != nil {
		r.fault = r.kept(infer.AsError(err), buf[:pass], good)
		r.fault.Engine, r.fault.Retryable = r.o.Engine, len(out) == 0 && !r.began
		r.open, r.doneAt = false, 0
	}
	return out, good
}

// look examines the bytes at the end of buf. It returns the part of them within the
// answer's declared length, and the number of these that pass.
func (r *Relayed) look(buf []byte, in *Input) (held []byte, pass int) {
	r.read += int64(in.N)
	if r.o.Coding != "" && r.o.Inspector != nil {
		r.fault = r.kept(r.engineFault(flawCoding, "the engine's stream is compressed ("+r.o.Coding+"), which nobody asked for: turn compression off at the engine, or at the proxy before it"), buf, len(buf)-in.N)
		return buf[:len(buf)-in.N], 0
	}
	if r.o.Declared >= 0 && r.read > r.o.Declared {
		excess := int(min(r.read-r.o.Declared, int64(in.N)))
		r.fault = r.kept(r.engineFault(flawLength, "the engine's answer is longer than it declared"), buf, len(buf)-excess)
		return buf[:len(buf)-in.N], 0
	}
	pass = len(buf)
	if r.o.Events {
		region := r.splitter.Feed(buf[len(buf)-in.N:])
		pass, r.open = region.Len, region.Open
		r.events += region.Events
	}
	if r.o.JSON && !r.o.Framed {
		r.document.feed(buf[len(buf)-in.N:])
	}
	if r.o.Inspector == nil {
		r.usage.feed(buf[:pass])
		return buf, pass
	}
	good, err := r.o.Inspector.Events(buf[:pass])
	if err != nil {
		r.fault = r.kept(infer.AsError(err), buf, good)
		r.fault.Engine, r.fault.Retryable = r.o.Engine, good == 0 && !r.began
		r.open = false
		return buf, good
	}
	if r.doneAt == 0 && r.o.Inspector.Done() && r.o.Declared < 0 {
		r.doneAt = in.Now
	}
	return buf, pass
}

// due returns what comes after the part that passes: the response's end, or what is
// wrong.
func (r *Relayed) due(in *Input, buf []byte, pass int) (last bool, wrong error) {
	whole := pass == len(buf)
	switch {
	case r.fault != nil:
		return false, r.fault
	case in.Err != nil && in.Err != io.EOF:
		// The client has all of it, whoever ends first. Bytes that are no HTTP are a fault all the same.
		var fault infer.Fault
		if r.doneAt != 0 && whole && !errors.As(in.Err, &fault) {
			return true, nil
		}
		return false, r.kept(infer.AsError(in.Err), buf, pass)
	case r.doneAt != 0 && whole && in.Now-r.doneAt > int64(EndGrace): // comments must not hold it open either
		return true, nil
	case in.Err == nil:
		return false, nil
	case r.o.Events && (!whole || r.open || r.o.Inspector != nil && !r.o.Inspector.Done() && !(r.o.Framed && r.o.Inspector.Whole())):
		return false, r.kept(r.engineFault(flawEnd, "the engine's stream ended before it was complete"), buf, pass)
	case r.o.Declared >= 0 && r.read < r.o.Declared:
		return false, r.kept(r.engineFault(flawLength, "the engine's answer is shorter than it declared"), buf, pass)
	case !r.o.Framed && !r.ended():
		return false, r.kept(r.engineFault(flawUnframed, "the engine's answer ended with its connection, and nothing in it shows that it is whole"), buf, pass)
	}
	return true, nil
}

// ended reports whether the content of an answer is whole: a document was closed, or a
// stream had its end marker.
func (r *Relayed) ended() bool {
	switch {
	case !r.o.Events:
		return r.document.whole()
	case r.o.Inspector != nil:
		return r.o.Inspector.Done()
	}
	return r.splitter.Done()
}

// told is how the request ended by the engine's own word, which the client has read.
func (r *Relayed) told() error {
	switch status := r.o.Status; {
	case status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests:
		return infer.Errorf(infer.CodeOverloaded, "the engine answered with status %d", status)
	case status >= 500:
		e := infer.Errorf(infer.CodeEngine, "the engine answered with status %d", status)
		e.Engine = r.o.Engine
		return e
	case status >= 400:
		return infer.Errorf(infer.CodeInvalid, "the engine answered with status %d", status)
	case r.o.Inspector != nil && r.o.Inspector.Failed():
		return r.failed()
	}
	return nil
}

// failed returns the meaning of an engine's error within a stream whose head has status
// 200: it is that of the status that the error names.
func (r *Relayed) failed() *infer.Error {
	e := &infer.Error{Code: infer.CodeEngine, Engine: r.o.Engine, Message: "the engine ended the stream with an error of its own"}
	switch status := r.o.Inspector.FailedAs(); {
	case status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests:
		e.Code = infer.CodeOverloaded
	case status >= 400 && status < 500:
		e.Code, e.Engine = infer.CodeInvalid, ""
	}
	return e
}

// failedAtOnce is what the same means where nothing came before it, and another engine may
// do better; nil where none does.
func (r *Relayed) failedAtOnce() *infer.Error {
	e := r.failed()
	if e.Code == infer.CodeInvalid {
		return nil
	}
	e.Retryable = true
	return e
}

// keep holds what did not pass until the next bytes come.
func (r *Relayed) keep(tail []byte) {
	if cap(r.tail) > keptTail {
		r.tail = nil
	}
	r.tail = append(r.tail[:0], tail...)
}

// Came returns how many events with content there were so far, of a stream, and the bytes.
func (r *Relayed) Came() (events, size int) { return r.events, int(r.read) }

// Odd returns what a stream had that its API does not have.
func (r *Relayed) Odd() dialect.Odd {
	if r.o.Inspector == nil {
		return 0
	}
	return r.o.Inspector.Odd()
}

// Refused reports whether the engine answered with an error.
func (r *Relayed) Refused() bool { return r.o.Status >= 400 }

// Bounds returns the most tokens that the engine can truly state.
func (r *Relayed) Bounds() Bounds { return r.o.Bounds }

// Events returns how many events with content there were so far. An engine that
// merges nothing has one token in each.
func (r *Relayed) Events() int { return r.events }

// Done reports whether the stream has had its end marker, and nothing is wrong with it:
// the answer's end must come within EndGrace.
func (r *Relayed) Done() bool { return r.doneAt != 0 && r.fault == nil }

// engineFault is a failure of the engine's.
func (r *Relayed) engineFault(reason infer.Flaw, message string) *infer.Error {
	return &infer.Error{Code: infer.CodeEngine, Engine: r.o.Engine, Retryable: true, Message: message, Cause: reason}
}

// AppendError implements Answer.
func (r *Relayed) AppendError(dst []byte, e *infer.Error) (out []byte, ok bool) {
	if r.open {
		return dst, false
	}
	if numbered, ok := r.o.Inspector.(interface {
		AppendErrorEvent(dst []byte, e *infer.Error) []byte
	}); ok {
		return numbered.AppendErrorEvent(dst, e), true
	}
	return r.o.Endpoint.AppendErrorEvent(dst, e), true
}

// usageMark is the name of the object with the counts.
const usageMark = `"usage"`

// usageMax bounds what is kept of a usage object.
const usageMax = 1 << 10

// usageNote keeps the latest usage object of an answer that is not looked into, wherever
// it is cut. It is read once, at the end.
type usageNote struct {
	kept []byte                   // from its name on, and what follows it
	edge [len(usageMark) - 1]byte // the last bytes that passed
	n    int                      // of edge
}

// feed takes in the next bytes.
func (u *usageNote) feed(b []byte) {
	if i := bytes.LastIndex(b, []byte(usageMark)); i >= 0 {
		u.kept = u.kept[:0]
		u.more(b[i:])
	} else {
		// A name across the cut ends in these.
		var across [2 * len(u.edge)]byte
		n := copy(across[:], u.edge[:u.n])
		front := copy(across[n:], b[:min(len(b), len(u.edge))])
		if i := bytes.LastIndex(across[:n+front], []byte(usageMark)); i >= 0 {
			u.kept = append(u.kept[:0], across[i:n]...)
			u.more(b)
		} else if len(u.kept) > 0 {
			u.more(b)
		}
	}
	if len(b) >= len(u.edge) {
		u.n = copy(u.edge[:], b[len(b)-len(u.edge):])
		return
	}
	keep := min(u.n, len(u.edge)-len(b))
	copy(u.edge[:], u.edge[u.n-keep:u.n])
	u.n = keep + copy(u.edge[keep:], b)
}

func (u *usageNote) more(b []byte) {
	u.kept = append(u.kept, b[:min(len(b), usageMax-len(u.kept))]...)
}

// usage reads what was kept.
func (u *usageNote) usage() (infer.Usage, bool) {
	if len(u.kept) < len(usageMark) {
		return infer.Usage{}, false
	}
	value := bytes.TrimLeft(u.kept[len(usageMark):], " \t\r\n")
	if len(value) == 0 || value[0] != ':' {
		return infer.Usage{}, false
	}
	return dialect.ParseUsage(value[1:])
}

// Usage implements Answer with the counts that the engine stated, within the bounds.
func (r *Relayed) Usage() (u infer.Usage, ok bool) {
	if r.o.Inspector == nil {
		u, ok = r.usage.usage()
		return r.o.Bounds.clip(u), ok
	}
	u, ok = r.o.Inspector.Usage()
	if r.o.Verifier != nil {
		if counted, known := r.o.Verifier.Usage(); known { // the latest may be one choice's
			u.PromptTokens, u.CompletionTokens, ok = counted.PromptTokens, counted.CompletionTokens, true
		}
	}
	return r.o.Bounds.clip(u), ok
}
