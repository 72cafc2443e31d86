package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/fleet/admission"
	"weir/internal/model/pool"
	"weir/internal/model/tokenizer"
)

// Prefix exports at scrape time how much of earlier prompts was reused: the hit rate in
// tokens is weir_prefix_reused_tokens_total divided by weir_prefix_tokens_total.
func (m *Metrics) Prefix(c *tokenizer.PrefixCache) {
	counter := func(name, help string, value func(tokenizer.PrefixStats) uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(value(c.Stats())) })
	}
	gauge := func(name, help string, value func(tokenizer.PrefixStats) uint64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value(c.Stats())) })
	}
	m.registry.MustRegister(
		counter("weir_prefix_tokens_total", "Tokens of texts that were encoded.", func(s tokenizer.PrefixStats) uint64 { return s.Tokens }),
		counter("weir_prefix_reused_tokens_total", "Tokens of texts that were encoded whose ids were known from earlier texts.", func(s tokenizer.PrefixStats) uint64 { return s.Reused }),
		counter("weir_prefix_lookups_total", "Parts of texts that were looked up.", func(s tokenizer.PrefixStats) uint64 { return s.Lookups }),
		counter("weir_prefix_hits_total", "Parts of texts that were looked up and found.", func(s tokenizer.PrefixStats) uint64 { return s.Hits }),
		gauge("weir_prefix_bytes", "What is kept of earlier texts.", func(s tokenizer.PrefixStats) uint64 { return s.Bytes }),
		gauge("weir_prefix_entries", "Parts of texts that are kept.", func(s tokenizer.PrefixStats) uint64 { return uint64(s.Entries) }),
	)
}

// Gateway reports the pool's state and the streams with output pending at
// scrape time.
func (m *Metrics) Gateway(p *pool.Pool, waiting func() int64) {
	m.sources.pool, m.sources.pending = p, waiting
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	counter := func(name, help string, value func(pool.Stats) float64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return value(p.Stats()) })
	}
	m.registry.MustRegister(
		gauge("weir_pool_workers", "Jobs that can run at once.", func() float64 { return float64(p.Workers()) }),
		gauge("weir_pool_running", "Jobs that run.", func() float64 { return float64(p.Running()) }),
		gauge("weir_pool_waiting", "Jobs that wait.", func() float64 { return float64(p.Waiting()) }),
		gauge("weir_pool_waiting_bytes", "Text of the jobs that wait.", func() float64 { return float64(p.WaitingCost()) }),
		gauge("weir_pool_oldest_wait_seconds", "How long the job has waited that waits longest.", func() float64 { return p.OldestWait().Seconds() }),
		counter("weir_pool_completed_total", "Jobs that ran to their end.", func(s pool.Stats) float64 { return float64(s.Completed) }),
		counter("weir_pool_refused_total", "Jobs refused for load or deadline.", func(s pool.Stats) float64 { return float64(s.Refused) }),
		counter("weir_pool_cancelled_total", "Jobs whose client left while they waited.", func(s pool.Stats) float64 { return float64(s.Cancelled) }),
		counter("weir_pool_let_by_total", "Jobs that ran inside the yield of a larger one.", func(s pool.Stats) float64 { return float64(s.LetBy) }),
		counter("weir_pool_lane_total", "Small jobs that ran beside the workers, because those yielded to none.", func(s pool.Stats) float64 { return float64(s.Lane) }),
		counter("weir_pool_wait_seconds_total", "What completed jobs waited.", func(s pool.Stats) float64 { return s.Wait.Seconds() }),
		counter("weir_pool_work_seconds_total", "What completed jobs took.", func(s pool.Stats) float64 { return s.Work.Seconds() }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "weir_streams_pending",
			Help: "Streams that have output pending which their handler has not taken yet."},
			func() float64 { return float64(waiting()) }),
	)
}

// Bodies reports the bytes that requests' bodies hold.
func (m *Metrics) Bodies(used func() int64) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "weir_body_bytes",
		Help: "Bytes reserved for the bodies of requests (--max-body-memory)."},
		func() float64 { return float64(used()) }))
}

// Starved counts a socket that could not be had: accepted, watched or dialled.
func (m *Metrics) Starved(what string) { m.starved.WithLabelValues(what).Inc() }

// HandshakeError counts a client's TLS handshake that failed.
func (m *Metrics) HandshakeError() { m.shakes.Inc() }

// StreamCancelled counts an HTTP/2 stream that its client reset before it was answered;
// begun reports whether its request was received.
func (m *Metrics) StreamCancelled(begun bool) {
	m.resets.WithLabelValues(strconv.FormatBool(begun)).Inc()
}

// SentAway counts a connection that was told to go away, because of such streams or of its frames.
func (m *Metrics) SentAway() { m.away.Inc() }

// Conns reports clients' connections at scrape time.
func (m *Metrics) Conns(stats func() admission.ConnStats) {
	gauge := func(name, help string, value func(admission.ConnStats) int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value(stats())) })
	}
	counter := func(name, help string, value func(admission.ConnStats) uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(value(stats())) })
	}
	m.registry.MustRegister(
		gauge("weir_connections", "Clients' connections that are open.", func(s admission.ConnStats) int { return s.Open }),
		gauge("weir_connections_idle", "Clients' connections that are open and between requests.", func(s admission.ConnStats) int { return s.Idle }),
		counter("weir_connections_refused_total", "Connections and requests refused for --max-connections or --max-connections-per-client.", func(s admission.ConnStats) uint64 { return s.Refused }),
		counter("weir_connections_gave_way_total", "Connections that did nothing and were closed for a new one.", func(s admission.ConnStats) uint64 { return s.GaveWay }),
	)
}
