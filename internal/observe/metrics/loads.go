package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/fleet/route"
	"weir/internal/trace"
)

// maxRanks is how many ranks of an engine have series of their own: how many it has is the
// engine's word.
const maxRanks = 64

// loads exports the latest reports of engines about their work, and of data-parallel ranks
// if they report separately.
type loads struct {
	snapshot     func() *route.Snapshot
	engine, rank loadDescs
	behind, old  *prometheus.Desc
}

// loadDescs are the metrics of one load.
type loadDescs struct{ running, waiting, usage *prometheus.Desc }

func newLoads(snapshot func() *route.Snapshot) *loads {
	desc := func(prefix, of string, labels ...string) loadDescs {
		return loadDescs{
			running: prometheus.NewDesc(prefix+"running_requests", "Requests in the running batch of "+of+", as it last said.", labels, nil),
			waiting: prometheus.NewDesc(prefix+"waiting_requests", "Requests in the waiting queue of "+of+", as it last said.", labels, nil),
			usage:   prometheus.NewDesc(prefix+"kv_usage_ratio", "Share of the KV cache of "+of+" that is in use, as it last said.", labels, nil),
		}
	}
	return &loads{snapshot, desc("weir_engine_", "the engine", "engine"), desc("weir_engine_rank_", "the engine's data-parallel rank", "engine", "rank"),
		prometheus.NewDesc("weir_engine_rank_report_behind_seconds", "How much older the latest report of the engine's data-parallel rank is than that of another one.", []string{"engine", "rank"}, nil),
		prometheus.NewDesc("weir_engine_facts_age_seconds", "For how long a page of the engine could not be read, after it had been; all: none of them could. What it states is as it was then.", []string{"engine", "page"}, nil)}
}

// Describe implements prometheus.Collector.
func (c *loads) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []loadDescs{c.engine, c.rank} {
		ch <- d.running
		ch <- d.waiting
		ch <- d.usage
	}
	ch <- c.behind
	ch <- c.old
}

// Collect implements prometheus.Collector. An engine that is not ready has no load.
func (c *loads) Collect(ch chan<- prometheus.Metric) {
	now := trace.Now()
	for _, e := range c.snapshot().Engines {
		for _, o := range e.Facts.Old {
			ch <- prometheus.MustNewConstMetric(c.old, prometheus.GaugeValue, float64(now-o.Since)/1e9, e.Name, o.Page)
		}
		if e.Load == nil || !e.Ready {
			continue
		}
		l, ok := e.Load()
		if !ok {
			continue
		}
		c.engine.collect(ch, l.Running, l.Waiting, l.KVUsage, e.Name)
		var seen [maxRanks]bool
		for _, r := range l.Ranks {
			if r.Rank < 0 || r.Rank >= maxRanks || seen[r.Rank] {
				continue
			}
			seen[r.Rank] = true
			c.rank.collect(ch, r.Running, r.Waiting, r.KVUsage, e.Name, strconv.Itoa(r.Rank))
			ch <- prometheus.MustNewConstMetric(c.behind, prometheus.GaugeValue, r.Behind.Seconds(), e.Name, strconv.Itoa(r.Rank))
		}
	}
}

// collect exports a load. A negative share means that an engine does not report how full
// its cache is.
func (d *loadDescs) collect(ch chan<- prometheus.Metric, running, waiting int, usage float64, labels ...string) {
	gauge := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(d.running, float64(running))
	gauge(d.waiting, float64(waiting))
	if usage >= 0 {
		gauge(d.usage, usage)
	}
}
