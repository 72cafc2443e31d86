package main

import (
	"slices"
	"testing"
)

// TestWorse makes a cell worse in each way, and by differences that may be chance.
func TestWorse(t *testing.T) {
	was := keptCell{Captured: 0.98, MaxMean: 1.01, Lost: []string{"goodput"}, Beside: map[string][]float64{"TTFT p50": {1, 1, 1}, "TTFT p99": {1.2, 1, 0.9}}}
	for _, test := range []struct {
		now  keptCell
		want []string
	}{
		{was, nil},
		{keptCell{Captured: 1, MaxMean: 1, Beside: map[string][]float64{"TTFT p50": {0.9, 1, 1}, "TTFT p99": {1.1, 0.9, 0.9}}}, nil},
		{keptCell{Captured: 0.972, MaxMean: 1.02, Lost: []string{"goodput"}, Beside: map[string][]float64{"TTFT p50": {1.04, 1.03, 1.04}, "TTFT p99": {1.2, 1.5, 0.9}}}, nil},
		{keptCell{Captured: 0.96, MaxMean: 1.1, Lost: []string{"goodput", "TTFT p99"}, Beside: map[string][]float64{"TTFT p50": {1.06, 1.07, 1.06}, "TTFT p99": {1.3, 1.1, 1}}}, []string{
			"cell: TTFT p50 beside the best reference [1.060 1.070 1.060], was [1.000 1.000 1.000]", "cell: TTFT p99 beside the best reference [1.300 1.100 1.000], was [1.200 1.000 0.900]",
			"cell: captured reuse 0.960, was 0.980", "cell: lost TTFT p99", "cell: max/mean load 1.10, was 1.01",
		}},
	} {
		if got := was.worse("cell", test.now); !slices.Equal(got, test.want) {
			t.Errorf("%+v: %q, want %q", test.now, got, test.want)
		}
	}
}
