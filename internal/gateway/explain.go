package gateway

import (
	"context"
	"net/http"

	"weir/internal/api"
	"weir/internal/infer"
	"weir/internal/route"
	"weir/internal/trace"
)

// Explain says where a request that came to path now would go, and why, without giving it
// to an engine: the record is the one that it would have, with one attempt that nobody
// has made. It takes the request through the stages up to route, counts it nowhere, and
// takes no turn of any policy. An error is what the caller would be told.
func (g *Gateway) Explain(ctx context.Context, path string, header http.Header, body []byte) (*trace.Record, error) {
	if _, err := g.services.method(path, http.MethodPost, g.opts.Allow.Paths); err != nil {
		return nil, err
	}
	if err := contentType(header); err != nil {
		return nil, err
	}
	if int64(len(body)) > g.opts.MaxBody {
		return nil, tooLarge(g.opts.MaxBody)
	}
	now := trace.Now()
	s := &stages{rec: &trace.Record{RequestID: g.ids.request(), Endpoint: path, Arrival: now, Received: now, BytesIn: int64(len(body))}}
	s.rec.Ledger.Start(trace.Read, now)
	q := &request{body: body, endpoint: g.services.endpointOf(path)}
	p := &preparing{request: q, stages: s, g: g, ctx: ctx, path: path, header: header, named: func() {}}
	err := p.accept()
	if q.reservation != nil {
		defer q.reservation.Leave()
	}
	if err != nil {
		return nil, err
	}
	if !p.relayed {
		if wants := q.endpoint.Traits().Wants; asksTokenizer(q.endpoint) || wants == api.PromptLength {
			return nil, infer.Errorf(infer.CodeInvalid, "no engine is chosen for %s: weir answers it by itself", path)
		}
		if err := p.prompt(); err != nil {
			return nil, err
		}
	}
	return p.explained()
}

// explained makes the choice and its record.
func (p *preparing) explained() (*trace.Record, error) {
	now := p.enter(trace.Route)
	c := new(route.Choice)
	c.Request.Dry = true
	target, ok := p.pick(c, now, &p.footprint, p.g.session(p.header), p.footprint.expected(p.model.Lengths))
	if !ok {
		return nil, p.noEngine(now)
	}
	p.rec.Model, p.rec.PromptTokens, p.rec.Routed = p.model.Name, p.footprint.length(), now
	p.rec.Attempts = []trace.Attempt{{Legs: []trace.Leg{{Role: "full", Engine: target.Name, DPRank: target.Number}}, Choice: p.chosen(c)}}
	return p.rec, nil
}
