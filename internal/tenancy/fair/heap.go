package fair

// placed is an item of a heap. It keeps its own place, so that it is found without a search.
type placed[T any] interface {
	comparable
	before(T) bool
	place() *int
}

// heap is items in an order, the first one at 0.
type heap[T placed[T]] []T

func (h heap[T]) set(i int, x T) {
	h[i] = x
	*x.place() = i
}

// push adds an item.
func (h *heap[T]) push(x T) {
	*h = append(*h, x)
	h.up(len(*h)-1, x)
}

// remove takes an item out.
func (h *heap[T]) remove(x T) {
	var none T
	end := len(*h) - 1
	last := (*h)[end]
	(*h)[end] = none
	if *h = (*h)[:end]; last != x {
		h.down(h.up(*x.place(), last), last)
	}
}

// moved finds an item's place anew.
func (h heap[T]) moved(x T) { h.down(h.up(*x.place(), x), x) }

// up puts x at i or, if it comes before those there, nearer to the front.
func (h heap[T]) up(i int, x T) int {
	for i > 0 {
		above := (i - 1) / 2
		if !x.before(h[above]) {
			break
		}
		h.set(i, h[above])
		i = above
	}
	h.set(i, x)
	return i
}

// down puts x at i or, if it comes after those there, farther from the front.
func (h heap[T]) down(i int, x T) {
	for n := len(h); ; {
		first := 2*i + 1
		if first >= n {
			break
		}
		if first+1 < n && h[first+1].before(h[first]) {
			first++
		}
		if !h[first].before(x) {
			break
		}
		h.set(i, h[first])
		i = first
	}
	h.set(i, x)
}
