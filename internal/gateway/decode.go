package gateway

import (
	"weir/internal/model/stop"
	"weir/internal/trace"
)

// decode is stage 1: it parses the body's head, and once the kind of engine is known
// (gate) every field.
func (p *preparing) decode() error {
	head, err := p.in.endpoint.ParseHead(p.body)
	if err != nil {
		return err
	}
	p.head = head
	head.Lax = p.preparer.opts.PassUnknown
	if id := head.RequestID; id != "" && p.in.owner != nil {
		p.in.owner.Identify(id)
	}
	p.called = &p.in.record.RequestID
	p.in.record.Stream = head.Stream
	p.in.record.Parsed = trace.Now()
	return nil
}

// decodeFields decodes every field for the model's engines that take ids.
func (p *preparing) decodeFields() error {
	p.enter(trace.Parse)
	defer p.enter(trace.Gate)
	req, err := p.in.endpoint.Request(p.plain, p.to.model.ByIDs.Kind, p.to.model.ByIDs.Carries)
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
