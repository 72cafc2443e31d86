package fleetsim

import (
	"math"
	"slices"
	"strings"

	"weir/internal/fleet/balance"
	"weir/internal/sim"
)

// view is what an engine has reported, and what it was given since.
type view struct {
	load  sim.Load
	loads []sim.Load
	since int // prompt tokens given since the report
}

func (v *view) look(e *engine, _ int64) {
	v.loads = e.core.Loads(v.loads[:0])
	v.load, v.since = v.loads[0], 0
}

func (v *view) given(q *request) { v.since += q.Input }

// Reference is the published policy of another gateway, for comparison. It has the same
// index and books, and its publisher's defaults; if there are none, the name states what
// was set.
type Reference struct {
	Name string
	// The policy's formula, its settings, and where they are published.
	Formula, Settings, Source string
	choose                    func(c *choice) int
}

// References are all that there are.
func References() []Reference { return references }

var references = []Reference{
	{
		"smg-cache-aware", "the engine with the longest match, if it is more than cache_threshold of the prompt, else the one with the least in its tree; if that one's load exceeds balance_rel_threshold times the mean and balance_abs_threshold beyond it, the least load",
		"cache_threshold 0.3, balance_rel_threshold 1.5, balance_abs_threshold 64", "SGLang Model Gateway (smg), cache_aware",
		func(c *choice) int {
			best := c.least(func(i int) float64 { return -float64(c.matched(i)) })
			if float64(c.matched(best)) <= 0.3*float64(c.q.Length) {
				best = c.least(func(i int) float64 { return float64(c.g.books[c.number(i)].Cache.Used()) })
			}
			mean := c.mean(c.requests)
			if load := c.requests(best); load > 1.5*mean && load > mean+64 {
				return c.least(c.requests)
			}
			return best
		},
	},
	{
		"smg-least-load", "(queued tokens as reported + prompt tokens given since) / throughput + 0.15 k/(1 - k), k the share of KV in use",
		"weight of KV 0.15; throughput: the engine's own prefill rate", "SGLang Model Gateway (smg), least_load",
		func(c *choice) int {
			return c.least(func(i int) float64 {
				v, e := c.view(i), c.engine(i)
				k := 0.0
				if v.load.KVTotal > 0 {
					k = min(float64(v.load.KVUsed)/float64(v.load.KVTotal), 0.999)
				}
				rate := 1e3 / e.now().Token
				return float64(v.load.QueuedTokens+v.since)/rate + 0.15*k/(1-k)
			})
		},
	},
	{"dynamo", dynamoFormula, "credit 1, scale 1, w 0, temperature 0", dynamoSource, func(c *choice) int { return c.dynamo(1, 1, 0) }},
	{"dynamo-agentic", dynamoFormula, "credit 2, scale 4, w 64, temperature 0", dynamoSource, func(c *choice) int { return c.dynamo(2, 4, 64) }},
	{"dynamo-load-aware", dynamoFormula, "credit 0, scale 1, w 0, temperature 0", dynamoSource, func(c *choice) int { return c.dynamo(0, 1, 0) }},
	{
		"lmetric", "new prefill tokens x batch size", "none", "LMetric (OSDI '26)",
		func(c *choice) int { return c.least(func(i int) float64 { return c.fresh(i) * c.requests(i) }) },
	},
	{
		"llm-d", "of the engines that have 0.80 of the prompt (all where none has) the one with the least uncached tokens in flight; of all, where that one's TTFT exceeds the best other's by 18 s, TTFT = uncached tokens in flight / 15,928 per s",
		"threshold 0.80, margin 18 s, rate 15,928 tokens/s", "llm-d inference scheduler, prefix-cache affinity with load gate",
		func(c *choice) int {
			sticky := c.among(c.pending, func(i int) bool { return c.matched(i) >= 0.8*float64(c.q.Length) })
			all := c.least(c.pending)
			if sticky < 0 || (c.pending(sticky)-c.pending(all))/15928 > 18 {
				return all
			}
			return sticky
		},
	},
	{"smetric-0.1s", smetricFormula, "slack 0.1 s; " + smetricSettings, smetricSource, func(c *choice) int { return c.smetric(100) }},
	{"smetric-1s", smetricFormula, "slack 1 s; " + smetricSettings, smetricSource, func(c *choice) int { return c.smetric(1000) }},
	{"smetric-10s", smetricFormula, "slack 10 s; " + smetricSettings, smetricSource, func(c *choice) int { return c.smetric(10_000) }},
	{
		"aibrix", "where the most running requests exceed the fewest by more than 16, the fewest; else the longest match among engines with running <= mean + 2 sigma",
		"imbalance 16, sigma 2", "AIBrix, prefix-cache routing",
		func(c *choice) int {
			most, fewest := c.least(func(i int) float64 { return -c.requests(i) }), c.least(c.requests)
			if c.requests(most)-c.requests(fewest) > 16 {
				return fewest
			}
			mean := c.mean(c.requests)
			sigma := math.Sqrt(c.mean(func(i int) float64 { return (c.requests(i) - mean) * (c.requests(i) - mean) }))
			best := c.among(func(i int) float64 { return -c.matched(i) }, func(i int) bool { return c.requests(i) <= mean+2*sigma })
			if best < 0 || c.matched(best) == 0 {
				return fewest
			}
			return best
		},
	},
	{
		"production-stack", "matched/prompt - (load - mean)/max(1, mean)", "none", "vLLM production-stack",
		func(c *choice) int {
			mean := c.mean(c.requests)
			return c.least(func(i int) float64 {
				return (c.requests(i)-mean)/max(1, mean) - c.matched(i)/float64(c.q.Length)
			})
		},
	},
	{
		"least-reported", "the fewest requests running and waiting, as reported", "none", "a scraped metric, as in many gateways",
		func(c *choice) int {
			return c.least(func(i int) float64 { v := c.view(i); return float64(v.load.Running + v.load.Waiting) })
		},
	},
	{
		"consistent-hash", "the highest of the hashes of session and engine; requests without a session as they come", "none", "rendezvous hashing, as in many gateways",
		func(c *choice) int {
			return c.least(func(i int) float64 { return float64(mix(c.q.Session*0x9e3779b97f4a7c15 + uint64(c.number(i)))) })
		},
	},
}

const (
	dynamoFormula  = "scale x max(prefill blocks - credit x matched blocks, 0) + decode blocks + w x active requests, blocks of all that is in flight there with this request"
	dynamoSource   = "NVIDIA Dynamo, KV router"
	smetricFormula = "(c_lin n + c_att n (L - n/2)) / rate; the engine with the longest match while its pending work exceeds the least by no more than slack, else the least (pending + cost) x load"
	// The default of slack is not known, so that three values stand for it.
	smetricSettings = "rate: p90 of the last 64 work/elapsed; coefficients: the engine's own"
	smetricSource   = "vllm-router, smetric"
)

// choice holds the inputs of a reference policy: its gateway's books and index, and
// reports.
type choice struct {
	g          *gateway
	q          *balance.Request
	candidates []balance.Candidate
	open       []int // the candidates that were not tried
}

// number is which of the fleet's engines the candidate is.
func (c *choice) number(i int) int       { return c.g.at[c.candidates[i].Rank] }
func (c *choice) view(i int) *view       { return &c.g.run.views[c.number(i)] }
func (c *choice) engine(i int) *engine   { return c.g.run.engines[c.number(i)] }
func (c *choice) requests(i int) float64 { return float64(c.candidates[i].Rank.InFlight()) }
func (c *choice) pending(i int) float64  { return float64(c.candidates[i].Rank.Pending()) }
func (c *choice) held(i int) float64     { return float64(c.candidates[i].Rank.Held()) }
func (c *choice) fresh(i int) float64    { return float64(c.q.Length) - c.matched(i) }
func (c *choice) mean(of func(int) float64) (sum float64) {
	for _, i := range c.open {
		sum += of(i) / float64(len(c.open))
	}
	return sum
}

// matched returns how many tokens of the prompt are there, or will be, according to the
// index.
func (c *choice) matched(i int) float64 {
	m := c.q.Matches.Of(c.candidates[i].Cache)
	return float64(min(int(m.Soon)*c.q.BlockTokens, c.q.Length))
}

// least returns the candidate of the least value, one of several at random.
func (c *choice) least(of func(i int) float64) int { return c.among(of, nil) }

// among returns the best of the candidates that right accepts; -1 if there is none.
func (c *choice) among(of func(i int) float64, right func(i int) bool) int {
	best, value, alike := -1, 0.0, uint64(0)
	for _, i := range c.open {
		if right != nil && !right(i) {
			continue
		}
		switch v := of(i); {
		case best < 0 || v < value:
			best, value, alike = i, v, 1
		case v == value:
			alike++
			if mix(c.q.Random+alike)%alike == 0 {
				best = i
			}
		}
	}
	return best
}

func (c *choice) dynamo(credit, scale, w float64) int {
	size := float64(c.q.BlockTokens)
	return c.least(func(i int) float64 {
		prefill := (c.pending(i) + float64(c.q.Length) - credit*c.matched(i)) / size
		return scale*max(prefill, 0) + (c.held(i)+float64(c.q.Length))/size + w*c.requests(i)
	})
}

func (c *choice) smetric(slack float64) int {
	work := func(i int, n, length float64) float64 {
		return c.engine(i).work(n, length) / c.g.rates[c.number(i)].p90()
	}
	pending := func(i int) float64 { return work(i, c.pending(i), c.pending(i)) }
	best := c.least(func(i int) float64 { return -c.matched(i) })
	if c.matched(best) > 0 && pending(best) <= pending(c.least(pending))+slack {
		return best
	}
	return c.least(func(i int) float64 {
		return (pending(i) + work(i, c.fresh(i), float64(c.q.Length))) * max(c.requests(i), 1)
	})
}

// work returns how long the last n tokens of a prompt take, without the base cost of steps,
// at the speed that the engine has without other requests.
func (e *engine) work(n, length float64) float64 {
	return e.truth.Token*n + e.truth.Pair*n*(length-n/2)
}

// rate is how much of such work an engine was seen to do in a millisecond, from a
// hand-over to the first token: of the last 64 requests.
type rate struct {
	last [64]float64
	n    int
	at90 float64 // 0 where it is to be found
}

func (r *rate) add(v float64) {
	r.last[r.n%len(r.last)] = v
	r.n++
	r.at90 = 0
}

// p90 is 1 while nothing was seen.
func (r *rate) p90() float64 {
	if r.n == 0 {
		return 1
	}
	if r.at90 == 0 {
		sorted := slices.Sorted(slices.Values(r.last[:min(r.n, len(r.last))]))
		r.at90 = max(sorted[(len(sorted)*9-1)/10], 1e-6)
	}
	return r.at90
}

// mix spreads a number's bits.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func (p *Reference) pick(g *gateway, q *balance.Request, candidates []balance.Candidate, d *balance.Decision) int {
	c := choice{g: g, q: q, candidates: candidates}
	for i := range candidates {
		if !tried(q, &candidates[i]) {
			c.open = append(c.open, i)
		}
	}
	if len(c.open) == 0 {
		return -1
	}
	return d.Note(q, candidates, p.choose(&c), balance.LeastCost)
}

// Policies are the names of all that a fleet can be run with.
func Policies() []string {
	names := append(balance.Names(), Oracle)
	for i := range references {
		names = append(names, references[i].Name)
	}
	return names
}

// newPolicy makes the policy of that name, for one side of a gateway's model.
func newPolicy(name string, g *gateway) (balance.Policy, error) {
	if slices.Contains(balance.Names(), name) {
		return balance.New(name)
	}
	p := &outside{name: name, g: g}
	if name == Oracle {
		p.chooser = new(oracle)
		return p, nil
	}
	if i := slices.IndexFunc(references, func(r Reference) bool { return r.Name == name }); i >= 0 {
		p.chooser = &references[i]
		return p, nil
	}
	if i := slices.IndexFunc(ablations, func(a Ablation) bool { return a.Name == name }); i >= 0 {
		p.chooser = &ablated{Ablation: ablations[i]}
		return p, nil
	}
	if name == Divided || name == Undivided {
		p.chooser = &forced{divides: name == Divided}
		return p, nil
	}
	return nil, balance.Unknown(name, Policies())
}

// Known reports whether there is a policy of that name, and which ones there are.
func Known(name string) error {
	_, err := newPolicy(strings.TrimSuffix(name, Queued), nil)
	return err
}
