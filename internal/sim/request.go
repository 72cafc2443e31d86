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
	// Priority orders the waiting queue, the highest first. It needs
	// Options.PriorityScheduling; 0 is what a request has that names none.
	Priority int
	// LoRA is the name of an adapter, one of Options.LoRAs; empty is none.
	LoRA string
	// DPRank is the rank that must take the request, counted from 0; nil leaves
	// it to the engine, which takes the one with the fewest requests.
	DPRank *int
	// StreamInterval is how many ids are sent at a time; 0 takes the engine's.
	StreamInterval int
	// Script, unless nil, is what the engine says in place of words. When it is
	// said, the output ends by an end id with ReasonStop (by the script's last id
	// where the engine has no end ids); with IgnoreEOS, and up to MinTokens, words
	// follow instead. A request that continues another one gives what is left.
	// The engine keeps the slice.
	Script []uint32
	// Handle names the KV of the prompt on a prefill engine. A decode engine
	// needs it, and a prefill engine refuses it.
	Handle *Handle
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
	endless    bool // no end id comes by chance
	ignoreEOS  bool
	stall      bool
	stallAfter int
	stop       []uint32
	script     []uint32
	scripted   bool // script holds what is said, even if that is nothing
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
	if p.Script != nil && len(p.Script) == 0 && len(o.EOS) == 0 {
		return Request{}, infer.Invalid("script", "an empty script ends by an end id and this engine has none")
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
	if err := o.checkPlacement(&p); err != nil {
		return Request{}, err
	}
	return Request{
		prompt:     len(p.Prompt),
		max:        limit,
		min:        p.MinTokens,
		endless:    p.IgnoreEOS || len(o.EOS) == 0,
		ignoreEOS:  p.IgnoreEOS,
		script:     p.Script,
		scripted:   p.Script != nil,
		stall:      p.Stall,
		stallAfter: p.StallAfter,
		stop:       slices.Clone(p.StopIDs),
		stream:     o.Words.Start(p.Prompt, p.Seed),
	}, nil
}

// checkPlacement checks what a request says of where and how it runs.
func (o *Options) checkPlacement(p *Params) error {
	switch {
	case p.Priority != 0 && !o.PriorityScheduling:
		return infer.Invalid("priority", "priority is %d, but this engine has no priority scheduling; leave priority out or turn the engine's on", p.Priority)
	case p.LoRA != "" && !slices.Contains(o.LoRAs, p.LoRA):
		return infer.Invalid("lora", "no LoRA adapter %q; this engine has %q", p.LoRA, o.LoRAs)
	case p.DPRank != nil && (*p.DPRank < 0 || *p.DPRank >= o.DPSize):
		return infer.Invalid("dp_rank", "dp_rank is %d; this engine has %d, counted from 0", *p.DPRank, o.DPSize)
	case p.StreamInterval < 0:
		return infer.Invalid("stream_interval", "stream_interval is %d; it must not be negative", p.StreamInterval)
	case p.StreamInterval > 1:
		return infer.Invalid("stream_interval", "stream_interval is not built yet; leave it out")
	case p.Handle != nil:
		return infer.Invalid("handle", "a transfer of KV is not built yet; leave it out")
	}
	return nil
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
