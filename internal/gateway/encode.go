package gateway

import (
	"weir/internal/api"
	"weir/internal/infer"
	"weir/internal/stream"
	"weir/internal/trace"
)

// encode is stage 12: text into response bytes in the caller's dialect, events for
// each merged delta of a stream, or all at the end. It returns the engine's error
// if the choice ended with one; what came before it is encoded all the same.
func (x *exchange) encode(c *stream.Cell, ended bool) error {
	x.enter(trace.Encode)
	if x.enc == nil {
		x.enc = x.req.Encoder(api.AnswerOptions{
			ID: x.rec.RequestID, Created: trace.Wall(x.rec.Arrival).Unix(), Model: x.head.Model, PromptIDs: x.ids, Timing: x.timing,
		})
		x.out = x.enc.AppendStart(x.out, int(c.Choice))
	}
	text := x.piece
	if x.reply != nil && x.reply.parser != nil {
		x.encodeEvents(c)
		text = nil
	}
	if x.req.Tokens {
		x.out = x.enc.AppendTokens(x.out, int(c.Choice), text, api.Tokens{IDs: c.IDs[:x.used], Last: ended})
	} else if len(text) > 0 {
		x.out = x.enc.AppendText(x.out, int(c.Choice), text)
	}
	if !ended {
		return nil
	}
	reason := infer.ReasonStop
	if c.Finish != nil {
		if err := x.engineError(c.Finish); err != nil {
			return err
		}
		reason = c.Finish.Reason
	}
	x.end(c, reason)
	return nil
}

// engineError is why the engine ended a generation that is not whole. What the
// adapter gave may be the same for every generation of a lost connection, so it
// is copied before it is changed.
func (x *exchange) engineError(f *infer.Finish) error {
	err := infer.Error{Code: infer.CodeEngine, Retryable: true, Message: "the engine gave up the request before its answer was complete"}
	switch {
	case f.Err != nil:
		err = *f.Err
	case f.Reason == infer.ReasonStop || f.Reason == infer.ReasonLength, f.Reason == infer.ReasonAbort && x.abortable.sent:
		return nil
	}
	if err.Engine == "" {
		err.Engine = x.target.Name
	}
	return &err
}

// end encodes what follows the last text.
func (x *exchange) end(c *stream.Cell, reason infer.Reason) {
	usage := infer.Usage{PromptTokens: len(x.ids), CompletionTokens: x.tokens, CachedTokens: -1}
	if c.Finish != nil {
		usage.CachedTokens = c.Finish.CachedTokens
		usage.CompletionTokens += c.Finish.Unsent
	}
	if x.reply != nil && x.reply.count != nil {
		usage.ReasoningTokens = x.reply.count.tokens
	}
	x.rec.CompletionTokens, x.rec.CachedTokens = usage.CompletionTokens, max(usage.CachedTokens, 0)
	finish := api.Finish{Reason: x.answerReason(reason), Tokens: usage.CompletionTokens}
	if c.Finish != nil {
		finish.StopID, finish.ByID = c.Finish.StopID, c.Finish.ByID
	}
	if x.detok != nil && x.detok.Stop() >= 0 {
		finish.Stop = x.req.Stop[x.detok.Stop()]
	}
	x.out = x.enc.AppendFinish(x.out, int(c.Choice), finish)
	x.out = x.enc.AppendEnd(x.out, usage)
	x.complete = true
}
