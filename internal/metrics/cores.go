package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/engine/fenced"
	"weir/internal/engine/sglangipc"
	"weir/internal/engine/vllmcore"
)

// Cores reports the figures of vLLM engine cores at scrape time.
func (m *Metrics) Cores(engines []*vllmcore.Engine) {
	m.registry.MustRegister(newCoreFigures("weir_vllm_core_", engines, []figure[fenced.Figures]{
		{"engine_running", "Requests in the engine's running batch, as it last said.", prometheus.GaugeValue, func(f *fenced.Figures) float64 { return float64(f.Running) }},
		{"engine_waiting", "Requests in the engine's waiting queue, as it last said.", prometheus.GaugeValue, func(f *fenced.Figures) float64 { return float64(f.Waiting) }},
	}))
}

// Schedulers reports the figures of SGLang's schedulers at scrape time.
func (m *Metrics) Schedulers(engines []*sglangipc.Engine) {
	m.registry.MustRegister(newCoreFigures("weir_sglang_ipc_", engines, nil))
}

// newCoreFigures are those of engines without their front end, and more.
func newCoreFigures[E figured[fenced.Figures]](prefix string, engines []E, more []figure[fenced.Figures]) *figures[fenced.Figures] {
	type f = fenced.Figures
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	return newFigures(prefix, func() []E { return engines },
		func(f *f) []uint64 { return f.Lost[:] }, func(i int) string { return fenced.Loss(i).String() },
		append([]figure[f]{
			{"messages_total", "Messages received, one per engine step.", counter, func(f *f) float64 { return float64(f.Messages) }},
			{"ids_total", "Token ids in them.", counter, func(f *f) float64 { return float64(f.IDs) }},
			{"dispatch_seconds_total", "Time spent decoding messages and handing them to streams.", counter, func(f *f) float64 { return f.Dispatch.Seconds() }},
			{"aborts_total", "Aborts sent.", counter, func(f *f) float64 { return float64(f.Aborts) }},
			{"late_total", "Outputs of requests that nobody waits for.", counter, func(f *f) float64 { return float64(f.Late) }},
			{"answer_seconds", "How long the engine took to answer the latest call: about a step.", gauge, func(f *f) float64 { return f.FenceLast.Seconds() }},
			{"ranks_ready", "Ranks that can be given requests.", gauge, func(f *f) float64 { return float64(f.Ready) }},
			{"requests", "Requests handed to the engine that have not ended.", gauge, func(f *f) float64 { return float64(f.Live) }},
		}, more...))
}
