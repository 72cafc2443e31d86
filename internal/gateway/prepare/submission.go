package prepare

import (
	"cmp"
	"slices"

	"weir/internal/dialect"
	"weir/internal/fleet/route"
	"weir/internal/infer"
)

// Submission is the request of a choice as a target gets it.
func (q *Prepared) Submission(index int, at *route.Target, id string) *infer.Request {
	p := q.PromptOf(index)
	req := &infer.Request{
		ID:        id,
		Model:     at.Model,
		Prompt:    p.IDs,
		Media:     q.Request.Media,
		MaxTokens: p.Max - q.Sent,
		ToContext: q.toContext,
		MinTokens: max(q.Request.MinTokens-q.Sent, 0), Priority: q.Request.Priority,
		IgnoreEOS: q.Request.IgnoreEOS,
		StopIDs:   q.Request.StopIDs,
		Sampling:  q.Request.Sampling,
		Guide:     q.Request.Guide,
		Logprobs:  q.Request.Logprobs, LogprobsFrom: q.Request.LogprobsFrom,
	}
	if q.saltNeeded || at.Facts.Salts.Carried {
		req.CacheSalt = q.salt
	}
	// The same seed would give the same answer n times.
	if k := index % q.width(); k > 0 && req.Sampling.Seed != nil {
		seed := *req.Sampling.Seed + int64(k)
		req.Sampling.Seed = &seed
	}
	if q.Request.HeldBack() && at.Carries()&infer.CarriesMinTokens == 0 {
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
func (q *Prepared) holdBack(biases []infer.Bias) []infer.Bias {
	ends := slices.Concat(q.Folder.EOS, q.Request.StopIDs)
	slices.Sort(ends)
	held := slices.DeleteFunc(slices.Clone(biases), func(b infer.Bias) bool { return slices.Contains(ends, b.ID) })
	for _, id := range slices.Compact(ends) {
		held = append(held, infer.Bias{ID: id, Value: impossible})
	}
	slices.SortFunc(held, func(a, b infer.Bias) int { return cmp.Compare(a.ID, b.ID) })
	return held
}

// Salted gives a body that is asked of a relayed engine the request's salt, in place of the
// caller's own. Without one it returns asked as it is, which may be nil.
func (q *Prepared) Salted(asked *dialect.Asked, e *route.Engine, path string) *dialect.Asked {
	if q.salt == "" {
		return asked
	}
	if asked == nil {
		asked = q.Head.Ask()
	}
	value := string(dialect.AppendString(nil, q.salt))
	for _, field := range e.SaltAt(path) {
		asked.Set(field, value)
	}
	return asked
}
