package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/infer"
	"weir/internal/trace"
)

// choices are what came of the choice of engines (docs/receipts.md). With what was
// available and what was taken shows whether prompts go where their beginnings are, and
// with what was delivered whether they are there.
type choices struct {
	prompt, available, taken, told, delivered *prometheus.CounterVec // tokens
	predictions                               *prometheus.CounterVec
	wrong, regret                             *prometheus.HistogramVec
}

func newChoices(counter func(name, help string, labels ...string) *prometheus.CounterVec, histogram func(name, help string, labels ...string) *prometheus.HistogramVec) choices {
	return choices{
		prompt:      counter("weir_affinity_prompt_tokens_total", "Prompt tokens for which an engine was chosen, where weir knows what engines may have of them, by model.", "model"),
		available:   counter("weir_affinity_available_tokens_total", "Of those, the ones that some engine was believed to have in its KV cache: the most of any.", "model"),
		taken:       counter("weir_affinity_taken_tokens_total", "Of those, the ones that the chosen engine was believed to have.", "model"),
		told:        counter("weir_affinity_reporting_taken_tokens_total", "Of those, the ones of requests of which the engine told how much it had.", "model"),
		delivered:   counter("weir_affinity_delivered_tokens_total", "Prompt tokens that the chosen engine said it had, of the same requests.", "model"),
		predictions: counter("weir_cached_predictions_total", "Requests of which the engine told how much of the prompt it had, by model and whether that is what was predicted: exact, less, more.", "model", "came"),
		wrong:       histogram("weir_ttft_prediction_error_seconds", "By how much the time from the choice of an engine to the first output was not what was predicted, by model and whether it came earlier or later. Engines of which too little was measured are left out.", "model", "came"),
		regret:      histogram("weir_regret_seconds", "By how much more a request was predicted to cost at the engine that was chosen than where it would have cost least, of those that it could be given to: delay of its own and of others, added up, by model.", "model"),
	}
}

// ended counts what came of a request's choices.
func (c *choices) ended(r *trace.Record) {
	for i := range r.Attempts {
		a, resident := &r.Attempts[i].Choice, r.Attempts[i].Resident()
		if len(a.Best) == 0 {
			continue
		}
		c.regret.WithLabelValues(r.Model).Observe(float64(a.Regret) / 1e3)
		if a.Unknown {
			continue
		}
		c.prompt.WithLabelValues(r.Model).Add(float64(a.Length))
		c.available.WithLabelValues(r.Model).Add(float64(a.Available))
		c.taken.WithLabelValues(r.Model).Add(float64(resident))
		if a.Cached < 0 {
			continue
		}
		c.told.WithLabelValues(r.Model).Add(float64(resident))
		c.delivered.WithLabelValues(r.Model).Add(float64(min(a.Cached, a.Length)))
		came := "exact"
		switch {
		case int(a.Cached) < resident:
			came = "less"
		case int(a.Cached) > resident:
			came = "more"
		}
		c.predictions.WithLabelValues(r.Model, came).Inc()
	}
	n := len(r.Attempts)
	if n == 0 || r.Outcome != infer.Finished || r.FirstReceived <= r.Routed || !r.Stream {
		return
	}
	a := &r.Attempts[n-1].Choice
	if len(a.Best) == 0 || a.Best[a.Chosen].Cold {
		return
	}
	off, came := seconds(r.FirstReceived-r.Routed)-float64(a.Best[a.Chosen].TTFT())/1e3, "later"
	if off < 0 {
		off, came = -off, "earlier"
	}
	c.wrong.WithLabelValues(r.Model, came).Observe(off)
}
