package health

import (
	"cmp"
	"time"
)

// Limits are the bounds by which ranks are judged. What is zero has its default.
type Limits struct {
	// Soft is the least silence of a soft rank (1 s). It is more where the rank's own
	// gaps are usually longer than a Gaps-th of it (5), and where the work booked there
	// explains more.
	Soft time.Duration
	Gaps float64
	// Suspect is the least silence of a suspect one, and how long a probe is waited
	// for at least (10 s); both are at least Work times the predicted work (3).
	Suspect time.Duration
	Work    float64
	// First bounds the wait for a probe where no work can be predicted (60 s).
	First time.Duration
	// Faults is how many in a row make a suspect (3).
	Faults int
	// Hold is how long a rank stays down the first time (1 s). It doubles with each
	// time, up to LongestHold (1 min), and a Calm (1 min) in which it is up takes one
	// time back.
	Hold, LongestHold, Calm time.Duration
	// Retry is the time between probes of a rank that stays suspect or down (2 s).
	Retry time.Duration
	// SlowStart is how long requests are limited after a return (8 s).
	SlowStart time.Duration
	// Share is the greatest share of the ranks of one model that is down by judgement
	// (0.5). One may always be, while another might serve.
	Share float64
	// Tick is the time between calls of Fleet.Tick (100 ms).
	Tick time.Duration
}

// longer is the time between one return and the next where nothing was shown in between:
// Suspect, and twice as long each time, up to six to twelve times as long.
func (l *Limits) longer(returns int) time.Duration {
	d := l.Suspect
	for i := 0; i < returns && d < 6*l.Suspect; i++ {
		d *= 2
	}
	return d
}

func (l Limits) orDefaults() Limits {
	l.Soft = cmp.Or(l.Soft, time.Second)
	l.Gaps = cmp.Or(l.Gaps, 5)
	l.Suspect = cmp.Or(l.Suspect, 10*time.Second)
	l.Work = cmp.Or(l.Work, 3)
	l.First = cmp.Or(l.First, time.Minute)
	l.Faults = cmp.Or(l.Faults, 3)
	l.Hold = cmp.Or(l.Hold, time.Second)
	l.LongestHold = cmp.Or(l.LongestHold, time.Minute)
	l.Calm = cmp.Or(l.Calm, time.Minute)
	l.Retry = cmp.Or(l.Retry, 2*time.Second)
	l.SlowStart = cmp.Or(l.SlowStart, 8*time.Second)
	l.Share = cmp.Or(l.Share, 0.5)
	l.Tick = cmp.Or(l.Tick, 100*time.Millisecond)
	return l
}
