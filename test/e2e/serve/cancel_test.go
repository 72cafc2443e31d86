package serve

import (
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// Streams hang up, all at one instant or a few among those that go on, while they
// stream or before their first token: every one is cancelled, every engine request
// aborted, and nothing is left behind. How soon is measured by make measure.
func TestHangUpOfMany(t *testing.T) {
	t.Parallel()
	const streams, step = 512, time.Second
	for _, path := range []string{"plane", "relay"} {
		for name, streaming := range map[string]bool{"before the first token": false, "streaming": true} {
			t.Run(path+" "+name, func(t *testing.T) {
				harness.Beside(t, harness.Heavy)
				for _, f := range harness.HangUps(t, path, streams, streaming, step) {
					t.Logf("%d hang-ups in %v; the engine knew of each after p50 %v, p99 %v, max %v", f.N, f.Closing, f.P50, f.P99, f.Max)
				}
			})
		}
	}
}

// A client that hangs up while its request waits in the gateway, because no
// engine is ready, is done with at once.
func TestHangUpInTheQueue(t *testing.T) {
	harness.Beside(t, harness.Light)
	const n = 64
	s := harness.StartSim(t, "--fault", "refuse")
	g := harness.StartUnready(t, "serve", "--engine", "weir="+s.Plane, "--engine-timeout", "5m")
	conns := harness.Streamers(t, g, n)
	harness.Eventually(t, "all queued", func() bool { return harness.Metric(t, g.Admin, "weir_requests_in_flight") == n })
	began := time.Now()
	for _, c := range conns {
		c.Close()
	}
	if ended := g.Balanced(); ended["cancelled"] != n || ended["received"] != n {
		t.Errorf("ended %v, want %d cancelled", ended, n)
	}
	t.Logf("%d hang-ups in the queue were done with after %v", n, time.Since(began).Round(time.Millisecond))
	g.Interrupt()
	for _, r := range g.Records() {
		if r.Outcome != "cancelled" || r.Stages["queue"] == 0 || len(r.Attempts) != 0 {
			t.Fatalf("record %+v", r)
		}
	}
}
