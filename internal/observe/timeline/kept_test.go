package timeline

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weir/internal/infer"
	"weir/internal/trace"
)

// ended is the record of a request that has ended so long after the clock's beginning.
func ended(id int, at, took time.Duration, how infer.Outcome) *trace.Record {
	r := &trace.Record{RequestID: fmt.Sprint(id), Outcome: how, Finished: int64(at), Arrival: int64(at - took)}
	if how == infer.Finished {
		r.Stream, r.FirstFlushed = true, r.Arrival+int64(took)/3
	}
	return r
}

// For any records, memory holds exactly what the shelves describe: the latest, the slowest of each
// minute, the failed as far as there is room, a sample. Each record that was dropped before its
// time is counted.
func TestKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shelves := Shelves{
			Slowest: rapid.IntRange(0, 4).Draw(t, "slowest"), Failed: rapid.IntRange(0, 4).Draw(t, "failed"),
			Refused: rapid.IntRange(0, 4).Draw(t, "refused"), Sample: rapid.IntRange(0, 4).Draw(t, "sample"),
		}
		latest := rapid.IntRange(1, 5).Draw(t, "latest")
		k := newKept(latest, shelves)
		k.random = rand.New(rand.NewPCG(1, rapid.Uint64().Draw(t, "seed"))).IntN
		now := time.Duration(rapid.SampledFrom([]int64{-30, 0, 60}).Draw(t, "begin")) * time.Minute // the clock may begin anywhere
		var all []*trace.Record
		for i := range rapid.IntRange(1, 200).Draw(t, "requests") {
			now += time.Duration(rapid.IntRange(0, 20).Draw(t, "after")) * time.Second
			how := infer.Outcome(rapid.IntRange(0, int(infer.NumOutcomes)-1).Draw(t, "outcome"))
			rec := ended(i, now-time.Duration(rapid.IntRange(0, 90).Draw(t, "late"))*time.Second, time.Duration(rapid.IntRange(1, 50).Draw(t, "took"))*time.Millisecond, how)
			all = append(all, rec)
			k.add(rec)
		}
		in := map[*trace.Record]*held{}
		for i, h := range k.all {
			if h.at != i || h.places <= 0 || in[h.rec] != nil {
				t.Fatalf("record %s at %d of %d, in %d places", h.rec.RequestID, h.at, i, h.places)
			}
			in[h.rec] = h
		}
		places := map[*trace.Record]int{}
		holds := func(shelf []*held) {
			for _, h := range shelf {
				places[h.rec]++
			}
		}
		holds(k.leaving)
		for i, h := range k.latest {
			if h != nil {
				places[h.rec]++
			} else if i < len(all) {
				t.Fatalf("the latest are %d", i)
			}
		}
		passed := 0
		for i := range k.buckets {
			b := &k.buckets[i]
			of := slices.DeleteFunc(slices.Clone(all), func(r *trace.Record) bool { return minuteOf(r.Finished) != b.minute })
			if !b.begun {
				continue
			}
			passed += b.passed
			for _, shelf := range [...][]*held{b.byFirst.all, b.byTotal.all, b.failed.all, b.refused.all, b.sample.all} {
				holds(shelf)
			}
			slices.SortStableFunc(of, func(x, y *trace.Record) int { return cmp.Compare(y.Total(), x.Total()) })
			if want := min(shelves.Slowest, b.ended); len(b.byTotal.all) != want || want > 0 && slices.Min(b.byTotal.times) != of[want-1].Total() {
				t.Fatalf("the slowest are %v of %d", b.byTotal.times, b.ended)
			}
			for _, shelf := range []struct {
				has  reservoir
				room int
				of   func(*trace.Record) bool
			}{
				{b.failed, shelves.Failed, func(r *trace.Record) bool { return r.Outcome == infer.Failed }},
				{b.refused, shelves.Refused, func(r *trace.Record) bool { return r.Outcome == infer.Rejected || r.Outcome == infer.Cancelled }},
				{b.sample, shelves.Sample, func(*trace.Record) bool { return true }},
			} {
				for _, h := range shelf.has.all {
					if !shelf.of(h.rec) {
						t.Fatalf("%s is on the wrong shelf", h.rec.Outcome)
					}
				}
				if len(shelf.has.all) != min(shelf.room, shelf.has.seen) {
					t.Fatalf("%d of %d on a shelf with room for %d", len(shelf.has.all), shelf.has.seen, shelf.room)
				}
			}
			for _, rec := range of {
				if in[rec] == nil {
					passed--
				}
			}
		}
		for rec, h := range in {
			if int(h.places) != places[rec] {
				t.Fatalf("record %s is in %d places and counts %d", rec.RequestID, places[rec], h.places)
			}
		}
		if len(places) != len(in) {
			t.Fatalf("%d are held and %d listed", len(places), len(in))
		}
		if passed > 0 { // what came for a minute that was over is in no bucket
			t.Fatalf("%d more were counted as let go of than are missing", passed)
		}
		most := latest + int(minutes+1)*(2*shelves.Slowest+shelves.Failed+shelves.Refused+shelves.Sample)
		if len(k.all) > most {
			t.Fatalf("%d are kept, of at most %d", len(k.all), most)
		}
	})
}

// Each of a minute's requests is in the sample with the same probability, whenever it
// came and however long it took.
func TestSampleIsFair(t *testing.T) {
	const requests, room, rounds = 40, 8, 4000
	random := rand.New(rand.NewPCG(7, 8)).IntN
	var seen [requests]int
	for range rounds {
		k := newKept(1, Shelves{Slowest: 4, Sample: room})
		k.random = random
		for i := range requests {
			k.add(ended(i, time.Hour, time.Duration(i+1)*time.Millisecond, infer.Finished))
		}
		for _, h := range k.all {
			if h.sampled.Load() {
				var id int
				fmt.Sscan(h.rec.RequestID, &id)
				seen[id]++
			}
		}
	}
	for id, n := range seen { // 800 each; the standard deviation is 25
		if n < 670 || n > 930 {
			t.Errorf("request %d was in %d of %d samples, want about %d", id, n, rounds, rounds*room/requests)
		}
	}
}

// A sample over minutes has of each as much as its share of the requests, though as many
// of each are in memory.
func TestSampleOverMinutes(t *testing.T) {
	r, err := New(Options{Keep: 1, Shelves: Shelves{Sample: 100}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for i := range 1000 {
		r.Add(ended(i, 10*time.Minute+time.Duration(i)*time.Millisecond, time.Millisecond, infer.Finished))
	}
	for i := range 200 {
		r.Add(ended(1000+i, 11*time.Minute+time.Duration(i)*time.Millisecond, time.Millisecond, infer.Failed))
	}
	now := int64(11*time.Minute + time.Second)
	count := func(q Query) (first, second int) {
		for _, rec := range r.Sample(q, now) {
			if rec.Outcome == infer.Finished {
				first++
			} else {
				second++
			}
		}
		return first, second
	}
	if first, second := count(Query{}); first != 100 || second != 20 {
		t.Errorf("%d of 1000 and %d of 200, want 100 and 20", first, second)
	}
	if first, second := count(Query{Since: time.Second}); first != 0 || second == 0 || second > 100 {
		t.Errorf("of the last second %d of the minute before and %d", first, second)
	}
	if first, second := count(Query{Outcome: "failed"}); first != 0 || second != 20 {
		t.Errorf("of the failed %d and %d, want 0 and 20", first, second)
	}
}

// Records are found by what they are, in the order asked for, and what there is besides is
// counted.
func TestSearch(t *testing.T) {
	r, err := New(Options{Keep: 2, Shelves: Shelves{Slowest: 2, Failed: 2, Refused: 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	now := int64(2 * time.Hour)
	add := func(id int, before, took time.Duration, how infer.Outcome, change func(*trace.Record)) {
		rec := ended(id, time.Duration(now)-before, took, how)
		if change != nil {
			change(rec)
		}
		r.Add(rec)
	}
	add(1, 17*time.Second, 9*time.Second, infer.Finished, func(r *trace.Record) { r.Model = "big" })
	add(2, 18*time.Second, 2*time.Millisecond, infer.Failed, func(r *trace.Record) {
		r.Code = "engine"
		r.Attempts = []trace.Attempt{{Legs: []trace.Leg{{Engine: "a", RequestID: "own"}}}, {Legs: []trace.Leg{{Engine: "b"}}}}
	})
	add(3, 20*time.Second, time.Millisecond, infer.Finished, nil) // nothing keeps it
	add(4, 19*time.Second, 3*time.Second, infer.Finished, nil)
	add(5, 10*time.Second, time.Millisecond, infer.Rejected, nil)
	add(6, 5*time.Second, time.Millisecond, infer.Finished, nil)
	for _, c := range []struct {
		name string
		q    Query
		want string
	}{
		{"all, the latest first", Query{}, "[6 5 1 2 4]"},
		{"by total", Query{Order: ByTotal, Limit: 2}, "[1 4]"},
		{"by first output", Query{Order: ByTTFT, Limit: 2}, "[1 4]"},
		{"of the last seconds", Query{Since: 12 * time.Second}, "[6 5]"},
		{"by model", Query{Model: "big"}, "[1]"},
		{"by an engine that failed it", Query{Engine: "a"}, "[2]"},
		{"by code", Query{Code: "engine"}, "[2]"},
		{"by outcome", Query{Outcome: "rejected"}, "[5]"},
		{"by id", Query{ID: "4"}, "[4]"},
		{"by an engine's id", Query{ID: "own"}, "[2]"},
		{"none", Query{Model: "other"}, "[]"},
	} {
		found := r.Search(c.q, now)
		ids := []string{}
		for _, f := range found.Records {
			ids = append(ids, f.RequestID)
		}
		if got := fmt.Sprint(ids); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		if found.Ended != 6 || found.Passed != 1 || found.Kept != 5 {
			t.Errorf("%s: %d ended, %d let go of, %d kept; want 6, 1, 5", c.name, found.Ended, found.Passed, found.Kept)
		}
	}
	if r.Passed() != 1 || r.Kept() != 5 {
		t.Errorf("%d let go of, %d kept", r.Passed(), r.Kept())
	}
}
