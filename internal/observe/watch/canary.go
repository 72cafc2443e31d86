// Package watch observes the process itself, so that weir's own lateness is not blamed on
// an engine or a client.
//
// The canary reports each time during which nothing was read. A long one is a stall, whose
// cause is determined from the records of package busy and the system (explain). A Detector
// derives from looks, four each second, which Triggers last. Profiles keeps the runtime's
// recordings when one begins. Watch is the shell: it feeds the others with events and
// times.
package watch

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// StallMetric is the name of the canary's metric.
const StallMetric = "weir_io_stall_seconds"

// gap is how often the canary looks.
const gap = 10 * time.Millisecond

// buckets are fine around the 2 ms that the 99th percentile may take.
var buckets = []float64{
	.00005, .0001, .00015, .0002, .0003, .0004, .0005, .0006, .0008, .001, .00125, .0015, .00175, .002, .0025, .003, .004, .005,
	.0065, .008, .01, .015, .02, .03, .05, .075, .1, .15, .2, .3, .5, 1, 2, 5,
}

// Canary measures how late the process's I/O is: the time from a file descriptor's readiness until
// a goroutine has read it. The moments follow a schedule that the process does not keep, so moments
// during a stall count too. The time includes the process's wait for a core of the machine.
type Canary struct {
	stall prometheus.Histogram
	stood func(time.Duration)
	seen  func(read int64, d time.Duration) // each time; nil: nobody asks
	due   atomic.Int64                      // the schedule's next moment
}

// NewCanary makes a canary whose metric is in r; Run starts it. stood, if not nil, is
// called with each time during which the process's I/O stood still for longer than the
// canary's interval.
func NewCanary(r prometheus.Registerer, stood func(time.Duration)) *Canary {
	c := &Canary{stall: prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    StallMetric,
		Help:    "How long a file descriptor was ready until a goroutine had read it, sampled every 10 ms.",
		Buckets: buckets,
		// As in metrics.Native.
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
	}), stood: stood}
	r.MustRegister(c.stall)
	return c
}

// Run measures until ctx ends. It needs a goroutine of its own.
func (c *Canary) Run(ctx context.Context) error {
	return tick(ctx, c.saw)
}

// saw books the latest n moments of the schedule, the last of which was due at
// last and all of which were read at read (ns on one clock).
func (c *Canary) saw(last, read int64, n uint64) {
	d := max(read-last, 0) + (int64(n)-1)*int64(gap)
	if n > 0 && d > int64(gap) && c.stood != nil {
		c.stood(time.Duration(d))
	}
	for i := range n {
		c.stall.Observe(time.Duration(max(read-last, 0) + int64(i)*int64(gap)).Seconds())
	}
	if n > 0 && c.seen != nil {
		c.seen(read, time.Duration(d))
	}
	c.due.Store(last + int64(gap))
}
