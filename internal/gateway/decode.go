package gateway

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"weir/internal/infer"
	"weir/internal/trace"
)

// read reads the body to its end, within limit and time. Reading everything
// before anything is sent on is also what keeps a relayed stream whole
// (golang/go#40747).
func (x *exchange) read() error {
	if allowed, err := x.g.services.method(x.response.r.URL.Path, x.response.r.Method); err != nil {
		if allowed != "" {
			x.response.w.Header().Set("Allow", allowed)
		}
		return err
	}
	if err := x.contentType(); err != nil {
		return err
	}
	if err := x.readBody(); err != nil {
		return err
	}
	x.rec.Received = trace.Now()
	return nil
}

// decode is stage 1: it parses the body's head.
func (x *exchange) decode() error {
	head, err := x.endpoint.ParseHead(x.body)
	if err != nil {
		return err
	}
	x.head = head
	x.takeRequestID()
	x.rec.Stream = head.Stream
	x.rec.Decoded = trace.Now()
	return nil
}

func (x *exchange) contentType() error {
	if e := x.response.r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return infer.Errorf(infer.CodeMediaType, "Content-Encoding %s is not supported; send the body uncompressed", e)
	}
	given := x.response.r.Header.Get("Content-Type")
	if given == "" {
		return nil
	}
	kind, _, err := mime.ParseMediaType(given)
	if err == nil && (kind == "application/json" || strings.HasSuffix(kind, "+json")) {
		return nil
	}
	return infer.Errorf(infer.CodeMediaType, "Content-Type is %q; send JSON with the header Content-Type: application/json", given)
}

// readBody reads with a deadline that moves with each read, so that a slow
// upload may take its time and a stuck one may not.
func (x *exchange) readBody() error {
	limit, size := x.g.opts.MaxBody, x.response.r.ContentLength
	if size > limit {
		return tooLarge(limit)
	}
	// The declared size is only believed up to a point: memory is given out as
	// the bytes arrive.
	buf := bytes.NewBuffer(make([]byte, 0, min(max(size, 0), 1<<20)+bytes.MinRead))
	for {
		if err := x.response.rc.SetReadDeadline(time.Now().Add(x.g.opts.BodyTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return infer.AsError(err)
		}
		buf.Grow(bytes.MinRead)
		n, err := x.response.r.Body.Read(buf.AvailableBuffer()[:buf.Available()])
		buf.Write(buf.AvailableBuffer()[:n])
		if int64(buf.Len()) > limit {
			return tooLarge(limit)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return x.bodyError(err)
		}
	}
	_ = x.response.rc.SetReadDeadline(time.Time{})
	x.body = buf.Bytes()
	x.rec.BytesIn = int64(len(x.body))
	return nil
}

func tooLarge(limit int64) error {
	return infer.Errorf(infer.CodeTooLarge, "the request body is larger than the limit of %d bytes (--max-body)", limit)
}

func (x *exchange) bodyError(err error) error {
	var broken *net.OpError
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return infer.Errorf(infer.CodeBodyTimeout, "the request body did not arrive within %v", x.g.opts.BodyTimeout)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &broken), x.ctx.Err() != nil:
		return &infer.Error{Code: infer.CodeCancelled, Message: "the client closed the connection before its body was complete", Cause: err}
	}
	return &infer.Error{Code: infer.CodeInvalid, Message: "the request body cannot be read", Cause: err}
}
