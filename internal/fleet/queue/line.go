package queue

import (
	"weir/internal/fleet/cost"
	"weir/internal/tenancy/fair"
)

// line is requests that wait for the same: those of a flow that have not decided, or those
// that wait for a rank. They are in groups by tenant, whose turns a fair.Clock gives.
type line struct {
	flow  flow
	rank  *cost.Rank // nil: they have not decided
	turns fair.Line
	again group // those that have had their turn, before all others
	n     int
	index int // among the queue's lines
}

// group is what waits of one tenant in one line.
type group struct {
	fair.Group
	line    *line
	waiting heap // by due
}

// first returns the request whose turn is next in the line, which is not empty.
func (l *line) first() *Request {
	if len(l.again.waiting.items) > 0 {
		return l.again.waiting.items[0]
	}
	return l.turns.First().Of.(*group).waiting.items[0]
}

// each calls do with the requests of the line by groups, each with its first one first, until
// it returns false.
func (l *line) each(do func(some []*Request) bool) {
	if some := l.again.waiting.items; len(some) > 0 && !do(some) {
		return
	}
	l.turns.Each(func(g *fair.Group) bool { return do(g.Of.(*group).waiting.items) })
}

// The orders in which requests wait.
const (
	byDue = iota
	byExpiry
	orders
)

// heap is requests in an order. Those that come in the order of the heap are added, and any
// is taken out, without a search.
type heap struct {
	by    int
	items []*Request
}

func (h *heap) less(a, b *Request) bool {
	if h.by == byExpiry {
		if a.Expires != b.Expires {
			return a.Expires < b.Expires
		}
		return a.Place < b.Place
	}
	return a.earlier(b)
}

func (h *heap) set(i int, r *Request) {
	h.items[i] = r
	r.at[h.by] = int32(i)
}

func (h *heap) push(r *Request) {
	h.items = append(h.items, r)
	h.up(len(h.items)-1, r)
}

// up puts r at i or, where it comes before those there, nearer to the front.
func (h *heap) up(i int, r *Request) {
	for i > 0 {
		above := (i - 1) / 2
		if !h.less(r, h.items[above]) {
			break
		}
		h.set(i, h.items[above])
		i = above
	}
	h.set(i, r)
}

func (h *heap) remove(r *Request) {
	i, n := int(r.at[h.by]), len(h.items)-1
	last := h.items[n]
	h.items[n] = nil
	h.items = h.items[:n]
	if i == n {
		return
	}
	for {
		least := 2*i + 1
		if least >= n {
			break
		}
		if least+1 < n && h.less(h.items[least+1], h.items[least]) {
			least++
		}
		if !h.less(h.items[least], last) {
			break
		}
		h.set(i, h.items[least])
		i = least
	}
	h.up(i, last)
}
