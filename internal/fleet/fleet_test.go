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

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"weir/internal/engine"
	"weir/internal/fleet/kvindex"
	"weir/internal/fleet/route"
	"weir/internal/infer"
	"weir/internal/tenancy"
	"weir/internal/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// adapter is an engine whose states a test reports.
type adapter struct {
	states chan engine.State
	ended  bool
}

func newAdapter() adapter { return adapter{states: make(chan engine.State)} }

func (a *adapter) Run(ctx context.Context, report func(engine.State)) {
	defer func() { a.ended = true }()
	for {
		select {
		case s := <-a.states:
			report(s)
		case <-ctx.Done():
			time.Sleep(time.Second) // an adapter takes its time to end
			return
		}
	}
}

type tokens struct{ adapter }

func (*tokens) Generate(context.Context, *infer.Request, uint32, engine.Sink, *trace.Leg) (engine.Generation, error) {
	return nil, errors.New("not in this test")
}

type relay struct{ adapter }

func (*relay) Forward(context.Context, *engine.RelayRequest, *trace.Leg) (*engine.RelayResponse, error) {
	return nil, errors.New("not in this test")
}

// both is an engine that cannot make up its mind.
type both struct {
	tokens
	relay
}

func (*both) Run(context.Context, func(engine.State)) {}

func tokenMember(name, model string) Member {
	return Member{Name: name, Kind: "weir", Model: model, Adapter: &tokens{newAdapter()}}
}

func relayMember(name, model string) Member {
	return Member{Name: name, Kind: "openai", Model: model, Adapter: &relay{newAdapter()}}
}

func ready(models ...string) engine.State {
	return engine.State{Ready: true, Facts: engine.Facts{Models: models}}
}

// published returns the snapshot for states, without anything running.
func published(t *testing.T, folders map[string][]string, members []Member, states []engine.State) *route.Snapshot {
	t.Helper()
	f, err := New(Options{Members: members, Folders: folders})
	if err != nil {
		t.Fatal(err)
	}
	f.publishes(states)
	return f.Snapshot()
}

// targets lists a model's targets as "engine:upstream".
func targets(m *route.Model) string {
	if m == nil {
		return "no model"
	}
	var out []string
	for _, t := range m.Targets {
		out = append(out, t.Name+":"+t.Model)
	}
	return strings.Join(out, " ")
}

func TestPlacement(t *testing.T) {
	folders := map[string][]string{"folder": {"nick", "name"}}
	for _, test := range []struct {
		name    string
		members []Member
		states  []engine.State
		want    map[string]string // model to targets
		errs    map[string]string // engine to a part of why it is not used
		fault   string            // of model "x"
	}{
		{"nothing has answered", []Member{tokenMember("a", ""), relayMember("r", "x")}, []engine.State{{}, {}},
			map[string]string{"folder": "", "nick": "", "name": "", "x": ""}, nil, ""},
		{"a token engine of a folder, and its aliases", []Member{tokenMember("a", "")}, []engine.State{ready("folder")},
			map[string]string{"folder": "a:folder", "nick": "a:folder", "name": "a:folder"}, nil, ""},
		{"two engines of one model", []Member{tokenMember("a", ""), tokenMember("b", "")}, []engine.State{ready("folder"), ready("folder")},
			map[string]string{"folder": "a:folder b:folder", "nick": "a:folder b:folder", "name": "a:folder b:folder"}, nil, ""},
		{"one of two is ready", []Member{tokenMember("a", ""), tokenMember("b", "")},
			[]engine.State{{Facts: engine.Facts{Models: []string{"folder"}}, Err: errors.New("gone")}, ready("folder")},
			map[string]string{"folder": "b:folder", "nick": "b:folder", "name": "b:folder"}, map[string]string{"a": "gone"}, ""},
		{"model= names a folder for an engine with a name of its own", []Member{tokenMember("a", "folder")}, []engine.State{ready("/models/x")},
			map[string]string{"folder": "a:/models/x", "nick": "a:/models/x", "name": "a:/models/x"}, nil, ""},
		{"model= among several", []Member{relayMember("r", "y")}, []engine.State{ready("x", "y")},
			map[string]string{"folder": "", "nick": "", "name": "", "y": "r:y"}, nil, ""},
		{"model= not among several", []Member{relayMember("r", "z")}, []engine.State{ready("x", "y")},
			map[string]string{"folder": "", "nick": "", "name": "", "z": ""}, map[string]string{"r": "not among"}, ""},
		{"model= for an engine that does not tell", []Member{relayMember("r", "z")}, []engine.State{ready()},
			map[string]string{"folder": "", "nick": "", "name": "", "z": "r:z"}, nil, ""},
		{"a token engine without a folder", []Member{tokenMember("a", "")}, []engine.State{ready("x")},
			map[string]string{"folder": "", "nick": "", "name": "", "x": ""}, map[string]string{"a": "--model x=DIR"}, "--model x=DIR"},
		{"a relay of several models", []Member{relayMember("r", "")}, []engine.State{ready("x", "y")},
			map[string]string{"folder": "", "nick": "", "name": "", "x": "r:x", "y": "r:y"}, nil, ""},
		{"a relay for a folder's model", []Member{relayMember("r", "")}, []engine.State{ready("folder")},
			map[string]string{"folder": "r:folder", "nick": "r:folder", "name": "r:folder"}, nil, ""},
		{"an engine that knows the model by an alias", []Member{tokenMember("a", "")}, []engine.State{ready("nick")},
			map[string]string{"folder": "a:nick", "nick": "a:nick", "name": "a:nick"}, nil, ""},
		{"a relay that knows the model by an alias", []Member{tokenMember("a", ""), relayMember("r", "")}, []engine.State{ready("folder"), ready("name")},
			map[string]string{"folder": "a:folder r:name", "nick": "a:folder r:name", "name": "a:folder r:name"}, nil, ""},
		{"two kinds of one model", []Member{tokenMember("a", ""), relayMember("r", "")}, []engine.State{ready("folder"), ready("folder")},
			map[string]string{"folder": "a:folder r:folder", "nick": "a:folder r:folder", "name": "a:folder r:folder"}, nil, ""},
		{"two kinds of one of two models", []Member{relayMember("r", ""), tokenMember("a", "")}, []engine.State{ready("folder", "y"), ready("folder")},
			map[string]string{"folder": "r:folder a:folder", "nick": "r:folder a:folder", "name": "r:folder a:folder", "y": "r:y"}, nil, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			snap := published(t, folders, test.members, test.states)
			for name, want := range test.want {
				if got := targets(snap.Models[name]); got != want {
					t.Errorf("model %s: %q, want %q", name, got, want)
				}
			}
			for name := range snap.Models {
				if _, ok := test.want[name]; !ok {
					t.Errorf("model %s, which nobody serves", name)
				}
			}
			for _, e := range snap.Engines {
				want, wrong := test.errs[e.Name]
				if wrong && (e.Ready || e.Err == nil || !strings.Contains(e.Err.Error(), want)) {
					t.Errorf("engine %s: ready %v, %v; want %q", e.Name, e.Ready, e.Err, want)
				}
			}
			if m := snap.Models["x"]; test.fault != "" && (m == nil || !strings.Contains(m.Fault, test.fault)) {
				t.Errorf("model x: %+v, want the fault %q", m, test.fault)
			}
			if a, b := snap.Models["folder"], snap.Models["nick"]; a != b {
				t.Error("an alias is a model of its own")
			}
			if err := consistent(snap); err != nil {
				t.Error(err)
			}
		})
	}
}

// consistent reports what of a snapshot contradicts itself.
func consistent(s *route.Snapshot) error {
	served := map[string]bool{}
	for name, m := range s.Models {
		for _, target := range m.Targets {
			served[target.Name] = true
			switch {
			case !target.Ready:
				return fmt.Errorf("model %s has engine %s, which is not ready: %v", name, target.Name, target.Err)
			case target.Relay != nil && m.Relayed.Kind != target.Kind, target.Tokens != nil && m.ByIDs.Kind != target.Kind:
				return fmt.Errorf("model %s is of kinds %q and %q, its engine %s of %q", name, m.ByIDs.Kind, m.Relayed.Kind, target.Name, target.Kind)
			case target.Model == "":
				return fmt.Errorf("model %s: engine %s has no name for it", name, target.Name)
			case !slices.Contains(s.Engines, target.Engine):
				return fmt.Errorf("model %s has engine %s, which is not in the snapshot", name, target.Name)
			}
			if n := target.Facts.ContextLength; n > 0 && (m.ContextLength == 0 || m.ContextLength > n) {
				return fmt.Errorf("model %s takes %d, its engine %s only %d", name, m.ContextLength, target.Name, n)
			}
		}
		if m.Policy == nil {
			return fmt.Errorf("model %s has no policy", name)
		}
	}
	for _, e := range s.Engines {
		if e.Ready && !served[e.Name] && len(e.Facts.Models) > 0 {
			return fmt.Errorf("engine %s is ready and serves none of %q", e.Name, e.Facts.Models)
		}
	}
	return nil
}

// For any reports of engines in any order: a published snapshot is consistent, and depends only on
// the latest state of each engine and on the state in which it was ready last.
func TestSnapshotsAreConsistent(t *testing.T) {
	names := []string{"x", "y", "folder", "nick"}
	rapid.Check(t, func(t *rapid.T) {
		model := rapid.SampledFrom(append([]string{"", "", ""}, names...))
		var members []Member
		for i := range rapid.IntRange(1, 5).Draw(t, "members") {
			name := fmt.Sprintf("e%d", i)
			if rapid.Bool().Draw(t, "relay") {
				members = append(members, relayMember(name, model.Draw(t, "model")))
			} else {
				members = append(members, tokenMember(name, model.Draw(t, "model")))
			}
		}
		folders := map[string][]string{"folder": {"nick"}}
		f, err := New(Options{Members: members, Folders: folders})
		if err != nil {
			t.Fatal(err)
		}
		states, said := make([]engine.State, len(members)), make([]engine.State, len(members))
		for range rapid.IntRange(0, 8).Draw(t, "reports") {
			before := f.Snapshot()
			i := rapid.IntRange(0, len(members)-1).Draw(t, "member")
			states[i] = engine.State{Ready: rapid.Bool().Draw(t, "ready"), Facts: engine.Facts{
				Models:        rapid.SliceOfNDistinct(rapid.SampledFrom(names), 0, 3, rapid.ID).Draw(t, "models"),
				ContextLength: rapid.IntRange(0, 3).Draw(t, "context"),
			}}
			for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"x", "nick", "l"}), 0, 2, rapid.ID).Draw(t, "adapters") {
				states[i].Facts.LoRA = append(states[i].Facts.LoRA, engine.LoRA{Name: name})
			}
			if states[i].Ready {
				said[i] = states[i]
			}
			f.publishes(states)
			snap := f.Snapshot()
			select {
			case <-before.Changed:
			default:
				t.Fatal("a new snapshot did not wake those who wait on the old one")
			}
			select {
			case <-snap.Changed:
				t.Fatal("the latest snapshot says that there is a newer one")
			default:
			}
			if err := consistent(snap); err != nil {
				t.Fatal(err)
			}
			for j, e := range snap.Engines {
				if e.Name != members[j].Name || e.Ready && !states[j].Ready {
					t.Fatalf("engine %d is %s, ready %v; it reported %v", j, e.Name, e.Ready, states[j].Ready)
				}
			}
		}
		fresh, err := New(Options{Members: members, Folders: folders})
		if err != nil {
			t.Fatal(err)
		}
		fresh.publishes(said)
		fresh.publishes(states)
		for name, m := range f.Snapshot().Models {
			if got, want := targets(m), targets(fresh.Snapshot().Models[name]); got != want {
				t.Fatalf("model %s: %q after all reports, %q from the last ones", name, got, want)
			}
		}
	})
}

// A policy outlives the snapshots of its model, or every report would begin
// the turns anew.
func TestPoliciesAreKept(t *testing.T) {
	f, err := New(Options{Policy: "round-robin", Members: []Member{relayMember("a", "x"), relayMember("b", "x")}})
	if err != nil {
		t.Fatal(err)
	}
	states := []engine.State{ready("x"), ready("x")}
	var got []string
	for range 4 {
		f.publishes(states)
		target, _, ok := f.Snapshot().Models["x"].Pick(route.Needs{}, nil, new(route.Choice))
		if !ok {
			t.Fatal("no target")
		}
		got = append(got, target.Name)
	}
	if want := []string{"a", "b", "a", "b"}; !slices.Equal(got, want) {
		t.Errorf("picked %v, want %v", got, want)
	}
}

// LoRA adapters are models of their own with the folder of the engine's.
func TestLoRA(t *testing.T) {
	folders := map[string][]string{"folder": {"nick"}, "own": nil}
	with := func(s engine.State, adapters ...engine.LoRA) engine.State {
		s.Facts.LoRA = adapters
		return s
	}
	told := tokenMember("b", "folder")
	told.LoRA = []string{"x", "y"}
	for _, test := range []struct {
		name                 string
		members              []Member
		states               []engine.State
		targets, base, fault string // of model "x"
		note                 string // of the last engine
		unready              bool   // the last engine is
		folderTargets        string
	}{
		{name: "an engine says it", members: []Member{tokenMember("a", "")}, states: []engine.State{with(ready("folder"), engine.LoRA{Name: "x"})},
			targets: "a:x", base: "folder", folderTargets: "a:folder"},
		{name: "of a model that it knows by an alias", members: []Member{tokenMember("a", "")}, states: []engine.State{with(ready("nick"), engine.LoRA{Name: "x"})},
			targets: "a:x", base: "folder", folderTargets: "a:nick"},
		{name: "of an engine with model=", members: []Member{tokenMember("a", "folder")}, states: []engine.State{with(ready("/m"), engine.LoRA{Name: "x"})},
			targets: "a:x", base: "folder", folderTargets: "a:/m"},
		{name: "one of two engines has it", members: []Member{tokenMember("a", ""), tokenMember("b", "")},
			states:  []engine.State{ready("folder"), with(ready("folder"), engine.LoRA{Name: "x"})},
			targets: "b:x", base: "folder", folderTargets: "a:folder b:folder"},
		{name: "not loaded", members: []Member{tokenMember("a", "")}, states: []engine.State{with(ready("folder"), engine.LoRA{Name: "x", Fault: "no file"})},
			fault: "no file", note: "LoRA adapter x is not served: no file", folderTargets: "a:folder"},
		{name: "loaded by one of two", members: []Member{tokenMember("a", ""), tokenMember("b", "")},
			states:  []engine.State{with(ready("folder"), engine.LoRA{Name: "x"}), with(ready("folder"), engine.LoRA{Name: "x", Fault: "no file"})},
			targets: "a:x", base: "folder", note: "no file", folderTargets: "a:folder b:folder"},
		{name: "known before the engine has answered", members: []Member{told}, states: []engine.State{{}}, base: "folder", unready: true},
		{name: "of two told, one was loaded", members: []Member{told}, states: []engine.State{with(ready("folder"), engine.LoRA{Name: "x"})},
			targets: "b:x", base: "folder", folderTargets: "b:folder"},
		{name: "of a model without a folder", members: []Member{tokenMember("a", "")}, states: []engine.State{with(ready("z"), engine.LoRA{Name: "x"})},
			fault: "--model z=DIR", note: "--model z=DIR", unready: true},
		{name: "a relay has that model", members: []Member{relayMember("r", "x"), tokenMember("a", "")},
			states:  []engine.State{ready("x"), with(ready("folder"), engine.LoRA{Name: "x"})},
			targets: "r:x", note: "another engine", folderTargets: "a:folder"},
		{name: "a relay has it", members: []Member{relayMember("r", ""), tokenMember("a", "")},
			states:  []engine.State{ready("nick", "x"), with(ready("folder"), engine.LoRA{Name: "x"})},
			targets: "r:x a:x", base: "folder", folderTargets: "r:nick a:folder"},
		{name: "a relay has it too", members: []Member{tokenMember("a", ""), relayMember("r", "")},
			states:  []engine.State{with(ready("folder"), engine.LoRA{Name: "x"}), ready("folder", "x")},
			targets: "a:x r:x", base: "folder", folderTargets: "a:folder r:folder"},
		{name: "an alias hides it", members: []Member{tokenMember("a", "")}, states: []engine.State{with(ready("folder"), engine.LoRA{Name: "nick"}, engine.LoRA{Name: "x"})},
			targets: "a:x", base: "folder", note: "LoRA adapter nick is not served: that is an alias of model folder", folderTargets: "a:folder"},
	} {
		t.Run(test.name, func(t *testing.T) {
			snap := published(t, folders, test.members, test.states)
			x := snap.Models["x"]
			if x == nil {
				t.Fatal("no model x")
			}
			if targets(x) != test.targets || x.Base != test.base || (x.Fault == "") != (test.fault == "") || !strings.Contains(x.Fault, test.fault) {
				t.Errorf("model x: %q of %q, fault %q", targets(x), x.Base, x.Fault)
			}
			if got := targets(snap.Models["folder"]); got != test.folderTargets || snap.Models["nick"] != snap.Models["folder"] {
				t.Errorf("model folder: %q", got)
			}
			last := snap.Engines[len(snap.Engines)-1]
			if last.Ready == test.unready || (last.Note == "") != (test.note == "") || !strings.Contains(last.Note, test.note) {
				t.Errorf("engine %s: ready %v, note %q, %v", last.Name, last.Ready, last.Note, last.Err)
			}
			if err := consistent(snap); err != nil {
				t.Error(err)
			}
		})
	}
	// A folder that was given for an adapter is its own, as before.
	snap := published(t, folders, []Member{tokenMember("a", "")}, []engine.State{with(ready("z"), engine.LoRA{Name: "own"})})
	if m := snap.Models["own"]; targets(m) != "a:own" || m.Base != "" {
		t.Errorf("%q of %q", targets(m), m.Base)
	}
}

func TestMembersAreChecked(t *testing.T) {
	for _, test := range []struct {
		members []Member
		want    string
	}{
		{[]Member{relayMember("a", ""), tokenMember("a", "")}, `"a"`},
		{[]Member{{Name: "b", Adapter: &both{}}}, "either"},
		{[]Member{{Name: "c", Adapter: &adapter{}}}, "either"},
	} {
		if _, err := New(Options{Members: test.members}); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v, want %q", err, test.want)
		}
	}
}

// started runs a fleet; end ends it and waits for it.
func started(f *Fleet) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// Run takes every adapter's reports, wakes who waits, and returns when all
// adapters have ended; an adapter that reports meanwhile is not held up.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := []Member{relayMember("a", ""), relayMember("b", "")}
		var left, absent, came []string // written by Run's goroutine
		f, err := New(Options{Members: members, Left: func(m Member, _ int, err error) { left = append(left, m.Name+": "+err.Error()) },
			Absent: func(m Member, err error) { absent = append(absent, m.Name+": "+err.Error()) },
			Came:   func(m Member, e *route.Engine) { came = append(came, fmt.Sprint(m.Name, " ", e.Facts.Models)) }})
		if err != nil {
			t.Fatal(err)
		}
		end := started(f)
		a, b := members[0].Adapter.(*relay), members[1].Adapter.(*relay)
		snap := f.Snapshot()
		a.states <- ready("x")
		<-snap.Changed
		for _, why := range []string{"port 4711 is closed", "port 4712 is closed", "loading"} {
			b.states <- engine.State{Err: errors.New(why)}
		}
		b.states <- ready("x")
		synctest.Wait()
		if got := targets(f.Snapshot().Models["x"]); got != "a:x b:x" {
			t.Errorf("targets %q", got)
		}
		a.states <- engine.State{Facts: engine.Facts{Models: []string{"x"}}, Err: errors.New("gone")}
		synctest.Wait()
		if got := targets(f.Snapshot().Models["x"]); got != "b:x" {
			t.Errorf("targets %q", got)
		}
		a.states <- engine.State{Err: errors.New("still gone")}
		synctest.Wait()
		if len(left) != 1 || left[0] != "a: gone" {
			t.Errorf("left: %q, want a once", left)
		}
		a.states <- ready("x")
		a.states <- ready("x")
		synctest.Wait()
		if got := fmt.Sprint(absent, came); got != "[b: port 4711 is closed b: loading] [b [x] a [x]]" {
			t.Errorf("absent and came: %s", got)
		}
		began := time.Now()
		end()
		if !a.ended || !b.ended || time.Since(began) != time.Second {
			t.Errorf("ended %v, %v after %v", a.ended, b.ended, time.Since(began))
		}
	})
}

type doomed struct{ relay }

func (*doomed) Run(context.Context, func(engine.State)) { panic("an adapter's") }

// prompt is an adapter that looks at the snapshot as soon as it has reported.
type prompt struct {
	relay
	fleet *Fleet
	seen  []bool // that it is ready
}

func (p *prompt) Run(_ context.Context, report func(engine.State)) {
	for _, s := range []engine.State{ready("m"), {Err: errors.New("lost")}, ready("m")} {
		report(s)
		p.seen = append(p.seen, p.fleet.Snapshot().Engines[0].Ready)
	}
}

// A report of an adapter is in the snapshot by the time it ends requests, so they find another
// engine and not the one that is lost.
func TestReportsArePublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &prompt{}
		f, err := New(Options{Members: []Member{{Name: "p", Kind: "openai", Adapter: p}}})
		if err != nil {
			t.Fatal(err)
		}
		p.fleet = f
		end := started(f)
		synctest.Wait()
		if !slices.Equal(p.seen, []bool{true, false, true}) {
			t.Errorf("ready in the snapshots: %v", p.seen)
		}
		end()
	})
}

// An adapter that ends by a panic takes its own engine along.
func TestPanicOfAnAdapter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		members := []Member{{Name: "a", Kind: "openai", Model: "x", Adapter: &doomed{relay{newAdapter()}}}, relayMember("b", "x")}
		f, err := New(Options{Members: members, Panicked: func(m Member, p *infer.Panic) { told = append(told, m.Name+": "+p.Error()) }})
		if err != nil {
			t.Fatal(err)
		}
		end := started(f)
		members[1].Adapter.(*relay).states <- ready("x")
		synctest.Wait()
		snap := f.Snapshot()
		if len(told) != 1 || told[0] != "a: panic: an adapter's" || snap.Engines[0].Ready || snap.Engines[0].Err == nil || !snap.Engines[1].Ready {
			t.Errorf("told of %q; %+v, %+v", told, snap.Engines[0], snap.Engines[1])
		}
		end()
	})
}

type stand struct{ adapter }

func (*stand) Stands() {}

type metered struct{ tokens }

func (*metered) Metrics() []engine.Metric { return []engine.Metric{engine.NewGauge("weir_x", "X.", 7)} }

// An engine has its adapter's metrics before it has answered, and where it has none,
// none; of a stand they are those of the adapter that it stands for.
func TestMetrics(t *testing.T) {
	own := &metered{tokens{newAdapter()}}
	members := []Member{
		{Name: "own", Kind: "weir", Model: "m", Adapter: own},
		{Name: "none", Kind: "weir", Model: "m", Adapter: &tokens{newAdapter()}},
		{Name: "unknown", Kind: "auto", Adapter: &stand{newAdapter()}},
		{Name: "found", Kind: "auto", Adapter: &stand{newAdapter()}},
	}
	snap := published(t, map[string][]string{"m": nil}, members, []engine.State{{}, ready("m"), {}, {Via: own, Kind: "weir"}})
	for i, want := range []bool{true, false, false, true} {
		e := snap.Engines[i]
		if got := e.Metrics != nil; got != want {
			t.Errorf("%s has metrics: %v", e.Name, got)
		} else if got && e.Metrics()[0].Value != 7 {
			t.Errorf("%s: %+v", e.Name, e.Metrics())
		}
	}
}

// A model carries what some of its engines do, by the latest word of those that are
// not ready; of one that never said, and while none is ready, everything.
func TestCarriesOfEngines(t *testing.T) {
	folders := map[string][]string{"m": nil}
	members := []Member{tokenMember("a", "m"), tokenMember("b", "m")}
	can := func(up bool, c infer.Carries) engine.State {
		s := ready("m")
		s.Ready, s.Facts.Carries = up, c
		return s
	}
	for _, c := range []struct {
		states  []engine.State
		want    infer.Carries
		awaited bool
	}{
		{[]engine.State{can(true, infer.CarriesMinP), can(true, infer.CarriesSeed)}, infer.CarriesMinP | infer.CarriesSeed, false},
		{[]engine.State{can(true, infer.CarriesMinP), can(false, infer.CarriesSeed)}, infer.CarriesMinP | infer.CarriesSeed, true},
		{[]engine.State{can(true, infer.CarriesMinP), {}}, infer.CarriesAnything, true},
		{[]engine.State{can(false, infer.CarriesMinP), can(false, infer.CarriesSeed)}, infer.CarriesAnything, true},
	} {
		m := published(t, folders, members, c.states).Models["m"]
		if m.ByIDs.Carries != c.want || m.Awaited != c.awaited {
			t.Errorf("carries %s, awaited %t; want %s, %t", m.ByIDs.Carries, m.Awaited, c.want, c.awaited)
		}
	}
}

// An engine whose requests carry no salt is given none of a model that isolates its callers, and
// says why; of other models it is.
func TestIsolationWantsSalts(t *testing.T) {
	salted := ready("m", "open")
	salted.Facts.Salts.Carried = true
	plain := ready("m", "open")
	plain.Facts.Salts.Why = "has no salts"
	f, err := New(Options{Members: []Member{relayMember("a", ""), relayMember("b", "")}, Isolation: tenancy.ByKey, Isolations: map[string]tenancy.Isolation{"open": tenancy.Shared}})
	if err != nil {
		t.Fatal(err)
	}
	f.publishes([]engine.State{salted, plain})
	s := f.Snapshot()
	if got, open := targets(s.Models["m"]), targets(s.Models["open"]); got != "a:m" || open != "a:open b:open" {
		t.Errorf("m is served by %q, open by %q", got, open)
	}
	if m := s.Models["m"]; m.Isolation != tenancy.ByKey || m.Fault != "" || s.Models["open"].Isolation != tenancy.Shared {
		t.Errorf("%+v", m)
	}
	if err := s.Engines[1].Err; err == nil || !strings.Contains(err.Error(), "has no salts") || !strings.Contains(err.Error(), "isolation=off") {
		t.Errorf("the engine without salts: %v", err)
	}
	f.publishes([]engine.State{plain, plain})
	if m := f.Snapshot().Models["m"]; targets(m) != "" || !strings.Contains(m.Fault, "has no salts") {
		t.Errorf("no engine has salts, and the model's fault is %q", m.Fault)
	}
}

// Where nobody has asked for the isolation, an engine without salts serves as well, and says that
// its cache is shared. If no engine of a model has salts, callers share as before, and a model
// whose isolation was given is strict.
func TestLenientIsolation(t *testing.T) {
	salted := ready("m", "strict")
	salted.Facts.Salts.Carried = true
	plain := ready("m", "strict")
	plain.Facts.Salts.Why = "has no salts"
	f, err := New(Options{Members: []Member{relayMember("a", ""), relayMember("b", "")}, Isolation: tenancy.ByTenant, Lenient: true, Isolations: map[string]tenancy.Isolation{"strict": tenancy.ByTenant}})
	if err != nil {
		t.Fatal(err)
	}
	f.publishes([]engine.State{salted, plain})
	s := f.Snapshot()
	if got, strict := targets(s.Models["m"]), targets(s.Models["strict"]); got != "a:m b:m" || strict != "a:strict" {
		t.Errorf("m is served by %q, strict by %q", got, strict)
	}
	if m, strict := s.Models["m"], s.Models["strict"]; m.Isolation != tenancy.ByTenant || !m.Lenient || strict.Lenient {
		t.Errorf("m %v, lenient %v; strict lenient %v", m.Isolation, m.Lenient, strict.Lenient)
	}
	if note := s.Engines[1].Note; !strings.Contains(note, "tenants share its prefix cache") || !strings.Contains(note, "has no salts") || s.Engines[0].Note != "" {
		t.Errorf("the engine without salts notes %q, the other one %q", note, s.Engines[0].Note)
	}
	f.publishes([]engine.State{plain, plain})
	if m := f.Snapshot().Models["m"]; targets(m) != "a:m b:m" || m.Isolation != tenancy.Shared || m.Fault != "" {
		t.Errorf("without salts m is served by %q with isolation %v, %q", targets(m), m.Isolation, m.Fault)
	}
	f.publishes([]engine.State{salted, salted})
	if m := f.Snapshot().Models["m"]; m.Isolation != tenancy.ByTenant {
		t.Errorf("with salts everywhere the isolation is %v", m.Isolation)
	}
}

// A model knows whether one of its engines is still starting, and when the latest left.
func TestSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, model := range []string{"m", ""} { // also where only they say what they serve
			settle(t, model)
		}
	})
}

func settle(t *testing.T, model string) {
	f, err := New(Options{Members: []Member{tokenMember("a", model), tokenMember("b", model)}, Folders: map[string][]string{"m": nil}})
	if err != nil {
		t.Fatal(err)
	}
	gone := engine.State{Err: errors.New("gone")}
	var left int64
	for i, c := range []struct {
		a, b    engine.State
		settled bool
		leaves  bool
	}{
		{ready("m"), gone, false, false},
		{gone, gone, false, true}, // b never was there: it may be starting
		{gone, ready("m"), true, false},
		{gone, gone, true, true},
		{gone, gone, true, false}, // a further report of it is no departure
		{ready("m"), gone, true, false},
	} {
		time.Sleep(time.Second)
		f.publishes([]engine.State{c.a, c.b})
		if c.leaves {
			left = trace.Now()
		}
		if m := f.Snapshot().Models["m"]; m.Settled != c.settled || m.Left != left {
			t.Errorf("model=%s %d: settled %v, left %d; want %v, %d", model, i, m.Settled, m.Left, c.settled, left)
		}
	}
}

// The books of an engine live as long as the engine does: over snapshots, and over the
// loss of a connection where the engine says that it is the same one afterwards.
func TestBooksLiveAsLongAsTheEngine(t *testing.T) {
	as := func(instance string) engine.State {
		s := ready("folder")
		s.Facts.Instance = instance
		return s
	}
	lost := engine.State{Err: errors.New("gone")}
	for _, c := range []struct {
		name   string
		states []engine.State
		lives  int
	}{
		{"reports of one engine", []engine.State{as("1"), as("1"), as("1")}, 1},
		{"the same one is back", []engine.State{as("1"), lost, as("1")}, 1},
		{"another one is back", []engine.State{as("1"), lost, as("2")}, 2},
		{"another one, and nobody noticed", []engine.State{as("1"), as("2")}, 2},
		{"it says it later", []engine.State{as(""), as("1"), as("1")}, 1},
		{"it does not say which it is", []engine.State{as(""), as("")}, 1},
		{"and was lost", []engine.State{as(""), lost, as("")}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := New(Options{Members: []Member{tokenMember("a", ""), tokenMember("b", "")}, Folders: map[string][]string{"folder": nil}})
			if err != nil {
				t.Fatal(err)
			}
			block := []kvindex.Block{1}
			lives := 0
			var last *route.Books
			for _, s := range c.states {
				f.publishes([]engine.State{s, as("b")})
				snap := f.Snapshot()
				books := snap.Engines[0].Ranks[0].Books
				if books != last {
					lives++
					if n := snap.Index.Match(nil, block, 1).Of(books.Cache.ID).Soon; n != 0 {
						t.Error("a new engine has what the one before it had")
					}
					if last != nil {
						last.Cache.Place(block, 0) // by a request that is still there
						if n := last.Cache.Used(); n != 0 {
							t.Errorf("the cache of the engine before takes %d blocks", n)
						}
					}
				}
				last = books
				books.Cache.Place(block, 0)
				model := snap.Models["folder"]
				if len(model.Candidates) != len(model.Targets) {
					t.Fatalf("%d candidates, %d targets", len(model.Candidates), len(model.Targets))
				}
				for i := range model.Targets {
					if model.Candidates[i].Rank != model.Targets[i].Books.Rank {
						t.Errorf("candidate %d is not %s", i, model.Targets[i].Name)
					}
				}
			}
			if lives != c.lives {
				t.Errorf("%d lives, want %d", lives, c.lives)
			}
		})
	}
}

func TestUnknownPolicy(t *testing.T) {
	for _, o := range []Options{{Policy: "round-robbin"}, {Policies: map[string]string{"x": "round-robbin"}}} {
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), `did you mean "round-robin"?`) {
			t.Errorf("error %v", err)
		}
	}
}

// Each rank that an engine names is a target of its own, with a health and books that live
// as long as the rank does. One that has left takes nothing from the others.
func TestRanks(t *testing.T) {
	says := func(ranks ...engine.Rank) engine.State {
		s := ready("folder")
		s.Facts.LoRA, s.Facts.Ranks = []engine.LoRA{{Name: "x"}}, ranks
		return s
	}
	up := func(n int, instance string) engine.Rank {
		return engine.Rank{Number: n, Ready: true, Instance: instance}
	}
	down := func(n int) engine.Rank { return engine.Rank{Number: n} }
	lame := engine.Rank{Number: 1, Ready: true, Without: []string{"x"}}
	lost := engine.State{Err: errors.New("gone")}
	var left []string
	f, err := New(Options{Members: []Member{tokenMember("a", "")}, Folders: map[string][]string{"folder": nil},
		Left: func(m Member, rank int, err error) { left = append(left, fmt.Sprint(m.Name, " ", rank, ": ", err)) }})
	if err != nil {
		t.Fatal(err)
	}
	labels := func(m *route.Model) string {
		var out []string
		for i := range m.Targets {
			out = append(out, m.Targets[i].Label)
		}
		return strings.Join(out, " ")
	}
	books := map[string]*route.Books{}
	for i, c := range []struct {
		state                  engine.State
		ranks, folder, adapter string
		same                   string // those whose books are still the ones that they had
	}{
		{lost, "a", "", "", ""},
		{ready("folder"), "a", "a", "", ""},
		{says(up(0, "i"), up(1, "")), "a/0 a/1", "a/0 a/1", "a/0 a/1", ""},
		{says(up(0, "i"), up(1, "")), "a/0 a/1", "a/0 a/1", "a/0 a/1", "a/0 a/1"},
		{says(down(0), lame), "a/0 a/1", "a/1", "", "a/0 a/1"},
		{says(up(0, "i"), down(1)), "a/0 a/1", "a/0", "a/0", "a/0 a/1"},
		{says(up(0, "i"), up(1, "")), "a/0 a/1", "a/0 a/1", "a/0 a/1", "a/0"}, // rank 1 may be another process
		{lost, "a/0 a/1", "", "", "a/0 a/1"},
		{says(up(0, "i"), up(1, ""), up(2, "")), "a/0 a/1 a/2", "a/0 a/1 a/2", "a/0 a/1 a/2", "a/0"},
		{says(up(0, "j"), up(2, "")), "a/0 a/2", "a/0 a/2", "a/0 a/2", "a/2"},
		{ready("folder"), "a", "a", "", ""},
	} {
		f.publishes([]engine.State{c.state})
		snap := f.Snapshot()
		var ranks, same []string
		for _, r := range snap.Engines[0].Ranks {
			ranks = append(ranks, r.Label)
			if r.Books != nil && books[r.Label] == r.Books {
				same = append(same, r.Label)
			}
			books[r.Label] = r.Books
		}
		adapter := ""
		if m := snap.Models["x"]; m != nil {
			adapter = labels(m)
		}
		if got := strings.Join(ranks, " "); got != c.ranks {
			t.Errorf("%d: ranks %q, want %q", i, got, c.ranks)
		}
		if got := labels(snap.Models["folder"]); got != c.folder || adapter != c.adapter {
			t.Errorf("%d: targets %q and %q, want %q and %q", i, got, adapter, c.folder, c.adapter)
		}
		if got := strings.Join(same, " "); got != c.same {
			t.Errorf("%d: with the books that they had: %q, want %q", i, got, c.same)
		}
		for i := range snap.Models["folder"].Targets {
			if target := &snap.Models["folder"].Targets[i]; target.Health.Takes() == 0 {
				t.Errorf("%s takes nothing", target.Label)
			}
		}
	}
	if got := strings.Join(left, ", "); got != "a 0: its connection has ended, a 1: its connection has ended" {
		t.Errorf("left: %s", got)
	}
}

// publishes publishes what members say, in their order.
func (f *Fleet) publishes(states []engine.State) {
	for i, s := range states {
		f.members[i].says(s)
	}
	f.publish()
}
