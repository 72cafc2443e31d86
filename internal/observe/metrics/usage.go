package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/fleet/queue"
	"weir/internal/observe/timeline"
	"weir/internal/trace"
)

// maxUsers is how many pairs of a tenant and a model have series of their own.
const maxUsers = 1000

// usage counts what tenants use of models. A request costs it a look-up and four additions, and
// no allocation once its pair is there.
type usage struct {
	requests, prompt, cached, completion *prometheus.CounterVec

	mu    sync.RWMutex
	pairs map[[2]string]*used // by tenant and the model's label
	rest  map[string]*used    // by the model's label, beyond maxUsers
}

// used is what one pair has used.
type used struct{ requests, prompt, cached, completion prometheus.Counter }

func newUsage(counter func(name, help string, labels ...string) *prometheus.CounterVec) usage {
	return usage{
		requests:   counter("weir_usage_requests_total", "Requests of a tenant that ended, however, by model; the model is empty where a request named none that it may use. Beyond 1,000 pairs of tenant and model the tenant is \"other\". docs/keys.md says what counts.", "tenant", "model"),
		prompt:     counter("weir_usage_prompt_tokens_total", "Tokens of the prompts of a tenant's requests that were answered, also in part.", "tenant", "model"),
		cached:     counter("weir_usage_cached_tokens_total", "Those of them that the engines said were in their caches.", "tenant", "model"),
		completion: counter("weir_usage_completion_tokens_total", "Tokens that came from engines for a tenant's requests, also for answers that were cut.", "tenant", "model"),
		pairs:      map[[2]string]*used{}, rest: map[string]*used{},
	}
}

// of returns what counts for a tenant and a model's label.
func (u *usage) of(tenant, model string) *used {
	at := [2]string{tenant, model}
	u.mu.RLock()
	p := u.pairs[at]
	if p == nil && len(u.pairs) >= maxUsers {
		p = u.rest[model]
	}
	u.mu.RUnlock()
	if p != nil {
		return p
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if p = u.pairs[at]; p != nil {
		return p
	}
	if len(u.pairs) < maxUsers {
		p = u.series(printable(tenant), model)
		u.pairs[at] = p
		return p
	}
	if p = u.rest[model]; p == nil {
		p = u.series(queue.Other, model)
		u.rest[model] = p
	}
	return p
}

func (u *usage) series(tenant, model string) *used {
	return &used{
		u.requests.WithLabelValues(tenant, model), u.prompt.WithLabelValues(tenant, model),
		u.cached.WithLabelValues(tenant, model), u.completion.WithLabelValues(tenant, model),
	}
}

// Used counts what a request of a known caller has used.
func (m *Metrics) Used(r *trace.Record) {
	p := m.usage.of(r.Tenant, m.models.label(r.Model))
	p.requests.Inc()
	p.prompt.Add(float64(r.Used.Prompt))
	p.cached.Add(float64(r.Used.Cached))
	p.completion.Add(float64(r.Used.Completion))
}

// UsageLog reports how many lines of the usage log were written and lost.
func (m *Metrics) UsageLog(r *timeline.Recorder) {
	m.registry.MustRegister(
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "weir_usage_log_written_total",
			Help: "Requests in the usage log (--usage-log)."}, func() float64 { return float64(r.Written()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "weir_usage_log_dropped_total",
			Help: "Requests that the usage log does not have, such as for a full disk."}, func() float64 { return float64(r.Dropped()) }),
	)
}
