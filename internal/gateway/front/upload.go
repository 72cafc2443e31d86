package front

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"weir/internal/fleet/admission"
	"weir/internal/infer"
	"weir/internal/tenancy"
	"weir/internal/trace"
)

// ReadBody reads the body of a request that arrived at a time to its end, within limit and
// time. The body's room is who's, among all bodies. With an error, r notes whether more of the body
// may come.
func (f *Front) ReadBody(ctx context.Context, r *Response, arrival int64, who *tenancy.Caller, bodies *admission.Bodies, room *admission.Body) ([]byte, error) {
	u := upload{who: who, r: r.Served.Request, rc: &r.Served.Controller, http2: overHTTP2(r.Served.Writer), opts: f.opts, began: time.Now()}
	if bound := f.opts.RequestTimeout; bound > 0 {
		u.expires = trace.Wall(arrival).Add(bound)
	}
	r.breaking.reading(true)
	body, err := u.read(ctx, bodies, room)
	r.breaking.reading(false)
	r.Unread = err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
	if err != nil {
		return nil, u.failure(ctx, err)
	}
	return body, nil
}

// upload is a body that arrives. It may take its time and may not be stuck: the wait
// for the next bytes is bounded, and so is the whole of it, by a time and by a least
// rate.
type upload struct {
	who     *tenancy.Caller
	r       *http.Request
	rc      *http.ResponseController
	http2   bool // the connection speaks it
	opts    *Options
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
		return Expired(o.RequestTimeout)
	}
	return infer.Errorf(infer.CodeBodyTimeout, "nothing more of the request body arrived within %v (--body-timeout)", o.BodyTimeout)
}

// read reads the body to its end. It first reserves memory for the declared size, or
// for the bytes that have arrived.
func (u *upload) read(ctx context.Context, bodies *admission.Bodies, room *admission.Body) (body []byte, err error) {
	limit, size := u.opts.MaxBody, u.r.ContentLength
	if size > limit {
		return nil, TooLarge(limit)
	}
	if size < 0 {
		*room, err = bodies.Enter(u.who, 0, u.began)
	} else {
		*room, err = bodies.Declare(u.who, size, max(float64(u.opts.UploadRate), float64(size)/u.opts.UploadTimeout.Seconds()), u.began)
	}
	if err != nil {
		return nil, err
	}
	if ctx.Err() == nil {
		if whole := cameWithHead(u.r); whole != nil {
			room.Came(size, size)
			return whole, nil
		}
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
			return nil, TooLarge(limit)
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
			return infer.AsError(context.Cause(ctx))
		}
	}
}

// TooLarge is why a body is refused.
func TooLarge(limit int64) error {
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

// Expired is why a request ends that has taken too long.
func Expired(bound time.Duration) *infer.Error {
	return infer.Errorf(infer.CodeExpired, "the request took longer than %v (--request-timeout)", bound)
}
