package metrics

import (
	"fmt"
	"strings"
	"testing"

	"weir/internal/trace"
)

// Beyond 1,000 pairs of a tenant and a model the tenant is "other"; nothing is lost, and pairs
// that have series keep them.
func TestUsageOfManyTenants(t *testing.T) {
	m := New()
	const tenants = maxUsers + 500
	for range 2 {
		for i := range tenants {
			m.Used(&trace.Record{Tenant: fmt.Sprint("tenant-", i), Model: "m", Used: trace.Used{Prompt: 3, Cached: 2, Completion: 1}})
		}
	}
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for name, each := range map[string]float64{"requests": 1, "prompt_tokens": 3, "cached_tokens": 2, "completion_tokens": 1} {
		series, own, other := 0, 0.0, 0.0
		for _, f := range families {
			if f.GetName() != "weir_usage_"+name+"_total" {
				continue
			}
			for _, s := range f.GetMetric() {
				series++
				if v := s.GetCounter().GetValue(); strings.Contains(s.String(), `value:"other"`) {
					other += v
				} else if own += v; v != 2*each {
					t.Errorf("%s of a tenant are %v, want %v", name, v, 2*each)
				}
			}
		}
		if series != maxUsers+1 || own != 2*maxUsers*each || other != 1000*each {
			t.Errorf("%s: %d series, %v of tenants and %v of others", name, series, own, other)
		}
	}
}

// A request pays no allocation once its tenant is known.
func BenchmarkUsed(b *testing.B) {
	m, r := New(), &trace.Record{Tenant: "research", Model: "m", Used: trace.Used{Prompt: 30, Completion: 7}}
	b.ReportAllocs()
	for b.Loop() {
		m.Used(r)
	}
}
