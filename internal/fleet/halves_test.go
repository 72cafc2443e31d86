package fleet

import (
	"slices"
	"strings"
	"testing"

	"weir/internal/engine"
	"weir/internal/fleet/route"
	"weir/internal/infer"
)

// halfMember is a relay whose role the operator gives, unless it is both.
func halfMember(name string, role infer.Role, meets engine.Meets) Member {
	m := relayMember(name, "x")
	m.Halves = Halves{Role: role, Given: role != infer.RoleBoth, Meets: meets, Host: "127.0.0.1"}
	return m
}

func says(role infer.Role, meets engine.Meets) engine.State {
	s := ready("x")
	s.Facts.Role, s.Facts.RoleSaid, s.Facts.Meets = role, true, meets
	return s
}

// TestHalves has engines of one model join with their roles.
func TestHalves(t *testing.T) {
	const both, prefill, decode = infer.RoleBoth, infer.RolePrefill, infer.RoleDecode
	room, pull, push := engine.Meets{Way: engine.ByRoom}, engine.Meets{Way: engine.ByPull}, engine.Meets{Way: engine.ByPush}
	at := func(m engine.Meets, host string, port int, id string) engine.Meets {
		m.Host, m.Port, m.EngineID = host, port, id
		return m
	}
	silent := ready("x")
	for _, test := range []struct {
		name    string
		members []Member
		states  []engine.State
		want    string            // the model's targets, and behind a slash its prefills
		errs    map[string]string // engine to a part of why it is not ready
		fault   string            // a part of the model's
	}{
		{"as the engines say", []Member{halfMember("p", both, engine.Meets{}), halfMember("d", both, engine.Meets{}), halfMember("b", both, engine.Meets{})},
			[]engine.State{says(prefill, room), says(decode, room), says(both, engine.Meets{})}, "d b / p", nil, ""},
		{"as the operator says, of engines that say nothing", []Member{halfMember("p", prefill, pull), halfMember("d", decode, pull)},
			[]engine.State{silent, silent}, "d / p", nil, ""},
		{"as the operator says, of engines that can do either half", []Member{halfMember("p", prefill, engine.Meets{}), halfMember("d", decode, engine.Meets{})},
			[]engine.State{says(both, pull), says(both, pull)}, "d / p", nil, ""},
		{"an engine in its usual mode is no prefill engine", []Member{halfMember("p", prefill, engine.Meets{}), halfMember("d", decode, engine.Meets{})},
			[]engine.State{says(both, engine.Meets{}), says(decode, room)}, "d / ", map[string]string{"p": "role=prefill, but the engine reports that it serves whole requests only: start it as a prefill engine"}, ""},
		{"a decode engine is no prefill engine", []Member{halfMember("p", prefill, engine.Meets{}), halfMember("d", decode, engine.Meets{})},
			[]engine.State{says(decode, room), says(decode, room)}, "d / ", map[string]string{"p": "role=prefill, but the engine reports that it is a decode engine: give role=decode"}, ""},
		{"a decode engine serves nothing whole", []Member{{Name: "d", Kind: "openai", Model: "x", Adapter: &relay{newAdapter()}, Halves: Halves{Role: both, Given: true}}},
			[]engine.State{says(decode, room)}, " / ", map[string]string{"d": "role=both, but the engine reports that it is a decode engine"}, ""},
		{"nobody says how halves meet", []Member{halfMember("p", prefill, engine.Meets{})},
			[]engine.State{silent}, " / ", map[string]string{"p": "add handover=pull or handover=push"}, "no decode engine serves the model"},
		{"the handover is another one", []Member{halfMember("p", prefill, pull)},
			[]engine.State{says(prefill, push)}, " / ", map[string]string{"p": "handover=pull, but the engine reports that its halves of requests meet by push"}, "no decode engine"},
		{"push without a place", []Member{halfMember("p", prefill, push)},
			[]engine.State{silent}, " / ", map[string]string{"p": "add engine-id=ID"}, "no decode engine"},
		{"prefill without decode", []Member{halfMember("p", prefill, room)}, []engine.State{silent}, " / p", nil, "no decode engine serves the model"},
		{"decode that has not come", []Member{halfMember("p", prefill, room), halfMember("d", decode, room)}, []engine.State{silent, {}}, " / p", nil, ""},
		{"decode without prefill", []Member{halfMember("d", decode, room)}, []engine.State{silent}, "d / ", nil, ""},
		{"different ways", []Member{halfMember("p", prefill, room), halfMember("d", decode, pull)},
			[]engine.State{silent, silent}, " / p", map[string]string{"d": `model "x" has engines whose halves of requests meet by room, and this one's meet by pull`}, "no decode engine"},
		{"pages of different sizes", []Member{halfMember("p", both, engine.Meets{}), halfMember("d", both, engine.Meets{}), halfMember("b", both, engine.Meets{})},
			[]engine.State{says(prefill, engine.Meets{Way: engine.ByRoom, PageTokens: 64}), says(decode, engine.Meets{Way: engine.ByRoom, PageTokens: 1}), says(both, engine.Meets{PageTokens: 1})},
			"b / p", map[string]string{"d": "its KV pages have 1 tokens, and those of p have 64"}, ""},
		{"different models", []Member{halfMember("p", prefill, pull), {Name: "d", Kind: "openai", Model: "y", Adapter: &relay{newAdapter()}, Halves: Halves{Role: decode, Given: true, Meets: pull}}},
			[]engine.State{silent, ready("y")}, " / p", nil, "no decode engine serves the model"},
		{"one bootstrap address", []Member{halfMember("p", prefill, at(room, "localhost", 9000, "")), halfMember("q", prefill, at(room, "127.0.0.1", 9000, "")), halfMember("d", decode, room)},
			[]engine.State{silent, silent, silent}, "d / p", map[string]string{"q": "has the bootstrap address 127.0.0.1:9000, and so has p"}, ""},
		{"one bootstrap port that nobody has set", []Member{halfMember("p", prefill, room), halfMember("q", prefill, room), halfMember("d", decode, room)},
			[]engine.State{silent, silent, silent}, "d / p", map[string]string{"q": "127.0.0.1:8998"}, ""},
		{"one engine id", []Member{halfMember("p", prefill, at(push, "h", 1, "P")), halfMember("q", prefill, at(push, "h", 2, "P")), halfMember("d", decode, push)},
			[]engine.State{silent, silent, silent}, "d / p", map[string]string{"q": "has the engine id P, and so has p"}, ""},
	} {
		t.Run(strings.ReplaceAll(test.name, " ", "-"), func(t *testing.T) {
			snap := published(t, nil, test.members, test.states)
			m := snap.Models["x"]
			var got [2][]string
			for i, side := range [][]route.Target{m.Targets, m.Prefills} {
				for _, target := range side {
					got[i] = append(got[i], target.Name)
				}
			}
			if got := strings.Join(got[0], " ") + " / " + strings.Join(got[1], " "); got != test.want {
				t.Errorf("%q", got)
			}
			for _, e := range snap.Engines {
				if want := test.errs[e.Name]; want != "" && (e.Ready || e.Err == nil || !strings.Contains(e.Err.Error(), want)) {
					t.Errorf("%s, ready %t: %v", e.Name, e.Ready, e.Err)
				} else if want == "" && e.Err != nil {
					t.Errorf("%s: %v", e.Name, e.Err)
				}
			}
			if (test.fault == "") != (m.Fault == "") || !strings.Contains(m.Fault, test.fault) {
				t.Errorf("fault %q", m.Fault)
			}
			for _, e := range snap.Engines {
				if len(e.Facts.Models) == 0 {
					continue // it has not answered
				}
				of := snap.Models[e.Facts.Models[0]]
				decodes := slices.ContainsFunc(of.Targets, func(t route.Target) bool { return t.Role == decode })
				alone := e.Ready && (e.Role == infer.RolePrefill && !decodes || e.Role == infer.RoleDecode && len(of.Prefills) == 0)
				if alone != strings.Contains(e.Note, "no request is given to it") {
					t.Errorf("%s: note %q", e.Name, e.Note)
				}
			}
			for _, p := range m.Prefills {
				if p.Meets.Way == engine.ByRoom && (p.Meets.Host == "" || p.Meets.Port == 0) {
					t.Errorf("%s is met at %+v", p.Name, p.Meets)
				}
			}
		})
	}
}

// An engine that comes back with another role begins another life: what was booked and learned
// of it as the one says nothing of it as the other.
func TestRoleChanges(t *testing.T) {
	room := engine.Meets{Way: engine.ByRoom}
	f, err := New(Options{Members: []Member{relayMember("a", "x"), relayMember("d", "x")}})
	if err != nil {
		t.Fatal(err)
	}
	f.publishes([]engine.State{says(infer.RolePrefill, room), says(infer.RoleDecode, room)})
	m := f.Snapshot().Models["x"]
	before := m.Prefills[0].Books.Rank
	if before.Model() != m.Targets[0].Books.Rank.Model().Prefills() {
		t.Error("what computes prompts for a rank is of another model")
	}
	f.publishes([]engine.State{says(infer.RolePrefill, room), says(infer.RoleDecode, room)})
	if f.Snapshot().Models["x"].Prefills[0].Books.Rank != before {
		t.Error("it lives on, and has other books")
	}
	f.publishes([]engine.State{says(infer.RoleBoth, engine.Meets{}), says(infer.RoleDecode, room)})
	m = f.Snapshot().Models["x"]
	if len(m.Prefills) != 0 || len(m.Targets) != 2 || m.Targets[0].Books.Rank == before || m.Targets[0].Books.Rank.Model() != m.Targets[1].Books.Rank.Model() {
		t.Errorf("%d prefills, %d targets, books of the same rank %t", len(m.Prefills), len(m.Targets), m.Targets[0].Books.Rank == before)
	}
}
