package plane

import (
	"sync/atomic"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/mux"
)

// Figures are an Engine's own figures since it was made, for metrics. The
// times to dispatch and to wait are how one sees on which side of the reader a
// backlog stands: a reader that hardly waits is the bottleneck.
type Figures struct {
	mux.Figures
	ConnectFailures uint64        // tries that did not end in a session
	Bytes           uint64        // of the steps
	Batches         uint64        // messages that handed in requests, several at a time
	Slow            uint64        // steps whose dispatch took longer than slowDispatch
	Wait            time.Duration // for a step to arrive

	Pings          uint64 // pings answered
	PingLast       time.Duration
	ClockKnown     bool          // engine stamps can be converted
	ClockOffset    time.Duration // engine's clock minus gateway's
	ClockUncertain time.Duration // half-width of its error
}

// slowDispatch is what the dispatch of a step may take: others wait for the reader
// meanwhile.
const slowDispatch = time.Millisecond

// meters are the figures as they are kept. Each has one writer, except those
// that Generate counts.
type meters struct {
	mux.Meters
	connectFailures, bytes atomic.Uint64
	batches                atomic.Uint64 // messages that carried requests, of the Submissions call
	slow                   atomic.Uint64
	wait                   atomic.Int64
	pings                  atomic.Uint64
	pingLast               atomic.Int64
	running, waiting       atomic.Uint32
}

// step counts a step in; the reader calls it.
func (m *meters) step(f *frame) {
	m.Frame(len(f.id))
	m.bytes.Add(uint64(f.size))
	m.running.Store(f.running)
	m.waiting.Store(f.waiting)
}

// dispatched counts the time of a step in; the reader calls it.
func (m *meters) dispatched(waited, took int64) {
	m.wait.Add(waited)
	m.Dispatch.Add(took)
	if took > int64(slowDispatch) {
		m.slow.Add(1)
	}
}

// pinged counts a ping's round trip in; the control reader calls it.
func (m *meters) pinged(rtt int64) {
	m.pings.Add(1)
	m.pingLast.Store(rtt)
}

// Figures returns the figures as they stand. They are read one by one, so that two of
// them may be a step apart.
func (e *Engine) Figures() Figures {
	m := &e.meters
	f := Figures{
		Figures:         m.Figures(),
		ConnectFailures: m.connectFailures.Load(),
		Bytes:           m.bytes.Load(),
		Batches:         m.batches.Load(),
		Slow:            m.slow.Load(),
		Wait:            time.Duration(m.wait.Load()),
		Pings:           m.pings.Load(),
		PingLast:        time.Duration(m.pingLast.Load()),
	}
	if s := e.current.Load(); s != nil {
		f.Live = s.table.live()
		o := s.offset()
		f.ClockKnown, f.ClockOffset, f.ClockUncertain = o.Known, time.Duration(o.NS), time.Duration(o.Uncertain)
	}
	return f
}

// Load implements engine.Loaded, as of the latest step.
func (e *Engine) Load() (engine.Load, bool) {
	l := engine.Load{Running: int(e.meters.running.Load()), Waiting: int(e.meters.waiting.Load()), KVUsage: -1}
	return l, e.current.Load() != nil
}
