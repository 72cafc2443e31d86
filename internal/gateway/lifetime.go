package gateway

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// lifetime is the context of a request or of an attempt, in the memory of what it belongs to. It
// is what context.WithCancelCause returns, which takes eight allocations for a request with one
// attempt and one function to call at its end. Its zero value goes on until end is called. It
// must not be copied.
type lifetime struct {
	over  atomic.Pointer[context.Context] // one that has ended for the same reason; nil: it goes on
	mu    sync.Mutex
	done  chan struct{} // nil: nobody has asked for it
	first *follower     // those who follow
}

// part is a lifetime that ends with another one, at the latest.
type part struct {
	lifetime
	own follower // of the other one
}

// follower is one that learns of a lifetime's end: another lifetime, or a function.
type follower struct {
	of         *lifetime
	prev, next *follower
	linked     bool
	child      *lifetime // nil: do is called
	do         func()
}

// finished is what a lifetime has become that has ended without a reason.
var finished = func() *context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(nil)
	return &ctx
}()

// outlived is what a lifetime has become that has reached its deadline.
var outlived = func() *context.Context {
	ctx, cancel := context.WithDeadline(context.Background(), time.Unix(1, 0))
	cancel()
	return &ctx
}()

// of makes it a part of a lifetime. It is called before all else.
func (p *part) of(whole *lifetime) {
	if p.own = (follower{of: whole, child: &p.lifetime}); !whole.follow(&p.own) {
		p.over.Store(whole.over.Load())
	}
}

// end ends the part alone.
func (p *part) end(cause error) {
	p.lifetime.end(cause)
	p.own.leave()
}

// end ends the lifetime. Only the first call counts. It does not block.
func (l *lifetime) end(cause error) {
	reason := finished
	if cause != nil && l.over.Load() == nil {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(cause)
		reason = &ctx
	}
	l.ends(reason)
}

func (l *lifetime) ends(reason *context.Context) {
	l.mu.Lock()
	if !l.over.CompareAndSwap(nil, reason) {
		l.mu.Unlock()
		return
	}
	if l.done != nil {
		close(l.done)
	}
	f := l.first
	l.first = nil
	for each := f; each != nil; each = each.next {
		each.linked = false
	}
	l.mu.Unlock()
	for f != nil {
		next := f.next // f may be used again once it has ended
		if f.child != nil {
			f.child.ends(reason)
		} else {
			go f.do()
		}
		f = next
	}
}

// follow has a follower learn of the end. It returns false if that was before.
func (l *lifetime) follow(f *follower) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over.Load() != nil {
		return false
	}
	if f.next = l.first; f.next != nil {
		f.next.prev = f
	}
	l.first, f.linked = f, true
	return true
}

// leave ends the following. It returns false if the end was before.
func (f *follower) leave() bool {
	l := f.of
	l.mu.Lock()
	defer l.mu.Unlock()
	if !f.linked {
		return false
	}
	if f.linked = false; f.prev != nil {
		f.prev.next = f.next
	} else {
		l.first = f.next
	}
	if f.next != nil {
		f.next.prev = f.prev
	}
	f.prev, f.next = nil, nil
	return true
}

// AfterFunc is context.AfterFunc for a lifetime, which package context uses.
func (l *lifetime) AfterFunc(do func()) (stop func() bool) {
	f := &follower{of: l, do: do}
	if !l.follow(f) {
		go do()
	}
	return f.leave
}

// Deadline implements context.Context.
func (l *lifetime) Deadline() (at time.Time, ok bool) { return at, false }

// Done implements context.Context.
func (l *lifetime) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done == nil {
		if l.done = make(chan struct{}); l.over.Load() != nil {
			close(l.done)
		}
	}
	return l.done
}

// Err implements context.Context.
func (l *lifetime) Err() error {
	if over := l.over.Load(); over != nil {
		return (*over).Err()
	}
	return nil
}

// Value implements context.Context. Once the lifetime has ended it returns what context.Cause
// looks for.
func (l *lifetime) Value(key any) any {
	if over := l.over.Load(); over != nil {
		return (*over).Value(key)
	}
	return nil
}
