//go:build linux

// Package loadengine holds the two engines that load the output path, built to be as cheap
// as possible. For relays it uses raw sockets and prepared bytes, with one event per write;
// each event carries its number and the time just before its write. For the plane it is a
// gRPC server that sends the same as steps. Ids cannot carry a time, so it writes the time
// of every (stream, token) to the board before it sends.
package loadengine

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir/internal/engine/plane/planepb"
	"weir/internal/lab/cell"
	"weir/internal/trace"
)

// maxBatch bounds the ids of one step when several are due at once.
const maxBatch = 16384

// planeEngine speaks the batched plane to one gateway: at each tick it sends all due tokens
// as one step.
type planeEngine struct {
	planepb.UnimplementedPlaneServer
	cell  *cell.Cell
	board *cell.Board
	words *cell.Words
	sched cell.Schedule

	mu      sync.Mutex
	session uint64
	streams []planeStream
	late    []int // probes
	taken   int64
	aborted []uint32 // slots whose end is due
	answers []uint32 // slots whose requests came by Submissions, to be answered by the next step
	cursor  int
	running int
}

type planeStream struct {
	slot   uint32
	id     string
	live   bool
	fresh  bool // its stamps are not sent
	sent   int
	limit  int
	begins int64
}

// RunPlane serves until it is killed.
func RunPlane(c *cell.Cell) error {
	b, err := c.OpenBoard()
	if err != nil {
		return err
	}
	defer b.Close()
	w, err := cell.LoadWords()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", c.Engine)
	if err != nil {
		return err
	}
	srv := grpc.NewServer(
		grpc.MaxSendMsgSize(cell.PlaneWindow), grpc.InitialWindowSize(cell.PlaneWindow), grpc.InitialConnWindowSize(cell.PlaneWindow),
		grpc.WriteBufferSize(128<<10), grpc.ReadBufferSize(128<<10), grpc.MaxConcurrentStreams(1<<20),
	)
	planepb.RegisterPlaneServer(srv, &planeEngine{
		cell: c, board: b, words: w, sched: cell.NewSchedule(c.Load, c.Times), streams: make([]planeStream, c.Capacity()),
	})
	return srv.Serve(l)
}

// Describe implements the plane.
func (e *planeEngine) Describe(context.Context, *planepb.DescribeRequest) (*planepb.Facts, error) {
	return &planepb.Facts{
		Protocol: 1, Instance: "bench", Software: "outputpath", BootId: trace.BootID(), Model: "weir-sim",
		ContextLength: 1 << 20, VocabSize: 1 << 17, MaxRunning: uint32(e.cell.Capacity()),
		Submissions: true,
	}, nil
}

// Submit implements the plane. The seed identifies the stream.
func (e *planeEngine) Submit(_ context.Context, r *planepb.SubmitRequest) (*planepb.SubmitReply, error) {
	if err := e.submit(r, false); err != nil {
		return nil, err
	}
	return &planepb.SubmitReply{ServerCreated: uint64(trace.Now())}, nil
}

func (e *planeEngine) submit(r *planepb.SubmitRequest, batched bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := int(r.GetSeed())
	if r.Session != e.session || r.Seed == nil || n < 0 || n >= len(e.streams) || e.streams[n].live {
		return status.Errorf(codes.InvalidArgument, "session %x, seed %d", r.Session, n)
	}
	s := planeStream{slot: r.Slot, id: r.RequestId, live: true, fresh: true, limit: int(r.MaxTokens)}
	if n >= e.cell.Load.Streams && e.cell.Load.Flood != cell.HangUps {
		at, _ := e.board.Started()
		s.begins = e.sched.NextStep(cell.Now() - at)
		e.late = append(e.late, n)
	}
	e.streams[n] = s
	e.running++
	e.board.Arrived(n, cell.Now())
	e.taken++
	e.board.Taken().Store(e.taken)
	if batched {
		e.answers = append(e.answers, r.Slot)
	}
	return nil
}

// Submissions implements the plane. The next step has the answers.
func (e *planeEngine) Submissions(stream grpc.ClientStreamingServer[planepb.SubmitBatch, planepb.SubmissionsReply]) error {
	for {
		batch, err := stream.Recv()
		if err != nil {
			return nil // the gateway left
		}
		for _, r := range batch.Submit {
			if err := e.submit(r, true); err != nil {
				return err
			}
		}
	}
}

// Control implements the plane.
func (e *planeEngine) Control(stream grpc.BidiStreamingServer[planepb.ControlRequest, planepb.ControlReply]) error {
	for {
		r, err := stream.Recv()
		if err != nil {
			return nil // the gateway left
		}
		e.mu.Lock()
		for _, a := range r.Abort {
			for i := range e.streams {
				if s := &e.streams[i]; s.live && s.slot == a.Slot && s.id == a.RequestId {
					s.live = false
					e.running--
					e.aborted = append(e.aborted, a.Slot)
				}
			}
		}
		e.mu.Unlock()
		if r.Ping != nil {
			if err := stream.Send(&planepb.ControlReply{GatewayTime: r.Ping.GatewayTime, EngineTime: uint64(trace.Now())}); err != nil {
				return nil
			}
		}
	}
}

// Steps implements the plane: it is the engine's loop.
func (e *planeEngine) Steps(r *planepb.StepsRequest, stream grpc.ServerStreamingServer[planepb.Step]) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	e.mu.Lock()
	e.session = r.Session
	e.mu.Unlock()
	if err := stream.Send(&planepb.Step{SendTime: uint64(trace.Now())}); err != nil {
		return err
	}
	return e.run(stream.Context(), stream.Send, nil)
}

// run sends steps until the gateway has left. turn, when not nil, is called between
// any two.
func (e *planeEngine) run(ctx context.Context, send func(*planepb.Step) error, turn func() error) error {
	step := &planepb.Step{}
	var start, next int64
	for sequence := uint64(1); ; {
		if err := ctx.Err(); err != nil {
			return nil // the gateway left
		}
		if turn != nil {
			if err := turn(); err != nil {
				return err
			}
		}
		if start == 0 {
			at, ok := e.board.Started()
			if ok {
				start, next = at, at
				cell.SleepUntil(start)
			} else {
				time.Sleep(time.Millisecond)
			}
		}
		full := false
		if start == 0 {
			e.answer(step)
		} else {
			full = e.fill(step, cell.Now()-start)
		}
		if len(step.Slot)+len(step.Notice) > 0 {
			step.Sequence = sequence
			sequence++
			step.SendTime = uint64(trace.Now())
			if err := send(step); err != nil {
				return fmt.Errorf("send: %w", err)
			}
		}
		if full || start == 0 {
			continue
		}
		next += int64(cell.Tick)
		if t := cell.Now(); next < t-int64(cell.Tick) {
			next = t
		}
		cell.SleepUntil(next)
	}
}

// answer makes a step of answers only.
func (e *planeEngine) answer(step *planepb.Step) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reset(step)
	step.Running = uint32(e.running)
}

// reset makes a step that has only the answers that are due.
func (e *planeEngine) reset(step *planepb.Step) {
	step.Slot, step.Total, step.Id, step.Notice = step.Slot[:0], step.Total[:0], step.Id[:0], step.Notice[:0]
	for _, slot := range e.answers {
		step.Notice = append(step.Notice, &planepb.Notice{Slot: slot, Accepted: &planepb.SubmitReply{ServerCreated: uint64(trace.Now())}})
	}
	e.answers = e.answers[:0]
}

// fill makes the next step from the tokens that are due at a time after the start, and
// reports whether more is due than fits.
func (e *planeEngine) fill(step *planepb.Step, at int64) (full bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reset(step)
	stamp := cell.Now()
	first := e.cursor / e.sched.Streams
	for e.cursor < e.sched.Total() && e.sched.Due(e.cursor) <= at {
		// A step holds one token of a stream.
		if len(step.Slot) >= maxBatch || e.cursor-first*e.sched.Streams >= e.sched.Streams && e.sched.Step == 0 {
			full = true
			break
		}
		e.add(step, e.cursor%e.sched.Streams, stamp)
		e.cursor++
	}
	kept := e.late[:0]
	for _, n := range e.late {
		s := &e.streams[n]
		for s.live && s.sent < s.limit && s.begins+int64(s.sent)*e.sched.Period <= at {
			e.add(step, n, stamp)
		}
		if s.live {
			kept = append(kept, n)
		}
	}
	e.late = kept
	if (e.cell.Load.Idle || e.cell.Load.Length > 0) && at >= int64(e.cell.Times.End()) {
		for i := range e.streams {
			if s := &e.streams[i]; s.live && (s.sent == s.limit || e.cell.Load.Length > 0) {
				e.finish(step, s)
			}
		}
	}
	for _, slot := range e.aborted {
		step.Notice = append(step.Notice, &planepb.Notice{Slot: slot, Finish: &planepb.Finish{Reason: planepb.Finish_REASON_ABORT}})
	}
	e.aborted = e.aborted[:0]
	step.Running = uint32(e.running)
	return full
}

// add puts a stream's next token into the step.
func (e *planeEngine) add(step *planepb.Step, n int, stamp int64) {
	s := &e.streams[n]
	if !s.live || s.sent >= s.limit {
		return
	}
	e.board.Stamp(n, s.sent, stamp)
	step.Slot = append(step.Slot, s.slot)
	step.Id = append(step.Id, e.words.ID(n, s.sent))
	s.sent++
	step.Total = append(step.Total, uint32(s.sent))
	e.board.Sent().Add(1)
	if s.fresh {
		s.fresh = false
		step.Notice = append(step.Notice, &planepb.Notice{Slot: s.slot, Stamps: &planepb.Stamps{FirstToken: uint64(trace.Now())}})
	}
	if s.sent == s.limit && !e.cell.Load.Idle {
		e.finish(step, s)
	}
}

func (e *planeEngine) finish(step *planepb.Step, s *planeStream) {
	s.live = false
	e.running--
	step.Notice = append(step.Notice, &planepb.Notice{Slot: s.slot, Finish: &planepb.Finish{
		Reason: planepb.Finish_REASON_LENGTH, CompletionTokens: uint32(s.sent), PromptTokens: 4,
	}})
}
