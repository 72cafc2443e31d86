package fleetsim

import (
	"fmt"
	"slices"
	"strconv"

	engineapi "weir/internal/engine"
	"weir/internal/fleet/balance"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/kvindex"
	"weir/internal/fleet/peers"
	"weir/internal/fleet/route"
	"weir/internal/infer"
	"weir/internal/sim"
)

// gateway is one of the gateways in front of the fleet: its books, its index, its policy.
type gateway struct {
	run      *run
	cost     *cost.Model
	index    *kvindex.Index
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
	choice route.Choice
	asking *request // that is chosen for
	held   *holding // nil: nothing waits
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
	booking *cost.Booking
	work    cost.Work
	ready   int64 // when its part is predicted to have its first token
	had     kvindex.Had
	held    []kvindex.Block

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
	g := &gateway{run: r, cost: cost.NewModel(cost.Typical), index: kvindex.New(indexBytes)}
	g.books = make([]*route.Books, len(r.engines))
	g.rates = make([]rate, len(r.engines))
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
	says := engineapi.Facts{KVTokens: e.o.KVTokens, StepTokens: e.o.StepTokens}
	if g.run.o.Unsaid {
		says.KVTokens = 0
	}
	m := g.cost
	if e.role == infer.RolePrefill {
		m = m.Prefills()
	}
	g.books[i] = route.NewBooks(m, g.index, &g.shares, &says, g.run.now)
	g.books[i].SizeBlocks(e.o.PageSize)
	g.books[i].Rank.SetLimits(g.run.limits(e))
	if g.run.o.Gateways > 1 && g.run.o.Age < peers.ForgetAfter {
		g.books[i].Rank.Share()
	}
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

// refresh makes the model anew of the engines that are up.
func (g *gateway) refresh() {
	g.model = &route.Model{Policy: g.policy[0], Prefill: g.policy[1], Lengths: &g.lengths, Transfer: &g.transfer, Way: g.run.o.Way}
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

// pick chooses an engine for the request, or two for its halves.
func (g *gateway) pick(r *request, queued, roomy bool) (target route.Target, partner *route.Target, ok bool) {
	now, c := g.run.now, &g.choice
	q := &c.Request
	*q = balance.Request{
		Now: now, Length: r.prompt.input, Output: g.lengths.Expect(0, g.run.o.Engine.ContextLength),
		Session: r.session, Matches: g.index.Match(q.Matches, r.prompt.blocks, now), BlockTokens: g.run.o.Engine.PageSize,
		Random: g.run.random.Uint64(), Tried: q.Tried[:0],
	}
	if g.run.o.Engine.KVTokens == 0 {
		q.Matches = nil // nothing is kept
	}
	c.Roomy = false
	if queued {
		q.Answers, q.Claims, q.First = 1, g.held.Len() > 0, r.ticket.First()
		c.Roomy = roomy || !g.held.patient
	}
	g.asking = r
	return g.model.Pick(route.Needs{}, r.tried, c)
}

// book books the request at the engine that was chosen last, or at both.
func (g *gateway) book(r *request, target route.Target, partner *route.Target) {
	r.gateway, r.handed = g, g.run.now
	kind := sim.Whole
	if partner != nil {
		kind = sim.LegDecode
	}
	r.serves, r.fills = g.enter(r, target, g.choice.Decision.Choice(), kind), nil
	if partner != nil {
		r.fills = g.enter(r, *partner, g.choice.Prefill.Choice(), sim.LegPrefill)
	}
}

// enter books what an engine is to have of the request.
func (g *gateway) enter(r *request, t route.Target, choice *balance.Option, kind sim.Leg) *leg {
	now := g.run.now
	l := &leg{of: r, kind: kind, engine: g.at[t.Books.Rank], books: t.Books, work: choice.Work, ready: now + int64(choice.TTFT()*1e6)}
	l.life = g.run.engines[l.engine].life
	l.booking = t.Books.Rank.Book(now, l.work)
	l.had = g.place(placement{l.engine, r.prompt.blocks, l.ready})
	l.held = t.Books.Hold(nil, r.prompt.blocks)
	return l
}

// place records a placement and reports it to peers.
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

// first takes the first token of a request.
func (g *gateway) first(r *request, f *sim.First) {
	if r.fills == nil {
		g.computed(r.serves, f)
		return
	}
	// The KV of its prompt has come.
	g.transfer.Add(r.serves.work.New, float64(g.run.now-r.Answered)/1e6)
	r.fills.booking.End(g.run.now, 0)
	r.fills.books.Release(r.fills.held)
	g.place(placement{r.fills.engine, r.prompt.blocks, 0})
	r.serves.booking.First(g.run.now, -1, 0)
	g.place(placement{r.serves.engine, r.prompt.blocks, 0})
}

// computed takes the first token of the engine that has computed the prompt.
func (g *gateway) computed(l *leg, f *sim.First) {
	r := l.of
	began, cached := int64(0), -1
	if g.run.o.Stamps {
		began, cached = f.Stamps.PrefillStart, f.Cached
		if lies := g.run.engines[l.engine].lies; lies != nil {
			cached = lies(cached, r.Input)
		}
		l.books.Reported(l.had, r.Input, cached)
	}
	l.booking.First(g.run.now, cached, began)
	if elapsed := float64(g.run.now-r.handed) / 1e6; elapsed > 0 {
		g.rates[l.engine].add(g.run.engines[l.engine].work(float64(l.work.New), float64(r.Input)) / elapsed)
	}
	g.place(placement{l.engine, r.prompt.blocks, 0})
}

// end takes a request's end.
func (g *gateway) end(r *request) {
	g.settle(r, max(r.Input-r.Cached, 1))
	r.serves.booking.End(g.run.now, r.generated)
	r.serves.books.Release(r.serves.held)
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
	g.place(placement{r.serves.engine, kvindex.AppendChain(blocks, last, ids, size), 0})
}

// lost handles the end of a request of which one engine is lost.
func (g *gateway) lost(r *request, by *leg) {
	g.settle(r, 0)
	r.serves.booking.End(g.run.now, r.generated)
	r.serves.books.Release(r.serves.held)
	if f := r.fills; f != nil && r.First == 0 {
		f.booking.End(g.run.now, 0)
		f.books.Release(f.held)
	}
	// It is known by its name and its books, although it has left the model.
	name := fmt.Sprintf("%d/%d", by.engine+1, by.life)
	r.tried = append(r.tried, route.Target{Engine: &route.Engine{Name: name}, Rank: &route.Rank{Number: -1, Books: by.books}})
}
