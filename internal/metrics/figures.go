package metrics

import "github.com/prometheus/client_golang/prometheus"

// figure is one of an adapter's own figures, F, read at scrape time.
type figure[F any] struct {
	name, help string
	kind       prometheus.ValueType
	value      func(f *F) float64
}

// figures reports the figures of the engines of one kind. Each has the label
// engine; the sessions that were lost have why besides.
type figures[F any] struct {
	engines func() []figured[F]
	list    []figure[F]
	descs   []*prometheus.Desc
	lost    *prometheus.Desc
	losses  func(f *F) []uint64
	why     func(i int) string
}

// figured is an adapter that counts.
type figured[F any] interface {
	Name() string
	Figures() F
}

// newFigures makes a collector whose metrics begin with a prefix. losses gives
// how many sessions were lost by each cause, and why names the cause.
func newFigures[F any, E figured[F]](prefix string, engines func() []E, losses func(f *F) []uint64, why func(i int) string, list []figure[F]) *figures[F] {
	c := &figures[F]{list: list, losses: losses, why: why,
		lost: prometheus.NewDesc(prefix+"sessions_lost_total", "Sessions that ended, by why.", []string{"engine", "why"}, nil)}
	c.engines = func() (all []figured[F]) {
		for _, e := range engines() {
			all = append(all, e)
		}
		return all
	}
	for _, f := range list {
		c.descs = append(c.descs, prometheus.NewDesc(prefix+f.name, f.help, []string{"engine"}, nil))
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *figures[F]) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
	ch <- c.lost
}

// Collect implements prometheus.Collector.
func (c *figures[F]) Collect(ch chan<- prometheus.Metric) {
	for _, e := range c.engines() {
		f, name := e.Figures(), e.Name()
		for i, one := range c.list {
			ch <- prometheus.MustNewConstMetric(c.descs[i], one.kind, one.value(&f), name)
		}
		for i, n := range c.losses(&f) {
			ch <- prometheus.MustNewConstMetric(c.lost, prometheus.CounterValue, float64(n), name, c.why(i))
		}
	}
}
