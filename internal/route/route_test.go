package route

import (
	"testing"

	"pgregory.net/rapid"
)

func model(names ...string) *Model {
	m := &Model{Policy: &RoundRobin{}}
	for _, n := range names {
		m.Targets = append(m.Targets, Target{Engine: &Engine{Name: n}})
	}
	return m
}

// Every target gets its exact share, whatever is asked in between.
func TestRoundRobinIsFair(t *testing.T) {
	m := model("a", "b", "c")
	count := map[string]int{}
	for range 300 {
		if !m.Has(nil) {
			t.Fatal("has none")
		}
		target, ok := m.Pick(nil)
		if !ok {
			t.Fatal("picked none")
		}
		count[target.Name]++
	}
	if count["a"] != 100 || count["b"] != 100 || count["c"] != 100 {
		t.Fatalf("shares %v", count)
	}
}

// Pick never gives a tried target, and gives one exactly when Has says so.
func TestPickAvoidsTheTried(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := model([]string{"a", "b", "c", "d"}[:rapid.IntRange(0, 4).Draw(t, "n")]...)
		var tried []*Engine
		for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d", "gone"}), rapid.ID).Draw(t, "tried") {
			// After a new snapshot the same engine is another value of that name.
			tried = append(tried, &Engine{Name: name})
		}
		target, ok := m.Pick(tried)
		if ok != m.Has(tried) {
			t.Fatalf("picked %t, has %t", ok, !ok)
		}
		if ok && contains(tried, target.Name) {
			t.Fatalf("picked %s, which was tried", target.Name)
		}
	})
}
