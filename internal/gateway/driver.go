package gateway

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"weir/internal/gateway/answer"
	"weir/internal/gateway/front"
	"weir/internal/gateway/stream"
	"weir/internal/infer"
	"weir/internal/trace"
)

// The driver moves a stream on. There is one step, which never waits, and two ways to
// wait between steps: a goroutine that blocks (follow), and none at all, for streams
// that workers give a turn when there is something to do (turn).

// verdict is how a step left the stream.
type verdict uint8

const (
	waits   verdict = iota // for the engine
	blocked                // for the client to take what was sent
	ended                  // with x.err
)

// step advances the stream as far as possible without waiting: it reads the engine's
// output and sends the resulting part of the answer. A panic in it ends this stream and
// no other.
func (x *exchange) step(w *worker) (v verdict) {
	w.begin()
	defer w.trim()
	defer x.caught(&v)
	v, err := x.advance(w)
	if err != nil {
		x.err, x.told = infer.AsError(err), false
	}
	return v
}

func (x *exchange) advance(w *worker) (verdict, error) {
	for round := 0; ; round++ {
		over := x.ctx.Err() != nil
		if over && !x.try.Leg.Whole() {
			return ended, gone(&x.ctx)
		}
		ok, err := x.try.Leg.Take(&w.hand, round)
		if err != nil {
			return ended, err
		}
		if !ok {
			return waits, nil
		}
		part := x.try.Answer.Next(&w.hand.In, &w.hand.Scratch, &x.rec)
		if len(part.Stops) > 0 {
			x.try.Leg.Stop(part.Stops, part.Last)
		}
		if part.Last || part.Err != nil {
			x.ending, x.told, x.err = true, part.Last, x.blamed(part.Err)
		}
		if part.Err != nil && !x.response.Begun && x.try.Target.Relay == nil {
			part.Out = nil // another attempt begins anew, or an error with its status follows
		}
		if len(part.Out) > 0 || part.Last {
			if !x.answering {
				if err := x.begins(&part); err != nil {
					return ended, err
				}
			}
			if x.rec.Timed && x.response.Events {
				part.Out = x.rec.WithTiming(part.Out, part.Last)
			}
			if over && part.Last { // nobody waits for the end of framing any more
				_, _ = x.response.Carrier.Send(&w.frame, part.Out, true)
				return ended, nil
			}
			if v, err := x.send(w, part.Out, part.Last); v != waits {
				return v, err
			}
		}
		if x.ending {
			return ended, nil
		}
	}
}

// begins has the first part of an attempt's answer begin the response, or go on with it. An
// error is why it does not: another attempt follows.
func (x *exchange) begins(part *answer.Part) error {
	begun := x.response.Begun
	if err := x.try.Begins(part); err != nil {
		return err
	}
	if x.answering = true; !begun {
		x.open(*part)
	}
	return nil
}

// blamed is a failure with the engine's name.
func (x *exchange) blamed(err error) *infer.Error {
	e := infer.AsError(err)
	if e != nil && e.Engine == "" && x.try.Target.Relay == nil {
		e.Engine = x.try.Target.Name
	}
	return e
}

// send is stage 13, flush: one write to the client of all there is.
func (x *exchange) send(w *worker, b []byte, last bool) (verdict, error) {
	now := x.rec.Enter(trace.Flush)
	if err := x.response.Arm(&x.ctx, now, x.g.opts.Front.WriteTimeout); err != nil {
		return ended, err
	}
	if p := x.rec.Pace; p != nil && p.Sent == 0 {
		p.Sent = now
		if delay, ok := x.rec.OutputDelay(); ok {
			x.g.opts.Watch.Delayed(time.Duration(delay))
		}
	}
	whole, err := x.response.Carrier.Send(&w.frame, b, last)
	switch {
	case err != nil:
		return ended, front.Lost(&x.ctx, err, x.g.opts.Front.WriteTimeout)
	case !whole:
		x.response.Blocked += len(b)
		if !x.response.Detached() && !x.ending && (x.try.Leg.Ready() || x.response.Events && x.rec.Flushes < lingering && x.response.Blocked < glanced && x.try.Leg.Glance()) {
			return waits, nil // what has come joins the write
		}
		return blocked, nil
	}
	w.writes++
	w.bytes += len(b)
	x.noteWrite(len(b))
	return waits, nil
}

// sendRest waits for the client to take what is left of a write, bounded by the
// write deadline. A client that does not read is given up; only its own stream
// waits for it.
func (x *exchange) sendRest() (v verdict) {
	defer x.caught(&v)
	if err := x.response.Carrier.Rest(); err != nil {
		x.err, x.told = infer.AsError(front.Lost(&x.ctx, err, x.g.opts.Front.WriteTimeout)), false
		return ended
	}
	x.g.opts.Metrics.Wrote(1, x.response.Blocked)
	x.noteWrite(x.response.Blocked)
	x.response.Blocked = 0
	if x.ending {
		return ended
	}
	x.rec.Enter(trace.Engine)
	return waits
}

// noteWrite puts a write of n bytes into the record.
func (x *exchange) noteWrite(n int) {
	x.rec.Flushes++
	x.rec.BytesOut += int64(n)
	if x.g.opts.Stream.FlushInterval > 0 {
		if x.gathers == nil {
			x.gathers = new(gathering)
		}
		x.gathers.since = trace.Now()
	}
	if x.rec.FirstFlushed == 0 {
		x.rec.FirstFlushed = trace.Now()
	}
}

// conclude ends an answer that is whole although its engine failed before it sent the
// end.
func (x *exchange) conclude(reason infer.Reason) {
	w := x.g.worker()
	defer x.g.workers.Put(w)
	defer w.trim()
	w.hand.In.Cells = []stream.Cell{{Finish: &infer.Finish{Reason: reason, PromptTokens: -1, CachedTokens: -1}}}
	part := x.try.Answer.Next(&w.hand.In, &w.hand.Scratch, &x.rec)
	x.ending, x.told, x.err = true, part.Last, infer.AsError(part.Err)
	if x.rec.Timed {
		part.Out = x.rec.WithTiming(part.Out, part.Last)
	}
	switch v, err := x.send(w, part.Out, part.Last); {
	case err != nil:
		x.err, x.told = infer.AsError(err), false
	case v == blocked:
		x.sendRest()
	}
}

// follow gives the stream its steps from a goroutine that may block, to its end or
// until it leaves net/http. It begins with what v, the step before, waits for.
func (x *exchange) follow(v verdict) (last verdict) {
	defer x.caught(&last)
	for x.await(v) != ended {
		if v = x.stepOnce(); v != blocked || x.ending {
			continue
		}
		if x.lingers() {
			if v = x.sendRest(); v == ended {
				return ended
			}
			runtime.Gosched()
			if x.try.Leg.Glance() {
				continue
			}
		}
		if was, ok := x.response.Detach(x.g.front); ok {
			if v == blocked {
				v = x.sendFirst(was.Kept)
			}
			was.Release()
			return v
		}
	}
	return ended
}

const (
	// glanced is how many bytes a write may have and still wait for a look whether more has come.
	glanced = 1 << 10
	// lingering is how many writes a stream may make from where it began.
	lingering = 4
)

// lingers reports whether the stream sends its next write from where it is, and leaves only if
// its engine has not sent more by then. An answer of a few tokens comes within the time that its
// first write takes. To leave, which gives the engine's socket to a poller and takes it back,
// costs a third as much again as all else that such a request does.
func (x *exchange) lingers() bool {
	if x.response.Detached() || !x.response.Events || x.try.Target.Relay == nil || x.rec.Flushes >= lingering || x.g.opts.Stream.FlushInterval > 0 {
		return false
	}
	return x.response.MayDetach()
}

// sendFirst writes what a stream has that has just left net/http.
func (x *exchange) sendFirst(b []byte) (v verdict) {
	defer x.caught(&v)
	x.response.Blocked = 0
	w := x.g.worker()
	defer x.g.workers.Put(w)
	defer w.Idle()
	w.begin()
	defer w.trim()
	v, err := x.send(w, b, false)
	if err != nil {
		x.err, x.told = infer.AsError(err), false
	} else if v == waits {
		x.rec.Enter(trace.Engine)
	}
	return v
}

// stepOnce is a step by a goroutine that is no worker.
func (x *exchange) stepOnce() verdict {
	w := x.g.worker()
	v := x.step(w)
	w.Idle()
	x.g.workers.Put(w)
	return v
}

// await blocks until the stream can take its next step. It returns ended if there is
// none.
func (x *exchange) await(v verdict) verdict {
	switch v {
	case ended:
		return ended
	case blocked:
		if x.sendRest() == ended {
			return ended
		}
	}
	if left := x.gathers.left(x.g.opts.Stream.FlushInterval); left > 0 && !x.try.Leg.More() {
		x.rec.Enter(trace.Merge)
		x.gathers.hold(&x.ctx, left)
		x.rec.Enter(trace.Engine)
	}
	if v == waits {
		x.try.Leg.Wait()
	}
	return waits
}

// gathering lets output gather for a flush interval since the last write: fewer and
// larger writes, for a bounded delay. The first output is never held. Without an
// interval, what merges merges because the gateway or the client is busy.
type gathering struct {
	since int64 // of the last write
	timer *time.Timer
}

// left is how long output gathers from now on.
func (g *gathering) left(interval time.Duration) time.Duration {
	if g == nil {
		return 0
	}
	return interval - time.Duration(trace.Now()-g.since)
}

func (g *gathering) hold(ctx context.Context, left time.Duration) {
	if g.timer == nil {
		g.timer = time.NewTimer(left)
	} else {
		g.timer.Reset(left)
	}
	select {
	case <-g.timer.C:
	case <-ctx.Done():
	}
}

func (g *gathering) stop() {
	if g != nil && g.timer != nil {
		g.timer.Stop()
	}
}

// depart continues a stream that has left net/http, whose handler must return. Its
// steps are turns from now on, except if it has a flush interval or its engine cannot
// be polled.
func (x *exchange) depart(v verdict) {
	x.g.streams.Add(1)
	defer x.rescue()
	if x.shard == nil {
		x.shard = x.g.outputs.assign()
	}
	x.proceed(v)
}

// proceed continues a stream that has left net/http with a new leg.
func (x *exchange) proceed(v verdict) {
	x.state.Store(running)
	switch {
	case v == ended:
		x.overApart()
	case x.g.opts.Stream.FlushInterval == 0 && x.try.Leg.Drive(x):
		if v == waits { // something may have come before it was driven
			v = x.stepOnce()
		}
		x.rec.Driven()
		x.park(v)
	default:
		go func() {
			x.follow(v)
			x.over()
		}()
	}
}

// rescue ends the stream after a panic outside of its steps. Goroutines that also serve
// other streams defer it and then continue with those.
func (x *exchange) rescue() {
	if p := recover(); p != nil {
		x.err, x.told = x.g.recorder.Panic(x.rec.RequestID, p), false
		go x.finish()
	}
}

// turn gives a driven stream a step.
func (x *exchange) turn(w *worker) {
	defer x.rescue()
	x.state.Store(running)
	v := x.step(w)
	if v != waits {
		w.hand.Tally.Tell() // another goroutine tells its end, which must come later
	}
	x.park(v)
}

// park leaves a driven stream until the next event.
func (x *exchange) park(v verdict) {
	switch v {
	case waits:
		if !x.state.CompareAndSwap(running, parked) {
			x.queueTurn()
		}
	case blocked:
		x.rec.Publish(trace.Flush, trace.Now())
		x.g.blocked.Add(1)
		go func() {
			v := x.sendRest()
			x.g.blocked.Add(-1)
			if v == ended {
				x.over()
			} else {
				x.rec.Publish(trace.Engine, trace.Now())
				x.queueTurn()
			}
		}()
	case ended:
		x.overApart()
	}
}

// Parked implements record.Stream.
func (x *exchange) Parked() bool { return x.state.Load() == parked }

// Tokens implements record.Stream.
func (x *exchange) Tokens() (n int, ok bool) {
	if x.rec.IsDriven() {
		if !x.state.CompareAndSwap(parked, running) {
			return 0, false // somebody else has its turn
		}
		n = x.try.Tokens()
		x.park(waits) // which gives it a turn if something came meanwhile
		return n, true
	}
	if box := x.try.Mailbox(); box != nil {
		return box.Received()
	}
	return 0, false
}

// The states of a driven stream. The goroutine that moves it from parked to queued puts it
// into its queue; news that comes while it runs is seen by its turn's end.
const (
	parked int32 = iota
	queued
	running
	again
)

// turns decides who gives a driven stream its turns and when, and says how far they have come.
type turns struct {
	shard     *shard
	state     atomic.Int32
	anew      uint8 // how often the request was prepared again
	ending    bool  // the answer has had its last part, and err is how it ended
	told      bool  // and that part has told the client
	answering bool  // a part of the answer has come from the attempt
}

// Notify asks for a turn. It never blocks and may be called by anyone. It implements
// stream.Notified.
func (x *exchange) Notify() {
	if x.claim(queued) {
		x.shard.push(x)
	}
}

// queueTurn asks for a turn on behalf of the stream itself.
func (x *exchange) queueTurn() {
	x.state.Store(queued)
	x.shard.push(x)
}

// Poll implements attempt.Driven.
func (x *exchange) Poll(fd int, hup *atomic.Bool) (stop func(), err error) {
	return x.g.polls.poll(fd, func(w *worker, ended bool) {
		if ended {
			hup.Store(true)
		}
		if x.claim(running) {
			x.turn(w)
		}
	})
}

// claim moves a parked stream to the state given. A stream that has its turn, or waits
// for it, sees the news all the same.
func (t *turns) claim(state int32) bool {
	for {
		switch t.state.Load() {
		case parked:
			if t.state.CompareAndSwap(parked, state) {
				return true
			}
		case running:
			if t.state.CompareAndSwap(running, again) {
				return false
			}
		default:
			return false
		}
	}
}

// caught turns a panic into a failure of this request only. It is deferred.
func (x *exchange) caught(v *verdict) {
	if p := recover(); p != nil {
		x.err, x.told = x.g.recorder.Panic(x.rec.RequestID, p), false
		*v = ended
	}
}
