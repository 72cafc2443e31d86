package plane

import (
	"sync/atomic"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/mux"
)

// Loss is why a session ended.
type Loss = mux.Loss

// Figures are an Engine's own figures since it was made, for metrics. The
// times to dispatch and to wait are how one sees on which side of the reader a
// backlog stands: a reader that hardly waits is the bottleneck.
type Figures struct {
	Sessions        uint64                // sessions that came up
	ConnectFailures uint64                // tries that did not end in a session
	Lost            [mux.NumLosses]uint64 // sessions ended, by why

	Frames uint64 // steps received
	IDs    uint64 // ids in them
	Bytes  uint64 // their size

	DispatchSum time.Duration // decoding and handing steps to sinks
	DispatchMax time.Duration // the longest of these for one step
	WaitSum     time.Duration // waiting for a step to arrive

	Submitted uint64 // requests handed to the engine
	Accepted  uint64 // those it confirmed
	Aborts    uint64 // aborts sent
	Late      uint64 // deltas dropped, of requests given up
	Broken    uint64 // generations ended by an integrity error of their own

	Pings          uint64        // pings answered
	PingSum        time.Duration // their round trips
	PingMax        time.Duration
	PingLast       time.Duration
	ClockKnown     bool          // engine stamps can be converted
	ClockOffset    time.Duration // engine's clock minus gateway's
	ClockUncertain time.Duration // half-width of its error

	Live    int    // slots in use
	Running uint32 // in the engine's running batch, as it last said
	Waiting uint32 // in the engine's waiting queue, as it last said
}

// meters are the figures as they are kept. Each has one writer, except those
// that Generate counts, so that maxima need no loop.
type meters struct {
	sessions, connectFailures         atomic.Uint64
	lost                              [mux.NumLosses]atomic.Uint64
	frames, ids, bytes                atomic.Uint64
	dispatchSum, dispatchMax, waitSum atomic.Int64
	submitted, accepted               atomic.Uint64
	aborts, late, broken              atomic.Uint64
	pings                             atomic.Uint64
	pingSum, pingMax, pingLast        atomic.Int64
	running, waiting                  atomic.Uint32
}

// step counts a step in; the reader calls it.
func (m *meters) step(f *frame) {
	m.frames.Add(1)
	m.ids.Add(uint64(len(f.id)))
	m.bytes.Add(uint64(f.size))
	m.running.Store(f.running)
	m.waiting.Store(f.waiting)
}

// dispatched counts the time of a step in; the reader calls it.
func (m *meters) dispatched(waited, took int64) {
	m.waitSum.Add(waited)
	m.dispatchSum.Add(took)
	if took > m.dispatchMax.Load() {
		m.dispatchMax.Store(took)
	}
}

// pinged counts a ping's round trip in; the control reader calls it.
func (m *meters) pinged(rtt int64) {
	m.pings.Add(1)
	m.pingSum.Add(rtt)
	m.pingLast.Store(rtt)
	if rtt > m.pingMax.Load() {
		m.pingMax.Store(rtt)
	}
}

// Figures gives the figures as they stand. They are read one by one, so that
// two of them may be a step apart.
func (e *Engine) Figures() Figures {
	m := &e.meters
	f := Figures{
		Sessions:        m.sessions.Load(),
		ConnectFailures: m.connectFailures.Load(),
		Frames:          m.frames.Load(),
		IDs:             m.ids.Load(),
		Bytes:           m.bytes.Load(),
		DispatchSum:     time.Duration(m.dispatchSum.Load()),
		DispatchMax:     time.Duration(m.dispatchMax.Load()),
		WaitSum:         time.Duration(m.waitSum.Load()),
		Submitted:       m.submitted.Load(),
		Accepted:        m.accepted.Load(),
		Aborts:          m.aborts.Load(),
		Late:            m.late.Load(),
		Broken:          m.broken.Load(),
		Pings:           m.pings.Load(),
		PingSum:         time.Duration(m.pingSum.Load()),
		PingMax:         time.Duration(m.pingMax.Load()),
		PingLast:        time.Duration(m.pingLast.Load()),
		Running:         m.running.Load(),
		Waiting:         m.waiting.Load(),
	}
	for i := range m.lost {
		f.Lost[i] = m.lost[i].Load()
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
