package answer

import (
	"weir/internal/dialect"
	"weir/internal/infer"
	"weir/internal/model/outputparse"
	"weir/internal/model/stop"
	"weir/internal/model/tokenizer"
	"weir/internal/trace"
)

// TokensOptions describe the answer of a token engine.
type TokensOptions struct {
	Request *dialect.Request
	// Choices is the number of choices of all prompts together.
	Choices int
	// PromptTokens is the length of all prompts. With EngineCounts it is only an
	// estimate until the engine reports the number.
	PromptTokens int
	EngineCounts bool
	// Bounds are those of the counts that the engine reports.
	Bounds    Bounds
	Tokenizer *tokenizer.Tokenizer
	// Stops are the stop strings of the request.
	Stops *stop.Set
	EOS   []uint32
	// Format is the syntax of reasoning and calls in the answer; nil if the answer is
	// only content. Keep are the special tokens that its parser needs.
	Format *outputparse.Options
	Keep   []uint32
	// CallID returns an id for a call of a tool to which the model gave none; call is its
	// number in the answer.
	CallID func(tool string, call int) string
	// Encoder makes the encoder of an answer; promptTokens is
	// dialect.AnswerOptions.PromptTokens.
	Encoder func(t *Tokens, promptTokens int) dialect.Encoder
}

// Tokens is the answer of a token engine. Its ids pass three calls: detokenize,
// parse and encode.
type Tokens struct {
	// Fields that each delta uses are first, so that they are in few cache lines.
	choices []choice
	enc     dialect.Encoder // nil before the first output
	left    int             // of choices, those whose end is not encoded
	counted int             // the prompt's tokens as the engine counts them; 0: not reported
	tokens  bool            // TokensOptions.Request.Tokens
	aborted bool            // the caller has asked the engine to stop
	endsAt  bool            // Request.StopIDs end the answer, though an engine may go on behind them
	only    [1]choice       // is choices, for most requests

	o TokensOptions
}

// choice is one of the answers to a request: n of each of its prompts, in the
// order of the prompts.
type choice struct {
	index     uint32
	started   bool                   // its beginning is encoded
	ended     bool                   // and its end
	called    bool                   // a tool
	broken    bool                   // a call's arguments are no JSON
	detok     *tokenizer.Detokenizer // nil: nobody wants the text
	parser    *outputparse.Parser    // nil: all that comes is content
	reasoning *reasoningCount        // nil: not counted
	ends      *textEnd               // nil: what the parser finds does not end the choice
	scores    *scores                // nil: whose the tokens are does not matter
	tokens    int                    // ids that count, up to a stop string
	cached    int                    // ids of its prompt that the engine had; -1: not reported
}

// NewTokens returns an empty answer.
func NewTokens(o TokensOptions) *Tokens {
	t := &Tokens{o: o, left: o.Choices, tokens: o.Request.Tokens}
	t.choices = t.only[:]
	if o.Choices > 1 {
		t.choices = make([]choice, o.Choices)
	}
	req := o.Request
	t.endsAt = req.IgnoreEOS && len(req.StopIDs) > 0
	search := o.Stops // of all text
	if o.Format != nil {
		search = nil // their parsers search the content
	}
	options := tokenizer.DetokenizerOptions{
		Stops: search, StopAfter: req.MinTokens, IncludeStop: req.IncludeStop, SkipSpecial: !req.ShowSpecial, Keep: o.Keep,
	}
	t.o.Keep, t.o.Stops = nil, nil // the detokenizers have them, or the parsers
	for i := range t.choices {
		ch := &t.choices[i]
		*ch = choice{index: uint32(i), cached: -1}
		if !req.NoText || o.Stops != nil {
			ch.detok = tokenizer.NewDetokenizer(o.Tokenizer, options)
		}
		if o.Format != nil {
			format := *o.Format
			if req.CountReasoning {
				ch.reasoning = newReasoningCount(format)
			}
			format.Stops = o.Stops
			ch.parser = outputparse.New(format)
			if format.Single || format.Stops != nil {
				ch.ends = newTextEnd(format, req.MinTokens)
			}
		}
		if req.ContentLogprobs {
			ch.scores = &scores{top: *req.Logprobs}
		}
	}
	t.o.Format = nil // the parsers have it
	return t
}

// Next implements Answer. A part with an error contains the output before the error. It
// does not end the answer, which continues if the next call has more input.
func (t *Tokens) Next(in *Input, s *Scratch, at Stages) Part {
	out := s.out[:0]
	s.stops = s.stops[:0]
	var failed *infer.Error
	for i := range in.Cells {
		if n := in.Cells[i].PromptTokens; n > 0 && t.o.EngineCounts {
			t.counted = n
		}
	}
	for i := range in.Cells {
		c := &in.Cells[i]
		ch := &t.choices[c.Choice]
		if ch.ended { // what still comes of it can only be the failure of all
			if c.Finish != nil && c.Finish.Err != nil {
				failed = t.engineError(c.Finish)
				break
			}
			continue
		}
		at.Enter(trace.Detokenize)
		p := t.detokenize(ch, c, s)
		at.Enter(trace.Extract)
		events := t.parse(ch, c, &p, s)
		at.Enter(trace.Encode)
		if out, failed = t.encode(out, ch, c, p, events); failed != nil {
			break
		}
	}
	s.out = out
	if failed != nil {
		return Part{Out: out, Err: failed, Stops: s.stops}
	}
	return Part{Out: out, Last: t.left == 0, Stops: s.stops}
}

// stop notes that a choice has ended by its text.
func (s *Scratch) stop(ch *choice, running bool) {
	s.stops = append(s.stops, Stop{ch.index, running})
}

// Abort reports that the caller has asked to stop the generation. The output so far is
// then the answer.
func (t *Tokens) Abort() { t.aborted = true }

// Ended reports whether a choice has ended.
func (t *Tokens) Ended(choice int) bool { return t.choices[choice].ended }

// Generated returns how many ids a choice has so far.
func (t *Tokens) Generated(choice int) int { return t.choices[choice].tokens }

// AppendError implements Answer.
func (t *Tokens) AppendError(dst []byte, e *infer.Error) (out []byte, ok bool) {
	return t.enc.AppendError(dst, e), true
}

// Found records the number of cached prompt tokens of a choice, as its first engine
// reported it. If another engine continues the choice, the number that it reports differs.
func (t *Tokens) Found(choice, cached int) { t.choices[choice].cached = cached }

// Usage implements Answer. A prompt counts once. Its cached tokens are those that its
// first choice found, because the other choices find what the first one left in the
// cache.
func (t *Tokens) Usage() (u infer.Usage, ok bool) {
	defer func() { u = t.o.Bounds.clip(u) }()
	u.PromptTokens = t.o.PromptTokens
	if t.counted > 0 {
		u.PromptTokens = t.counted
	}
	for i := range t.choices {
		u.CompletionTokens += t.choices[i].tokens
		if r := t.choices[i].reasoning; r != nil {
			u.ReasoningTokens += r.tokens
		}
	}
	width := max(1, t.o.Request.N)
	for i := 0; i < len(t.choices); i += width {
		least := t.choices[i].cached
		for _, c := range t.choices[i : i+width] {
			least = min(least, c.cached)
		}
		if least < 0 {
			u.CachedTokens = -1
			return u, true
		}
		u.CachedTokens += least
	}
	return u, true
}
