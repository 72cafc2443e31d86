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
