package plane

import (
	"math"
	"time"
)

// offset says how to bring an engine's stamp to the gateway's clock.
type offset struct {
	ns        int64 // engine's clock minus gateway's
	uncertain int64 // half-width of the error of ns
	known     bool
}

// toGateway converts one stamp. Zero, which means not known, stays zero, and
// so does everything while the offset is not known: a stamp is never guessed.
func (o offset) toGateway(stamp uint64) int64 {
	if stamp == 0 || !o.known {
		return 0
	}
	return int64(stamp) - o.ns
}

// clockDrift bounds how fast two machines' clocks run apart, in ns per ns.
// Crystals are specified to 50 ppm, and there are two of them.
const clockDrift = 100e-6

const clockSamples = 64

// clock estimates the offset of an engine's clock from pings. Of the recent
// samples it believes the one whose bound is tightest now: half the round trip
// (the reply was stamped at some moment of it), plus what the clocks may have
// drifted since.
type clock struct {
	samples [clockSamples]clockSample
	n       int
}

type clockSample struct {
	offset, half, at int64
}

// add takes in a ping sent and answered at the gateway's sent and received,
// and stamped by the engine in between. It reports whether the sample makes
// sense.
func (c *clock) add(sent, engine, received int64) bool {
	rtt := received - sent
	if rtt < 0 {
		return false
	}
	c.samples[c.n%clockSamples] = clockSample{
		offset: engine - (sent + rtt/2),
		half:   rtt/2 + 1,
		at:     sent, // the stamp may be that old already
	}
	c.n++
	return true
}

// best gives the estimate at a moment.
func (c *clock) best(now int64) offset {
	o := offset{uncertain: math.MaxInt64}
	for i := range min(c.n, clockSamples) {
		s := &c.samples[i]
		bound := s.half + int64(clockDrift*float64(now-s.at))
		if bound < o.uncertain {
			o = offset{ns: s.offset, uncertain: bound, known: true}
		}
	}
	return o
}

// watchdog decides when an engine that says nothing is lost, or a connection on
// which nothing comes.
//
// Busy is not broken. Whatever the engine sends, a step or the answer to a
// ping, is a sign of life, so that an engine whose control handler starves
// while its steps flow is not given up, nor one in a long prefill that still
// answers pings; and of a connection it is any byte. And our own lateness must
// not count: when this process was
// stopped or starved, answers sit unread in the socket and the wall clock says
// nothing about the engine. So silence is added up from ticks, and a tick that
// comes late counts for no more than one that comes in time. A process that
// gets to run its ticks also gets to read what has arrived between them; only
// a bound's worth of ticks in a row without anything read is a loss.
type watchdog struct {
	interval time.Duration // between ticks when all is well
	bound    time.Duration
	heard    uint64
	silent   time.Duration
}

// tick takes in how many signs of life were ever heard, and the time since the
// last tick. It reports whether the bound is reached.
func (w *watchdog) tick(heard uint64, elapsed time.Duration) bool {
	if heard != w.heard {
		w.heard, w.silent = heard, 0
		return false
	}
	w.silent += min(elapsed, w.interval)
	return w.silent >= w.bound
}
