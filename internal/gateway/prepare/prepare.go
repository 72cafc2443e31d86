package prepare

import (
	"context"

	"weir/internal/dialect"
	"weir/internal/dialect/sglang"
	"weir/internal/infer"
	"weir/internal/trace"
)

// Prepare takes a request through decode, gate, render and tokenize, and stores the result in q. It
// returns where the request can go, or the answer if weir gives it by itself. With an error q may
// have a reservation, too, which must end.
func (pr *Preparer) Prepare(ctx context.Context, q *Prepared, in Input) (to Destination, answer []byte, err error) {
	p := pr.spare.Take()
	*p = preparing{Prepared: q, in: in, preparer: pr, ctx: ctx}
	q.Body = in.Body
	p.called = &in.Record.RequestID
	if in.Path == sglang.Path { // whose body may change the id, while the watch reads it
		first := in.Record.RequestID
		p.called = &first
	}
	relayed := false
	defer func() {
		if p.rests(); relayed && len(q.Body) <= inlineBody { // the pool may have had others
			pr.spare.Give(p)
		}
	}()
	if err = p.accept(); err != nil {
		return p.to, nil, err
	}
	q.Session = pr.session(in.Header, in.Caller)
	q.LeftOut = p.report()
	if relayed = !p.to.Needs.HasIDs(); relayed {
		return p.to, nil, nil
	}
	counts := in.Endpoint.Traits().Wants == dialect.PromptLength
	switch own := asksTokenizer(in.Endpoint); {
	case in.Dry && (own || counts):
		return p.to, nil, infer.Errorf(infer.CodeInvalid, "no engine is chosen for %s: weir answers it by itself", in.Path)
	case own:
		answer, err = p.tokenized()
	default:
		err = p.promptForm()
	}
	if err != nil {
		return p.to, nil, err
	}
	if p.passed != "" {
		q.LeftOut = p.report()
	}
	if counts && p.to.Needs.HasIDs() {
		answer = in.Endpoint.(dialect.Counter).AppendCount(nil, len(q.IDs))
	}
	return p.to, answer, nil
}

// promptForm runs render and tokenize. If no ids can be made, the request is relayed if it has
// that form.
func (p *preparing) promptForm() error {
	err := p.prompt()
	if err == nil || !p.ofForm(err) || p.ctx.Err() != nil {
		return err
	}
	p.bind(err)
	return nil
}

// inlineBody is the size in bytes up to which a body is decoded, and its
// conversation rendered, where it is: that takes some hundred microseconds at
// most (gateway.BenchmarkPrompt). A larger body goes to the pool.
const inlineBody = 64 << 10

// decodeShare is the cost of tokenizing divided by the cost of decoding the same bytes,
// in the pool's units.
const decodeShare = 8

// accept is decode and gate. A large body is worked on in the pool, in two visits: the
// first, which is short and therefore soon, ends with the gate, so that refusals come
// before the work; the second (prompt) does the rest without waiting again in between.
func (p *preparing) accept() error {
	if len(p.Body) > inlineBody {
		return p.inPool(trace.Parse, len(p.Body)/decodeShare, func(yield func()) error { return p.decodeAndGate(yield) })
	}
	p.enter(trace.Parse)
	return p.decodeAndGate(func() {})
}

func (p *preparing) decodeAndGate(yield func()) error {
	if err := p.decode(); err != nil {
		return err
	}
	yield()
	p.enter(trace.Gate)
	return p.gate()
}

// prompt is render and tokenize.
func (p *preparing) prompt() error {
	if p.Request.Messages != nil && len(p.Body) > inlineBody {
		return p.inPool(trace.Render, len(p.Request.Messages), func(yield func()) error {
			if err := p.render(yield); err != nil {
				return err
			}
			p.enter(trace.Tokenize)
			return p.tokenize(yield)
		})
	}
	p.enter(trace.Render)
	if err := p.render(nil); err != nil {
		return err
	}
	cost, texts := p.promptTexts(len(p.text))
	if !texts {
		p.enter(trace.Tokenize)
		return p.tokenize(nil)
	}
	return p.inPool(trace.Tokenize, cost, p.tokenize)
}
