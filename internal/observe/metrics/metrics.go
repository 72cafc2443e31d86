// Package metrics is the Prometheus view of the gateway: requests' records, counted. The
// request path calls it once per request and once per write, never per token.
package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"weir/internal/infer"
	"weir/internal/trace"
)

// Metrics are the gateway's counters. They hold the accounting identity: at
// rest, weir_requests_received_total is the sum of weir_requests_total over its
// outcomes.
type Metrics struct {
	registry *prometheus.Registry

	received      *prometheus.CounterVec
	ended         *prometheus.CounterVec
	live          prometheus.Gauge
	retries       *prometheus.CounterVec
	twice         *prometheus.CounterVec
	refused       *prometheus.CounterVec
	tokens        *prometheus.CounterVec
	prompt        *prometheus.CounterVec
	writes        prometheus.Counter
	bytes         prometheus.Counter
	faults        *prometheus.CounterVec
	flaws         *prometheus.CounterVec
	clipped       *prometheus.CounterVec
	odd           *prometheus.CounterVec
	panics        *prometheus.CounterVec
	starved       *prometheus.CounterVec
	shakes        prometheus.Counter
	resets        *prometheus.CounterVec
	away          prometheus.Counter
	relayed       *prometheus.CounterVec
	ignored       *prometheus.CounterVec
	stage         [trace.NumStages]*latency
	residual      *latency
	ttft          *latencies
	total         *latencies
	output        *latencies
	path          *latency // of output, in all
	delay         *latency // weir's part of it
	hops          *latencies
	phases        *latencies
	acks          *latencies
	pair          *pairSeries
	choices       choices
	continuations continuations
	receiving     *receiving
	models        names
	perRequest
	usage usage
	// reloads and reloaded describe readings of the configuration, if it can be read again.
	reloads  *prometheus.CounterVec
	reloaded prometheus.Gauge

	sources liveSources
	handler http.Handler
}

// perRequest are the series that each request adds to, by what they belong to.
type perRequest struct {
	byModel, otherModels known[*modelSeries]
	byEngine             known[*engineSeries]
	byEndpoint           known[prometheus.Counter]
	finished             lazy[prometheus.Counter] // requests without an error
}

// durations spans from tens of microseconds, a stage at rest, to minutes, a
// long generation.
var durations = [...]float64{
	.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25,
	.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600,
}

// New makes the metrics and registers those of Go and of the process with them.
func New() *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		m.registry.MustRegister(c)
		return c
	}
	histogram := func(name, help string, labels ...string) *latencies {
		h := newLatencies(name, help, labels...)
		m.registry.MustRegister(h)
		return h
	}
	m.received = counter("weir_requests_received_total", "Requests received.", "endpoint")
	m.ended = counter("weir_requests_total", "Requests ended, by outcome and error code (empty when finished).", "outcome", "code")
	m.retries = counter("weir_retries_total", "Attempts that were repeated on another engine, by the engine that failed.", "engine")
	m.twice = counter("weir_retries_begun_total", "Attempts that were repeated on another engine although the one that failed may have begun, so that they were computed twice in part, by that engine.", "engine")
	m.refused = counter("weir_retries_refused_total", "Requests that failed at an engine and were not repeated although another engine was there, by model and why: budget, the model's retries are spent.", "model", "why")
	m.tokens = counter("weir_output_tokens_total", "Tokens written to clients, by model. Relayed answers count by the usage they state.", "model")
	m.prompt = counter("weir_prompt_tokens_total", "Prompt tokens of dispatched requests, by model.", "model")
	m.faults = counter("weir_engine_faults_total", "Attempts that ended with an error, by engine and code.", "engine", "code")
	m.flaws = counter("weir_integrity_failures_total", "Times an engine's output did not add up, by engine and reason. What ends many requests at once counts once.", "engine", "reason")
	m.clipped = counter("weir_usage_clipped_total", "Answers in which an engine stated more tokens than the request can have used. They count as what it can have.", "engine")
	m.panics = counter("weir_panics_total", "Panics that were caught: defects of weir's. By the engine whose output was read; empty while a request was served, or another peer's output was read.", "engine")
	m.relayed = counter("weir_relay_streams_total", "Streams of relayed engines that ended whole, by whether their token ids were as many as the engine counted (ids), or why that was not looked at.", "engine", "verified")
	m.odd = counter("weir_relay_odd_streams_total", "Streams of relayed engines with something that their API does not have and by which no output is lost, by engine and what it was: finished_twice, done_twice.", "engine", "reason")
	m.ignored = counter("weir_ignored_fields_total", "Requests that asked for something beside their answer which was left out, by API and the field's name in its table (docs/apis.md); unknown for fields in no table.", "api", "field")
	m.writes = counter("weir_output_writes_total", "Writes that carried output.").WithLabelValues()
	m.starved = counter("weir_starved_total", "Times a descriptor, or memory for a socket, was missing, by what for: accept, watch, dial.", "for")
	m.shakes = counter("weir_tls_handshake_errors_total", "Clients' TLS handshakes that failed.").WithLabelValues()
	m.resets = counter("weir_http2_streams_cancelled_total", "Streams of HTTP/2 that clients reset before they were answered, by whether their requests had begun. Those that had are cancelled in weir_requests_total; the others are no requests.", "begun")
	m.away = counter("weir_http2_go_away_total", "Connections of HTTP/2 that were told to go away, because their clients reset too many streams before they were answered, or sent too many frames that bring nothing.").WithLabelValues()
	m.bytes = counter("weir_output_bytes_total", "Bytes of response bodies written.").WithLabelValues()
	m.live = prometheus.NewGauge(prometheus.GaugeOpts{Name: "weir_requests_in_flight", Help: "Requests that have been received and have not ended."})
	m.registry.MustRegister(m.live)

	stages := histogram("weir_stage_seconds", "Time a request spent in each stage, summed over the stage's occurrences.", "stage")
	for s := range m.stage {
		m.stage[s] = stages.with(trace.Stage(s).String())
	}
	m.residual = histogram("weir_residual_seconds", "Time between arrival and finish that no stage explains.").with()
	m.ttft = histogram("weir_ttft_seconds", "Arrival to first output written, of streams: an answer that is not streamed is written at its end.", "model")
	m.total = histogram("weir_request_seconds", "Arrival to finish.", "model", "outcome")
	m.acks = histogram("weir_acknowledgement_seconds", "Where the time went until an engine's confirmation of a request was known, by part: send and read are the gateway's waits, engine all else, of it queue and write what the engine took before and after it had taken the request in, where its wire tells.", "engine", "part")
	m.path = histogram("weir_output_path_delay_seconds", "Deprecated, for one release: weir_output_hop_seconds and weir_output_delay_seconds together, of streams whose engine stamps its output.").with()
	m.output = histogram("weir_output_delay_seconds", "What weir itself adds to output: from the reading of the first output until it was given to the kernel; of an answer that is not streamed, from the last output.")
	m.delay = m.output.with()
	m.hops = histogram("weir_output_hop_seconds", "Time from an engine's stamp of its first output until weir had read it. The engine's server process and the network take it. An engine that does not stamp its output has no hop.", "engine")
	m.phases = histogram("weir_engine_phase_seconds", "Where requests were at their engines, by model and phase (queue, prefill, decode), as far as the engines stamp it.", "model", "phase")
	m.finished = lazyCounter(m.ended, infer.Finished.String(), "")
	m.pair = newPairSeries(histogram)
	m.choices = newChoices(counter, histogram)
	m.continuations = newContinuations(m.registry, counter, histogram)
	m.usage = newUsage(counter)
	m.receiving = newReceiving()
	m.registry.MustRegister(m.receiving)
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.handler = Serve(m.registry)
	return m
}

// Handler serves /metrics.
func (m *Metrics) Handler() http.Handler { return m.handler }

// Registry is for figures that other parts own and a collector reads.
func (m *Metrics) Registry() prometheus.Registerer { return m.registry }

// Received counts a request in.
func (m *Metrics) Received(endpoint string) {
	c, ok := m.byEndpoint.get(endpoint)
	if !ok {
		c = m.byEndpoint.add(endpoint, m.received.WithLabelValues(endpoint))
	}
	c.Inc()
	m.live.Inc()
}

// Retry counts an attempt that will be repeated at another engine. begun reports whether
// the engine may have begun to work on it.
func (m *Metrics) Retry(engine string, begun bool) {
	m.retries.WithLabelValues(engine).Inc()
	if begun {
		m.twice.WithLabelValues(engine).Inc()
	}
}

// RetryRefused counts a request that was not repeated although another engine was there.
func (m *Metrics) RetryRefused(model, why string) {
	m.refused.WithLabelValues(m.models.label(model), why).Inc()
}

// EngineFault counts an attempt that ended with an error.
func (m *Metrics) EngineFault(engine string, code infer.Code) {
	m.faults.WithLabelValues(engine, code.String()).Inc()
}

// IntegrityFailure counts an engine's output that did not add up.
func (m *Metrics) IntegrityFailure(engine, reason string) {
	m.flaws.WithLabelValues(engine, reason).Inc()
}

// Clipped counts an answer in which the engine stated more tokens than the request can have used.
func (m *Metrics) Clipped(engine string) { m.clipped.WithLabelValues(engine).Inc() }

// Odd counts a relayed stream in which something was odd, by a word.
func (m *Metrics) Odd(engine, reason string) { m.odd.WithLabelValues(engine, reason).Inc() }

// Panicked counts a panic that was caught, while an engine's output was read; with no
// engine, while a request was served or another peer's output was read.
func (m *Metrics) Panicked(engine string) { m.panics.WithLabelValues(engine).Inc() }

// Ignored counts a field of a request that was left out, by its name in the dialect's
// table.
func (m *Metrics) Ignored(dialect, field string) { m.ignored.WithLabelValues(dialect, field).Inc() }

// RelayStream counts a relayed stream that ended whole, and whether it was verified;
// why not is a word.
func (m *Metrics) RelayStream(engine string, verified bool, why string) {
	s := m.engine(engine)
	if verified {
		s.verified.Add(1)
		s.ids.get().Inc()
		return
	}
	s.not.Add(1)
	m.relayed.WithLabelValues(engine, why).Inc()
}

// RelayStreams returns how many streams of an engine ended whole, verified and not.
func (m *Metrics) RelayStreams(engine string) (verified, not int) {
	if s, ok := m.byEngine.get(engine); ok {
		return int(s.verified.Load()), int(s.not.Load())
	}
	return 0, 0
}

// Wrote counts writes to clients, and the bytes they carried.
func (m *Metrics) Wrote(writes, bytes int) {
	m.writes.Add(float64(writes))
	m.bytes.Add(float64(bytes))
}

// Ended counts a request out and its record into the histograms.
func (m *Metrics) Ended(r *trace.Record) {
	m.live.Dec()
	model := m.model(r.Model)
	if r.Outcome == infer.Finished && r.Code == "" {
		m.finished.get().Inc()
	} else {
		m.ended.WithLabelValues(r.Outcome.String(), r.Code).Inc()
	}
	for s, ns := range r.Ledger.Spent {
		if ns > 0 {
			m.stage[s].observe(ns)
		}
	}
	m.residual.observe(max(r.Residual(), 0))
	model.total[r.Outcome].get().observe(r.Total())
	if r.PromptTokens > 0 && len(r.Attempts) > 0 {
		model.prompt.get().Add(float64(r.PromptTokens))
	}
	if r.CompletionTokens > 0 {
		model.tokens.get().Add(float64(r.CompletionTokens))
	}
	for i := range r.Attempts {
		for k := range r.Attempts[i].Legs {
			m.acknowledged(&r.Attempts[i].Legs[k])
		}
	}
	m.pair.ended(r)
	model.choice.ended(r)
	if ttft, ok := r.TTFT(); ok {
		model.ttft.get().observe(ttft)
	}
	if delay, ok := r.OutputDelay(); ok {
		m.delay.observe(delay)
	}
	if hop, ok := r.Hop(); ok {
		leg := r.Leg()
		m.engine(leg.Engine).hop.get().observe(hop)
		if r.Stream && r.FirstFlushed != 0 {
			m.path.observe(r.FirstFlushed - leg.Stamps.FirstOutput)
		}
	}
	for i, ns := range r.Phases() {
		if ns >= 0 {
			model.phases[i].get().observe(ns)
		}
	}
}

// acknowledged counts the parts of an acknowledgement.
func (m *Metrics) acknowledged(l *trace.Leg) {
	ack, ok := l.Ack()
	if !ok {
		return
	}
	s := m.engine(l.Engine)
	for i, ns := range ack.Parts() {
		if ns >= 0 {
			s.acks[i].get().observe(ns)
		}
	}
}
