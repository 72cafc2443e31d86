package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"weir/internal/engine"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/route"
	"weir/internal/trace"
)

// steady is an engine that is ready from its adapter's start to its end.
type steady struct {
	relay
	model string
	runs  bool
}

func (s *steady) Run(ctx context.Context, report func(engine.State)) {
	s.runs = true
	report(ready(s.model))
	<-ctx.Done()
	s.runs, s.ended = false, true
	report(engine.State{})
}

func steadyMember(name, model string) Member {
	return Member{Name: name, Kind: "openai", Adapter: &steady{model: model}}
}

// running runs a fleet for as long as during takes, in a bubble.
func running(f *Fleet, during func()) {
	defer started(f)()
	synctest.Wait()
	during()
}

// shown is a fleet as a snapshot shows it, without the numbers of generations.
func shown(s *route.Snapshot) string {
	var b strings.Builder
	for _, e := range s.Engines {
		fmt.Fprintf(&b, "%s ready=%v drained=%v weight=%v %s\n", e.Name, e.Ready, e.Drained, e.Weight, e.Facts.Models)
	}
	for _, name := range s.Names() {
		m := s.Models[name]
		fmt.Fprintf(&b, "%s: %s loaded=%v\n", name, targets(m), m.Loaded != nil)
	}
	return b.String()
}

// wish is a fleet as it is wanted: engines in their order, and models.
type wish struct {
	order   []string
	engines map[string]wishedEngine
	models  Models
}

type wishedEngine struct {
	model   string
	setting Setting
}

func (w *wish) member(name string) Member {
	m := steadyMember(name, w.engines[name].model)
	m.Setting = w.engines[name].setting
	return m
}

func drawWish(t *rapid.T) wish {
	w := wish{engines: map[string]wishedEngine{}, models: Models{Aliases: map[string][]string{}}}
	w.order = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}), 0, 5, rapid.ID).Draw(t, "engines")
	for _, name := range w.order {
		w.engines[name] = wishedEngine{rapid.SampledFrom([]string{"x", "y"}).Draw(t, "model"),
			Setting{Drained: rapid.Bool().Draw(t, "drained"), Weight: rapid.SampledFrom([]float64{0, 0.5}).Draw(t, "weight")}}
	}
	if rapid.Bool().Draw(t, "alias") {
		w.models.Aliases["x"] = []string{"z"}
	}
	return w
}

// For any sequence of wanted fleets, the fleet at the end is the one that results if only the last
// was wanted from the start. Engines that stay keep their adapters, their books and their requests;
// those that leave have ended once their requests have.
func TestChangesComeToTheLastOne(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		wishes := rapid.SliceOfN(rapid.Custom(drawWish), 1, 6).Draw(r, "wishes")
		var wrong error
		synctest.Test(t, func(*testing.T) { wrong = wished(wishes) })
		if wrong != nil {
			r.Fatal(wrong)
		}
	})
}

// wished changes a fleet as it is wished, and says what is wrong with what comes of it.
func wished(wishes []wish) error {
	f, err := New(Options{})
	if err != nil {
		return err
	}
	end := started(f)
	defer func() { end() }()
	adapters := map[string]*steady{}
	var had wish
	var gone []*steady
	for _, w := range wishes {
		c := Change{Set: map[string]Setting{}, Order: w.order, Models: &w.models}
		kept := map[string]*route.Engine{}
		for _, e := range f.Snapshot().Engines {
			if now, stays := w.engines[e.Name]; stays && now.model == had.engines[e.Name].model {
				c.Set[e.Name], kept[e.Name] = now.setting, e
				continue
			}
			c.Remove = append(c.Remove, Removal{Name: e.Name})
			gone = append(gone, adapters[e.Name])
		}
		for _, name := range w.order {
			if kept[name] == nil {
				m := w.member(name)
				c.Add, adapters[name] = append(c.Add, m), m.Adapter.(*steady)
			}
		}
		if err := f.Change(c); err != nil {
			return err
		}
		synctest.Wait()
		for _, e := range f.Snapshot().Engines {
			if was := kept[e.Name]; was != nil && (was.Generation != e.Generation || was.Ranks[0].Books != e.Ranks[0].Books || !adapters[e.Name].runs) {
				return fmt.Errorf("%s was to be kept, and is another one", e.Name)
			}
		}
		had = w
	}
	time.Sleep(time.Second)
	synctest.Wait()
	for _, a := range gone {
		if !a.ended {
			return errors.New("the adapter of an engine that was removed, and has no requests, has not ended")
		}
	}
	if n := len(f.Snapshot().Leaving); n > 0 {
		return fmt.Errorf("%d engines still leave", n)
	}
	if len(f.served) > len(f.Snapshot().Models) {
		return fmt.Errorf("something is kept of %d models, and there are %d", len(f.served), len(f.Snapshot().Models))
	}
	got := shown(f.Snapshot())
	end()
	o := Options{Aliases: had.models.Aliases}
	for _, name := range had.order {
		o.Members = append(o.Members, had.member(name))
	}
	fresh, err := New(o)
	if err != nil {
		return err
	}
	end = started(fresh)
	synctest.Wait()
	if want := shown(fresh.Snapshot()); got != want {
		return fmt.Errorf("after all changes:\n%s\nfrom the start:\n%s", got, want)
	}
	return nil
}

// A change of which any part cannot be is none.
func TestChangeIsAllOrNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := New(Options{Members: []Member{steadyMember("a", "x"), steadyMember("b", "x")}})
		if err != nil {
			t.Fatal(err)
		}
		running(f, func() {
			before := f.Snapshot()
			for _, test := range []struct {
				c    Change
				want string
			}{
				{Change{Add: []Member{steadyMember("c", "x"), steadyMember("b", "x")}}, `two engines are named "b"`},
				{Change{Remove: []Removal{{Name: "a"}, {Name: "z"}}}, `no engine "z"`},
				{Change{Remove: []Removal{{Name: "a"}, {Name: "a"}}}, `no engine "a"`},
				{Change{Remove: []Removal{{Name: "a"}}, Set: map[string]Setting{"a": {}}}, `no engine "a"`},
				{Change{Remove: []Removal{{Name: "a"}}, Models: &Models{Policies: map[string]string{"x": "wish"}}}, "wish"},
				{Change{Remove: []Removal{{Name: "a"}}, Add: []Member{{Name: "n", Adapter: new(both)}}}, "either a token engine or a relay"},
			} {
				if err := f.Change(test.c); err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%+v: %v, want %q", test.c, err, test.want)
				}
			}
			if f.Snapshot() != before {
				t.Error("a change that was refused has changed the fleet")
			}
		})
		if err := f.Change(Change{}); err != ErrEnded {
			t.Errorf("a change after the fleet's end: %v", err)
		}
	})
}

// book has a member be given a request that ends when it is settled.
func book(e *route.Engine) (settle func()) {
	b := e.Ranks[0].Books.Rank.Book(trace.Now(), cost.Work{Length: 10, New: 10, Output: 10})
	return func() { b.End(trace.Now(), 0) }
}

// Requests of an engine that was removed go on, and it is there for them until the last has
// ended or their time is over. Meanwhile another engine may have its name: that has books of
// its own.
func TestRemovalWaitsForRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		old := steadyMember("a", "x")
		f, err := New(Options{Members: []Member{old}, Emptied: func(m Member, e Emptied) {
			told = append(told, fmt.Sprintf("%s left=%d removed=%v generation=%d", m.Name, e.Left, e.Removed, e.Generation))
		}})
		if err != nil {
			t.Fatal(err)
		}
		running(f, func() {
			first := f.Snapshot().Engines[0]
			settle := book(first)
			replace := func() {
				if err := f.Change(Change{Remove: []Removal{{Name: "a", Patience: time.Minute}}, Add: []Member{steadyMember("a", "x")}}); err != nil {
					t.Fatal(err)
				}
			}
			replace()
			time.Sleep(30 * time.Second)
			synctest.Wait()
			second := f.Snapshot().Engines[0]
			switch {
			case second.Generation == first.Generation || second.Ranks[0].Books == first.Ranks[0].Books:
				t.Fatal("the engine that took the name has the books of the one before")
			case len(f.Snapshot().Leaving) != 1 || old.Adapter.(*steady).ended:
				t.Fatal("an engine that was removed has gone, and a request is there")
			case first.Ranks[0].Health.Takes().String() != "never" || second.Ranks[0].Health.Takes().String() != "freely":
				t.Fatalf("the one before takes requests %v, the one after %v", first.Ranks[0].Health.Takes(), second.Ranks[0].Health.Takes())
			}
			settle()
			time.Sleep(time.Second)
			synctest.Wait()
			if len(f.Snapshot().Leaving) != 0 || !old.Adapter.(*steady).ended {
				t.Fatal("the last request has ended, and its engine is still there")
			}
			settle = book(second)
			replace()
			time.Sleep(61 * time.Second) // which the request does not heed
			if len(f.Snapshot().Leaving) != 0 {
				t.Fatal("an engine that was removed is kept longer than its requests' time")
			}
			settle()
		})
		if want := []string{"a left=0 removed=true generation=1", "a left=1 removed=true generation=2"}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	})
}

// A drain says when it has come out, and that it has not within its time; resumed, an engine
// takes requests again.
func TestDrainSaysHowItComesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []Emptied
		f, err := New(Options{Members: []Member{steadyMember("a", "x"), steadyMember("b", "x")}, Emptied: func(_ Member, e Emptied) { told = append(told, e) }})
		if err != nil {
			t.Fatal(err)
		}
		running(f, func() {
			set := func(s Setting) {
				if err := f.Change(Change{Set: map[string]Setting{"a": s}}); err != nil {
					t.Fatal(err)
				}
			}
			picks := func() (n int) {
				for range 10 {
					if target, _, ok := f.Snapshot().Models["x"].Pick(route.Needs{}, nil, new(route.Choice)); ok && target.Name == "a" {
						n++
					}
				}
				return n
			}
			settle := book(f.Snapshot().Engines[0])
			set(Setting{Drained: true, Patience: 10 * time.Second})
			if n := picks(); n != 0 {
				t.Errorf("an engine that is drained was chosen %d times", n)
			}
			time.Sleep(11 * time.Second)
			settle()
			set(Setting{Drained: false})
			if e := f.Snapshot().Engines[0]; e.Drained || e.Ranks[0].Health.Takes().String() != "freely" {
				t.Errorf("resumed, it takes requests %v", e.Ranks[0].Health.Takes())
			}
			set(Setting{Drained: true})
			time.Sleep(time.Second)
		})
		if len(told) != 2 || told[0].Left != 1 || told[1].Left != 0 || told[0].Removed {
			t.Errorf("told %+v", told)
		}
	})
}

// An engine with a weight is given no more than that share of the requests, whatever the policy,
// and all of them where no other takes any.
func TestWeights(t *testing.T) {
	for _, policy := range []string{"cost", "round-robin", "least-load"} {
		a := relayMember("a", "x")
		a.Setting.Weight = 0.25
		f, err := New(Options{Policy: policy, Members: []Member{a, relayMember("b", "x")}})
		if err != nil {
			t.Fatal(err)
		}
		states := []engine.State{ready("x"), ready("x")}
		n := 0
		for range 400 {
			f.publishes(states) // which does not begin the turns anew
			target, _, _ := f.Snapshot().Models["x"].Pick(route.Needs{}, nil, new(route.Choice))
			if target.Name == "a" {
				n++
			}
		}
		if n > 130 || n < 20 {
			t.Errorf("%s: of 400 requests %d went to the engine that may have some 100", policy, n)
		}
		f.publishes([]engine.State{ready("x"), {}})
		for range 4 {
			if target, _, ok := f.Snapshot().Models["x"].Pick(route.Needs{}, nil, new(route.Choice)); !ok || target.Name != "a" {
				t.Errorf("%s: no other engine is there, and it was not chosen", policy)
			}
		}
	}
}
