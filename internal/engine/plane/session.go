package plane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir/internal/engine"
	"weir/internal/engine/plane/planepb"
	"weir/internal/trace"
)

// session is one connection and what runs over it, from the first step to the
// loss of either. It is never revived: a new one takes its place.
type session struct {
	id      uint64
	opts    *Options
	meters  *meters
	facts   engine.Facts
	conn    *grpc.ClientConn
	client  planepb.PlaneClient
	steps   grpc.ServerStreamingClient[planepb.Step]
	control grpc.BidiStreamingClient[planepb.ControlRequest, planepb.ControlReply]

	ctx    context.Context // ends with the session; its cause says why
	cancel context.CancelCauseFunc
	tasks  sync.WaitGroup

	table *table
	out   *outbox
	frame frame
	disp  dispatcher

	heard     atomic.Uint64 // messages received of any kind
	oneClock  bool          // the engine reads the clock that we read
	clockSeen atomic.Pointer[offset]
}

// connect dials, asks what the engine is, and opens a session, all within
// ConnectTimeout. When it fails it leaves nothing behind.
func (e *Engine) connect(ctx context.Context) (s *session, err error) {
	conn, err := e.dial()
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	sctx, cancel := context.WithCancelCause(ctx)
	// Streams live as long as their context, so the bound on opening them
	// cannot be a context's deadline.
	late := time.AfterFunc(e.opts.ConnectTimeout, func() {
		cancel(fmt.Errorf("no session within %v", e.opts.ConnectTimeout))
	})
	defer func() {
		if !late.Stop() && err == nil {
			err = context.Cause(sctx)
		}
		if err != nil {
			if cause := context.Cause(sctx); cause != nil {
				err = cause
			}
			cancel(err)
			conn.Close()
		}
	}()

	client := planepb.NewPlaneClient(conn)
	facts, err := client.Describe(sctx, &planepb.DescribeRequest{})
	if err != nil {
		return nil, fmt.Errorf("describe: %w", err)
	}
	if v := facts.GetProtocol(); v != protocolVersion {
		return nil, fmt.Errorf("describe: the engine speaks version %d of the plane's protocol, weir speaks %d", v, protocolVersion)
	}
	s = &session{
		id: rand.Uint64(), opts: &e.opts, meters: &e.meters, facts: factsOf(facts),
		conn: conn, client: client, ctx: sctx, cancel: cancel,
		table: new(table), out: newOutbox(),
		oneClock: e.bootID != "" && e.bootID == facts.GetBootId(),
	}
	s.disp = dispatcher{
		engine: e.opts.Name, vocab: facts.GetVocabSize(), table: s.table,
		offset: s.offset, meters: &e.meters,
	}
	s.steps, err = client.Steps(sctx, &planepb.StepsRequest{Session: s.id, Gateway: e.opts.Gateway},
		grpc.ForceCodecV2(newStepCodec()))
	if err != nil {
		return nil, fmt.Errorf("steps: %w", err)
	}
	if err = s.steps.RecvMsg(&s.frame); err != nil {
		return nil, fmt.Errorf("steps: %w", err)
	}
	if fault := s.disp.open(&s.frame); fault != nil {
		return nil, fmt.Errorf("steps: %w", fault)
	}
	if s.control, err = client.Control(sctx); err != nil {
		return nil, fmt.Errorf("control: %w", err)
	}
	return s, nil
}

// run serves the session to its end and says why it ended. All its goroutines
// but the caller's have then ended.
func (s *session) run() *loss {
	s.tasks.Go(s.writeControl)
	s.tasks.Go(s.readControl)
	s.tasks.Go(s.keep)
	s.read()
	s.tasks.Wait()
	var end *loss
	if !errors.As(context.Cause(s.ctx), &end) {
		end = &loss{why: LossClosed, cause: context.Cause(s.ctx)}
	}
	return end
}

// close gives every generation its terminal delta and drops the connection,
// by which the engine learns to abort them.
func (s *session) close(end *loss) {
	s.disp.close(end.terminal(s.opts.Name), trace.Now())
	s.conn.Close()
}

// end ends the session; the first to say why is believed.
func (s *session) end(why Loss, cause error) { s.cancel(&loss{why: why, cause: cause}) }

// read is the reader: it dispatches steps until there are no more. Nothing in
// it waits for anything but the next step.
func (s *session) read() {
	free := trace.Now()
	for {
		if err := s.steps.RecvMsg(&s.frame); err != nil {
			s.endRecv(err, s.steps)
			return
		}
		s.heard.Add(1)
		if fault := s.disp.step(&s.frame); fault != nil {
			s.end(LossIntegrity, fault)
			return
		}
		now := trace.Now()
		s.meters.dispatched(s.frame.received-free, now-s.frame.received)
		free = now
	}
}

// endRecv ends the session because a stream gave no more messages. A status of
// UNAVAILABLE may be the engine's word or that of our end of a broken
// connection; nothing in it tells which.
func (s *session) endRecv(err error, stream grpc.ClientStream) {
	st := status.Convert(err)
	switch {
	case errors.Is(err, io.EOF):
		s.end(LossEngine, errors.New("the engine closed the stream"))
	case st.Code() == codes.ResourceExhausted && strings.HasPrefix(st.Message(), oversizedPrefix):
		s.end(LossIntegrity, &Fault{Reason: FaultOversized, Detail: st.Message(), Frames: s.lastFrames(stream)})
	case st.Code() == codes.Unavailable || st.Code() == codes.Canceled:
		s.end(LossConnection, err)
	default:
		s.end(LossEngine, err)
	}
}

// oversizedPrefix is how gRPC's receiving end words a message over the limit,
// which has no code of its own. A test holds it.
const oversizedPrefix = "grpc: received message"

// lastFrames gives the evidence, to the reader only: it is the reader's.
func (s *session) lastFrames(stream grpc.ClientStream) []FrameSummary {
	if stream != grpc.ClientStream(s.steps) {
		return nil
	}
	return s.disp.evidence.last()
}

// offset gives the engine's clock offset as known now. On one clock it is
// exactly zero.
func (s *session) offset() offset {
	if s.oneClock {
		return offset{known: true}
	}
	if o := s.clockSeen.Load(); o != nil {
		return *o
	}
	return offset{}
}
