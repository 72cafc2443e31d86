package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/engine/vllmcore"
)

// Cores reports the figures of vLLM engine cores at scrape time.
func (m *Metrics) Cores(engines []*vllmcore.Engine) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("weir_vllm_core_"+name, help, append([]string{"engine"}, labels...), nil)
	}
	m.registry.MustRegister(&coreCollector{
		engines:  engines,
		messages: desc("messages_total", "Messages received, one per engine step."),
		ids:      desc("ids_total", "Token ids in them."),
		dispatch: desc("dispatch_seconds_total", "Time spent decoding messages and handing them to streams."),
		aborts:   desc("aborts_total", "Aborts sent."),
		late:     desc("late_total", "Outputs of requests that nobody waits for."),
		lost:     desc("sessions_lost_total", "Sessions that ended, by why.", "why"),
		answer:   desc("answer_seconds", "How long the engine took to answer the latest call: about a step."),
		ready:    desc("ranks_ready", "Ranks that can be given requests."),
		live:     desc("requests", "Requests handed to the engine that have not ended."),
		running:  desc("engine_running", "Requests in the engine's running batch, as it last said."),
		waiting:  desc("engine_waiting", "Requests in the engine's waiting queue, as it last said."),
	})
}

type coreCollector struct {
	engines                                     []*vllmcore.Engine
	messages, ids, dispatch, aborts, late, lost *prometheus.Desc
	answer, ready, live, running, waiting       *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *coreCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.messages, c.ids, c.dispatch, c.aborts, c.late, c.lost,
		c.answer, c.ready, c.live, c.running, c.waiting} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *coreCollector) Collect(ch chan<- prometheus.Metric) {
	for _, e := range c.engines {
		f := e.Figures()
		name := e.Name()
		for _, v := range []struct {
			desc  *prometheus.Desc
			kind  prometheus.ValueType
			value float64
		}{
			{c.messages, prometheus.CounterValue, float64(f.Messages)},
			{c.ids, prometheus.CounterValue, float64(f.IDs)},
			{c.dispatch, prometheus.CounterValue, f.Dispatch.Seconds()},
			{c.aborts, prometheus.CounterValue, float64(f.Aborts)},
			{c.late, prometheus.CounterValue, float64(f.Late)},
			{c.answer, prometheus.GaugeValue, f.FenceLast.Seconds()},
			{c.ready, prometheus.GaugeValue, float64(f.Ready)},
			{c.live, prometheus.GaugeValue, float64(f.Live)},
			{c.running, prometheus.GaugeValue, float64(f.Running)},
			{c.waiting, prometheus.GaugeValue, float64(f.Waiting)},
		} {
			ch <- prometheus.MustNewConstMetric(v.desc, v.kind, v.value, name)
		}
		for why, n := range f.Lost {
			ch <- prometheus.MustNewConstMetric(c.lost, prometheus.CounterValue, float64(n), name, vllmcore.Loss(why).String())
		}
	}
}
