package peers

import (
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"weir/internal/fleet/cost"
	"weir/internal/fleet/kvindex"
	"weir/internal/fleet/peers/peerspb"
)

// gateway sends updates, and has the books that they describe.
type gateway struct {
	ledger   Ledger
	books    map[Key]cost.Peers
	sequence uint64
}

func (g *gateway) all() iter.Seq2[Key, Books] {
	return func(yield func(Key, Books) bool) {
		for k, p := range g.books {
			if !yield(k, Books{Peers: p}) {
				return
			}
		}
	}
}

// update is the gateway's update at this time, as it arrives over the wire.
func (g *gateway) update(t *rapid.T, now int64, full bool) *peerspb.Update {
	u := &peerspb.Update{Sequence: g.sequence, Full: full}
	if g.sequence++; full {
		u.Ranks = g.ledger.All(now, g.all())
	} else {
		u.Ranks = g.ledger.Changes(now, g.all())
	}
	b, err := proto.Marshal(u)
	if err != nil {
		t.Fatal(err)
	}
	u = new(peerspb.Update)
	if err := proto.Unmarshal(b, u); err != nil {
		t.Fatal(err)
	}
	return u
}

// For any actions of gateways and any missed updates: a view of a gateway is right after its next
// full update, and until the next one that is missed.
func TestViewFollowsBooks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"a", "b"}
		told := map[string]*gateway{}
		right := map[string]bool{}
		for _, name := range names {
			told[name] = &gateway{books: map[Key]cost.Peers{}}
		}
		var v View
		now := int64(1)
		key := func() Key {
			return Key{rapid.SampledFrom([]string{"e", "f"}).Draw(t, "engine"), rapid.IntRange(-1, 1).Draw(t, "rank")}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += rapid.Int64Range(0, int64(time.Second)).Draw(t, "passes")
			name := rapid.SampledFrom(names).Draw(t, "gateway")
			g := told[name]
			switch rapid.IntRange(0, 5).Draw(t, "does") {
			case 0:
				delete(g.books, key())
			case 1, 2:
				g.books[key()] = cost.Peers{
					Drained: now + rapid.Int64Range(-1e9, 1e10).Draw(t, "drained"), InFlight: rapid.Int64Range(0, 9).Draw(t, "in flight"),
					Decoders: rapid.Int64Range(0, 9).Draw(t, "decoders"), Held: rapid.Int64Range(0, 1e6).Draw(t, "held"),
				}
			case 3: // missed
				g.update(t, now, rapid.Bool().Draw(t, "full"))
				right[name] = false
			default:
				full := rapid.Bool().Draw(t, "full")
				u := g.update(t, now, full)
				if _, _, err := v.Hear(now, name, u); err != nil {
					t.Fatal(err)
				}
				if right[name] = right[name] || full; !right[name] {
					continue
				}
				if age := v.Age(now, name); age != 0 {
					t.Fatalf("%s has just sent an update, %v ago by its age", name, age)
				}
				for k := range union(g.books, v.peers[name].ranks) {
					want, got := g.books[k], v.peers[name].ranks[k]
					late := max(got.Drained, now) - max(want.Drained, now)
					if got.Drained, want.Drained = 0, 0; got != want || late > unchanged || late < -unchanged {
						t.Fatalf("%s has %+v at %v, and told %+v (%d ns off)", name, want, k, got, late)
					}
				}
			}
			for _, k := range v.Keys() {
				var want cost.Peers
				wait := int64(0)
				for _, p := range v.peers {
					r := p.ranks[k]
					wait += max(r.Drained-now, 0)
					want.InFlight, want.Decoders, want.Held = want.InFlight+r.InFlight, want.Decoders+r.Decoders, want.Held+r.Held
				}
				if want.Drained = now + wait; v.Sum(now, k) != want {
					t.Fatalf("all at %v have %+v, want %+v", k, v.Sum(now, k), want)
				}
			}
		}
		for _, name := range names {
			v.Forget(name)
		}
		if len(v.Keys()) > 0 {
			t.Fatalf("peers that were forgotten have %v", v.Keys())
		}
	})
}

func union(a, b map[Key]cost.Peers) map[Key]struct{} {
	all := map[Key]struct{}{}
	for k := range a {
		all[k] = struct{}{}
	}
	for k := range b {
		all[k] = struct{}{}
	}
	return all
}

// A silent peer's last word stands for ForgetAfter, and not longer.
func TestSilence(t *testing.T) {
	var v View
	k := Key{"e", -1}
	u := &peerspb.Update{Full: true, Ranks: []*peerspb.Rank{{Engine: "e", Rank: -1, InFlight: 3}}}
	if _, _, err := v.Hear(1, "a", u); err != nil {
		t.Fatal(err)
	}
	if changed, _ := v.Silent(int64(ForgetAfter)); len(changed) > 0 || v.Sum(5, k).InFlight != 3 {
		t.Errorf("forgotten too early: %v", changed)
	}
	changed, forgotten := v.Silent(1 + int64(ForgetAfter))
	if !slices.Equal(changed, []Key{k}) || !slices.Equal(forgotten, []string{"a"}) || v.Sum(5, k).InFlight != 0 {
		t.Errorf("changed %v, forgotten %v", changed, forgotten)
	}
}

// Placements come out as they went in, and only while somebody follows.
func TestPlacements(t *testing.T) {
	var l Ledger
	k := Key{"e", 2}
	blocks := []kvindex.Block{1, 1 << 63, kvindex.Block(rand.Uint64())}
	l.Place(k, blocks, 7)
	if all, _ := l.Take(1); len(all) > 0 {
		t.Errorf("nobody follows, and %v is told", all)
	}
	l.SetFollowed(true)
	l.Place(k, blocks, 1007)
	l.Place(k, blocks[:1], 0)
	l.Place(k, nil, 9)
	all, lost := l.Take(7)
	if len(all) != 2 || lost != 0 || all[0].ReadyNs != 1000 || all[1].ReadyNs != 0 || all[0].Engine != "e" || all[0].Rank != 2 {
		t.Fatalf("%v, lost %d", all, lost)
	}
	if got := Blocks(nil, all[0]); !slices.Equal(got, blocks) {
		t.Errorf("blocks %v, want %v", got, blocks)
	}
	if got := Blocks(nil, all[1]); !slices.Equal(got, blocks[:1]) {
		t.Errorf("blocks %v", got)
	}
	many := make([]kvindex.Block, MostBlocks/2+1)
	l.Place(k, many, 0)
	l.Place(k, many, 0)
	if all, lost := l.Take(8); len(all) != 1 || lost != 1 {
		t.Errorf("%d placements told, %d left out; want 1 and 1", len(all), lost)
	}
}

// An impossible value is not believed, and nothing of its update counts.
func TestImpossibleUpdates(t *testing.T) {
	for name, u := range map[string]*peerspb.Update{
		"no engine":         {Ranks: []*peerspb.Rank{{InFlight: 1}}},
		"a rank":            {Ranks: []*peerspb.Rank{{Engine: "e", Rank: -2}}},
		"below zero":        {Ranks: []*peerspb.Rank{{Engine: "e", InFlight: -1}}},
		"too many":          {Ranks: []*peerspb.Rank{{Engine: "e", HeldTokens: 1 << 50}}},
		"for years":         {Ranks: []*peerspb.Rank{{Engine: "e", DrainedNs: 1 << 62}}},
		"half a block":      {Placements: []*peerspb.Placement{{Engine: "e", Blocks: make([]byte, 12)}}},
		"a prompt nowhere":  {Placements: []*peerspb.Placement{{Blocks: make([]byte, 8)}}},
		"a clock":           {MadeNs: 1 << 63},
		"an early entry":    {Ranks: []*peerspb.Rank{{Engine: "e", Entries: []*peerspb.Entry{{AgoNs: 1 << 62}}}}},
		"no number":         {Ranks: []*peerspb.Rank{{Engine: "e", Entries: []*peerspb.Entry{{What: &peerspb.Entry_Booked{Booked: &peerspb.Booked{OutputTokens: math.NaN()}}}}}}},
		"a third part":      {Ranks: []*peerspb.Rank{{Engine: "e", Entries: []*peerspb.Entry{{What: &peerspb.Entry_Booked{Booked: &peerspb.Booked{Part: 3}}}}}}},
		"tokens for free":   {Ranks: []*peerspb.Rank{{Engine: "e", Learned: &peerspb.Coefficients{Step: 1, Pair: 1, Decode: 1, Decoder: 1}}}},
		"open below zero":   {Ranks: []*peerspb.Rank{{Engine: "e", Open: -1}}},
		"a prompt in years": {Placements: []*peerspb.Placement{{Engine: "e", ReadyNs: 1 << 63}}},
	} {
		var v View
		u.Full = true
		u.Ranks = append(u.Ranks, &peerspb.Rank{Engine: "good", InFlight: 1})
		if changed, news, err := v.Hear(1, "a", u); err == nil || len(changed)+len(news) > 0 || len(v.Keys()) > 0 {
			t.Errorf("%s: %v, %v", name, changed, err)
		}
	}
}

// BenchmarkPlace is what a request of 2,048 tokens pays.
func BenchmarkPlace(b *testing.B) {
	for name, followed := range map[string]bool{"alone": false, "followed": true} {
		b.Run(name, func(b *testing.B) {
			var l Ledger
			l.SetFollowed(followed)
			blocks := make([]kvindex.Block, 128)
			b.ReportAllocs()
			for i := range b.N {
				if l.Place(Key{"e", -1}, blocks, 1); i%64 == 0 {
					l.Take(1)
				}
			}
		})
	}
}

func FuzzUpdate(f *testing.F) {
	u, err := proto.Marshal(&peerspb.Update{Full: true, Ranks: []*peerspb.Rank{{Engine: "e", InFlight: 1}}, Placements: []*peerspb.Placement{{Engine: "e", Blocks: make([]byte, 16)}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(u)
	f.Fuzz(func(t *testing.T, b []byte) {
		u := new(peerspb.Update)
		if proto.Unmarshal(b, u) != nil {
			return
		}
		var v View
		_, news, err := v.Hear(1, "a", u)
		if err != nil {
			return
		}
		rank := cost.NewModel(cost.Typical).Join(0, 0)
		rank.Share()
		for i := range news {
			rank.Hear("a", news[i].Entries)
			if c := news[i].Learned; c != nil {
				rank.Advise(1, *c)
			}
		}
		rank.Tell(math.MaxInt64 / 2)
		rank.Settle(math.MaxInt64/2, math.MaxInt64/2)
		for _, k := range v.Keys() {
			if s := v.Sum(1, k); s.Drained < 1 || s.InFlight < 0 || s.Held < 0 {
				t.Errorf("%v at %v", s, k)
			}
		}
		for _, p := range u.Placements {
			Blocks(nil, p)
		}
	})
}

// told is what a view hears of a gateway's entries, over the wire, after an update took so long.
func told(t *testing.T, v *View, sent, takes, ahead int64, sequence uint64, entries ...cost.Entry) []News {
	t.Helper()
	var l Ledger
	k := Key{"e", -1}
	entries = append(entries, cost.Entry{Kind: cost.Told, At: sent, Open: 2})
	u := &peerspb.Update{Sequence: sequence, MadeNs: uint64(sent), Ranks: l.Changes(sent, func(yield func(Key, Books) bool) {
		yield(k, Books{Peers: cost.Peers{InFlight: 2}, Entries: entries})
	})}
	b, err := proto.Marshal(u)
	if err != nil {
		t.Fatal(err)
	}
	u = new(peerspb.Update)
	if err := proto.Unmarshal(b, u); err != nil {
		t.Fatal(err)
	}
	_, news, err := v.Hear(sent+ahead+takes, "a", u)
	if err != nil {
		t.Fatal(err)
	}
	return news
}

// Entries come out as they went in, by this gateway's clock, however late an update is.
func TestEntries(t *testing.T) {
	const ahead = -5e15 // of the other clock, for which this one is years behind
	sent := int64(6e15)
	went := []cost.Entry{
		{Kind: cost.Booked, Request: 1 << 40, At: sent - 9e6, Progress: cost.Progress{Generated: 3, Stepped: sent - 10e6}, Work: cost.Work{Length: 2500, New: 100, Output: 19.5, Unseen: true, Part: cost.PrefillPart}},
		{Kind: cost.Began, Request: 7, At: sent - 5e6, Progress: cost.Progress{Generated: 4, Stepped: sent - 5e6}, Cached: 0, Start: sent - 60e6},
		{Kind: cost.Began, Request: 8, At: sent - 5e6, Cached: -1},
		{Kind: cost.Ended, Request: 7, At: sent, Tokens: 12},
	}
	var v View
	told(t, &v, sent-10e6, 0, ahead, 0)
	news := told(t, &v, sent, 70e6, ahead, 1, went...)
	if until := v.Complete(sent + ahead + 70e6); until < sent+ahead || until > sent+ahead+10e3 {
		t.Errorf("entries are known until %d, want %d", until, int64(sent+ahead))
	}
	if len(news) != 1 || len(news[0].Entries) != len(went)+1 {
		t.Fatalf("%+v", news)
	}
	drift := int64(mostDrift * 80e6)
	for i, e := range append(went, cost.Entry{Kind: cost.Told, At: sent, Open: 2}) {
		got := news[0].Entries[i]
		for _, at := range []struct{ got, want *int64 }{{&got.At, &e.At}, {&got.Stepped, &e.Stepped}, {&got.Start, &e.Start}} {
			if late := *at.got - ahead - *at.want; *at.want == 0 && *at.got != 0 || *at.want != 0 && (late < 0 || late > drift) {
				t.Errorf("%d: %d ns late", i, late)
			}
			*at.got, *at.want = 0, 0
		}
		if got != e {
			t.Errorf("%d: %+v, want %+v", i, got, e)
		}
	}
	if _, _, missing := v.Missing(); missing {
		t.Error("no update is missing")
	}
	told(t, &v, sent+10e6, 0, ahead, 3)
	if from, to, missing := v.Missing(); !missing || from > sent+ahead+drift || to < sent+10e6+ahead {
		t.Errorf("an update is missing, from %d to %d: %v", from, to, missing)
	}
	if _, _, missing := v.Missing(); missing {
		t.Error("it is missing twice")
	}
}

// The requests of a gateway that sends no entries are not known, nor those of one that is quiet.
// Nobody waits for these.
func TestUnknown(t *testing.T) {
	var v View
	u := &peerspb.Update{Full: true, Ranks: []*peerspb.Rank{{Engine: "e", Rank: -1, InFlight: 3}, {Engine: "idle"}}}
	if _, news, err := v.Hear(1, "of an earlier version", u); err != nil || len(news) > 0 {
		t.Fatal(news, err)
	}
	want := []Key{{"e", -1}}
	if got := v.Unknown(2); !slices.Equal(got, want) || v.Complete(2) != 2 {
		t.Errorf("of an earlier version: unknown are %v, complete until %d", got, v.Complete(2))
	}
	v.Forget("of an earlier version")
	u.MadeNs = 1
	if _, _, err := v.Hear(1, "a", u); err != nil {
		t.Fatal(err)
	}
	for now, unknown := range map[int64]bool{2: false, quiet: false, quiet + 1: true} {
		if got := v.Unknown(now); len(got) > 0 != unknown || v.Complete(now) == now != unknown {
			t.Errorf("at %d unknown are %v, complete until %d", now, got, v.Complete(now))
		}
	}
}
