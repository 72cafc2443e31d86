package pool

import (
	"weir/internal/tenancy"
	"weir/internal/tenancy/fair"
)

// line is the jobs that wait, by tenant. Tenants take turns by their shares, in milliseconds of
// work; the queue of each has its jobs in order. A tenant that is alone has the order of a queue.
type line struct {
	small int // the class of the largest small jobs
	clock *fair.Clock
	all   fair.Line // tenants of which some job waits
	some  fair.Line // tenants of which a small one does
	jobs  int
	costs [classes]int64

	places *fair.Usage // of jobs
	work   *fair.Usage // of cost
}

// member is a tenant in a line.
type member struct {
	tenant    *fair.Tenant
	queue     queue
	small     int // jobs
	all, some fair.Group
}

func newLine(bands fair.Bands, small int) *line {
	return &line{small: small, clock: fair.NewClock(bands), places: fair.NewUsage(bands), work: fair.NewUsage(bands)}
}

func (l *line) len() int { return l.jobs }

// cost is that of all waiting jobs up to a class.
func (l *line) cost(upTo int) (sum int64) {
	for _, c := range l.costs[:upTo+1] {
		sum += c
	}
	return sum
}

func (l *line) member(who *tenancy.Caller) *member {
	t := l.clock.Tenant(who)
	m, _ := t.Of.(*member)
	if m == nil {
		m = &member{tenant: t}
		m.all.Of, m.some.Of = m, m
		t.Of = m
	}
	return m
}

func (l *line) push(j *job) {
	m := l.member(j.who)
	j.member = m
	l.clock.Enter(m.tenant)
	m.queue.push(j)
	if m.queue.len() == 1 {
		l.all.Add(&m.all, m.tenant)
	}
	if j.class <= l.small {
		if m.small++; m.small == 1 {
			l.some.Add(&m.some, m.tenant)
		}
	}
	l.jobs++
	l.costs[j.class] += int64(j.cost)
	l.places.Hold(l.places.User(j.who), 1)
	l.work.Hold(l.work.User(j.who), int64(j.cost))
}

// gone takes down that a job has left its queue.
func (l *line) gone(j *job) {
	m := j.member
	if m.queue.len() == 0 {
		l.all.Remove(&m.all)
	}
	if j.class <= l.small {
		if m.small--; m.small == 0 {
			l.some.Remove(&m.some)
		}
	}
	l.jobs--
	l.costs[j.class] -= int64(j.cost)
	l.places.Hold(l.places.User(j.who), -1)
	l.work.Hold(l.work.User(j.who), -int64(j.cost))
	l.clock.Leave(m.tenant)
	j.member = nil
}

// looked is at how many tenants next looks for one with a job up to a class that is neither the
// largest nor the largest of small jobs. Only jobs that yield ask so, and may be given none.
const looked = 32

// next returns the tenant whose turn it is among those with a job up to a class, nil if there is
// none.
func (l *line) next(upTo int) *member {
	g := l.all.First()
	switch {
	case g == nil:
		return nil
	case upTo == classes-1:
	case upTo == l.small:
		g = l.some.First()
	default:
		g = nil
		n := 0
		l.all.Each(func(o *fair.Group) bool {
			if o.Of.(*member).queue.next(upTo) >= 0 {
				g = o
			}
			n++
			return g == nil && n < looked
		})
	}
	if g == nil {
		return nil
	}
	return g.Of.(*member)
}

// peek returns the job that pop would take.
func (l *line) peek(upTo int) *job {
	m := l.next(upTo)
	if m == nil {
		return nil
	}
	return m.queue.peek(upTo)
}

// pop takes the job whose turn it is among those up to a class, or gives nil. It is predicted
// to take so many nanoseconds for a unit of cost.
func (l *line) pop(upTo int, perUnit float64) *job {
	m := l.next(upTo)
	if m == nil {
		return nil
	}
	j := m.queue.pop(upTo)
	if j == nil {
		return nil
	}
	j.turn = l.clock.Take(m.tenant, perUnit*float64(j.cost)/1e6)
	l.gone(j)
	return j
}

// settle has a job's turn cost what it has taken, in nanoseconds.
func (l *line) settle(j *job, took int64) { l.clock.Settle(&j.turn, float64(took)/1e6) }

// remove takes out a waiting job, and says whether it was waiting.
func (l *line) remove(j *job) bool {
	if j.member == nil || !j.member.queue.remove(j) {
		return false
	}
	l.gone(j)
	return true
}

// ahead is roughly the cost of the work up to a class that goes before a new job: all of it, or
// what waits of its own tenant as often as there are tenants, if that is less.
func (l *line) ahead(who *tenancy.Caller, upTo int) int64 {
	sum := l.cost(upTo)
	own := int64(0)
	n := int64(l.clock.Waiting())
	if t := l.clock.Find(who); t != nil {
		if m, _ := t.Of.(*member); m != nil && m.queue.len() > 0 {
			own = m.queue.cost(upTo)
			n--
		}
	}
	if n == 0 {
		return sum
	}
	return min(sum, own*(n+1)+n*sum/int64(max(l.jobs, 1))) // and one job of each other tenant
}

// yields takes out a job of the tenant that gives way to a new one, for its place or its cost,
// nil if the new one is to go without.
func (l *line) yields(who *tenancy.Caller, u *fair.Usage, n, need int64) *job {
	x := u.Yields(u.User(who), n, need)
	if x == nil {
		return nil
	}
	t := l.clock.Find(&tenancy.Caller{Band: x.Band, Tenant: x.Tenant})
	if t == nil {
		return nil
	}
	m, _ := t.Of.(*member)
	if m == nil {
		return nil
	}
	for k := classes - 1; k >= 0; k-- {
		if h := m.queue.heaps[k]; len(h) > 0 {
			j := h[len(h)-1] // a leaf, which is one that came late
			l.remove(j)
			return j
		}
	}
	return nil
}

// oldest is when the job that has waited longest arrived; 0 with none waiting.
func (l *line) oldest() (at int64) {
	l.all.Each(func(g *fair.Group) bool {
		if own := g.Of.(*member).queue.oldest(); at == 0 || own < at {
			at = own
		}
		return true
	})
	return at
}
