package sim

import (
	"fmt"
	"slices"
	"time"

	"weir/internal/infer"
	"weir/internal/workload/content"
)

// Params is a request as a server received it.
type Params struct {
	Prompt []uint32
	// MaxTokens bounds the output; 0 takes what the context and the KV cache
	// leave.
	MaxTokens int
	// MinTokens forbids an end before this many ids.
	MinTokens int
	IgnoreEOS bool
	// StopIDs end the output in addition to the model's end ids.
	StopIDs []uint32
	// Seed leads to another content; 0 is none.
	Seed uint64
	// Priority orders the waiting queue, the highest first. A value other than 0 needs
	// Options.PriorityScheduling; 0 is the default.
	Priority int
	// LoRA is the name of an adapter, one of Options.LoRAs; empty is none.
	LoRA string
	// CacheSalt divides the prefix cache: the request finds there what those of the same salt
	// left.
	CacheSalt string
	// DPRank is the rank that must take the request, counted from 0. With nil the engine
	// takes the rank with the fewest requests.
	DPRank *int
	// StreamInterval is how many ids are sent at a time; 0 takes the engine's.
	StreamInterval int
	// Script, unless nil, is the output instead of generated words. After it the output
	// ends by an end id with ReasonStop (by the script's last id if the engine has no end
	// ids). With IgnoreEOS, and up to MinTokens, words follow instead. A request that
	// continues another one passes the rest of the script. The engine keeps the slice.
	Script []uint32
	// Leg is the request's part of a pair, Whole where it is none.
	Leg Leg
	// Await keeps a leg out of the queue until Meet reports its partner.
	Await bool
	// Patience bounds how long a leg waits: one that Awaits for Meet, and a decode
	// leg with pages for its KV. 0 is no bound.
	Patience time.Duration
	// Lease is how long the KV of a prefill leg is kept; 0 is until Release.
	Lease time.Duration
	// Fresh makes a decode leg find nothing in the cache.
	Fresh bool
	// Pages is what becomes of a decode leg's pages if it is aborted before it has its KV.
	Pages Pages
	// Stall makes the engine hold the request for ever once it has generated
	// StallAfter ids: it stays in the running batch and gets nothing more.
	Stall      bool
	StallAfter int
}

// Request is a request that was checked and whose prompt was digested. It may be submitted
// again, also to other engines with the same options.
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
	priority   int
	rank       int // -1: any
	interval   int
	leg        Leg
	await      bool
	fresh      bool
	pages      Pages
	patience   time.Duration
	lease      time.Duration
	salt       uint64 // of the keys
	lora       string
	cacheSalt  string
	ids        []uint32 // with Options.KVEvents, the prompt
	keys       []uint64 // of the prompt's full pages
}

// Half is a leg of a whole request, as Params say it. A prefill leg gets one id.
func (r Request) Half(leg Leg, await, fresh bool) Request {
	r.leg, r.await, r.fresh = leg, await, fresh
	if leg == LegPrefill {
		r.max, r.min = 1, min(r.min, 1)
	}
	return r
}

// PromptTokens is the length of the prompt.
func (r *Request) PromptTokens() int { return r.prompt }

// Prepare checks a request against the engine's fixed limits and reads its prompt. It does
// the work that grows with the prompt. It needs no state of the engine and may run on any
// goroutine. Errors are *infer.Error.
func (o *Options) Prepare(p Params) (Request, error) {
	if len(p.Prompt) == 0 {
		return Request{}, infer.Invalid("prompt", "the prompt is empty; send at least one token")
	}
	limit, err := o.limit(&p)
	if err != nil {
		return Request{}, err
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
	r := Request{
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
		priority:   p.Priority,
		rank:       -1,
		interval:   p.StreamInterval,
		leg:        p.Leg,
		await:      p.Await,
		fresh:      p.Fresh,
		pages:      p.Pages,
		patience:   p.Patience,
		lease:      p.Lease,
		salt:       saltOf(p.LoRA, p.CacheSalt),
		lora:       p.LoRA,
		cacheSalt:  p.CacheSalt,
		stream:     o.Words.Start(nil, p.Seed),
	}
	if p.DPRank != nil {
		r.rank = *p.DPRank
	}
	if o.KVEvents {
		r.ids = slices.Clip(slices.Clone(p.Prompt)) // what is generated is appended to a copy
	}
	if r.interval == 0 {
		r.interval = o.StreamInterval
	}
	r.keys = o.digest(&r.stream, p.Prompt, r.salt)
	return r, nil
}

// limit returns the bound of the output.
func (o *Options) limit(p *Params) (int, error) {
	room := o.Room(len(p.Prompt))
	switch {
	case p.MaxTokens < 0:
		return 0, infer.Invalid("max_tokens", "max_tokens is %d; it must not be negative", p.MaxTokens)
	case p.MinTokens < 0:
		return 0, infer.Invalid("min_tokens", "min_tokens is %d; it must not be negative", p.MinTokens)
	case room >= max(1, p.MaxTokens):
	case len(p.Prompt)+max(1, p.MaxTokens) > o.ContextLength:
		return 0, o.tooLong(len(p.Prompt), p.MaxTokens, "this model's context", o.ContextLength)
	default:
		return 0, o.tooLong(len(p.Prompt), p.MaxTokens, "this engine's KV cache", o.kvRoom())
	}
	limit := p.MaxTokens
	if limit == 0 {
		limit = room
	}
	if p.MinTokens > limit {
		return 0, infer.Invalid("min_tokens", "min_tokens is %d and max_tokens %d; min_tokens must not be more", p.MinTokens, limit)
	}
	if p.Script != nil && len(p.Script) == 0 && len(o.EOS) == 0 {
		return 0, infer.Invalid("script", "an empty script ends by an end id and this engine has none")
	}
	return limit, nil
}

// Room returns how many ids may follow a prompt of this length. A request that fits the
// cache of an idle engine runs sooner or later; any other request would wait forever.
func (o *Options) Room(prompt int) int {
	room := o.ContextLength - prompt
	if o.KVTokens > 0 {
		room = min(room, o.kvRoom()-prompt)
	}
	return room
}

// kvRoom is how many ids of one request the KV cache holds.
func (o *Options) kvRoom() int { return o.KVTokens/o.PageSize*o.PageSize - o.drafts() }

// checkPlacement checks the fields of a request that select where and how it runs.
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
	case p.Await && p.Leg == Whole:
		return infer.Invalid("leg", "a whole request awaits no partner")
	case p.Patience < 0 || p.Lease < 0:
		return infer.Invalid("leg", "the patience and the lease of a leg must not be negative")
	}
	return nil
}

// tooLong returns an error with the number of tokens by which a request does not fit.
func (o *Options) tooLong(prompt, limit int, what string, size int) error {
	if prompt >= size {
		return &infer.Error{Code: infer.CodeContext, Param: "prompt",
			Message: fmt.Sprintf("the prompt has %d tokens and %s is %d; shorten the prompt", prompt, what, size)}
	}
	return &infer.Error{Code: infer.CodeContext, Param: "max_tokens",
		Message: fmt.Sprintf("the prompt has %d tokens and max_tokens is %d, %d together; %s is %d; shorten the prompt or lower max_tokens",
			prompt, limit, prompt+limit, what, size)}
}
