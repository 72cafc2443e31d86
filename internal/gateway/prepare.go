package gateway

import (
	"context"
	"net/http"

	"weir/internal/dialect"
	"weir/internal/dialect/sglang"
	"weir/internal/gateway/freelist"
	"weir/internal/gateway/record"
	"weir/internal/observe/busy"
	"weir/internal/trace"
)

// preparing makes a request of a body: it takes it through decode, gate, render and
// tokenize, which need a CPU and nothing else. Its fields besides the request are
// needed only that long.
type preparing struct {
	*request
	routing
	rec          *record.Request
	g            *Gateway
	ctx          context.Context
	path         string
	header       http.Header
	of           *exchange     // nil: nobody is served
	text         []byte        // the rendered prompt
	plain        *dialect.Head // without the caller's own cache salt, if weir has taken it
	tokenization tokenization
	passed       string  // what the chat template had no place for, and was left out
	dry          bool    // nothing comes of it
	called       *string // the request's id for those who look on: it does not change
	doing        busy.Mark
	op           busy.Op // what it is of
	begun        bool    // it is set
}

// newPreparations returns spare ones. They are kept empty, so that whoever still uses one is seen to.
func newPreparations() *freelist.List[*preparing] {
	return &freelist.List[*preparing]{Make: func() *preparing { return new(preparing) }, Empty: func(p *preparing) { *p = preparing{} }}
}

// operation returns a stage in which a request is prepared as the watch knows it.
func operation(s trace.Stage) (op busy.Op, ok bool) {
	switch s {
	case trace.Parse, trace.Gate:
		return busy.Parse, true
	case trace.Render:
		return busy.Template, true
	case trace.Tokenize:
		return busy.Tokenize, true
	case trace.Detokenize, trace.Encode:
		return busy.Encode, true
	}
	return 0, false
}

// enter moves the request to the next stage, and notes which operation that is.
func (p *preparing) enter(s trace.Stage) (now int64) {
	if op, ok := operation(s); ok {
		p.does(op)
	} else {
		p.rests()
	}
	return p.rec.Enter(s)
}

// does notes that an operation follows, and gives the one before.
func (p *preparing) does(op busy.Op) (before busy.Op) {
	if before = p.op; p.begun && op == before {
		return before
	}
	p.rests()
	p.begun, p.op, p.doing = true, op, p.g.meter.Begin(op, p.called, p.g.meter.Now())
	return before
}

// rests notes that none does, for the goroutine that began the one before.
func (p *preparing) rests() {
	if p.begun {
		p.begun = false
		p.g.meter.End(p.doing, p.g.meter.Now())
	}
}

// prepare prepares the request. done is set if that has already answered it.
func (x *exchange) prepare() (done bool, err error) {
	p := x.g.preparations.Take()
	*p = preparing{
		request: &x.request, rec: &x.rec, g: x.g, ctx: &x.ctx, path: x.response.Served.Request.URL.Path, header: x.response.Served.Request.Header, of: x,
	}
	p.called = &x.rec.RequestID
	if p.path == sglang.Path { // whose body may change the id, while the watch reads it
		first := x.rec.RequestID
		p.called = &first
	}
	relayed := false
	defer func() {
		if p.rests(); relayed && len(p.body) <= inlineBody { // the pool may have had others
			x.g.preparations.Give(p)
		}
	}()
	err = p.accept()
	x.routing = p.routing
	if err == nil {
		x.leaves(p)
	}
	if err != nil {
		return false, err
	}
	if relayed = !p.needs.HasIDs(); relayed {
		return false, nil
	}
	var answer []byte
	wants := p.endpoint.Traits().Wants
	tokens := wants == dialect.TokenIDs || wants == dialect.Text
	if tokens {
		answer, err = p.tokenized()
	} else {
		err = p.promptForm()
		x.routing = p.routing
	}
	if err == nil && p.passed != "" {
		x.leavesToo(p)
	}
	switch {
	case tokens:
	case err != nil || wants != dialect.PromptLength || !p.needs.HasIDs():
		return false, err
	default:
		answer = p.endpoint.(dialect.Counter).AppendCount(nil, len(p.ids))
	}
	if err == nil {
		err = x.writeWhole(answer)
	}
	return true, err
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

// inPool runs work in the pool: the wait for a worker is pool_wait, and the
// work begins in the stage given. The request is the worker's meanwhile.
func (p *preparing) inPool(s trace.Stage, cost int, work func(yield func()) error) error {
	p.enter(trace.PoolWait)
	var failed error
	_, err := p.g.pool.RunFor(p.ctx, p.caller, cost, func(yield func()) {
		defer p.rests()
		p.enter(s)
		failed = work(yield)
	})
	if err != nil {
		return err
	}
	return failed
}
