package prepare

import (
	"math"
	"net/http"
	"strconv"
	"time"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// The headers that contain the time by which the answer must begin. The first two are
// weir's: seconds from the request's arrival on, and a time. The others are sent by the
// SDKs of OpenAI and Anthropic, in seconds, after which the SDK gives up.
const (
	timeoutHeader  = "X-Request-Timeout"
	deadlineHeader = "X-Request-Deadline"
)

var sdkTimeouts = []string{"X-Stainless-Timeout", "X-Stainless-Read-Timeout"}

// longestTimeout bounds what a caller may say. It is no time that a request could wait.
const longestTimeout = 365 * 24 * time.Hour

// beginBy returns when the answer to a request must begin that has arrived at that time, in
// the same clock; 0 where its caller does not say.
func beginBy(h http.Header, arrival int64, now func() int64) (at int64, err error) {
	sooner := func(t int64) {
		if at == 0 || t < at {
			at = t
		}
	}
	if v := first(h, timeoutHeader); v != "" {
		seconds, err := strconv.ParseFloat(v, 64)
		if err != nil || math.IsNaN(seconds) {
			return 0, infer.Invalid(timeoutHeader, "%s: %q: want the seconds after which the answer must have begun, as in 2.5", timeoutHeader, dialect.Clip(v, 64))
		}
		sooner(arrival + bounded(seconds))
	}
	if v := first(h, deadlineHeader); v != "" {
		t, err := time.Parse(time.RFC3339Nano, v)
		if err != nil {
			return 0, infer.Invalid(deadlineHeader, "%s: %q: want the time by which the answer must have begun, as in 2026-11-23T10:00:00.5Z", deadlineHeader, dialect.Clip(v, 64))
		}
		sooner(now() + bounded(time.Until(t).Seconds()))
	}
	for _, name := range sdkTimeouts {
		v := first(h, name)
		if v == "" {
			continue
		}
		if seconds, err := strconv.ParseFloat(v, 64); err == nil && seconds > 0 {
			sooner(arrival + bounded(seconds))
		}
	}
	return at, nil
}

// bounded is so many seconds in nanoseconds, within longestTimeout.
func bounded(seconds float64) int64 {
	most := longestTimeout.Seconds()
	return int64(max(min(seconds, most), -most) * 1e9)
}
