package attempt

import (
	"weir/internal/dialect"
	"weir/internal/gateway/answer"
	"weir/internal/trace"
)

// newAnswer makes the answer of an attempt at a token engine.
func (a *Attempt) newAnswer() *answer.Tokens {
	return answer.NewTokens(answer.TokensOptions{
		Request: a.request.Request, Choices: a.request.Count(), PromptTokens: a.request.PromptTokens(), EngineCounts: a.request.HasMedia, Bounds: a.bounds(),
		Tokenizer: a.request.Folder.Tokenizer, Stops: a.request.Stops, EOS: a.request.Folder.EOS, Format: a.request.Format, Keep: a.request.Keep(),
		CallID: func(tool string, call int) string {
			if id := a.request.CallID(tool, call); id != "" {
				return id
			}
			return a.request.Request.CallPrefix + a.of.id()
		},
		Encoder: func(t *answer.Tokens, promptTokens int) dialect.Encoder {
			o := dialect.AnswerOptions{
				ID: a.stream.Record.RequestID, Created: trace.Wall(a.stream.Record.Arrival).Unix(), Model: a.request.Head.Model,
				Now:       func() int64 { return trace.Wall(trace.Now()).Unix() },
				PromptIDs: a.request.IDs, PromptTokens: promptTokens, Vocabulary: a.request.Folder.Tokenizer, Timing: func() dialect.Timing { return timing(a.stream.Record.Record) }, Reasoning: a.of.opts.Reasoning,
			}
			if a.request.Count() > 1 {
				o.PromptOf = func(choice int) []uint32 { return a.request.PromptOf(choice).IDs }
			}
			if a.request.Request.CountAlong {
				o.Generated = t.Generated
			}
			return a.request.Request.Encoder(o)
		},
	})
}

// timing returns the times of a request so far.
func timing(rec *trace.Record) dialect.Timing {
	now := trace.Now()
	seconds := func(stamp int64) float64 {
		if stamp == 0 {
			return 0
		}
		return float64(trace.Wall(stamp).UnixNano()) / 1e9
	}
	t := dialect.Timing{
		Received: seconds(rec.Arrival), FirstSent: seconds(rec.FirstFlushed), Ended: seconds(now),
		Duration: float64(now-rec.Arrival) / 1e9,
	}
	if leg := rec.Leg(); leg != nil {
		stamps := &leg.Stamps
		t.Dispatched, t.Started, t.Prefilled = seconds(leg.ToServer), seconds(stamps.QueueEnd), seconds(stamps.PrefillEnd)
		if stamps.QueueStart > 0 && stamps.QueueEnd > stamps.QueueStart {
			t.Queue = float64(stamps.QueueEnd-stamps.QueueStart) / 1e9
		}
	}
	return t
}

// bounds returns the most tokens that a token engine may state, which counts prompts with media alone
// and sends the answers' tokens.
func (a *Attempt) bounds() answer.Bounds {
	each, prompts := contextOf(max(a.request.Folder.ContextLength, a.Target.Facts.ContextLength), len(a.request.Body)), len(a.request.More)+1
	return answer.Bounds{Prompt: times(each, prompts), Completion: times(min(each, a.request.Longest()), a.request.Count())}
}
