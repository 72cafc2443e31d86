// Package remote tracks an engine in another process, perhaps on another machine: the
// offset of its clock, and the silence after which it counts as lost. It is pure: times
// are arguments.
package remote

import (
	"math"
	"time"
)

// Offset states how to bring an engine's stamp to the gateway's clock.
type Offset struct {
	NS        int64 // engine's clock minus gateway's
	Uncertain int64 // half-width of the error of NS
	Known     bool
}

// ToGateway converts one stamp. Zero, which means not known, stays zero, and
// so does everything while the offset is not known: a stamp is never guessed.
func (o Offset) ToGateway(stamp uint64) int64 {
	if stamp == 0 || !o.Known {
		return 0
	}
	return int64(stamp) - o.NS
}

// clockDrift bounds how fast two machines' clocks run apart, in ns per ns.
// Crystals are specified to 50 ppm, and there are two of them.
const clockDrift = 100e-6

const clockSamples = 64

// Clock estimates the offset of an engine's clock from questions that it answers
// with its time, such as pings. It believes the one of the recent samples whose
// bound is tightest now: half the round trip (the reply was stamped at some moment
// of it), plus what the clocks may have drifted since.
type Clock struct {
	samples [clockSamples]clockSample
	n       int
}

type clockSample struct {
	offset, half, at int64
}

// Add takes in a question sent and answered at the gateway's sent and received,
// and stamped by the engine in between. It reports whether the sample makes
// sense.
func (c *Clock) Add(sent, engine, received int64) bool {
	rtt := received - sent
	if rtt < 0 {
		return false
	}
	// A stamp that contradicts the estimate comes from a clock that was set meanwhile,
	// so the earlier samples are no longer valid.
	offset, half := engine-(sent+rtt/2), rtt/2+1
	if was := c.Best(received); was.Known && max(offset-was.NS, was.NS-offset) > half+was.Uncertain {
		c.n = 0
	}
	c.samples[c.n%clockSamples] = clockSample{
		offset: offset,
		half:   half,
		at:     sent, // the stamp may be that old already
	}
	c.n++
	return true
}

// Best returns the estimate at a moment.
func (c *Clock) Best(now int64) Offset {
	o := Offset{Uncertain: math.MaxInt64}
	for i := range min(c.n, clockSamples) {
		s := &c.samples[i]
		bound := s.half + int64(clockDrift*float64(now-s.at))
		if bound < o.Uncertain {
			o = Offset{NS: s.offset, Uncertain: bound, Known: true}
		}
	}
	return o
}

// Watchdog decides when a silent engine, or a silent connection, is lost.
//
// A busy engine is not a lost one. Every message of the engine, a step or the answer to
// a ping, is a sign of life. An engine whose control handler starves while its steps
// flow is therefore kept, and so is one in a long prefill that still answers pings. On
// a connection every byte is a sign of life. Delays of this process must not count:
// when it was stopped or starved, answers wait unread in the socket, and the wall clock
// is meaningless. Silence is therefore the sum of ticks, and a late tick counts as much
// as one on time. A process that runs its ticks also reads the input that arrives
// between them. A loss is a bound's worth of ticks in a row without any input.
type Watchdog struct {
	Interval time.Duration // between ticks when all is well
	Bound    time.Duration // of silence
	// Silent is for how long nothing was heard, as far as it counts.
	Silent time.Duration
	heard  uint64
}

// Tick takes in how many signs of life were ever heard, and the time since the
// last tick. It reports whether the bound is reached.
func (w *Watchdog) Tick(heard uint64, elapsed time.Duration) bool {
	if heard != w.heard {
		w.heard, w.Silent = heard, 0
		return false
	}
	w.Silent += min(elapsed, w.Interval)
	return w.Silent >= w.Bound
}
