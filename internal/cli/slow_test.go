package cli

import (
	"testing"
	"testing/synctest"
	"time"
)

// Work that takes longer than a second is reported once, and shorter work is not.
func TestIfSlow(t *testing.T) {
	for _, c := range []struct {
		took time.Duration
		want int
	}{{slowAfter - time.Millisecond, 0}, {slowAfter + time.Millisecond, 1}, {time.Hour, 1}} {
		synctest.Test(t, func(t *testing.T) {
			reports := 0
			stop := ifSlow(func() { reports++ })
			time.Sleep(c.took)
			stop()
			if reports != c.want {
				t.Errorf("%v: %d reports, want %d", c.took, reports, c.want)
			}
		})
	}
}
