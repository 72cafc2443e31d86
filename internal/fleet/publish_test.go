package fleet

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/engine"
	"weir/internal/fleet/route"
	"weir/internal/infer"
)

// described writes all of a snapshot that its readers read of engines and models.
func described(s *route.Snapshot) string {
	var b strings.Builder
	for _, e := range s.Engines {
		fmt.Fprintf(&b, "%s %s ready=%v err=%v note=%q facts=%v role=%v meets=%v gen=%d drained=%v weight=%v known=%v\n", e.Name, e.Kind, e.Ready, e.Err, e.Note, e.Facts, e.Role, e.Meets, e.Generation, e.Drained, e.Weight, e.Known())
		for _, r := range e.Ranks {
			fmt.Fprintf(&b, "  rank %d %s there=%v books=%p health=%p\n", r.Number, r.Label, r.There, r.Books, r.Health)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Models)) {
		m := s.Models[name]
		fmt.Fprintf(&b, "model %s is %s of %s: serves=%v whole=%v way=%v byids=%v relayed=%v awaited=%v settled=%v left=%v context=%d fault=%q isolation=%v\n",
			name, m.Name, m.Base, m.Serves, m.Whole, m.Way, m.ByIDs, m.Relayed, m.Awaited, m.Settled, m.Left != 0, m.ContextLength, m.Fault, m.Isolation)
		for _, side := range [][]route.Target{m.Targets, m.Prefills} {
			for _, t := range side {
				fmt.Fprintf(&b, "  %s as %s, ready=%v note=%q, one of the snapshot: %v\n", t.Label, t.Model, t.Ready, t.Note, slices.Contains(s.Engines, t.Engine) && slices.Contains(t.Ranks, t.Rank))
			}
		}
	}
	return b.String()
}

// After any reports and settings a snapshot is what it would be if every engine were made anew
// for it, those before it are as they were, and an engine that nothing concerned is the same one.
func TestSnapshotsShareEngines(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var members []Member
		for i := range rapid.IntRange(1, 4).Draw(t, "members") {
			m := relayMember(fmt.Sprintf("e%d", i), rapid.SampledFrom([]string{"", "x", "x", "y"}).Draw(t, "model"))
			if rapid.IntRange(0, 3).Draw(t, "tokens") == 0 {
				m = tokenMember(m.Name, m.Model)
			}
			if role := rapid.SampledFrom([]infer.Role{infer.RoleBoth, infer.RolePrefill, infer.RoleDecode}).Draw(t, "role"); role != infer.RoleBoth {
				m.Halves = Halves{Given: true, Role: role, Meets: engine.Meets{Way: engine.ByRoom}, Host: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "host")}
			}
			members = append(members, m)
		}
		f, err := New(Options{Members: members, Folders: map[string][]string{"x": {"nick"}}})
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(4, 12).Draw(t, "changes") {
			before := f.Snapshot()
			was := described(before)
			of := f.members[rapid.IntRange(0, len(members)-1).Draw(t, "member")]
			if rapid.IntRange(0, 3).Draw(t, "set") == 0 {
				of.set(Setting{Drained: rapid.Bool().Draw(t, "drained")}, 1)
			} else {
				of.says(engine.State{Ready: rapid.IntRange(0, 3).Draw(t, "ready") > 0, Facts: engine.Facts{
					Models: rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"x", "x", "y", "nick"}), 0, 2, rapid.ID).Draw(t, "models"),
				}})
			}
			f.publish()
			if now := described(before); now != was {
				t.Fatalf("a published snapshot has changed:\n%s\nwas\n%s", now, was)
			}
			shared := f.Snapshot()
			for i, e := range shared.Engines {
				if f.members[i] != of && e != before.Engines[i] && e.Ready == before.Engines[i].Ready && e.Note == before.Engines[i].Note && fmt.Sprint(e.Err) == fmt.Sprint(before.Engines[i].Err) && e.Meets == before.Engines[i].Meets {
					t.Fatalf("%s is made anew, and nothing of it has changed", e.Name)
				}
			}
			for _, m := range f.members {
				m.forget()
			}
			f.publish()
			if got, want := described(shared), described(f.Snapshot()); got != want {
				t.Fatalf("a snapshot that shares engines:\n%s\none with each of them made anew:\n%s", got, want)
			}
		}
	})
}

// An engine's note on what it lacks beside others stays as long as it lacks it, also while
// nothing of the engine itself changes.
func TestNotesFollowOthers(t *testing.T) {
	half := func(name string, role infer.Role) Member {
		m := relayMember(name, "x")
		m.Halves = Halves{Given: true, Role: role, Meets: engine.Meets{Way: engine.ByRoom}, Host: name}
		return m
	}
	f, err := New(Options{Members: []Member{half("d", infer.RoleDecode), half("p", infer.RolePrefill)}})
	if err != nil {
		t.Fatal(err)
	}
	f.members[0].says(ready("x"))
	for i := range 4 {
		there := i%2 == 1
		f.members[1].says(engine.State{Ready: there, Facts: engine.Facts{Models: []string{"x"}}})
		f.publish()
		if note := f.Snapshot().Engines[0].Note; (note == "") != there {
			t.Errorf("with the prefill engine there, %v, the decode engine is noted as %q", there, note)
		}
	}
}

// BenchmarkSnapshot is the snapshot of a thousand engines of which one has changed.
func BenchmarkSnapshot(b *testing.B) {
	var members []Member
	for i := range 1000 {
		members = append(members, relayMember(fmt.Sprintf("pod-%04d", i), ""))
	}
	f, err := New(Options{Members: members})
	if err != nil {
		b.Fatal(err)
	}
	for _, m := range f.members {
		m.says(ready("x"))
	}
	f.publish()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		f.members[i%len(members)].set(Setting{Drained: i/len(members)%2 == 0}, 1)
		f.publish()
	}
}
