package engine

// Metric is one of an adapter's own figures at the moment of asking, in the form of
// Prometheus.
type Metric struct {
	Name, Help string
	Counter    bool // it never falls; otherwise it is a gauge
	Value      float64
	// Label and LabelValue distinguish metrics of the same name; both are empty if
	// there is only one. The caller adds the engine's name.
	Label, LabelValue string
}

// NewCounter makes a metric that never falls. Its name ends in _total.
func NewCounter(name, help string, value float64) Metric {
	return Metric{Name: name, Help: help, Counter: true, Value: value}
}

// NewGauge makes a metric that rises and falls.
func NewGauge(name, help string, value float64) Metric {
	return Metric{Name: name, Help: help, Value: value}
}

// With returns the metric with a label.
func (m Metric) With(label, value string) Metric {
	m.Label, m.LabelValue = label, value
	return m
}

// Metered is an Adapter that has metrics of its own. Their names begin with weir_ and
// the name of its wire, and each name has one help text. Metrics may be called at any
// time and from any goroutine. It returns the same metrics each time, with their
// current values. The values are read one by one, so two of them may be a message
// apart.
type Metered interface {
	Metrics() []Metric
}
