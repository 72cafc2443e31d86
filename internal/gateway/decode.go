package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"weir/internal/infer"
	"weir/internal/policy"
	"weir/internal/tokenizer"
	"weir/internal/trace"
)

// read reads the body to its end, within limit and time. Reading everything
// before anything is sent on is also what keeps a relayed stream whole
// (golang/go#40747).
func (x *exchange) read() error {
	url := x.response.r.URL
	if allowed, err := x.g.services.method(url.Path, x.response.r.Method, x.g.opts.Policy.Paths); err != nil {
		if allowed != "" {
			x.response.w.Header().Set("Allow", allowed)
		}
		return err
	}
	if err := policy.CheckPlain(url.EscapedPath()); err != nil {
		return err
	}
	if err := contentType(x.response.r.Header); err != nil {
		return err
	}
	body, err := readBody(x.response.r, x.response.rc, &x.g.opts)
	if err != nil {
		return bodyError(x.ctx, err, x.g.opts.BodyTimeout)
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
	p.named()
	p.rec.Stream = head.Stream
	p.rec.Decoded = trace.Now()
	return nil
}

// decodeFields decodes every field for the model's kind of engine.
func (p *preparing) decodeFields() error {
	p.enter(trace.Decode)
	defer p.enter(trace.Gate)
	req, err := p.endpoint.Request(p.head, p.model.Kind, p.model.Carries)
	if err != nil {
		return p.explain(err)
	}
	// A copy: what the dialect's stands in may refer to the body, which is let go
	// of while the stream lives.
	own := *req
	p.req = &own
	p.stops = tokenizer.NewStops(own.Stop)
	p.hasMedia = len(req.Media) > 0
	return nil
}

func contentType(h http.Header) error {
	if e := h.Get("Content-Encoding"); e != "" && e != "identity" {
		return infer.Errorf(infer.CodeMediaType, "Content-Encoding %s is not supported; send the body uncompressed", e)
	}
	given := h.Get("Content-Type")
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
func readBody(r *http.Request, rc *http.ResponseController, opts *Options) ([]byte, error) {
	limit, size := opts.MaxBody, r.ContentLength
	if size > limit {
		return nil, tooLarge(limit)
	}
	// The declared size is only believed up to a point: memory is given out as
	// the bytes arrive.
	buf := bytes.NewBuffer(make([]byte, 0, min(max(size, 0), 1<<20)+bytes.MinRead))
	for {
		if err := rc.SetReadDeadline(time.Now().Add(opts.BodyTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return nil, infer.AsError(err)
		}
		buf.Grow(bytes.MinRead)
		n, err := r.Body.Read(buf.AvailableBuffer()[:buf.Available()])
		buf.Write(buf.AvailableBuffer()[:n])
		if int64(buf.Len()) > limit {
			return nil, tooLarge(limit)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	_ = rc.SetReadDeadline(time.Time{})
	return buf.Bytes(), nil
}

func tooLarge(limit int64) error {
	return infer.Errorf(infer.CodeTooLarge, "the request body is larger than the limit of %d bytes (--max-body)", limit)
}

// bodyError is why a body could not be read.
func bodyError(ctx context.Context, err error, timeout time.Duration) error {
	var coded *infer.Error
	var broken *net.OpError
	switch {
	case errors.As(err, &coded):
		return coded
	case errors.Is(err, os.ErrDeadlineExceeded):
		return infer.Errorf(infer.CodeBodyTimeout, "the request body did not arrive within %v", timeout)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &broken), ctx.Err() != nil:
		return &infer.Error{Code: infer.CodeCancelled, Message: "the client closed the connection before its body was complete", Cause: err}
	}
	return &infer.Error{Code: infer.CodeInvalid, Message: "the request body cannot be read", Cause: err}
}
