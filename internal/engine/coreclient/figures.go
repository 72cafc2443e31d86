package coreclient

import (
	"sync/atomic"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/mux"
)

// Figures are an engine's counters and gauges, summed over its ranks.
type Figures struct {
	mux.Figures
	Fences    uint64        // answered calls
	FenceLast time.Duration // how long the last one took
	Ready     int           // ranks that can be given requests
}

// Meters are what Figures are read from.
type Meters struct {
	mux.Meters
	Fences    atomic.Uint64
	FenceLast atomic.Int64
}

// Figures returns the current counters. The adapter adds the gauges.
func (m *Meters) Figures() Figures {
	return Figures{Figures: m.Meters.Figures(), Fences: m.Fences.Load(), FenceLast: time.Duration(m.FenceLast.Load())}
}

// Metrics are the figures in the form of engine.Metered. Their names begin with
// prefix, which names the wire.
func (f *Figures) Metrics(prefix string) []engine.Metric {
	return append([]engine.Metric{
		engine.NewCounter(prefix+"messages_total", "Messages received, one per engine step.", float64(f.Frames)),
		engine.NewGauge(prefix+"answer_seconds", "How long the engine took to answer the latest call: about a step.", f.FenceLast.Seconds()),
		engine.NewGauge(prefix+"ranks_ready", "Ranks that can be given requests.", float64(f.Ready)),
		engine.NewGauge(prefix+"requests", "Requests handed to the engine that have not ended.", float64(f.Live)),
	}, f.Figures.Metrics(prefix, mux.LossClosed, mux.LossConnection, mux.LossDead, mux.LossSilent, mux.LossIntegrity, mux.LossRestarted, mux.LossPanic)...)
}
