package latency

import (
	"math"
	"strconv"
	"time"
)

// Millis prints milliseconds for a report: to a microsecond below a second, otherwise
// whole. NaN, a missing figure, is a dash.
func Millis(ms float64) string {
	switch {
	case math.IsNaN(ms):
		return "-"
	case ms >= 1000:
		return strconv.FormatFloat(ms, 'f', 0, 64)
	}
	return strconv.FormatFloat(ms, 'f', 3, 64)
}

// Seconds prints seconds as a duration of whole milliseconds.
func Seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond).String()
}
