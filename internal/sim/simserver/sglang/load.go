package sglang

import (
	"weir/internal/infer"
	"weir/internal/sim/simserver/engine"
)

// legLoad is the section of /v1/loads about pairs: the queues of a rank by SGLang's
// names. A decode leg is in the first until it has pages, and then in the second.
func (f *Server) legLoad(l *engine.Rank) map[string]any {
	load := map[string]any{"mode": disaggregationMode(f.run.Role())}
	for _, q := range f.legQueues(l) {
		load[q.name] = q.n
	}
	return load
}

type legQueue struct {
	name, help string
	n          int
}

func (f *Server) legQueues(l *engine.Rank) []legQueue {
	queues := []legQueue{
		{"prefill_bootstrap_queue_reqs", "Requests whose decode engine is not met.", 0},
		{"prefill_inflight_queue_reqs", "Requests whose KV is kept.", 0},
		{"decode_prealloc_queue_reqs", "Requests that have no pages yet.", 0},
		{"decode_transfer_queue_reqs", "Requests that have pages, and no KV.", 0},
		{"decode_retracted_queue_reqs", "Requests that were sent back.", 0},
	}
	switch f.run.Role() {
	case infer.RolePrefill:
		queues[0].n, queues[1].n = l.Awaiting, l.Kept
	case infer.RoleDecode:
		queues[2].n, queues[3].n, queues[4].n = l.Awaiting+l.Queued-l.Retracted, l.Reserved, l.Retracted
	}
	return queues
}
