package fenced

import "weir/internal/engine"

// Metrics are the figures in the form of engine.Metered. Their names begin with
// prefix, which names the wire.
func (f *Figures) Metrics(prefix string) []engine.Metric {
	list := []engine.Metric{
		engine.NewCounter(prefix+"messages_total", "Messages received, one per engine step.", float64(f.Messages)),
		engine.NewCounter(prefix+"ids_total", "Token ids in them.", float64(f.IDs)),
		engine.NewCounter(prefix+"dispatch_seconds_total", "Time spent decoding messages and handing them to streams.", f.Dispatch.Seconds()),
		engine.NewCounter(prefix+"aborts_total", "Aborts sent.", float64(f.Aborts)),
		engine.NewCounter(prefix+"late_total", "Outputs of requests that nobody waits for.", float64(f.Late)),
		engine.NewGauge(prefix+"answer_seconds", "How long the engine took to answer the latest call: about a step.", f.FenceLast.Seconds()),
		engine.NewGauge(prefix+"ranks_ready", "Ranks that can be given requests.", float64(f.Ready)),
		engine.NewGauge(prefix+"requests", "Requests handed to the engine that have not ended.", float64(f.Live)),
	}
	for why, n := range f.Lost {
		list = append(list, engine.NewCounter(prefix+"sessions_lost_total", "Sessions that ended, by why.", float64(n)).With("why", Loss(why).String()))
	}
	return list
}
