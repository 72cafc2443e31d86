package metrics

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"pgregory.net/rapid"

	"weir/internal/infer"
	"weir/internal/trace"
)

// A latency has the counts that client_golang's histogram has, in both forms of buckets.
func TestLatency(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := newLatencies("x", "", "model", "part")
		reference := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "x", Buckets: durations[:], NativeHistogramBucketFactor: 1.1,
			NativeHistogramZeroThreshold: math.Exp2(float64(scaleLatency.exponent))}, []string{"model", "part"})
		most := int64(math.Exp2(float64(scaleLatency.exponent+doublings)) * 1e9)
		var values []int64
		for range rapid.IntRange(1, 50).Draw(t, "n") {
			v := rapid.Int64Range(0, most).Draw(t, "value") >> rapid.IntRange(0, 40).Draw(t, "less")
			if rapid.Bool().Draw(t, "at a bound") {
				v = rapid.SampledFrom(inNanoseconds[:]).Draw(t, "bound")
			}
			values = append(values, v)
			all.with("m", "a").observe(v)
			reference.WithLabelValues("m", "a").Observe(float64(v) / 1e9)
		}
		all.with("m", "b")
		all.forget("part", "b")
		var got, want []*dto.Histogram
		each(all, func(m *dto.Metric) { got = append(got, m.GetHistogram()) })
		each(reference, func(m *dto.Metric) { want = append(want, m.GetHistogram()) })
		if len(got) != 1 || len(want) != 1 {
			t.Fatalf("%d series, want %d", len(got), len(want))
		}
		if diff := cmp.Diff(native(want[0]), native(got[0])); diff != "" || got[0].GetZeroCount() != want[0].GetZeroCount() || got[0].GetSampleCount() != want[0].GetSampleCount() {
			t.Fatalf("%v: %v, want %v; %s", values, got[0], want[0], diff)
		}
		for i, b := range want[0].GetBucket() {
			if a := got[0].GetBucket()[i]; a.GetUpperBound() != b.GetUpperBound() || a.GetCumulativeCount() != b.GetCumulativeCount() {
				t.Fatalf("%v: %v, want %v", values, a, b)
			}
		}
	})
}

// What a request adds to is looked up without allocations, and an engine that is forgotten
// leaves no series.
func TestEndedAllocatesNothing(t *testing.T) {
	m := New()
	r := ended(infer.Finished, "")
	r.Stream, r.Model, r.PromptTokens, r.CompletionTokens, r.FirstFlushed = true, "m", 5, 7, r.Arrival+1000
	r.Attempts = []trace.Attempt{{Legs: []trace.Leg{{Engine: "e", Handed: r.Arrival + 1, ToServer: r.Arrival + 2}}}}
	r.Attempts[0].Legs[0].Stamps.FirstOutput, r.FirstReceived, r.Pace = r.Arrival+500, r.Arrival+600, &trace.Pace{Sent: r.Arrival + 700, Last: r.Arrival + 900}
	add := func() {
		m.Received("/v1/chat/completions")
		m.RelayStream("e", true, "")
		m.Gaps("m").Add(5, 1)
		m.Receive("vllm").Merged().Add(1, 1)
		m.Ended(r)
	}
	add()
	if n := testing.AllocsPerRun(100, add); n != 0 {
		t.Errorf("%v allocations", n)
	}
	m.Forget("e")
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, s := range f.GetMetric() {
			for _, l := range s.GetLabel() {
				if l.GetName() == "engine" && strings.HasPrefix(f.GetName(), "weir_") {
					t.Errorf("%s still has %v", f.GetName(), s.GetLabel())
				}
			}
		}
	}
	add()
	if _, n, _ := series(t, m, "weir_acknowledgement_seconds"); n == 0 {
		t.Error("an engine that comes again has no acknowledgements")
	}
}
