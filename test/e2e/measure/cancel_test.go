//go:build measure

package measure

import (
	"strings"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// The engine knows of a hang-up at once, however many hang up at one instant.
func TestHangUps(t *testing.T) {
	const streams, step = 4096, time.Second
	for _, path := range []string{"plane", "relay"} {
		for _, c := range []struct {
			name      string
			streams   int
			streaming bool
			parts     []string
		}{
			{"before-first-token", streams / 4, false, []string{"all"}},
			{"streaming", streams, true, []string{"few", "rest"}},
		} {
			t.Run(path+" "+c.name, func(t *testing.T) {
				harness.Beside(t, harness.Alone)
				for i, f := range harness.HangUps(t, path, c.streams, c.streaming, step) {
					name := strings.Join([]string{"hang-up", path, c.name, c.parts[i]}, "/")
					t.Logf("%s: %d hang-ups in %v; the engine was free %v after the last abort (a step takes %v)", name, f.N, f.Closing, f.Free, step)
					figure(name+"/p50", f.P50.Seconds()*1e3, "ms")
					figure(name+"/p99", f.P99.Seconds()*1e3, "ms")
					figure(name+"/max", f.Max.Seconds()*1e3, "ms")
					if limit := time.Second; f.P99 > limit {
						t.Errorf("the engine knew of a hang-up after %v (p99), want at most %v", f.P99, limit)
					} else if f.Free > step+limit {
						t.Errorf("the engine was free %v after the last abort, want a step of %v at most", f.Free, step)
					}
				}
			})
		}
	}
}
