package fleetsim

import (
	"math"

	"weir/internal/balance"
	"weir/internal/cost"
	"weir/internal/kvindex"
)

// Ablation is cost with a term or a rule changed, to show what that brings.
type Ablation struct {
	Name, What string

	whole   bool // decoding counts for the whole expected output
	gone    bool // a prefill delays nobody
	started bool // nor those whose first token is still to come
	least   bool // nothing is alike
	kv      bool // of what is alike, the least share of KV in use comes first
	room    bool // nobody waits for room in the KV cache
	evicts  bool // what the prompt evicts counts, as far as it will be asked for again
}

// Ablations are all that there are.
func Ablations() []Ablation { return ablations }

var ablations = []Ablation{
	{Name: "cost-whole-output", What: "decoding counts for the whole expected output, not until the next request comes", whole: true},
	{Name: "cost-no-stall", What: "the delay of others by a prefill is left out", gone: true},
	{Name: "cost-stall-decoders", What: "it counts for those only that have their first token", started: true},
	{Name: "cost-no-ties", What: "the least cost, however little less", least: true},
	{Name: "cost-evicts", What: "what the prompt evicts counts too: its tokens x the time of a token x the share of evicted blocks that were asked for again (kv_i)", evicts: true},
	{Name: "cost-kv-ties", What: "of what is alike the least share of KV in use, not the least to compute", kv: true},
	{Name: "cost-no-room", What: "the wait for room in the KV cache is left out", room: true},
}

// ablated is an ablation as a gateway has it.
type ablated struct {
	Ablation
	costs []float64
	again again
}

// again says how much of what is evicted is asked for again, from what this gateway
// placed.
type again struct {
	placed         map[kvindex.Block]bool
	evicted, asked float64 // blocks, of which a part is forgotten with each eviction
}

// share is 0 while nothing was evicted.
func (a *again) share() float64 {
	if a.evicted < 1 {
		return 0
	}
	return min(a.asked/a.evicted, 1)
}

// remembered is the number of evicted blocks after which one counts for about a third.
const remembered = 100_000

// look takes a request before it is placed.
func (a *again) look(g *gateway, q *balance.Request, blocks []kvindex.Block) {
	if a.placed == nil {
		a.placed = map[kvindex.Block]bool{}
	}
	resident := 0
	for i := range g.candidates {
		resident = max(resident, int(q.Matches.Of(g.candidates[i].Cache).Soon))
	}
	for i, b := range blocks {
		if i >= resident && a.placed[b] {
			a.asked++
		}
		a.placed[b] = true
	}
}

// evicts is how many blocks have to go from the candidate's cache for so many new
// tokens.
func evicts(g *gateway, at, fresh, blockTokens int) float64 {
	e := g.run.engines[g.up[at]]
	free := int64(e.o.KVTokens/e.o.PageSize) - g.caches[g.up[at]].Used()
	return max(float64(fresh)/float64(blockTokens)-float64(free), 0)
}

func (p *ablated) pick(g *gateway, q *balance.Request, r *request) int {
	p.costs = p.costs[:0]
	if p.evicts {
		p.again.look(g, q, r.prompt.blocks)
	}
	fastest := math.Inf(1)
	for i := range g.candidates {
		total, step := p.total(q, &g.candidates[i])
		if g.tried(q, i) {
			total = math.Inf(1)
		}
		if p.evicts {
			w := q.Work(&g.candidates[i])
			c, _ := g.candidates[i].Rank.Coefficients()
			total += evicts(g, i, w.New, q.BlockTokens) * float64(q.BlockTokens) * c.Token * p.again.share()
		}
		p.costs = append(p.costs, total)
		fastest = min(fastest, step)
	}
	if p.evicts {
		at := g.decision.Settle(q, g.candidates, p.costs, fastest)
		if at >= 0 {
			gone := evicts(g, at, g.decision.Choice().Work.New, q.BlockTokens)
			keep := math.Exp(-gone / remembered)
			p.again.evicted, p.again.asked = keep*p.again.evicted+gone, keep*p.again.asked
		}
		return at
	}
	if p.least || p.kv {
		return p.choose(g, q)
	}
	return g.decision.Settle(q, g.candidates, p.costs, fastest)
}

// total is what the request costs at the candidate.
func (p *ablated) total(q *balance.Request, at *balance.Candidate) (total, step float64) {
	w := q.Work(at)
	e := at.Rank.Estimate(q.Now, w)
	c, _ := at.Rank.Coefficients()
	others := c.Of(cost.Prefill(float64(w.New), float64(w.Length), float64(at.Rank.Budget())))
	switch {
	case p.gone:
		e.Total -= others * float64(e.Decoders)
	case p.room:
		e.Total -= e.Room
	case p.started:
		e.Total -= others * float64(e.Decoders-int(at.Rank.Books(q.Now).Decoders))
	case p.whole:
		k := float64(e.Decoders)
		e.Total = e.Wait + e.Prefill + others*k + w.Output*(e.StepTime+c.Decoder*k)
	}
	return e.Total, e.StepTime
}

// choose has other rules of what is alike.
func (p *ablated) choose(g *gateway, q *balance.Request) int {
	least, bound := math.Inf(1), 0.0
	for _, total := range p.costs {
		least = min(least, total)
	}
	if math.IsInf(least, 1) {
		return g.decision.Note(q, g.candidates, -1, balance.NoneLeft)
	}
	if p.kv {
		bound = max(2, 0.05*least)
	}
	c := choice{g: g, q: q}
	for i := range g.candidates {
		c.open = append(c.open, i)
	}
	at := c.among(c.held, func(i int) bool { return p.costs[i] <= least+bound })
	return g.decision.Note(q, g.candidates, at, balance.LeastCost)
}
