package shared

import "time"

// State is how the store answers.
type State string

const (
	Up   State = "up"   // in time: requests wait for its decisions
	Slow State = "slow" // too late for requests; what they use is counted there all the same
	Out  State = "out"  // not at all
)

// condition follows how the store answers. It is pure.
type condition struct {
	bound  time.Duration // for which a request may wait
	state  State
	since  time.Time
	reason string // why it is not up
	logged bool   // that it is not up
}

// steady is how long the store must have been slow or out before the log has it: one answer that
// is late is only counted.
const steady = time.Second

func (c *condition) change(to State, reason string, now time.Time) {
	if to != c.state {
		if c.state == Up || to == Up {
			c.since = now
		}
		c.state = to
	}
	c.reason = reason
}

// answered notes an answer that took so long.
func (c *condition) answered(took time.Duration, now time.Time) {
	if took > c.bound {
		c.change(Slow, "an answer took "+took.Round(100*time.Microsecond).String(), now)
		return
	}
	c.change(Up, "", now)
}

// failed notes that there is no answer.
func (c *condition) failed(err error, now time.Time) { c.change(Out, err.Error(), now) }

// late notes that a request has waited in vain.
func (c *condition) late(now time.Time) {
	if c.state == Up {
		c.change(Slow, "there is no answer after "+c.bound.String(), now)
	}
}

// news returns what to log now, if anything: that the store has not been up for a while, or that
// it is up again.
func (c *condition) news(now time.Time) (down, again bool) {
	switch {
	case c.state != Up && !c.logged && now.Sub(c.since) >= steady:
		c.logged = true
		return true, false
	case c.state == Up && c.logged:
		c.logged = false
		return false, true
	}
	return false, false
}
