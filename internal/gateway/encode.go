package gateway

import (
	"weir/internal/infer"
	"weir/internal/openai"
	"weir/internal/stream"
	"weir/internal/trace"
)

// encode is stage 12: text into response bytes, an event for each merged delta
// of a stream, or one object at the end. It returns the engine's error if the
// choice ended with one; what came before it is encoded all the same.
func (x *exchange) encode(c *stream.Cell, ended bool) error {
	x.enter(trace.Encode)
	if x.req.Stream {
		if x.enc == nil {
			x.enc = openai.NewStream(x.answerOptions())
		}
		if !x.started {
			x.started = true
			x.out = x.enc.AppendStart(x.out, int(c.Choice))
		}
	}
	ids := x.saidIDs(c)
	switch {
	case x.reply != nil && x.reply.parser != nil:
		x.encodeEvents(c)
		if x.req.Stream && len(ids) > 0 {
			x.out = x.enc.AppendIDs(x.out, int(c.Choice), ids)
		}
	case !x.req.Stream:
		x.answer = append(x.answer, x.piece...)
	case len(ids) > 0:
		x.out = x.enc.AppendTextIDs(x.out, int(c.Choice), x.piece, ids)
	case len(x.piece) > 0:
		x.out = x.enc.AppendText(x.out, int(c.Choice), x.piece)
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

// saidIDs gives the ids of a cell that the client asked to be told, of an answer
// that is not streamed later.
func (x *exchange) saidIDs(c *stream.Cell) []uint32 {
	if !x.req.ReturnTokenIDs {
		return nil
	}
	ids := c.IDs[:x.used]
	if !x.req.Stream {
		x.answerIDs = append(x.answerIDs, ids...)
	}
	return ids
}

// engineError is why the engine ended a generation that is not whole. What the
// adapter gave may be the same for every generation of a lost connection, so it
// is copied before it is changed.
func (x *exchange) engineError(f *infer.Finish) error {
	err := infer.Error{Code: infer.CodeEngine, Retryable: true, Message: "the engine gave up the request before its answer was complete"}
	switch {
	case f.Err != nil:
		err = *f.Err
	case f.Reason == infer.ReasonStop || f.Reason == infer.ReasonLength:
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
	x.rec.CompletionTokens, x.rec.CachedTokens = usage.CompletionTokens, max(usage.CachedTokens, 0)
	reason = x.answerReason(reason)
	if x.req.Stream {
		x.out = x.enc.AppendFinish(x.out, int(c.Choice), reason)
		if x.req.IncludeUsage {
			x.out = x.enc.AppendUsage(x.out, usage)
		}
		x.out = x.enc.AppendDone(x.out)
	} else {
		answer := openai.Answer{Text: x.answer, TokenIDs: x.answerIDs}
		if r := x.reply; r != nil {
			answer.Reasoning, answer.Calls = r.reasoning, r.calls
		}
		x.out = openai.AppendResponse(x.out, x.answerOptions(), &answer, reason, usage)
	}
	x.complete = true
}

func (x *exchange) answerOptions() openai.StreamOptions {
	return openai.StreamOptions{
		Endpoint: x.endpoint, ID: x.rec.RequestID, Created: trace.Wall(x.rec.Arrival).Unix(),
		Model: x.head.Model, IncludeUsage: x.req.IncludeUsage, TokenIDs: x.req.ReturnTokenIDs, PromptIDs: x.ids,
	}
}
