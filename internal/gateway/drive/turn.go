package drive

import (
	"sync/atomic"

	"weir/internal/trace"
)

// The states of a driven stream. The goroutine that moves it from parked to queued puts it
// into its queue; news that comes while it runs is seen by its turn's end.
const (
	parked int32 = iota
	queued
	running
	again
)

// Depart continues a stream that has left net/http, whose handler must return. Its
// steps are turns from now on, except if it has a flush interval or its engine cannot
// be polled.
func (s *Stream) Depart(v Verdict) {
	s.shard.of.streams.Add(1)
	defer s.Rescue()
	s.assign()
	s.Proceed(v)
}

// Proceed continues a stream that has left net/http with a new leg.
func (s *Stream) Proceed(v Verdict) {
	s.state.Store(running)
	switch {
	case v == Ended:
		s.overApart()
	case s.shard.of.opts.FlushInterval == 0 && s.Leg.Drive(s):
		if v == Waits { // something may have come before it was driven
			v = s.stepOnce()
		}
		s.Record.Driven()
		s.park(v)
	default:
		go func() {
			s.Follow(v)
			s.owner.Over()
		}()
	}
}

// Rescue ends the stream after a panic outside of its steps. Goroutines that also serve
// other streams defer it and then continue with those.
func (s *Stream) Rescue() {
	if p := recover(); p != nil {
		s.Err, s.Told = s.shard.of.recorder.Panic(s.Record.RequestID, p), false
		go s.owner.Finish()
	}
}

// Turn gives a driven stream a step.
func (s *Stream) Turn(w *Worker) {
	defer s.Rescue()
	s.state.Store(running)
	v := s.step(w)
	if v != Waits {
		w.hand.Tally.Tell() // another goroutine tells its end, which must come later
	}
	s.park(v)
}

// park leaves a driven stream until the next event.
func (s *Stream) park(v Verdict) {
	switch v {
	case Waits:
		if !s.state.CompareAndSwap(running, parked) {
			s.queueTurn()
		}
	case Blocked:
		s.Record.Publish(trace.Flush, trace.Now())
		s.shard.of.blocked.Add(1)
		go func() {
			v := s.sendRest()
			s.shard.of.blocked.Add(-1)
			if v == Ended {
				s.owner.Over()
			} else {
				s.Record.Publish(trace.Engine, trace.Now())
				s.queueTurn()
			}
		}()
	case Ended:
		s.overApart()
	}
}

// Notify asks for a turn. It never blocks and may be called by anyone. It implements
// stream.Notified.
func (s *Stream) Notify() {
	if s.claim(queued) {
		s.shard.push(s)
	}
}

// queueTurn asks for a turn on behalf of the stream itself.
func (s *Stream) queueTurn() {
	s.state.Store(queued)
	s.shard.push(s)
}

// Poll gives the stream a turn whenever an engine's socket that is read without waiting has input.
// hup is set if the peer has also ended its side, or if the connection broke. Unpoll ends that by
// stop, although a turn may still be under way. It must be called before the socket is closed or
// handed on.
func (s *Stream) Poll(fd int, hup *atomic.Bool) (stop func(), err error) {
	d := s.shard.of
	stop, err = d.Polls.Poll(fd, func(w *Worker, ended bool) {
		if ended {
			hup.Store(true)
		}
		if s.claim(running) {
			s.Turn(w)
		}
	})
	if err == nil {
		d.polled.Add(1)
	}
	return stop, err
}

// Unpoll ends what Poll has begun.
func (s *Stream) Unpoll(stop func()) {
	stop()
	s.shard.of.polled.Add(-1)
}

// claim moves a parked stream to the state given. A stream that has its turn, or waits
// for it, sees the news all the same.
func (s *Stream) claim(state int32) bool {
	for {
		switch s.state.Load() {
		case parked:
			if s.state.CompareAndSwap(parked, state) {
				return true
			}
		case running:
			if s.state.CompareAndSwap(running, again) {
				return false
			}
		default:
			return false
		}
	}
}

// overApart calls Over in a goroutine: the end of a connection may wait.
func (s *Stream) overApart() {
	d := s.shard.of
	d.ending.Add(1)
	go func() {
		defer d.ending.Add(-1)
		d.Assist()
		s.owner.Over()
	}()
}

// Parked reports whether the stream, which is driven, waits for its next event.
func (s *Stream) Parked() bool { return s.state.Load() == parked }

// Hold takes the turn of a driven stream that is parked, and reports whether it was. Until Release
// the stream is the caller's.
func (s *Stream) Hold() bool { return s.state.CompareAndSwap(parked, running) }

// Release gives back a turn, which the stream gets if something came meanwhile.
func (s *Stream) Release() { s.park(Waits) }

// Take appends the streams that wait for a turn by a worker to all, for who gives turns by himself.
func (d *Driver) Take(worker int, all []*Stream) []*Stream {
	of := d.outputs.shards[worker]
	of.mu.Lock()
	defer of.mu.Unlock()
	all = append(all, of.queue...)
	clear(of.queue)
	of.queue = of.queue[:0]
	return all
}

// NewWorker makes a worker for who gives turns by himself.
func (d *Driver) NewWorker() *Worker { return &Worker{metrics: d.metrics, meter: d.meter} }
