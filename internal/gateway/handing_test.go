package gateway

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/fleet/route"
)

// handOver begins the context of a hand-over of an exchange that has nothing else.
func handOver(within time.Duration) (*exchange, *handing) {
	x := &exchange{g: &Gateway{}}
	x.target.Engine = new(route.Engine)
	x.escape.begin(x)
	return x, x.hands(within)
}

// The context of a hand-over ends as one of package context would, for each of its reasons, and
// so do those that derive from it.
func TestHandingEnds(t *testing.T) {
	hungUp := errors.New("hung up")
	for _, c := range []struct {
		name  string
		end   func(x *exchange, h *handing)
		err   error
		cause error
	}{
		{"the request ends", func(x *exchange, _ *handing) { x.ctx.End(hungUp) }, context.Canceled, hungUp},
		{"the attempt leaves", func(x *exchange, _ *handing) {
			x.escape.mu.Lock()
			x.escape.wake()
			x.escape.mu.Unlock()
		}, context.Canceled, context.Canceled},
		{"too late", func(*exchange, *handing) { time.Sleep(2 * time.Second) }, context.DeadlineExceeded, context.DeadlineExceeded},
		{"it is over", func(x *exchange, h *handing) { x.handed(h) }, context.Canceled, context.Canceled},
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
		x := &exchange{g: &Gateway{}}
		x.target.Engine = new(route.Engine)
		x.escape.begin(x)
		x.ctx.End(nil)
		h := x.hands(time.Hour)
		<-h.Done()
		if h.Err() != context.Canceled {
			t.Error(h.Err())
		}
		x.handed(h)
	})
}

// A hand-over leaves nothing in the request's context, and allocates little.
func TestHandingAllocates(t *testing.T) {
	g, engine := &Gateway{}, new(route.Engine)
	if n := testing.AllocsPerRun(100, func() {
		x := &exchange{g: g}
		x.target.Engine = engine
		x.escape.begin(x)
		h := x.hands(time.Hour)
		<-func() <-chan struct{} { h.cancel(); return h.Done() }()
		x.handed(h)
	}); n > 7 {
		t.Errorf("%v allocations", n)
	}
}
