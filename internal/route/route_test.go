package route

import (
	"context"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/engine"
	"weir/internal/infer"
	"weir/internal/trace"
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
		if !m.Has(0, nil) {
			t.Fatal("has none")
		}
		target, ok := m.Pick(0, nil)
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
		target, ok := m.Pick(0, tried)
		if ok != m.Has(0, tried) {
			t.Fatalf("picked %t, has %t", ok, !ok)
		}
		if ok && contains(tried, target.Name) {
			t.Fatalf("picked %s, which was tried", target.Name)
		}
	})
}

// Pick gives a target that carries what is needed, whatever the order, and one
// exactly when Has says so; a relay carries what it is not known to lose.
func TestPickByNeeds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := model([]string{"a", "b", "c", "d"}[:rapid.IntRange(1, 4).Draw(t, "n")]...)
		carries := rapid.Custom(func(t *rapid.T) infer.Carries {
			return infer.Carries(rapid.Uint32Range(0, 7).Draw(t, "carries"))
		})
		alone := false
		needs := carries.Draw(t, "needs")
		for i := range m.Targets {
			can := carries.Draw(t, "can")
			facts := &m.Targets[i].Facts
			if rapid.Bool().Draw(t, "relay") {
				m.Targets[i].Relay = relay{}
				facts.Lacks = []infer.Lack{{What: infer.CarriesAll &^ can, Why: "x"}}
			} else {
				facts.Carries = can
			}
			alone = alone || needs&^can == 0
		}
		target, ok := m.Pick(needs, nil)
		if ok != alone || m.Has(needs, nil) != alone || m.Alone(needs) != alone {
			t.Fatalf("picked %t, has %t, alone %t; want %t", ok, m.Has(needs, nil), m.Alone(needs), alone)
		}
		if ok && needs&^target.Carries() != 0 {
			t.Fatalf("needs %s, and %s carries %s", needs, target.Name, target.Carries())
		}
	})
}

type relay struct{}

func (relay) Forward(context.Context, *engine.RelayRequest, *trace.Leg) (*engine.RelayResponse, error) {
	return nil, errors.New("not in this test")
}

// The reasons are those of what is lacking, each once.
func TestWhy(t *testing.T) {
	m := model("a", "b")
	m.Targets[0].Facts.Lacks = []infer.Lack{{What: infer.CarriesMinP | infer.CarriesSeed, Why: "x"}, {What: infer.CarriesGrammar, Why: "y"}}
	m.Targets[1].Facts.Lacks = []infer.Lack{{What: infer.CarriesSeed, Why: "x"}, {What: infer.CarriesSeed, Why: "z"}}
	if got := m.Why(infer.CarriesSeed); !slices.Equal(got, []string{"x", "z"}) {
		t.Errorf("%q", got)
	}
	if got := m.Why(infer.CarriesAudio); got != nil {
		t.Errorf("%q", got)
	}
}
