package prepare

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

// Prepared is a request that is ready for an engine, in the forms in which engines of its model
// take it. It does not change from then on, except that parts are released that are no longer
// needed (Forget, ForgetAsking), and that Recall gives it another prompt.
type Prepared struct {
	Body        []byte        // as it is relayed
	Head        *dialect.Head // of the body
	salt        string        // divides the caches of its model's engines, and weir's own; empty: they are everybody's
	Session     uint64        // that the caller's head names; 0: none
	LeftOut     *LeftOut      // what was left out of the request; nil: nothing
	Reservation *admission.Reservation
	Footprint   footprint.Footprint

	// The form for engines that take ids. A request that is relayed whatever engines there are has
	// none of it.
	Request *dialect.Request
	Folder  *model.Folder
	Stops   *stop.Set // all choices search their text for them
	IDs     []uint32
	// Sent is how many of the IDs, at their end, are the answer's so far. It stands here although a
	// continuation changes it: the prompt, the footprint and the bounds of an answer depend on it, and
	// each engine that is asked gets all of them.
	Sent       int
	More       []Prompt             // the prompts after the first
	Format     *outputparse.Options // what the answer may be besides text; nil: nothing
	calls      int32                // in the conversation, where the ids of further ones depend on it
	HasMedia   bool                 // then only the engine knows how many tokens the prompt has
	toContext  bool                 // the caller gave the answer no bound
	saltNeeded bool                 // an engine that reads no salt is not given the request
}

// Prompt is one of several prompts of a request, and the bound of its answers.
type Prompt struct {
	IDs []uint32
	Max int
}

// Destination is where a request can go, by the fleet of a moment.
type Destination struct {
	Fleet   *route.Snapshot
	Model   *route.Model // as the fleet has it
	Needs   route.Needs  // what an engine must carry
	NoIDs   *infer.Error // why engines that take ids cannot be given it, where it is relayed for that
	BeginBy int64        // time by which the caller wants the answer to begin; 0: not given
}

// width is how many choices each prompt has.
func (q *Prepared) width() int { return max(1, q.Request.N) }

// Count is how many choices there are.
func (q *Prepared) Count() int { return q.width() * (1 + len(q.More)) }

// PromptOf returns the prompt of a choice.
func (q *Prepared) PromptOf(index int) Prompt {
	if i := index / q.width(); i > 0 {
		return q.More[i-1]
	}
	return Prompt{q.IDs, q.Request.MaxTokens}
}

// Longest bounds the ids of any choice. An engine that ends the answer where its
// context does, which is known to it alone, bounds them itself.
func (q *Prepared) Longest() int {
	if q.toContext {
		return math.MaxInt32
	}
	n := q.Request.MaxTokens
	for i := range q.More {
		n = max(n, q.More[i].Max)
	}
	return n
}

// PromptTokens is the length of all prompts.
func (q *Prepared) PromptTokens() int {
	n := len(q.IDs)
	for i := range q.More {
		n += len(q.More[i].IDs)
	}
	return n
}

// longestPrompt is how many ids the longest prompt has.
func (q *Prepared) longestPrompt() int {
	n := len(q.IDs)
	for i := range q.More {
		n = max(n, len(q.More[i].IDs))
	}
	return n
}

// Forget releases the forms of the prompt that are not needed any more, which may be megabytes
// while a stream may live for long: a token engine needs the ids, and a relay engine the body
// until the request cannot be retried.
func (q *Prepared) Forget() {
	q.Body = nil
	q.Head.Body, q.Head.Fields = nil, nil
	if q.Request != nil {
		q.Request.Messages, q.Request.Tools, q.Request.ChatTemplateKwargs, q.Request.Prompt, q.Request.MorePrompts = nil, nil, nil, "", nil
	}
}

// ForgetAsking releases the parts that only another attempt would need, after the answer
// has begun: media, which may be the whole body, the prompt's ids, and the inputs of the
// encoder.
func (q *Prepared) ForgetAsking() {
	if q.HasMedia {
		q.Request.Media = nil
	}
	if q.Request == nil {
		return
	}
	q.Request.Encoder, q.Format = nil, nil // the answer has them
	if q.Count() == 1 {                    // of several, the encoder asks whose prompt is which
		q.IDs, q.Request.PromptIDs = nil, nil
		for i := range q.Footprint.Prompts {
			q.Footprint.Prompts[i].Rest = nil // part of them
		}
	}
}

// Recall makes the ids of the answer so far, which follow those of the prompt, the prompt for
// another engine.
func (q *Prepared) Recall(ids []uint32, sent int) {
	q.IDs, q.Sent = ids, sent
	q.Footprint.Prompts[0] = footprint.ExtentOf(q.Footprint.Root, ids)
	q.Footprint.Limit = q.Longest() - sent
}

// Held is what a request holds while it waits, in bytes.
func (q *Prepared) Held() int64 { return int64(cap(q.Body)) + 4*int64(q.PromptTokens()) }
