package gateway

import (
	"net/http"
	"strconv"

	"weir/internal/dialect"
	"weir/internal/gateway/answer"
	"weir/internal/gateway/front"
	"weir/internal/trace"
)

// newAnswer makes the answer of an attempt at a token engine.
func (x *exchange) newAnswer() *answer.Tokens {
	return answer.NewTokens(answer.TokensOptions{
		Request: x.prepared.req, Choices: x.prepared.count(), PromptTokens: x.prepared.promptTokens(), EngineCounts: x.prepared.hasMedia, Bounds: x.bounds(),
		Tokenizer: x.prepared.folder.Tokenizer, Stops: x.prepared.stops, EOS: x.prepared.folder.EOS, Format: x.prepared.format, Keep: x.prepared.keep(),
		CallID: func(tool string, call int) string {
			if id := x.prepared.callID(tool, call); id != "" {
				return id
			}
			return x.prepared.req.CallPrefix + x.g.ids.next()
		},
		Encoder: func(t *answer.Tokens, promptTokens int) dialect.Encoder {
			o := dialect.AnswerOptions{
				ID: x.rec.RequestID, Created: trace.Wall(x.rec.Arrival).Unix(), Model: x.prepared.head.Model,
				Now:       func() int64 { return trace.Wall(trace.Now()).Unix() },
				PromptIDs: x.prepared.ids, PromptTokens: promptTokens, Vocabulary: x.prepared.folder.Tokenizer, Timing: func() dialect.Timing { return timing(x.rec.Record) }, Reasoning: x.g.opts.Attempt.Reasoning,
			}
			if x.prepared.count() > 1 {
				o.PromptOf = func(choice int) []uint32 { return x.prepared.promptOf(choice).ids }
			}
			if x.prepared.req.CountAlong {
				o.Generated = t.Generated
			}
			return x.prepared.req.Encoder(o)
		},
	})
}

// writeWhole writes an answer that is no stream, a part at a time: each gets the
// whole time that a client may take to read.
func (x *exchange) writeWhole(out []byte) error {
	x.rec.Enter(trace.Flush)
	h := x.response.Served.Writer.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(out)))
	x.rec.PutTiming(h)
	x.begin(http.StatusOK, false)
	const part = 1 << 20
	for len(out) > 0 {
		n := min(part, len(out))
		if err := x.response.Arm(&x.ctx, x.rec.Enter(trace.Flush), x.g.opts.Front.WriteTimeout); err != nil {
			return err
		}
		_, err := x.response.Carrier.Send(nil, out[:n], n == len(out))
		if err == nil {
			err = x.response.Carrier.Rest()
		}
		if err != nil {
			return front.Lost(&x.ctx, err, x.g.opts.Front.WriteTimeout)
		}
		x.rec.BytesOut += int64(n)
		out = out[n:]
	}
	return nil
}
