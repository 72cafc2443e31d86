package mux

import (
	"sync/atomic"
	"time"

	"weir/internal/engine"
)

// Figures are an adapter's own figures since it was made.
type Figures struct {
	Sessions  uint64            // that came up
	Lost      [NumLosses]uint64 // sessions ended, by why
	Frames    uint64            // received, one per engine step
	IDs       uint64            // token ids in them
	Dispatch  time.Duration     // decoding frames and handing them to sinks
	Submitted uint64            // requests handed to the engine
	Accepted  uint64            // those it confirmed
	Aborts    uint64            // aborts sent
	Late      uint64            // outputs of requests that nobody waits for
	Broken    uint64            // generations ended by an integrity error of their own
	Live      int               // requests that have not ended
}

// Meters are what Figures are read from.
type Meters struct {
	Sessions, Frames, IDs, Submitted, Accepted, Aborts, Late, Broken atomic.Uint64

	Dispatch atomic.Int64
	Lost     [NumLosses]atomic.Uint64
}

// Frame counts one with so many ids.
func (m *Meters) Frame(ids int) {
	m.Frames.Add(1)
	m.IDs.Add(uint64(ids))
}

// Figures returns the counters as they stand. They are read one by one, so that two of
// them may be a frame apart. Gauges are the adapter's to add.
func (m *Meters) Figures() Figures {
	f := Figures{
		Sessions: m.Sessions.Load(), Frames: m.Frames.Load(), IDs: m.IDs.Load(), Dispatch: time.Duration(m.Dispatch.Load()),
		Submitted: m.Submitted.Load(), Accepted: m.Accepted.Load(), Aborts: m.Aborts.Load(), Late: m.Late.Load(), Broken: m.Broken.Load(),
	}
	for i := range m.Lost {
		f.Lost[i] = m.Lost[i].Load()
	}
	return f
}

// Metrics are the figures in the form of engine.Metered. Their names begin with
// prefix, which names the wire; of its sessions' ends those are there that it knows.
func (f *Figures) Metrics(prefix string, ends ...Loss) []engine.Metric {
	list := []engine.Metric{
		engine.NewCounter(prefix+"ids_total", "Token ids received.", float64(f.IDs)),
		engine.NewCounter(prefix+"dispatch_seconds_total", "Time spent decoding what an engine's steps brought and handing it to streams.", f.Dispatch.Seconds()),
		engine.NewCounter(prefix+"aborts_total", "Aborts sent.", float64(f.Aborts)),
		engine.NewCounter(prefix+"late_total", "Outputs of requests that nobody waits for.", float64(f.Late)),
	}
	for _, why := range ends {
		list = append(list, engine.NewCounter(prefix+"sessions_lost_total", "Sessions that ended, by why.", float64(f.Lost[why])).With("why", why.String()))
	}
	return list
}
