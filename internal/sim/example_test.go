package sim_test

import (
	"fmt"
	"time"

	"weir/internal/sim"
	"weir/internal/workload/content"
)

// The core has no clock: it says when it is due, is advanced to that moment, and
// says what each step gave to whom.
func ExampleCore() {
	vocabulary := func(id uint32) ([]byte, bool) {
		return []byte{' ', 'a' + byte(id%26), 'a' + byte(id/26%26), 'a' + byte(id/676)}, true
	}
	words, err := content.New(1024, vocabulary)
	if err != nil {
		fmt.Println(err)
		return
	}
	core, err := sim.New(sim.Options{Words: words, MaxRunning: 2, Cost: sim.Constant{Prefill: 20 * time.Millisecond, Decode: 5 * time.Millisecond}})
	if err != nil {
		fmt.Println(err)
		return
	}
	now := int64(0)
	for range 3 { // one more than may run at once
		r, err := core.Options().Prepare(sim.Params{Prompt: []uint32{1, 2, 3}, MaxTokens: 2})
		if err != nil {
			fmt.Println(err)
			return
		}
		if _, err := core.Submit(now, now, r); err != nil {
			fmt.Println(err)
			return
		}
	}
	for due, ok := core.Due(); ok; due, ok = core.Due() {
		now = max(now, due)
		for step := core.Advance(now); step != nil; step = core.Advance(now) {
			fmt.Printf("%v to %v: %d ids, %d done, %d running, %d waiting\n",
				time.Duration(step.Start), time.Duration(step.End), len(step.ID), len(step.Done), step.Running, step.Waiting)
		}
	}
	fmt.Println(core.Counts().Generated, "ids in all")
	// Output:
	// 0s to 20ms: 2 ids, 0 done, 2 running, 1 waiting
	// 20ms to 25ms: 2 ids, 2 done, 1 running, 0 waiting
	// 25ms to 45ms: 1 ids, 0 done, 1 running, 0 waiting
	// 45ms to 50ms: 1 ids, 1 done, 0 running, 0 waiting
	// 6 ids in all
}
