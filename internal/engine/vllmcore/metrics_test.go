package vllmcore

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"weir/internal/engine/coreclient"
	"weir/internal/engine/mux"
)

// The metrics that dashboards read keep their names, and show the figures after which they are
// named.
func TestMetricNames(t *testing.T) {
	f := coreclient.Figures{
		Figures: mux.Figures{Frames: 1, IDs: 2, Dispatch: 3 * time.Second, Aborts: 4, Late: 5, Live: 8,
			Sessions: 90, Submitted: 91, Accepted: 92, Broken: 94},
		FenceLast: 6 * time.Second, Ready: 7, Fences: 93,
	}
	want := `weir_vllm_core_messages_total true 1
weir_vllm_core_answer_seconds false 6
weir_vllm_core_ranks_ready false 7
weir_vllm_core_requests false 8
weir_vllm_core_ids_total true 2
weir_vllm_core_dispatch_seconds_total true 3
weir_vllm_core_aborts_total true 4
weir_vllm_core_late_total true 5
`
	for _, why := range []mux.Loss{mux.LossClosed, mux.LossConnection, mux.LossDead, mux.LossSilent, mux.LossIntegrity, mux.LossRestarted, mux.LossPanic} {
		f.Lost[why] = 100 + uint64(why)
		want += fmt.Sprintf("weir_vllm_core_sessions_lost_total why %s true %d\n", why, f.Lost[why])
	}
	var got strings.Builder
	for _, m := range metrics(&f) {
		fmt.Fprintln(&got, strings.TrimSpace(m.Name+" "+m.Label+" "+m.LabelValue), m.Counter, m.Value)
	}
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
}
