package watch

import (
	"slices"
	"testing"
	"time"
)

// looks is a detector that is given a look each 250 ms.
type looks struct {
	*Detector
	at int64
}

// pass has time pass with the same to see, and gives the triggers that began and ended, and
// how many lines were due.
func (l *looks) pass(of time.Duration, see Look) (began, ended []Trigger, lines int) {
	for range of / (250 * time.Millisecond) {
		l.at += int64(250 * time.Millisecond)
		see.At = l.at
		c := l.Look(see)
		began = append(began, c.Began...)
		for _, e := range c.Ended {
			ended = append(ended, e.Trigger)
		}
		if c.Line {
			lines++
		}
	}
	return began, ended, lines
}

// Each trigger begins when its condition has lasted, has a line every five seconds, and is
// over five seconds after the condition.
func TestDetector(t *testing.T) {
	limits := Limits{Streams: 800, OutputDelay: time.Second, QueueWait: 10 * time.Second, CPU: .8}
	for _, c := range []struct {
		trigger Trigger
		see     Look
		after   time.Duration
		not     Look // a little less does not count
	}{
		{TriggerCPU, Look{CPUShare: .8}, 5 * time.Second, Look{CPUShare: .79}},
		{TriggerBacklog, Look{Streams: 800, Pending: 40}, time.Second, Look{Streams: 799, Pending: 700}},
		{TriggerBacklog, Look{Streams: 2000, Pending: 100}, time.Second, Look{Streams: 2000, Pending: 99}},
		{TriggerOutput, Look{Outputs: 10, OutputP99: 1001 * time.Millisecond}, 250 * time.Millisecond, Look{Outputs: 9, OutputP99: time.Minute}},
		{TriggerQueue, Look{QueueWait: 11 * time.Second}, 250 * time.Millisecond, Look{QueueWait: 10 * time.Second}},
		{TriggerStall, Look{Stalled: true}, 250 * time.Millisecond, Look{}},
	} {
		l := looks{Detector: NewDetector(limits)}
		if began, _, lines := l.pass(time.Minute, c.not); began != nil || lines != 0 {
			t.Errorf("%v: %+v begins %v", c.trigger, c.not, began)
		}
		if began, _, _ := l.pass(c.after-250*time.Millisecond, c.see); began != nil {
			t.Errorf("%v begins too soon", c.trigger)
		}
		l.pass(250*time.Millisecond, c.not) // interrupted: it begins anew
		if c.after > 250*time.Millisecond {
			if began, _, _ := l.pass(c.after-250*time.Millisecond, c.see); began != nil {
				t.Errorf("%v begins although it was interrupted", c.trigger)
			}
		}
		began, _, lines := l.pass(250*time.Millisecond, c.see)
		if !slices.Equal(began, []Trigger{c.trigger}) || lines != 1 || !slices.Equal(l.Active(), began) {
			t.Errorf("%v: began %v with %d lines", c.trigger, began, lines)
		}
		if began, ended, lines := l.pass(20*time.Second, c.see); began != nil || ended != nil || lines != 4 {
			t.Errorf("%v in 20 s: began %v, ended %v, %d lines", c.trigger, began, ended, lines)
		}
		if _, ended, _ := l.pass(4750*time.Millisecond, c.not); ended != nil {
			t.Errorf("%v ended too soon", c.trigger)
		}
		if _, ended, _ := l.pass(250*time.Millisecond, c.not); !slices.Equal(ended, []Trigger{c.trigger}) || len(l.Active()) != 0 {
			t.Errorf("%v: ended %v", c.trigger, ended)
		}
	}
}

// With all limits 0 only a stall is a trigger.
func TestDetectorOff(t *testing.T) {
	l := looks{Detector: NewDetector(Limits{})}
	if began, _, _ := l.pass(time.Minute, Look{CPUShare: 1, Streams: 1e6, Pending: 1e6, Outputs: 1e6, OutputP99: time.Hour, QueueWait: time.Hour}); began != nil {
		t.Errorf("began %v", began)
	}
}

// A percentile is at most a quarter above what was observed, and of nothing is nothing.
func TestDelays(t *testing.T) {
	var d delays
	before := d.read()
	if p, n := before.p99(&before); p != 0 || n != 0 {
		t.Errorf("of nothing: %v of %d", p, n)
	}
	for i := range 1000 {
		d.observe(time.Duration(i+1) * time.Millisecond)
	}
	after := d.read()
	if p, n := after.p99(&before); n != 1000 || p < 990*time.Millisecond || p > 1250*time.Millisecond {
		t.Errorf("%v of %d", p, n)
	}
	for _, of := range []time.Duration{0, time.Nanosecond, time.Microsecond, 3 * time.Microsecond, 17 * time.Millisecond, time.Second, 5 * time.Hour} {
		if got := above(class(of)); got < of || of >= 4*time.Microsecond && got > of*5/4+time.Microsecond {
			t.Errorf("%v is counted as up to %v", of, got)
		}
	}
	d.observe(time.Duration(1<<63 - 1))
}
