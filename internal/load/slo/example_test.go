package slo_test

import (
	"fmt"
	"time"

	"weir/internal/load/slo"
)

// An objective is decided by the requests of a trial, or left open when they are
// too few.
func ExampleObjective_Decide() {
	objectives, err := slo.Parse("ttft_p90=500ms")
	if err != nil {
		fmt.Println(err)
		return
	}
	o := objectives[0]
	fmt.Println("at least", o.Needed(), "requests")
	for _, n := range []int{20, 200} {
		requests := make([]slo.Request, n)
		for i := range requests {
			requests[i] = slo.Request{Complete: true, TTFT: 300 * time.Millisecond, E2E: time.Second}
		}
		fmt.Println(n, o.Decide(o.Take(requests).Estimate()))
	}
	// Output:
	// at least 60 requests
	// 20 undecided
	// 200 meets
}

// A search asks for rates and is told what each showed: here a server that is late
// for one request in five above 12 requests/s.
func ExampleSearch() {
	objectives, err := slo.Parse("ttft_p90=500ms")
	if err != nil {
		fmt.Println(err)
		return
	}
	search := slo.NewSearch(objectives, slo.Options{Start: 4})
	for rate, ok := search.Next(); ok; rate, ok = search.Next() {
		bad := 0
		if rate > 12 {
			bad = 200
		}
		search.Add(slo.Trial{Rate: rate, Tallies: []slo.Tally{{{N: 1000, Bad: bad}}}})
	}
	r := search.Result()
	fmt.Println(r.Sentence())
	for _, step := range r.Path[:4] {
		fmt.Println(slo.Round(step.Rate), step.Decision)
	}
	// Output:
	// the objectives are met up to 11.81 requests a second; the limit lies between 11.81 and 12.34
	// 4 meets
	// 8 meets
	// 16 misses
	// 11.31 meets
}
