package watch

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Trigger is a reason to look closer: while one lasts the log reports the activity every
// few seconds, and when it begins a profile is kept.
type Trigger uint8

// The triggers.
const (
	TriggerStall Trigger = iota
	TriggerBacklog
	TriggerOutput
	TriggerQueue
	TriggerCPU
	NumTriggers
)

var triggerNames = [NumTriggers]string{"stall", "backlog", "output_delay", "queue_wait", "cpu"}

// String returns the trigger's name.
func (t Trigger) String() string { return triggerNames[t] }

// Limits are the bounds of the triggers; one that is 0 is off.
type Limits struct {
	// Streams is how many live streams are too many where there is a backlog: where for a
	// second never fewer than one in twenty had output that was not taken.
	Streams int64
	// OutputDelay bounds the 99th percentile, over ten seconds, of the time from a first
	// token's sending by the engine to its writing.
	OutputDelay time.Duration
	// QueueWait bounds the wait of the request that waits longest for an engine.
	QueueWait time.Duration
	// CPU bounds the process's share of its cores over five seconds.
	CPU float64
}

// Look is what was observed since the look before.
type Look struct {
	At       int64
	CPUShare float64
	Streams  int64
	Pending  int64 // the fewest
	// OutputP99 is the percentile that Limits.OutputDelay bounds, of Outputs first tokens.
	OutputP99 time.Duration
	Outputs   int64
	QueueWait time.Duration
	Stalled   bool
}

const (
	lineEvery   = 5 * time.Second // between two lines of the log
	calm        = 5 * time.Second // without its condition a trigger is over
	cpuFor      = 5 * time.Second
	backlogFor  = time.Second
	leastDelays = 10 // of fewer first tokens no percentile is judged
	backlogPart = 20 // one stream in so many
	backlogMin  = 8
)

// Detector derives from looks which triggers last. It takes the time as input.
type Detector struct {
	limits Limits
	last   int64 // the look before
	lined  int64
	states [NumTriggers]triggerState
}

type triggerState struct {
	active bool
	since  int64 // the condition holds since then; 0: it does not
	seen   int64 // when it was seen last
	began  int64 // the trigger
}

// NewDetector makes one.
func NewDetector(l Limits) *Detector { return &Detector{limits: l} }

// Change is what a look has changed.
type Change struct {
	Began []Trigger
	Ended []Ended
	Line  bool // a line of the log is due
}

// Ended is a trigger that is over.
type Ended struct {
	Trigger Trigger
	After   time.Duration
}

// holds reports whether a trigger's condition holds, and for how long it must before it counts.
func (d *Detector) holds(t Trigger, l *Look) (holds bool, needs time.Duration) {
	switch t {
	case TriggerStall:
		return l.Stalled, 0
	case TriggerBacklog:
		return d.limits.Streams > 0 && l.Streams >= d.limits.Streams && l.Pending >= max(backlogMin, l.Streams/backlogPart), backlogFor
	case TriggerOutput:
		return d.limits.OutputDelay > 0 && l.Outputs >= leastDelays && l.OutputP99 > d.limits.OutputDelay, 0
	case TriggerQueue:
		return d.limits.QueueWait > 0 && l.QueueWait > d.limits.QueueWait, 0
	default:
		return d.limits.CPU > 0 && l.CPUShare >= d.limits.CPU, cpuFor
	}
}

// Look processes a look.
func (d *Detector) Look(l Look) (c Change) {
	if d.last == 0 {
		d.last = l.At
	}
	active := false
	for t := range NumTriggers {
		s := &d.states[t]
		holds, needs := d.holds(t, &l)
		switch {
		case holds:
			if s.seen = l.At; s.since == 0 {
				s.since = d.last
			}
			if !s.active && l.At-s.since >= int64(needs) {
				s.active, s.began = true, s.since
				c.Began = append(c.Began, t)
			}
		case !s.active:
			s.since = 0
		case l.At-s.seen >= int64(calm):
			c.Ended = append(c.Ended, Ended{t, time.Duration(s.seen - s.began)})
			*s = triggerState{}
		}
		active = active || s.active
	}
	if len(c.Began) > 0 || active && l.At-d.lined >= int64(lineEvery) {
		c.Line, d.lined = true, l.At
	}
	d.last = l.At
	return c
}

// Active returns the triggers that last.
func (d *Detector) Active() (all []Trigger) {
	for t := range NumTriggers {
		if d.states[t].active {
			all = append(all, t)
		}
	}
	return all
}

// delays counts durations by their magnitude, four classes to each doubling, from many
// goroutines.
type delays [delayClasses]atomic.Int64

const delayClasses = 160

// class returns the class of a duration, in microseconds.
func class(d time.Duration) int {
	us := uint64(max(d.Microseconds(), 1))
	n := bits.Len64(us) // 1 or more
	sub := us << (64 - n) << 1 >> 62
	return min(4*(n-1)+int(sub), delayClasses-1)
}

// above returns the upper end of a class.
func above(class int) time.Duration {
	n, sub := class/4, class%4
	return time.Duration(float64(uint64(1)<<n)*(1+float64(sub+1)/4)) * time.Microsecond
}

func (d *delays) observe(of time.Duration) { d[class(of)].Add(1) }

// spread is the delays counted until a moment.
type spread [delayClasses]int64

func (d *delays) read() (s spread) {
	for i := range d {
		s[i] = d[i].Load()
	}
	return s
}

// p99 returns the 99th percentile of the delays between two readings, and their number.
// The gateway does not use package latency for it: that belongs to what measures it.
func (s *spread) p99(before *spread) (p time.Duration, n int64) {
	for i := range s {
		n += s[i] - before[i]
	}
	left := (n + 99) / 100 // how many lie at or above it
	for i := delayClasses - 1; i >= 0 && n > 0; i-- {
		if left -= s[i] - before[i]; left <= 0 {
			return above(i), n
		}
	}
	return 0, n
}
