package watch

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func histogram(t *testing.T, c *Canary) *dto.Histogram {
	t.Helper()
	var m dto.Metric
	if err := c.stall.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetHistogram()
}

// Moments that pass while everything stands still count, each with its own
// lateness.
func TestSaw(t *testing.T) {
	var stood []time.Duration
	c := NewCanary(prometheus.NewRegistry(), func(d time.Duration) { stood = append(stood, d) })
	ms := int64(time.Millisecond)
	c.saw(100*ms, 101*ms, 1)
	c.saw(150*ms, 156*ms, 5) // due at 110 to 150, read at 156
	if len(stood) != 1 || stood[0] != 46*time.Millisecond {
		t.Errorf("it stood still for %v, want the 46 ms that the first of five waited", stood)
	}
	h := histogram(t, c)
	if h.GetSampleCount() != 6 {
		t.Errorf("%d moments, want 6", h.GetSampleCount())
	}
	if got, want := h.GetSampleSum(), .001+.006+.016+.026+.036+.046; got < want-1e-9 || got > want+1e-9 {
		t.Errorf("they are %v s late together, want %v", got, want)
	}
	c.saw(200*ms, 199*ms, 1) // clocks are read at two places
	if got := histogram(t, c).GetSampleSum(); got > .132 {
		t.Errorf("a moment was early: %v", got)
	}
}

// A process in which nothing but one goroutine runs, and no other may, is seen
// to stall.
func TestRun(t *testing.T) {
	before := runtime.GOMAXPROCS(1)
	defer runtime.GOMAXPROCS(before)
	c := NewCanary(prometheus.NewRegistry(), nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	for histogram(t, c).GetSampleCount() < 3 {
		runtime.Gosched()
	}
	seen := histogram(t, c).GetSampleCount()
	// The scheduler takes the processor from a goroutine after 10 ms at the
	// earliest, so this stalls for that long at least once.
	for began := time.Now(); time.Since(began) < 100*time.Millisecond; {
	}
	for histogram(t, c).GetSampleCount() < seen+5 {
		runtime.Gosched()
	}
	late := histogram(t, c).GetSampleCount()
	for _, b := range histogram(t, c).GetBucket() {
		if b.GetUpperBound() == .004 {
			late -= b.GetCumulativeCount()
		}
	}
	if late == 0 {
		t.Error("100 ms of work without a break, and the canary saw no stall of 4 ms")
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}
