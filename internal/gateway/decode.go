package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"weir/internal/dialect/allow"
	"weir/internal/fleet/admission"
	"weir/internal/infer"
	"weir/internal/model/stop"
	"weir/internal/tenancy"
	"weir/internal/trace"
)

// read reads the body to its end, within limit and time. Reading everything
// before anything is sent on is also what keeps a relayed stream whole
// (golang/go#40747).
func (x *exchange) read() error {
	x.response.unread = true
	if x.unknown {
		return x.err
	}
	url := x.response.r.URL
	if err := allow.CheckPlain(url.EscapedPath()); err != nil {
		return err
	}
	if allowed, err := x.g.services.method(url.Path, x.response.r.Method, x.g.opts.Prepare.Allow.Paths); err != nil {
		if allowed != "" {
			x.response.w.Header().Set("Allow", allowed)
		}
		return err
	}
	if err := contentType(x.response.r.Header); err != nil {
		return err
	}
	if err := x.spends.enter(x.caller, time.Now()); err != nil {
		return err
	}
	done, err := x.g.admitClient(x.rec.Client, x.response.r.RemoteAddr)
	if err != nil {
		return err
	}
	x.uncount = done
	if size := x.response.r.ContentLength; size < 0 || size > admission.SmallBody {
		// A body that would be refused once it is here need not come. For a small one
		// this would save little, and cost its connection.
		if err := x.g.gate.Check(x.caller, x.rec.Arrival); err != nil {
			return err
		}
	}
	u := upload{who: x.caller, r: x.response.r, rc: &x.response.rc, http2: overHTTP2(x.response.w), opts: &x.g.opts.Front, began: time.Now()}
	if bound := x.g.opts.Front.RequestTimeout; bound > 0 {
		u.expires = trace.Wall(x.rec.Arrival).Add(bound)
	}
	x.response.breaking.reading(true)
	body, err := u.read(&x.ctx, x.g.bodies, &x.room)
	x.response.breaking.reading(false)
	x.response.unread = err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
	if err != nil {
		return u.failure(&x.ctx, err)
	}
	x.body = body
	x.rec.BytesIn = int64(len(body))
	x.rec.Received = trace.Now()
	return nil
}

// decode is stage 1: it parses the body's head, and once the kind of engine is known
// (gate) every field.
func (p *preparing) decode() error {
	head, err := p.endpoint.ParseHead(p.body)
	if err != nil {
		return err
	}
	p.head = head
	head.Lax = p.g.opts.Prepare.PassUnknown
	if p.of != nil {
		p.g.rids.take(p.of)
	}
	p.called = &p.rec.RequestID
	p.rec.Stream = head.Stream
	p.rec.Parsed = trace.Now()
	return nil
}

// decodeFields decodes every field for the model's engines that take ids.
func (p *preparing) decodeFields() error {
	p.enter(trace.Parse)
	defer p.enter(trace.Gate)
	req, err := p.endpoint.Request(p.plain, p.model.ByIDs.Kind, p.model.ByIDs.Carries)
	if err != nil {
		return p.explain(err)
	}
	// A copy: what the dialect's stands in may refer to the body, which is let go
	// of while the stream lives.
	own := *req
	p.req = &own
	p.stops = stop.New(own.Stop)
	p.hasMedia = len(req.Media) > 0
	return nil
}

func contentType(h http.Header) error {
	if e := first(h, "Content-Encoding"); e != "" && e != "identity" {
		return infer.Errorf(infer.CodeMediaType, "Content-Encoding %s is not supported; send the body uncompressed", e)
	}
	given := first(h, "Content-Type")
	if given == "" || given == "application/json" { // as nearly all say it
		return nil
	}
	kind, _, err := mime.ParseMediaType(given)
	if err == nil && (kind == "application/json" || strings.HasSuffix(kind, "+json")) {
		return nil
	}
	return infer.Errorf(infer.CodeMediaType, "Content-Type is %q; send JSON with the header Content-Type: application/json", given)
}

// upload is a body that arrives. It may take its time and may not be stuck: the wait
// for the next bytes is bounded, and so is the whole of it, by a time and by a least
// rate.
type upload struct {
	who     *tenancy.Caller
	r       *http.Request
	rc      *http.ResponseController
	http2   bool // the connection speaks it
	opts    *FrontOptions
	began   time.Time
	expires time.Time // the whole request; zero: never
	due     time.Time // the deadline of the read that was the last
	bound   int       // what the deadline is by
}

// The bounds of an upload, by which its deadline may be the first to pass.
const (
	byNext = iota // --body-timeout
	byRate
	byWhole
	byRequest
)

// deadline is the time by which more must have arrived than n bytes.
func (u *upload) deadline(n int) time.Time {
	o := u.opts
	at := time.Now().Add(o.BodyTimeout)
	u.bound = byNext
	if due := u.began.Add(o.BodyTimeout + time.Duration(float64(n)/float64(o.UploadRate)*float64(time.Second))); due.Before(at) {
		at, u.bound = due, byRate
	}
	if due := u.began.Add(o.UploadTimeout); due.Before(at) {
		at, u.bound = due, byWhole
	}
	if !u.expires.IsZero() && u.expires.Before(at) {
		at, u.bound = u.expires, byRequest
	}
	return at
}

// late is why the upload ends when its deadline passes.
func (u *upload) late() error {
	o := u.opts
	switch u.bound {
	case byRate:
		return infer.Errorf(infer.CodeBodyTimeout, "the request body arrives at less than %d bytes a second (--upload-rate)", o.UploadRate)
	case byWhole:
		return infer.Errorf(infer.CodeBodyTimeout, "the request body did not arrive within %v (--upload-timeout)", o.UploadTimeout)
	case byRequest:
		return expired(o.RequestTimeout)
	}
	return infer.Errorf(infer.CodeBodyTimeout, "nothing more of the request body arrived within %v (--body-timeout)", o.BodyTimeout)
}

// read reads the body to its end. It first reserves memory for the declared size, or
// for the bytes that have arrived.
func (u *upload) read(ctx context.Context, bodies *admission.Bodies, room *admission.Body) (body []byte, err error) {
	limit, size := u.opts.MaxBody, u.r.ContentLength
	if size > limit {
		return nil, tooLarge(limit)
	}
	if size < 0 {
		*room, err = bodies.Enter(u.who, 0, u.began)
	} else {
		*room, err = bodies.Declare(u.who, size, max(float64(u.opts.UploadRate), float64(size)/u.opts.UploadTimeout.Seconds()), u.began)
	}
	if err != nil {
		return nil, err
	}
	if b, ok := u.r.Body.(*directBody); ok && b.left == 0 && ctx.Err() == nil { // all of it came with the head
		buf := append(make([]byte, 0, size), b.rest...)
		b.release()
		room.Came(size, size)
		return buf, nil
	}
	// The declared size is only believed up to a point: memory is given out as
	// the bytes arrive.
	buf := make([]byte, 0, min(max(size, 0), admission.SmallBody)+bytes.MinRead)
	for {
		u.due = u.deadline(len(buf))
		if err := u.rc.SetReadDeadline(u.due); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return nil, infer.AsError(err)
		}
		if ctx.Err() != nil { // whose end may have set the deadline before
			return nil, os.ErrDeadlineExceeded
		}
		if cap(buf)-len(buf) < bytes.MinRead {
			more := 2 * cap(buf)
			if size >= 0 {
				// Prompts of 50,000 tokens get their whole size at once.
				more = min(4*cap(buf), int(size)+bytes.MinRead)
				if err := u.hold(ctx, room, min(int64(more), size)); err != nil {
					return nil, err
				}
			}
			buf = append(make([]byte, 0, max(more, len(buf)+bytes.MinRead)), buf...)
		}
		n, err := u.r.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if int64(len(buf)) > limit {
			return nil, tooLarge(limit)
		}
		if size >= 0 {
			room.Came(int64(len(buf)), int64(cap(buf)))
		} else if err := room.Grow(int64(cap(buf)), time.Now()); err != nil {
			return nil, err
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	_ = u.rc.SetReadDeadline(time.Time{})
	return buf, nil
}

// roomAgain is how often a body looks for room that was taken of it while it did not
// come.
const roomAgain = 50 * time.Millisecond

// hold sees to it that a declared body has room for so many bytes. It has, unless it came
// too slowly; then it waits for some, as long as it might have waited for more to come,
// and its client waits with it. That time is no fault of the client's.
func (u *upload) hold(ctx context.Context, room *admission.Body, size int64) error {
	since := time.Now()
	defer func() { u.began = u.began.Add(time.Since(since)) }()
	for {
		err := room.Grow(size, time.Now())
		if err == nil || time.Since(since) >= u.opts.BodyTimeout {
			return err
		}
		select {
		case <-time.After(roomAgain):
		case <-ctx.Done():
			return gone(ctx)
		}
	}
}

func tooLarge(limit int64) error {
	return infer.Errorf(infer.CodeTooLarge, "the request body is larger than the limit of %d bytes (--max-body)", limit)
}

// failure is why the body could not be read.
func (u *upload) failure(ctx context.Context, err error) error {
	var coded *infer.Error
	var broken *net.OpError
	switch {
	case errors.As(err, &coded):
		return coded
	case errors.As(context.Cause(ctx), &coded): // no hang-up
		return coded
	case errors.Is(err, os.ErrDeadlineExceeded) && (ctx.Err() == nil || !time.Now().Before(u.due)):
		return u.late() // by which net/http ends the request's context as well
	case errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &broken), ctx.Err() != nil,
		u.http2: // whose errors say so in words only, and before ctx ends
		return &infer.Error{Code: infer.CodeCancelled, Message: "the client closed the connection before its body was complete", Cause: err}
	}
	if len(u.r.TransferEncoding) > 0 {
		return &infer.Error{Code: infer.CodeInvalid, Message: fmt.Sprintf("the request body's chunked encoding is malformed (%v): "+
			"each chunk must be its length in hexadecimal, a line end, that many bytes and a line end, and a chunk of length 0 must end the body", err), Cause: err}
	}
	return &infer.Error{Code: infer.CodeInvalid, Message: "the request body cannot be read", Cause: err}
}
