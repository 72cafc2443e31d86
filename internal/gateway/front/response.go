package front

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"time"

	"weir/internal/infer"
)

// Response is the way back to the caller, and how far it has come.
type Response struct {
	Carrier  Carrier
	Begun    bool  // its head was decided: the request cannot be retried
	bounded  bool  // a write deadline is set
	watched  bool  // the hang-up is noticed by conn
	Unread   bool  // more of its request's body may come, which nobody wants
	Events   bool  // it is a stream of events
	deadline int64 // and when it is, on trace's clock
	Blocked  int   // bytes of the write that is under way

	conn   *conn   // nil when it is not one of Listener's
	Served *Served // nil: the response has left it

	breaking breaking
}

// Served is net/http's side of a response, or that of direct, which serves like it.
type Served struct {
	Writer        http.ResponseWriter
	Controller    http.ResponseController
	Request       *http.Request
	stopFollowing func() bool // its notice of the hang-up, where that is needed
}

// Detached reports whether the response has left net/http.
func (r *Response) Detached() bool { return r.Served == nil }

// ExtendDeadline keeps the write deadline between one and one and a half timeouts
// ahead, so that it is not set for every write. It reports whether it was set.
func (r *Response) ExtendDeadline(now int64, timeout time.Duration) (extended bool) {
	if r.bounded && r.deadline-now >= int64(timeout) {
		return false
	}
	ahead := timeout + timeout/2
	r.bounded, r.deadline = true, now+int64(ahead)
	r.Carrier.SetDeadline(time.Now().Add(ahead))
	return true
}

// Arm bounds the write to come. When it has moved the deadline the context is looked
// at: its end may have moved it before (Detach), so that a write does not wait.
func (r *Response) Arm(ctx context.Context, now int64, timeout time.Duration) error {
	if r.ExtendDeadline(now, timeout) && ctx.Err() != nil {
		return infer.AsError(context.Cause(ctx))
	}
	return nil
}

// Open makes the response to a request that net/http or the front itself serves.
func (f *Front) Open(r *Response, w http.ResponseWriter, request *http.Request) {
	c := connOf(request.Context())
	if direct, ok := w.(*directWriter); ok {
		c = direct.conn
	}
	carrier := &HTTPCarrier{served: Served{Writer: w, Controller: *http.NewResponseController(w), Request: request}, buffers: f.buffers}
	*r = Response{Carrier: carrier, conn: c, Served: &carrier.served}
}

// Arrival returns when the request's first byte came, as far as that is known.
func (r *Response) Arrival() int64 {
	if s, ok := r.Served.Writer.(*http2Writer); ok {
		return s.arrival
	}
	return r.conn.arrival()
}

// Ambiguous reports whether the end of the request's body may be understood in two ways.
func (r *Response) Ambiguous() bool {
	return len(r.Served.Request.TransferEncoding) > 0 && r.conn.ambiguous()
}

// breakable is a ResponseWriter that bounds its writes by what ends them; nil: nothing does.
type breakable interface{ boundBy(*breaking) }

// Heed has hungUp called when the client hangs up, and a write that waits for the
// client end by BreakOff.
func (f *Front) Heed(r *Response, hungUp func()) {
	if r.conn == nil {
		r.breaking.begin(&r.Served.Controller)
		r.Served.stopFollowing = context.AfterFunc(r.Served.Request.Context(), hungUp)
		return
	}
	r.breaking.begin(r.conn)
	if w, ok := r.Served.Writer.(breakable); ok {
		w.boundBy(&r.breaking)
	}
	err := r.conn.follow(f.Hangups, hungUp)
	r.watched = err == nil
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		f.Starved("watch", err)
	}
	if !r.watched || r.conn.tls { // whose end may come before the socket's
		r.Served.stopFollowing = context.AfterFunc(r.Served.Request.Context(), hungUp)
	}
}

// HungUp looks whether the client has hung up by now.
func (r *Response) HungUp() bool { return r.conn.look() }

// BreakOff ends the writes within a time, and a read of the body at once.
func (r *Response) BreakOff(within time.Duration) {
	if r.conn == nil { // a write over HTTP/2 may be under way, for which this would wait
		go r.breaking.breakOff(within)
		return
	}
	r.breaking.breakOff(within)
}

// Begin decides on the head: its status, and whether the response is a stream of events. It
// is called while net/http has the response.
func (r *Response) Begin(status int, events bool) {
	r.Begun, r.Events = true, events
	if events {
		r.Served.Writer.Header()["X-Accel-Buffering"] = unbuffered
	}
	r.Carrier.(*HTTPCarrier).status = status
}

// Unbind ends what BreakOff may do. The deadlines are the caller's own from here on, beginning
// with the next ExtendDeadline.
func (r *Response) Unbind() {
	r.breaking.end()
	if r.Served != nil {
		if w, ok := r.Served.Writer.(breakable); ok {
			w.boundBy(nil)
		}
	}
	r.bounded = false // the context's end may have moved it
}

// Release gives back the memory of what was kept, and ends the notice of the hang-up.
func (r *Response) Release() {
	if c, ok := r.Carrier.(*HTTPCarrier); ok {
		c.Release()
	}
	if r.Served != nil && r.Served.stopFollowing != nil {
		r.Served.stopFollowing()
	}
}

// End ends the response, as Carrier.End does. A stream that breaks although its client is there
// is broken when the client has hung up, as most do when they have read why it ends, and after
// HearingTime at the latest.
func (r *Response) End(whole, unread bool) {
	if !whole && unread && r.Events {
		unread = !r.hangsUp()
	}
	r.Carrier.End(whole, unread)
}

// hangsUp reports whether the client hangs up within HearingTime.
func (r *Response) hangsUp() bool {
	direct := r.Detached()
	if !direct {
		_, direct = r.Served.Writer.(*directWriter)
	}
	if direct {
		err := r.conn.readOn(HearingTime)
		return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
	}
	ctx := r.Served.Request.Context()
	hungUp := ctx.Done()
	if ctx.Err() != nil { // by a shutdown: the client is there
		hungUp = nil
	}
	select {
	case <-hungUp:
		return true
	case <-time.After(HearingTime):
		return false
	}
}

// Done marks the end of the request for its connection.
func (r *Response) Done() { r.conn.done() }

// MayDetach reports whether the stream can still leave its writer between two writes.
func (r *Response) MayDetach() bool {
	_, ok := r.Served.Writer.(leaver)
	return ok && r.Served.Writer.Header()["Content-Length"] == nil // otherwise it could not leave any more
}

// leaver is a ResponseWriter from which a stream can leave without Hijack, also after its head
// was sent. ok is false if it cannot now.
type leaver interface{ leave() (sent, ok bool) }

// Detach takes the stream off net/http, if it can: before its first write, which the carrier that
// it returns has kept, or between two writes of a writer that lets it go. From here on another
// carrier has it. That frees the buffers of 10 KB and the two goroutines that net/http held for
// the request. It leaves responses where they are that it cannot serve: those that are no
// streams, HTTP/2, HTTP/1.0, TLS, and systems without epoll.
//
// From here on weir does the work of net/http: serving the connection's next request
// (ReturnedConns gives it back, with what the client sent ahead), ending on shutdown
// (the gateway waits for live requests, and Cut), and closing so that a last event
// arrives (linger). Noticing the hang-up was weir's before (conn.follow).
func (r *Response) Detach(f *Front) (was *HTTPCarrier, ok bool) {
	was, ok = r.Carrier.(*HTTPCarrier)
	if !ok {
		return nil, false
	}
	w, direct := r.Served.Writer.(leaver)
	if was.status == 0 && !direct || !r.Events || !r.Served.Request.ProtoAtLeast(1, 1) || r.Served.Request.TLS != nil || !f.returned.Serving.Load() || !r.watched {
		return nil, false
	}
	c := r.conn
	socket, ok := c.tryWriter()
	if !ok {
		return nil, false
	}
	sent := false
	if direct {
		if sent, ok = w.leave(); !ok {
			return nil, false
		}
	} else {
		_, rw, err := r.Served.Controller.Hijack()
		if err != nil {
			return nil, false
		}
		if n := rw.Reader.Buffered(); n > 0 {
			ahead, _ := rw.Reader.Peek(n) // buffered, so it cannot fail
			c.ahead = append(bytes.Clone(ahead), c.ahead...)
		}
	}
	bare := &bareCarrier{conn: c, socket: socket, keepAlive: !r.Served.Request.Close, returned: f.returned}
	if fd, ok := socket.(socketWriter); ok {
		bare.fd, bare.socket = fd, &bare.fd
	}
	if !sent {
		h := r.Served.Writer.Header()
		delete(h, "Content-Length")
		bare.due, bare.head = true, appendResponseHead(make([]byte, 0, 512), h, was.status, bare.keepAlive, true)
	}
	r.Carrier = bare
	r.bounded = false // net/http has taken the deadline away
	// net/http's buffers live as long as anything of its request does.
	r.Served = nil
	f.tidy.leave()
	return was, true
}

// Lost is why a write failed.
func Lost(ctx context.Context, err error, timeout time.Duration) error {
	if ctx.Err() != nil && !errors.Is(err, errUnread) {
		return infer.AsError(context.Cause(ctx))
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &infer.Error{Code: infer.CodeSlowClient, Cause: err, Message: "the client did not read for " + timeout.String()}
	}
	return &infer.Error{Code: infer.CodeCancelled, Message: "the client closed the connection", Cause: err}
}
