package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/fleet/cost"
	"weir/internal/fleet/route"
	"weir/internal/trace"
)

// books reports, at scrape time, the state that weir keeps about engines (docs/routing.md).
type books struct {
	snapshot                            func() *route.Snapshot
	flight, wait, unseen, pending, seen *prometheus.Desc
	prefills, decoding                  *prometheus.Desc
	coefficient, sure                   *prometheus.Desc
	given, predicted, told, reported    *prometheus.Desc
	indexed, index                      *prometheus.Desc
}

func newBooks(snapshot func() *route.Snapshot) *books {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &books{
		snapshot:    snapshot,
		flight:      desc("weir_engine_booked_requests", "Generations that are booked on the engine: given to it and not ended.", "engine"),
		prefills:    desc("weir_engine_inflight_prefills", "Prefill halves of requests on the engine: whose prompts it computes or is to, or whose KV no decode engine has fetched yet.", "engine"),
		decoding:    desc("weir_engine_running_decodes", "Generations on the engine that have their first output and not their last.", "engine"),
		wait:        desc("weir_engine_booked_wait_seconds", "How long the prefill of a request that came now would wait there for what is booked, as predicted.", "engine"),
		unseen:      desc("weir_engine_unseen_wait_seconds", "How long the prefill of a request that came now would wait besides, for work that nobody booked here: of direct users and other gateways.", "engine"),
		pending:     desc("weir_engine_booked_prefill_tokens", "Prompt tokens given to the engine whose first output has not come, without those that it is believed to have.", "engine"),
		seen:        desc("weir_engine_observations", "Intervals from which the engine's coefficients were learned.", "engine"),
		coefficient: desc("weir_engine_coefficient_seconds", "Learned coefficients of a step's time: step (that prefills), token (of a prompt), pair (of a prompt's token and one before it), decode (a step that decodes), decoder (a request in it).", "engine", "coefficient"),
		sure:        desc("weir_engine_coefficient_error_seconds", "Standard errors of the learned coefficients of a step's time.", "engine", "coefficient"),
		given:       desc("weir_engine_prompt_tokens_total", "Prompt tokens given to the engine.", "engine"),
		predicted:   desc("weir_engine_predicted_cached_tokens_total", "Prompt tokens given to the engine that it was believed to have in its KV cache.", "engine"),
		told:        desc("weir_engine_reporting_prompt_tokens_total", "Prompt tokens of requests of which the engine said how many it had in its KV cache.", "engine"),
		reported:    desc("weir_engine_reported_cached_tokens_total", "Prompt tokens that the engine said it had in its KV cache.", "engine"),
		indexed:     desc("weir_engine_indexed_blocks", "Blocks that the engine's KV cache is believed to hold.", "engine"),
		index:       desc("weir_index_bytes", "Memory of what the engines' KV caches are believed to hold (--index-memory)."),
	}
}

// Describe implements prometheus.Collector.
func (c *books) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.flight, c.prefills, c.decoding, c.wait, c.unseen, c.pending, c.seen, c.coefficient, c.sure, c.given, c.predicted, c.told, c.reported, c.indexed, c.index} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *books) Collect(ch chan<- prometheus.Metric) {
	snap, now := c.snapshot(), trace.Now()
	for _, e := range snap.Engines {
		of := e.AllBooks()
		if len(of) == 0 {
			continue
		}
		gauge := func(d *prometheus.Desc, v float64, more ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{e.Name}, more...)...)
		}
		counter := func(d *prometheus.Desc, n int64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), e.Name)
		}
		sum := route.Sum(of, now)
		gauge(c.flight, float64(sum.InFlight))
		gauge(c.prefills, float64(sum.Prefills))
		gauge(c.decoding, float64(sum.Decoding))
		gauge(c.wait, sum.Wait/1e3)
		gauge(c.unseen, sum.Unseen/1e3)
		gauge(c.pending, float64(sum.Pending))
		learned, seen := sum.Best.Rank.Coefficients()
		gauge(c.seen, float64(seen))
		errors := sum.Best.Rank.Errors()
		for _, k := range coefficients {
			gauge(c.coefficient, *k.of(&learned)/1e3, k.name)
			gauge(c.sure, *k.of(&errors)/1e3, k.name)
		}
		shares := of[0].Shares // of all ranks
		counter(c.given, shares.Given.Load())
		counter(c.predicted, shares.Predicted.Load())
		counter(c.told, shares.Told.Load())
		counter(c.reported, shares.Reported.Load())
		gauge(c.indexed, float64(sum.Indexed))
	}
	if snap.Index != nil {
		ch <- prometheus.MustNewConstMetric(c.index, prometheus.GaugeValue, float64(snap.Index.Bytes()))
	}
}

// coefficients are those of a step's time by their labels.
var coefficients = []struct {
	name string
	of   func(*cost.Coefficients) *float64
}{
	{"step", func(c *cost.Coefficients) *float64 { return &c.Step }},
	{"token", func(c *cost.Coefficients) *float64 { return &c.Token }},
	{"pair", func(c *cost.Coefficients) *float64 { return &c.Pair }},
	{"decode", func(c *cost.Coefficients) *float64 { return &c.Decode }},
	{"decoder", func(c *cost.Coefficients) *float64 { return &c.Decoder }},
}
