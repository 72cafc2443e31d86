package gateway

import (
	"fmt"
	"time"

	"weir/internal/engine"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/route"
	"weir/internal/gateway/place"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/internal/trace"
)

// routing is where a request can go.
type routing struct {
	to    prepare.Destination // as the fleet is now, and as what became of attempts has changed it
	tried []route.Target      // by the attempts before
	begun int32               // those of them in which the engine may have begun with it
	anew  uint8               // how often it was prepared again
	// before is where a continuation goes, if the policy does not mind, and spare by how much
	// (route.Choice).
	before *cost.Rank
	spare  int

	ticket    *ticket // its way to the next engine; nil: it has one, or does not ask yet
	place     int64   // among those that wait; 0: it has none yet
	dueBy     int64   // when it is to have its turn among those of its tenant, if it has a place
	expiresAt int64   // when it waits no longer for an engine that has room
}

// queue is stage 5: it waits, bounded, until an engine can take the request. One must be
// ready, or be worth waiting for: it starts, or has left only a moment ago. And one must have
// room; those that came before are given theirs first.
func (x *exchange) queue() error {
	if x.ticket == nil { // otherwise it waits already
		x.rec.Publishing() // of another attempt, too
		now := x.rec.Enter(trace.Queue)
		if x.rec.Queued == 0 || !x.response.Begun {
			x.rec.Queued = now
		}
		if x.expiresAt == 0 {
			x.expiresAt = x.g.held.expires(now, x.to.BeginBy)
		}
		if err := x.undivided(&x.prepared, x.rec.Endpoint); err != nil {
			return err
		}
		x.ticket = x.g.held.ticket(x)
	}
	return x.ticket.wait()
}

// absent returns the time that a request, which began to wait at patience, waits for an
// engine if there is none: until another engine can be expected, or, if it has waited for
// the existing engines before, until these accept requests again.
func (r *routing) absent(now, patience int64, waits bool) (left time.Duration, err error) {
	if len(r.tried) > 0 {
		return 0, r.noEngine(now) // the ones there are have failed; do not wait for them
	}
	if rest := r.to.Model.Rests(r.to.Needs, r.tried, now); rest > 0 && waits {
		return rest, nil
	}
	if left = r.worthwhile(now, patience); left <= 0 {
		return 0, r.noEngine(now)
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
func (r *routing) worthwhile(now, patience int64) time.Duration {
	if r.to.Model.Rests(r.to.Needs, r.tried, now) > 0 {
		return 0 // those are busy, and say for how long
	}
	until := now
	if !r.to.Model.Settled {
		until = patience
	}
	if r.to.Model.Left != 0 {
		until = max(until, r.to.Model.Left+int64(departure))
	}
	return time.Duration(until - now)
}

// refresh takes the fleet as it is now.
func (x *exchange) refresh() (err error) {
	x.to.Fleet = x.g.opts.Snapshot()
	model, err := prepare.LookUp(x.to.Fleet, x.prepared.Head.Model, x.caller)
	if model != nil { // otherwise the request keeps the model that it began with
		x.to.Model = model
	}
	if err != nil {
		return err
	}
	if err := x.g.preparer.CheckPath(x.to.Model, x.endpoint, x.rec.Endpoint); err != nil {
		return err
	}
	if x.misfits() {
		return errMisfit
	}
	return nil
}

// errMisfit ends the wait of a request if no engine accepts the form in which it was prepared
// and some accept another one.
var errMisfit = infer.Errorf(infer.CodeUnavailable, "the engines of the model take requests in another form than before; try again")

// mostAnew bounds how often a request is prepared again.
const mostAnew = 3

// misfits reports whether the request lacks the form that the engines of its model need,
// because the engines have changed since it was prepared.
func (x *exchange) misfits() bool {
	if x.to.Needs.HasIDs() && x.to.Needs.HasBytes() || x.to.NoIDs != nil || x.prepared.Body == nil || x.anew == mostAnew || x.to.Model.Has(x.to.Needs, x.tried) {
		return false
	}
	could := x.g.preparer.Forms(x.to.Model, x.endpoint)
	if x.to.Needs.HasIDs() {
		could.IDs = infer.AnotherForm
	} else {
		could.Bytes = infer.AnotherForm
	}
	return x.to.Model.Has(could, x.tried)
}

// prepareAgain prepares a request that has waited for the engines that there are now. It keeps
// its place among those that wait.
func (x *exchange) prepareAgain() (done bool, err error) {
	if x.ticket != nil {
		x.g.held.drop(x.ticket)
	}
	x.prepared.Reservation.Leave()
	x.anew++
	body := x.prepared.Body
	x.prepared = prepare.Prepared{}
	return x.prepare(body)
}

// need is what a request needs of the fleet.
func (r *routing) need(q *prepare.Prepared) place.Need {
	return place.Need{
		Model: r.to.Model, Index: r.to.Fleet.Index, Needs: r.to.Needs, Tried: r.tried,
		Footprint: &q.Footprint, Session: q.Session, Sent: q.Sent, Before: r.before, Spare: r.spare,
	}
}

// elsewhere reports whether there is another target to go to.
func (r *routing) elsewhere(failed route.Target) bool {
	return r.to.Model.Has(r.to.Needs, append(r.tried[:len(r.tried):len(r.tried)], failed))
}

func (r *routing) noEngine(now int64) error {
	if rest := r.to.Model.Rests(r.to.Needs, nil, now); rest > 0 {
		e := infer.Errorf(infer.CodeOverloaded, "the engines of model %q have asked for a pause; try again in %v", r.to.Model.Name, rest.Round(100*time.Millisecond))
		e.RetryAfter, e.Reason = rest, "engines_paused"
		return e
	}
	what := "engine"
	if len(r.tried) > 0 {
		what = "other engine"
	}
	e := infer.Errorf(infer.CodeUnavailable, "no %s for model %q is ready", what, r.to.Model.Name)
	if r.to.Model.Has(route.Needs{}, r.tried) {
		e.Message += r.lacking()
	}
	if missing := r.to.Model.Missing(r.to.Needs, r.tried); missing != "" {
		e.Message += ": " + missing
	}
	if len(r.tried) > 0 {
		e.Engine = r.tried[len(r.tried)-1].Name
	}
	e.RetryAfter, e.Reason = r.back(), "no_engine"
	return e
}

// lacking returns what of the request the engines do not carry that are there.
func (r *routing) lacking() (what string) {
	if r.to.NoIDs != nil {
		return " that is relayed, which the request needs: others cannot be given it (" + r.to.NoIDs.Message + ")"
	}
	if needs := r.to.Needs.String(); needs != "" {
		return " that carries " + needs + ", which the request needs"
	}
	return " that takes the request in the form in which it was prepared"
}

// undivided sends a request that cannot be divided to engines that serve it whole, and
// refuses it if there is none.
func (r *routing) undivided(q *prepare.Prepared, path string) error {
	if r.to.Model.Way == engine.Nowhere || !r.to.Needs.HasBytes() {
		return nil
	}
	field, why := indivisible(q, r.to.Model.Way, path)
	if why == "" {
		return nil
	}
	if r.to.Needs.Bytes |= infer.Undivided; r.to.Model.Whole || r.to.Needs.HasIDs() {
		return nil
	}
	return &infer.Error{Code: infer.CodeUnsupported, Param: field,
		Message: fmt.Sprintf("the engines of model %q serve requests in two halves, and this one has none: %s", r.to.Model.Name, why)}
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
func (r *routing) back() time.Duration {
	back := r.to.Model.Back(r.to.Needs, nil)
	if r.to.Model.Awaited && (back == 0 || back > newLook) {
		back = newLook
	}
	return min(max(back, time.Second), maxBack)
}
