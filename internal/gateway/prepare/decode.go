package prepare

import (
	"weir/internal/model/stop"
	"weir/internal/trace"
)

// decode is stage 1: it parses the body's head, and once the kind of engine is known
// (gate) every field.
func (p *preparing) decode() error {
	head, err := p.in.Endpoint.ParseHead(p.Body)
	if err != nil {
		return err
	}
	p.Head = head
	head.Lax = p.preparer.opts.PassUnknown
	if id := head.RequestID; id != "" && p.in.Owner != nil {
		p.in.Owner.Identify(id)
	}
	p.called = &p.in.Record.RequestID
	p.in.Record.Stream = head.Stream
	p.in.Record.Parsed = trace.Now()
	return nil
}

// decodeFields decodes every field for the model's engines that take ids.
func (p *preparing) decodeFields() error {
	p.enter(trace.Parse)
	defer p.enter(trace.Gate)
	req, err := p.in.Endpoint.Request(p.plain, p.to.Model.ByIDs.Kind, p.to.Model.ByIDs.Carries)
	if err != nil {
		return p.explain(err)
	}
	// A copy: what the dialect's stands in may refer to the body, which is let go
	// of while the stream lives.
	own := *req
	p.Request = &own
	p.Stops = stop.New(own.Stop)
	p.HasMedia = len(req.Media) > 0
	return nil
}
