package queue

import "weir/internal/fleet/cost"

// line is requests that wait for the same: those of a flow that have not decided, or those
// that wait for a rank.
type line struct {
	flow    flow
	rank    *cost.Rank // nil: they have not decided
	waiting heap       // by place
	index   int        // among the queue's lines
}

// The orders in which requests wait.
const (
	byPlace = iota
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
	if h.by == byExpiry && a.Expires != b.Expires {
		return a.Expires < b.Expires
	}
	return a.Place < b.Place
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
