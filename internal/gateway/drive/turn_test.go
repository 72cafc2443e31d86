package drive

import (
	"io"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"

	"weir/internal/gateway/answer"
	"weir/internal/gateway/record"
	"weir/internal/infer"
	"weir/internal/observe/metrics"
	"weir/internal/trace"
)

// idle is the leg and the owner of a stream that has nothing to take. It counts the turns.
type idle struct {
	mu              sync.Mutex
	turns, finished int
}

func (l *idle) Take(*Hand, int) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turns++
	return false, nil
}
func (l *idle) Head(http.Header, answer.Part) (int, bool) { return 0, false }
func (l *idle) Stop([]answer.Stop, bool)                  {}
func (l *idle) Whole() bool                               { return false }
func (l *idle) More() bool                                { return false }
func (l *idle) Ready() bool                               { return false }
func (l *idle) Glance() bool                              { return false }
func (l *idle) Wait()                                     {}
func (l *idle) Drive(*Stream) bool                        { return true }
func (l *idle) Engine() string                            { return "a" }
func (l *idle) Close()                                    {}
func (l *idle) Begins(answer.Part) ([]byte, error)        { return nil, nil }
func (l *idle) Over()                                     {}
func (l *idle) Finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finished++
}

// newIdle makes a driver of which nothing runs, and streams that have one worker and are driven.
func newIdle(streams int) (d *Driver, of *idle, all []*Stream) {
	m, log := metrics.New(), slog.New(slog.NewTextHandler(io.Discard, nil))
	o := new(Options)
	o.Defaults()
	d = New(o, -1, 0, nil, Sockets{}, record.New(record.Options{}, m, log, nil), m, nil, nil)
	of = new(idle)
	for range streams {
		s := new(Stream)
		s.Record.Record = new(trace.Record)
		d.Open(s, of)
		s.Leg = of
		s.assign()
		all = append(all, s)
	}
	return d, of, all
}

// Requests that begin or end give the turns of a worker that is to run and does not, at most
// yieldTurns at a time. They give none while the worker gives turns itself, and none while an
// engine's reader gathers streams. These turns are reported before assist returns.
func TestAssistGivesTurns(t *testing.T) {
	const streams = 2*yieldTurns + 5
	d, of, all := newIdle(streams)
	for _, s := range all {
		s.Notify()
	}
	s := d.outputs.shards[0]
	assisted := func(want int, why string) {
		t.Helper()
		w, before := d.NewWorker(), of.turns
		w.writes = 1
		d.outputs.assist(w)
		if of.turns != want || len(s.queue) != streams-want {
			t.Errorf("%s: %d streams have had their turns and %d wait, want %d", why, of.turns, len(s.queue), want)
		}
		if of.turns > before && (w.encodes || w.writes != 0) {
			t.Errorf("%s: it has kept what it has to report", why)
		}
	}
	s.asleep = true
	assisted(0, "a reader gathers them")
	s.asleep = false
	s.turns.Lock()
	assisted(0, "the worker gives turns")
	s.turns.Unlock()
	assisted(yieldTurns, "the worker has yielded")
	assisted(2*yieldTurns, "it has still not run")
	assisted(streams, "it has still not run")
	assisted(streams, "nothing waits")
}

// A panic outside of a step ends its stream, and no other that has its turn behind it.
func TestPanicOutsideOfAStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, of, all := newIdle(2)
		broken, s := all[0], all[1]
		broken.shard = &shard{of: &Driver{recorder: d.recorder}} // it has no options
		w := d.NewWorker()
		broken.claim(running)
		broken.Leg = &newsInTheTurn{of, broken}
		broken.Turn(w)
		s.claim(running)
		s.Turn(w)
		synctest.Wait()
		if broken.Err == nil || broken.Err.Code != infer.CodeInternal || s.Err != nil || !s.Parked() || of.turns != 2 || of.finished != 1 {
			t.Errorf("ended by %v and %v, %d turns, %d finished", broken.Err, s.Err, of.turns, of.finished)
		}
	})
}

// newsInTheTurn has the stream queue for another turn.
type newsInTheTurn struct {
	*idle
	s *Stream
}

func (l *newsInTheTurn) Take(h *Hand, round int) (bool, error) {
	l.s.Notify()
	return l.idle.Take(h, round)
}

// A worker that waits keeps no large buffer, and refers to no stream.
func TestWorkersAreTrimmed(t *testing.T) {
	w := new(Worker)
	w.frame = make([]byte, 0, keepFrame+1)
	w.hand.In.N = 1
	if w.trim(); cap(w.frame) > keepFrame || w.hand.In.N != 0 {
		t.Errorf("it keeps a frame of %d bytes, and %+v", cap(w.frame), w.hand.In)
	}
}
