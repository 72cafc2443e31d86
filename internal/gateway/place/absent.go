package place

import (
	"time"

	"weir/internal/fleet/route"
	"weir/internal/infer"
)

// absent returns the time that a request, which began to wait at patience, waits for an
// engine if there is none: until another engine can be expected, or, if it has waited for
// the existing engines before, until these accept requests again.
func (n *Need) absent(now, patience int64, waits bool) (left time.Duration, err error) {
	if len(n.Tried) > 0 {
		return 0, n.noEngine(now) // the ones there are have failed; do not wait for them
	}
	if rest := n.Model.Rests(n.Needs, n.Tried, now); rest > 0 && waits {
		return rest, nil
	}
	if left = n.worthwhile(now, patience); left <= 0 {
		return 0, n.noEngine(now)
	}
	return left, nil
}

const (
	// queueLook is how often a request that waits for an engine looks for one.
	queueLook = 100 * time.Millisecond
	// departure is how long a ready engine that has left is waited for: what connects
	// anew is back by then, and what starts again is not.
	departure = time.Second
)

// worthwhile is how long the wait for an engine may still take; nothing where all that
// could be waited for have been there, and left, or drain, or refuse connections, or want
// to be left alone. Engines that start are waited for until patience ends.
func (n *Need) worthwhile(now, patience int64) time.Duration {
	if n.Model.Rests(n.Needs, n.Tried, now) > 0 {
		return 0 // those are busy, and say for how long
	}
	until := now
	if !n.Model.Settled {
		until = patience
	}
	if n.Model.Left != 0 {
		until = max(until, n.Model.Left+int64(departure))
	}
	return time.Duration(until - now)
}

// noEngine is the error of a request for which there is no engine.
func (n *Need) noEngine(now int64) error {
	if rest := n.Model.Rests(n.Needs, nil, now); rest > 0 {
		e := infer.Errorf(infer.CodeOverloaded, "the engines of model %q have asked for a pause; try again in %v", n.Model.Name, rest.Round(100*time.Millisecond))
		e.RetryAfter, e.Reason = rest, "engines_paused"
		return e
	}
	what := "engine"
	if len(n.Tried) > 0 {
		what = "other engine"
	}
	e := infer.Errorf(infer.CodeUnavailable, "no %s for model %q is ready", what, n.Model.Name)
	if n.Model.Has(route.Needs{}, n.Tried) {
		e.Message += n.lacking()
	}
	if missing := n.Model.Missing(n.Needs, n.Tried); missing != "" {
		e.Message += ": " + missing
	}
	if len(n.Tried) > 0 {
		e.Engine = n.Tried[len(n.Tried)-1].Name
	}
	e.RetryAfter, e.Reason = n.back(), "no_engine"
	return e
}

// lacking returns what of the request the engines do not carry that are there.
func (n *Need) lacking() (what string) {
	if n.NoIDs != nil {
		return " that is relayed, which the request needs: others cannot be given it (" + n.NoIDs.Message + ")"
	}
	if needs := n.Needs.String(); needs != "" {
		return " that carries " + needs + ", which the request needs"
	}
	return " that takes the request in the form in which it was prepared"
}

const (
	// newLook is how often it is looked for an engine that is not there; over the plane it
	// may come to 5 s.
	newLook = 2 * time.Second
	// maxBack bounds the Retry-After that clients get while engines are down.
	maxBack = 30 * time.Second
)

// back is when it may be worth while to ask again: when an engine that is out is probed
// next, and where some are not there, when it is looked for them next.
func (n *Need) back() time.Duration {
	back := n.Model.Back(n.Needs, nil)
	if n.Model.Awaited && (back == 0 || back > newLook) {
		back = newLook
	}
	return min(max(back, time.Second), maxBack)
}
