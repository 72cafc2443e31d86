package fenced

import (
	"sync/atomic"
	"time"

	"weir/internal/engine/mux"
)

// Loss is why a session ended.
type Loss = mux.Loss

// Figures are an engine's counters and gauges, of all its ranks together.
type Figures struct {
	Sessions  uint64                // sessions opened
	Lost      [mux.NumLosses]uint64 // sessions ended, by why
	Messages  uint64                // received
	IDs       uint64                // token ids in them
	Dispatch  time.Duration         // time spent decoding messages and handing them to streams
	Submitted uint64                // requests handed over
	Accepted  uint64                // and confirmed
	Aborts    uint64                // aborts sent
	Fences    uint64                // calls answered
	FenceLast time.Duration         // how long the last one took
	Late      uint64                // outputs of requests that nobody waits for
	Broken    uint64                // requests ended because their output does not add up
	Ready     int                   // ranks that can be given requests
	Live      int                   // requests that have not ended
	Running   int                   // in the engines' batches, as they last said
	Waiting   int                   // in their queues
}

// Meters are what Figures are read from.
type Meters struct {
	Sessions, Messages, IDs, Submitted, Accepted, Aborts, Fences, Late, Broken atomic.Uint64

	Dispatch, FenceLast atomic.Int64
	Lost                [mux.NumLosses]atomic.Uint64
}

// Message counts one.
func (m *Meters) Message(ids int) {
	m.Messages.Add(1)
	m.IDs.Add(uint64(ids))
}

// Figures gives the counters as they stand. They are read one by one, so that two
// of them may be a message apart. Gauges are the adapter's to add.
func (m *Meters) Figures() Figures {
	f := Figures{
		Sessions: m.Sessions.Load(), Messages: m.Messages.Load(), IDs: m.IDs.Load(),
		Dispatch:  time.Duration(m.Dispatch.Load()),
		Submitted: m.Submitted.Load(), Accepted: m.Accepted.Load(), Aborts: m.Aborts.Load(),
		Fences: m.Fences.Load(), FenceLast: time.Duration(m.FenceLast.Load()),
		Late: m.Late.Load(), Broken: m.Broken.Load(),
	}
	for i := range m.Lost {
		f.Lost[i] = m.Lost[i].Load()
	}
	return f
}
