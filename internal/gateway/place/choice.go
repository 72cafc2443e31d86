package place

import (
	"weir/internal/fleet/balance"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/route"
	"weir/internal/gateway/footprint"
	"weir/internal/infer"
	"weir/internal/tenancy"
	"weir/internal/trace"
)

// Need is what a request needs of the fleet. It is the same from one attempt to the next, but for what
// became of them and of the fleet.
type Need struct {
	Fleet   *route.Snapshot // of a moment
	Model   *route.Model    // as the fleet has it
	Needs   route.Needs     // what an engine must carry
	NoIDs   *infer.Error    // why engines that take ids cannot be given it, where it is relayed for that
	BeginBy int64           // time by which the caller wants the answer to begin; 0: not given

	Tried []route.Target // by the attempts before
	Begun int32          // those of them in which the engine may have begun with it
	Anew  uint8          // how often it was prepared again
	// Before is where a continuation goes, if the policy does not mind, and Spare by how much
	// (route.Choice).
	Before *cost.Rank
	Spare  int

	Place   int64 // among those that wait; 0: it has none yet
	Due     int64 // when it is to have its turn among those of its tenant, if it has a place
	Expires int64 // when it waits no longer for an engine that has room
}

// Ask is what a request asks for. It does not change while the request waits.
type Ask struct {
	Caller    *tenancy.Caller // never nil
	Footprint *footprint.Footprint
	Session   uint64  // 0: none
	Sent      int     // ids of the answer, from attempts before
	Bytes     int64   // that it holds while it waits
	Patience  int64   // until when it waits for an engine that starts
	AtOnce    bool    // it takes nothing that others wait for
	ID        *string // for those who look on
}

// expected is how many tokens each answer is expected to have.
func (a *Ask) expected(m *route.Model) float64 { return a.Footprint.Expected(m.Lengths, a.Sent) }

// Pick chooses the engine for a request, and where it is served in two halves the partner's. random
// is a random number.
func (n *Need) Pick(a *Ask, c *route.Choice, now int64, random uint64) (target route.Target, partner *route.Target, ok bool) {
	q, f := &c.Request, a.Footprint
	q.Now, q.Length, q.BlockTokens, q.Session, q.Random = now, f.Length(), f.BlockTokens, a.Session, random
	q.Output = a.expected(n.Model) * float64(f.Answers())
	c.Unknown = len(f.Prompts[0].Blocks) == 0
	prompt := f.Prompt()
	n.Model.Match(n.Fleet.Index, c, &prompt, now)
	c.Before, c.Spare = n.Before, int64(n.Spare)
	return n.Model.Pick(n.Needs, n.Tried, c)
}

// Resident is how many tokens of the first prompt are not computed, by a choice.
func Resident(c *route.Choice) int {
	d := c.Decision.Choice()
	if d.Work.Part == cost.DecodePart {
		d = c.Prefill.Choice()
	}
	return c.Request.Length - d.Work.New
}

// Chosen returns the record of an attempt that begins with a choice among a model's engines.
func Chosen(c *route.Choice, m *route.Model) (a trace.Attempt) {
	a.Choice = decided(c, &c.Decision, m.Targets)
	if c.Decision.Choice().Work.Part == cost.DecodePart {
		first := decided(c, &c.Prefill, m.Prefills)
		a.Prefill = &first
	}
	a.Choice.Available, a.Choice.Unknown, a.Choice.Regret = max(int32(c.Available()), int32(a.Resident())), c.Unknown, float32(c.Regret)
	return a
}

// decided returns the record of a decision among some of the model's targets.
func decided(c *route.Choice, d *balance.Decision, among []route.Target) trace.Choice {
	out := trace.Choice{Why: d.Why.String(), Of: int32(d.Of), Length: int32(c.Request.Length), Cached: -1, Best: make([]trace.Option, d.N)}
	for i := range d.Best[:d.N] {
		o := &d.Best[i]
		if o.Index == d.Chosen {
			out.Chosen = int8(i)
		}
		out.Best[i] = trace.Option{
			Engine: among[o.Index].Label, Resident: int32(c.Request.Length - o.Work.New), Decoders: int32(o.Decoders), Cold: o.Cold, Half: o.Work.Part != cost.Whole,
			Wait: float32(o.Wait), Room: float32(o.Room), Prefill: float32(o.Prefill), Decode: float32(o.Decode), Others: float32(o.Others),
		}
	}
	return out
}
