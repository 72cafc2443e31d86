package gateway

import (
	"context"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/relay"
	"weir/internal/infer"
	"weir/internal/stream"
	"weir/internal/trace"
)

// maxAttempts is the first try and one elsewhere. More would turn one
// failing engine's load into a storm on the others.
const maxAttempts = 2

// dispatch is stage 7: it hands the request to the chosen engine and returns
// once the engine confirmed that it has it.
func (x *exchange) dispatch() error {
	x.enter(trace.Dispatch)
	if x.relayed {
		return x.forward()
	}
	return x.submit()
}

func (x *exchange) submit() error {
	if x.mailbox == nil {
		x.mailbox = stream.New(x.count(), x.longest(), x.req.Logprobs, &x.g.waiting)
	}
	if !x.abortable.ready(x.mailbox) {
		return errAborted
	}
	x.forget()
	attempt := x.mailbox.NextAttempt()
	x.startOutput()
	ctx, cancel := context.WithTimeout(x.ctx, x.g.opts.SubmitTimeout)
	defer cancel()
	if len(x.choices) > 1 {
		if err := x.submitAll(ctx, attempt); err != nil {
			return err
		}
	} else {
		generation, err := x.target.Tokens.Generate(ctx, x.submission(0), attempt, x.sink(), x.leg())
		if err != nil {
			return err
		}
		x.choices[0].generation = generation
	}
	x.await()
	return nil
}

// forget lets go of the prompt's forms that are not needed any more, which may
// be megabytes while a stream may live for long: a token engine needs the ids, a
// relay engine the body until the request cannot be retried.
func (x *exchange) forget() {
	x.body, x.text = nil, nil
	x.head.Body, x.head.Fields = nil, nil
	if x.req != nil {
		x.req.Messages, x.req.Tools, x.req.ChatTemplateKwargs, x.req.Prompt, x.req.MorePrompts = nil, nil, nil, "", nil
	}
}

// sink is the mailbox, behind the receive stage's injected delay if there is
// one.
func (x *exchange) sink() engine.Sink {
	if d := x.g.opts.StageDelay[trace.Receive]; d > 0 && !x.delayed[trace.Receive] {
		x.delayed[trace.Receive] = true
		return &delaySink{Sink: x.mailbox, delay: d}
	}
	return x.mailbox
}

type delaySink struct {
	engine.Sink
	delay time.Duration
}

func (s *delaySink) Offer(d *infer.Delta) {
	time.Sleep(s.delay)
	s.delay = 0
	s.Sink.Offer(d)
}

func (x *exchange) forward() error {
	body := x.body
	if x.target.Model != x.head.Model {
		body = x.head.Splice(x.target.Model)
	}
	header := relay.EndToEnd(x.r.Header)
	header.Del("Content-Length")
	header.Del("Accept-Encoding")
	header.Set("X-Request-Id", x.rec.RequestID)
	x.attempt.ctx, x.abandon = context.WithCancelCause(x.ctx)
	x.rec.FirstReceived = 0
	resp, err := x.target.Relay.Forward(x.attempt.ctx, &engine.RelayRequest{
		Method: x.r.Method, Path: x.r.URL.RequestURI(), Header: header, Body: body,
	}, x.leg())
	if err != nil {
		return err
	}
	x.response = resp
	return nil
}
