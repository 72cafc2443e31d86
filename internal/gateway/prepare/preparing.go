package prepare

import (
	"context"
	"net/http"

	"weir/internal/dialect"
	"weir/internal/dialect/openai"
	"weir/internal/gateway/record"
	"weir/internal/observe/busy"
	"weir/internal/tenancy"
	"weir/internal/trace"
)

// Input is what a request is prepared from.
type Input struct {
	Caller   *tenancy.Caller // who sends it; never nil
	Endpoint dialect.Endpoint
	Path     string
	Header   http.Header
	Body     []byte
	Record   *record.Request
	Owner    Owner // nil: nobody is served
	Dry      bool  // no engine is asked, and a refusal is not counted
}

// Owner is who serves a request.
type Owner interface {
	// Identify is called with the id that a body gives its request. It may change the record's.
	Identify(id string)
}

// preparing is a request while it is prepared. All fields but Prepared and to are needed only that long.
type preparing struct {
	*Prepared
	to           Destination
	in           Input
	preparer     *Preparer
	ctx          context.Context
	plain        *dialect.Head // without the caller's own cache salt, if weir has taken it
	text         []byte        // the rendered prompt
	tokenization tokenization
	passed       string // what the chat template had no place for, and was left out

	called *string // the request's id for those who look on: it does not change
	doing  busy.Mark
	op     busy.Op // what doing is a mark of
	begun  bool    // doing is set
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
	return p.in.Record.Enter(s)
}

// does notes that an operation follows, and gives the one before.
func (p *preparing) does(op busy.Op) (before busy.Op) {
	if before = p.op; p.begun && op == before {
		return before
	}
	p.rests()
	p.begun, p.op, p.doing = true, op, p.preparer.meter.Begin(op, p.called, p.preparer.meter.Now())
	return before
}

// rests notes that none does, for the goroutine that began the one before.
func (p *preparing) rests() {
	if p.begun {
		p.begun = false
		p.preparer.meter.End(p.doing, p.preparer.meter.Now())
	}
}

// inPool runs work in the pool: the wait for a worker is pool_wait, and the
// work begins in the stage given. The request is the worker's meanwhile.
func (p *preparing) inPool(s trace.Stage, cost int, work func(yield func()) error) error {
	p.enter(trace.PoolWait)
	var failed error
	_, err := p.preparer.Pool.RunFor(p.ctx, p.in.Caller, cost, func(yield func()) {
		defer p.rests()
		p.enter(s)
		failed = work(yield)
	})
	if err != nil {
		return err
	}
	return failed
}

// tokenization is a request to a model's tokenizer, which does not go to an engine. One
// of the two fields is set. docs/tokenize.md describes the requests and answers.
type tokenization struct {
	encode *openai.TokenizeRequest
	detok  *openai.DetokenizeRequest
	answer []byte
}
