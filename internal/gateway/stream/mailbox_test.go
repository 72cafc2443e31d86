package stream

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"weir/internal/infer"
)

// logprobsOf makes up the log probabilities of ids: whose they are shows in them.
func logprobsOf(top *int, ids []uint32) *infer.Logprobs {
	if top == nil {
		return nil
	}
	l := new(infer.Logprobs)
	for _, id := range ids {
		l.Own = append(l.Own, -float32(id))
		for k := range *top {
			l.TopIDs = append(l.TopIDs, id+uint32(k))
			l.Top = append(l.Top, -float32(id)-float32(k)/32)
		}
	}
	return l
}

// checkLogprobs compares those of a cell with what was made up for its ids.
func checkLogprobs(t *rapid.T, top *int, c *Cell) {
	want := logprobsOf(top, c.IDs)
	if (c.Logprobs == nil) != (want == nil) {
		t.Fatalf("log probabilities %v of ids %v, want %v", c.Logprobs, c.IDs, want)
	}
	if want != nil && !(slices.Equal(c.Logprobs.Own, want.Own) && slices.Equal(c.Logprobs.TopIDs, want.TopIDs) && slices.Equal(c.Logprobs.Top, want.Top)) {
		t.Fatalf("log probabilities %v of ids %v, want %v", *c.Logprobs, c.IDs, *want)
	}
}

func delta(attempt uint32, total int, ids ...uint32) *infer.Delta {
	return &infer.Delta{Attempt: attempt, IDs: ids, Total: total, Received: 1}
}

// Any interleaving of offers, takes and abandoned attempts gives exactly the
// ids of the last attempt, in order.
func TestMailboxIsLossless(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := New(1, 1<<20, nil, nil)
		var want, got []uint32
		var used []Cell
		var finished bool
		next := uint32(0)
		attempt := m.NextAttempt()
		take := func() {
			cells := m.Take(used)
			for i := range cells {
				got = append(got, cells[i].IDs...)
				if cells[i].Total != len(got) {
					t.Fatalf("total %d after %d ids", cells[i].Total, len(got))
				}
				finished = finished || cells[i].Finish != nil
			}
			if cells != nil {
				used = cells
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "ops") {
			switch rapid.IntRange(0, 5).Draw(t, "op") {
			case 0, 1, 2:
				ids := make([]uint32, rapid.IntRange(0, 5).Draw(t, "n"))
				for i := range ids {
					next++
					ids[i] = next
				}
				want = append(want, ids...)
				m.Offer(delta(attempt, len(want), ids...))
				clear(ids) // the mailbox must have copied
			case 3:
				take()
			case 4: // an abandoned attempt's delta must leave no trace
				m.Offer(delta(attempt-1, 99, 7, 7, 7))
			case 5:
				if rapid.IntRange(0, 9).Draw(t, "again") == 0 {
					attempt = m.NextAttempt()
					want, got = want[:0], got[:0]
				}
			}
		}
		d := delta(attempt, len(want))
		d.Finish = &infer.Finish{Reason: infer.ReasonStop}
		m.Offer(d)
		take()
		if !slices.Equal(got, want) || !finished {
			t.Fatalf("got %v (finished %t), want %v", got, finished, want)
		}
	})
}

func TestMailboxRefusesWhatDoesNotAddUp(t *testing.T) {
	end := &infer.Finish{Reason: infer.ReasonStop}
	for name, offers := range map[string][]*infer.Delta{
		"lost id":     {delta(1, 1, 5), delta(1, 3, 6)},
		"repeated":    {delta(1, 1, 5), delta(1, 1, 5)},
		"backwards":   {delta(1, 2, 5, 6), delta(1, 1, 7)},
		"over limit":  {delta(1, 5, 1, 2, 3, 4, 5)},
		"after end":   {{Attempt: 1, Total: 0, Finish: end}, delta(1, 1, 5)},
		"end twice":   {{Attempt: 1, Finish: end}, {Attempt: 1, Finish: end}},
		"bad choice":  {{Attempt: 1, Choice: 1}},
		"wrong final": {delta(1, 1, 5), {Attempt: 1, Total: 2, Finish: end}},
		"logprobs":    {{Attempt: 1, IDs: []uint32{5}, Total: 1, Logprobs: &infer.Logprobs{Own: []float32{-1}}}},
	} {
		t.Run(name, func(t *testing.T) {
			m := New(1, 4, nil, nil)
			m.NextAttempt()
			for _, d := range offers {
				m.Offer(d)
			}
			m.Offer(delta(1, 0))
			cells := m.Take(nil)
			if len(cells) != 1 || cells[0].Finish == nil || cells[0].Finish.Err == nil ||
				cells[0].Finish.Err.Code != infer.CodeIntegrity {
				t.Fatalf("cells %+v, want an integrity failure", cells)
			}
		})
	}
}

// A sleeper is woken exactly by the offer that follows.
func TestMailboxWakes(t *testing.T) {
	m := New(1, 100, nil, nil)
	m.NextAttempt()
	m.Offer(delta(1, 1, 1))
	select {
	case <-m.wake:
		t.Fatal("woken although nobody slept")
	default:
	}
	if m.Wait(); m.sleep() != nil {
		t.Fatal("slept although something is pending")
	}
	used := m.Take(nil)
	for i := range 3 {
		if got := m.Take(used); got != nil {
			t.Fatalf("took %v from an empty mailbox", got)
		}
		if m.sleep() == nil {
			t.Fatal("did not sleep although nothing is pending")
		}
		m.Offer(delta(1, i+2, 9))
		select {
		case <-m.wake:
		default:
			t.Fatal("not woken")
		}
		used = m.Take(used)
	}
}

// Wait ends with an offer, from another goroutine, and with a Wake before it.
func TestMailboxWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(1, 100, nil, nil)
		m.NextAttempt()
		returned := 0
		go func() {
			for range 3 {
				m.Wait()
				m.Take(nil)
				returned++
			}
		}()
		for i, act := range []func(){func() { m.Offer(delta(1, 1, 1)) }, m.Wake, func() { m.Offer(delta(1, 2, 1)) }} {
			if synctest.Wait(); returned != i {
				t.Fatalf("%d waits have ended, want %d", returned, i)
			}
			act()
		}
		if synctest.Wait(); returned != 3 {
			t.Fatalf("%d waits have ended", returned)
		}
		m.Wake()
		m.Wait()
	})
}

func TestMailboxAllocatesNothingPerToken(t *testing.T) {
	m := New(1, 1<<30, nil, nil)
	m.NextAttempt()
	var used []Cell
	d := delta(1, 0, 42)
	if n := testing.AllocsPerRun(1000, func() {
		d.Total++
		m.Offer(d)
		used = m.Take(used)
	}); n > 0 {
		t.Fatalf("%v allocations per token", n)
	}
}

// Where log probabilities are asked for they cost no allocation either, and one
// too few or too many of them is an integrity failure.
func TestMailboxLogprobs(t *testing.T) {
	top := 2
	m := New(1, 1<<30, &top, nil)
	m.NextAttempt()
	var used []Cell
	d := delta(1, 0, 42)
	d.Logprobs = logprobsOf(&top, d.IDs)
	if n := testing.AllocsPerRun(1000, func() {
		d.Total++
		m.Offer(d)
		used = m.Take(used)
	}); n > 0 {
		t.Fatalf("%v allocations per token", n)
	}
	for name, l := range map[string]*infer.Logprobs{
		"none":                {},
		"nil":                 nil,
		"an alternative less": {Own: []float32{-1}, TopIDs: []uint32{1}, Top: []float32{-1}},
		"a position more":     {Own: []float32{-1, -1}, TopIDs: []uint32{1, 2, 3, 4}, Top: []float32{0, 0, 0, 0}},
		"uneven":              {Own: []float32{-1}, TopIDs: []uint32{1, 2}, Top: []float32{0}},
	} {
		m := New(1, 4, &top, nil)
		m.NextAttempt()
		m.Offer(&infer.Delta{Attempt: 1, IDs: []uint32{5}, Total: 1, Logprobs: l})
		cells := m.Take(nil)
		if len(cells) != 1 || cells[0].Finish == nil || cells[0].Finish.Err == nil {
			t.Fatalf("%s: cells %+v, want an integrity failure", name, cells)
		}
		if e := cells[0].Finish.Err; e.Code != infer.CodeIntegrity || e.Cause != infer.Flaw("logprobs_mismatch") {
			t.Errorf("%s: %v", name, e)
		}
	}
	m = New(1, 4, &top, nil)
	m.NextAttempt()
	m.Offer(&infer.Delta{Attempt: 1, Finish: &infer.Finish{Reason: infer.ReasonStop}})
	if cells := m.Take(nil); cells[0].Finish.Err != nil {
		t.Errorf("an end without ids: %v", cells[0].Finish.Err)
	}
}

func BenchmarkOfferTake(b *testing.B) {
	m := New(1, 1<<40, nil, nil)
	m.NextAttempt()
	var used []Cell
	d := delta(1, 0, 42)
	b.ReportAllocs()
	for b.Loop() {
		d.Total++
		m.Offer(d)
		used = m.Take(used)
	}
}

// For anything offered, taken, left for a while, abandoned, ended or closed, in any order: each
// choice gives exactly its ids of the last attempt, in order, up to its end or the first delta that
// does not add up, after which there is nothing but the failure. A sleeper is woken once, by the
// next thing that comes. A caller that asked for notifications gets one for everything that enters.
// The gauge counts the mailbox exactly while something is pending.
func TestMailboxInterleavings(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		choices := rapid.IntRange(1, 3).Draw(t, "choices")
		const limit = 40
		var waiting atomic.Int64
		var asked *int
		if rapid.Bool().Draw(t, "logprobs") {
			top := rapid.IntRange(0, 3).Draw(t, "top")
			asked = &top
		}
		m := New(choices, limit, asked, &waiting)
		notified := 0
		always := rapid.Bool().Draw(t, "notify")
		if always {
			m.Notify(notifiedFunc(func() { notified++ }))
		}
		woken := func() int {
			n := notified
			notified = 0
			select {
			case <-m.wake:
				n++
			default:
			}
			return n
		}
		type book struct {
			want, got []uint32
			ended     bool // offered
			over      bool // taken
			closed    bool
		}
		var books []book
		var used []Cell
		var attempt uint32
		failed, told, closed, asleep := false, false, false, false
		begin := func() {
			attempt = m.NextAttempt()
			books = make([]book, choices)
			failed, told, closed = false, false, false
		}
		begin()
		pending := func() bool {
			for _, b := range books {
				if len(b.got) < len(b.want) || b.ended && !b.over {
					return true
				}
			}
			return failed && !told
		}
		// offered checks the wake-up of an offer that had to be taken in.
		offered := func(entered bool) {
			want := 0
			if entered && (asleep || always) {
				want = 1
			}
			if n := woken(); n != want {
				t.Fatalf("woken %d times, want %d (asleep %t)", n, want, asleep)
			}
			asleep = asleep && !entered
		}
		next := uint32(0)
		t.Repeat(map[string]func(*rapid.T){
			"offer": func(t *rapid.T) {
				i := rapid.IntRange(0, choices-1).Draw(t, "choice")
				b := &books[i]
				n := min(rapid.IntRange(1, 6).Draw(t, "n"), limit-len(b.want))
				if b.ended || n <= 0 {
					t.Skip("the choice is done")
				}
				ids := make([]uint32, n)
				for k := range ids {
					next++
					ids[k] = next
				}
				scores := logprobsOf(asked, ids)
				d := &infer.Delta{Attempt: attempt, Choice: uint32(i), IDs: ids, Total: len(b.want) + n, Received: 1, Logprobs: scores}
				if rapid.IntRange(0, 5).Draw(t, "last") == 0 {
					d.Finish = &infer.Finish{Reason: infer.ReasonStop}
				}
				enters := !failed && !closed && !b.closed
				m.Offer(d)
				if enters {
					b.want, b.ended = append(b.want, ids...), d.Finish != nil
				}
				clear(ids) // the mailbox must have copied
				if scores != nil {
					clear(scores.Own)
					clear(scores.TopIDs)
					clear(scores.Top)
				}
				offered(enters)
			},
			"offer what does not add up": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "rare") > 0 {
					t.Skip("seldom")
				}
				b := &books[0]
				d := &infer.Delta{Attempt: attempt, IDs: []uint32{7}, Total: len(b.want) + 2, Received: 1, Logprobs: logprobsOf(asked, []uint32{7})}
				if rapid.Bool().Draw(t, "in its log probabilities") {
					d.Total--
					if asked == nil {
						d.Logprobs = new(infer.Logprobs)
					} else {
						d.Logprobs.Own = append(d.Logprobs.Own, 0)
					}
				}
				m.Offer(d)
				enters := !failed && !closed && !b.closed
				failed = failed || enters
				offered(enters)
			},
			"offer of an attempt that is over": func(t *rapid.T) {
				m.Offer(delta(attempt-1, 3, 7, 7, 7))
				offered(false)
			},
			"take": func(t *rapid.T) {
				had := pending()
				cells := m.Take(used)
				if (len(cells) > 0) != had {
					t.Fatalf("took %d cells, pending %t", len(cells), had)
				}
				if len(cells) == 0 {
					return
				}
				for _, c := range cells {
					b := &books[c.Choice]
					b.got = append(b.got, c.IDs...)
					checkLogprobs(t, asked, &c)
					if c.Attempt != attempt || len(b.got) > len(b.want) || !slices.Equal(b.got, b.want[:len(b.got)]) {
						t.Fatalf("attempt %d, took %v, want %v", c.Attempt, b.got, b.want)
					}
					if c.Finish != nil && c.Finish.Err != nil {
						if told {
							t.Fatal("told twice of a failure")
						}
						told = true
					} else if c.Finish != nil {
						b.over = true
					}
				}
				used = cells
				for i := range books {
					// A failure stands in the place of its cell's end.
					if b := &books[i]; len(b.got) != len(b.want) || b.ended != b.over && !failed {
						t.Fatalf("choice %d: %d ids of %d, ended %t", i, len(b.got), len(b.want), b.over)
					}
					books[i].over = books[i].ended
				}
			},
			"sleep": func(t *rapid.T) {
				if asleep = m.sleep() != nil; asleep == pending() {
					t.Fatalf("asleep %t, pending %t", asleep, pending())
				}
			},
			"another attempt": func(t *rapid.T) {
				if rapid.IntRange(0, 5).Draw(t, "rare") > 0 {
					t.Skip("seldom")
				}
				begin()
			},
			"close a choice": func(t *rapid.T) {
				if rapid.IntRange(0, 5).Draw(t, "rare") > 0 {
					t.Skip("seldom")
				}
				i := rapid.IntRange(0, choices-1).Draw(t, "choice")
				m.CloseChoice(uint32(i))
				if !failed {
					b := &books[i] // nothing that was pending of it comes any more
					b.closed, b.got, b.over = true, slices.Clone(b.want), b.ended
				}
			},
			"close": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "rare") > 0 {
					t.Skip("seldom")
				}
				m.Close()
				closed, failed, told = true, false, false
				for i := range books { // nothing that was pending comes any more
					b := &books[i]
					b.got, b.over = slices.Clone(b.want), b.ended
				}
			},
			"": func(t *rapid.T) {
				if n := waiting.Load(); (n == 1) != pending() || n < 0 || n > 1 {
					t.Fatalf("%d mailboxes have something pending by the gauge, pending %t", n, pending())
				}
			},
		})
	})
}

type notifiedFunc func()

func (f notifiedFunc) Notify() { f() }

// Output on hold is not taken and lets nobody spin, until it is released, fails, or belongs to an
// attempt that was abandoned.
func TestHold(t *testing.T) {
	for name, let := range map[string]func(m *Mailbox){
		"released": (*Mailbox).Release,
		"failed": func(m *Mailbox) {
			m.Offer(&infer.Delta{Attempt: 1, Total: 1, Received: 2, Finish: &infer.Finish{Reason: infer.ReasonError, Err: infer.Errorf(infer.CodeEngine, "it fails")}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := New(1, 9, nil, nil)
				m.NextAttempt()
				m.Hold()
				m.Offer(&infer.Delta{Attempt: 1, IDs: []uint32{7}, Total: 1, Received: 1})
				if cells := m.Take(nil); cells != nil {
					t.Fatalf("%v was taken", cells)
				}
				woken := make(chan struct{})
				go func() {
					m.Wait()
					close(woken)
				}()
				synctest.Wait()
				select {
				case <-woken:
					t.Fatal("a wait ends while all is held")
				default:
				}
				let(m)
				<-woken
				if cells := m.Take(nil); len(cells) != 1 || !slices.Equal(cells[0].IDs, []uint32{7}) {
					t.Errorf("%v", cells)
				}
			})
		})
	}
	m := New(1, 9, nil, nil)
	m.NextAttempt()
	m.Hold()
	m.NextAttempt()
	m.Offer(&infer.Delta{Attempt: 2, IDs: []uint32{7}, Total: 1, Received: 1})
	if len(m.Take(nil)) != 1 {
		t.Error("the next attempt is held, too")
	}
}
