package sim

import (
	"fmt"
	"slices"

	"weir/internal/content"
	"weir/internal/infer"
)

// Params is a request as a face received it.
type Params struct {
	Prompt []uint32
	// MaxTokens bounds the output; 0 takes what the context leaves.
	MaxTokens int
	// MinTokens forbids an end before this many ids.
	MinTokens int
	IgnoreEOS bool
	// StopIDs end the output in addition to the model's end ids.
	StopIDs []uint32
	// Seed leads to another content; 0 is none.
	Seed uint64
	// Stall makes the engine hold the request for ever once it has generated
	// StallAfter ids: it stays in the running batch and gets nothing more.
	Stall      bool
	StallAfter int
}

// Request is a request that was checked and whose prompt was digested. It can
// be submitted once.
type Request struct {
	prompt     int
	max, min   int
	ignoreEOS  bool
	stall      bool
	stallAfter int
	stop       []uint32
	stream     content.Stream
}

// PromptTokens is the length of the prompt.
func (r *Request) PromptTokens() int { return r.prompt }

// Prepare checks a request against what the engine can ever do and reads its
// prompt. It does the work that grows with the prompt, needs no state of the
// engine and may run on any goroutine. Errors are *infer.Error.
func (o *Options) Prepare(p Params) (Request, error) {
	room := o.ContextLength - len(p.Prompt)
	switch {
	case len(p.Prompt) == 0:
		return Request{}, infer.Invalid("prompt", "the prompt is empty; send at least one token")
	case p.MaxTokens < 0:
		return Request{}, infer.Invalid("max_tokens", "max_tokens is %d; it must not be negative", p.MaxTokens)
	case p.MinTokens < 0:
		return Request{}, infer.Invalid("min_tokens", "min_tokens is %d; it must not be negative", p.MinTokens)
	case room < 1 || p.MaxTokens > room:
		return Request{}, o.tooLong(len(p.Prompt), p.MaxTokens)
	}
	limit := p.MaxTokens
	if limit == 0 {
		limit = room
	}
	if p.MinTokens > limit {
		return Request{}, infer.Invalid("min_tokens", "min_tokens is %d and max_tokens %d; min_tokens must not be more", p.MinTokens, limit)
	}
	if o.VocabSize > 0 {
		for i, id := range p.Prompt {
			if int64(id) >= int64(o.VocabSize) {
				return Request{}, infer.Invalid("prompt", "prompt[%d] is %d; the vocabulary has %d ids", i, id, o.VocabSize)
			}
		}
	}
	return Request{
		prompt:     len(p.Prompt),
		max:        limit,
		min:        p.MinTokens,
		ignoreEOS:  p.IgnoreEOS || len(o.EOS) == 0,
		stall:      p.Stall,
		stallAfter: p.StallAfter,
		stop:       slices.Clone(p.StopIDs),
		stream:     o.Words.Start(p.Prompt, p.Seed),
	}, nil
}

// tooLong says by how much a request does not fit.
func (o *Options) tooLong(prompt, limit int) error {
	if prompt >= o.ContextLength {
		return &infer.Error{Code: infer.CodeContext, Param: "prompt",
			Message: fmt.Sprintf("the prompt has %d tokens and this model's context is %d; shorten the prompt", prompt, o.ContextLength)}
	}
	return &infer.Error{Code: infer.CodeContext, Param: "max_tokens",
		Message: fmt.Sprintf("the prompt has %d tokens and max_tokens is %d, %d together; this model's context is %d; shorten the prompt or lower max_tokens",
			prompt, limit, prompt+limit, o.ContextLength)}
}
