// Package fair divides things among tenants by their shares: turns (Clock and Line), what a
// full queue gives up (Usage), and room that cannot be taken back (Room).
//
// # Turns
//
// A turn costs request-milliseconds. There are two levels: bands share what there is, and the
// tenants of a band share what the band gets. A Clock keeps the charges of each band and each
// tenant, divided by its share; the tenant with the smallest quotient is next. This is deficit
// round robin with a quantum that goes to zero. Round robin with a quantum would have a tenant with
// one short request wait for the quanta of all others.
//
//   - A turn is charged when it is taken, by a prediction, and settled when it has ended, by
//     what it really cost. A tenant that was charged too little is served later next time.
//   - A tenant for which nothing waits collects nothing: when it comes back it begins where
//     the others are, by turns that are settled. It keeps what it owes. Predictions do not
//     count there: if they are too high, it would begin behind tenants that have much under way.
//   - Nobody starves: each turn moves its tenant and its band back, and those that wait stay
//     where they are.
//
// With n tenants a turn costs O(log n), and O(1) while there is one. Package fair is pure: it
// has no clock, lock or goroutine, and its callers hand in times.
package fair

import (
	"slices"

	"weir/internal/tenancy"
)

// Clock keeps what the tenants that share a resource have had of it.
type Clock struct {
	bands   Bands
	tenants map[key]*Tenant
	list    []*band
	at      float64 // where the bands are
	entered int64   // how often a tenant began to wait
	waiting int     // tenants that wait
	forget  int     // at so many tenants, those of which nothing need be known are forgotten

	// The caller of the latest request and its tenant: with one tenant nothing is looked up.
	caller *tenancy.Caller
	latest *Tenant
}

type key struct{ band, tenant string }

func keyOf(c *tenancy.Caller) key { return key{c.Band, c.Tenant} }

// had is what a tenant or a band has had, divided by its share.
type had struct {
	per  float64 // 1 divided by the share
	done float64 // what the turns have cost that are settled
	due  float64 // what those are predicted to cost that are not
	open int     // how many those are
}

func (h *had) all() float64 { return h.done + h.due }

func (h *had) take(ms float64) {
	h.due += ms * h.per
	h.open++
}

func (h *had) settle(predicted, ms float64) {
	h.done += ms * h.per
	if h.open--; h.open == 0 {
		h.due = 0
	} else {
		h.due -= predicted * h.per
	}
}

// band is what the tenants of a band have had together.
type band struct {
	named
	had
	index   int
	at      float64 // where its tenants are
	waiting int
}

// Tenant is what one tenant of a band has had.
type Tenant struct {
	Name string
	// Of belongs to the clock's owner.
	Of    any
	clock *Clock
	band  *band
	had
	v       float64 // all of it
	last    float64 // what it was charged for its latest turn
	waiting int
	since   int64 // when it began to wait, in the order in which tenants did
	groups  []*Group
}

// Band is the tenant's.
func (t *Tenant) Band() string { return string(t.band.named) }

// Waiting is how many of its requests wait.
func (t *Tenant) Waiting() int { return t.waiting }

// Clock is the tenant's.
func (t *Tenant) Clock() *Clock { return t.clock }

// Requests is how many requests wait.
func (c *Clock) Requests() (n int) {
	for _, b := range c.list {
		n += b.waiting
	}
	return n
}

// Waiting is how many tenants wait.
func (c *Clock) Waiting() int { return c.waiting }

// firstForget is the number of tenants at which a Clock looks for the first time for some
// that it can forget.
const firstForget = 256

// NewClock makes a clock on which nobody has had anything.
func NewClock(bands Bands) *Clock {
	return &Clock{bands: bands, tenants: map[key]*Tenant{}, forget: firstForget}
}

// Tenant returns the tenant of a caller. It is valid until the next call, unless something of
// it waits or is to be settled.
func (c *Clock) Tenant(who *tenancy.Caller) *Tenant {
	if who == c.caller {
		return c.latest
	}
	t := c.tenants[keyOf(who)]
	if t == nil {
		if len(c.tenants) >= c.forget {
			c.sweep()
		}
		t = &Tenant{Name: who.Tenant, clock: c, band: c.band(who.Band)}
		t.done = t.band.at
		t.v = t.done
		c.tenants[keyOf(who)] = t
	}
	t.per = 1 / positive(who.Share)
	c.caller, c.latest = who, t
	return t
}

// Find returns the tenant of a caller, nil if nothing is known of it.
func (c *Clock) Find(who *tenancy.Caller) *Tenant {
	if who == c.caller {
		return c.latest
	}
	return c.tenants[keyOf(who)]
}

// sweep forgets tenants that have nothing here and owe no more than a turn.
func (c *Clock) sweep() {
	for k, t := range c.tenants {
		if t.waiting == 0 && t.open == 0 && t.v-t.last <= t.band.at {
			delete(c.tenants, k)
		}
	}
	c.forget = max(firstForget, 2*len(c.tenants))
	c.caller, c.latest = nil, nil
}

func (c *Clock) band(name string) *band {
	return ofBand(&c.list, name, func() *band {
		return &band{named: named(name), index: len(c.list), had: had{per: 1 / c.bands.Share(name), done: c.at}}
	})
}

// Enter has one more request of the tenant wait.
func (c *Clock) Enter(t *Tenant) {
	if t.waiting == 0 {
		c.lift(t)
		c.waiting++
		c.entered++
		t.since = c.entered
	}
	t.waiting++
	t.band.waiting++
}

// Leave has one request less of the tenant wait.
func (c *Clock) Leave(t *Tenant) {
	if t.waiting--; t.waiting == 0 {
		c.waiting--
	}
	t.band.waiting--
}

// lift has a tenant for which nothing waited begin where the others are.
func (c *Clock) lift(t *Tenant) {
	b := t.band
	if b.waiting == 0 {
		b.done = max(b.done, c.at)
	}
	if t.done < b.at {
		t.done = b.at
		t.v = t.all()
	}
}

// Turn is one that a tenant has taken. Its zero value is none.
type Turn struct {
	tenant *Tenant
	ms     float64
}

// Tenant is whose turn it was.
func (t *Turn) Tenant() *Tenant { return t.tenant }

// Charged is the charge of the turn.
func (t *Turn) Charged() float64 { return t.ms }

// Take has the tenant take its turn, which is predicted to cost so much.
func (c *Clock) Take(t *Tenant, ms float64) Turn {
	b := t.band
	if t.waiting == 0 {
		c.lift(t)
	}
	c.at, b.at = max(c.at, b.done), max(b.at, t.done)
	t.last = ms * t.per
	t.take(ms)
	b.take(ms)
	t.sink()
	return Turn{tenant: t, ms: ms}
}

// Settle replaces the charge of a turn by its real cost. Only the first call counts.
func (c *Clock) Settle(turn *Turn, ms float64) {
	t := turn.tenant
	if t == nil {
		return
	}
	turn.tenant = nil
	t.settle(turn.ms, ms)
	t.band.settle(turn.ms, ms)
	t.sink()
}

// Before reports whether a's turn comes before b's. A tenant for which nothing waits yet
// comes after those that wait and have had as much.
func (c *Clock) Before(a, b *Tenant) bool {
	if a.band != b.band {
		av, bv := c.from(a.band), c.from(b.band)
		return av < bv || av == bv && a.band.index < b.band.index
	}
	if a.waiting > 0 && b.waiting > 0 {
		return a.before(b)
	}
	av, bv := a.from(), b.from()
	return av < bv || av == bv && a.waiting > 0
}

// from is what the band has had, or would begin with.
func (c *Clock) from(b *band) float64 {
	if b.waiting == 0 {
		return max(b.done, c.at) + b.due
	}
	return b.all()
}

func (t *Tenant) from() float64 {
	if t.waiting == 0 {
		return max(t.done, t.band.at) + t.due
	}
	return t.v
}

// before is Before for two tenants of a band that wait.
func (t *Tenant) before(o *Tenant) bool { return t.v < o.v || t.v == o.v && t.since < o.since }

// Line has the tenants whose requests wait for the same thing, in the order of their turns.
type Line struct {
	bands []lined
	n     int
}

// lined is the tenants of one band in a line.
type lined struct {
	band   *band
	groups heap[*Group]
}

// Group is what waits of one tenant in one line. Of belongs to its owner.
type Group struct {
	Of     any
	tenant *Tenant
	line   *Line
	at     int
}

// Tenant is whose it is.
func (g *Group) Tenant() *Tenant { return g.tenant }

func (g *Group) before(o *Group) bool { return g.tenant.before(o.tenant) }

func (g *Group) place() *int { return &g.at }

// Len is how many tenants are in the line.
func (l *Line) Len() int { return l.n }

// Add adds a tenant to the line.
func (l *Line) Add(g *Group, t *Tenant) {
	g.tenant, g.line = t, l
	t.groups = append(t.groups, g)
	l.n++
	b := l.of(t.band)
	if b == nil {
		l.bands = append(l.bands, lined{band: t.band})
		b = &l.bands[len(l.bands)-1]
	}
	b.groups.push(g)
}

// Remove takes a tenant out of the line.
func (l *Line) Remove(g *Group) {
	l.n--
	t := g.tenant
	i := slices.Index(t.groups, g)
	last := len(t.groups) - 1
	t.groups[i] = t.groups[last]
	t.groups[last] = nil
	t.groups = t.groups[:last]
	l.of(t.band).groups.remove(g)
	g.tenant, g.line = nil, nil
}

func (l *Line) of(b *band) *lined {
	for i := range l.bands {
		if l.bands[i].band == b {
			return &l.bands[i]
		}
	}
	return nil
}

// First is the group whose turn is next, nil if there is none.
func (l *Line) First() *Group {
	var first *Group
	for i := range l.bands {
		b := &l.bands[i]
		if len(b.groups) == 0 {
			continue
		}
		if first != nil {
			f := first.tenant.band
			if fv, bv := f.all(), b.band.all(); fv < bv || fv == bv && f.index < b.band.index {
				continue
			}
		}
		first = b.groups[0]
	}
	return first
}

// Each calls do with all groups, those whose turn is soon first, until it returns false.
func (l *Line) Each(do func(*Group) bool) {
	for i := range l.bands {
		for _, g := range l.bands[i].groups {
			if !do(g) {
				return
			}
		}
	}
}

// sink adds up what the tenant has had, and finds its places in its lines anew.
func (t *Tenant) sink() {
	t.v = t.all()
	for _, g := range t.groups {
		if b := g.line.of(t.band); len(b.groups) > 1 {
			b.groups.moved(g)
		}
	}
}
