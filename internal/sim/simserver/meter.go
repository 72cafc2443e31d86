package simserver

import (
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"weir/internal/infer"
	"weir/internal/sim"
)

// meter measures the engine's steps, for requests of all wires. Run adds to it, and the
// servers read it, both under the same lock.
type meter struct {
	mu sync.Mutex

	ways                           [2]traffic // of requests whose answers come whole, and of streamed ones
	queued, prefill, decode, whole histogram  // a request's stages; whole is from its admission
	betweenTokens                  histogram

	// Figures of requests that ended: tokens of their prompts, how many of them were computed,
	// tokens generated, and retractions.
	prompt, computed, generated, retractions histogram
	perStep                                  histogram // tokens
	maxTokens, choices                       histogram // that were asked for

	byReason map[infer.Reason]uint64

	prefillBusy time.Duration // of steps with a prompt in them
	lastOutput  int64         // when a step last had a result, ns

	// Generated ids per second over the latest second or so.
	throughput  float64
	windowStart int64
	windowIDs   int
}

// traffic holds what is measured separately for streamed and other requests.
type traffic struct {
	firstToken, latency histogram // from a request's arrival
	perToken            histogram // from its first token to its last, by those after the first
	requests            uint64    // that ended, as the next two
	prompt, generated   uint64
}

// way returns the traffic that a request belongs to.
func (m *meter) way(j *job) *traffic {
	if j.atOnce {
		return &m.ways[0]
	}
	return &m.ways[1]
}

// both returns a histogram of all requests, streamed or not.
func (m *meter) both(of func(*traffic) *histogram) *histogram {
	a, b := of(&m.ways[0]), of(&m.ways[1])
	sum := &histogram{n: a.n + b.n, sum: a.sum + b.sum, counts: slices.Clone(a.counts)}
	for i, n := range b.counts {
		if sum.counts == nil {
			sum.counts = make([]uint64, len(b.counts))
		}
		sum.counts[i] += n
	}
	return sum
}

// asked records a request for a number of choices with at most maxTokens tokens each; 0
// means no limit of its own.
func (m *meter) asked(choices, maxTokens int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.choices.amount(choices)
	if maxTokens > 0 {
		m.maxTokens.amount(maxTokens)
	}
}

// histogram counts durations in seconds, or amounts, in buckets.
type histogram struct {
	counts []uint64 // by bucket, the last one is beyond all bounds
	n      uint64
	sum    float64
}

// The bounds of the buckets, of durations and of amounts.
var (
	seconds = []float64{.001, .0025, .005, .01, .02, .04, .06, .08, .1, .15, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 30, 60, 120}
	amounts = []float64{0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6}
)

func (h *histogram) add(ns int64, times int) { h.observe(seconds, float64(ns)/1e9, times) }

func (h *histogram) amount(n int) { h.observe(amounts, float64(n), 1) }

func (h *histogram) observe(bounds []float64, v float64, times int) {
	if h.counts == nil {
		h.counts = make([]uint64, len(bounds)+1)
	}
	i, _ := slices.BinarySearch(bounds, v)
	h.counts[i] += uint64(times)
	h.n += uint64(times)
	h.sum += v * float64(times)
}

// rateWindow is how long the throughput is measured at a time.
const rateWindow = time.Second

// rate is the throughput now: none after a window without a result.
func (m *meter) rate(now int64) float64 {
	if now-m.lastOutput > int64(rateWindow) {
		return 0
	}
	return m.throughput
}

// step adds a step's results. jobs are by ref, and still include those that ended.
func (m *meter) step(s *sim.Step, jobs []*job) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.Start-m.lastOutput > int64(rateWindow) {
		// It was idle.
		m.throughput, m.windowStart, m.windowIDs = 0, s.Start, 0
	}
	if len(s.ID)+len(s.Done) > 0 {
		m.lastOutput = s.End
	}
	took := s.End - s.Start
	if s.Batch.Prefill > 0 {
		m.prefillBusy += time.Duration(took)
	}
	if n := len(s.ID) - len(s.First); n > 0 {
		m.betweenTokens.add(took, n)
	}
	if n := s.Batch.Prefill + len(s.ID); n > 0 {
		m.perStep.amount(n)
	}
	for i := range s.First {
		f := &s.First[i].Stamps
		j := jobs[s.First[i].Ref]
		j.stamps, j.rank = *f, s.First[i].DPRank
		m.way(j).firstToken.add(f.FirstToken-f.ServerCreated, 1)
		m.queued.add(f.QueueEnd-f.QueueStart, 1)
		m.prefill.add(f.FirstToken-f.PrefillStart, 1)
	}
	for i := range s.Done {
		d := &s.Done[i]
		if m.byReason == nil {
			m.byReason = map[infer.Reason]uint64{}
		}
		m.byReason[d.Reason]++
		if d.Reason != infer.ReasonAbort {
			m.ended(d, jobs[d.Ref], s.End)
		}
	}
	m.windowIDs += len(s.ID)
	if since := s.End - m.windowStart; since >= int64(rateWindow) {
		m.throughput = float64(m.windowIDs) / (float64(since) / 1e9)
		m.windowStart, m.windowIDs = s.End, 0
	}
}

// ended notes a request that came to its end at a time.
func (m *meter) ended(d *sim.Done, j *job, at int64) {
	m.prompt.amount(d.PromptTokens)
	m.computed.amount(d.PromptTokens - d.Cached)
	m.generated.amount(d.Completion)
	m.retractions.amount(d.Retractions)
	w := m.way(j)
	w.requests++
	w.prompt += uint64(d.PromptTokens)
	w.generated += uint64(d.Completion)
	f := &j.stamps
	if f.FirstToken == 0 {
		return
	}
	m.decode.add(at-f.FirstToken, 1)
	m.whole.add(at-f.QueueEnd, 1)
	w.latency.add(at-f.ServerCreated, 1)
	if n := int64(d.Completion - 1); n > 0 {
		w.perToken.add((at-f.FirstToken)/n, 1)
	}
}

// lastOutput is when a step last had a result, ns.
func (e *Engine) lastOutput() int64 {
	e.meter.mu.Lock()
	defer e.meter.mu.Unlock()
	return e.meter.lastOutput
}

// gather makes a scrape of one server. The names are the server's; the values are the
// engine's.
type gather struct {
	labels []string // name, value, name, value
	out    chan<- prometheus.Metric
}

func (g *gather) desc(name, help string, more []string) (*prometheus.Desc, []string) {
	var names, values []string
	all := append(slices.Clone(g.labels), more...)
	for i := 0; i+1 < len(all); i += 2 {
		names, values = append(names, all[i]), append(values, all[i+1])
	}
	return prometheus.NewDesc(name, help, names, nil), values
}

func (g *gather) gauge(name, help string, v float64, labels ...string) {
	d, values := g.desc(name, help, labels)
	g.out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, values...)
}

func (g *gather) counter(name, help string, v uint64, labels ...string) {
	d, values := g.desc(name, help, labels)
	g.out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), values...)
}

func (g *gather) seconds(name, help string, h *histogram, labels ...string) {
	g.histogram(name, help, seconds, h, labels)
}

func (g *gather) amounts(name, help string, h *histogram, labels ...string) {
	g.histogram(name, help, amounts, h, labels)
}

func (g *gather) histogram(name, help string, bounds []float64, h *histogram, labels []string) {
	d, values := g.desc(name, help, labels)
	cumulative := map[float64]uint64{}
	var sum uint64
	for i, bound := range bounds {
		if h.counts != nil {
			sum += h.counts[i]
		}
		cumulative[bound] = sum
	}
	g.out <- prometheus.MustNewConstHistogram(d, h.n, h.sum, cumulative, values...)
}

// collector is a server's metrics, made anew at each scrape.
type collector func(g *gather)

// Describe implements prometheus.Collector. It sends nothing, so the registry makes no
// checks.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) { c(&gather{out: out}) }

func (e *Engine) metricsHandler(c collector) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}
