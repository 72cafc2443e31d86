package simserver

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/engine/plane/planepb"
	"weir/internal/sim/simserver/engine"
)

// TestMergeLosesNothing merges random steps into messages and compares with what went in.
func TestMergeLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const slots = 5
		var g grouping
		var want, got [slots][]uint32
		var merged engine.Batch
		next := uint32(1)
		take := func() {
			var m planepb.Step
			g.merge(&merged, slots, &m)
			merged.Reset()
			rest := m.Id
			for i, slot := range m.Slot {
				got[slot] = append(got[slot], rest[:m.Count[i]]...)
				rest = rest[m.Count[i]:]
				if int(m.Total[i]) != len(got[slot]) {
					t.Fatalf("slot %d: total %d, received %d", slot, m.Total[i], len(got[slot]))
				}
			}
			if len(rest) > 0 {
				t.Fatalf("%d ids belong to nobody", len(rest))
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"step": func(t *rapid.T) {
				for _, slot := range rapid.SliceOfNDistinct(rapid.Uint32Range(0, slots-1), 0, slots, rapid.ID[uint32]).Draw(t, "slots") {
					want[slot] = append(want[slot], next)
					merged.Add(slot, next, uint32(len(want[slot])))
					next++
				}
			},
			"take": func(*rapid.T) { take() },
		})
		take()
		for slot := range slots {
			if !slices.Equal(got[slot], want[slot]) {
				t.Fatalf("slot %d: %v, want %v", slot, got[slot], want[slot])
			}
		}
	})
}
