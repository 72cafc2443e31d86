package cost

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// Model is the ranks that serve one model, which learn from each other: a new one
// begins with the median of the others, and one that was not measured for long goes
// back to it, so that one slow minute starves no engine for good.
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

// fill takes from those that compute prompts how long that takes, for a rank that knows too
// little of it.
func (m *Model) fill(l *learned) {
	if p := m.prefills.Load(); p != nil && l.filled < trusted {
		c := p.median.Load()
		l.Step, l.Token, l.Pair = c.Step, c.Token, c.Pair
	}
}

// Moment is what a request would meet on each of a model's ranks alike.
type Moment struct {
	Now int64
	// Horizon is for how many steps of an output its decoding counts: for as many as pass
	// on a typical rank until the next request comes. That one finds the ranks as this one
	// has left them, and evens out what is uneven for nothing. If the whole output counted,
	// each request would be sent to repair what the next one repairs, away from where its
	// prompt is resident.
	Horizon float64
	// Later is how many requests that come later wait for a prefill too, each as long as it
	// takes. While those wait that are there, requests come and none ends: as many more are
	// there as come meanwhile. In the time that a request stays as many come as are there,
	// so that in it those add to the steps of all what the prefill takes, times as many as
	// are there, times the share of a step that decoders take from each other.
	Later float64
}

// Moment is that of time now.
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

// Typical are the coefficients of a mid-sized model on one GPU, with which a model
// begins of which nothing is known: NVIDIA's for prefill, as the simulated engine has
// them, and weir's for decode.
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
