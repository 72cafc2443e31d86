package lifetime

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"
)

// A lifetime and its parts are told apart from contexts of package context by nothing, whatever
// is done to them in whatever order: their error and cause, those of contexts made from them,
// and which functions are called at their end.
func TestContext(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		acts := rapid.SliceOfN(rapid.SampledFrom([]string{
			"end", "end for a reason", "end the part", "end the part for a reason", "part",
			"after", "after by package context", "after the part", "at the end", "stop", "child", "child of the part", "wait", "wait for a moment",
		}), 1, 12).Draw(rt, "acts")
		picks := rapid.SliceOfN(rapid.IntRange(0, 20), len(acts), len(acts)).Draw(rt, "picks")
		differs := ""
		synctest.Test(t, func(t *testing.T) {
			whole, own := context.WithCancelCause(context.Background())
			sides := [2]*side{
				{whole: whole, end: own, makePart: func(s *side) (context.Context, func(error)) { return context.WithCancelCause(whole) }},
				{},
			}
			l := new(Context)
			sides[1].whole, sides[1].end = l, l.End
			sides[1].makePart = func(*side) (context.Context, func(error)) {
				p := new(Part)
				p.Of(l)
				return p, p.End
			}
			for i, act := range acts {
				for _, s := range sides {
					s.act(act, picks[i])
				}
				synctest.Wait()
				if a, b := sides[0].state(), sides[1].state(); a != b {
					differs = fmt.Sprintf("after %q:\n%s\nwhere package context has\n%s", acts[:i+1], b, a)
					break
				}
			}
			for _, s := range sides {
				s.act("end", 0)
				for _, cancel := range s.cancels {
					cancel()
				}
			}
		})
		if differs != "" {
			rt.Fatal(differs)
		}
	})
}

// side is what is done to contexts of one kind.
type side struct {
	whole    context.Context
	end      func(error)
	makePart func(*side) (context.Context, func(error))

	all     []context.Context // parts and children
	ends    []func(error)     // of the parts
	cancels []context.CancelFunc
	stops   []func() bool
	notes   []string // what stops returned
	calls   [32]atomic.Int32
	after   int
}

func (s *side) act(act string, pick int) {
	reason := errors.New(act)
	latest := s.whole
	if len(s.all) > 0 {
		latest = s.all[pick%len(s.all)]
	}
	called := func() func() {
		n := s.after
		s.after++
		return func() { s.calls[n].Add(1) }
	}
	switch act {
	case "end":
		s.end(nil)
	case "end for a reason":
		s.end(reason)
	case "end the part", "end the part for a reason":
		if len(s.ends) > 0 {
			if act == "end the part" {
				reason = nil
			}
			s.ends[pick%len(s.ends)](reason)
		}
	case "part":
		p, end := s.makePart(s)
		s.all, s.ends = append(s.all, p), append(s.ends, end)
	case "after", "after the part":
		on := s.whole
		if act == "after the part" {
			on = latest
		}
		if own, ok := on.(interface{ AfterFunc(func()) func() bool }); ok {
			s.stops = append(s.stops, own.AfterFunc(called()))
			return
		}
		s.stops = append(s.stops, context.AfterFunc(on, called()))
	case "at the end":
		if own, ok := latest.(interface{ AtEnd(func()) func() bool }); ok {
			s.stops = append(s.stops, own.AtEnd(called()))
			return
		}
		s.stops = append(s.stops, context.AfterFunc(latest, called()))
	case "after by package context":
		s.stops = append(s.stops, context.AfterFunc(latest, called()))
	case "stop":
		if len(s.stops) > 0 {
			if s.stops[pick%len(s.stops)]() {
				s.notes = append(s.notes, "stopped")
			} else {
				s.notes = append(s.notes, "too late")
			}
		}
	case "child", "child of the part":
		on := s.whole
		if act == "child of the part" {
			on = latest
		}
		ctx, cancel := context.WithCancel(on)
		s.cancels = append(s.cancels, cancel)
		s.all = append(s.all, ctx)
	case "wait for a moment":
		select {
		case <-Await(latest):
		default:
		}
		Awaited(latest)
	case "wait":
		go func() { <-latest.Done() }()
	}
}

func (s *side) state() (text string) {
	of := func(ctx context.Context) {
		text += " "
		select {
		case <-ctx.Done():
			text += "done "
		default:
		}
		if err := ctx.Err(); err != nil {
			text += err.Error() + " by " + context.Cause(ctx).Error()
		}
		text += ";"
	}
	of(s.whole)
	for _, ctx := range s.all {
		of(ctx)
	}
	for _, note := range s.notes {
		text += " " + note
	}
	for i := range s.after {
		if s.calls[i].Load() > 0 {
			text += " called"
		} else {
			text += " -"
		}
	}
	return text
}

// Whoever ends a context calls what AtEnd was given, and AtEnd itself does if it comes too late.
func TestAtEnd(t *testing.T) {
	var l Context
	var p Part
	p.Of(&l)
	var calls []string
	p.AtEnd(func() { calls = append(calls, "the part's") })
	stop := l.AtEnd(func() { calls = append(calls, "stopped") })
	if !stop() {
		t.Fatal("it could not be stopped")
	}
	l.AtEnd(func() { calls = append(calls, "its own") })
	l.End(nil)
	p.AtEnd(func() { calls = append(calls, "late") })
	if want := []string{"its own", "the part's", "late"}; !slices.Equal(calls, want) {
		t.Fatalf("%q, want %q", calls, want)
	}
}

// Several goroutines may end a lifetime, follow it and leave it at once. Each function is
// called once, or was stopped.
func TestTogether(t *testing.T) {
	for range 200 {
		var l Context
		var wait, called sync.WaitGroup
		for range 4 {
			wait.Go(func() {
				for range 8 {
					var p Part
					p.Of(&l)
					called.Add(1)
					if stop := p.AfterFunc(called.Done); stop() {
						called.Done()
					}
					p.End(nil)
				}
			})
			wait.Go(func() {
				select {
				case <-Await(&l):
				default:
				}
				Awaited(&l)
			})
			wait.Go(func() { l.End(nil); <-l.Done() })
		}
		wait.Wait()
		called.Wait()
		if l.first != nil {
			t.Fatal("somebody still follows")
		}
	}
}

// A wait that is over leaves no channel, unless somebody else has it.
func TestAwait(t *testing.T) {
	over := func(done <-chan struct{}) bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
	var a, b, c, d Context
	first := Await(&a)
	if second := Await(&a); second != first {
		t.Error("two waits have different channels")
	}
	Awaited(&a)
	if a.done == nil {
		t.Error("the channel is gone while somebody waits")
	}
	Awaited(&a)
	if a.done != nil {
		t.Error("the channel is kept")
	}
	waited := Await(&b)
	if over(waited) {
		t.Error("a wait is over before the end")
	}
	b.End(nil)
	if !over(waited) {
		t.Error("a wait is not over at the end")
	}
	Awaited(&b)
	if !over(Await(&b)) {
		t.Error("a second wait after the end is not over")
	}
	Awaited(&b)

	Await(&c)
	kept := c.Done()
	Awaited(&c)
	if c.End(nil); !over(kept) {
		t.Error("a channel that Done has given is not closed")
	}
	if d.End(nil); !over(Await(&d)) {
		t.Error("the first wait after the end is not over")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if !over(Await(ctx)) { // of package context
		t.Error("a wait for a context of another package is not over at its end")
	}
	Awaited(ctx)
}

// A follower may follow again once it has left or has been called.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f Follower
		if f.Leave() {
			t.Error("a follower of nothing left it")
		}
		n := 0
		called := call(func() { n++ })
		for range 2 {
			var l Context
			f.Follow(&l, called)
			if !f.Leave() || f.Leave() || l.Followers() != 0 {
				t.Error("it has not left")
			}
			f.Follow(&l, called)
			l.End(nil)
			synctest.Wait()
			if f.Leave() {
				t.Error("it left after the end")
			}
			f.Follow(&l, called) // after the end
			synctest.Wait()
		}
		if n != 4 {
			t.Errorf("called %d times", n)
		}
	})
}
