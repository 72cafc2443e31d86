package gateway

import (
	"mime"
	"net/http"
	"strings"
	"time"

	"weir/internal/dialect/allow"
	"weir/internal/fleet/admission"
	"weir/internal/infer"
	"weir/internal/model/stop"
	"weir/internal/trace"
)

// read reads the body to its end, within limit and time. Reading everything
// before anything is sent on is also what keeps a relayed stream whole
// (golang/go#40747).
func (x *exchange) read() error {
	x.response.Unread = true
	if x.unknown {
		return x.err
	}
	url := x.response.Served.Request.URL
	if err := allow.CheckPlain(url.EscapedPath()); err != nil {
		return err
	}
	if allowed, err := x.g.services.method(url.Path, x.response.Served.Request.Method, x.g.opts.Prepare.Allow.Paths); err != nil {
		if allowed != "" {
			x.response.Served.Writer.Header().Set("Allow", allowed)
		}
		return err
	}
	if err := contentType(x.response.Served.Request.Header); err != nil {
		return err
	}
	if err := x.spends.enter(x.caller, time.Now()); err != nil {
		return err
	}
	done, err := x.g.front.Admit(x.rec.Client, x.response.Served.Request.RemoteAddr)
	if err != nil {
		return err
	}
	x.uncount = done
	if size := x.response.Served.Request.ContentLength; size < 0 || size > admission.SmallBody {
		// A body that would be refused once it is here need not come. For a small one
		// this would save little, and cost its connection.
		if err := x.g.gate.Check(x.caller, x.rec.Arrival); err != nil {
			return err
		}
	}
	body, err := x.g.front.ReadBody(&x.ctx, &x.response, x.rec.Arrival, x.caller, x.g.bodies, &x.room)
	if err != nil {
		return err
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
