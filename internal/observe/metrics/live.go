package metrics

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"weir/internal/fleet/queue"
	"weir/internal/model/pool"
)

// Live is a reading of the gateway's counters, for readers that take differences each
// second: the page. It is read from the metrics themselves and has a bounded size, except
// for the models of the queue.
type Live struct {
	Received     int64            `json:"received"`
	Ended        map[string]int64 `json:"ended"` // by outcome
	InFlight     int64            `json:"in_flight"`
	Pending      int64            `json:"pending"` // streams whose output waits to be taken
	Retries      int64            `json:"retries"`
	PromptTokens int64            `json:"prompt_tokens"`
	OutputTokens int64            `json:"output_tokens"` // of requests that have ended
	OutputBytes  int64            `json:"output_bytes"`
	PoolRunning  int              `json:"pool_running"` // jobs of the tokenizing pool
	PoolWaiting  int              `json:"pool_waiting"`

	// Bounds are those of the histograms' counts.
	Bounds []float64 `json:"bounds_seconds"`
	TTFT   Histogram `json:"ttft"`
	Total  Histogram `json:"total"`
	Output Histogram `json:"output_delay"`

	Queue   map[string]LiveQueue `json:"queue"` // by model
	Tenants []LiveTenant         `json:"tenants"`
}

// LiveTenant has the waiting requests of a tenant, and what it has used of the
// engines.
type LiveTenant struct {
	Band           string  `json:"band"`
	Tenant         string  `json:"tenant"`
	Waiting        int     `json:"waiting"`
	WaitingSeconds float64 `json:"waiting_seconds"`
	ServedSeconds  float64 `json:"served_seconds"`
	Refused        int64   `json:"refused"`
}

// liveTenants bounds the tenants of Live: those with the most that waits, then those that had most.
const liveTenants = 50

// Histogram is a histogram of durations, in seconds. Counts holds, for each bound, the
// number of values up to it.
type Histogram struct {
	Counts []uint64 `json:"counts"`
	Count  uint64   `json:"count"`
	Sum    float64  `json:"sum"`
}

// LiveQueue is the number of requests that wait, and have waited, for the engines of a
// model.
type LiveQueue struct {
	Waiting       int              `json:"waiting"`
	Bytes         int64            `json:"bytes"`
	OldestSeconds float64          `json:"oldest_seconds"`
	DrainSeconds  float64          `json:"drain_seconds"`
	Released      int64            `json:"released"`
	Held          int64            `json:"held"`
	Refused       map[string]int64 `json:"refused"` // by reason
}

// liveSources are the parts of the gateway that Live reads; missing ones are nil.
type liveSources struct {
	pool    *pool.Pool
	pending func() int64
	queue   func() map[string]QueueStats
	tenants func() []queue.Tenant
}

// Live reads what has been counted so far.
func (m *Metrics) Live() Live {
	l := Live{
		Received: sum(m.received), Ended: map[string]int64{}, InFlight: value(m.live), Retries: sum(m.retries),
		PromptTokens: sum(m.prompt), OutputTokens: sum(m.tokens), OutputBytes: value(m.bytes),
		Bounds: durations[:], TTFT: histogramOf(m.ttft), Total: histogramOf(m.total), Output: histogramOf(m.output),
		Queue: map[string]LiveQueue{},
	}
	each(m.ended, func(s *dto.Metric) {
		for _, label := range s.GetLabel() {
			if label.GetName() == "outcome" {
				l.Ended[label.GetValue()] += int64(s.GetCounter().GetValue())
			}
		}
	})
	if m.sources.pool != nil {
		l.PoolRunning, l.PoolWaiting = m.sources.pool.Running(), m.sources.pool.Waiting()
		l.Pending = m.sources.pending()
	}
	if m.sources.queue != nil {
		for model, s := range m.sources.queue() {
			of := LiveQueue{Waiting: s.Waiting, Bytes: s.Bytes, OldestSeconds: s.OldestSeconds, DrainSeconds: s.DrainSeconds, Released: s.Released, Held: s.Held, Refused: map[string]int64{}}
			for _, why := range queue.Reasons() {
				of.Refused[why.String()] = s.Refused[why]
			}
			l.Queue[model] = of
		}
	}
	if m.sources.tenants != nil {
		all := m.sources.tenants()
		slices.SortStableFunc(all, func(a, b queue.Tenant) int {
			return cmp.Or(cmp.Compare(b.WaitingMS, a.WaitingMS), cmp.Compare(b.ServedMS, a.ServedMS))
		})
		for _, t := range all[:min(len(all), liveTenants)] {
			l.Tenants = append(l.Tenants, LiveTenant{t.Band, t.Name, t.Waiting, t.WaitingMS / 1e3, t.ServedMS / 1e3, t.Refused})
		}
	}
	return l
}

// each gives the samples of a collector.
func each(c prometheus.Collector, yield func(*dto.Metric)) {
	samples := make(chan prometheus.Metric)
	go func() {
		defer close(samples)
		c.Collect(samples)
	}()
	for sample := range samples {
		var s dto.Metric
		if err := sample.Write(&s); err != nil {
			panic("metrics: " + err.Error()) // one that its own collector has made
		}
		yield(&s)
	}
}

// sum adds up the samples of a counter.
func sum(c prometheus.Collector) (n int64) {
	each(c, func(s *dto.Metric) { n += int64(s.GetCounter().GetValue()) })
	return n
}

// value is that of a gauge or counter without labels.
func value(m prometheus.Metric) int64 {
	var s dto.Metric
	if err := m.Write(&s); err != nil {
		panic("metrics: " + err.Error())
	}
	return int64(s.GetCounter().GetValue() + s.GetGauge().GetValue())
}

// histogramOf adds up the samples of a histogram of durations.
func histogramOf(c prometheus.Collector) Histogram {
	h := Histogram{Counts: make([]uint64, len(durations))}
	each(c, func(s *dto.Metric) {
		of := s.GetHistogram()
		h.Count += of.GetSampleCount()
		h.Sum += of.GetSampleSum()
		for i, b := range of.GetBucket() {
			if i < len(h.Counts) {
				h.Counts[i] += b.GetCumulativeCount()
			}
		}
	})
	return h
}
