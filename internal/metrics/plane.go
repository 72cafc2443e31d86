package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/engine/plane"
	"weir/internal/timeline"
)

// Planes reports the figures of the batched plane's readers at scrape time:
// on which side of a reader a backlog stands.
func (m *Metrics) Planes(engines []*plane.Engine) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("weir_plane_"+name, help, append([]string{"engine"}, labels...), nil)
	}
	m.registry.MustRegister(&planeCollector{
		engines:  engines,
		frames:   desc("frames_total", "Steps received."),
		ids:      desc("ids_total", "Token ids in them."),
		dispatch: desc("dispatch_seconds_total", "Time spent decoding steps and handing them to streams."),
		longest:  desc("dispatch_seconds_max", "The longest dispatch of one step."),
		waited:   desc("wait_seconds_total", "Time the reader waited for a step; a reader that hardly waits is the bottleneck."),
		aborts:   desc("aborts_total", "Aborts sent."),
		lost:     desc("sessions_lost_total", "Sessions that ended, by why.", "why"),
		ping:     desc("ping_seconds", "Round trip of the latest ping."),
		live:     desc("slots", "Requests handed to the engine that have not ended."),
		running:  desc("engine_running", "Requests in the engine's running batch, as it last said."),
		waiting:  desc("engine_waiting", "Requests in the engine's waiting queue, as it last said."),
	})
}

type planeCollector struct {
	engines                                        []*plane.Engine
	frames, ids, dispatch, longest, waited, aborts *prometheus.Desc
	lost, ping, live, running, waiting             *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *planeCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.frames, c.ids, c.dispatch, c.longest, c.waited, c.aborts,
		c.lost, c.ping, c.live, c.running, c.waiting} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *planeCollector) Collect(ch chan<- prometheus.Metric) {
	for _, e := range c.engines {
		f := e.Figures()
		name := e.Name()
		for _, v := range []struct {
			desc  *prometheus.Desc
			kind  prometheus.ValueType
			value float64
		}{
			{c.frames, prometheus.CounterValue, float64(f.Frames)},
			{c.ids, prometheus.CounterValue, float64(f.IDs)},
			{c.dispatch, prometheus.CounterValue, f.DispatchSum.Seconds()},
			{c.longest, prometheus.GaugeValue, f.DispatchMax.Seconds()},
			{c.waited, prometheus.CounterValue, f.WaitSum.Seconds()},
			{c.aborts, prometheus.CounterValue, float64(f.Aborts)},
			{c.ping, prometheus.GaugeValue, f.PingLast.Seconds()},
			{c.live, prometheus.GaugeValue, float64(f.Live)},
			{c.running, prometheus.GaugeValue, float64(f.Running)},
			{c.waiting, prometheus.GaugeValue, float64(f.Waiting)},
		} {
			ch <- prometheus.MustNewConstMetric(v.desc, v.kind, v.value, name)
		}
		for why, n := range f.Lost {
			ch <- prometheus.MustNewConstMetric(c.lost, prometheus.CounterValue, float64(n), name, plane.Loss(why).String())
		}
	}
}

// Timeline reports how many records were written and lost.
func (m *Metrics) Timeline(r *timeline.Recorder) {
	m.registry.MustRegister(
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "weir_timeline_written_total",
			Help: "Records written to the timeline file."}, func() float64 { return float64(r.Written()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "weir_timeline_dropped_total",
			Help: "Records that the timeline file does not have."}, func() float64 { return float64(r.Dropped()) }),
	)
}
