package gateway

import (
	"bytes"

	"weir/internal/dialect"
	"weir/internal/gateway/answer"
	"weir/internal/model/outputparse"
	"weir/internal/trace"
)

// expect notes how a chat's answer is to be read. It is called while the prompt
// and the body are still there.
func (q *request) expect(text []byte) {
	format, calls := q.folder.Format, q.req.Tools != nil
	if !calls {
		format = format.WithoutTools()
	}
	if guide := q.req.Guide; guide != nil {
		guide.Reasoning = q.folder.Reasoning(text[max(0, len(text)-outputparse.PromptTail):])
		guide.Whole = format.Reasoning() == "" || q.req.ForcedAny || q.req.ForcedTool != ""
	}
	if format == (outputparse.Format{}) && !calls {
		return
	}
	o := &outputparse.Options{
		Format: format, Calls: calls, Single: q.req.SingleCall, ForcedTool: q.req.ForcedTool, ForcedAny: q.req.ForcedAny,
		Prompt: bytes.Clone(text[max(0, len(text)-outputparse.PromptTail):]), Continues: q.req.ContinueFinalMessage,
	}
	switch {
	case !calls:
	case !o.ForcedAny && o.ForcedTool == "" && format.ReadsSchemas():
		o.Tools = outputparse.ReadTools(q.req.Tools)
	default:
		o.Tools = outputparse.ReadToolNames(q.req.Tools)
	}
	q.format = o
}

// keep returns the special tokens that an answer's parser must see.
func (q *request) keep() []uint32 {
	if o := q.format; o != nil && !o.ForcedAny && o.ForcedTool == "" {
		return q.folder.KeptTokens(o.Calls)
	}
	return nil
}

// callID makes an id for a tool call of the answer, of the form that the model's template
// takes back.
func (q *request) callID(ids *requestIDs, tool string, call int) string {
	if id := q.folder.CallIDs().New(tool, int(q.calls)+call); id != "" {
		return id
	}
	return q.req.CallPrefix + ids.next()
}

// newAnswer makes the answer of an attempt at a token engine.
func (x *exchange) newAnswer() *answer.Tokens {
	return answer.NewTokens(answer.TokensOptions{
		Request: x.req, Choices: x.count(), PromptTokens: x.promptTokens(), EngineCounts: x.hasMedia, Bounds: x.bounds(),
		Tokenizer: x.folder.Tokenizer, Stops: x.stops, EOS: x.folder.EOS, Format: x.format, Keep: x.keep(),
		CallID: func(tool string, call int) string { return x.callID(x.g.ids, tool, call) },
		Encoder: func(t *answer.Tokens, promptTokens int) dialect.Encoder {
			o := dialect.AnswerOptions{
				ID: x.rec.RequestID, Created: trace.Wall(x.rec.Arrival).Unix(), Model: x.head.Model,
				Now:       func() int64 { return trace.Wall(trace.Now()).Unix() },
				PromptIDs: x.ids, PromptTokens: promptTokens, Vocabulary: x.folder.Tokenizer, Timing: func() dialect.Timing { return timing(x.rec.Record) }, Reasoning: x.g.opts.Attempt.Reasoning,
			}
			if x.count() > 1 {
				o.PromptOf = func(choice int) []uint32 { return x.promptOf(choice).ids }
			}
			if x.req.CountAlong {
				o.Generated = t.Generated
			}
			return x.req.Encoder(o)
		},
	})
}
