package load

import (
	"fmt"
	"strings"

	"weir/internal/workload/latency"
)

// Calibration is the error with which the generator measured an engine of known
// times, at the load of the run. Times are milliseconds.
type Calibration struct {
	Streams  int     `json:"streams,omitempty"`
	Rate     float64 `json:"rate,omitempty"`
	Requests int     `json:"requests"`
	Complete int     `json:"complete"`
	Tokens   int     `json:"tokens"` // of each
	TTFT     float64 `json:"ttft_asked_ms"`
	ITL      float64 `json:"itl_asked_ms"`

	// TTFTError and ITLError are the differences between the generator's measurements and
	// the engine's own stamps: from the arrival of the request in the engine's kernel until
	// just before the first write, and from write to write.
	TTFTError ErrorOf `json:"ttft_error_ms"`
	ITLError  ErrorOf `json:"itl_error_ms"`
	// The same differences to the requested times, which include the engine's
	// lateness.
	TTFTRaw ErrorOf `json:"ttft_error_raw_ms"`
	ITLRaw  ErrorOf `json:"itl_error_raw_ms"`
	// EngineLate is how late the engine wrote its tokens. EngineCPU is the number of cores
	// that it used; it can use one at most.
	EngineLate ErrorOf `json:"engine_late_ms"`
	EngineCPU  float64 `json:"engine_cpu"`

	Slip            *latency.Judged `json:"slip_ms,omitempty"` // of an open loop
	Elapsed         float64         `json:"elapsed_seconds"`
	EventsPerSecond float64         `json:"events_per_second"`
	CPUPerEvent     float64         `json:"cpu_us_per_event"`
	CPUShare        float64         `json:"cpu_share"`
	Cores           int             `json:"cores"`
	Receive         Receive         `json:"receive"`
	// Unknown counts tokens that came together with others in one event, or of
	// requests that failed, and so have no time to be compared.
	Unknown int `json:"unknown,omitempty"`
	// Limit names what limited the accuracy of the load: "generator", "engine", or
	// nothing.
	Limit string `json:"limit,omitempty"`
}

// ErrorOf holds the figures of an error. P50, P99 and Max are figures of its absolute
// value.
type ErrorOf struct {
	Count int     `json:"count"`
	Mean  float64 `json:"mean"`
	Sigma float64 `json:"sigma"`
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
}

// Bounds of a calibration.
const (
	ttftErrorDegraded, ttftErrorInvalid = 1, 10  // ms, p99
	itlErrorDegraded, itlErrorInvalid   = 0.5, 5 // ms, sigma
	engineFull                          = 0.9    // of its core
)

// Judge sets the limit.
func (c *Calibration) Judge() {
	switch {
	case c.CPUShare > cpuDegraded, c.TTFTError.P99 > ttftErrorDegraded, c.ITLError.Sigma > itlErrorDegraded:
		c.Limit = "generator"
	case c.EngineCPU > engineFull:
		c.Limit = "engine"
	}
}

// reasons reports what makes the generator's figures at this load doubtful.
func (c *Calibration) reasons(say func(t Trust, format string, args ...any)) {
	if failed := c.Requests - c.Complete; failed > 0 {
		say(Degraded, "in its calibration %d of %d requests failed", failed, c.Requests)
	}
	switch e := c.TTFTError.P99; {
	case e > ttftErrorInvalid:
		say(Invalid, "at this load the generator measures TTFT wrong by %.1f ms (p99 of its calibration)", e)
	case e > ttftErrorDegraded:
		say(Degraded, "at this load the generator measures TTFT wrong by %.1f ms (p99 of its calibration)", e)
	}
	switch e := c.ITLError.Sigma; {
	case e > itlErrorInvalid:
		say(Invalid, "at this load the generator measures ITL wrong by %.2f ms (standard deviation in its calibration)", e)
	case e > itlErrorDegraded:
		say(Degraded, "at this load the generator measures ITL wrong by %.2f ms (standard deviation in its calibration)", e)
	}
}

// describe writes it for a person.
func (c *Calibration) describe() string {
	var b strings.Builder
	at := fmt.Sprintf("%d streams", c.Streams)
	if c.Rate > 0 {
		at = fmt.Sprintf("%g requests/s", c.Rate)
	}
	fmt.Fprintf(&b, "at %s of an engine of known times, %.0f events/s: TTFT wrong by p50 %.3f, p99 %.3f ms, ITL by sigma %.3f ms; ", at, c.EventsPerSecond,
		c.TTFTError.P50, c.TTFTError.P99, c.ITLError.Sigma)
	if c.Slip != nil {
		fmt.Fprintf(&b, "slip p99 %s ms; ", millis(c.Slip.P99))
	}
	fmt.Fprintf(&b, "%.2f us of CPU per event", c.CPUPerEvent)
	switch c.Limit {
	case "generator":
		b.WriteString("; the generator is the limit")
	case "engine":
		fmt.Fprintf(&b, "; the engine is the limit (late by p99 %.1f ms, which is not in these errors)", c.EngineLate.P99)
	}
	return b.String()
}
