package stream_test

import (
	"fmt"

	"weir/internal/gateway/stream"
	"weir/internal/infer"
)

// An engine's reader offers deltas and never waits. Whoever serves the client takes
// what came meanwhile in one piece, and hands the cells back with the next Take.
func ExampleMailbox() {
	m := stream.New(1, 100, nil, nil)
	attempt := m.NextAttempt()

	m.Offer(&infer.Delta{Attempt: attempt, IDs: []uint32{7, 8}, Total: 2})
	m.Offer(&infer.Delta{Attempt: attempt, IDs: []uint32{9}, Total: 3})
	var cells []stream.Cell
	cells = m.Take(cells)
	fmt.Println(cells[0].IDs)

	fmt.Println(len(m.Take(cells)), "cells are left")
	m.Offer(&infer.Delta{Attempt: attempt, IDs: []uint32{10}, Total: 4, Finish: &infer.Finish{Reason: infer.ReasonStop}})
	m.Wait() // not at all: something is pending
	cells = m.Take(cells)
	fmt.Println(cells[0].IDs, cells[0].Finish.Reason)
	// Output:
	// [7 8 9]
	// 0 cells are left
	// [10] stop
}

// A delta whose count does not add up means that ids were lost: the choice ends with
// an integrity error behind what came before.
func ExampleMailbox_integrity() {
	m := stream.New(1, 100, nil, nil)
	attempt := m.NextAttempt()
	m.Offer(&infer.Delta{Attempt: attempt, IDs: []uint32{7}, Total: 1})
	m.Offer(&infer.Delta{Attempt: attempt, IDs: []uint32{9}, Total: 3})
	for _, c := range m.Take(nil) {
		fmt.Println(c.IDs, c.Finish)
	}
	// Output:
	// [7] error: integrity: the engine counts 3 tokens where 2 were received: total_mismatch
}
