// Package busy records what the process computes: for each named operation how much time it
// took so far, how often it was begun, and what runs now and for which request. So the
// cause of a stall can be named.
//
// An operation is begun and ended once for a request, or for a batch of output, never for a
// token. A running span has a slot of its own, so that begin and end touch one cache line
// that nobody else writes.
package busy

import (
	"cmp"
	"context"
	"math/rand/v2"
	"runtime/trace"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	clock "weir/internal/trace"
)

// Op is a named operation.
type Op uint8

// The operations. Their times are wall-clock times: they include waits for a core, and the
// time that a worker of the pool yields in between.
const (
	Parse    Op = iota // a large body's JSON into a request, and its checks
	Template           // the chat template
	Tokenize           // text to ids
	Hash               // a prompt's blocks, by which caches know it
	Pick               // choosing an engine
	Dispatch           // a frame of an engine to the streams that it is for
	Encode             // output to bytes, and their writes, of a batch of streams
	NumOps
)

var names = [NumOps]string{"parse", "template", "tokenize", "hash", "pick", "dispatch", "encode"}

// String returns the operation's name.
func (o Op) String() string { return names[o] }

// numSlots is the number of concurrent spans with a slot of their own. Further spans are
// counted, but not shown.
const numSlots = 64

// A Meter measures the operations of a process. The zero value is ready, and a nil one
// measures nothing.
type Meter struct {
	slots [numSlots]slot
	over  [NumOps]counts // of spans that found no slot

	mu   sync.Mutex
	long [numLong]Span // a ring of the latest that were long
	next int
}

type counts struct{ spent, ended atomic.Int64 }

// slot is one span's while it lasts.
type slot struct {
	state atomic.Uint32 // 0: free; 1: it is being taken; otherwise the operation, and 2 more
	began atomic.Int64
	id    atomic.Pointer[string]
	of    [NumOps]counts
	_     [64]byte // the next one's cache line is another
}

// nearby holds, for each processor, the slot that it used last, whose lines are in its
// cache.
var nearby = sync.Pool{New: func() any { return new(rand.Uint32()) }}

// probes is how many slots are looked at for a free one.
const probes = 8

// Mark is a span that has begun. The zero value marks no span.
type Mark struct {
	slot   *slot
	region *trace.Region
	began  int64
	op     Op
	on     bool
}

// Began is when the operation began.
func (m *Mark) Began() int64 { return m.began }

// Begin begins an operation at now, on trace's clock. id is the request's, or nil for
// several requests; it must not change any more.
func (m *Meter) Begin(op Op, id *string, now int64) Mark {
	if m == nil {
		return Mark{}
	}
	mark := Mark{began: now, op: op, on: true}
	near := nearby.Get().(*uint32)
	for i := range uint32(probes) {
		at := (*near + i) % numSlots
		s := &m.slots[at]
		if s.state.Load() == 0 && s.state.CompareAndSwap(0, 1) {
			s.began.Store(now)
			s.id.Store(id)
			s.state.Store(uint32(op) + 2)
			mark.slot, *near = s, at
			break
		}
	}
	nearby.Put(near)
	if id != nil && trace.IsEnabled() {
		ctx := context.Background()
		mark.region = trace.StartRegion(ctx, names[op])
		trace.Log(ctx, "request_id", *id)
	}
	return mark
}

// End ends the span of a Begin. If the runtime traces, it must be called by the goroutine
// that called Begin.
func (m *Meter) End(mark Mark, now int64) {
	if m == nil || !mark.on {
		return
	}
	took := max(now-mark.began, 0)
	of := &m.over[mark.op]
	if mark.slot != nil {
		of = &mark.slot.of[mark.op]
	}
	of.spent.Add(took)
	of.ended.Add(1)
	if took >= int64(Long) {
		m.keep(mark, now)
	}
	if mark.slot != nil {
		mark.slot.state.Store(0)
	}
	if mark.region != nil {
		mark.region.End()
	}
}

const (
	// Long is from when on a span that has ended is kept for a while, with its request.
	Long    = 5 * time.Millisecond
	numLong = 256
)

// Span is an operation that runs or ran.
type Span struct {
	Op         Op
	RequestID  string // empty where it is of several
	Began, End int64  // End is 0 while it runs
}

func (m *Meter) keep(mark Mark, now int64) {
	s := Span{Op: mark.op, Began: mark.began, End: now}
	if mark.slot != nil {
		if id := mark.slot.id.Load(); id != nil {
			s.RequestID = *id
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.long[m.next] = s
	m.next = (m.next + 1) % numLong
}

// Running returns what runs now, the longest first.
func (m *Meter) Running() (all []Span) {
	if m == nil {
		return nil
	}
	for i := range m.slots {
		s := &m.slots[i]
		state := s.state.Load()
		if state < 2 {
			continue
		}
		span := Span{Op: Op(state - 2), Began: s.began.Load()}
		if id := s.id.Load(); id != nil {
			span.RequestID = *id
		}
		if s.state.Load() == state && s.began.Load() == span.Began { // it is still the same
			all = append(all, span)
		}
	}
	slices.SortStableFunc(all, func(a, b Span) int { return cmp.Compare(a.Began, b.Began) })
	return all
}

// During returns what ran between two moments for Long or longer, what still runs among it.
func (m *Meter) During(from, to int64) (all []Span) {
	if m == nil {
		return nil
	}
	for _, s := range m.Running() {
		if s.Began < to {
			all = append(all, s)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.long {
		if s := &m.long[i]; s.End > from && s.Began < to {
			all = append(all, *s)
		}
	}
	return all
}

// Spent is how long each operation took so far, what runs now among it.
type Spent [NumOps]int64

// Sub returns what was spent since an earlier time.
func (s Spent) Sub(before Spent) Spent {
	for i := range s {
		s[i] = max(s[i]-before[i], 0)
	}
	return s
}

// Spent returns how long each operation took until now.
func (m *Meter) Spent(now int64) (s Spent) {
	if m == nil {
		return s
	}
	for i := range m.over {
		s[i] = m.over[i].spent.Load()
	}
	for i := range m.slots {
		at := &m.slots[i]
		if state := at.state.Load(); state >= 2 {
			s[state-2] += max(now-at.began.Load(), 0)
		}
		for op := range at.of {
			s[op] += at.of[op].spent.Load()
		}
	}
	return s
}

// Totals returns how long each operation took and how often it was begun, as far as it has
// ended. Neither goes down.
func (m *Meter) Totals() (spent Spent, ended [NumOps]int64) {
	if m == nil {
		return spent, ended
	}
	add := func(op int, c *counts) {
		spent[op] += c.spent.Load()
		ended[op] += c.ended.Load()
	}
	for op := range m.over {
		add(op, &m.over[op])
	}
	for i := range m.slots {
		for op := range m.slots[i].of {
			add(op, &m.slots[i].of[op])
		}
	}
	return spent, ended
}

// Now reads the clock of Begin and End. A nil Meter returns 0 at no cost.
func (m *Meter) Now() int64 {
	if m == nil {
		return 0
	}
	return clock.Now()
}
