package fleetsim

import (
	"math"

	"weir/internal/fleet/balance"
	"weir/internal/fleet/cost"
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
	evicts  bool // what it evicts costs nobody anything
	later   bool // a prefill delays nobody who comes later
	few     bool // only two engines at random and the one with the most of the prompt are compared
}

// Ablations are all that there are.
func Ablations() []Ablation { return ablations }

var ablations = []Ablation{
	{Name: "cost-whole-output", What: "decoding counts for the whole expected output, not until the next request comes", whole: true},
	{Name: "cost-no-stall", What: "the delay of others by a prefill is left out", gone: true},
	{Name: "cost-stall-decoders", What: "it counts for those only that have their first token", started: true},
	{Name: "cost-no-later", What: "the delay by a prefill of those that come later is left out", later: true},
	{Name: "cost-no-ties", What: "the least cost, however little less", least: true},
	{Name: "cost-no-kv", What: "what a request evicts from the KV cache costs nothing, whoever will ask for it (kv_i)", evicts: true},
	{Name: "cost-kv-ties", What: "of what is alike the least share of KV in use, not the least to compute", kv: true},
	{Name: "cost-no-room", What: "the wait for room in the KV cache is left out", room: true},
	{Name: "cost-two-and-best", What: "the least cost of two engines at random and the one that has the most of the prompt", few: true},
}

// ablated is an ablation as a gateway has it.
type ablated struct {
	Ablation
	costs []float64
}

func (p *ablated) pick(g *gateway, q *balance.Request, candidates []balance.Candidate, d *balance.Decision) int {
	p.costs = p.costs[:0]
	fastest := math.Inf(1)
	for i := range candidates {
		total, step := p.total(q, &candidates[i])
		if tried(q, &candidates[i]) {
			total = math.Inf(1)
		}
		p.costs = append(p.costs, total)
		fastest = min(fastest, step)
	}
	if p.few {
		p.sample(g, q, candidates)
	}
	if p.least || p.kv {
		return p.choose(g, q, candidates, d)
	}
	return d.Settle(q, candidates, p.costs, fastest)
}

// sample leaves two candidates at random and the one with the fewest tokens to compute.
func (p *ablated) sample(g *gateway, q *balance.Request, candidates []balance.Candidate) {
	var open []int
	best, fewest := -1, math.MaxInt
	for i, total := range p.costs {
		if math.IsInf(total, 1) {
			continue
		}
		open = append(open, i)
		if n := q.Work(&candidates[i]).New; n < fewest {
			best, fewest = i, n
		}
	}
	for _, at := range g.run.random.Perm(len(open))[min(2, len(open)):] {
		if i := open[at]; i != best {
			p.costs[i] = math.Inf(1)
		}
	}
}

// total returns the cost of the request at the candidate.
func (p *ablated) total(q *balance.Request, at *balance.Candidate) (total, step float64) {
	w := q.Work(at)
	e := at.Rank.Estimate(q.Now, w)
	c, _ := at.Rank.Coefficients()
	others := c.Of(cost.Prefill(float64(w.New), float64(w.Length), float64(at.Rank.Budget())))
	k, later := float64(e.Decoders), at.Rank.Model().Moment(q.Now).Later
	switch {
	case p.gone:
		e.Total -= others * (k + later)
	case p.later:
		e.Total -= others*later + e.Evicts*later/(1+k+later)
	case p.room:
		e.Total -= e.Room
	case p.evicts:
		e.Total -= e.Evicts
	case p.started:
		e.Total -= others * float64(e.Decoders-int(at.Rank.Books(q.Now).Decoders))
	case p.whole:
		e.Total = e.Wait + e.Prefill + others*(k+later) + w.Output*(e.StepTime+c.Decoder*k) + e.Evicts
	}
	return e.Total, e.StepTime
}

// choose applies different rules of which costs are equal.
func (p *ablated) choose(g *gateway, q *balance.Request, candidates []balance.Candidate, d *balance.Decision) int {
	least, bound := math.Inf(1), 0.0
	for _, total := range p.costs {
		least = min(least, total)
	}
	if math.IsInf(least, 1) {
		return d.Note(q, candidates, -1, balance.NoneLeft)
	}
	if p.kv {
		bound = max(2, 0.05*least)
	}
	c := choice{g: g, q: q, candidates: candidates}
	for i := range candidates {
		c.open = append(c.open, i)
	}
	at := c.among(c.held, func(i int) bool { return p.costs[i] <= least+bound })
	return d.Note(q, candidates, at, balance.LeastCost)
}
