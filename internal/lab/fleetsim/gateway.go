package fleetsim

import (
	"fmt"
	"strconv"
	"strings"

	engineapi "weir/internal/engine"
	"weir/internal/fleet/balance"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/health"
	"weir/internal/fleet/kvindex"
	"weir/internal/fleet/peers"
	"weir/internal/fleet/route"
	"weir/internal/gateway/place"
	"weir/internal/gateway/stream"
	"weir/internal/infer"
	"weir/internal/sim"
)

// gateway is one of the gateways in front of the fleet: its books, its index, its policy.
type gateway struct {
	run      *run
	cost     *cost.Model
	index    *kvindex.Index
	fleet    *route.Snapshot
	lengths  cost.Lengths
	transfer cost.Transfer
	books    []*route.Books
	shares   route.Shares
	rates    []rate // of the engines, for references
	// model holds the engines that are up, as a gateway sees them; at maps them to the
	// fleet's engines.
	model  *route.Model
	at     map[*cost.Rank]int
	policy [2]balance.Policy // for those that serve callers, and for those that compute prompts
	choice *route.Choice     // the latest
	asking *request          // that is chosen for
	line   *place.Line       // of those that wait
	woken  []*request        // whose wait is over, or may be
	wake   int64             // when the line is looked at again; 0: at no time
	tally  place.Tally
	// untold are placements that its peers do not know yet.
	untold []placement
}

// placement is a prompt that was given to an engine.
type placement struct {
	engine int
	blocks []kvindex.Block
	ready  int64
}

// leg is an engine's part of a request: all of it, or one of its halves.
type leg struct {
	of      *request
	kind    sim.Leg
	engine  int
	life    int // of the engine
	books   *route.Books
	booking place.Booking
	fresh   int // tokens of the prompt to compute or to fetch, as predicted

	there bool // the engine has it
	ref   sim.Ref
	begun bool // it has its first token
	told  *sim.First
	ends  bool
}

// chooser gives the place of a request's engine among candidates, and notes it in the
// decision.
type chooser interface {
	pick(g *gateway, q *balance.Request, candidates []balance.Candidate, d *balance.Decision) int
}

// outside is a policy that no gateway has, as a route.Model takes one.
type outside struct {
	name string
	chooser
	g *gateway
}

// Name implements balance.Policy.
func (p *outside) Name() string { return p.name }

// Pick implements balance.Policy.
func (p *outside) Pick(q *balance.Request, candidates []balance.Candidate, d *balance.Decision) int {
	return p.pick(p.g, q, candidates, d)
}

// indexBytes bounds a gateway's index.
const indexBytes = 1 << 30

func newGateway(r *run, policy string) (*gateway, error) {
	policy, queued := strings.CutSuffix(policy, Queued)
	g := &gateway{run: r, cost: cost.NewModel(cost.Typical), index: kvindex.New(indexBytes)}
	g.books = make([]*route.Books, len(r.engines))
	g.rates = make([]rate, len(r.engines))
	g.line = place.NewLine(place.Queueing{Off: !queued}, false, func() *route.Snapshot { return g.fleet }, g, r.random.Uint64)
	for side := range g.policy {
		var err error
		if g.policy[side], err = newPolicy(policy, g); err != nil {
			return nil, err
		}
	}
	g.refresh()
	for i, e := range r.engines {
		if e.up {
			g.join(i)
		}
	}
	return g, nil
}

// join adds an engine in a new life.
func (g *gateway) join(i int) {
	e := g.run.engines[i]
	says := engineapi.Facts{KVTokens: e.o.KVTokens, StepTokens: e.o.StepTokens, Forgets: e.o.KVTokens == 0}
	if g.run.o.Unsaid {
		says.KVTokens = 0
	}
	m := g.cost
	if e.role == infer.RolePrefill {
		m = m.Prefills()
	}
	b := route.NewBooks(m, g.index, &g.shares, &says, g.run.now)
	b.Rank.SetLimits(g.run.limits(e))
	if g.run.o.Gateways > 1 && g.run.o.Age < peers.ForgetAfter {
		b.Share(func(blocks []kvindex.Block, ready int64) {
			if b == g.books[i] { // the engine is in the same life
				g.placed(placement{i, blocks, ready})
			}
		})
	}
	g.books[i] = b
	g.rates[i] = rate{}
	g.refresh()
}

// leave forgets an engine.
func (g *gateway) leave(i int) {
	g.books[i].Close()
	g.refresh()
}

// refresh makes the model anew of the engines that are up.
func (g *gateway) refresh() {
	g.model = &route.Model{Policy: g.policy[0], Prefill: g.policy[1], Lengths: &g.lengths, Transfer: &g.transfer, Way: g.run.o.Way, Settled: true}
	g.fleet = &route.Snapshot{Index: g.index, Models: map[string]*route.Model{g.model.Name: g.model}}
	g.at = map[*cost.Rank]int{}
	for i, e := range g.run.engines {
		b := g.books[i]
		if !e.up || b == nil {
			continue
		}
		// An engine that has joined again is another one.
		name := fmt.Sprintf("%d/%d", i+1, e.life)
		g.model.Add(route.Target{
			Engine: &route.Engine{Name: name, Ready: true, Role: e.role, Meets: engineapi.Meets{Way: g.run.o.Way, Whole: g.run.o.alone()}},
			Rank:   &route.Rank{Number: -1, Label: name, There: true, Books: b},
		})
		g.at[b.Rank] = i
	}
}

// enter books what an engine is to have of the request.
func (g *gateway) enter(r *request, t route.Target, chosen *balance.Option, kind sim.Leg) *leg {
	l := &leg{of: r, kind: kind, engine: g.at[t.Books.Rank], books: t.Books, fresh: chosen.Work.New}
	l.life = g.run.engines[l.engine].life
	output := 0.0
	if kind != sim.LegPrefill {
		output = g.choice.Request.Output
	}
	l.booking.Enter(t.Books, chosen, g.choice, g.run.now, &r.prompt.footprint, output)
	return l
}

// placed reports a placement to peers.
func (g *gateway) placed(p placement) {
	if g.run.o.Age == 0 {
		g.tell([]placement{p})
	} else {
		g.untold = append(g.untold, p)
	}
}

// tell has the peers hear of placements.
func (g *gateway) tell(all []placement) {
	for _, peer := range g.run.gateways {
		if peer == g {
			continue
		}
		for _, p := range all {
			if g.run.engines[p.engine].up {
				peer.books[p.engine].Cache.Place(p.blocks, p.ready)
			}
		}
	}
}

// exchange has every gateway hear of the others' books.
func (r *run) exchange() {
	for _, g := range r.gateways {
		g.tell(g.untold)
		clear(g.untold)
		g.untold = g.untold[:0]
	}
	for i, e := range r.engines {
		if !e.up {
			continue
		}
		told := make([]cost.Peers, len(r.gateways))
		for j, peer := range r.gateways {
			var entries []cost.Entry
			told[j], entries = peer.books[i].Rank.Tell(r.now)
			for _, g := range r.gateways {
				if g != peer {
					g.books[i].Rank.Hear(strconv.Itoa(j), entries)
				}
			}
		}
		for _, g := range r.gateways {
			all := cost.Peers{Drained: r.now}
			for j, peer := range r.gateways {
				if peer != g {
					p := told[j]
					all.Drained += p.Drained - r.now
					all.InFlight += p.InFlight
					all.Decoders += p.Decoders
					all.Held += p.Held
				}
			}
			g.books[i].Rank.SetPeers(all)
			g.books[i].Rank.Settle(r.now, r.now)
		}
	}
}

// takes takes a token of a request, with what its engine has told if it is the first one.
func (g *gateway) takes(l *leg, ids []uint32, first *sim.First) {
	now, r, cell := g.run.now, l.of, stream.Cell{IDs: ids, Received: g.run.now}
	switch {
	case first == nil:
	case r.fills != nil: // the KV of its prompt has come
		g.transfer.Add(l.fresh, float64(now-r.Answered)/1e6)
		g.closes(r.fills, health.Done)
	case g.run.o.Stamps:
		cell.Stamps, cell.CachedTokens, cell.CachedKnown = &first.Stamps, g.reported(l, first), true
	}
	l.booking.Took([]stream.Cell{cell}, &g.tally)
	if l.booking.Tell(&g.tally); first != nil && r.fills == nil {
		g.rated(l)
	}
}

// computed takes the end of a half that computes a prompt for another engine.
func (g *gateway) computed(l *leg, first *sim.First) {
	cached, began := -1, int64(0)
	if g.run.o.Stamps {
		cached, began = g.reported(l, first), first.Stamps.PrefillStart
	}
	l.booking.Computed(g.run.now, cached, began)
	l.booking.Tell(&g.tally)
	g.rated(l)
}

// reported is how many cached tokens of the prompt an engine reports.
func (g *gateway) reported(l *leg, first *sim.First) int {
	if lies := g.run.engines[l.engine].lies; lies != nil {
		return lies(first.Cached, l.of.Input)
	}
	return first.Cached
}

// rated has references know how fast an engine has computed a prompt.
func (g *gateway) rated(l *leg) {
	r := l.of
	if elapsed := float64(g.run.now-r.handed) / 1e6; elapsed > 0 {
		g.rates[l.engine].add(g.run.engines[l.engine].work(float64(l.fresh), float64(r.Input)) / elapsed)
	}
}

// closes ends what an engine has of a request, if it has anything.
func (g *gateway) closes(l *leg, how health.End) {
	g.tally.Tell()
	if books := l.booking.Close(g.run.now, how); books != nil {
		l.booking.Leave(books, how == health.Done)
	}
}

// over closes the bookings of a request that ends, or goes elsewhere. how is its end for the engine that
// generates, and fills that for the other one, if it has not ended before.
func (g *gateway) over(r *request, how, fills health.End) {
	computes := r.serves
	if r.fills != nil {
		computes = r.fills
		g.closes(r.fills, fills)
	}
	g.closes(r.serves, how)
	g.line.Settle(&r.charged, r.serves.booking.Charge(r.serves.books.Rank, how, infer.Usage{}, false))
	u := infer.Usage{PromptTokens: r.Input, CachedTokens: -1}
	if how == health.Done || r.fills != nil {
		u.CachedTokens = computes.booking.Cached()
	}
	computes.booking.Reported(computes.books, u)
}

// end takes a request's end.
func (g *gateway) end(r *request) {
	g.over(r, health.Done, health.Done)
	r.serves.booking.Learn(g.model, infer.Usage{}, false, 0)
}

// lost handles the end of a request of which one engine is lost.
func (g *gateway) lost(r *request, by *leg) {
	// It is known by its name and its books, although it has left the model.
	name := fmt.Sprintf("%d/%d", by.engine+1, by.life)
	r.need.Tried = append(r.need.Tried, route.Target{Engine: &route.Engine{Name: name}, Rank: &route.Rank{Number: -1, Books: by.books}})
	ends := [2]health.End{health.GaveUp, health.GaveUp}
	if by == r.serves {
		ends[0] = health.Cut
	} else {
		ends[1] = health.Cut
	}
	g.over(r, ends[0], ends[1])
}
