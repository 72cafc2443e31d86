package tokenizer

import "unicode/utf8"

// shortMerge is the longest piece that mergeShort takes: above it the square
// of the length costs more than a queue.
const shortMerge = 64

// mergeShort appends the ids of a piece of at most shortMerge bytes. Again and
// again the leftmost pair of the lowest rank is merged.
func (v *vocab) mergeShort(dst []uint32, piece []byte) []uint32 {
	var idBuf [shortMerge]uint32
	var valueBuf [shortMerge]uint64
	var z symbolizer
	ids := z.flush(v, z.add(v, idBuf[:0], piece))
	n := len(ids)
	if n == 0 {
		return dst
	}
	values := valueBuf[:n]
	// values[i] is that of the pair ids[i], ids[i+1].
	for i := range n - 1 {
		values[i] = v.merges.find(ids[i], ids[i+1])
	}
	values[n-1] = noMerge
	for n > 1 {
		best, at := noMerge, 0
		for i, value := range values[:n-1] {
			if value < best {
				best, at = value, i
			}
		}
		if best == noMerge {
			break
		}
		ids[at] = uint32(best)
		copy(ids[at+1:n-1], ids[at+2:n])
		copy(values[at+1:n-1], values[at+2:n])
		n--
		if at+1 < n {
			values[at] = v.merges.find(ids[at], ids[at+1])
		} else {
			values[at] = noMerge
		}
		if at > 0 {
			values[at-1] = v.merges.find(ids[at-1], ids[at])
		}
	}
	return append(dst, ids[:n]...)
}

// pauser lets others run, and says with an error to stop.
type pauser interface {
	pause() error
}

// merger merges long pieces. Its memory is reused from piece to piece.
//
// The goal is a queue of (rank, position) from which a megabyte of one letter
// is merged in well under 100 ms; one binary heap of a million entries misses
// the cache at every level and takes several times that. But entries of one
// rank nearly always arrive with rising positions, because merging runs from
// left to right. So each rank has a run, a list that is appended to and read
// from its head; a small heap holds the ranks whose runs are not empty; and
// the few entries that come out of order go to a heap of their own, the
// strays. The next entry is the smaller of the first run's head and the first
// stray, which is the exact order. An entry is stale, and skipped, when its
// position's pair no longer has its rank: a position's symbol only grows, so
// a pair that is gone never returns.
type merger struct {
	ids        []uint32
	prev, next []int32
	values     []uint64 // of the pair that begins at a position

	runOf  []int32 // by rank: index in runs plus 1, or 0
	runs   []rankRun
	free   []int32 // runs to reuse
	ranks  []uint32
	strays []uint64
}

// rankRun is a list of positions, read from head. It grows by parts, because
// moving a million positions to where there is room for more takes a
// millisecond in which nobody else gets a turn.
type rankRun struct {
	positions []int32 // the part that is read
	head      int
	more      [][]int32 // the parts after it
}

// runPart is the most positions of a part.
const runPart = 4096

func (r *rankRun) push(at int32) {
	if len(r.more) > 0 {
		last := &r.more[len(r.more)-1]
		if len(*last) < runPart {
			*last = append(*last, at)
			return
		}
	} else if len(r.positions) < runPart {
		r.positions = append(r.positions, at)
		return
	}
	r.more = append(r.more, append(make([]int32, 0, runPart), at))
}

// last returns the position pushed last, or -1.
func (r *rankRun) last() int32 {
	part := r.positions
	if len(r.more) > 0 {
		part = r.more[len(r.more)-1]
	}
	if len(part) == 0 {
		return -1
	}
	return part[len(part)-1]
}

// advance moves to the next position and reports whether there is one.
func (r *rankRun) advance() bool {
	if r.head++; r.head < len(r.positions) {
		return true
	}
	if len(r.more) == 0 {
		return false
	}
	r.positions, r.head, r.more = r.more[0], 0, r.more[1:]
	return true
}

// merge appends the ids of a piece. It pauses every few thousand steps and
// gives up when that says so.
func (m *merger) merge(v *vocab, dst []uint32, piece []byte, p pauser) ([]uint32, error) {
	if err := m.fill(v, piece, p); err != nil {
		return dst, err
	}
	defer m.clear()
	n := int32(len(m.ids))
	for step := 1; ; step++ {
		if step%pauseSteps == 0 {
			if err := p.pause(); err != nil {
				return dst, err
			}
		}
		rank, at, ok := m.pop()
		if !ok {
			break
		}
		value := m.values[at]
		if value == noMerge || uint32(value>>32) != rank {
			continue
		}
		second := m.next[at]
		third := m.next[second]
		m.ids[at] = uint32(value)
		m.next[at] = third
		m.values[second] = noMerge
		m.values[at] = noMerge
		if third < n {
			m.prev[third] = at
			m.offer(v, at, third)
		}
		if before := m.prev[at]; before >= 0 {
			m.offer(v, before, at)
		}
	}
	step := 0
	for i := int32(0); i < n; i = m.next[i] {
		if step++; step%(8*pauseSteps) == 0 {
			if err := p.pause(); err != nil {
				return dst, err
			}
		}
		dst = append(dst, m.ids[i])
	}
	return dst, nil
}

// offer queues the pair of two neighbours.
func (m *merger) offer(v *vocab, at, next int32) {
	value := v.merges.find(m.ids[at], m.ids[next])
	m.values[at] = value
	if value != noMerge {
		m.push(uint32(value>>32), at)
	}
}

// fill sets up the symbols of a piece and queues its pairs.
func (m *merger) fill(v *vocab, piece []byte, p pauser) error {
	if err := m.symbols(v, piece, p); err != nil {
		return err
	}
	n := len(m.ids)
	if cap(m.values) < n {
		m.values, m.prev, m.next = nil, nil, nil // so that no error leaves some of them
		values, prev := make([]uint64, cap(m.ids)), make([]int32, cap(m.ids))
		if err := p.pause(); err != nil {
			return err
		}
		m.values, m.prev, m.next = values, prev, make([]int32, cap(m.ids))
	}
	m.values, m.prev, m.next = m.values[:n], m.prev[:n], m.next[:n]
	if n == 0 {
		return nil
	}
	if len(m.runOf) < v.ranks {
		m.runOf = make([]int32, v.ranks)
	}
	m.prev[0], m.next[0] = -1, 1
	m.values[n-1] = noMerge
	for i := range int32(n - 1) {
		m.prev[i+1], m.next[i+1] = i, i+2
		if i%pauseSteps == pauseSteps-1 {
			if err := p.pause(); err != nil {
				m.clear()
				return err
			}
		}
		m.offer(v, i, i+1)
	}
	return nil
}

// symbols sets up the symbols, pausing between parts.
func (m *merger) symbols(v *vocab, piece []byte, p pauser) error {
	if cap(m.ids) < len(piece) {
		m.ids = make([]uint32, 0, len(piece))
	}
	m.ids = m.ids[:0]
	var z symbolizer
	for from := 0; from < len(piece); {
		end := runeStart(piece, from+8*pauseSteps)
		m.ids = z.add(v, m.ids, piece[from:end])
		if from = end; from < len(piece) {
			if err := p.pause(); err != nil {
				m.clear()
				return err
			}
		}
	}
	m.ids = z.flush(v, m.ids)
	return nil
}

// runeStart returns the last place at or before at where a rune begins or s ends; of
// bytes that are no text, some place.
func runeStart(s []byte, at int) int {
	if at >= len(s) {
		return len(s)
	}
	for low := at - utf8.UTFMax; at > low+1 && !utf8.RuneStart(s[at]); {
		at--
	}
	return at
}

// clear empties the queue; an interrupted merge leaves entries in it.
func (m *merger) clear() {
	for _, rank := range m.ranks {
		m.release(rank)
	}
	m.ranks, m.strays = m.ranks[:0], m.strays[:0]
	if cap(m.ids) > keepSymbols {
		*m = merger{runOf: m.runOf}
	}
}

// keepSymbols bounds the memory an idle merger holds, in symbols of 20 bytes.
const keepSymbols = 1 << 16

func (m *merger) push(rank uint32, at int32) {
	slot := m.runOf[rank]
	if slot == 0 {
		if k := len(m.free); k > 0 {
			slot, m.free = m.free[k-1], m.free[:k-1]
		} else {
			m.runs = append(m.runs, rankRun{})
			slot = int32(len(m.runs))
		}
		m.runOf[rank] = slot
		m.ranks = heapPush(m.ranks, rank)
	}
	r := &m.runs[slot-1]
	if r.last() > at {
		m.strays = heapPush(m.strays, uint64(rank)<<32|uint64(at))
		return
	}
	r.push(at)
}

func (m *merger) pop() (rank uint32, at int32, ok bool) {
	stray := noMerge
	if len(m.strays) > 0 {
		stray = m.strays[0]
	}
	if len(m.ranks) > 0 {
		rank = m.ranks[0]
		r := &m.runs[m.runOf[rank]-1]
		at = r.positions[r.head]
		if uint64(rank)<<32|uint64(at) <= stray {
			if !r.advance() {
				m.release(rank)
				m.ranks = heapPop(m.ranks)
			}
			return rank, at, true
		}
	}
	if stray == noMerge {
		return 0, 0, false
	}
	m.strays = heapPop(m.strays)
	return uint32(stray >> 32), int32(uint32(stray)), true
}

// release gives a rank's run back.
func (m *merger) release(rank uint32) {
	slot := m.runOf[rank]
	r := &m.runs[slot-1]
	r.positions, r.head, r.more = r.positions[:0], 0, nil
	m.free = append(m.free, slot)
	m.runOf[rank] = 0
}

// heapPush and heapPop keep the smallest number of a slice first.

func heapPush[T uint32 | uint64](h []T, x T) []T {
	h = append(h, x)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if h[up] <= x {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = x
	return h
}

func heapPop[T uint32 | uint64](h []T) []T {
	n := len(h) - 1
	x := h[n]
	h = h[:n]
	if n == 0 {
		return h
	}
	i := 0
	for i < n/2 {
		down := 2*i + 1
		if down+1 < n && h[down+1] < h[down] {
			down++
		}
		if x <= h[down] {
			break
		}
		h[i] = h[down]
		i = down
	}
	h[i] = x
	return h
}
