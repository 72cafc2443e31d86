package fair

import "weir/internal/tenancy"

// Usage is what tenants hold of something that can be taken back, such as places in a queue.
// When there is no more, the largest user gives way: the tenant that holds most of its share,
// in the band that holds most of its own.
type Usage struct {
	bands Bands
	users map[key]*User
	list  []*used

	caller *tenancy.Caller
	latest *User
}

// used is what the tenants of a band hold.
type used struct {
	named
	share float64
	held  int64
	users heap[*User] // the largest first
}

// User is what one tenant of a band holds.
type User struct {
	Band, Tenant string
	band         *used
	share        float64
	held         int64
	at           int // -1: it holds nothing
}

// NewUsage makes a Usage in which nobody holds anything.
func NewUsage(bands Bands) *Usage { return &Usage{bands: bands, users: map[key]*User{}} }

// User returns the tenant of a caller. It is valid until another call, unless it holds
// something.
func (u *Usage) User(who *tenancy.Caller) *User {
	if who == u.caller {
		return u.latest
	}
	x := u.users[keyOf(who)]
	if x == nil {
		x = &User{Band: who.Band, Tenant: who.Tenant, band: u.band(who.Band), at: -1}
		u.users[keyOf(who)] = x
	}
	x.share = positive(who.Share)
	if u.latest != nil && u.latest != x && u.latest.held == 0 {
		delete(u.users, key{u.latest.Band, u.latest.Tenant})
	}
	u.caller, u.latest = who, x
	return x
}

func (u *Usage) band(name string) *used {
	return ofBand(&u.list, name, func() *used { return &used{named: named(name), share: u.bands.Share(name)} })
}

// Hold has a tenant hold n more, or less.
func (u *Usage) Hold(x *User, n int64) {
	b := x.band
	b.held += n
	x.held += n
	switch {
	case x.at < 0 && x.held > 0:
		b.users.push(x)
	case x.held <= 0:
		if x.at >= 0 {
			b.users.remove(x)
			x.at = -1
		}
		if u.latest != x {
			delete(u.users, key{x.Band, x.Tenant})
		}
	case len(b.users) > 1:
		b.users.moved(x)
	}
}

// Held is the amount that the user holds.
func (x *User) Held() int64 { return x.held }

// Yields returns the tenant that gives up need, so that x can hold n more; nil if x itself is
// to go without. Whoever gives way holds no less of its share afterwards than x does.
func (u *Usage) Yields(x *User, n, need int64) *User {
	b := x.band
	for _, o := range u.list {
		if o != b && float64(o.held)/o.share > float64(b.held)/b.share {
			b = o
		}
	}
	if len(b.users) == 0 || b.users[0] == x || b.users[0].held < need {
		return nil
	}
	first := b.users[0]
	if b == x.band {
		if float64(x.held+n)/x.share > float64(first.held-need)/first.share {
			return nil
		}
	} else if float64(x.band.held+n)/x.band.share > float64(b.held-need)/b.share {
		return nil
	}
	return first
}

func (x *User) before(o *User) bool { return float64(x.held)/x.share > float64(o.held)/o.share }

func (x *User) place() *int { return &x.at }
