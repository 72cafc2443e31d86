package cost

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// TestPrefillPart has a rank compute prompts for others: nobody decodes there, what comes waits
// for those that are not computed, and their KV is held until it was fetched.
func TestPrefillPart(t *testing.T) {
	m := NewModel(Typical)
	r := m.Prefills().Join(1, 0)
	w := Work{Length: 4000, New: 4000, Part: PrefillPart, Unseen: true}
	own := Typical.Of(Prefill(4000, 4000, DefaultBudget))
	alone := r.Estimate(1, w)
	if math.Abs(alone.Total-own) > 1e-9 || alone.Others != 0 || alone.Decode != 0 {
		t.Errorf("alone: %+v, want %.1f ms", alone, own)
	}
	a, b := r.Book(1, w), r.Book(1, w)
	e := r.Estimate(1, w)
	if e.Decoders != 0 || e.Decode != 0 || math.Abs(e.Others-2*(Typical.Step+4000*(Typical.Token+2000*Typical.Pair))) > 1e-9 || e.Wait < own {
		t.Errorf("behind two: %+v", e)
	}
	if peers := r.Books(1); peers.InFlight != 0 || peers.Decoders != 0 || peers.Held != 8000 || peers.Drained <= 1 {
		t.Errorf("other gateways are told %+v", peers)
	}
	if r.InFlight() != 2 || r.Prefills() != 2 || r.Pending() != 8000 || r.Held() != 8000 {
		t.Errorf("%d in flight, %d prefills, %d pending, %d held", r.InFlight(), r.Prefills(), r.Pending(), r.Held())
	}
	at := int64(1 + own*millisecond)
	a.First(at, -1, 0)
	b.First(at, -1, 0)
	if e := r.Estimate(at, w); e.Others != 0 || e.Wait > 1 || r.Decoders() != 0 || r.Prefills() != 2 || r.Held() != 8000 {
		t.Errorf("with both computed: %+v, %d decode, %d kept", e, r.Decoders(), r.Prefills())
	}
	if later := m.Moment(at).Later; later != 0 {
		t.Errorf("%v come later to ranks of which none has a request", later)
	}
	a.End(at, 0)
	b.End(at, 0)
	if r.InFlight() != 0 || r.Prefills() != 0 || r.Held() != 0 || r.Pending() != 0 {
		t.Errorf("%d in flight, %d prefills, %d pending, %d held", r.InFlight(), r.Prefills(), r.Pending(), r.Held())
	}
}

// TestDecodePart has a rank generate what follows prompts of others. It waits for their KV and
// for room, which an answer needs too, and prefills nothing.
func TestDecodePart(t *testing.T) {
	r := NewModel(Typical).Join(1, 0)
	w := Work{Length: 4000, New: 1000, Output: 100, Part: DecodePart, After: 250}
	if e := r.Estimate(1, w); e.Wait != 250 || e.Prefill != 0 || e.TTFT() != 250 || e.Decode < 100*Typical.Decode || e.Others != 0 {
		t.Errorf("alone: %+v", e)
	}
	b := r.Book(1, w)
	if r.Pending() != 0 || r.Wait(1) != 0 || r.InFlight() != 1 || r.Decoders() != 0 {
		t.Errorf("%d pending, a wait of %v", r.Pending(), r.Wait(1))
	}
	// A prefill there delays it as it does any other.
	if e := r.Estimate(1, Work{Length: 1000, New: 1000}); e.Decoders != 1 || e.Others == 0 {
		t.Errorf("a prompt beside it: %+v", e)
	}
	b.First(1+300*millisecond, -1, 0)
	r.Tokens(1+300*millisecond, 1)
	if r.Decoders() != 1 {
		t.Errorf("%d decode", r.Decoders())
	}
	now := int64(1 + 300*millisecond)
	for range 50 {
		now += 7 * millisecond
		r.Tokens(now, 1)
	}
	b.End(now, 51)
	if c, seen := r.Coefficients(); seen != 1 || math.Abs(c.Step/Typical.Step-1)+math.Abs(c.Token/Typical.Token-1) > 1e-9 {
		t.Errorf("learned %+v of %d", c, seen)
	}
	r.SetRoom(Room{KV: 5000, InUse: 3950})
	if e := r.Estimate(now, w); e.Room == 0 || e.Wait <= e.Room && e.Wait != 250 && e.Wait != e.Room {
		t.Errorf("without room for the answer: %+v", e)
	}
	if e := r.Estimate(now, Work{Length: 4000, New: 1000, Part: DecodePart, After: 250}); e.Room != 0 {
		t.Errorf("with room: %+v", e)
	}
}

// TestFill has a decode rank that has computed no prompt: how long it would take is known from
// those that compute them.
func TestFill(t *testing.T) {
	m := NewModel(Typical)
	p, d := m.Prefills().Join(1, 0), m.Join(1, 0)
	slow := Typical
	slow.Step, slow.Token, slow.Pair = 3*slow.Step, 3*slow.Token, 3*slow.Pair
	now := int64(1)
	for i := range 60 {
		n := 500 + i*397%4000
		b := p.Book(now, Work{Length: n, New: n, Part: PrefillPart})
		fetched := d.Book(now, Work{Length: n, New: n, Output: 8, Part: DecodePart})
		now += int64(slow.Of(Prefill(float64(n), float64(n), DefaultBudget)) * millisecond)
		b.First(now, -1, 0)
		now += 10 * millisecond
		fetched.First(now, -1, 0)
		d.Tokens(now, 1)
		b.End(now, 0)
		for range 8 {
			now += int64((slow.Decode + slow.Decoder) * millisecond)
			d.Tokens(now, 1)
		}
		fetched.End(now, 9)
	}
	whole := Work{Length: 3000, New: 3000, Output: 10}
	want := slow.Of(Prefill(3000, 3000, DefaultBudget))
	if e := d.Estimate(now, whole); math.Abs(e.Prefill-want) > 0.15*want {
		t.Errorf("%.1f ms are predicted where a prompt takes %.1f", e.Prefill, want)
	}
	if e := m.Join(now, 0).Estimate(now, whole); math.Abs(e.Prefill-want) > 0.15*want {
		t.Errorf("%.1f ms are predicted for one that has just come, where a prompt takes %.1f", e.Prefill, want)
	}
}

// TestBooksOfHalves has whatever happens to requests and halves of them leave nothing in the
// books.
func TestBooksOfHalves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := NewModel(Typical)
		r := m.Join(1, 0)
		now := int64(1)
		type request struct {
			*Booking
			first  bool
			unseen bool // nothing shows itself of it until its end
		}
		var open []*request
		tokens := map[*request]int{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += rapid.Int64Range(0, 50*millisecond).Draw(t, "later")
			switch k := rapid.IntRange(0, 3).Draw(t, "event"); {
			case k == 0 || len(open) == 0:
				n := rapid.IntRange(1, 5000).Draw(t, "prompt")
				w := Work{Length: n, New: rapid.IntRange(1, n).Draw(t, "new"), Output: 20, Part: Part(rapid.IntRange(0, 2).Draw(t, "part")), Unseen: rapid.Bool().Draw(t, "unseen")}
				if w.Part == DecodePart {
					w.After = 30
				}
				open = append(open, &request{Booking: r.Book(now, w), unseen: w.Unseen && w.Part != PrefillPart})
			default:
				i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
				o := open[i]
				switch {
				case k == 1 && !o.first && !o.unseen:
					o.first = true
					o.First(now, -1, 0)
				case k == 2 && o.first:
					r.Tokens(now, 1)
					tokens[o]++
				case k == 3:
					o.End(now, tokens[o])
					open = append(open[:i], open[i+1:]...)
				}
			}
			if e := r.Estimate(now, Work{Length: 10, New: 10, Output: 5}); !(e.Total >= 0) || e.Decoders < 0 {
				t.Fatalf("%+v", e)
			}
			var sum Amount
			for _, b := range r.queue {
				sum.Tokens, sum.Pairs = sum.Tokens+b.left, sum.Pairs+b.pairs()
			}
			if r.sum != sum {
				t.Fatalf("%+v are left of %d prompts, want %+v", r.sum, len(r.queue), sum)
			}
		}
		for _, o := range open {
			o.End(now, tokens[o])
		}
		if r.InFlight() != 0 || r.Prefills() != 0 || r.Decoders() != 0 || r.Pending() != 0 || r.Held() != 0 || r.unfilled.Load() != 0 || len(r.queue) != 0 || m.own.Load() != 0 {
			t.Fatalf("%d in flight, %d prefills, %d unfilled, %d decoders, %d pending, %d held, %d queued, %d of the model's",
				r.InFlight(), r.Prefills(), r.unfilled.Load(), r.Decoders(), r.Pending(), r.Held(), len(r.queue), m.own.Load())
		}
	})
}
