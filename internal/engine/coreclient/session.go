package coreclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"weir/internal/engine"
	"weir/internal/engine/mux"
	"weir/internal/infer"
	"weir/internal/trace"
	"weir/internal/wire/zmtp"
)

// Wire decodes the messages of a session's engine. Message is called by one goroutine
// at a time.
type Wire interface {
	// Core returns the part that does not depend on the wire's encoding. NewSession
	// initializes it.
	Core() *Dispatcher
	// Message processes a message that was read at a time of trace's clock. An error
	// ends the session: an *mux.End for the reason that it names, a *mux.Fault because
	// a check failed.
	Message(frames [][]byte, received int64) error
}

// Config configures a Session.
type Config struct {
	*Options
	Kind   string // of the engine
	Label  string // "engine 3: ", the beginning of the note of the session's end
	Rank   int
	Host   *Host
	Meters *Meters
	In     *zmtp.Conn // the connection for requests
	Code   Code
	Ranks  int // each of which answers a fence
}

// Session is one engine, from the connection of its input to the loss of any of its
// connections. It is never revived: a new one takes its place.
type Session struct {
	Table *Table
	Out   *Outbox

	config Config
	wire   Wire
	ctx    context.Context // ends with the session; its cause says why
	cancel context.CancelCauseFunc
	heard  atomic.Uint64 // messages of the engine
	use    atomic.Int32  // opening, serving or ended; never back

	mu     sync.Mutex // of whoever dispatches
	over   bool
	reader engine.Reader
}

// The states of a session's use. Answers may still be read while it ends: they must
// not bring it back.
const (
	opening int32 = iota // the first question was not answered yet
	serving
	ended
)

// NewSession makes a Session, which ends with ctx at the latest. The cause of its end
// may be a *mux.End.
func NewSession(ctx context.Context, c Config, w Wire) *Session {
	s := &Session{Table: NewTable(), Out: NewOutbox(c.MaxQueued, c.Code, c.Ranks), config: c, wire: w, reader: engine.NewReader(c.Batch, c.Kind)}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	d := w.Core()
	d.Engine, d.Panicked, d.rank, d.table, d.out, d.meters = c.Name, c.Panicked, c.Rank, s.Table, s.Out, c.Meters
	return s
}

// Up reports whether requests can be handed to the engine.
func (s *Session) Up() bool { return s.use.Load() == serving }

// Probe waits until the engine has answered a fence that was sent after the call.
func (s *Session) Probe(ctx context.Context) error {
	select {
	case <-s.Out.Probe():
		return nil
	case <-s.ctx.Done():
		return s.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Err returns why the session has ended; nil: it has not.
func (s *Session) Err() error { return context.Cause(s.ctx) }

// End ends the session. The error of the first call is kept.
func (s *Session) End(why mux.Loss, cause error) { s.cancel(&mux.End{Why: why, Cause: cause}) }

// Run serves the session to its end, as its writer, and gives every generation its
// terminal delta. hangUp closes the session's connections; it is called once, when the
// session ends. tick, if not nil, is called once per probe interval, never at the same
// time as Message. Run returns the ids of the requests that the engine may still have.
func (s *Session) Run(hangUp func(), tick func(now int64)) (lost []string) {
	c := &s.config
	hangUp = sync.OnceFunc(hangUp)
	stop := context.AfterFunc(s.ctx, hangUp) // which ends a write that waits
	defer stop()
	s.write(tick)
	end := &mux.End{Why: mux.LossClosed, Cause: s.Err()}
	errors.As(s.Err(), &end)
	// The engine's connections are gone before the loss is known: an engine that
	// connects again then connects to the next session. No new request comes in, the
	// router looks elsewhere, and only then do those that end here look for another
	// engine.
	hangUp()
	s.use.Store(ended)
	c.Host.Note(fmt.Errorf("%s%w", c.Label, end))
	lost = s.Close(end)
	c.Meters.Lost[end.Why].Add(1)
	return lost
}

// write sends what there is to send, until the session ends.
func (s *Session) write(tick func(now int64)) {
	defer func() { s.caught(recover()) }()
	c := &s.config
	s.Out.Ask()
	if why, err := s.Out.Write(s.ctx, c.In, c.Options, &s.heard, c.Meters, func(now int64) { s.tick(tick, now) }); err != nil {
		s.End(why, err)
	}
}

// caught makes a panic the end of the session.
func (s *Session) caught(recovered any) {
	if p := infer.Caught(recovered, s.config.Panicked); p != nil {
		s.End(mux.LossPanic, p)
	}
}

// Close returns every generation its terminal delta. Nothing is dispatched after it.
func (s *Session) Close(end *mux.End) (lost []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	s.Out.Close()
	now := trace.Now()
	s.reader.Begin(now)
	defer s.reader.End(0)
	return s.wire.Core().close(end.Terminal(s.config.Name), now)
}

func (s *Session) tick(f func(now int64), now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || f == nil {
		return
	}
	s.reader.Begin(now)
	defer s.reader.End(0)
	f(now)
}

// Receive processes a message of the engine that was read at a time of trace's clock.
// It returns false if the session is over.
func (s *Session) Receive(frames [][]byte, received int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return false
	}
	s.heard.Add(1)
	if err := s.message(frames, received); err != nil {
		end := &mux.End{Why: mux.LossIntegrity, Cause: err}
		errors.As(err, &end)
		s.over = true // nothing that comes over its other connections can be trusted
		s.cancel(end)
		return false
	}
	return true
}

func (s *Session) message(frames [][]byte, received int64) (err error) {
	defer func() {
		if p := infer.Caught(recover(), s.config.Panicked); p != nil {
			err = &mux.End{Why: mux.LossPanic, Cause: p}
		}
	}()
	s.reader.Begin(received)
	defer func() { s.reader.End(s.wire.Core().offered()) }()
	err = s.wire.Message(frames, received)
	s.config.Meters.Dispatch.Add(trace.Now() - received)
	return err
}

// Seat enters a generation in the session.
func (s *Session) Seat(g *Generation) *infer.Error {
	switch ok, taken := s.Table.Seat(g); {
	case taken:
		return &infer.Error{Code: infer.CodeInternal, Engine: s.config.Name, Message: "internal error",
			Cause: fmt.Errorf("request id %q is in use", g.ID)}
	case !ok:
		return mux.Unavailable(s.config.Name, s.Err())
	}
	return nil
}

// payloads are buffers for requests, which are copied once more into the outbox.
var payloads = sync.Pool{New: func() any { return new([]byte) }}

// Hand adds the request of a seated generation to the outbox: the frames of head and
// one that payload appends. A refused generation loses its seat.
func (s *Session) Hand(g *Generation, payload func(b []byte) []byte, head ...[]byte) *infer.Error {
	buf := payloads.Get().(*[]byte)
	defer func() {
		*buf = infer.Reuse(*buf, keepWire)
		payloads.Put(buf)
	}()
	*buf = payload(*buf)
	ok, closed := s.Out.Add(g, append(head, *buf)...)
	if ok {
		s.config.Meters.Submitted.Add(1)
		return nil
	}
	s.Table.Release(g)
	if closed {
		return mux.Unavailable(s.config.Name, s.Err())
	}
	return &infer.Error{Code: infer.CodeOverloaded, Engine: s.config.Name, Retryable: true, NotRun: true,
		Message: "the engine does not read its requests; try again later"}
}

// Await waits for the end of the hand-over. A request is confirmed by its first output,
// or by the answer to the fence behind it. If ctx ends before either, it is unknown
// whether the engine has the request. It is then aborted, and no output reaches the
// sink.
func (s *Session) Await(ctx context.Context, g *Generation, leg *trace.Leg) (engine.Generation, error) {
	if err := g.Await(ctx, leg); err != nil {
		return nil, err
	}
	s.config.Meters.Accepted.Add(1)
	return g, nil
}

// Answered processes the answer to a fence and returns what the fence covers: the
// engine has those requests, and knows those aborts. ok is false if it is not the
// last answer to one of our fences. The first answer brings the session up.
func (s *Session) Answered(call, received int64) (f Fence, sent int64, ok bool) {
	f, sent, ok = s.Out.Answered(call)
	if !ok {
		return f, sent, false
	}
	m := s.config.Meters
	m.Fences.Add(1)
	m.FenceLast.Store(received - sent)
	for _, g := range f.Adds {
		g.Hear(received)
	}
	if s.use.CompareAndSwap(opening, serving) {
		m.Sessions.Add(1)
		s.config.Host.Signal()
	}
	return f, sent, true
}

// ReadOutputs reads an output connection of an engine until it ends, which also ends
// its session. whose returns the session to which a message, and therefore the
// connection, belongs. If it returns nil, the message is from before the session and is
// dropped.
func ReadOutputs(c *zmtp.Conn, whose func(frames [][]byte) *Session) {
	var s *Session
	defer func() {
		if s != nil {
			s.caught(recover())
		}
	}()
	for {
		frames, err := c.Recv()
		if err != nil {
			if s != nil {
				s.outputEnded(err)
			}
			return
		}
		received := trace.Now()
		if s == nil {
			if s = whose(frames); s == nil {
				continue
			}
		}
		if !s.Receive(frames, received) {
			return // the connection is its session's, and ends with it
		}
	}
}

// outputEnded ends the session because a connection of outputs gave no more.
func (s *Session) outputEnded(err error) {
	if errors.Is(err, io.EOF) {
		err = errors.New("the engine closed it")
	}
	s.End(mux.LossConnection, fmt.Errorf("an output connection: %w", err))
}

// Input is a connection to an engine's input, on which the engine sends nothing.
type Input struct {
	*zmtp.Conn
	cancel context.CancelCauseFunc
	reader sync.WaitGroup
}

// WatchInput watches an input connection. The context that it returns ends with the
// connection. The Input must be closed.
func WatchInput(ctx context.Context, c *zmtp.Conn, panicked func(*infer.Panic)) (context.Context, *Input) {
	in := &Input{Conn: c}
	ctx, in.cancel = context.WithCancelCause(ctx)
	in.reader.Go(func() {
		defer func() {
			if p := infer.Caught(recover(), panicked); p != nil {
				in.cancel(&mux.End{Why: mux.LossPanic, Cause: p})
			}
		}()
		err := WaitEnd(c)
		if errors.Is(err, io.EOF) {
			err = errors.New("the engine closed its input connection")
		} else {
			err = fmt.Errorf("its input connection: %w", err)
		}
		in.cancel(&mux.End{Why: mux.LossConnection, Cause: err})
	})
	return ctx, in
}

// Close closes the connection and waits for the end of the watch.
func (in *Input) Close() {
	in.Conn.Close()
	in.reader.Wait()
	in.cancel(nil)
}

// WaitEnd waits for the end of a connection on which the peer sends nothing.
func WaitEnd(c *zmtp.Conn) error {
	for {
		if _, err := c.Recv(); err != nil {
			return err
		}
	}
}
