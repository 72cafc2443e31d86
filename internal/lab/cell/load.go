//go:build linux

package cell

import "time"

// Tick is the interval at which an engine sends what is due. It is not a fraction of the
// kernel's tick, which samples CPU profiles: in step with it, the samples would always hit
// the same part of the work.
const Tick = 487_313 * time.Nanosecond

// Load is what the engine and the clients do in a cell.
type Load struct {
	Name    string
	Streams int
	// Rate is tokens per second of each stream. 0 means as fast as the connection accepts
	// them, which only a relayed engine can know.
	Rate float64
	// Spread puts the streams' tokens evenly over the step; otherwise all
	// streams step at one instant.
	Spread bool
	// EndOnTime makes a relayed engine end its streams at the end of the load, even if a
	// slow gateway has kept it behind. Otherwise each stream sends its whole schedule,
	// however long that takes. On the plane nothing keeps the engine behind.
	EndOnTime bool
	// Idle streams get one token and then nothing until the load's end.
	Idle bool
	// Length is the tokens of a request, whose connection then carries the next one; 0 is
	// one request for each stream. Those that run at the load's end stop there. A stream's first request is
	// shorter, so that the streams do not end together.
	Length int
	// Prompt is the bytes of each prompt; 0 is a few words.
	Prompt int
	// Probes are new requests, each of ProbeTokens, that begin one after the
	// other during the measured window.
	Probes int
	// Flood is the kind of other requests that come during the load, FloodRate of them in a
	// second; empty: none.
	Flood     string  `json:",omitempty"`
	FloodRate float64 `json:",omitempty"`
	// Apart sends the flood to a second gateway of the same kind, in front of an engine of its
	// own. It is the control: it shows how the streams fare because the machine has more to do.
	Apart bool `json:",omitempty"`
}

// The kinds of floods.
const (
	HangUps   = "hang-ups"  // clients that leave before the first byte
	BadBodies = "bodies"    // that no JSON reader takes
	OneToken  = "one-token" // answers of a single token
)

// ProbeTokens is the length of a probe's output.
const ProbeTokens = 8

// Times of a cell after its start.
type Times struct {
	Warm    time.Duration // before the window
	Measure time.Duration // the window
	Tail    time.Duration // after it the streams end
	Drain   time.Duration // wait for streams to end after that
}

// End is when the streams end.
func (t Times) End() time.Duration { return t.Warm + t.Measure + t.Tail }

// Schedule determines when each token is due, as nanoseconds after the start. Tokens are
// numbered over all streams in the order in which they are due: token n belongs to stream n
// mod streams and is its token n / streams.
type Schedule struct {
	Streams int
	Period  int64 // of one stream, ns
	Step    int64 // between neighbours, ns; 0: all at one instant
	Tokens  int   // of each stream
}

// NewSchedule returns the schedule of a load with a rate.
func NewSchedule(l Load, t Times) Schedule {
	if l.Idle {
		return Schedule{Streams: l.Streams, Period: int64(t.End()), Tokens: 1}
	}
	s := Schedule{Streams: l.Streams, Period: int64(float64(time.Second) / l.Rate)}
	s.Tokens = int(int64(t.End()) / s.Period)
	if l.Spread {
		s.Step = s.Period / int64(l.Streams)
	}
	return s
}

// Due is when token n is due.
func (s Schedule) Due(n int) int64 {
	return int64(n/s.Streams)*s.Period + int64(n%s.Streams)*s.Step
}

// Total is the number of tokens of all streams.
func (s Schedule) Total() int { return s.Tokens * s.Streams }

// Between counts the tokens due from one moment up to before another.
func (s Schedule) Between(from, to int64) int { return s.before(to) - s.before(from) }

// before counts the tokens due before a moment.
func (s Schedule) before(at int64) int {
	lo, hi := 0, s.Total()
	for lo < hi {
		mid := (lo + hi) / 2
		if s.Due(mid) < at {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// NextStep returns the first time at or after at when streams step. A stream that came late
// gets its first token then.
func (s Schedule) NextStep(at int64) int64 {
	if s.Step > 0 || s.Period == 0 {
		return at
	}
	return (at + s.Period - 1) / s.Period * s.Period
}
