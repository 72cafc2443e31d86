//go:build linux

package main

import "time"

// tick is how often an engine wakes up to send what is due. It is no fraction
// of the kernel's own tick, by which CPU profiles are sampled: in step with it
// the samples would always meet the same part of the work.
const tick = 487_313 * time.Nanosecond

// Load is what the engine and the clients do in a cell.
type Load struct {
	Name    string
	Streams int
	// Rate is tokens per second of each stream; 0 is as fast as its connection
	// takes them, which only a relayed engine can know.
	Rate float64
	// Spread puts the streams' tokens evenly over the step; otherwise all
	// streams step at one instant.
	Spread bool
	// Idle streams get one token and then nothing until the load's end.
	Idle bool
	// Probes are new requests, each of ProbeTokens, that begin one after the
	// other during the measured window.
	Probes int
}

// ProbeTokens is the length of a probe's output.
const probeTokens = 8

// Times of a cell after its start.
type Times struct {
	Warm    time.Duration // before the window
	Measure time.Duration // the window
	Tail    time.Duration // after it the streams end
	Drain   time.Duration // wait for streams to end after that
}

func (t Times) end() time.Duration { return t.Warm + t.Measure + t.Tail }

// schedule says when each token is due, as nanoseconds after the start. Tokens
// are numbered over all streams in the order they are due: token n belongs to
// stream n mod streams and is its token n / streams.
type schedule struct {
	streams int
	period  int64 // of one stream, ns
	step    int64 // between neighbours, ns; 0: all at one instant
	tokens  int   // of each stream
}

// newSchedule gives the schedule of a load with a rate.
func newSchedule(l Load, t Times) schedule {
	if l.Idle {
		return schedule{streams: l.Streams, period: int64(t.end()), tokens: 1}
	}
	s := schedule{streams: l.Streams, period: int64(float64(time.Second) / l.Rate)}
	s.tokens = int(int64(t.end()) / s.period)
	if l.Spread {
		s.step = s.period / int64(l.Streams)
	}
	return s
}

// due is when token n is due.
func (s schedule) due(n int) int64 {
	return int64(n/s.streams)*s.period + int64(n%s.streams)*s.step
}

// total is the number of tokens of all streams.
func (s schedule) total() int { return s.tokens * s.streams }

// between counts the tokens due from one moment up to before another.
func (s schedule) between(from, to int64) int { return s.before(to) - s.before(from) }

// before counts the tokens due before a moment.
func (s schedule) before(at int64) int {
	lo, hi := 0, s.total()
	for lo < hi {
		mid := (lo + hi) / 2
		if s.due(mid) < at {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// nextStep is the first moment at or after at when streams step, which is when
// a stream that came late gets its first token.
func (s schedule) nextStep(at int64) int64 {
	if s.step > 0 || s.period == 0 {
		return at
	}
	return (at + s.period - 1) / s.period * s.period
}
