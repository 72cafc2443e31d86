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
		Request: x.prepared.Request, Choices: x.prepared.Count(), PromptTokens: x.prepared.PromptTokens(), EngineCounts: x.prepared.HasMedia, Bounds: x.bounds(),
		Tokenizer: x.prepared.Folder.Tokenizer, Stops: x.prepared.Stops, EOS: x.prepared.Folder.EOS, Format: x.prepared.Format, Keep: x.prepared.Keep(),
		CallID: func(tool string, call int) string {
			if id := x.prepared.CallID(tool, call); id != "" {
				return id
			}
			return x.prepared.Request.CallPrefix + x.g.ids.next()
		},
		Encoder: func(t *answer.Tokens, promptTokens int) dialect.Encoder {
			o := dialect.AnswerOptions{
				ID: x.rec.RequestID, Created: trace.Wall(x.rec.Arrival).Unix(), Model: x.prepared.Head.Model,
				Now:       func() int64 { return trace.Wall(trace.Now()).Unix() },
				PromptIDs: x.prepared.IDs, PromptTokens: promptTokens, Vocabulary: x.prepared.Folder.Tokenizer, Timing: func() dialect.Timing { return timing(x.rec.Record) }, Reasoning: x.g.opts.Attempt.Reasoning,
			}
			if x.prepared.Count() > 1 {
				o.PromptOf = func(choice int) []uint32 { return x.prepared.PromptOf(choice).IDs }
			}
			if x.prepared.Request.CountAlong {
				o.Generated = t.Generated
			}
			return x.prepared.Request.Encoder(o)
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
