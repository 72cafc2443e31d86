package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/infer"
	"weir/internal/trace"
)

// choices holds the results of choosing engines (docs/receipts.md). The ratio of taken to
// available shows whether prompts go where their prefixes are, and the ratio of delivered
// to taken whether the prefixes are there.
type choices struct {
	prompt, available, taken, told, delivered *prometheus.CounterVec // tokens
	predictions                               *prometheus.CounterVec
	wrong, regret                             *prometheus.HistogramVec
}

func newChoices(counter func(name, help string, labels ...string) *prometheus.CounterVec, histogram func(name, help string, labels ...string) *prometheus.HistogramVec) choices {
	return choices{
		prompt:      counter("weir_affinity_prompt_tokens_total", "Prompt tokens for which an engine was chosen, where weir knows what engines may have of them, by model.", "model"),
		available:   counter("weir_affinity_available_tokens_total", "Prompt tokens for which an engine was chosen that some engine was believed to have in its KV cache: the most of any, by model.", "model"),
		taken:       counter("weir_affinity_taken_tokens_total", "Prompt tokens that the chosen engine was believed to have in its KV cache, by model.", "model"),
		told:        counter("weir_affinity_reporting_taken_tokens_total", "Prompt tokens that the chosen engine was believed to have in its KV cache, of requests of which it told how much it had, by model.", "model"),
		delivered:   counter("weir_affinity_delivered_tokens_total", "Prompt tokens that the chosen engine said it had in its KV cache, by model.", "model"),
		predictions: counter("weir_cached_predictions_total", "Requests of which the engine told how much of the prompt it had, by model and whether that is what was predicted: exact, less, more.", "model", "came"),
		wrong:       histogram("weir_ttft_prediction_error_seconds", "By how much the time from the choice of an engine to the first output was not what was predicted, by model and whether it came earlier or later. Engines of which too little was measured are left out.", "model", "came"),
		regret:      histogram("weir_regret_seconds", "By how much more a request was predicted to cost at the engine that was chosen than where it would have cost least, of those that it could be given to: delay of its own and of others, added up, by model.", "model"),
	}
}

// ended counts what came of a request's choices; model is the label of its model.
func (c *choices) ended(r *trace.Record, model string) {
	for i := range r.Attempts {
		a, resident := &r.Attempts[i].Choice, r.Attempts[i].Resident()
		if len(a.Best) == 0 {
			continue
		}
		c.regret.WithLabelValues(model).Observe(float64(a.Regret) / 1e3)
		if a.Unknown {
			continue
		}
		c.prompt.WithLabelValues(model).Add(float64(a.Length))
		c.available.WithLabelValues(model).Add(float64(a.Available))
		c.taken.WithLabelValues(model).Add(float64(resident))
		if a.Cached < 0 {
			continue
		}
		c.told.WithLabelValues(model).Add(float64(resident))
		c.delivered.WithLabelValues(model).Add(float64(min(a.Cached, a.Length)))
		came := "exact"
		switch {
		case int(a.Cached) < resident:
			came = "less"
		case int(a.Cached) > resident:
			came = "more"
		}
		c.predictions.WithLabelValues(model, came).Inc()
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
	c.wrong.WithLabelValues(model, came).Observe(off)
}
