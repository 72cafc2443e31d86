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
	wrong, regret                             *latencies
}

func newChoices(counter func(name, help string, labels ...string) *prometheus.CounterVec, histogram func(name, help string, labels ...string) *latencies) choices {
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

// modelChoices are those of one model.
type modelChoices struct {
	prompt, available, taken, told, delivered lazy[prometheus.Counter]
	exact, less, more                         lazy[prometheus.Counter]
	earlier, later, regret                    lazy[*latency]
}

// of returns the series for a model's label.
func (c *choices) of(model string) *modelChoices {
	return &modelChoices{
		lazyCounter(c.prompt, model), lazyCounter(c.available, model), lazyCounter(c.taken, model), lazyCounter(c.told, model), lazyCounter(c.delivered, model),
		lazyCounter(c.predictions, model, "exact"), lazyCounter(c.predictions, model, "less"), lazyCounter(c.predictions, model, "more"),
		lazyLatency(c.wrong, model, "earlier"), lazyLatency(c.wrong, model, "later"), lazyLatency(c.regret, model),
	}
}

// ended counts what came of a request's choices.
func (c *modelChoices) ended(r *trace.Record) {
	for i := range r.Attempts {
		a, resident := &r.Attempts[i].Choice, r.Attempts[i].Resident()
		if len(a.Best) == 0 {
			continue
		}
		c.regret.get().observe(int64(float64(a.Regret) * 1e6))
		if a.Unknown {
			continue
		}
		c.prompt.get().Add(float64(a.Length))
		c.available.get().Add(float64(a.Available))
		c.taken.get().Add(float64(resident))
		if a.Cached < 0 {
			continue
		}
		c.told.get().Add(float64(resident))
		c.delivered.get().Add(float64(min(a.Cached, a.Length)))
		came := &c.exact
		switch {
		case int(a.Cached) < resident:
			came = &c.less
		case int(a.Cached) > resident:
			came = &c.more
		}
		came.get().Inc()
	}
	n := len(r.Attempts)
	if n == 0 || r.Outcome != infer.Finished || r.FirstReceived <= r.Routed || !r.Stream {
		return
	}
	a := &r.Attempts[n-1].Choice
	if len(a.Best) == 0 || a.Best[a.Chosen].Cold {
		return
	}
	off, came := r.FirstReceived-r.Routed-int64(float64(a.Best[a.Chosen].TTFT())*1e6), &c.later
	if off < 0 {
		off, came = -off, &c.earlier
	}
	came.get().observe(off)
}
