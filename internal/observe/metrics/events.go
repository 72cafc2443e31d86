package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/fleet/kvevents"
	"weir/internal/fleet/route"
)

// kvEvents reports what engines publish of their KV caches, at scrape time. Its counts
// are those of an engine's present life.
type kvEvents struct {
	snapshot         func() *route.Snapshot
	knowledge, count *prometheus.Desc
	blocks, odd      *prometheus.Desc
}

func newKVEvents(snapshot func() *route.Snapshot) *kvEvents {
	return &kvEvents{
		snapshot:  snapshot,
		knowledge: prometheus.NewDesc("weir_engine_kv_knowledge", "How many of the engine's data-parallel ranks, 1 of an engine that is one whole, have a KV cache of which so much is known by the events that they publish: unknown, partial (what they hold is there) or known (and nothing else is).", []string{"engine", "knowledge"}, nil),
		count: prometheus.NewDesc("weir_engine_kv_events", "What has come of the engine's KV events since it joined, by what it was: batches, events, ignored (events that do not count here or do not go with what is known), strange (removals of blocks that were not known), bad (batches that could not be read), "+
			"gaps, past (batches that came too late), replays, rebuilds (how often all was forgotten), overflows (of these, for want of memory).", []string{"engine", "what"}, nil),
		odd:    prometheus.NewDesc("weir_engine_kv_odd_events", "Of the engine's KV events that were ignored, those that were passed over because of what they are: placeholder (blocks without their ids, as vLLM's CPU offloading sends them), unreadable (not in the form of their kind) or unknown (of a kind that weir does not know).", []string{"engine", "kind"}, nil),
		blocks: prometheus.NewDesc("weir_engine_kv_event_blocks", "Blocks of the engine's KV cache that are known by its events.", []string{"engine"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *kvEvents) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.knowledge
	ch <- c.count
	ch <- c.blocks
	ch <- c.odd
}

// Collect implements prometheus.Collector.
func (c *kvEvents) Collect(ch chan<- prometheus.Metric) {
	for _, e := range c.snapshot().Engines {
		of := e.Events()
		if len(of) == 0 {
			continue
		}
		var s kvevents.Stats
		var ranks [kvevents.Known + 1]int
		for _, r := range of {
			s.Add(r.Rank.Stats())
			ranks[r.Rank.Knowledge()]++
		}
		for k, n := range ranks {
			ch <- prometheus.MustNewConstMetric(c.knowledge, prometheus.GaugeValue, float64(n), e.Name, kvevents.Knowledge(k).String())
		}
		for _, n := range []struct {
			what string
			n    uint64
		}{{"batches", s.Batches}, {"events", s.Events}, {"ignored", s.Ignored}, {"strange", s.Strange}, {"bad", s.Bad}, {"gaps", s.Gaps}, {"past", s.Past}, {"replays", s.Replays}, {"rebuilds", s.Rebuilds}, {"overflows", s.Overflows}} {
			ch <- prometheus.MustNewConstMetric(c.count, prometheus.GaugeValue, float64(n.n), e.Name, n.what)
		}
		for kind, n := range s.Odd {
			ch <- prometheus.MustNewConstMetric(c.odd, prometheus.GaugeValue, float64(n), e.Name, kvevents.Odd(kind).String())
		}
		ch <- prometheus.MustNewConstMetric(c.blocks, prometheus.GaugeValue, float64(s.Blocks), e.Name)
	}
}
