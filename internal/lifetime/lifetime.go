// Package lifetime has contexts that lie in the memory of what they belong to: a request, an
// attempt, a generation. A Context is what context.WithCancelCause returns, which takes eight
// allocations for a request with one attempt and one function to call at its end, and keeps half
// a kilobyte for as long as a stream waits for its engine.
package lifetime

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Context is a context. Its zero value goes on until End is called. It must not be copied.
type Context struct {
	over   atomic.Pointer[context.Context] // one that has ended for the same reason; nil: it goes on
	mu     sync.Mutex
	done   chan struct{} // nil: nobody waits
	first  *Follower     // those who follow
	awaits int32         // who waits between Await and Awaited
	asked  bool          // Done was called, whose caller may keep the channel
}

// Part is a context that ends with another one, at the latest.
type Part struct {
	Context
	own Follower // of the other one
}

// Follower is one that learns of a context's end: another context, or a Waiter.
type Follower struct {
	of         *Context
	prev, next *Follower
	linked     bool
	quick      bool     // to does not block
	child      *Context // nil: to is called
	to         Waiter
}

// Waiter is called at the end of a context.
type Waiter interface {
	// Over is called once, by a goroutine of its own unless AtEnd was given it.
	Over()
}

// call is a function as a Waiter.
type call func()

// Over implements Waiter.
func (c call) Over() { c() }

// finished is what a context has become that has ended without a reason.
var finished = func() *context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(nil)
	return &ctx
}()

// outlived is what a context has become that has reached its deadline.
var outlived = func() *context.Context {
	ctx, cancel := context.WithDeadline(context.Background(), time.Unix(1, 0))
	cancel()
	return &ctx
}()

// Of makes it a part of a context. It is called before all else.
func (p *Part) Of(whole *Context) {
	if p.own = (Follower{of: whole, child: &p.Context}); !whole.follow(&p.own) {
		p.over.Store(whole.over.Load())
	}
}

// End ends the part alone.
func (p *Part) End(cause error) {
	p.Context.End(cause)
	p.own.Leave()
}

// End ends the context. Only the first call counts. It does not block.
func (l *Context) End(cause error) {
	reason := finished
	if cause != nil && l.over.Load() == nil {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(cause)
		reason = &ctx
	}
	l.ends(reason)
}

// Outlive ends the context as its deadline would.
func (l *Context) Outlive() { l.ends(outlived) }

func (l *Context) ends(reason *context.Context) {
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
		switch {
		case f.child != nil:
			f.child.ends(reason)
		case f.quick:
			f.to.Over()
		default:
			go f.to.Over()
		}
		f = next
	}
}

// follow has a follower learn of the end. It returns false if that was before.
func (l *Context) follow(f *Follower) bool {
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

// Follow has w called at the end of a context, at once if that was before. The follower must not
// be in use.
func (f *Follower) Follow(l *Context, w Waiter) {
	if *f = (Follower{of: l, to: w}); !l.follow(f) {
		go w.Over()
	}
}

// Leave ends the following. It returns false if the end was before, or if there was no following.
func (f *Follower) Leave() bool {
	l := f.of
	if l == nil {
		return false
	}
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

// Followers returns how many follow.
func (l *Context) Followers() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for f := l.first; f != nil; f = f.next {
		n++
	}
	return n
}

// AfterFunc is context.AfterFunc for this context, which package context uses.
func (l *Context) AfterFunc(do func()) (stop func() bool) {
	f := new(Follower)
	f.Follow(l, call(do))
	return f.Leave
}

// AtEnd is AfterFunc for a function that does not block: whoever ends the context calls it. A
// goroutine for it costs a client's hang-up more than the function.
func (l *Context) AtEnd(do func()) (stop func() bool) {
	f := &Follower{of: l, to: call(do), quick: true}
	if !l.follow(f) {
		do()
	}
	return f.Leave
}

// AfterFunc is context.AfterFunc, by the context's own where it has one: package context would
// make a context around that.
func AfterFunc(ctx context.Context, do func()) (stop func() bool) {
	if own, ok := ctx.(interface{ AfterFunc(f func()) func() bool }); ok {
		return own.AfterFunc(do)
	}
	return context.AfterFunc(ctx, do)
}

// Of returns what a context of this package is; nil: it is of another one.
func Of(ctx context.Context) *Context {
	if own, ok := ctx.(interface{ itself() *Context }); ok {
		return own.itself()
	}
	return nil
}

func (l *Context) itself() *Context { return l }

// Deadline implements context.Context.
func (l *Context) Deadline() (at time.Time, ok bool) { return at, false }

// Done implements context.Context.
func (l *Context) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = true
	return l.wait()
}

// wait returns the channel. The lock is held.
func (l *Context) wait() chan struct{} {
	if l.done == nil {
		if l.done = make(chan struct{}); l.over.Load() != nil {
			close(l.done)
		}
	}
	return l.done
}

// Await returns what Done returns, for a wait that Awaited ends. A channel that only such waits
// had is not kept for longer.
func Await(ctx context.Context) <-chan struct{} {
	l := Of(ctx)
	if l == nil {
		return ctx.Done()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.awaits++
	return l.wait()
}

// Awaited ends the wait of an Await.
func Awaited(ctx context.Context) {
	l := Of(ctx)
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.awaits--; l.awaits == 0 && !l.asked {
		l.done = nil
	}
}

// Err implements context.Context.
func (l *Context) Err() error {
	if over := l.over.Load(); over != nil {
		return (*over).Err()
	}
	return nil
}

// Value implements context.Context. Once the context has ended it returns what context.Cause
// looks for.
func (l *Context) Value(key any) any {
	if over := l.over.Load(); over != nil {
		return (*over).Value(key)
	}
	return nil
}
