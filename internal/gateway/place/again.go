package place

import (
	"weir/internal/fleet/retry"
	"weir/internal/fleet/route"
	"weir/internal/infer"
)

// Elsewhere reports whether there is another target to go to.
func (n *Need) Elsewhere(failed route.Target) bool {
	return n.Model.Has(n.Needs, append(n.Tried[:len(n.Tried):len(n.Tried)], failed))
}

// Continues reports whether there is another token engine besides the one that
// failed.
func (n *Need) Continues(failed route.Target) bool {
	needs := n.Needs
	needs.Bytes |= infer.AnotherForm
	return n.Model.Has(needs, append(n.Tried[:len(n.Tried):len(n.Tried)], failed))
}

// Continuable reports whether a stream that has failed by e may continue at another engine once the
// client has received a part of it.
func Continuable(e *infer.Error) bool { return e.Retryable || e.Code == infer.CodeIntegrity }

// Progress is how far a request has come when an attempt fails.
type Progress struct {
	Begun     bool // the client has a part of the answer
	Goes      bool // which another engine can continue
	Effects   bool // the engine may do more than compute an answer
	Attempts  int
	Continued int // how often other engines have continued the answer
}

// Failure is what is known of a request's latest attempt, which has failed by e.
func (n *Need) Failure(e *infer.Error, p Progress) retry.Failure {
	f := retry.Failure{
		Final: !Continuable(e) || !e.Retryable && !p.Begun, NotRun: e.NotRun, Silent: e.Code == infer.CodeDeadline,
		Effects: p.Effects, Attempts: p.Attempts, Begun: int(n.Begun),
	}
	if p.Begun {
		f.Goes, f.Seen, f.Continued = p.Goes, !p.Goes, p.Continued
	}
	if !e.NotRun {
		f.Begun++
	}
	return f
}

// CouldRetry reports whether the request can go to another engine, at once, after a
// failure.
func (n *Need) CouldRetry(failed route.Target, f retry.Failure, now int64) bool {
	return f.Allow() == retry.Granted && n.Elsewhere(failed) && n.Model.Retries.Left(now) >= 1
}

// Failed takes an engine for tried that has failed the request, and another one that may have, if it is
// not the last.
func (n *Need) Failed(f *retry.Failure, failed route.Target, other *route.Target) {
	n.Tried, n.Begun = append(n.Tried, failed), int32(f.Begun)
	if other != nil && n.Elsewhere(*other) {
		n.Tried = append(n.Tried, *other)
	}
}
