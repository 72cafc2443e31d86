package vllmcore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/engine/remote"
	"weir/internal/trace"
	"weir/internal/zmtp"
)

// session is one engine's two connections, from its word that it can serve to the
// loss of either. It is never revived: a new one takes its place.
//
// Neither connection tells which engine is at the other end of the output, so a
// session begins with a question sent over the input; the connection on which its
// answer comes is the output.
type session struct {
	e      *Engine
	opts   *Options
	rank   int
	ready  ready
	in     *zmtp.Conn
	output atomic.Pointer[zmtp.Conn]

	ctx    context.Context // ends with the session; its cause says why
	cancel context.CancelCauseFunc

	table *table
	out   *outbox
	load  load
	heard atomic.Uint64 // messages of the engine
	use   atomic.Int32  // opening, serving or ended; never back

	mu   sync.Mutex // of whoever dispatches
	over bool
	disp dispatcher
}

// The states of a session's use. Answers may still be read while it ends: they
// must not bring it back.
const (
	opening int32 = iota // the first question was not answered yet
	serving
	ended
)

// up says whether requests can be handed to the engine.
func (s *session) up() bool { return s.use.Load() == serving }

// load is what an engine last said of its load.
type load struct {
	running, waiting atomic.Int64
	kvUsage          atomic.Uint64 // a float64's bits
}

// score is what a rank is chosen by, the least first, as vLLM's own front end
// does. What an engine says is a step old and rides on outputs only, so its word is
// void once nothing of ours is in flight.
func (s *session) score() float64 {
	mine := float64(s.table.live())
	if mine == 0 {
		return 0
	}
	waiting := float64(s.load.waiting.Load())
	kv := math.Float64frombits(s.load.kvUsage.Load())
	return max(mine, waiting+float64(s.load.running.Load())) + 6*waiting*max(0, kv-0.5)
}

func (e *Engine) newSession(ctx context.Context, rank int, r ready, in *zmtp.Conn) *session {
	s := &session{e: e, opts: &e.opts, rank: rank, ready: r, in: in,
		table: &table{all: map[string]*generation{}}, out: newOutbox(e.opts.MaxQueued)}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.disp = dispatcher{engine: e.opts.Name, rank: rank, context: r.contextLength, table: s.table, out: s.out, meters: &e.meters}
	return s
}

// end ends the session; the first to say why is believed.
func (s *session) end(why Loss, cause error) { s.cancel(&loss{why: why, cause: cause}) }

// run serves the session to its end and gives every generation its terminal delta.
// It reads the input connection, on which nothing more comes than its end.
func (s *session) run() (lost []string, end *loss) {
	stop := context.AfterFunc(s.ctx, func() {
		s.in.Close()
		if c := s.output.Load(); c != nil {
			c.Close()
		}
	})
	defer stop()
	var writer sync.WaitGroup
	writer.Go(s.write)
	s.out.ask()
	for {
		if _, err := s.in.Recv(); err != nil {
			s.end(LossConnection, fmt.Errorf("its input connection: %w", err))
			break
		}
	}
	if !errors.As(context.Cause(s.ctx), &end) {
		end = &loss{why: LossClosed, cause: context.Cause(s.ctx)}
	}
	// No new request comes in, the router looks elsewhere, and only then do those
	// that end here look for another engine.
	s.use.Store(ended)
	s.e.note(fmt.Errorf("engine %d: %w", s.rank, end))
	writer.Wait()
	return s.close(end), end
}

// close gives every generation its terminal delta. Nothing is dispatched after it.
func (s *session) close(end *loss) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	s.out.close()
	s.begin()
	defer s.finish()
	return s.disp.close(end.terminal(s.opts.Name), trace.Now())
}

func (s *session) begin() {
	if s.opts.Batch != nil {
		s.opts.Batch.Begin()
	}
}

func (s *session) finish() {
	if s.opts.Batch != nil {
		s.opts.Batch.End()
	}
}

// write is the writer: it sends what the outbox holds, asks the engine for a sign
// of life when it gives none, and gives it up when none comes.
func (s *session) write() {
	every := s.opts.ProbeInterval
	tick := time.NewTicker(every)
	defer tick.Stop()
	dog := remote.Watchdog{Interval: every, Bound: s.opts.ProbeTimeout}
	last := time.Now()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.out.wake:
			if err := s.flush(); err != nil {
				why := LossConnection
				if errors.Is(err, os.ErrDeadlineExceeded) {
					why = LossSilent
					err = fmt.Errorf("it has not read what was written for %v", s.opts.WriteTimeout)
				}
				s.end(why, err)
				return
			}
		case now := <-tick.C:
			elapsed := now.Sub(last)
			last = now
			if dog.Tick(s.heard.Load(), elapsed) {
				s.end(LossSilent, fmt.Errorf("nothing was heard of it for %v", s.opts.ProbeTimeout))
				return
			}
			if dog.Silent > 0 {
				s.out.ask()
			}
		}
	}
}

// flush writes what there is.
func (s *session) flush() error {
	now := trace.Now()
	wire, adds, aborts := s.out.take(now)
	if len(wire) == 0 {
		return nil
	}
	for _, g := range adds {
		g.written.Store(now)
	}
	err := s.in.Write(wire)
	s.out.written(wire)
	s.e.meters.aborts.Add(uint64(aborts))
	return err
}

// receive takes in one message of the engine, read at a moment of trace's clock.
// It reports false when the session is over.
func (s *session) receive(b []byte, received int64, aux ...[]byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return false
	}
	s.heard.Add(1)
	s.begin()
	fault := s.disp.message(b, aux, received)
	if fault == nil {
		s.take(received)
	}
	s.finish()
	s.e.meters.dispatch.Add(trace.Now() - received)
	if fault != nil {
		s.end(LossIntegrity, fault)
		return false
	}
	return true
}

// take takes in what a message says of the session.
func (s *session) take(received int64) {
	d := &s.disp.batch
	if d.stats {
		s.load.running.Store(int64(d.running))
		s.load.waiting.Store(int64(d.waiting))
		s.load.kvUsage.Store(math.Float64bits(d.kvUsage))
	}
	if d.waves {
		s.e.wave(d.complete, d.start)
	}
	if !d.utility {
		return
	}
	f, sent, ok := s.out.answered(d.call)
	if !ok {
		return
	}
	s.e.meters.fences.Add(1)
	s.e.meters.fenceLast.Store(received - sent)
	// The answer was stamped between the question and its arrival. If the stamp
	// lies there on our clock, it is our clock: another machine's would have to be
	// within this fraction of a second by chance, of all the time it may be up.
	const slack = 1000 // ns, of the conversion
	s.disp.oneClock = d.timestamp >= sent-slack && d.timestamp <= received+slack
	s.disp.answered(f, received)
	if s.use.CompareAndSwap(opening, serving) {
		s.e.meters.sessions.Add(1)
		s.e.signal()
	}
}

// outputEnded ends the session because its output connection gave no more.
func (s *session) outputEnded(err error) {
	if errors.Is(err, io.EOF) {
		err = errors.New("the engine closed it")
	}
	s.end(LossConnection, fmt.Errorf("its output connection: %w", err))
}
