package plane

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/engine/plane/planepb"
	"weir/internal/sim"
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

// The ids or the end of a request bring its answer with them if that has not gone.
func TestOutputBringsTheAnswer(t *testing.T) {
	s, err := New(new(engine.Engine), nil, nil, "", 0).open(7, nil)
	if err != nil {
		t.Fatal(err)
	}
	var jobs []*slotJob
	for slot := range uint32(3) {
		j, err := s.reserve(slot, "r", 0, -1, sim.Fault{}, false, way{created: 5, batched: slot < 2})
		if err != nil {
			t.Fatal(err)
		}
		jobs = append(jobs, j)
	}
	s.taken = engine.Batch{Steps: 1}
	s.taken.Add(jobs[0].Slot, 9, 1)
	s.taken.Add(jobs[2].Slot, 9, 1)
	s.taken.Done = []engine.Done{{Slot: jobs[1].Slot}}
	s.encode()
	var answered []uint32
	for _, n := range s.step.Notice {
		if n.GetAccepted().GetServerCreated() == 5 {
			answered = append(answered, n.Slot)
		}
	}
	if !slices.Equal(answered, []uint32{0, 1}) || s.owed != 0 {
		t.Errorf("answers of %v, %d owed", answered, s.owed)
	}
	s.answer(jobs[0])
	if len(s.answers) > 0 {
		t.Error("answered twice")
	}
}
