package vllmcore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"

	"weir/internal/engine/fenced"
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
	loras  loading
	in     *zmtp.Conn
	output atomic.Pointer[zmtp.Conn]

	ctx    context.Context // ends with the session; its cause says why
	cancel context.CancelCauseFunc

	table *fenced.Table
	out   *fenced.Outbox
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
	mine := float64(s.table.Live())
	if mine == 0 {
		return 0
	}
	waiting := float64(s.load.waiting.Load())
	kv := math.Float64frombits(s.load.kvUsage.Load())
	return max(mine, waiting+float64(s.load.running.Load())) + 6*waiting*max(0, kv-0.5)
}

func (e *Engine) newSession(ctx context.Context, rank int, r ready, in *zmtp.Conn) *session {
	s := &session{e: e, opts: &e.opts, rank: rank, ready: r, loras: newLoading(len(e.lora)), in: in,
		table: fenced.NewTable(), out: fenced.NewOutbox(e.opts.MaxQueued, code{}, 1)}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.disp = dispatcher{context: r.contextLength,
		Dispatcher: fenced.Dispatcher{Engine: e.opts.Name, Rank: rank, Table: s.table, Out: s.out, Meters: &e.meters}}
	return s
}

// end ends the session; the first to say why is believed.
func (s *session) end(why fenced.Loss, cause error) { s.cancel(&fenced.End{Why: why, Cause: cause}) }

// run serves the session to its end and gives every generation its terminal delta.
// It reads the input connection, on which nothing more comes than its end.
func (s *session) run() (lost []string, end *fenced.End) {
	stop := context.AfterFunc(s.ctx, func() {
		s.in.Close()
		if c := s.output.Load(); c != nil {
			c.Close()
		}
	})
	defer stop()
	var writer sync.WaitGroup
	writer.Go(s.write)
	s.loadAdapters()
	s.out.Ask()
	for {
		if _, err := s.in.Recv(); err != nil {
			s.end(fenced.LossConnection, fmt.Errorf("its input connection: %w", err))
			break
		}
	}
	if !errors.As(context.Cause(s.ctx), &end) {
		end = &fenced.End{Why: fenced.LossClosed, Cause: context.Cause(s.ctx)}
	}
	// No new request comes in, the router looks elsewhere, and only then do those
	// that end here look for another engine.
	s.use.Store(ended)
	s.e.host.Note(fmt.Errorf("engine %d: %w", s.rank, end))
	writer.Wait()
	return s.close(end), end
}

// close gives every generation its terminal delta. Nothing is dispatched after it.
func (s *session) close(end *fenced.End) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	s.out.Close()
	s.begin()
	defer s.finish()
	return s.disp.Close(end.Terminal(s.opts.Name), trace.Now())
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

// write is the writer, which also watches over the engine's silence.
func (s *session) write() {
	o := s.opts
	p := fenced.Patience{ProbeInterval: o.ProbeInterval, ProbeTimeout: o.ProbeTimeout, WriteTimeout: o.WriteTimeout}
	if why, err := s.out.Write(s.ctx, s.in, p, &s.heard, &s.e.meters, nil); err != nil {
		s.end(why, err)
	}
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
	s.e.meters.Dispatch.Add(trace.Now() - received)
	if fault != nil {
		s.end(fenced.LossIntegrity, fault)
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
	if !d.utility || s.adapterLoaded(d) {
		return
	}
	f, sent, ok := s.out.Answered(d.call)
	if !ok {
		return
	}
	s.e.meters.Fences.Add(1)
	s.e.meters.FenceLast.Store(received - sent)
	// The answer was stamped between the question and its arrival. If the stamp
	// lies there on our clock, it is our clock: another machine's would have to be
	// within this fraction of a second by chance, of all the time it may be up.
	const slack = 1000 // ns, of the conversion
	s.disp.oneClock = d.timestamp >= sent-slack && d.timestamp <= received+slack
	s.disp.answered(f, received)
	if s.use.CompareAndSwap(opening, serving) {
		s.e.meters.Sessions.Add(1)
		s.e.host.Signal()
	}
}

// outputEnded ends the session because its output connection gave no more.
func (s *session) outputEnded(err error) {
	if errors.Is(err, io.EOF) {
		err = errors.New("the engine closed it")
	}
	s.end(fenced.LossConnection, fmt.Errorf("its output connection: %w", err))
}
