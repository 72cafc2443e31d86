//go:build linux

package main

import (
	"testing"

	"weir/internal/load"
)

func TestChoose(t *testing.T) {
	all, err := choose("", "")
	if err != nil || len(all) != len(specs()) {
		t.Errorf("%d loads, %v", len(all), err)
	}
	some, err := choose("short,long", relayed)
	if err != nil || len(some) != 2 || len(some[0].Wires) != 1 || some[0].Wires[0] != relayed {
		t.Errorf("%+v, %v", some, err)
	}
	for _, wrong := range [][2]string{{"none", ""}, {"", "none"}, {"flat out", pulled}} {
		if _, err := choose(wrong[0], wrong[1]); err == nil {
			t.Errorf("%q is no error", wrong)
		}
	}
}

// Only events within the window count. An event counts as many tokens as the events of its
// request have in the mean.
func TestWithin(t *testing.T) {
	var c collected
	c.add(&load.Sample{Intended: 10, Started: 10, FirstToken: 2e6 + 10, Chunks: []int64{100, 200, 300}, Tokens: 6})
	c.add(&load.Sample{Intended: 150, Started: 150, FirstToken: 4e6 + 150, Chunks: []int64{250, 350}, Tokens: 9, Outcome: load.Unfinished})
	c.add(&load.Sample{Intended: 160, Started: 160})
	var r result
	c.within(150, 350, &r)
	if r.Tokens != 2*2+1 || r.Requests != 2 || r.TTFT != 4 {
		t.Errorf("%v tokens, %v requests, %v ms", r.Tokens, r.Requests, r.TTFT)
	}
}
