package fleetsim

import (
	"slices"

	"weir/internal/balance"
	"weir/internal/cost"
	engineapi "weir/internal/engine"
	"weir/internal/kvindex"
	"weir/internal/route"
	"weir/internal/sim"
)

// gateway is one of those in front of the fleet: its books, its index, its policy.
type gateway struct {
	run        *run
	model      *cost.Model
	index      *kvindex.Index
	lengths    cost.Lengths
	books      []*route.Books
	shares     route.Shares
	rates      []rate              // of the engines, for references
	up         []int               // the engines among candidates, by place there
	candidates []balance.Candidate // those that are up
	policy     chooser
	matches    kvindex.Matches
	decision   balance.Decision
	query      balance.Request
	held       *holding // nil: nothing waits
	// untold is what its peers have not heard of.
	untold []placement
}

// placement is a prompt that was given to an engine.
type placement struct {
	engine int
	blocks []kvindex.Block
	ready  int64
}

// chooser gives the place of a request's engine among the gateway's candidates, and
// notes it in the gateway's decision.
type chooser interface {
	pick(g *gateway, q *balance.Request, r *request) int
}

// real is a policy as a gateway has it.
type real struct{ balance.Policy }

func (p real) pick(g *gateway, q *balance.Request, _ *request) int {
	return p.Pick(q, g.candidates, &g.decision)
}

// indexBytes bounds a gateway's index.
const indexBytes = 1 << 30

func newGateway(r *run) *gateway {
	g := &gateway{run: r, model: cost.NewModel(cost.Typical), index: kvindex.New(indexBytes)}
	g.books = make([]*route.Books, len(r.engines))
	g.rates = make([]rate, len(r.engines))
	for i, e := range r.engines {
		if e.up {
			g.join(i)
		}
	}
	return g
}

// join adds an engine in a new life.
func (g *gateway) join(i int) {
	e := g.run.engines[i]
	says := engineapi.Facts{KVTokens: e.o.KVTokens, StepTokens: e.o.StepTokens}
	if g.run.o.Unsaid {
		says.KVTokens = 0
	}
	g.books[i] = route.NewBooks(g.model, g.index, &g.shares, &says, g.run.now)
	g.books[i].SizeBlocks(e.o.PageSize)
	g.books[i].Rank.SetLimits(g.run.limits(e))
	g.rates[i] = rate{}
	g.refresh()
}

// leave forgets an engine.
func (g *gateway) leave(i int) {
	g.books[i].Close()
	g.refresh()
	if g.held != nil {
		g.held.Changed(g.run.now)
	}
}

func (g *gateway) refresh() {
	g.up, g.candidates = g.up[:0], g.candidates[:0]
	for i, e := range g.run.engines {
		if b := g.books[i]; e.up && b != nil {
			g.up = append(g.up, i)
			g.candidates = append(g.candidates, balance.Candidate{Rank: b.Rank, Cache: b.Cache.ID, KV: b.KV()})
		}
	}
}

// pick chooses an engine for the request and gives its place among the candidates; -1 where
// there is none.
func (g *gateway) pick(r *request, queued bool) int {
	now := g.run.now
	g.matches = g.index.Match(g.matches, r.prompt.blocks, now)
	q := &g.query
	*q = balance.Request{
		Now: now, Length: r.prompt.input, Output: g.lengths.Expect(0, g.run.o.Engine.ContextLength),
		Session: r.session, Matches: g.matches, BlockTokens: g.run.o.Engine.PageSize,
		Tried: r.tried, Random: g.run.random.Uint64(),
	}
	if g.run.o.Engine.KVTokens == 0 {
		q.Matches = nil // nothing is kept
	}
	if !queued {
		return g.policy.pick(g, q, r)
	}
	q.Answers, q.Claims, q.First = 1, g.held.Len() > 0, r.ticket.First()
	if g.held.patient {
		return g.policy.pick(g, q, r)
	}
	return g.roomy(func() int { return g.policy.pick(g, q, r) })
}

// book books the request at the candidate that was chosen last, and says which engine it is.
func (g *gateway) book(r *request, at int) int {
	now := g.run.now
	choice := g.decision.Choice()
	i := g.up[at]
	r.gateway, r.work = g, choice.Work
	r.ready = now + int64(choice.TTFT()*1e6)
	r.booking, r.handed = g.books[i].Rank.Book(now, r.work), now
	r.had = g.place(placement{i, r.prompt.blocks, r.ready})
	r.books, r.held = g.books[i], g.books[i].Hold(r.held[:0], r.prompt.blocks)
	return i
}

// place notes a placement, and has peers hear of it.
func (g *gateway) place(p placement) (had kvindex.Had) {
	had = g.books[p.engine].Place(p.blocks, p.ready)
	switch {
	case len(g.run.gateways) == 1:
	case g.run.o.Age == 0:
		g.tell([]placement{p})
	default:
		g.untold = append(g.untold, p)
	}
	return had
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
		for _, g := range r.gateways {
			all := cost.Peers{Drained: r.now}
			for _, peer := range r.gateways {
				if peer != g {
					p := peer.books[i].Rank.Books(r.now)
					all.Drained += p.Drained - r.now
					all.InFlight += p.InFlight
					all.Decoders += p.Decoders
					all.Held += p.Held
				}
			}
			g.books[i].Rank.SetPeers(all)
		}
	}
}

// first takes a request's first token.
func (g *gateway) first(r *request, f *sim.First) {
	began, cached := int64(0), -1
	if g.run.o.Stamps {
		began, cached = f.Stamps.PrefillStart, f.Cached
		if lies := g.run.engines[r.engine].lies; lies != nil {
			cached = lies(cached, r.Input)
		}
		r.books.Reported(r.had, r.Input, cached)
	}
	r.booking.First(g.run.now, cached, began)
	if elapsed := float64(g.run.now-r.handed) / 1e6; elapsed > 0 {
		g.rates[r.engine].add(g.run.engines[r.engine].work(float64(r.work.New), float64(r.Input)) / elapsed)
	}
	g.place(placement{r.engine, r.prompt.blocks, 0})
}

// end takes a request's end.
func (g *gateway) end(r *request) {
	r.booking.End(g.run.now, r.generated)
	r.books.Release(r.held)
	g.lengths.Add(r.generated)
	size := g.run.o.Engine.PageSize
	// The last id is never computed.
	n := len(r.prompt.tail) + len(r.answer) - 1
	last := root
	if b := r.prompt.blocks; len(b) > 0 {
		last = b[len(b)-1]
	}
	ids := append(slices.Clone(r.prompt.tail), r.answer[:len(r.answer)-1]...)
	blocks := append(make([]kvindex.Block, 0, len(r.prompt.blocks)+n/size), r.prompt.blocks...)
	g.place(placement{r.engine, kvindex.AppendChain(blocks, last, ids, size), 0})
}

// lost takes the end of a request's engine.
func (g *gateway) lost(r *request) {
	r.booking.End(g.run.now, r.generated)
	r.books.Release(r.held)
	r.tried = append(r.tried, r.books.Rank)
}
