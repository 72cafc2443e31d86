package gateway

import (
	"weir/internal/anthropic"
	"weir/internal/trace"
)

// inlineBody is the size in bytes up to which a body is decoded, and its
// conversation rendered, where it is: that takes some hundred microseconds at
// most (BenchmarkPrompt). What is larger goes to the pool.
const inlineBody = 64 << 10

// decodeShare is what decoding costs of what tokenizing the same bytes does, in
// the pool's terms: one part in so many.
const decodeShare = 8

// prepare takes the request through decode, gate, render and tokenize, which
// need a CPU and nothing else. Of a large body all of it happens in the pool, in
// two visits: the first, which is short and therefore soon, ends with the gate,
// so that what is refused is refused before the work; the second does the rest
// without waiting again in between.
func (x *exchange) prepare() error {
	if err := x.accept(); err != nil || x.relayed {
		return err
	}
	if x.tokenization != nil {
		return x.answerTokenization()
	}
	if err := x.prompt(); err != nil || !counts(x.endpoint) {
		return err
	}
	return x.writeWhole(anthropic.AppendCount(nil, len(x.ids)))
}

// prompt is render and tokenize.
func (x *exchange) prompt() error {
	if x.req.Messages != nil && len(x.body) > inlineBody {
		return x.inPool(trace.Render, len(x.req.Messages), func(yield func()) error {
			if err := x.render(yield); err != nil {
				return err
			}
			x.enter(trace.Tokenize)
			return x.tokenize(yield)
		})
	}
	x.enter(trace.Render)
	if err := x.render(nil); err != nil {
		return err
	}
	cost, texts := x.promptTexts()
	if !texts {
		x.enter(trace.Tokenize)
		return x.tokenize(nil)
	}
	return x.inPool(trace.Tokenize, cost, x.tokenize)
}

// accept is decode and gate.
func (x *exchange) accept() error {
	work := func(func()) error {
		if err := x.decode(); err != nil {
			return err
		}
		x.enter(trace.Gate)
		return x.gate()
	}
	if len(x.body) > inlineBody {
		return x.inPool(trace.Decode, len(x.body)/decodeShare, work)
	}
	x.enter(trace.Decode)
	return work(nil)
}

// inPool runs work in the pool: the wait for a worker is pool_wait, and the
// work begins in the stage given. The exchange is the worker's meanwhile.
func (x *exchange) inPool(s trace.Stage, cost int, work func(yield func()) error) error {
	x.enter(trace.PoolWait)
	var failed error
	_, err := x.g.pool.RunYielding(x.ctx, cost, func(yield func()) {
		x.enter(s)
		failed = work(yield)
	})
	if err != nil {
		return err
	}
	return failed
}
