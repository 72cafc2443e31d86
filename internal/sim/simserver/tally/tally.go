// Package tally counts what a simulated engine measures, and writes it for Prometheus.
package tally

import (
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Histogram counts durations in seconds, or amounts, in buckets.
type Histogram struct {
	counts [23]uint64 // by bucket: up to each bound, and beyond all
	n      uint64
	sum    float64
}

// The bounds of the buckets, of durations and of amounts.
var (
	seconds = [22]float64{.001, .0025, .005, .01, .02, .04, .06, .08, .1, .15, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 30, 60, 120}
	amounts = [20]float64{0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6}
)

// Add counts a duration a number of times.
func (h *Histogram) Add(ns int64, times int) { h.observe(seconds[:], float64(ns)/1e9, times) }

// Amount counts an amount.
func (h *Histogram) Amount(n int) { h.observe(amounts[:], float64(n), 1) }

func (h *Histogram) observe(bounds []float64, v float64, times int) {
	i, _ := slices.BinarySearch(bounds, v)
	h.counts[i] += uint64(times)
	h.n += uint64(times)
	h.sum += v * float64(times)
}

// Plus returns the sum of two histograms with the same bounds.
func (h *Histogram) Plus(other *Histogram) *Histogram {
	sum := *h
	sum.n += other.n
	sum.sum += other.sum
	for i, n := range other.counts {
		sum.counts[i] += n
	}
	return &sum
}

// Scrape makes a scrape of one server. The names are the server's; the values are the
// engine's.
type Scrape struct {
	labels []string // name, value, name, value
	out    chan<- prometheus.Metric
}

// Label sets the labels of what follows: name, value, name, value.
func (g *Scrape) Label(all ...string) { g.labels = all }

// desc returns the description and the label values of a metric.
func (g *Scrape) desc(name, help string, more []string) (*prometheus.Desc, []string) {
	var names, values []string
	all := append(slices.Clone(g.labels), more...)
	for i := 0; i+1 < len(all); i += 2 {
		names, values = append(names, all[i]), append(values, all[i+1])
	}
	return prometheus.NewDesc(name, help, names, nil), values
}

// Gauge adds a gauge.
func (g *Scrape) Gauge(name, help string, v float64, labels ...string) {
	d, values := g.desc(name, help, labels)
	g.out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, values...)
}

// Counter adds a counter.
func (g *Scrape) Counter(name, help string, v uint64, labels ...string) {
	d, values := g.desc(name, help, labels)
	g.out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), values...)
}

// Seconds adds a histogram of durations.
func (g *Scrape) Seconds(name, help string, h *Histogram, labels ...string) {
	g.histogram(name, help, seconds[:], h, labels)
}

// Amounts adds a histogram of amounts.
func (g *Scrape) Amounts(name, help string, h *Histogram, labels ...string) {
	g.histogram(name, help, amounts[:], h, labels)
}

func (g *Scrape) histogram(name, help string, bounds []float64, h *Histogram, labels []string) {
	d, values := g.desc(name, help, labels)
	cumulative := map[float64]uint64{}
	var sum uint64
	for i, bound := range bounds {
		sum += h.counts[i]
		cumulative[bound] = sum
	}
	g.out <- prometheus.MustNewConstHistogram(d, h.n, h.sum, cumulative, values...)
}

// collector is a server's metrics, made anew at each scrape.
type collector func(g *Scrape)

// Describe implements prometheus.Collector. It sends nothing, so the registry makes no
// checks.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) { c(&Scrape{out: out}) }

// Handler serves a server's metrics.
func Handler(c collector) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}

// AlwaysZero is the help text of a metric that a real engine reports as 0 when the feature
// behind it is unused.
const AlwaysZero = "Always 0: this is not simulated."
