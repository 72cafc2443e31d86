package route

import (
	"testing"

	"pgregory.net/rapid"

	"weir/internal/engine"
	"weir/internal/fleet/balance"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/kvindex"
	"weir/internal/infer"
)

// pairs makes a model of engines with these roles, which meet in one way. The cost of the
// policy is what chooses.
func pairs(policy string, engines ...*Engine) *Model {
	m := &Model{Way: engine.ByRoom, Transfer: new(cost.Transfer)}
	m.Policy, _ = balance.New(policy)
	m.Prefill, _ = balance.New(policy)
	ranks, index := cost.NewModel(cost.Typical), kvindex.New(1<<20)
	for _, e := range engines {
		r, of := Whole(e.Name), ranks
		if e.Role == infer.RolePrefill {
			of = ranks.Prefills()
		}
		r.Books = NewBooks(of, index, new(Shares), &e.Facts, 0)
		m.Add(Target{Engine: e, Rank: r})
	}
	return m
}

// noRelay makes an engine one that is relayed.
type noRelay struct{ engine.Relay }

func part(name string, role infer.Role, whole bool) *Engine {
	return &Engine{Name: name, Role: role, Meets: engine.Meets{Way: engine.ByRoom, Whole: whole}}
}

// asking is a choice for a prompt of so many tokens.
func asking(length int) *Choice {
	c := new(Choice)
	c.Request.Now, c.Request.Length, c.Request.Output, c.Request.BlockTokens = 1, length, 200, BlockTokens
	return c
}

// For any engines, policy and earlier tries: an engine that cannot serve a request whole gets it
// only with a partner, a partner only computes prompts, neither was tried before, both carry what
// is needed, and there is a choice exactly where Has says so.
func TestPickHalves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"a", "b", "c", "d", "e"}[:rapid.IntRange(0, 5).Draw(t, "n")]
		var engines []*Engine
		for _, name := range names {
			e := part(name, rapid.SampledFrom([]infer.Role{infer.RoleBoth, infer.RolePrefill, infer.RoleDecode}).Draw(t, "role"), rapid.Bool().Draw(t, "whole"))
			if e.Facts.Carries = infer.Carries(rapid.Uint32Range(0, 3).Draw(t, "carries")); rapid.Bool().Draw(t, "relayed") {
				e.Relay = noRelay{}
				e.Facts.Lacks = []infer.Lack{{What: infer.CarriesAnything &^ e.Facts.Carries}}
			}
			engines = append(engines, e)
		}
		m := pairs(rapid.SampledFrom(balance.Names()).Draw(t, "policy"), engines...)
		needs := Needs{IDs: infer.Carries(rapid.Uint32Range(0, 3).Draw(t, "needs")), Bytes: infer.Carries(rapid.Uint32Range(0, 3).Draw(t, "needs of relays"))}
		if rapid.Bool().Draw(t, "undivided") {
			needs.Bytes |= infer.Undivided
		}
		switch rapid.IntRange(0, 4).Draw(t, "forms") {
		case 0:
			needs.IDs = infer.AnotherForm
		case 1:
			needs.Bytes = infer.AnotherForm
		}
		var tried []Target
		for of := range m.all() {
			if rapid.Bool().Draw(t, "tried") {
				tried = append(tried, *of)
			}
			for range rapid.IntRange(0, 3).Draw(t, "booked") {
				of.Books.Rank.Book(0, cost.Work{Length: 1000, New: 1000, Output: 50})
			}
		}
		c := asking(rapid.IntRange(1, 20_000).Draw(t, "length"))
		c.Request.Random = rapid.Uint64().Draw(t, "random")
		target, partner, ok := m.Pick(needs, tried, c)
		if ok != m.Has(needs, tried) {
			t.Fatalf("picked %t, has %t", ok, !ok)
		}
		if !ok {
			return
		}
		part := c.Decision.Choice().Work.Part
		switch {
		case target.Role == infer.RolePrefill:
			t.Fatalf("%s computes prompts only, and would serve the caller", target.Name)
		case partner == nil && (part != cost.Whole || target.Role == infer.RoleDecode && !target.Meets.Whole):
			t.Fatalf("%s is given the request whole", target.Name)
		case partner != nil && (part != cost.DecodePart || target.Role != infer.RoleDecode || partner.Role != infer.RolePrefill):
			t.Fatalf("%s (%s) has half of it, and %s (%s) computes the prompt", target.Name, target.Role, partner.Name, partner.Role)
		case partner != nil && needs.Of(target.Engine)&infer.Undivided != 0:
			t.Fatal("what cannot be divided is")
		case partner != nil && (partner.Relay != nil) != (target.Relay != nil):
			t.Fatalf("%s is relayed, %v, and its partner %s is not that", target.Name, target.Relay != nil, partner.Name)
		case partner != nil && (c.Prefill.Choice().Work.Part != cost.PrefillPart || m.Prefills[c.Prefill.Chosen].Engine != partner.Engine):
			t.Fatalf("the partner is %s, and chosen was %+v", partner.Name, c.Prefill.Choice())
		}
		for _, of := range []*Target{&target, partner} {
			if of != nil && (of.among(tried, true) || !of.carries(needs)) {
				t.Fatalf("%s was tried or does not carry what is needed", of.Name)
			}
		}
	})
}

// Without roles there is no partner; with a decode engine that serves no whole requests there
// is none without one, and its absence is said.
func TestMissing(t *testing.T) {
	undivided := Needs{IDs: infer.Undivided, Bytes: infer.Undivided}
	d, p := part("d", infer.RoleDecode, false), part("p", infer.RolePrefill, true)
	m := pairs("cost", d)
	if _, _, ok := m.Pick(Needs{}, nil, asking(100)); ok || m.Has(Needs{}, nil) || m.Room(Needs{}, nil, 1, 0) {
		t.Error("a decode engine alone serves a request whole")
	}
	if got := m.Missing(Needs{}, nil); got != "its decode engines serve no whole requests, and no prefill engine is ready" {
		t.Errorf("%q", got)
	}
	m = pairs("cost", d, p)
	if target, partner, ok := m.Pick(Needs{}, nil, asking(100)); !ok || target.Name != "d" || partner == nil || partner.Name != "p" || !m.Room(Needs{}, nil, 1, 0) {
		t.Error("no pair")
	}
	if got := m.Missing(Needs{}, nil); got != "" {
		t.Errorf("%q", got)
	}
	if got := m.Missing(Needs{}, m.Prefills); got != "its decode engines serve no whole requests, and no prefill engine that is left takes the request" {
		t.Errorf("%q", got)
	}
	if _, _, ok := m.Pick(undivided, nil, asking(100)); ok || m.Has(undivided, nil) || m.Room(undivided, nil, 1, 0) {
		t.Error("what cannot be divided is")
	}
	if got := m.Missing(undivided, nil); got != "its engines serve halves of requests, and this one cannot be divided" {
		t.Errorf("%q", got)
	}
	m = pairs("cost", d, p, part("w", infer.RoleDecode, true))
	if target, partner, ok := m.Pick(undivided, nil, asking(8000)); !ok || target.Name != "w" || partner != nil {
		t.Error("what cannot be divided is not served whole where that can be")
	}
	if _, _, ok := pairs("cost", p).Pick(Needs{}, nil, asking(100)); ok {
		t.Error("a prefill engine serves a caller")
	}
}

// A pick of two engines allocates nothing either.
func TestPickHalvesAllocatesNothing(t *testing.T) {
	for _, name := range balance.Names() {
		m := pairs(name, part("p", infer.RolePrefill, false), part("q", infer.RolePrefill, false), part("d", infer.RoleDecode, true), part("e", infer.RoleDecode, false), part("f", infer.RoleBoth, false))
		c := asking(2000)
		now := int64(1)
		if n := testing.AllocsPerRun(100, func() {
			now += 1e6
			c.Request.Now, c.Request.Random, c.Request.Session = now, uint64(now), 7
			_, _, all := m.Pick(Needs{}, nil, c)
			_, _, again := m.Pick(Needs{}, m.Prefills[:1], c)
			if !all || !again {
				t.Fatal("picked none")
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations for two picks", name, n)
		}
	}
}
