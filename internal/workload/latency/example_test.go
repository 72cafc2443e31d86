package latency_test

import (
	"fmt"
	"time"

	"weir/internal/workload/latency"
)

// A report has only the figures that its values carry: 150 of them say little of a
// 99.9th percentile.
func ExampleRecorder() {
	r := latency.New(time.Hour)
	for i := range 150 {
		r.Add(int64(time.Duration(100+i) * time.Millisecond))
	}
	s := r.Summary()
	fmt.Println(s.Count, s.Mean, s.Max)

	j := r.Judge(true)
	fmt.Println("p999:", j.Refused["p999"])
	fmt.Printf("p50: %.0f, with 95 %% confidence in %.0f\n", j.P50, j.CI95["p50"])
	// Output:
	// 150 174.5 249
	// p999: needs 1000 values, has 150
	// p50: 174, with 95 % confidence in [160 188]
}
