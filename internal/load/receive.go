package load

import (
	"fmt"
	"strings"

	"weir/internal/wire/sock"
	"weir/internal/workload/latency"
)

// Receive describes how receive times were taken, and how accurate they are.
type Receive struct {
	// Stamps names the clock of an event's time: the kernel's when the last byte arrived,
	// or the reader's after reading.
	Stamps Stamps `json:"stamps"`
	// Why is the reason if they are not the kernel's.
	Why string `json:"why,omitempty"`
	// DelayedAcks reports whether acknowledgements were delayed, as asked.
	DelayedAcks bool `json:"delayed_acks,omitempty"`
	// Unstamped counts reads without a kernel stamp; their time is the reader's.
	Unstamped int64 `json:"unstamped"`
	// Late is the time from the arrival of a read's last byte to the read or, if the read
	// contains an event with an unknown time, from the earliest time at which any of it may
	// have arrived. So it is the generator's lateness. Kernel stamps keep it out of the
	// latencies, except for the unknown part.
	Late latency.Judged `json:"late_ms"`
	// Together counts events with content that came in the same read as the one before,
	// because the server sent them together or because the generator was late. The gap
	// between the two is 0.
	Together int64 `json:"together"`
	// Unknown counts events with content that came in one read with later bytes, and in
	// several segments. They have the stamp of the last segment, and arrived at some time
	// since nothing was left to read. UnknownFirst counts requests whose first content is
	// such an event. The bounds of TTFT, TPOT and ITL include this uncertainty.
	Unknown      int64 `json:"unknown"`
	UnknownFirst int64 `json:"unknown_first"`
}

// Stamps names the clock of a receive time.
type Stamps string

// Whose they are.
const (
	KernelStamps Stamps = "kernel"
	ReaderStamps Stamps = "reader"
)

// listen decides how answers are received, and makes the client ready for it until
// stop is called.
func (r *runner) listen() (how Receive, stop func()) {
	why := ""
	switch {
	case r.plan.ReadRate > 0 || r.plan.StopReadingAfter > 0:
		why = "reading is slowed down as asked"
	case r.client.target.tls:
		stop, err := sock.Stamps()
		if err == nil {
			r.client.stamps = true
			return Receive{Stamps: KernelStamps}, stop
		}
		why = err.Error()
	default:
		p, err := newPoller(r.plan.DelayAcks)
		if err == nil {
			r.client.poller = p
			return Receive{Stamps: KernelStamps, DelayedAcks: r.plan.DelayAcks}, p.close
		}
		why = err.Error()
	}
	return Receive{Stamps: ReaderStamps, Why: why}, func() {}
}

// describe writes it for a person.
func (r *Receive) describe(events int64) string {
	var b strings.Builder
	if r.Stamps != KernelStamps {
		fmt.Fprintf(&b, "stamped when read (%s)", r.Why)
	} else {
		fmt.Fprintf(&b, "stamped by the kernel; read late by p50 %s, p99 %s, max %s ms", millis(r.Late.P50), millis(r.Late.P99), millis(r.Late.Max))
		if r.DelayedAcks {
			b.WriteString("; acknowledgements delayed")
		}
		if r.Unstamped > 0 {
			fmt.Fprintf(&b, "; %d reads without a stamp", r.Unstamped)
		}
	}
	if events > 0 && r.Together > 0 {
		fmt.Fprintf(&b, "; %.2f %% of events came together with the one before", 100*float64(r.Together)/float64(events))
	}
	if events > 0 && r.Unknown > 0 {
		fmt.Fprintf(&b, "; %.2f %% have no time of their own", 100*float64(r.Unknown)/float64(events))
	}
	return b.String()
}
