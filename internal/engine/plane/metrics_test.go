package plane

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"weir/internal/engine/mux"
)

// The metrics that dashboards read keep their names, and show the figures after which they are
// named.
func TestMetricNames(t *testing.T) {
	f := Figures{
		Figures: mux.Figures{Frames: 1, IDs: 2, Dispatch: 3 * time.Second, Aborts: 6, Live: 8, Late: 18,
			Lost: [mux.NumLosses]uint64{mux.LossClosed: 11, mux.LossEngine: 12, mux.LossConnection: 13, mux.LossSilent: 14,
				mux.LossIntegrity: 15, mux.LossForgotten: 16, mux.LossSlots: 17, mux.LossPanic: 19, mux.LossDead: 88, mux.LossRestarted: 89},
			Sessions: 90, Submitted: 93, Accepted: 94, Broken: 96},
		Slow: 4, Wait: 5 * time.Second, PingLast: 7 * time.Second,
		ConnectFailures: 91, Bytes: 92, Batches: 98, Pings: 97,
	}
	var got strings.Builder
	for _, m := range f.metrics() {
		fmt.Fprintln(&got, strings.TrimSpace(m.Name+" "+m.Label+" "+m.LabelValue), m.Counter, m.Value)
	}
	const want = `weir_plane_frames_total true 1
weir_plane_slow_steps_total true 4
weir_plane_wait_seconds_total true 5
weir_plane_batches_total true 98
weir_plane_ping_seconds false 7
weir_plane_slots false 8
weir_plane_ids_total true 2
weir_plane_dispatch_seconds_total true 3
weir_plane_aborts_total true 6
weir_plane_late_total true 18
weir_plane_sessions_lost_total why closed true 11
weir_plane_sessions_lost_total why engine true 12
weir_plane_sessions_lost_total why connection true 13
weir_plane_sessions_lost_total why silent true 14
weir_plane_sessions_lost_total why integrity true 15
weir_plane_sessions_lost_total why forgotten true 16
weir_plane_sessions_lost_total why slots true 17
weir_plane_sessions_lost_total why panic true 19
`
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
}

// A step counts as slow when others waited for its dispatch for more than a moment.
func TestSlowSteps(t *testing.T) {
	var m meters
	for _, took := range []time.Duration{0, time.Millisecond, time.Millisecond + 1, time.Second} {
		m.dispatched(0, int64(took))
	}
	if n := m.slow.Load(); n != 2 {
		t.Errorf("%d slow steps, want 2", n)
	}
}
