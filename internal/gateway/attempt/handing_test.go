package attempt

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/fleet/route"
	"weir/internal/lifetime"
)

// handed is an attempt at an engine that has nothing else, and its request's context.
type handed struct {
	Attempt
	ctx lifetime.Context
}

func newHanded(of *Attempts, e *route.Engine) *handed {
	x := new(handed)
	x.of, x.Target.Engine = of, e
	x.escape.begin()
	return x
}

// handOver begins the context of a hand-over.
func handOver(within time.Duration) (*handed, *handing) {
	x := newHanded(new(Attempts), new(route.Engine))
	return x, x.hands(&x.ctx, within)
}

// The context of a hand-over ends as one of package context would, for each of its reasons, and
// so do those that derive from it.
func TestHandingEnds(t *testing.T) {
	hungUp := errors.New("hung up")
	for _, c := range []struct {
		name  string
		end   func(x *handed, h *handing)
		err   error
		cause error
	}{
		{"the request ends", func(x *handed, _ *handing) { x.ctx.End(hungUp) }, context.Canceled, hungUp},
		{"the attempt leaves", func(x *handed, _ *handing) {
			x.escape.mu.Lock()
			x.escape.wake()
			x.escape.mu.Unlock()
		}, context.Canceled, context.Canceled},
		{"too late", func(*handed, *handing) { time.Sleep(2 * time.Second) }, context.DeadlineExceeded, context.DeadlineExceeded},
		{"it is over", func(x *handed, h *handing) { x.handed(h) }, context.Canceled, context.Canceled},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x, h := handOver(2 * time.Second)
				done := h.Done()
				derived, cancel := context.WithCancel(h)
				defer cancel()
				gone, left := context.WithCancel(h)
				left() // and is not called
				time.Sleep(time.Second)
				if h.Err() != nil || derived.Err() != nil || context.Cause(h) != nil {
					t.Fatalf("ended early: %v", h.Err())
				}
				if at, ok := h.Deadline(); !ok || time.Until(at) != time.Second {
					t.Errorf("deadline %v %v", at, ok)
				}
				if n := h.Followers(); n != 1 {
					t.Errorf("%d derived contexts", n)
				}
				c.end(x, h)
				<-done
				<-derived.Done()
				if h.Err() != c.err || derived.Err() != c.err || context.Cause(h) != c.cause || gone.Err() != context.Canceled {
					t.Errorf("%v, derived %v, cause %v", h.Err(), derived.Err(), context.Cause(h))
				}
				<-h.Done()
				after, cancel := context.WithCancel(h)
				defer cancel()
				<-after.Done()
				x.handed(h)
				if n := x.ctx.Followers(); n != 0 {
					t.Errorf("%d followers of the request are left", n)
				}
				x.escape.wake() // which ends nothing any more
			})
		})
	}
}

// A request that has ended before its hand-over begins ends it at once.
func TestHandingAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newHanded(new(Attempts), new(route.Engine))
		x.ctx.End(nil)
		h := x.hands(&x.ctx, time.Hour)
		<-h.Done()
		if h.Err() != context.Canceled {
			t.Error(h.Err())
		}
		x.handed(h)
	})
}

// A hand-over leaves nothing in the request's context, and allocates little.
func TestHandingAllocates(t *testing.T) {
	of, engine := new(Attempts), new(route.Engine)
	if n := testing.AllocsPerRun(100, func() {
		x := newHanded(of, engine)
		h := x.hands(&x.ctx, time.Hour)
		<-func() <-chan struct{} { h.cancel(); return h.Done() }()
		x.handed(h)
	}); n > 7 {
		t.Errorf("%v allocations", n)
	}
}
