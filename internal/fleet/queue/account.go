package queue

import (
	"slices"

	"weir/internal/tenancy/fair"
)

// account is what waits of a tenant for the ranks of one pool.
type account struct {
	tenant    *fair.Tenant
	groups    []*group
	waiting   int
	undecided int // of those that wait, the ones that wait for any rank
	drain     rate
	totals    *Tenant
}

// account is that of a tenant.
func (q *Queue) account(t *fair.Tenant) *account {
	a, _ := t.Of.(*account)
	if a == nil {
		a = &account{tenant: t, totals: q.book.of(t)}
		t.Of = a
	}
	return a
}

func (a *account) enter(r *Request, now int64) {
	if a.waiting == 0 {
		a.drain.begin(now)
	}
	a.waiting++
	r.waits = r.Cost
	a.totals.Waiting++
	a.totals.WaitingMS += r.waits
}

func (a *account) exit(r *Request, now int64) {
	if a.waiting--; a.waiting == 0 {
		a.drain.end(now)
	}
	a.totals.Waiting--
	if a.totals.WaitingMS -= r.waits; a.totals.Waiting == 0 {
		a.totals.WaitingMS = 0
	}
}

func (a *account) leave(g *group) {
	i, last := slices.Index(a.groups, g), len(a.groups)-1
	a.groups[i] = a.groups[last]
	a.groups[last] = nil
	a.groups = a.groups[:last]
}

// Tenant has the counts of a tenant's requests, for all models.
type Tenant struct {
	Band, Name string
	Waiting    int
	WaitingMS  float64 // predicted cost of the waiting requests
	ServedMS   float64 // cost of the settled turns
	Refused    int64   // or put out, or expired
}

// mostTenants bounds the tenants that are counted separately; Other is the name of
// the rest.
const (
	mostTenants = 1000
	Other       = "other"
)

// book is all tenants that ever came, up to a bound.
type book struct {
	index map[[2]string]*Tenant
	all   []*Tenant
	rest  map[string]*Tenant // by band

	latest *fair.Tenant // and the one that is its
	totals *Tenant
}

func (b *book) of(t *fair.Tenant) *Tenant {
	if t == b.latest {
		return b.totals
	}
	if b.index == nil {
		b.index, b.rest = map[[2]string]*Tenant{}, map[string]*Tenant{}
	}
	key := [2]string{t.Band(), t.Name}
	x := b.index[key]
	if x == nil && len(b.index) < mostTenants {
		x = &Tenant{Band: t.Band(), Name: t.Name}
		b.index[key], b.all = x, append(b.all, x)
	}
	if x == nil {
		if x = b.rest[t.Band()]; x == nil {
			x = &Tenant{Band: t.Band(), Name: Other}
			b.rest[t.Band()], b.all = x, append(b.all, x)
		}
	}
	b.latest, b.totals = t, x
	return x
}

// Tenants returns what is known of all tenants, in the order in which they came. Beyond the
// first thousand, those of a band are together, under the name Other.
func (q *Queue) Tenants() []Tenant {
	all := make([]Tenant, len(q.book.all))
	for i, t := range q.book.all {
		all[i] = *t
	}
	return all
}
