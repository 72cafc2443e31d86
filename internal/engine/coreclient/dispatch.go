package coreclient

import (
	"fmt"

	"weir/internal/engine/mux"
	"weir/internal/infer"
)

// Dispatcher passes a session's deltas to their sinks. It belongs to the reader: its
// methods must not be called concurrently. Its Session initializes it.
type Dispatcher struct {
	mux.Dispatcher
	rank   int
	table  *Table
	out    *Outbox
	meters *Meters

	last   *Generation // of the output before
	strays []string
	offers int // of the message at hand
}

// Core returns d. It implements Wire for types that embed a Dispatcher.
func (d *Dispatcher) Core() *Dispatcher { return d }

// Find returns the generation of an output's request, or nil if it is unknown. An
// engine lists its running requests in the same order in every step, so the generation
// that followed last time is tried first, which costs one comparison.
func (d *Dispatcher) Find(id []byte) *Generation {
	var g *Generation
	d.At = nil
	if d.last != nil {
		if n := d.last.next; n != nil && n.ID == string(id) && !n.Gone() {
			g = n
		}
	}
	if g == nil {
		if g = d.table.get(id); g == nil {
			d.meters.Late.Add(1)
			return nil
		}
		if d.last != nil {
			d.last.next = g
		}
	}
	d.last, d.At = g, &g.Generation
	return g
}

// Stray requests the abort, at the end of the message, of a request that runs on the
// engine but has no generation here.
func (d *Dispatcher) Stray(id []byte) { d.strays = append(d.strays, string(id)) }

// EndMessage is called after the outputs of each message.
func (d *Dispatcher) EndMessage() {
	d.last, d.At = nil, nil
	if len(d.strays) > 0 {
		d.out.AbortStrays(d.strays)
		d.strays = nil
	}
}

// Offer offers the Delta. Its ids, log probabilities, stamps and finish must be set.
func (d *Dispatcher) Offer(g *Generation) {
	x := &d.Delta
	x.Attempt, x.Total = g.Attempt, g.Total
	d.offers++
	if x.CachedKnown = g.Total == len(x.IDs) && g.Cached >= 0; x.CachedKnown {
		x.CachedTokens = g.Cached
	}
	if !g.Generation.Offer(x) {
		d.meters.Late.Add(1)
	}
}

// offered returns how many streams the message had something for, which is over.
func (d *Dispatcher) offered() (n int) {
	n, d.offers = d.offers, 0
	return n
}

// Release records that the engine is done with a generation, correct or not. It is
// called before anyone can see that the generation ended.
func (d *Dispatcher) Release(g *Generation) { d.table.Release(g) }

// Late counts an output of a request for which nobody waits.
func (d *Dispatcher) Late() { d.meters.Late.Add(1) }

// Received counts a received message.
func (d *Dispatcher) Received(ids int) { d.meters.Frame(ids) }

// Aborted offers the terminal delta of an aborted generation, which the engine has
// dropped and will not mention again.
func (d *Dispatcher) Aborted(g *Generation, received int64) {
	d.table.Release(g)
	if g.Over() {
		return
	}
	d.Delta.Received = received
	d.Finish(g, &infer.Finish{Reason: infer.ReasonAbort, PromptTokens: g.Prompt, CachedTokens: g.Cached})
}

// Finish offers a terminal delta without ids.
func (d *Dispatcher) Finish(g *Generation, f *infer.Finish) { d.Dispatcher.Finish(&g.Generation, f) }

// Fail ends one generation with an integrity error.
func (d *Dispatcher) Fail(g *Generation, reason mux.FaultReason, detail string, part *mux.Part) {
	d.meters.Broken.Add(1)
	fault := d.Fault(reason, detail)
	fault.RequestID, fault.Part = g.ID, part
	err := d.Faulty(fault)
	g.abort() // nothing, if the engine is done with it
	if !g.Abandon(err) {
		d.End(&g.Generation, err)
	}
}

// close ends every generation of the session and gives the ids of their requests.
func (d *Dispatcher) close(err *infer.Error, now int64) (lost []string) {
	d.Delta.Received = now
	for _, g := range d.table.close() {
		lost = append(lost, g.ID)
		d.table.Release(g)
		d.Lose(&g.Generation, err)
	}
	return lost
}

// Fault returns an integrity fault of the session.
func (d *Dispatcher) Fault(reason mux.FaultReason, detail string) *mux.Fault {
	f := d.Dispatcher.Fault(reason, detail)
	f.Place = fmt.Sprintf("engine %d", d.rank)
	return f
}
