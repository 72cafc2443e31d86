package route

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"weir/internal/engine"
	"weir/internal/fleet/balance"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/health"
	"weir/internal/fleet/judge"
	"weir/internal/fleet/kvindex"
	"weir/internal/infer"
	"weir/internal/trace"
)

func model(names ...string) *Model {
	m := &Model{Policy: new(balance.RoundRobin)}
	ranks, index := cost.NewModel(cost.Typical), kvindex.New(1<<20)
	for _, n := range names {
		e, r := &Engine{Name: n}, Whole(n)
		r.Books = NewBooks(ranks, index, new(Shares), &e.Facts, 0)
		m.Add(Target{Engine: e, Rank: r})
	}
	return m
}

// There is room where a target that could be chosen has room, by what the engine says or what
// an operator set.
func TestRoom(t *testing.T) {
	m := model("a", "b")
	a, b := &m.Targets[0], &m.Targets[1]
	a.Books.Limit(2, &engine.Facts{MaxRunning: 100})
	facts := &engine.Facts{MaxRunning: -7, StepTokens: 512, SideBySide: 2}
	b.Books = NewBooks(cost.NewModel(cost.Typical), kvindex.New(1), new(Shares), facts, 0)
	b.Books.Limit(0, facts)
	b.Facts.Carries = infer.CarriesSeed
	work := cost.Work{Length: 512, New: 512}
	a.Books.Rank.Book(0, work)
	a.Books.Rank.Book(0, work)
	if !m.Room(Needs{}, nil, 1, 0) || m.Room(Needs{}, []Target{*b}, 1, 0) {
		t.Error("a has room for more than 2")
	}
	if !m.Takes(Needs{}, nil, a.Books.Rank) || m.Takes(Needs{IDs: infer.CarriesSeed}, nil, a.Books.Rank) || m.Takes(Needs{}, []Target{*a}, a.Books.Rank) {
		t.Error("a is taken for what it is not")
	}
	n := 0
	for ; b.Books.Rank.Fits(0, 1) && n < 100; n++ {
		b.Books.Rank.Book(0, work)
	}
	if n < 4 || n > 5 {
		t.Errorf("b, whose two ranks compute 512 tokens in a step, was given %d prompts of them", n)
	}
	if m.Room(Needs{}, nil, 1, 0) || m.Room(Needs{IDs: infer.CarriesSeed}, nil, 1, 0) {
		t.Error("there is room, and all are full")
	}
	if m.Takes(Needs{}, nil, model("c").Targets[0].Books.Rank) {
		t.Error("another model's rank is taken")
	}
	for range 3 {
		b.Books.Rank.Book(0, work)
	}
	if at := m.Frees(Needs{}, nil, 0); at != 0 && !b.Books.Rank.Fits(at, 1) {
		t.Errorf("no room at %d", at)
	}
}

// Every target gets its exact share, whatever is asked in between.
func TestRoundRobinIsFair(t *testing.T) {
	m := model("a", "b", "c")
	count := map[string]int{}
	for range 300 {
		if !m.Has(Needs{}, nil) {
			t.Fatal("has none")
		}
		target, _, ok := m.Pick(Needs{}, nil, new(Choice))
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
		var tried []Target
		for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d", "gone"}), rapid.ID).Draw(t, "tried") {
			// After a new snapshot the same engine is another value of that name.
			r := Whole(name)
			r.Books = NewBooks(cost.NewModel(cost.Typical), kvindex.New(1), new(Shares), &engine.Facts{}, 0)
			tried = append(tried, Target{Engine: &Engine{Name: name}, Rank: r})
		}
		target, _, ok := m.Pick(Needs{}, tried, new(Choice))
		if ok != m.Has(Needs{}, tried) {
			t.Fatalf("picked %t, has %t", ok, !ok)
		}
		if ok && target.among(tried, false) {
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
		needs := Needs{IDs: carries.Draw(t, "needs"), Bytes: carries.Draw(t, "needs of relays")}
		for i := range m.Targets {
			can := carries.Draw(t, "can")
			facts := &m.Targets[i].Facts
			if rapid.Bool().Draw(t, "relay") {
				m.Targets[i].Relay = relay{}
				facts.Lacks = []infer.Lack{{What: infer.CarriesAll &^ can, Why: "x"}}
			} else {
				facts.Carries = can
			}
			alone = alone || needs.Of(m.Targets[i].Engine)&^can == 0
		}
		target, _, ok := m.Pick(needs, nil, new(Choice))
		if ok != alone || m.Has(needs, nil) != alone || m.Alone(needs) != alone {
			t.Fatalf("picked %t, has %t, alone %t; want %t", ok, m.Has(needs, nil), m.Alone(needs), alone)
		}
		if ok && needs.Of(target.Engine)&^target.Carries() != 0 {
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

// A pick allocates nothing, whatever the policy, with all targets and with some.
func TestPickAllocatesNothing(t *testing.T) {
	for _, name := range balance.Names() {
		m := model("a", "b", "c", "d")
		m.Policy, _ = balance.New(name)
		m.Targets[3].Facts.Carries = infer.CarriesSeed
		c := new(Choice)
		c.Request.Length, c.Request.Output, c.Request.BlockTokens = 2000, 200, BlockTokens
		tried := m.Targets[:1]
		now := int64(1)
		if n := testing.AllocsPerRun(100, func() {
			now += 1e6
			c.Request.Now, c.Request.Random, c.Request.Session = now, uint64(now), 7
			_, _, all := m.Pick(Needs{}, nil, c)
			_, _, some := m.Pick(Needs{IDs: infer.CarriesSeed}, nil, c)
			_, _, again := m.Pick(Needs{}, tried, c)
			if !all || !some || !again {
				t.Fatal("picked none")
			}
			if i := c.Decision.Chosen; i == 0 || c.Decision.Choice() == nil {
				t.Fatalf("the retry is at place %d", i)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations for three picks", name, n)
		}
	}
}

// A retry takes no turn.
func TestRetryTakesNoTurn(t *testing.T) {
	m := model("a", "b", "c")
	var got []string
	for range 4 {
		first, _, _ := m.Pick(Needs{}, nil, new(Choice))
		got = append(got, first.Name)
		if again, _, _ := m.Pick(Needs{}, []Target{first}, new(Choice)); again.Name == first.Name {
			t.Fatalf("the retry went to %s again", again.Name)
		}
	}
	if want := []string{"a", "b", "c", "a"}; !slices.Equal(got, want) {
		t.Errorf("turns %v, want %v", got, want)
	}
}

// Engines that are not well get only what no better one takes.
func TestPickByHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := model("a", "b", "c")
		j := judge.New(judge.Options{})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); j.Run(ctx) }()
		defer func() { stop(); <-done }()
		for i := range m.Targets {
			m.Targets[i].Health = j.Add(m.Targets[i].Name, -1, nil)
			m.Targets[i].Health.Is(judge.Presence{Ready: true, Serves: []string{"m"}})
		}
		picked := func() (names []string) {
			for range 12 {
				if target, _, ok := m.Pick(Needs{}, nil, new(Choice)); ok && !slices.Contains(names, target.Name) {
					names = append(names, target.Name)
				}
			}
			slices.Sort(names)
			return names
		}
		want := func(names ...string) {
			t.Helper()
			if got := picked(); !slices.Equal(got, names) || m.Has(Needs{}, nil) != (len(names) > 0) {
				t.Errorf("picked %v, want %v", got, names)
			}
		}
		want("a", "b", "c")
		attempts := make([]judge.Attempt, 3)
		for i := range m.Targets {
			m.Targets[i].Health.HandOver(&attempts[i], trace.Now(), 0, "r", engine.Probe{}, nil)
			time.Sleep(1200 * time.Millisecond)
			synctest.Wait()
			switch i {
			case 0:
				want("b", "c")
			case 1:
				want("c")
			case 2: // there is no elsewhere
				want("a", "b", "c")
			}
		}
		attempts[1].End(trace.Now(), health.Done)
		want("b")
		m.Targets[1].Health.Is(judge.Presence{})
		want("a", "c")
		for i := range m.Targets {
			m.Targets[i].Health.Is(judge.Presence{})
		}
		want()
		for i := range attempts {
			attempts[i].End(trace.Now(), health.GaveUp)
		}
	})
}

// A retry goes to another engine, and to another rank of the one that was tried only where
// no other takes it as freely.
func TestRetryAmongRanks(t *testing.T) {
	m := &Model{Policy: new(balance.RoundRobin)}
	costs, index := cost.NewModel(cost.Typical), kvindex.New(1<<20)
	j := judge.New(judge.Options{})
	for _, e := range []*Engine{{Name: "a"}, {Name: "b"}} {
		for n := range 2 {
			r := &Rank{Number: n, Label: fmt.Sprintf("%s/%d", e.Name, n), Health: j.Add(e.Name, n, nil)}
			r.Health.Is(judge.Presence{Ready: true, Serves: []string{"m"}})
			r.Books = NewBooks(costs, index, new(Shares), &e.Facts, 0)
			m.Add(Target{Engine: e, Rank: r})
		}
	}
	pick := func(tried ...Target) string {
		got := map[string]bool{}
		for range 8 {
			target, _, ok := m.Pick(Needs{}, tried, new(Choice))
			if ok != m.Has(Needs{}, tried) {
				t.Fatalf("picked %t, has %t", ok, !ok)
			}
			if ok {
				got[target.Label] = true
			}
		}
		return strings.Join(slices.Sorted(maps.Keys(got)), " ")
	}
	all := m.Targets
	if got := pick(); got != "a/0 a/1 b/0 b/1" {
		t.Errorf("picked %s", got)
	}
	if got := pick(all[0]); got != "b/0" && got != "b/0 b/1" {
		t.Errorf("after a/0 picked %s", got)
	}
	if got := pick(all[0], all[2]); got != "a/1" && got != "a/1 b/1" {
		t.Errorf("after a/0 and b/0 picked %s", got)
	}
	if got := pick(all...); got != "" {
		t.Errorf("after all of them picked %s", got)
	}
	for _, b := range all[2:] {
		b.Health.Is(judge.Presence{})
	}
	if got := pick(all[0]); got != "a/1" {
		t.Errorf("after a/0, without b, picked %s", got)
	}
	all[1].Health.Is(judge.Presence{})
	if got := pick(); got != "a/0" {
		t.Errorf("of the one rank that is there picked %s", got)
	}
}

// An engine is as well as its best rank is, and owes progress for as long as any does.
func TestCondition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := judge.New(judge.Options{})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); j.Run(ctx) }()
		defer func() { stop(); <-done }()
		e := &Engine{Name: "a", Ready: true}
		for n := range 2 {
			r := &Rank{Number: n, There: true, Health: j.Add("a", n, nil)}
			r.Health.Is(judge.Presence{Ready: true, Serves: []string{"m"}})
			e.Ranks = append(e.Ranks, r)
		}
		attempts := make([]judge.Attempt, 2)
		for i, want := range []health.State{health.Up, health.Soft} {
			e.Ranks[1-i].Health.HandOver(&attempts[i], trace.Now(), 0, "r", engine.Probe{}, nil)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if v, ok := e.Condition(); !ok || v.State != want || v.Open != i+1 || v.Silence < time.Duration(2*i+1)*time.Second {
				t.Errorf("with %d ranks that owe progress: %+v, %v", i+1, v, ok)
			}
		}
		e.Ready = false
		if v, ok := e.Condition(); ok {
			t.Errorf("of one that is not ready: %+v", v)
		}
		for i := range attempts {
			attempts[i].End(trace.Now(), health.GaveUp)
		}
	})
}
