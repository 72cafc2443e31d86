package health

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const (
	ms     = int64(time.Millisecond)
	second = int64(time.Second)
)

// witness is what a history shows of one rank, kept without the package's help.
type witness struct {
	open     []*Request
	probes   []int64 // on the witness's clock, when they were sent
	shown    int64   // when it showed progress last, or had a reason for none
	cuts     int
	faults   int
	refused  bool
	nobody   bool // a probe of the engine was refused last
	failed   bool // a probe has failed just now
	state    State
	present  bool
	drained  bool
	returned bool // by one request, and that has shown nothing yet
	unproved bool // and none has ended well since

	// On the witness's clock: when the sample was sent that is waited for, and nothing spoke
	// for the rank since; when the next one may be; when a probe was answered last.
	sampled, next, fenced int64
	mute                  bool // it is down for its samples
	released              bool // it was not to be down any longer, whatever it showed
}

// history is a fleet under random events.
type history struct {
	t     *rapid.T
	fleet *Fleet
	ranks []*Rank
	seen  map[*Rank]*witness
	now   int64
	tick  int64 // when the latest was
	clock int64 // how much of the time the gateway was there to see
}

func newHistory(t *rapid.T) *history {
	h := &history{t: t, fleet: NewFleet(Limits{}, 0), seen: map[*Rank]*witness{}}
	models := []string{"m", "k"}
	for i := range rapid.IntRange(1, 4).Draw(t, "engines") {
		serves := models[:1]
		if len(h.ranks) > 0 {
			from := rapid.IntRange(0, 1).Draw(t, "from")
			serves = models[from:rapid.IntRange(from+1, 2).Draw(t, "to")]
		}
		generates := rapid.Bool().Draw(t, "generates")
		n := rapid.IntRange(1, 2).Draw(t, "ranks")
		for j := range n {
			r := h.fleet.Add(Member{Engine: fmt.Sprint("e", i), Rank: j, Serves: serves, Generates: generates, Samples: !generates && rapid.Bool().Draw(t, "samples")})
			h.ranks = append(h.ranks, r)
			h.seen[r] = &witness{}
			h.join(r, true)
		}
	}
	return h
}

func (h *history) rank() (*Rank, *witness) {
	r := rapid.SampledFrom(h.ranks).Draw(h.t, "rank")
	return r, h.seen[r]
}

// request draws an unfinished request of a rank, or nil.
func (h *history) request(w *witness) *Request {
	if len(w.open) == 0 {
		return nil
	}
	return w.open[rapid.IntRange(0, len(w.open)-1).Draw(h.t, "request")]
}

func (h *history) join(r *Rank, fresh bool) {
	w := h.seen[r]
	if !w.present {
		w.probes = nil
		if fresh {
			w.shown, w.cuts, w.faults = h.clock, 0, 0
		}
		w.sampled = 0
	}
	w.present = true
	r.Joined(h.now, fresh)
}

func (h *history) hand(r *Rank, work float64) {
	w, q := h.seen[r], new(Request)
	if len(w.open) == 0 && r.state == Up {
		w.shown = max(w.shown, h.clock)
	}
	w.open = append(w.open, q)
	r.HandedOver(q, h.now, work)
}

func (h *history) end(r *Rank, q *Request, how End) {
	w := h.seen[r]
	w.open = slices.DeleteFunc(w.open, func(x *Request) bool { return x == q })
	switch how {
	case Done:
		w.progress(h.clock)
		w.faults, w.unproved = 0, false
	case Cut:
		w.cuts++
	case Fault:
		w.faults++
	case Refused:
		w.refused = true
	}
	q.Ended(h.now, how)
}

func (h *history) pass(d, late int64) {
	h.now += d
	on := h.now - h.tick
	if on > 200*ms {
		on = 100 * ms
	}
	h.clock += max(on-late, 0)
	h.tick = h.now
	for _, p := range h.fleet.Tick(h.now, time.Duration(late)) {
		w := h.seen[p.Rank]
		if p.Sample {
			h.sampled(p, w)
			continue
		}
		w.probes = append(w.probes, h.clock)
	}
}

// progress takes down that the rank has shown some.
func (w *witness) progress(clock int64) {
	w.shown, w.cuts, w.refused, w.returned, w.sampled = clock, 0, false, false, 0
}

// sampled holds a sample to what must hold: it is of a rank that has owed progress for long,
// or first tokens, or is down for its samples; and they are two seconds apart.
func (h *history) sampled(p Probe, w *witness) {
	silent := h.clock - w.shown
	may := w.mute // down
	if p.Rank.state != Down {
		may = p.Rank.state == Soft && (silent >= second-200*ms || p.Rank.cause == byStarts || w.released) && h.clock >= w.next
		w.next = h.clock + 2*second - 300*ms
	}
	if !p.Beside {
		w.sampled = h.clock
		may = may && p.Patience >= 10*time.Second-200*time.Millisecond
	}
	if !p.Rank.Samples || !may || p.Patience < time.Second {
		h.t.Fatalf("%v, %v, silent for %v, is sampled: %+v; now is %v, %+v", p.Rank, p.Rank.state, time.Duration(silent), p, h.clock, w)
	}
}

func (h *history) answer(r *Rank, result Result) {
	w := h.seen[r]
	if len(w.probes) == 0 {
		return
	}
	w.probes = w.probes[1:]
	w.failed = result == Failed || result == Nobody
	if result == Answered {
		w.fenced = h.clock
	}
	for x, y := range h.seen {
		if result == Nobody && x.Engine == r.Engine {
			y.nobody = true
		}
	}
	r.Probed(h.now, result, "said so")
	if result != Nobody && w.present {
		w.nobody = false
	}
}

// events are all that can happen.
func (h *history) events() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"hand": func(t *rapid.T) {
			r, _ := h.rank()
			h.hand(r, rapid.Float64Range(-1, 8000).Draw(t, "work"))
		},
		"start": func(*rapid.T) {
			r, w := h.rank()
			if q := h.request(w); q != nil && !q.started {
				w.progress(h.clock)
				q.Started(h.now)
			}
			_ = r
		},
		"sent": func(*rapid.T) {
			_, w := h.rank()
			if q := h.request(w); q != nil {
				q.Sent(h.now, 0) // long ago: nothing of its wait was ours
			}
		},
		"progress": func(t *rapid.T) {
			r, w := h.rank()
			n := rapid.IntRange(0, 2).Draw(t, "tokens")
			if n > 0 {
				w.progress(h.clock)
			}
			r.Progressed(h.now, n, rapid.Float64Range(-1, 20_000).Draw(t, "left"))
		},
		"end": func(t *rapid.T) {
			r, w := h.rank()
			if q := h.request(w); q != nil {
				h.end(r, q, rapid.SampledFrom([]End{Done, GaveUp, Overload, Rejected, Refused, Cut, Fault, Cut, Fault, Fault}).Draw(t, "end"))
			}
		},
		"tick": func(t *rapid.T) {
			late := int64(0)
			d := rapid.Int64Range(1, 200).Draw(t, "ms") * ms
			if rapid.IntRange(0, 9).Draw(t, "is late") == 0 {
				late = rapid.Int64Range(0, d).Draw(t, "late")
			}
			h.pass(d, late)
		},
		"wait": func(t *rapid.T) {
			for range rapid.IntRange(1, 150).Draw(t, "ticks") {
				h.pass(100*ms, 0)
				h.check()
			}
		},
		"mute": func(t *rapid.T) { // its probes are answered, and nothing else
			r, w := h.rank()
			h.hand(r, 10)
			for range rapid.IntRange(100, 400).Draw(t, "ticks") {
				h.pass(100*ms, 0)
				h.check()
				for len(w.probes) > 0 {
					h.answer(r, Answered)
				}
			}
		},
		"pause": func(t *rapid.T) { h.pass(rapid.Int64Range(1, 100).Draw(t, "s")*second, 0) },
		"probe": func(t *rapid.T) {
			r, _ := h.rank()
			h.answer(r, rapid.SampledFrom([]Result{Answered, Busy, Failed, Failed, Nobody}).Draw(t, "result"))
		},
		"sample": func(t *rapid.T) {
			r, w := h.rank()
			if w.sampled > 0 {
				w.sampled = 0
				r.Sampled(h.now, rapid.SampledFrom([]Result{Answered, Busy, Failed, Nobody}).Draw(t, "result"))
			}
		},
		"leave": func(*rapid.T) {
			r, w := h.rank()
			w.present = false
			r.Left(h.now)
		},
		"join": func(t *rapid.T) {
			r, _ := h.rank()
			h.join(r, rapid.Bool().Draw(t, "fresh"))
		},
		"drain": func(*rapid.T) {
			r, w := h.rank()
			w.drained = true
			r.Drain(h.now, "by command")
		},
		"undrain": func(*rapid.T) {
			r, w := h.rank()
			if w.drained {
				w.shown, w.cuts, w.faults = h.clock, 0, 0
			}
			w.drained = false
			r.Undrain(h.now, "by command")
		},
		"alive": func(*rapid.T) {
			r, w := h.rank()
			w.sampled = 0
			r.Alive(h.now)
		},
		"": func(*rapid.T) { h.check() },
	}
}

// check holds what has changed, and what is, to what must hold.
func (h *history) check() {
	changes := h.fleet.Changes()
	for i, c := range changes {
		w := h.seen[c.Rank]
		if c.From == Down && c.To == Suspect && slices.ContainsFunc(changes[:i], func(x Change) bool { return x.Rank == c.Rank && x.To == Down }) {
			h.t.Fatalf("%v, but was to be spared in the first place", c)
		}
		if c.From != w.state || c.Why == "" {
			h.t.Fatalf("%v, but it was %v", c, w.state)
		}
		w.state = c.To
		w.mute = false
		w.released = c.From == Down && c.To == Suspect || w.released && c.To != Up
		if c.To == Down {
			h.judged(c, w)
			w.mute = strings.Contains(c.Why, ofSample)
		}
		if strings.HasSuffix(c.Why, "it gets one request") {
			w.returned, w.unproved, w.probes = true, true, nil
		}
	}
	for _, w := range h.seen {
		w.failed = false
	}
	for _, model := range []string{"m", "k"} {
		might, some := false, false
		for _, r := range h.ranks {
			w := h.seen[r]
			if !r.serves(model) || !w.present || w.drained {
				continue
			}
			might = might || r.state == Down && !w.nobody
			some = some || r.state != Down
		}
		if might && !some {
			h.t.Fatalf("all that might serve %s are down", model)
		}
	}
	for r, w := range h.seen {
		takes := r.Takes()
		if gone := !w.present || r.state == Down || r.state == Draining; gone != (takes == Never) {
			h.t.Fatalf("%v is %v and takes %v", r, r.state, takes)
		}
		if v := r.View(); v.Open != len(w.open) || v.State != w.state {
			h.t.Fatalf("%v has %+v, and %d requests", r, v, len(w.open))
		}
	}
}

// ofSample is in the reason of a rank that is down for its samples.
const ofSample = "a request of weir's own was not answered"

// judged holds a rank that went down to its two reasons.
func (h *history) judged(c Change, w *witness) {
	r := c.Rank
	cuts, faults := w.cuts, w.faults
	if w.returned {
		cuts *= 3
	}
	if w.unproved {
		faults *= 3
	}
	unanswered := len(w.probes) > 0 && h.clock-w.probes[0] >= 10*second-200*ms
	silent := h.clock-w.shown >= second-200*ms
	seen := silent && (w.failed || h.clock-w.shown >= 10*second-200*ms) || cuts >= 3 || faults >= 3 || w.refused
	if strings.Contains(c.Why, ofSample) {
		// Its probe was answered after all that time, and nothing spoke for it.
		unanswered = r.Samples && w.sampled > 0 && h.clock-w.sampled >= 10*second-200*ms && w.fenced-w.sampled >= 10*second-200*ms
		if !unanswered {
			h.t.Fatalf("%v at %v, sampled at %v, its probe answered at %v", c, h.clock, w.sampled, w.fenced)
		}
	}
	probed := unanswered || w.failed || faults >= 3 && !r.Generates
	if r.ejection.refused {
		seen, probed = seen || w.nobody, w.nobody
	}
	if !seen || !probed {
		h.t.Fatalf("%v at %v, but silent for %v, %d cuts, %d faults in a row, refused %v; probes %v at %v, failed %v",
			c, time.Duration(h.now), time.Duration(h.clock-w.shown), w.cuts, w.faults, w.refused, w.probes, h.clock, w.failed)
	}
	for _, model := range r.Serves {
		total, judged := 0, 0
		for _, x := range h.ranks {
			if y := h.seen[x]; x.serves(model) && y.present && !y.drained {
				total++
				if x.state == Down && !x.ejection.refused {
					judged++
				}
			}
		}
		if !r.ejection.refused && judged > max(1, total/2) {
			h.t.Fatalf("%v, and %d of %d are down by judgement", c, judged, total)
		}
	}
}

// TestJudgement holds random histories to what the package promises: never all out,
// never one out without its two reasons.
func TestJudgement(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t)
		t.Repeat(h.events())
	})
}

// TestAlwaysBack gives engines a random past, and from then on they work. All of them
// take all requests again.
func TestAlwaysBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t)
		t.Repeat(h.events())
		for _, r := range h.ranks {
			h.join(r, rapid.Bool().Draw(t, "fresh"))
			h.seen[r].drained = false
			r.Undrain(h.now, "by command")
		}
		for range 1200 {
			h.pass(100*ms, 0)
			h.check()
			for _, r := range h.ranks {
				w := h.seen[r]
				for len(w.probes) > 0 {
					h.answer(r, Answered)
				}
				if w.sampled > 0 {
					w.sampled = 0
					r.Sampled(h.now, Answered)
				}
				for len(w.open) > 0 {
					q := w.open[0]
					w.shown = h.clock
					q.Started(h.now)
					h.end(r, q, Done)
				}
				if r.Takes() == Freely {
					h.hand(r, 10)
				}
			}
			h.check()
		}
		for _, r := range h.ranks {
			if v := r.View(); v.State != Up || v.Takes != Freely || v.Limit >= 0 {
				t.Fatalf("%v has not come back: %+v", r, v)
			}
		}
	})
}

// TestOurLateness lets honest engines serve gateways that stand still and read late. No
// engine is ever down.
func TestOurLateness(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{}
		for i := range rapid.IntRange(1, 3).Draw(t, "engines") {
			e := &simEngine{
				name: fmt.Sprint("e", i), serves: []string{"m"}, generates: rapid.Bool().Draw(t, "generates"),
				step:    time.Duration(rapid.IntRange(10, 8000).Draw(t, "step ms")) * time.Millisecond,
				prefill: time.Duration(rapid.IntRange(1, 1000).Draw(t, "prefill ms")) * time.Millisecond,
			}
			// The time that a step takes beside the prefills is work, too.
			e.predict = float64((e.step + e.prefill).Milliseconds())
			e.samples = !e.generates && rapid.Bool().Draw(t, "samples")
			w.engine(e, rapid.IntRange(1, 2).Draw(t, "ranks"))
		}
		for i := range rapid.IntRange(1, 2).Draw(t, "gateways") {
			g := w.gateway(fmt.Sprint("g", i), Limits{})
			g.every = time.Duration(rapid.IntRange(200, 5000).Draw(t, "every ms")) * time.Millisecond
			g.tokens = rapid.IntRange(1, 30).Draw(t, "tokens")
			g.patience = time.Duration(rapid.IntRange(500, 60_000).Draw(t, "patience ms")) * time.Millisecond
		}
		for _, e := range w.engines {
			// A probe that generates, and a sample, waits behind the other gateway's requests.
			e.counted = e.generates || len(w.gateways) > 1
		}
		w.log = func(line string) {
			for _, g := range w.gateways {
				for _, r := range g.ranks {
					if r.state == Down {
						t.Fatalf("an honest engine is down: %s", line)
					}
				}
			}
		}
		for range rapid.IntRange(1, 6).Draw(t, "phases") {
			g := rapid.SampledFrom(w.gateways).Draw(t, "gateway")
			switch rapid.SampledFrom([]string{"pause", "behind", "fine"}).Draw(t, "phase") {
			case "pause":
				g.paused = w.now + int64(rapid.IntRange(1, 90).Draw(t, "s"))*second
			case "behind":
				g.behind = time.Duration(rapid.IntRange(1, 20).Draw(t, "s")) * time.Second
			case "fine":
				g.behind = 0
			}
			w.run(time.Duration(rapid.IntRange(1, 60).Draw(t, "run s")) * time.Second)
		}
	})
}

// TestHungIsAvoided hangs one engine of several. A second after its last progress it is
// given nothing more, and it is down by the two bounds.
func TestHungIsAvoided(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{}
		for i := range rapid.IntRange(2, 4).Draw(t, "engines") {
			w.engine(&simEngine{
				name: fmt.Sprint("e", i), serves: []string{"m"}, generates: rapid.Bool().Draw(t, "generates"),
				step:    time.Duration(rapid.IntRange(10, 100).Draw(t, "step ms")) * time.Millisecond,
				prefill: 20 * time.Millisecond, predict: 20,
			}, 1)
		}
		g := w.gateway("g", Limits{})
		g.every = time.Duration(rapid.IntRange(20, 200).Draw(t, "every ms")) * time.Millisecond
		g.tokens = rapid.IntRange(20, 60).Draw(t, "tokens")
		w.run(10 * time.Second)
		hung := w.engines[0]
		hung.ranks[0].hung = true
		w.run(2 * time.Second)
		g.tally()
		w.run(28 * time.Second)
		if n := g.sent[hung.name]; n > 0 {
			t.Fatalf("%d requests later than 2 s after it hung", n)
		}
		if state := stateOf(g.fleet, hung.name); state != Down {
			t.Fatalf("it is %v after 30 s", state)
		}
		for _, e := range w.engines[1:] {
			if state := stateOf(g.fleet, e.name); state != Up {
				t.Fatalf("%s is %v", e.name, state)
			}
		}
		hung.heal()
		w.run(5 * time.Second)
		if g.sent[hung.name] == 0 {
			t.Fatal("it is not back 5 s after it recovered")
		}
	})
}

// TestMuteIsOut has one engine of several begin no request, or answer none, while its loop
// goes on. It is given nothing more, is down by the two bounds, and comes back.
func TestMuteIsOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{}
		for i := range rapid.IntRange(2, 4).Draw(t, "engines") {
			w.engine(&simEngine{
				name: fmt.Sprint("e", i), serves: []string{"m"}, samples: true, counted: rapid.Bool().Draw(t, "counted"),
				step:    time.Duration(rapid.IntRange(10, 100).Draw(t, "step ms")) * time.Millisecond,
				prefill: 20 * time.Millisecond, predict: 20,
			}, 1)
		}
		g := w.gateway("g", Limits{})
		g.every = time.Duration(rapid.IntRange(50, 200).Draw(t, "every ms")) * time.Millisecond
		g.tokens = rapid.IntRange(20, 60).Draw(t, "tokens")
		g.patience = time.Duration(rapid.IntRange(2000, 60_000).Draw(t, "patience ms")) * time.Millisecond
		w.run(10 * time.Second)
		mute := w.engines[0]
		if rapid.Bool().Draw(t, "begins none") {
			mute.ranks[0].noStart = true
		} else {
			mute.ranks[0].mute, mute.ranks[0].hung = true, true
		}
		w.run(time.Duration(g.tokens)*mute.step + 2*time.Second) // those that run there end
		g.tally()
		w.run(21 * time.Second)
		if n := g.sent[mute.name]; n > 0 {
			t.Fatalf("%d requests when that could be known", n)
		}
		if state := stateOf(g.fleet, mute.name); state != Down {
			t.Fatalf("it is %v after 20 s", state)
		}
		for _, e := range w.engines[1:] {
			if state := stateOf(g.fleet, e.name); state != Up {
				t.Fatalf("%s is %v", e.name, state)
			}
		}
		mute.heal()
		w.run(5 * time.Second)
		if g.sent[mute.name] == 0 {
			t.Fatal("it is not back 5 s after it recovered")
		}
	})
}

// TestNothingAllocated holds the events of a request to no allocation.
func TestNothingAllocated(t *testing.T) {
	f := NewFleet(Limits{}, 0)
	r := f.Add(Member{Engine: "e", Rank: -1, Serves: []string{"m"}})
	r.Joined(0, true)
	now := int64(0)
	q := new(Request)
	if n := testing.AllocsPerRun(100, func() {
		now += 10 * ms
		r.HandedOver(q, now, 10)
		q.Sent(now, now)
		q.Started(now)
		r.Progressed(now, 3, 20)
		f.Tick(now, 0)
		if r.Takes() != Freely {
			t.Error("it takes nothing")
		}
		q.Ended(now, Done)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
