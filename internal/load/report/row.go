package report

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"weir/internal/load"
	"weir/internal/trace"
)

// Row is one request. Stamps are nanoseconds of the client's clock, 0 where
// nobody gave one.
type Row struct {
	load.Sample
	// Gateway is the timeline's record, nil where none was joined.
	Gateway *Record

	Engine, PrefillEngine string
	Attempts              int

	Arrival, ToServer          int64
	ServerCreated              int64
	QueueStart, QueueEnd       int64
	ServerFirstToken           int64
	Finish                     int64
	PrefillStart, PrefillEnd   int64
	FirstOutput                int64
	FirstReceived              int64
	FirstSent, FirstFlushed    int64
	LastReceived               int64
	TokenizeStart, TokenizeEnd int64
	Received, Acked            int64
	// The points of a pair, as in the timeline.
	Met, Prefilled, Transferred, Running int64
}

// Book gathers the requests of a run. Its methods may be called from any
// goroutine.
type Book struct {
	mu      sync.Mutex
	samples []load.Sample
	records map[string]*Record
	boot    string
	clock   Clock
}

// Add books a request that has ended; it is copied.
func (b *Book) Add(s *load.Sample) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := *s
	c.Chunks = slices.Clone(s.Chunks)
	b.samples = append(b.samples, c)
}

// Rows returns the requests in the order of their index, with the joined records.
func (b *Book) Rows() []Row {
	b.mu.Lock()
	defer b.mu.Unlock()
	rows := make([]Row, len(b.samples))
	for i := range b.samples {
		rows[i].Sample = b.samples[i]
		rows[i].Gateway = b.records[b.samples[i].RequestID]
	}
	slices.SortFunc(rows, func(x, y Row) int { return x.Index - y.Index })
	b.clock = settle(rows)
	for i := range rows {
		rows[i].join(b.clock)
	}
	return rows
}

// Clock returns how the other clocks' stamps were brought onto the client's. It is
// known once the rows are.
func (b *Book) Clock() Clock {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.clock
}

// join fills in the stamps of a row.
func (r *Row) join(c Clock) {
	g := r.Gateway
	if g == nil {
		r.alone(c.Server)
		return
	}
	at := func(stamp int64) int64 { return c.Gateway.apply(stamp) }
	r.Arrival, r.Finish = at(g.Arrival), at(g.Finished)
	r.TokenizeStart, r.TokenizeEnd = at(g.TokenizeStart), at(g.TokenizeEnd)
	r.FirstReceived, r.FirstFlushed = at(g.FirstReceived), at(g.FirstFlushed)
	r.Received, r.FirstSent, r.LastReceived = at(g.Received), at(g.FirstSent), at(g.LastReceived)
	r.Attempts = len(g.Attempts)
	leg := g.leg()
	if leg == nil {
		return
	}
	r.Engine, r.ToServer, r.Acked = leg.Engine, at(leg.ToServer), at(leg.Acked)
	r.ServerCreated, r.QueueStart, r.QueueEnd = at(leg.ServerCreated), at(leg.QueueStart), at(leg.QueueEnd)
	r.PrefillStart, r.PrefillEnd = at(leg.PrefillStart), at(leg.PrefillEnd)
	r.ServerFirstToken, r.FirstOutput = at(leg.FirstToken), at(leg.FirstOutput)
	prefill := g.prefill()
	if prefill == nil {
		return
	}
	r.PrefillEngine = prefill.Engine
	if first := at(prefill.ToServer); first != 0 && (r.ToServer == 0 || first < r.ToServer) {
		r.ToServer = first
	}
	r.PrefillStart, r.PrefillEnd = at(cmp.Or(prefill.PrefillStart, leg.PrefillStart)), at(cmp.Or(prefill.PrefillEnd, leg.PrefillEnd))
	if p := g.Pair; p != nil {
		r.Met, r.Prefilled, r.Transferred, r.Running = at(p.Met), at(p.Prefilled), at(p.Transferred), at(p.Running)
	}
}

// alone fills in the row of a request without a gateway: the client is where
// the gateway would be.
func (r *Row) alone(o Offset) {
	r.Attempts = 1
	if r.Sent == 0 {
		r.Attempts = 0
		r.Arrival, r.Finish = r.Started, r.LastByte
		return
	}
	r.Arrival, r.ToServer, r.Finish = r.Sent, r.Sent, r.LastByte
	r.FirstReceived = r.FirstContent
	r.ServerCreated, r.QueueEnd = o.apply(epoch(r.Server.Received)), o.apply(epoch(r.Server.ForwardEntry))
	if r.QueueEnd != 0 && r.Server.QueueTime >= 0 {
		r.QueueStart = r.QueueEnd - int64(r.Server.QueueTime*1e9)
	}
	r.PrefillEnd, r.FirstOutput = o.apply(epoch(r.Server.PrefillFinished)), o.apply(epoch(r.Server.ResponseSent))
	r.PrefillStart, r.ServerFirstToken = o.apply(epoch(r.Server.PrefillStart)), o.apply(epoch(r.Server.FirstToken))
	r.QueueStart = cmp.Or(o.apply(epoch(r.Server.QueueStart)), r.QueueStart)
}

// epoch returns the stamp of seconds since 1970, 0 of none.
func epoch(seconds float64) int64 {
	if seconds <= 0 {
		return 0
	}
	whole := int64(seconds)
	return trace.Stamp(time.Unix(whole, int64((seconds-float64(whole))*1e9)))
}

// between is the time between two stamps; ok is false where one is missing.
func between(from, to int64) (ns int64, ok bool) {
	if from == 0 || to == 0 {
		return 0, false
	}
	return to - from, true
}

// TTFT is the time to first content as the row's columns have it: to the
// gateway's first write of output, and without one to the client's first read.
func (r *Row) TTFT() (ns int64, ok bool) {
	if g := r.Gateway; g != nil {
		ns, ok = between(r.Arrival, r.FirstFlushed)
		return ns, ok && g.Stream
	}
	if !r.Streamed() {
		return 0, false
	}
	return between(r.Arrival, r.FirstContent)
}
