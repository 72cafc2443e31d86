package plane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir/internal/engine"
	"weir/internal/engine/mux"
	"weir/internal/engine/plane/planepb"
	"weir/internal/engine/remote"
	"weir/internal/infer"
	"weir/internal/trace"
)

// session is two connections and what runs over them, from the first step to the
// loss of anything: one of gRPC's for Describe, Submit and Control, and one for
// Steps. It is never revived: a new one takes its place.
type session struct {
	id      uint64
	opts    *Options
	meters  *meters
	facts   engine.Facts
	conn    *grpc.ClientConn
	client  planepb.PlaneClient
	steps   *stepStream
	subs    *submissions // nil: the engine does not have the call
	control grpc.BidiStreamingClient[planepb.ControlRequest, planepb.ControlReply]

	ctx    context.Context // ends with the session; its cause says why
	cancel context.CancelCauseFunc
	tasks  sync.WaitGroup

	table  *table
	out    *outbox
	frame  frame
	reader engine.Reader
	disp   dispatcher

	heard     pulses
	oneClock  bool // the engine reads the clock that we read
	clockSeen atomic.Pointer[remote.Offset]
}

// pulses count the signs of an engine's life.
type pulses struct {
	messages atomic.Uint64 // steps, and answers to pings
	calls    atomic.Uint64 // reads of gRPC's connection
	steps    atomic.Uint64 // reads of the connection of the steps
}

// connect dials, asks what the engine is, and opens a session, all within
// ConnectTimeout. When it fails it leaves nothing behind.
func (e *Engine) connect(ctx context.Context) (s *session, err error) {
	s = &session{
		id: rand.Uint64(), opts: &e.opts, meters: &e.meters,
		table: new(table), out: newOutbox(), reader: engine.NewReader(e.opts.Batch, "weir"),
	}
	conn, err := e.client(&s.heard.calls)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	sctx, cancel := context.WithCancelCause(ctx)
	s.conn, s.client, s.ctx, s.cancel = conn, planepb.NewPlaneClient(conn), sctx, cancel
	// Streams live as long as their context, so the bound on opening them
	// cannot be a context's deadline.
	late := time.AfterFunc(e.opts.ConnectTimeout, func() {
		cancel(fmt.Errorf("no session within %v", e.opts.ConnectTimeout))
	})
	defer func() {
		if p := infer.Caught(recover(), e.opts.Panicked); p != nil {
			err = p
		}
		if !late.Stop() && err == nil {
			err = context.Cause(sctx)
		}
		if err != nil {
			if cause := context.Cause(sctx); cause != nil {
				err = cause
			}
			cancel(err)
			s.disconnect()
			s = nil
		}
	}()

	facts, err := s.client.Describe(sctx, &planepb.DescribeRequest{})
	if err != nil {
		return s, fmt.Errorf("describe: %w", advised(err, e.opts.Access))
	}
	if v := facts.GetProtocol(); v != protocolVersion {
		return s, fmt.Errorf("describe: the engine speaks version %d of the plane's protocol, weir speaks %d", v, protocolVersion)
	}
	s.facts = e.factsOf(facts)
	s.oneClock = e.bootID != "" && e.bootID == facts.GetBootId()
	s.disp = dispatcher{
		Dispatcher: mux.Dispatcher{Engine: e.opts.Name, Panicked: e.opts.Panicked}, vocab: facts.GetVocabSize(), table: s.table,
		offset: s.offset, meters: &e.meters,
	}
	if err = s.open(e.dialSteps); err != nil {
		return s, fmt.Errorf("steps: %w", err)
	}
	if facts.GetSubmissions() && s.steps.streams > 1 {
		s.subs = s.steps.subs
		s.disp.subs, s.steps.forsaken = s.subs, s.forsaken
		if err = s.subs.begin(&e.meters.batches); err != nil {
			return s, fmt.Errorf("submissions: %w", err)
		}
	}
	if s.control, err = s.client.Control(sctx); err != nil {
		return s, fmt.Errorf("control: %w", err)
	}
	return s, nil
}

// open makes the connection of the steps and takes in the first of them.
func (s *session) open(dial func(context.Context) (net.Conn, error)) error {
	conn, err := dial(s.ctx)
	if err != nil {
		return fmt.Errorf("dial: %w", err)
	}
	req := &planepb.StepsRequest{Session: s.id, Gateway: s.opts.Gateway}
	s.steps, err = openSteps(s.ctx, conn, s.opts.Addr, s.opts.Access.Authorization(), s.opts.MaxStep, &s.heard.steps, req)
	if err != nil {
		return err
	}
	if err := s.steps.recv(&s.frame); err != nil {
		return err
	}
	if fault := s.disp.open(&s.frame); fault != nil {
		return fault
	}
	return nil
}

// disconnect drops both connections. The session's context has ended.
func (s *session) disconnect() {
	if s.steps != nil {
		<-s.steps.closed
	}
	s.conn.Close()
}

// run serves the session to its end and returns the reason. All its goroutines but the
// caller's have then ended.
func (s *session) run() *mux.End {
	tasks := []func(){s.writeControl, s.readControl, s.keep}
	if s.subs != nil {
		tasks = append(tasks, s.writeSubmissions)
	}
	for _, task := range tasks {
		s.tasks.Go(func() { s.guarded(task) })
	}
	s.guarded(s.read)
	s.tasks.Wait()
	var end *mux.End
	if !errors.As(context.Cause(s.ctx), &end) {
		end = &mux.End{Why: mux.LossClosed, Cause: context.Cause(s.ctx)}
	}
	return end
}

// guarded runs a part of the session, whose panic is the end of the session.
func (s *session) guarded(part func()) {
	defer func() {
		if p := infer.Caught(recover(), s.opts.Panicked); p != nil {
			s.end(mux.LossPanic, p)
		}
	}()
	part()
}

// close gives every generation its terminal delta and drops the connections,
// by which the engine learns to abort them.
func (s *session) close(end *mux.End) {
	now := trace.Now()
	s.reader.Begin(now)
	s.disp.close(end.Terminal(s.opts.Name), now)
	s.reader.End(0)
	s.disconnect()
}

// end ends the session; the first to say why is believed.
func (s *session) end(why mux.Loss, cause error) { s.cancel(&mux.End{Why: why, Cause: cause}) }

// read is the reader: it dispatches steps until there are no more. Nothing in
// it waits for anything but the next step.
func (s *session) read() {
	free := trace.Now()
	for {
		if err := s.steps.recv(&s.frame); err != nil {
			s.endRecv(err)
			return
		}
		s.heard.messages.Add(1)
		if fault := s.step(); fault != nil {
			s.end(mux.LossIntegrity, fault)
			return
		}
		// If several steps came in one read, the reader waited only for the first.
		began, now := max(s.frame.received, free), trace.Now()
		s.meters.dispatched(began-free, now-began)
		free = now
	}
}

// step dispatches the step at hand.
func (s *session) step() *mux.Fault {
	s.reader.Begin(s.frame.received)
	defer func() { s.reader.End(len(s.frame.slot)) }()
	return s.disp.step(&s.frame)
}

// endRecv ends the session because a stream gave no more messages. A status of
// UNAVAILABLE may come from the engine or from this end of a broken connection, and
// does not show which.
func (s *session) endRecv(err error) {
	var fault *mux.Fault
	code := status.Code(err)
	switch {
	case errors.Is(err, io.EOF):
		s.end(mux.LossEngine, errors.New("the engine closed the stream"))
	case errors.As(err, &fault):
		fault.Frames = s.disp.Kept() // only the reader gets here
		s.end(mux.LossIntegrity, fault)
	case code == codes.Unavailable || code == codes.Canceled:
		s.end(mux.LossConnection, err)
	default:
		s.end(mux.LossEngine, err)
	}
}

// offset returns the engine's clock offset as known now. On one clock it is exactly
// zero.
func (s *session) offset() remote.Offset {
	if s.oneClock {
		return remote.Offset{Known: true}
	}
	if o := s.clockSeen.Load(); o != nil {
		return *o
	}
	return remote.Offset{}
}
