package cost

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
)

// Entry is what a gateway enters in its books of a rank, as the other gateways in front of the
// same rank get to know it.
type Entry struct {
	Kind    EntryKind
	Request uint64 // Booked, Began and Ended: the gateway's number of the request
	At      int64
	Progress
	Work   Work // Booked
	Cached int  // Began: the cached prompt tokens that the engine reported, or -1
	// Start is when the engine reported that prefill began, or 0, of Began.
	Start  int64
	Tokens int // Ended: those of the request that were reported
	Open   int // Told: the gateway's requests on the rank
}

// Progress is what a gateway has seen of a rank's tokens at a time.
type Progress struct {
	Generated int64 // of all its requests there
	Stepped   int64 // when some came last
}

// EntryKind distinguishes entries.
type EntryKind uint8

// The kinds of entries.
const (
	Booked EntryKind = iota + 1
	Began            // its first token came
	Ended
	// Told is the sum of a gateway's entries up to a time.
	Told
	// Left is the end of what is known of a gateway: nothing of it counts any more.
	Left

	stood
	silent
	doubted
)

// requests numbers those of this process.
var requests atomic.Uint64

// common are the books of all gateways on a rank together, from which a gateway that has peers
// learns. They are behind by the age of what is known of peers: entries of all gateways are made
// in the order of their times. A step that has computed the prompts of several gateways is then
// one step, as it is for a gateway that has no peers.
type common struct {
	mu      sync.Mutex
	rank    *Rank // it has the books, and nothing is learned by it
	pending []heard
	told    int64 // until when this gateway's entries are pending
	by      map[string]*sharer
}

// sharing is what a rank has that learns with other gateways. It is under the lock of the books.
type sharing struct {
	common *common // nil: it learns alone
	// entries are those since the last Tell, and given those before it.
	entries, given []Entry
	merged         bool // these are the books of several gateways
}

// heard is an entry that is not made yet, of this gateway or of another one.
type heard struct {
	Entry
	of string
}

// sharer is what a gateway has in the common books.
type sharer struct {
	open      map[uint64]*Booking
	generated int64
}

// Share makes the rank learn from the books of all gateways. It is called before anything is
// booked. From then on Tell and Settle have to be called again and again.
func (r *Rank) Share() {
	l := r.learned.Load()
	s := newRank(l.Coefficients, int(l.budget), l.at)
	s.model, s.merged = NewModel(l.Coefficients), true
	r.mu.Lock()
	defer r.mu.Unlock()
	r.common = &common{rank: s, by: map[string]*sharer{}}
}

// mostEntries is how many entries wait for Tell at most: more than come between two calls, but when
// nobody calls it any more because the gateway ends.
const mostEntries = 1 << 14

// enter notes an entry for Tell. The lock is held. Entries beyond mostEntries are left out, which
// all notice by the number of open requests.
func (r *Rank) enter(e Entry) {
	if r.common == nil || len(r.entries) >= mostEntries {
		return
	}
	e.Generated, e.Stepped = r.tokens.Load(), r.stepped.Load()
	r.entries = append(r.entries, e)
}

// Tell returns what this gateway has booked on the rank at time now, and what it has entered in
// its books since the last call. The entries are valid until the next call.
func (r *Rank) Tell(now int64) (Peers, []Entry) {
	c := r.common
	if c == nil {
		return r.Books(now), nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r.mu.Lock()
	books := r.Books(now)
	r.entries, r.given = r.given[:0], r.entries
	r.given = append(r.given, Entry{Kind: Told, At: now, Progress: Progress{r.tokens.Load(), r.stepped.Load()}, Open: int(r.inFlight.Load())})
	r.mu.Unlock()
	for _, e := range r.given {
		c.pending = append(c.pending, heard{e, ""})
	}
	c.told = now
	return books, r.given
}

// Hear takes the entries of another gateway.
func (r *Rank) Hear(of string, entries []Entry) {
	c := r.common
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range entries {
		c.pending = append(c.pending, heard{e, of})
	}
}

// Settle makes the entries up to a time, by which all are known, and learns from the intervals
// that end with them.
func (r *Rank) Settle(until, now int64) {
	c := r.common
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	until = min(until, c.told)
	slices.SortStableFunc(c.pending, func(a, b heard) int { return cmp.Compare(a.At, b.At) })
	n := 0
	for n < len(c.pending) && c.pending[n].At <= until {
		n++
	}
	if n == 0 {
		return
	}
	c.follow(r)
	for i := range c.pending[:n] {
		c.enter(&c.pending[i])
	}
	c.pending = slices.Delete(c.pending, 0, n)
	c.rank.settle(until)
	r.fitting.Lock()
	defer r.fitting.Unlock()
	r.taken, c.rank.noted = c.rank.noted, r.taken[:0]
	r.observe(now)
}

// Doubt reports that from one time to another the rank may have had requests that are in nobody's
// entries. Nothing is learned from an interval that lies in that time or reaches into it, unless
// too little was learned to choose by.
func (r *Rank) Doubt(from, to int64) {
	if r.Cold() {
		return
	}
	if c := r.common; c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.pending = append(c.pending, heard{Entry{Kind: doubted, At: from, Start: to}, ""})
	}
}

// Advise reports what another gateway has learned of the rank. It counts until this one has
// learned enough.
func (r *Rank) Advise(now int64, c Coefficients) {
	if !r.Cold() {
		return
	}
	r.fitting.Lock()
	defer r.fitting.Unlock()
	old := r.learned.Load()
	if old.seen >= trusted {
		return
	}
	r.fit.restart(c)
	r.fit.seen = trusted
	l := learned{Coefficients: c, sureness: r.fit.sureness, seen: trusted, filled: trusted, budget: old.budget, at: now}
	r.learned.Store(l.lasts())
	r.model.measured(now)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.schedule(now)
}

// follow has the common books know of what the rank has learned, and of what it takes.
func (c *common) follow(r *Rank) {
	s := c.rank
	s.model.median.Store(r.model.median.Load())
	s.learned.Store(r.learned.Load())
	s.capacity.limits.Store(r.capacity.limits.Load())
	s.kv.Store(r.kv.Load())
	s.left.Store(r.left.Load())
}

func (c *common) enter(e *heard) {
	g, s := c.by[e.of], c.rank
	if g == nil {
		g = &sharer{open: map[uint64]*Booking{}, generated: e.Generated}
		c.by[e.of] = g
	}
	if e.Generated != 0 {
		s.tokens.Add(max(e.Generated-g.generated, 0))
		g.generated = e.Generated
		s.stepped.Store(max(s.stepped.Load(), min(e.Stepped, e.At)))
	}
	switch b := g.open[e.Request]; e.Kind {
	case Booked:
		g.open[e.Request] = s.Book(e.At, e.Work)
	case Began:
		if b != nil {
			b.begins(e.At, e.Cached, e.Start)
		}
	case Ended:
		if b != nil {
			b.ends(e.At, e.Tokens)
			delete(g.open, e.Request)
		}
	case Told:
		if len(g.open) != e.Open {
			c.stood(e.At)
		}
		if len(g.open) > e.Open {
			g.end(e.At)
		}
	case Left:
		if len(g.open) > 0 {
			c.stood(e.At)
			g.end(e.At)
		}
		delete(c.by, e.of)
	case stood:
		c.stood(e.At)
	case silent:
		s.Silent(e.At)
	case doubted:
		c.stood(e.Start)
	}
}

// stood has nothing be learned from intervals that began by a time, which may be yet to come.
func (c *common) stood(at int64) {
	c.rank.stood = max(c.rank.stood, at)
	c.rank.group.before = Amount{}
}

// end ends all of a gateway's requests, without learning from them.
func (g *sharer) end(at int64) {
	for number, b := range g.open {
		b.ends(at, 0)
		delete(g.open, number)
	}
}
