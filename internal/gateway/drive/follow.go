package drive

import (
	"context"
	"runtime"
	"time"

	"weir/internal/gateway/stream"
	"weir/internal/infer"
	"weir/internal/trace"
)

// Conclude ends an answer that is whole although its engine failed before it sent the
// end.
func (s *Stream) Conclude(reason infer.Reason) {
	w := s.shard.of.worker()
	defer s.shard.of.workers.Put(w)
	defer w.trim()
	w.hand.In.Cells = []stream.Cell{{Finish: &infer.Finish{Reason: reason, PromptTokens: -1, CachedTokens: -1}}}
	part := s.Answer.Next(&w.hand.In, &w.hand.Scratch, &s.Record)
	s.Ending, s.Told, s.Err = true, part.Last, infer.AsError(part.Err)
	if s.Record.Timed {
		part.Out = s.Record.WithTiming(part.Out, part.Last)
	}
	switch v, err := s.send(w, part.Out, part.Last); {
	case err != nil:
		s.Err, s.Told = infer.AsError(err), false
	case v == Blocked:
		s.sendRest()
	}
}

// Follow gives the stream its steps from a goroutine that may block, to its end or
// until it leaves net/http. It begins with what v, the step before, waits for.
func (s *Stream) Follow(v Verdict) (last Verdict) {
	defer s.Caught(&last)
	for s.await(v) != Ended {
		if v = s.stepOnce(); v != Blocked || s.Ending {
			continue
		}
		if s.lingers() {
			if v = s.sendRest(); v == Ended {
				return Ended
			}
			runtime.Gosched()
			if s.Leg.Glance() {
				continue
			}
		}
		if was, ok := s.Response.Detach(s.shard.of.front); ok {
			if v == Blocked {
				v = s.sendFirst(was.Kept)
			}
			was.Release()
			return v
		}
	}
	return Ended
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
func (s *Stream) lingers() bool {
	if s.Response.Detached() || !s.Response.Events || s.Record.Flushes >= lingering || s.shard.of.opts.FlushInterval > 0 || !s.relayed() {
		return false
	}
	return s.Response.MayDetach()
}

// sendFirst writes what a stream has that has just left net/http.
func (s *Stream) sendFirst(b []byte) (v Verdict) {
	defer s.Caught(&v)
	s.Response.Blocked = 0
	w := s.shard.of.worker()
	defer s.shard.of.workers.Put(w)
	defer w.Idle()
	w.begin()
	defer w.trim()
	v, err := s.send(w, b, false)
	if err != nil {
		s.Err, s.Told = infer.AsError(err), false
	} else if v == Waits {
		s.Record.Enter(trace.Engine)
	}
	return v
}

// stepOnce is a step by a goroutine that is no worker.
func (s *Stream) stepOnce() Verdict {
	w := s.shard.of.worker()
	v := s.step(w)
	w.Idle()
	s.shard.of.workers.Put(w)
	return v
}

// await blocks until the stream can take its next step. It returns ended if there is
// none.
func (s *Stream) await(v Verdict) Verdict {
	switch v {
	case Ended:
		return Ended
	case Blocked:
		if s.sendRest() == Ended {
			return Ended
		}
	}
	if left := s.gathers.left(s.shard.of.opts.FlushInterval); left > 0 && !s.Leg.More() {
		s.Record.Enter(trace.Merge)
		s.gathers.hold(&s.Ctx, left)
		s.Record.Enter(trace.Engine)
	}
	if v == Waits {
		s.Leg.Wait()
	}
	return Waits
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

// Stop ends what gathers output.
func (s *Stream) Stop() { s.gathers.stop() }
