package cost

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// Model holds the ranks that serve one model. They learn from each other: a new rank
// begins with the median of the others, and a rank without measurements for a long time
// returns to it, so that one slow minute does not starve an engine for ever.
type Model struct {
	kind Coefficients // while no rank has been measured

	mu     sync.Mutex
	ranks  []*Rank
	median atomic.Pointer[Coefficients]

	updated atomic.Int64

	gap  atomic.Uint64 // float64: ms between this gateway's requests
	last atomic.Int64
	// Requests in flight on the ranks, this gateway's and those that peers told of.
	own, theirs atomic.Int64
	size        atomic.Int64 // ranks
	// prefills are the ranks that compute prompts for those of this model; nil: there are none.
	prefills atomic.Pointer[Model]
}

// Prefills are the ranks that compute prompts for those of this model: a model of their own,
// whose requests do not decode. How long it takes to prefill is known from them where the
// ranks of this one have computed too few prompts.
func (m *Model) Prefills() *Model {
	if p := m.prefills.Load(); p != nil {
		return p
	}
	m.prefills.CompareAndSwap(nil, NewModel(m.kind))
	return m.prefills.Load()
}

// fill sets the prefill coefficients of a rank with too few observations to the median of
// the ranks that compute prompts.
func (m *Model) fill(l *learned) {
	if p := m.prefills.Load(); p != nil && l.filled < trusted {
		c := p.median.Load()
		l.Step, l.Token, l.Pair = c.Step, c.Token, c.Pair
	}
}

// Moment is the part of a request's situation that is the same on all ranks of a model.
type Moment struct {
	Now int64
	// Horizon is the number of steps of an output for which its decoding counts: the steps
	// of a typical rank until the next request arrives. The next request sees the imbalance
	// that this one leaves, and can correct it at no cost. If the whole output counted,
	// each request would be sent away from its cached prompt to correct an imbalance that
	// the next one corrects anyway.
	Horizon float64
	// Later is the number of later requests that also wait for a prefill, each for its
	// whole length. During a prefill, requests arrive and none ends, so their number grows.
	// During the stay of a request as many requests arrive as are there. The added delay is
	// therefore the prefill, times the number of requests there, times the share of a step
	// that decoding requests take from each other.
	Later float64
}

// Moment returns the moment at time now.
func (m *Model) Moment(now int64) Moment {
	c := m.median.Load()
	at := Moment{Now: now, Horizon: m.horizon(c)}
	if n := m.size.Load(); n > 0 {
		k := float64(max(m.own.Load()+m.theirs.Load(), 0)) / float64(n)
		if step := c.Decode + c.Decoder*k; step > 0 {
			at.Later = k * c.Decoder * k / step
		}
	}
	return at
}

func (m *Model) horizon(c *Coefficients) float64 {
	gap := math.Float64frombits(m.gap.Load())
	if gap == 0 {
		return math.Inf(1)
	}
	// Peers' requests come between as many times as often as there are more in flight.
	if theirs := float64(m.theirs.Load()); theirs > 0 {
		own := float64(max(m.own.Load(), 1))
		gap *= own / (own + theirs)
	}
	return max(gap/(c.Decode+c.Decoder), 1)
}

// gapMemory is how much a gap counts after the next one.
const gapMemory = 0.95

// came notes a request. Where two come at once, one may go uncounted.
func (m *Model) came(now int64) {
	last := m.last.Swap(now)
	if last == 0 || now <= last { // several of one request come at once
		return
	}
	ms := min(float64(now-last)/millisecond, longest)
	g := math.Float64frombits(m.gap.Load())
	if g == 0 {
		g = ms
	}
	m.gap.Store(math.Float64bits(g + (1-gapMemory)*(ms-g)))
}

// often is how old the median may be.
const often = 1e9

// Typical are the coefficients of a mid-sized model on one GPU, the starting point for
// an unknown model: NVIDIA's for prefill, as in the simulated engine, and weir's own
// for decode.
var Typical = Coefficients{Step: 16.5, Token: 0.0152, Pair: 8.42e-7, Decode: 6, Decoder: 0.35}

// NewModel begins with what is typical of its kind.
func NewModel(kind Coefficients) *Model {
	m := &Model{kind: kind}
	m.median.Store(&kind)
	return m
}

// Join adds a rank at time now. budget is the most tokens that a step of it prefills,
// 0 where that is not known.
func (m *Model) Join(now int64, budget int) *Rank {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := newRank(*m.median.Load(), budget, now)
	r.model = m
	m.ranks = append(m.ranks, r)
	m.size.Store(int64(len(m.ranks)))
	return r
}

// Leave removes a rank. What is booked on it may still be settled.
func (m *Model) Leave(r *Rank) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r.SetPeers(Peers{})
	m.ranks = slices.DeleteFunc(m.ranks, func(o *Rank) bool { return o == r })
	m.size.Store(int64(len(m.ranks)))
	m.update()
}

// Median is that of each coefficient over the ranks that were measured.
func (m *Model) Median() Coefficients { return *m.median.Load() }

// measured finds the median anew, now and then.
func (m *Model) measured(now int64) {
	if at := m.updated.Load(); at != 0 && now-at < often || !m.updated.CompareAndSwap(at, now) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.update()
}

func (m *Model) update() {
	var all [parameters][]float64
	for _, r := range m.ranks {
		l := r.learned.Load()
		if l.seen < trusted {
			continue
		}
		for i, x := range l.Coefficients.vector() {
			all[i] = append(all[i], x)
		}
	}
	c := m.kind
	if p := m.prefills.Load(); p != nil {
		c.Step, c.Token, c.Pair = p.Median().Step, p.Median().Token, p.Median().Pair
	}
	if len(all[0]) > 0 {
		var v vector
		for i := range v {
			slices.Sort(all[i])
			n := len(all[i])
			v[i] = (all[i][n/2] + all[i][(n-1)/2]) / 2
		}
		c = coefficients(v)
	}
	m.median.Store(&c)
}

// Coefficients count as measured for fresh after the last interval; from then on half
// of the way to the median is gone after each stale.
const (
	fresh = 60e9
	stale = 30e9
)

// drifted is what is to be thought of coefficients at time now.
func (l *learned) drifted(now int64, median *Coefficients) Coefficients {
	if l.seen == 0 {
		return *median // which others may have changed since it joined
	}
	age := float64(now-l.at) - fresh
	if age <= 0 {
		return l.Coefficients
	}
	keep := halved(age / stale)
	c, m := l.Coefficients.vector(), median.vector()
	for i := range c {
		c[i] = m[i] + keep*(c[i]-m[i])
	}
	return coefficients(c)
}
