package drive

import (
	"context"
	"time"

	"weir/internal/gateway/answer"
	"weir/internal/gateway/front"
	"weir/internal/infer"
	"weir/internal/trace"
)

// Verdict is how a step left the stream.
type Verdict uint8

const (
	Waits   Verdict = iota // for the engine
	Blocked                // for the client to take what was sent
	Ended                  // with s.Err
)

// step advances the stream as far as possible without waiting: it reads the engine's
// output and sends the resulting part of the answer. A panic in it ends this stream and
// no other.
func (s *Stream) step(w *Worker) (v Verdict) {
	w.begin()
	defer w.trim()
	defer s.Caught(&v)
	v, err := s.advance(w)
	if err != nil {
		s.Err, s.Told = infer.AsError(err), false
	}
	return v
}

func (s *Stream) advance(w *Worker) (Verdict, error) {
	for round := 0; ; round++ {
		over := s.Ctx.Err() != nil
		if over && !s.Leg.Whole() {
			return Ended, infer.AsError(context.Cause(&s.Ctx))
		}
		ok, err := s.Leg.Take(&w.hand, round)
		if err != nil {
			return Ended, err
		}
		if !ok {
			return Waits, nil
		}
		part := s.Answer.Next(&w.hand.In, &w.hand.Scratch, &s.Record)
		if len(part.Stops) > 0 {
			s.Leg.Stop(part.Stops, part.Last)
		}
		if part.Last || part.Err != nil {
			s.Ending, s.Told, s.Err = true, part.Last, s.blamed(part.Err)
		}
		if part.Err != nil && !s.Response.Begun && !s.relayed() {
			part.Out = nil // another attempt begins anew, or an error with its status follows
		}
		if len(part.Out) > 0 || part.Last {
			if !s.Answering {
				if part.Out, err = s.owner.Begins(part); err != nil {
					return Ended, err
				}
				s.Answering = true
			}
			if s.Record.Timed && s.Response.Events {
				part.Out = s.Record.WithTiming(part.Out, part.Last)
			}
			if over && part.Last { // nobody waits for the end of framing any more
				_, _ = s.Response.Carrier.Send(&w.frame, part.Out, true)
				return Ended, nil
			}
			if v, err := s.send(w, part.Out, part.Last); v != Waits {
				return v, err
			}
		}
		if s.Ending {
			return Ended, nil
		}
	}
}

// blamed is a failure with the engine's name.
func (s *Stream) blamed(err error) *infer.Error {
	e := infer.AsError(err)
	if e != nil && e.Engine == "" && !s.relayed() {
		e.Engine = s.Leg.Engine()
	}
	return e
}

// relayed reports whether the answer is relayed.
func (s *Stream) relayed() bool {
	_, relayed := s.Answer.(*answer.Relayed)
	return relayed
}

// send is stage 13, flush: one write to the client of all there is.
func (s *Stream) send(w *Worker, b []byte, last bool) (Verdict, error) {
	now := s.Record.Enter(trace.Flush)
	if err := s.Response.Arm(&s.Ctx, now, s.shard.of.write); err != nil {
		return Ended, err
	}
	if p := s.Record.Pace; p != nil && p.Sent == 0 {
		p.Sent = now
		if delay, ok := s.Record.OutputDelay(); ok {
			s.shard.of.watch.Delayed(time.Duration(delay))
		}
	}
	whole, err := s.Response.Carrier.Send(&w.frame, b, last)
	switch {
	case err != nil:
		return Ended, front.Lost(&s.Ctx, err, s.shard.of.write)
	case !whole:
		s.Response.Blocked += len(b)
		if !s.Response.Detached() && !s.Ending && (s.Leg.Ready() || s.Response.Events && s.Record.Flushes < lingering && s.Response.Blocked < glanced && s.Leg.Glance()) {
			return Waits, nil // what has come joins the write
		}
		return Blocked, nil
	}
	w.writes++
	w.bytes += len(b)
	s.noteWrite(len(b))
	return Waits, nil
}

// sendRest waits for the client to take what is left of a write, bounded by the
// write deadline. A client that does not read is given up; only its own stream
// waits for it.
func (s *Stream) sendRest() (v Verdict) {
	defer s.Caught(&v)
	if err := s.Response.Carrier.Rest(); err != nil {
		s.Err, s.Told = infer.AsError(front.Lost(&s.Ctx, err, s.shard.of.write)), false
		return Ended
	}
	s.shard.of.metrics.Wrote(1, s.Response.Blocked)
	s.noteWrite(s.Response.Blocked)
	s.Response.Blocked = 0
	if s.Ending {
		return Ended
	}
	s.Record.Enter(trace.Engine)
	return Waits
}

// noteWrite puts a write of n bytes into the record.
func (s *Stream) noteWrite(n int) {
	s.Record.Flushes++
	s.Record.BytesOut += int64(n)
	if s.shard.of.opts.FlushInterval > 0 {
		if s.gathers == nil {
			s.gathers = new(gathering)
		}
		s.gathers.since = trace.Now()
	}
	if s.Record.FirstFlushed == 0 {
		s.Record.FirstFlushed = trace.Now()
	}
}

// Caught turns a panic into a failure of this request only. It is deferred.
func (s *Stream) Caught(v *Verdict) {
	if p := recover(); p != nil {
		s.Err, s.Told = s.shard.of.recorder.Panic(s.Record.RequestID, p), false
		*v = Ended
	}
}

// SendError ends a stream with an error's event, if it can be appended. The client may be gone by
// now, which changes nothing. patience bounds the wait for it.
func (s *Stream) SendError(e *infer.Error, patience time.Duration) {
	out, ok := s.Answer.AppendError(nil, e)
	if !ok {
		return
	}
	d, r := s.shard.of, &s.Response
	r.ExtendDeadline(trace.Now(), patience)
	w := d.worker()
	whole, err := r.Carrier.Send(&w.frame, out, false)
	w.trim()
	d.workers.Put(w)
	if !whole && err == nil {
		err = r.Carrier.Rest()
	}
	if err == nil {
		d.metrics.Wrote(1, len(out))
		s.noteWrite(len(out))
	}
}
