package metrics

import "github.com/prometheus/client_golang/prometheus"

// Receive describes how the output of engines of one kind arrives, and on which side of the
// readers a backlog is. A batch is what a reader passes on before it waits: a frame on a
// wire with one connection for many streams, otherwise the data that was ready on the
// streams' sockets at once.
type Receive struct {
	streams, wait, dispatch, merged *Distribution
}

// Batch counts a batch of this many streams. Its reader waited for it and processed it for
// these times, in nanoseconds. waited is negative for a reader's first batch.
func (r *Receive) Batch(streams int, waited, took int64) {
	r.streams.Add(int64(streams), 1)
	r.dispatch.Add(took, 1)
	if waited >= 0 {
		r.wait.Add(waited, 1)
	}
}

// Batches counts batches of what one goroutine reads.
type Batches struct {
	Ended int64 // when the one before ended; 0: there was none
}

// Count counts a batch, which ends now.
func (b *Batches) Count(of *Receive, streams int, began, now int64) {
	waited := int64(-1)
	if b.Ended != 0 {
		waited = began - b.Ended
	}
	of.Batch(streams, waited, now-began)
	b.Ended = now
}

// Merged is how many deltas of an engine a turn of a stream took as one.
func (r *Receive) Merged() *Distribution { return r.merged }

// receiving reports what comes in, and how it comes to clients.
type receiving struct {
	kinds                                 known[*Receive]
	models                                known[*Distribution] // by label
	streams, wait, dispatch, merged, gaps *prometheus.Desc
}

func newReceiving() *receiving {
	kind, model := []string{"kind"}, []string{"model"}
	return &receiving{
		streams:  prometheus.NewDesc("weir_receive_batch_streams", "Streams that a batch of engines' output had something for, by the engines' kind. Its count is that of the batches.", kind, nil),
		wait:     prometheus.NewDesc("weir_receive_wait_seconds", "How long a reader of engines' output waited for a batch. Readers that hardly wait are the bottleneck.", kind, nil),
		dispatch: prometheus.NewDesc("weir_receive_dispatch_seconds", "How long a reader took to decode a batch and hand it to its streams; of relayed engines (openai), to send it on to their clients too.", kind, nil),
		merged:   prometheus.NewDesc("weir_receive_merged_deltas", "What of an engine's output a stream took as one: deltas, of relayed engines events. More than one have waited for their stream's turn.", kind, nil),
		gaps:     prometheus.NewDesc("weir_inter_token_latency_seconds", "Time between a stream's tokens after the first output, as weir took them from the engine. What is taken as one shares out the time since what came before; of relayed engines an event counts as a token.", model, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *receiving) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.streams, c.wait, c.dispatch, c.merged, c.gaps} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *receiving) Collect(ch chan<- prometheus.Metric) {
	for name, r := range c.kinds.all() {
		ch <- r.streams.metric(c.streams, name)
		ch <- r.wait.metric(c.wait, name)
		ch <- r.dispatch.metric(c.dispatch, name)
		ch <- r.merged.metric(c.merged, name)
	}
	for model, gaps := range c.models.all() {
		ch <- gaps.metric(c.gaps, model)
	}
}

// Receive returns the counters for engines of a kind.
func (m *Metrics) Receive(kind string) *Receive {
	if r, ok := m.receiving.kinds.get(kind); ok {
		return r
	}
	return m.receiving.kinds.add(kind, &Receive{newDistribution(scaleCount), newDistribution(scaleShort), newDistribution(scaleShort), newDistribution(scaleCount)})
}

// Gaps is the time between tokens of a model's answers.
func (m *Metrics) Gaps(model string) *Distribution { return m.model(model).gaps.get() }

// gapsOf returns the distribution for a model's label.
func (c *receiving) gapsOf(label string) *Distribution {
	return c.models.add(label, newDistribution(scaleSeconds))
}
