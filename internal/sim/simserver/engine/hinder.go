package engine

import (
	"cmp"
	"context"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/simserver/conns"
	"weir/internal/trace"
)

// hindered applies the lasting faults, and waits while they wedge the engine. Meanwhile its
// pages are served and its connections read, but everything that needs the core waits. It
// returns false when the engine must end.
func (e *Engine) hindered(ctx context.Context) bool {
	for {
		e.faultsMu.Lock()
		c := e.faults.Condition()
		again := e.faults.Restart()
		e.faultsMu.Unlock()
		e.idle.Store(c.Idle)
		e.core.Hinder(trace.Now(), c.Hindrance)
		e.standing(c.Still)
		e.still = c.Still != 0
		if e.opts.KVEvents != nil {
			e.opts.KVEvents.Mute(c.Mute)
			e.opts.KVEvents.Offload(c.Offload)
		}
		if again {
			e.begin()
		}
		if !c.Wedged {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-e.dead:
			return false
		case <-e.inbox.wake:
			// New faults, or what has to wait.
		}
	}
}

// standing notes since when which ranks stand still.
func (e *Engine) standing(still uint64) {
	e.stateMu.Lock()
	defer e.stateMu.Unlock()
	for rank := range e.stood {
		switch stands := still&(1<<rank) != 0; {
		case !stands:
			e.stood[rank] = 0
		case e.stood[rank] == 0:
			e.stood[rank] = float64(time.Now().UnixNano()) / 1e9
		}
	}
}

// ReportedAt is when a rank reported its load last, in seconds: now, unless it stands still.
func (e *Engine) ReportedAt(rank int, now float64) float64 {
	e.stateMu.Lock()
	defer e.stateMu.Unlock()
	return cmp.Or(e.stood[rank], now)
}

// fence waits for the end of the step that was under way when it came.
type fence struct {
	after int64
	pass  func()
}

// Fence waits until the loop is between two steps, on every rank, and gives how many tokens
// it has computed by then.
func (e *Engine) Fence(ctx context.Context) (uint64, error) {
	var computed uint64
	err := e.called(ctx, func(over func()) {
		f := fence{after: math.MinInt64, pass: func() {
			counts := e.core.Counts()
			computed = counts.Prefilled + counts.Generated
			over()
		}}
		if due, ok := e.core.Due(); ok {
			f.after = due
		}
		e.fences = append(e.fences, f)
	})
	if err != nil {
		return 0, err // the loop may still pass it
	}
	return computed, nil
}

// Answers waits until the loop has looked at what it is asked: at once, unless a rank stands still. It
// does not wait for what the engine waits for, as one half of a request for the other.
func (e *Engine) Answers(ctx context.Context) error {
	return e.called(ctx, func(over func()) {
		e.fences = append(e.fences, fence{after: math.MinInt64, pass: over})
	})
}

// pass releases the fences whose step is over, unless a rank stands still.
func (e *Engine) pass(now int64) {
	if !e.still {
		e.fences = slices.DeleteFunc(e.fences, func(f fence) bool {
			over := f.after <= now
			if over {
				f.pass()
			}
			return over
		})
	}
}

// Told returns a number of requests as the engine reports it.
func (e *Engine) Told(n int) uint32 {
	if e.idle.Load() {
		return 0
	}
	return uint32(n)
}

// Busy returns how many requests run and wait, as the engine reports them.
func (e *Engine) Busy() (running, waiting uint32) {
	state := e.State()
	return e.Told(state.Running), e.Told(state.Waiting)
}

// restart restarts the engine as a new process would, on the same ports.
type restart struct {
	mu        sync.Mutex
	listeners []*conns.Listener
	underway  atomic.Bool // no connections are taken meanwhile
}

// Listen takes a server's listener, whose connections faults strike.
func (e *Engine) Listen(l net.Listener) *conns.Listener {
	tracked := conns.New(l, &e.gate, &e.restart.underway, e.strikeConn)
	e.restart.mu.Lock()
	defer e.restart.mu.Unlock()
	e.restart.listeners = append(e.restart.listeners, tracked)
	return tracked
}

func (e *Engine) strikeConn() (sim.Fault, bool) {
	e.faultsMu.Lock()
	defer e.faultsMu.Unlock()
	return e.faults.Connection()
}

// resetAll resets all connections, and takes no more for now.
func (e *Engine) resetAll() {
	e.restart.underway.Store(true)
	e.restart.mu.Lock()
	listeners := e.restart.listeners
	e.restart.mu.Unlock()
	for _, l := range listeners {
		l.ResetAll()
	}
}

// begin ends all work of the engine. It resets connections, which ends their requests, and
// aborts the requests in the core.
func (e *Engine) begin() {
	e.resetAll()
	for _, j := range e.jobs {
		if j != nil {
			e.End(j, infer.ReasonAbort)
		}
	}
}

// restarted ends a restart, once the core has nothing left.
func (e *Engine) restarted() {
	if e.Died() != nil || !e.restart.underway.Load() || !e.core.FlushCache() {
		return
	}
	e.legs.past = nil
	e.rename()
	e.publish()
	e.restart.underway.Store(false)
	if e.opts.KVEvents != nil {
		for i := range e.o.DPSize { // of the process that has ended
			e.kvEvents = e.core.KVEvents(i, e.kvEvents[:0])
		}
		e.opts.KVEvents.Restart()
	}
}

// Die ends the engine, with everything that it is doing.
func (e *Engine) Die(why error) {
	e.dieOnce.Do(func() {
		e.why = why
		close(e.dead)
	})
}

// Died returns why the engine ended by itself, or nil if it did not. It must be called
// after Run has returned.
func (e *Engine) Died() error {
	select {
	case <-e.dead:
		return e.why
	default:
		return nil
	}
}

// Pause makes the whole engine stand still for d.
func (e *Engine) Pause(d time.Duration) { e.gate.Shut(d) }

// ErrAborted is the error of a request that the engine gave up.
func ErrAborted() error {
	return infer.Errorf(infer.CodeEngine, "aborted by fault")
}
