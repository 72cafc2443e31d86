package watch

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/observe/busy"
)

// watchMetrics are the watch's own.
type watchMetrics struct {
	stalls, triggers           *prometheus.CounterVec
	stalled, idle              prometheus.Counter
	runDelay, steal, throttled prometheus.Counter
	counted                    Sample // until then
}

// register makes the metrics.
func (w *Watch) register(r prometheus.Registerer) {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		r.MustRegister(c)
		return c
	}
	vector := func(name, help, label string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
		r.MustRegister(c)
		return c
	}
	w.metrics = watchMetrics{
		stalls:    vector("weir_stalls_total", "Times for which nothing was read for longer than --stall-threshold while requests were in flight, by what held the core: an operation, gc, unnamed work, or nobody of ours.", "held_by"),
		triggers:  vector("weir_triggers_total", "Times that a reason to look closer began (docs/watching.md), by which.", "trigger"),
		stalled:   counter("weir_stalled_seconds_total", "What stalls took together."),
		idle:      counter("weir_idle_stalls_total", "Times for which nothing was read for longer than --stall-threshold while no request was in flight."),
		runDelay:  counter("weir_run_delay_seconds_total", "How long the thread of the process waited for a core that waited longest, each 250 ms added up."),
		steal:     counter("weir_steal_seconds_total", "How long the host gave this machine's cores to others."),
		throttled: counter("weir_throttled_seconds_total", "How long the process's group was held back by its CPU limit."),
	}
	for t := range NumTriggers {
		w.metrics.triggers.WithLabelValues(t.String())
	}
	gauge := func(name, help string, value func(*State) float64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			s := w.State()
			return value(&s)
		}))
	}
	gauge("weir_cpu_share", "What the process takes of the cores that it may use, over the last 250 ms.", func(s *State) float64 { return s.CPUShare })
	gauge("weir_scheduling_p99_seconds", "The 99th percentile of how long goroutines waited for a core, over the last 250 ms.", func(s *State) float64 { return s.SchedP99MS / 1e3 })
	gauge("weir_writes_blocked", "Streams that wait for clients that do not read.", func(s *State) float64 { return float64(s.Blocked) })
	gauge("weir_output_delay_p99_seconds", "The 99th percentile over ten seconds of weir_output_delay_seconds.", func(s *State) float64 { return s.OutputP99MS / 1e3 })
	r.MustRegister(&operationMetrics{&w.meter,
		prometheus.NewDesc("weir_busy_seconds_total", "Time in named operations by the clock, by operation.", []string{"operation"}, nil),
		prometheus.NewDesc("weir_operations_total", "Named operations that ended, by operation.", []string{"operation"}, nil)})
	if p := w.o.Profiles; p != nil {
		count := func(name, help string, value func() uint64) {
			r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 {
				p.mu.Lock()
				defer p.mu.Unlock()
				return float64(value())
			}))
		}
		count("weir_profiles_kept_total", "Files of profiles that were kept.", func() uint64 { return p.kept })
		count("weir_profiles_failed_total", "Files of profiles that could not be written.", func() uint64 { return p.failed })
		count("weir_profiles_left_out_total", "Triggers of which no profile was kept because the hour had had the number of that trigger.", func() uint64 { return p.left })
	}
}

// count adds what has passed since the look before.
func (m *watchMetrics) count(after *Sample) {
	before := m.counted
	m.counted = *after
	if before.At == 0 {
		return
	}
	m.runDelay.Add(max(0, after.RunDelay-before.RunDelay).Seconds())
	m.steal.Add(max(0, after.Steal-before.Steal).Seconds())
	m.throttled.Add(max(0, after.Throttled-before.Throttled).Seconds())
}

// operationMetrics reports the meter at scrape time.
type operationMetrics struct {
	of           *busy.Meter
	spent, ended *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *operationMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.spent
	ch <- c.ended
}

// Collect implements prometheus.Collector.
func (c *operationMetrics) Collect(ch chan<- prometheus.Metric) {
	spent, ended := c.of.Totals()
	for op := range busy.NumOps {
		ch <- prometheus.MustNewConstMetric(c.spent, prometheus.CounterValue, float64(spent[op])/1e9, op.String())
		ch <- prometheus.MustNewConstMetric(c.ended, prometheus.CounterValue, float64(ended[op]), op.String())
	}
}
