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
func (x *exchange) encode(ch *choice, c *stream.Cell, ended bool) error {
	x.enter(trace.Encode)
	if !ch.started {
		ch.started = true
		if x.enc == nil {
			x.enc = x.req.Encoder(x.answerOptions())
		}
		x.out = x.enc.AppendStart(x.out, int(ch.index))
	}
	text := x.piece
	if ch.parser != nil || ch.scores != nil {
		x.encodeEvents(ch)
		text = nil
	}
	if x.req.Tokens {
		t := api.Tokens{IDs: c.IDs[:x.used], Last: ended}
		if c.Logprobs != nil {
			t.Logprobs = c.Logprobs.Cut(0, x.used, *x.req.Logprobs)
		}
		x.out = x.enc.AppendTokens(x.out, int(ch.index), text, t)
	} else if len(text) > 0 {
		x.out = x.enc.AppendText(x.out, int(ch.index), text)
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
	x.end(ch, c, reason)
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

// end encodes what follows a choice's last text, and after the last choice the end
// of the answer.
func (x *exchange) end(ch *choice, c *stream.Cell, reason infer.Reason) {
	if c.Finish != nil {
		ch.cached = c.Finish.CachedTokens
		ch.tokens += c.Finish.Unsent
	}
	finish := api.Finish{Reason: ch.answerReason(reason), Tokens: ch.tokens}
	if c.Finish != nil {
		finish.StopID, finish.ByID = c.Finish.StopID, c.Finish.ByID
	}
	if ch.detok != nil && ch.detok.Stop() >= 0 {
		finish.Stop = x.req.Stop[ch.detok.Stop()]
	}
	x.out = x.enc.AppendFinish(x.out, int(ch.index), finish)
	ch.ended = true
	if x.left--; x.left > 0 {
		return
	}
	usage := x.usage()
	x.rec.CompletionTokens, x.rec.CachedTokens = usage.CompletionTokens, max(usage.CachedTokens, 0)
	x.out = x.enc.AppendEnd(x.out, usage)
	x.complete = true
}
