package gateway

import (
	"math"

	"weir/internal/dialect"
	"weir/internal/fleet/admission"
	"weir/internal/fleet/route"
	"weir/internal/gateway/footprint"
	"weir/internal/infer"
	"weir/internal/model"
	"weir/internal/model/outputparse"
	"weir/internal/model/stop"
)

// prepared is a request that is ready for an engine, in the forms in which engines of its model
// take it. It does not change from then on, except that parts are released that are no longer
// needed (forget, forgetAsking), and that recall gives it another prompt.
type prepared struct {
	body        []byte        // as it is relayed
	head        *dialect.Head // of the body
	salt        string        // divides the caches of its model's engines, and weir's own; empty: they are everybody's
	session     uint64        // that the caller's head names; 0: none
	leftOut     *leftOut      // what was left out of the request; nil: nothing
	reservation *admission.Reservation
	footprint   footprint.Footprint

	// The form for engines that take ids. A request that is relayed whatever engines there are has
	// none of it.
	req    *dialect.Request
	folder *model.Folder
	stops  *stop.Set // all choices search their text for them
	ids    []uint32
	// sent is how many of ids, at their end, are the answer's so far. It stands here although a
	// continuation changes it, because it means nothing without ids, and whoever asks an engine for
	// an answer needs both.
	sent       int
	more       []prompt             // the prompts after the first
	format     *outputparse.Options // what the answer may be besides text; nil: nothing
	calls      int32                // in the conversation, where the ids of further ones depend on it
	hasMedia   bool                 // then only the engine knows how many tokens the prompt has
	toContext  bool                 // the caller gave the answer no bound
	saltNeeded bool                 // an engine that reads no salt is not given the request
}

// prompt is one of several prompts of a request, and the bound of its answers.
type prompt struct {
	ids []uint32
	max int
}

// destination is where a request can go, by the fleet of a moment.
type destination struct {
	fleet   *route.Snapshot
	model   *route.Model // as the fleet has it
	needs   route.Needs  // what an engine must carry
	noIDs   *infer.Error // why engines that take ids cannot be given it, where it is relayed for that
	beginBy int64        // time by which the caller wants the answer to begin; 0: not given
}

// width is how many choices each prompt has.
func (q *prepared) width() int { return max(1, q.req.N) }

// count is how many choices there are.
func (q *prepared) count() int { return q.width() * (1 + len(q.more)) }

// promptOf returns the prompt of a choice.
func (q *prepared) promptOf(index int) prompt {
	if i := index / q.width(); i > 0 {
		return q.more[i-1]
	}
	return prompt{q.ids, q.req.MaxTokens}
}

// longest bounds the ids of any choice. An engine that ends the answer where its
// context does, which is known to it alone, bounds them itself.
func (q *prepared) longest() int {
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
func (q *prepared) promptTokens() int {
	n := len(q.ids)
	for i := range q.more {
		n += len(q.more[i].ids)
	}
	return n
}

// longestPrompt is how many ids the longest prompt has.
func (q *prepared) longestPrompt() int {
	n := len(q.ids)
	for i := range q.more {
		n = max(n, len(q.more[i].ids))
	}
	return n
}

// forget lets go of the prompt's forms that are not needed any more, which may
// be megabytes while a stream may live for long: a token engine needs the ids, a
// relay engine the body until the request cannot be retried.
func (q *prepared) forget() {
	q.body = nil
	q.head.Body, q.head.Fields = nil, nil
	if q.req != nil {
		q.req.Messages, q.req.Tools, q.req.ChatTemplateKwargs, q.req.Prompt, q.req.MorePrompts = nil, nil, nil, "", nil
	}
}

// forgetAsking releases the parts that only another attempt would need, after the answer
// has begun: media, which may be the whole body, the prompt's ids, and the inputs of the
// encoder.
func (q *prepared) forgetAsking() {
	if q.hasMedia {
		q.req.Media = nil
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

// recall makes the ids of the answer so far, which follow those of the prompt, the prompt for
// another engine.
func (q *prepared) recall(ids []uint32, sent int) {
	q.ids, q.sent = ids, sent
	q.footprint.Prompts[0] = footprint.ExtentOf(q.footprint.Root, ids)
	q.footprint.Limit = q.longest() - sent
}
