package simserver

import (
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"weir/internal/infer"
	"weir/internal/sim"
)

// meter is what the engine measures of its steps, whatever wire the requests
// came by. Run adds to it; the faces read it under the same lock.
type meter struct {
	mu sync.Mutex

	firstToken, latency            histogram // from a request's arrival
	queued, prefill, decode, whole histogram // its stages; whole is from its admission
	betweenTokens                  histogram

	byReason map[infer.Reason]uint64

	prefillBusy time.Duration // of steps with a prompt in them
	lastOutput  int64         // when a step last had a result, ns

	// Generated ids per second over the latest second or so.
	throughput  float64
	windowStart int64
	windowIDs   int
}

// histogram counts durations in buckets.
type histogram struct {
	counts []uint64 // by bucket, the last one is beyond all bounds
	n      uint64
	sum    time.Duration
}

// bounds of the buckets, in seconds.
var bounds = []float64{.001, .0025, .005, .01, .02, .04, .06, .08, .1, .15, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 30, 60, 120}

func (h *histogram) add(ns int64, times int) {
	if h.counts == nil {
		h.counts = make([]uint64, len(bounds)+1)
	}
	i, _ := slices.BinarySearch(bounds, float64(ns)/1e9)
	h.counts[i] += uint64(times)
	h.n += uint64(times)
	h.sum += time.Duration(ns) * time.Duration(times)
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

// step adds a step's results. jobs are by ref, and those that ended are still
// there.
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
	for i := range s.First {
		f := &s.First[i].Stamps
		j := jobs[s.First[i].Ref]
		j.stamps, j.rank = *f, s.First[i].DPRank
		m.firstToken.add(f.FirstToken-f.ServerCreated, 1)
		m.queued.add(f.QueueEnd-f.QueueStart, 1)
		m.prefill.add(f.FirstToken-f.PrefillStart, 1)
	}
	for i := range s.Done {
		d := &s.Done[i]
		if m.byReason == nil {
			m.byReason = map[infer.Reason]uint64{}
		}
		m.byReason[d.Reason]++
		if f := &jobs[d.Ref].stamps; f.FirstToken > 0 && d.Reason != infer.ReasonAbort {
			m.decode.add(s.End-f.FirstToken, 1)
			m.whole.add(s.End-f.QueueEnd, 1)
			m.latency.add(s.End-f.ServerCreated, 1)
		}
	}
	m.windowIDs += len(s.ID)
	if since := s.End - m.windowStart; since >= int64(rateWindow) {
		m.throughput = float64(m.windowIDs) / (float64(since) / 1e9)
		m.windowStart, m.windowIDs = s.End, 0
	}
}

// lastOutput is when a step last had a result, ns.
func (e *Engine) lastOutput() int64 {
	e.meter.mu.Lock()
	defer e.meter.mu.Unlock()
	return e.meter.lastOutput
}

// gather makes a scrape of one face. What a face calls a thing is its own; the
// figures are the engine's.
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

func (g *gather) histogram(name, help string, h *histogram) {
	d, values := g.desc(name, help, nil)
	cumulative := map[float64]uint64{}
	var sum uint64
	for i, bound := range bounds {
		if h.counts != nil {
			sum += h.counts[i]
		}
		cumulative[bound] = sum
	}
	g.out <- prometheus.MustNewConstHistogram(d, h.n, h.sum.Seconds(), cumulative, values...)
}

// collector is a face's metrics, made anew at each scrape.
type collector func(g *gather)

// Describe implements prometheus.Collector. It says nothing, so that nothing is
// checked against it.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) { c(&gather{out: out}) }

func (e *Engine) metricsHandler(c collector) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}

func (e *Engine) sglangMetrics(g *gather) {
	g.labels = []string{"model_name", e.prepare.Model}
	n := e.totals()
	for _, l := range e.loadOfRanks() {
		rank := []string{"dp_rank", strconv.Itoa(l.rank)}
		if e.prepare.DPSize == 1 {
			rank = nil
		}
		g.gauge("sglang:num_running_reqs", "Requests in the running batch.", float64(l.running), rank...)
		g.gauge("sglang:num_queue_reqs", "Requests in the waiting queue.", float64(l.queued), rank...)
		if e.opts.Role != infer.RoleBoth {
			for _, q := range e.legQueues(&l) {
				g.gauge("sglang:num_"+q.name, q.help, float64(q.n), rank...)
			}
		}
		g.gauge("sglang:num_used_tokens", "Tokens of the KV cache in use.", float64(l.used), rank...)
		g.gauge("sglang:token_usage", "Share of the KV cache in use.", l.usage(), rank...)
		g.gauge("sglang:gen_throughput", "Generated tokens per second.", l.throughput, rank...)
		g.gauge("sglang:cache_hit_rate", "Share of prompt tokens found in the prefix cache.", l.hitRate, rank...)
		g.gauge("sglang:max_total_num_tokens", "Size of the KV cache in tokens.", float64(e.prepare.KVTokens), rank...)
		g.gauge("sglang:num_retracted_reqs", "Requests sent back to the queue and not running again.", float64(l.retracted), rank...)
	}
	m := &e.meter
	m.mu.Lock()
	defer m.mu.Unlock()
	g.counter("sglang:prompt_tokens_total", "Prompt tokens of admitted requests.", n.Prefilled+n.Cached)
	g.counter("sglang:generation_tokens_total", "Generated tokens.", n.Generated)
	g.counter("sglang:cached_tokens_total", "Prompt tokens found in the prefix cache.", n.Cached)
	g.counter("sglang:num_requests_total", "Requests that ended.", n.Finished)
	g.counter("sglang:num_aborted_requests_total", "Requests that were aborted.", n.Aborted)
	g.counter("sglang:num_retracted_requests_total", "Times a request was sent back to the queue.", n.Retracted)
	g.histogram("sglang:time_to_first_token_seconds", "From a request's arrival to its first token.", &m.firstToken)
	g.histogram("sglang:e2e_request_latency_seconds", "From a request's arrival to its end.", &m.latency)
	g.histogram("sglang:inter_token_latency_seconds", "From one token of a request to its next.", &m.betweenTokens)
	g.histogram("sglang:queue_time_seconds", "In the waiting queue.", &m.queued)
}

func (e *Engine) vllmMetrics(g *gather) {
	model := []string{"model_name", e.prepare.Model}
	n := e.totals()
	for _, l := range e.loadOfRanks() {
		g.labels = append(model, "engine", strconv.Itoa(l.rank))
		g.gauge("vllm:num_requests_running", "Requests in the running batch.", float64(l.running))
		g.gauge("vllm:num_requests_waiting", "Requests in the waiting queue.", float64(l.waiting))
		g.gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use; 1 is all of it.", l.usage())
	}
	m := &e.meter
	m.mu.Lock()
	defer m.mu.Unlock()
	g.labels = append(model, "engine", "0")
	g.counter("vllm:prompt_tokens_total", "Prompt tokens of admitted requests.", n.Prefilled+n.Cached)
	g.counter("vllm:generation_tokens_total", "Generated tokens.", n.Generated)
	g.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked for in the prefix cache.", n.Prefilled+n.Cached)
	g.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in it.", n.Cached)
	g.counter("vllm:num_preemptions_total", "Times a request was sent back to the queue.", n.Retracted)
	for _, reason := range []infer.Reason{infer.ReasonStop, infer.ReasonLength, infer.ReasonAbort} {
		g.counter("vllm:request_success_total", "Requests that ended, by how.", m.byReason[reason], "finished_reason", string(reason))
	}
	g.histogram("vllm:time_to_first_token_seconds", "From a request's arrival to its first token.", &m.firstToken)
	g.histogram("vllm:inter_token_latency_seconds", "From one token of a request to its next.", &m.betweenTokens)
	g.histogram("vllm:e2e_request_latency_seconds", "From a request's arrival to its end.", &m.latency)
	g.histogram("vllm:request_queue_time_seconds", "In the waiting queue.", &m.queued)
	g.histogram("vllm:request_prefill_time_seconds", "From admission to the first token.", &m.prefill)
	g.histogram("vllm:request_decode_time_seconds", "From the first token to the last.", &m.decode)
	g.histogram("vllm:request_inference_time_seconds", "From admission to the last token.", &m.whole)
}
