package cost_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/fleet/cost"
)

const room = 1e6 // nanoseconds of a millisecond

func newRoom(l cost.Limits, budget int) *cost.Rank {
	r := cost.NewModel(cost.Typical).Join(0, budget)
	r.SetLimits(l)
	return r
}

var short = cost.Work{Length: 100, New: 100, Output: 50}

// A rank of which nobody knows how much it takes takes everything.
func TestFitsWithoutLimits(t *testing.T) {
	for _, l := range []cost.Limits{{}, {Running: -5}} {
		r := newRoom(l, 0)
		for range 1000 {
			if !r.Fits(0, 1) {
				t.Fatalf("%+v: it is full", l)
			}
			r.Book(0, cost.Work{Length: 100_000, New: 100_000})
		}
	}
}

// The bound binds, whatever a request is, and one that is larger than the bound gets in
// alone.
func TestFitsRunning(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, 10).Draw(t, "most")
		r := newRoom(cost.Limits{Running: most, Strict: true}, 0)
		var open []*cost.Booking
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			if rapid.Bool().Draw(t, "comes") {
				n := rapid.IntRange(1, 4).Draw(t, "answers")
				before := int(r.InFlight())
				if !r.Fits(0, n) {
					if before == 0 || before+n <= most {
						t.Fatalf("%d of %d are there, and %d more do not fit", before, most, n)
					}
					continue
				}
				if before > 0 && before+n > most {
					t.Fatalf("%d of %d are there, and %d more fit", before, most, n)
				}
				for range n {
					open = append(open, r.Book(0, short))
				}
			} else if len(open) > 0 {
				i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
				open[i].End(0, 0)
				open = append(open[:i], open[i+1:]...)
			}
		}
	})
}

// An engine that says itself how many it runs is given a few more.
func TestFitsAhead(t *testing.T) {
	for _, c := range []struct{ running, most int }{{1, 2}, {16, 17}, {256, 272}} {
		r := newRoom(cost.Limits{Running: c.running}, 0)
		n := 0
		for ; r.Fits(0, 1) && n < 1000; n++ {
			r.Book(0, short)
		}
		if n != c.most {
			t.Errorf("one that runs %d was given %d, want %d", c.running, n, c.most)
		}
	}
}

// It is given as many as end in two steps, where those are more than a few, so that each place
// is taken by the next step; and no more than can end.
func TestFitsTurnover(t *testing.T) {
	for _, c := range []struct{ running, tokens, most int }{{256, 0, 512}, {256, 1, 512}, {256, 2, 512}, {256, 16, 288}, {256, 400, 272}, {1, 1, 2}} {
		r := newRoom(cost.Limits{Running: c.running}, 0)
		for range 60 {
			b := r.Book(0, short)
			b.First(10*room, 0, 0)
			r.Tokens(20*room, c.tokens)
			b.End(20*room, c.tokens)
		}
		n := 0
		for ; r.Fits(20*room, 1) && n < 1000; n++ {
			r.Book(20*room, short)
		}
		if n != c.most {
			t.Errorf("one that runs %d, of %d tokens each, was given %d, want %d", c.running, c.tokens, n, c.most)
		}
	}
	r := newRoom(cost.Limits{Running: 64, Strict: true}, 0)
	b := r.Book(0, short)
	b.First(10*room, 0, 0)
	b.End(10*room, 1)
	for r.Fits(20*room, 1) {
		r.Book(20*room, short)
	}
	if n := r.InFlight(); n != 64 {
		t.Errorf("one that may have 64 was given %d", n)
	}
}

// lastOne ends the first of requests that run, after 800 ms.
func lastOne(open []*cost.Booking) {
	for _, b := range open {
		b.First(10*room, 0, 0)
	}
	open[0].End(810*room, 50)
}

// Who waits for a place where as many run as may keeps it from others for as long as it takes
// until the next one is free, and nobody where there is a place.
func TestTurn(t *testing.T) {
	r := newRoom(cost.Limits{Running: 4, Strict: true}, 0)
	var open []*cost.Booking
	for range 4 {
		if ms := r.Turn(); ms != 0 {
			t.Fatalf("%d of 4 are there, and the next place is free after %v ms", len(open), ms)
		}
		open = append(open, r.Book(0, short))
	}
	lastOne(open)
	r.Book(810*room, short)
	if ms := r.Turn(); ms != 200 {
		t.Errorf("4 run 800 ms each, and a place is free each %v ms", ms)
	}
	if ms := newRoom(cost.Limits{}, 0).Turn(); ms != 0 {
		t.Errorf("where nobody knows how many run: %v ms", ms)
	}
}

// Requests that an engine is given beside those that it runs wait there until others end.
func TestPlace(t *testing.T) {
	r := newRoom(cost.Limits{Running: 2}, 0)
	var open []*cost.Booking
	for range 2 {
		if ms := r.Place(); ms != 0 {
			t.Fatalf("%d of 2 run, and the next waits %v ms for its place", len(open), ms)
		}
		open = append(open, r.Book(0, short))
	}
	lastOne(open)
	for i, want := range []float64{0, 800, 400 * (2 + math.Sqrt2)} {
		if ms := r.Place(); math.Abs(ms-want) > 1e-9 {
			t.Errorf("%d are there, of which 2 run: the next waits %v ms for its place, want %v", i+1, ms, want)
		}
		r.Book(810*room, short)
	}
	if ms := newRoom(cost.Limits{}, 0).Place(); ms != 0 {
		t.Errorf("where nobody knows how many run: %v ms", ms)
	}
}

// About two steps of prompts are given to a rank whose budget is known. As they are predicted
// to be computed there is room again, and when that is, is told.
func TestFitsPrefill(t *testing.T) {
	r := newRoom(cost.Limits{Budget: true}, 2048)
	n := 0
	for ; r.Fits(0, 1); n++ {
		r.Book(0, cost.Work{Length: 512, New: 512})
	}
	if n < 7 || n > 10 {
		t.Fatalf("%d prompts of 512 tokens for steps of 2048, want about 8", n)
	}
	// Only the oldest can have been computed unseen.
	if at := r.Frees(0); at != 0 && !r.Fits(at, 1) {
		t.Errorf("it has no room at %d, when it was to have", at)
	}
	one := newRoom(cost.Limits{Budget: true}, 2048)
	one.Book(0, cost.Work{Length: 40_960, New: 40_960})
	at := one.Frees(0)
	if at == 0 || one.Fits(at-room, 1) || !one.Fits(at, 1) {
		t.Errorf("one of 20 steps leaves room at %d, and fits then %t, before %t", at, one.Fits(at, 1), one.Fits(at-room, 1))
	}
}

// The claims of requests that wait elsewhere are in no estimate, but in what is claimed.
func TestClaim(t *testing.T) {
	r := newRoom(cost.Limits{}, 0)
	before := r.Estimate(0, short)
	r.Claim(30)
	r.Claim(0.1)
	r.Claim(-0.1)
	if after := r.Estimate(0, short); after != before || r.Claimed() != 30 {
		t.Errorf("claimed %v, and the estimate is %+v", r.Claimed(), after)
	}
	if r.Claim(-30); r.Claimed() != 0 {
		t.Errorf("%v left", r.Claimed())
	}
}

// learner is an engine that runs so many requests at once and says nothing of that.
type learner struct {
	rank    *cost.Rank
	runs    int
	now     int64
	running []*cost.Booking
	waiting []*cost.Booking
}

const prefillMS = 20

// give gives it a request.
func (l *learner) give() {
	b := l.rank.Book(l.now, short)
	if len(l.running) < l.runs {
		l.start(b)
	} else {
		l.waiting = append(l.waiting, b)
	}
}

func (l *learner) start(b *cost.Booking) {
	l.now += prefillMS * room
	b.First(l.now, -1, 0)
	l.running = append(l.running, b)
}

// end ends the oldest after it has run for long.
func (l *learner) end() {
	l.now += 300 * room
	l.rank.Tokens(l.now, 50)
	l.running[0].End(l.now, 50)
	l.running = l.running[1:]
	if len(l.waiting) > 0 {
		b := l.waiting[0]
		l.waiting = l.waiting[1:]
		l.start(b)
	}
}

// Where an engine says nothing, how many it runs at once is learned from where its waiting
// begins, and forgotten when nothing confirms it. Until it waits, it is given everything.
func TestLearnsRunning(t *testing.T) {
	l := &learner{rank: newRoom(cost.Limits{}, 0), runs: 12, now: room}
	for range 40 { // until what a request takes is known
		l.give()
		l.end()
	}
	if n := l.rank.Learned(); n != 0 {
		t.Fatalf("it learned %d when nothing waited", n)
	}
	for range 12 {
		l.give()
	}
	if !l.rank.Fits(l.now, 1) || l.rank.Learned() != 0 {
		t.Fatal("it is full, and nothing has waited")
	}
	held := 0
	for range 200 {
		for i := 0; i < 3; i++ {
			if l.rank.Fits(l.now, 1) {
				l.give()
			} else {
				held++
			}
		}
		l.end()
	}
	if n := l.rank.Learned(); n < 10 || n > 13 {
		t.Errorf("it learned %d of one that runs 12", n)
	}
	if held == 0 || len(l.waiting) > 5 {
		t.Errorf("%d were held, and %d wait at the engine", held, len(l.waiting))
	}
	for l.rank.Fits(l.now, 1) {
		l.give()
	}
	l.rank.SetRoom(cost.Room{KV: 1 << 20})
	if e := l.rank.Estimate(l.now, cost.Work{Length: 10, New: 10, Output: 50}); e.Room <= 0 {
		t.Errorf("another one waits for no place: %+v", e)
	}
	// It runs more from now on.
	l.runs = 30
	for range 300 {
		for l.rank.Fits(l.now, 1) {
			l.give()
		}
		l.end()
	}
	if n := l.rank.Learned(); n < 28 && n != 0 {
		t.Errorf("it learned %d of one that runs 30", n)
	}
	for len(l.running) > 0 {
		l.end()
	}
	l.now += 100e9
	for range 3 {
		l.give()
		l.end()
	}
	if n := l.rank.Learned(); n != 0 {
		t.Errorf("it still believes %d", n)
	}
}
