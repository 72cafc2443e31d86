package gateway

import (
	"context"

	"weir/internal/dialect"
	"weir/internal/dialect/sglang"
	"weir/internal/infer"
	"weir/internal/trace"
)

// prepare makes a request of a body: it takes it through decode, gate, render and tokenize, which need
// a CPU and nothing else. It returns where the request can go, or the answer if no engine is asked for
// it. What is made of a request that is refused is there all the same: its reservation must end.
func (pr *preparer) prepare(ctx context.Context, q *prepared, in input) (to destination, answer []byte, err error) {
	p := pr.spare.Take()
	*p = preparing{prepared: q, in: in, preparer: pr, ctx: ctx}
	q.body = in.body
	p.called = &in.record.RequestID
	if in.path == sglang.Path { // whose body may change the id, while the watch reads it
		first := in.record.RequestID
		p.called = &first
	}
	relayed := false
	defer func() {
		if p.rests(); relayed && len(q.body) <= inlineBody { // the pool may have had others
			pr.spare.Give(p)
		}
	}()
	if err = p.accept(); err != nil {
		return p.to, nil, err
	}
	q.session = pr.session(in.header, in.caller)
	q.leftOut = p.report()
	if relayed = !p.to.needs.HasIDs(); relayed {
		return p.to, nil, nil
	}
	counts := in.endpoint.Traits().Wants == dialect.PromptLength
	switch own := asksTokenizer(in.endpoint); {
	case in.dry && (own || counts):
		return p.to, nil, infer.Errorf(infer.CodeInvalid, "no engine is chosen for %s: weir answers it by itself", in.path)
	case own:
		answer, err = p.tokenized()
	default:
		err = p.promptForm()
	}
	if err != nil {
		return p.to, nil, err
	}
	if p.passed != "" {
		q.leftOut = p.report()
	}
	if counts && p.to.needs.HasIDs() {
		answer = in.endpoint.(dialect.Counter).AppendCount(nil, len(q.ids))
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
// most (BenchmarkPrompt). A larger body goes to the pool.
const inlineBody = 64 << 10

// decodeShare is the cost of tokenizing divided by the cost of decoding the same bytes,
// in the pool's units.
const decodeShare = 8

// accept is decode and gate. A large body is worked on in the pool, in two visits: the
// first, which is short and therefore soon, ends with the gate, so that refusals come
// before the work; the second (prompt) does the rest without waiting again in between.
func (p *preparing) accept() error {
	if len(p.body) > inlineBody {
		return p.inPool(trace.Parse, len(p.body)/decodeShare, func(yield func()) error { return p.decodeAndGate(yield) })
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
	if p.req.Messages != nil && len(p.body) > inlineBody {
		return p.inPool(trace.Render, len(p.req.Messages), func(yield func()) error {
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
