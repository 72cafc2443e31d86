package gateway

import (
	"context"
	"math"
	"sync"

	"weir/internal/api"
	"weir/internal/chat/parse"
	"weir/internal/engine"
	"weir/internal/infer"
	"weir/internal/tokenizer"
	"weir/internal/trace"
)

// choice is one of the answers to a request: n of each of its prompts, in the
// order of the prompts. No wire carries several, so each is a generation of its
// own, all on one engine. Together they are one attempt: what fails for one
// fails for all, and what goes to another engine goes there whole.
type choice struct {
	index      uint32
	generation engine.Generation      // nil before it was handed over, and after the attempt
	detok      *tokenizer.Detokenizer // nil: nobody wants the text
	parser     *parse.Parser          // nil: all that comes is content
	called     bool                   // a tool
	reasoning  *reasoningCount        // nil: not counted
	scores     *scores                // nil: whose the tokens are does not matter
	started    bool                   // its beginning is encoded
	ended      bool                   // and its end
	tokens     int                    // ids that count, up to a stop string
	cached     int                    // ids of its prompt that the engine had; -1: not said
}

// prompt is one of several prompts of a request, and the bound of its answers.
type prompt struct {
	ids []uint32
	max int
}

// width is how many choices each prompt has.
func (x *exchange) width() int { return max(1, x.req.N) }

// count is how many choices there are.
func (x *exchange) count() int { return x.width() * (1 + len(x.more)) }

// promptOf gives the prompt of a choice.
func (x *exchange) promptOf(index int) prompt {
	if i := index / x.width(); i > 0 {
		return x.more[i-1]
	}
	return prompt{x.ids, x.req.MaxTokens}
}

// longest bounds the ids of any choice. An engine that ends the answer where its
// context does, which is known to it alone, bounds them itself.
func (x *exchange) longest() int {
	if x.toContext {
		return math.MaxInt32
	}
	n := x.req.MaxTokens
	for i := range x.more {
		n = max(n, x.more[i].max)
	}
	return n
}

// startOutput resets the output path for an attempt: nothing of an abandoned
// one has reached the client.
func (x *exchange) startOutput() {
	n := x.count()
	switch {
	case n == 1:
		x.choices = x.only[:]
	case len(x.choices) != n:
		x.choices = make([]choice, n)
	}
	options := tokenizer.DetokenizerOptions{
		StopStrings: x.req.Stop, StopAfter: x.req.MinTokens, IncludeStop: x.req.IncludeStop, SkipSpecial: !x.req.ShowSpecial, Keep: x.keep(),
	}
	for i := range x.choices {
		ch := &x.choices[i]
		*ch = choice{index: uint32(i), cached: -1, parser: x.newParser()}
		if !x.req.NoText || len(x.req.Stop) > 0 {
			ch.detok = tokenizer.NewDetokenizer(x.folder.Tokenizer, options)
		}
		if x.req.CountReasoning && x.reply != nil {
			ch.reasoning = newReasoningCount(x.reply.options)
		}
		if x.req.ContentLogprobs {
			ch.scores = &scores{top: *x.req.Logprobs}
		}
	}
	x.left, x.stamped, x.expanded = n, -1, 0
	x.out, x.enc = x.out[:0], nil
	x.rec.FirstReceived = 0
}

// submission is the request of a choice as the engine gets it.
func (x *exchange) submission(index int) *infer.Request {
	p := x.promptOf(index)
	req := &infer.Request{
		ID:        x.g.ids.next(),
		Model:     x.target.Model,
		Prompt:    p.ids,
		Media:     x.req.Media,
		MaxTokens: p.max,
		ToContext: x.toContext,
		MinTokens: x.req.MinTokens, Priority: x.req.Priority,
		IgnoreEOS: x.req.IgnoreEOS,
		StopIDs:   x.req.StopIDs,
		Sampling:  x.req.Sampling,
		Guide:     x.req.Guide,
		Logprobs:  x.req.Logprobs,
	}
	// The same seed would give the same answer n times.
	if k := index % x.width(); k > 0 && req.Sampling.Seed != nil {
		seed := *req.Sampling.Seed + int64(k)
		req.Sampling.Seed = &seed
	}
	return req
}

// submitAll hands over several choices at once and waits until the engine has
// confirmed all of them. After an error those that it has are aborted by settle.
func (x *exchange) submitAll(ctx context.Context, attempt uint32) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	legs := make([]trace.Leg, len(x.choices))
	var mu sync.Mutex
	var failed error // the first one: others may be of the cancel that follows it
	var all sync.WaitGroup
	for i := range x.choices {
		legs[i] = *x.leg()
		var sink engine.Sink = x.mailbox
		if i > 0 {
			sink = &choiceSink{sink, uint32(i)}
		} else {
			sink = x.sink()
		}
		req := x.submission(i)
		all.Go(func() {
			generation, err := x.handOver(ctx, req, attempt, sink, &legs[i])
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				x.choices[i].generation = generation
			} else if failed == nil {
				failed = err
				cancel()
			}
		})
	}
	all.Wait()
	leg := x.leg()
	*leg = legs[0]
	for i := range legs {
		leg.Acked = max(leg.Acked, legs[i].Acked)
		if at := legs[i].ToServer; at != 0 && (leg.ToServer == 0 || at < leg.ToServer) {
			leg.ToServer = at
		}
	}
	return failed
}

// handOver is Generate on a goroutine of its own, where a panic must not be
// anybody else's failure either.
func (x *exchange) handOver(ctx context.Context, req *infer.Request, attempt uint32, sink engine.Sink, leg *trace.Leg) (g engine.Generation, err error) {
	defer func() {
		if p := recover(); p != nil {
			g, err = nil, x.panicError(p)
		}
	}()
	return x.target.Tokens.Generate(ctx, req, attempt, sink, leg)
}

// choiceSink says whose the deltas of a generation are. The delta is the
// adapter's, and goes back as it came.
type choiceSink struct {
	engine.Sink
	choice uint32
}

func (s *choiceSink) Offer(d *infer.Delta) {
	d.Choice = s.choice
	s.Sink.Offer(d)
	d.Choice = 0
}

// submitted says whether the engine has something of the request.
func (x *exchange) submitted() bool {
	for i := range x.choices {
		if x.choices[i].generation != nil {
			return true
		}
	}
	return false
}

// leave ends the engine's work on what has not ended.
func (x *exchange) leave() {
	for i := range x.choices {
		c := &x.choices[i]
		if c.generation != nil && !c.ended {
			c.generation.Abort()
		}
		c.generation = nil
	}
}

// stop drops what still comes of a choice.
func (x *exchange) stop(ch *choice) {
	if x.left > 1 {
		x.mailbox.CloseChoice(ch.index)
		return
	}
	x.mailbox.Close()
}

// consumed is how many ids count, of all choices.
func (x *exchange) consumed() (n int) {
	for i := range x.choices {
		n += x.choices[i].tokens
	}
	return n
}

// promptTokens is the length of all prompts: as the engine counts it where there
// are media, once it has said so.
func (x *exchange) promptTokens() int {
	if x.expanded > 0 {
		return x.expanded
	}
	n := len(x.ids)
	for i := range x.more {
		n += len(x.more[i].ids)
	}
	return n
}

// usage is what all choices took. A prompt counts once, and what the engine had
// of it is what the first of its choices found: the others find what that one
// has left behind.
func (x *exchange) usage() infer.Usage {
	u := infer.Usage{PromptTokens: x.promptTokens(), CompletionTokens: x.consumed()}
	for i := range x.choices {
		if r := x.choices[i].reasoning; r != nil {
			u.ReasoningTokens += r.tokens
		}
	}
	for i := 0; i < len(x.choices); i += x.width() {
		least := x.choices[i].cached
		for _, c := range x.choices[i : i+x.width()] {
			least = min(least, c.cached)
		}
		if least < 0 {
			u.CachedTokens = -1
			return u
		}
		u.CachedTokens += least
	}
	return u
}

// answerOptions are what the caller's dialect is told of the answer.
func (x *exchange) answerOptions() api.AnswerOptions {
	o := api.AnswerOptions{
		ID: x.rec.RequestID, Created: trace.Wall(x.rec.Arrival).Unix(), Model: x.head.Model,
		PromptIDs: x.ids, PromptTokens: x.expanded, Vocabulary: x.folder.Tokenizer, Timing: x.timing, Reasoning: x.g.opts.Reasoning,
	}
	if len(x.choices) > 1 {
		o.PromptOf = func(choice int) []uint32 { return x.promptOf(choice).ids }
	}
	return o
}
