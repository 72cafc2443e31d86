package metrics

import (
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// scaleLatency has the durations of requests: from 8 us to two hours. Their classic buckets
// are not its doublings but those of durations.
var scaleLatency = &scale{1e-9, -17, 0, -1}

// inNanoseconds are the bounds of durations.
var inNanoseconds = func() (ns [len(durations)]int64) {
	for i, bound := range durations {
		ns[i] = int64(math.Round(bound * 1e9))
	}
	return ns
}()

// latency is a histogram of durations whose classic buckets end at round numbers of seconds.
// A request has some twenty values for such histograms, and each one costs three additions.
type latency struct {
	Distribution
	upTo [len(durations)]atomic.Uint64 // of values up to a bound, and above the one before it
}

// observe counts a value, in nanoseconds.
func (l *latency) observe(ns int64) {
	l.Add(ns, 1)
	if i, _ := slices.BinarySearch(inNanoseconds[:], ns); i < len(l.upTo) {
		l.upTo[i].Add(1)
	}
}

// latencies are the histograms of one name, by their labels.
type latencies struct {
	desc   *prometheus.Desc
	labels []string

	mu     sync.Mutex
	series map[string]*labelled // by the labels, joined
}

type labelled struct {
	latency
	labels []string
}

func newLatencies(name, help string, labels ...string) *latencies {
	return &latencies{desc: prometheus.NewDesc(name, help, labels, nil), labels: labels, series: map[string]*labelled{}}
}

// with returns the histogram with these labels. The caller keeps it if it has many values.
func (l *latencies) with(labels ...string) *latency {
	key := strings.Join(labels, "\xff")
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.series[key]
	if s == nil {
		s = &labelled{latency{Distribution: *newDistribution(scaleLatency)}, labels}
		l.series[key] = s
	}
	return &s.latency
}

// forget drops the histograms of which a label has a value.
func (l *latencies) forget(label, value string) {
	at := slices.Index(l.labels, label)
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, s := range l.series {
		if s.labels[at] == value {
			delete(l.series, key)
		}
	}
}

// Describe implements prometheus.Collector.
func (l *latencies) Describe(ch chan<- *prometheus.Desc) { ch <- l.desc }

// Collect implements prometheus.Collector.
func (l *latencies) Collect(ch chan<- prometheus.Metric) {
	l.mu.Lock()
	all := make([]*labelled, 0, len(l.series))
	for _, s := range l.series {
		all = append(all, s)
	}
	l.mu.Unlock()
	for _, s := range all {
		ch <- writtenLatency{distributed{&s.Distribution, l.desc, prometheus.MakeLabelPairs(l.desc, s.labels)}, &s.latency}
	}
}

// writtenLatency is a latency with its labels, as a metric.
type writtenLatency struct {
	distributed
	of *latency
}

// Write implements prometheus.Metric.
func (m writtenLatency) Write(to *dto.Metric) error {
	// A value is counted here last, and read here first: no bucket has more than all together.
	buckets, count := make([]*dto.Bucket, len(durations)), uint64(0)
	for i := range buckets {
		count += m.of.upTo[i].Load()
		buckets[i] = &dto.Bucket{CumulativeCount: new(count), UpperBound: new(durations[i])}
	}
	if err := m.distributed.Write(to); err != nil {
		return err
	}
	to.Histogram.Bucket = buckets
	return nil
}
