package gateway

import (
	"cmp"
	"math"
	"slices"

	"weir/internal/dialect"
	"weir/internal/fleet/admission"
	"weir/internal/fleet/route"
	"weir/internal/gateway/footprint"
	"weir/internal/infer"
	"weir/internal/model"
	"weir/internal/model/outputparse"
	"weir/internal/model/stop"
	"weir/internal/tenancy"
)

// request is the request as read by decode, gate, render and tokenize. Once it is
// prepared, parts that are no longer needed are released. Otherwise only recall changes
// it, for a stream that continues at another engine.
type request struct {
	caller      *tenancy.Caller // who sends it; never nil
	body        []byte
	room        admission.Body // its share of what bodies may take
	uncount     func()         // ends its count as a client's; nil: its connection counts
	head        *dialect.Head
	salt        string // divides the caches of its model's engines, and weir's own; empty: they are everybody's
	endpoint    dialect.Endpoint
	req         *dialect.Request // token engines only; nil: it is relayed whatever engines there are
	ignored     *leftOut         // is told if one of them answers; nil: nothing was left out, or it was told at once
	reservation *admission.Reservation
	folder      *model.Folder // token engines only

	stops     *stop.Set // all choices search their text for them
	ids       []uint32
	sent      int      // of ids, those at the end that are the answer's so far
	more      []prompt // the prompts after the first
	footprint footprint.Footprint
	format    *outputparse.Options // what the answer may be besides text; nil: nothing
	calls     int32                // in the conversation, where the ids of further ones depend on it
	hasMedia  bool                 // then only the engine knows how many tokens the prompt has
	toContext bool                 // the caller gave the answer no bound

	saltNeeded bool // an engine that reads no salt is not given the request
	unknown    bool // the caller is, and the exchange's err says so
}

// prompt is one of several prompts of a request, and the bound of its answers.
type prompt struct {
	ids []uint32
	max int
}

// width is how many choices each prompt has.
func (q *request) width() int { return max(1, q.req.N) }

// count is how many choices there are.
func (q *request) count() int { return q.width() * (1 + len(q.more)) }

// promptOf returns the prompt of a choice.
func (q *request) promptOf(index int) prompt {
	if i := index / q.width(); i > 0 {
		return q.more[i-1]
	}
	return prompt{q.ids, q.req.MaxTokens}
}

// longest bounds the ids of any choice. An engine that ends the answer where its
// context does, which is known to it alone, bounds them itself.
func (q *request) longest() int {
	if q.toContext {
		return math.MaxInt32
	}
	n := q.req.MaxTokens
	for i := range q.more {
		n = max(n, q.more[i].max)
	}
	return n
}

// promptTokens is the length of all prompts.
func (q *request) promptTokens() int {
	n := len(q.ids)
	for i := range q.more {
		n += len(q.more[i].ids)
	}
	return n
}

// longestPrompt is how many ids the longest prompt has.
func (q *request) longestPrompt() int {
	n := len(q.ids)
	for i := range q.more {
		n = max(n, len(q.more[i].ids))
	}
	return n
}

// submission is the request of a choice as a target gets it.
func (q *request) submission(index int, at *route.Target, id string) *infer.Request {
	p := q.promptOf(index)
	req := &infer.Request{
		ID:        id,
		Model:     at.Model,
		Prompt:    p.ids,
		Media:     q.req.Media,
		MaxTokens: p.max - q.sent,
		ToContext: q.toContext,
		MinTokens: max(q.req.MinTokens-q.sent, 0), Priority: q.req.Priority,
		IgnoreEOS: q.req.IgnoreEOS,
		StopIDs:   q.req.StopIDs,
		Sampling:  q.req.Sampling,
		Guide:     q.req.Guide,
		Logprobs:  q.req.Logprobs, LogprobsFrom: q.req.LogprobsFrom,
	}
	if q.saltNeeded || at.Facts.Salts.Carried {
		req.CacheSalt = q.salt
	}
	// The same seed would give the same answer n times.
	if k := index % q.width(); k > 0 && req.Sampling.Seed != nil {
		seed := *req.Sampling.Seed + int64(k)
		req.Sampling.Seed = &seed
	}
	if q.req.HeldBack() && at.Carries()&infer.CarriesMinTokens == 0 {
		req.MinTokens, req.Sampling.LogitBias = 0, q.holdBack(req.Sampling.LogitBias)
	}
	return req
}

// impossible is the bias of an id that must not be generated: it makes the probability 0
// in 32 bits.
const impossible = -1e9

// holdBack adds biases against the ids that would end an answer. For an answer that
// must not end before its limit this replaces min_tokens, for an engine that does not
// know these ids itself.
func (q *request) holdBack(biases []infer.Bias) []infer.Bias {
	ends := slices.Concat(q.folder.EOS, q.req.StopIDs)
	slices.Sort(ends)
	held := slices.DeleteFunc(slices.Clone(biases), func(b infer.Bias) bool { return slices.Contains(ends, b.ID) })
	for _, id := range slices.Compact(ends) {
		held = append(held, infer.Bias{ID: id, Value: impossible})
	}
	slices.SortFunc(held, func(a, b infer.Bias) int { return cmp.Compare(a.ID, b.ID) })
	return held
}

// forget lets go of the prompt's forms that are not needed any more, which may
// be megabytes while a stream may live for long: a token engine needs the ids, a
// relay engine the body until the request cannot be retried.
func (q *request) forget() {
	q.body = nil
	if !q.hasMedia {
		q.room.Leave()
	}
	q.head.Body, q.head.Fields = nil, nil
	if q.req != nil {
		q.req.Messages, q.req.Tools, q.req.ChatTemplateKwargs, q.req.Prompt, q.req.MorePrompts = nil, nil, nil, "", nil
	}
}

// forgetAsking releases the parts that only another attempt would need, after the answer
// has begun: media, which may be the whole body, the prompt's ids, and the inputs of the
// encoder.
func (q *request) forgetAsking() {
	if q.hasMedia {
		q.req.Media = nil
		q.room.Leave()
	}
	if q.req == nil {
		return
	}
	q.req.Encoder, q.format = nil, nil // the answer has them
	if q.count() == 1 {                // of several, the encoder asks whose prompt is which
		q.ids, q.req.PromptIDs = nil, nil
		for i := range q.footprint.Prompts {
			q.footprint.Prompts[i].Rest = nil // part of them
		}
	}
}
