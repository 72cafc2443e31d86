package plane

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"weir/internal/engine/enginetest"
	"weir/internal/engine/plane/planepb"
	"weir/internal/infer"
	"weir/internal/trace"
)

// peer is a scripted engine on the other end of the plane. It implements
// enginetest.Peer and lets tests break the protocol as well.
type peer struct {
	planepb.UnimplementedPlaneServer

	network string // "bufconn" or "tcp"
	serve   []grpc.ServerOption
	addr    string // of tcp, kept over Cut
	panics  enginetest.Panics

	turn sync.Mutex // of who makes a step and sends it

	mu           enginetest.Watched
	facts        *planepb.Facts
	server       *grpc.Server
	lis          net.Listener
	session      *peerSession // the last one
	requests     map[string]*peerRequest
	hold         bool
	refuse       codes.Code
	mute         bool // pings are not answered
	skew         int64
	aborts       int           // aborts seen
	batches      []int         // requests of each message of Submissions
	batchesFail  error         // what Submissions ends with at once
	batchesEnd   chan struct{} // Submissions ends when it is closed
	batchesStuck chan struct{} // Submissions handles a message only when it is closed
	opening      *planepb.Step
	describe     chan struct{} // Describe waits for it when not nil
	fences       chan error    // what fences are answered; nil: there are none
}

type peerSession struct {
	id   uint64
	out  chan any // *planepb.Step or raw
	end  chan struct{}
	next uint64
	stop sync.Once

	endWith error // what Steps returns after end
}

type peerRequest struct {
	session *peerSession
	slot    uint32
	total   int
	first   bool
	aborted bool
	confirm chan struct{}
	owed    bool // its answer goes with the steps, and has not gone
}

// raw is a message sent as these very bytes.
type raw []byte

type rawCodec struct{ encoding.CodecV2 }

func (c rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	if b, ok := v.(raw); ok {
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	return c.CodecV2.Marshal(v)
}

func newPeer(t testing.TB, network string, options ...grpc.ServerOption) *peer {
	p := &peer{
		network:  network,
		serve:    options,
		addr:     "127.0.0.1:0",
		requests: make(map[string]*peerRequest),
		facts: &planepb.Facts{
			Protocol: 1, Instance: "one", Software: "peer 1", BootId: trace.BootID(), Model: "test",
			ContextLength: 4096, VocabSize: 100_000, MaxRunning: 4096,
			Carries: infer.CarriesAll.Words(),
		},
	}
	p.Restore()
	t.Cleanup(p.Cut)
	return p
}

// options returns Options that reach the peer.
func (p *peer) options() Options {
	return Options{Name: "e1", Addr: "peer", Panicked: p.panics.Tell, Dial: func(ctx context.Context, _ string) (net.Conn, error) {
		p.mu.Lock()
		lis, addr := p.lis, p.addr
		p.mu.Unlock()
		if lis == nil {
			return nil, errors.New("nobody listens")
		}
		if b, ok := lis.(*bufconn.Listener); ok {
			return b.DialContext(ctx)
		}
		var d net.Dialer
		return d.DialContext(ctx, "tcp", addr)
	}}
}

func (p *peer) Restore() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lis != nil {
		return
	}
	if p.network == "tcp" {
		lis, err := net.Listen("tcp", p.addr)
		if err != nil {
			panic(err)
		}
		p.lis, p.addr = lis, lis.Addr().String()
	} else {
		p.lis = bufconn.Listen(1 << 20)
	}
	p.server = grpc.NewServer(append([]grpc.ServerOption{
		grpc.ForceServerCodecV2(rawCodec{encoding.GetCodecV2("proto")}),
		grpc.MaxRecvMsgSize(64 << 20), grpc.MaxSendMsgSize(64 << 20),
	}, p.serve...)...)
	planepb.RegisterPlaneServer(p.server, p)
	go p.server.Serve(p.lis)
}

func (p *peer) Cut() {
	p.mu.Lock()
	srv := p.server
	p.server, p.lis = nil, nil
	p.mu.Unlock()
	if srv != nil {
		srv.Stop()
	}
}

func (p *peer) Describe(context.Context, *planepb.DescribeRequest) (*planepb.Facts, error) {
	p.mu.Lock()
	facts, wait := p.facts, p.describe
	p.mu.Unlock()
	if wait != nil {
		<-wait
	}
	return facts, nil
}

func (p *peer) Fence(ctx context.Context, _ *planepb.FenceRequest) (*planepb.FenceReply, error) {
	p.mu.Lock()
	answers := p.fences
	p.mu.Unlock()
	if answers == nil {
		return p.UnimplementedPlaneServer.Fence(ctx, nil)
	}
	select {
	case err := <-answers:
		return &planepb.FenceReply{Computed: 7}, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *peer) Steps(req *planepb.StepsRequest, stream grpc.ServerStreamingServer[planepb.Step]) error {
	s := &peerSession{id: req.GetSession(), out: make(chan any, 64), end: make(chan struct{}), next: 1}
	p.mu.Lock()
	opening := p.opening
	p.mu.Unlock()
	if opening == nil {
		opening = &planepb.Step{}
	}
	p.mu.Update(func() { p.session = s })
	if err := stream.Send(opening); err != nil {
		return err
	}
	for {
		select {
		case <-stream.Context().Done():
			s.stop.Do(func() { close(s.end) })
			return stream.Context().Err()
		case <-s.end:
			return s.endWith
		case m := <-s.out:
			if err := stream.SendMsg(m); err != nil {
				return err
			}
		}
	}
}

func (p *peer) Submit(ctx context.Context, req *planepb.SubmitRequest) (*planepb.SubmitReply, error) {
	p.mu.Lock()
	code, hold, s := p.refuse, p.hold, p.session
	p.refuse = codes.OK
	p.mu.Unlock()
	if code != codes.OK {
		return nil, status.Error(code, "scripted refusal")
	}
	if s == nil || s.id != req.GetSession() {
		return nil, status.Error(codes.FailedPrecondition, "no such session")
	}
	r := &peerRequest{session: s, slot: req.GetSlot(), confirm: make(chan struct{}), owed: ctx.Value(owed{}) != nil}
	p.mu.Update(func() { p.requests[req.GetRequestId()] = r })
	if hold {
		select {
		case <-r.confirm:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return &planepb.SubmitReply{ServerCreated: uint64(p.now())}, nil
}

// Submissions has each request answered as Submit does, but among the notices.
func (p *peer) Submissions(stream grpc.ClientStreamingServer[planepb.SubmitBatch, planepb.SubmissionsReply]) error {
	p.mu.Lock()
	fails, ends := p.batchesFail, p.batchesEnd
	p.mu.Unlock()
	if fails != nil {
		return fails
	}
	failed := make(chan error, 1)
	go func() { failed <- p.take(stream) }()
	select {
	case <-failed:
		return nil
	case <-ends:
		return status.Error(codes.Unavailable, "scripted end")
	}
}

func (p *peer) take(stream grpc.ClientStreamingServer[planepb.SubmitBatch, planepb.SubmissionsReply]) error {
	var calls sync.WaitGroup
	defer calls.Wait()
	for {
		batch, err := stream.Recv()
		if err != nil {
			return err
		}
		p.mu.Lock()
		stuck := p.batchesStuck
		p.mu.Unlock()
		if stuck != nil {
			<-stuck
		}
		p.mu.Update(func() { p.batches = append(p.batches, len(batch.GetSubmit())) })
		for _, req := range batch.GetSubmit() {
			calls.Go(func() {
				reply, err := p.Submit(context.WithValue(stream.Context(), owed{}, true), req)
				if stream.Context().Err() == nil {
					p.answer(req, reply, status.Convert(err))
				}
			})
		}
	}
}

// owed is the key of what says in a context that an answer goes with the steps.
type owed struct{}

// answer sends the answer to a request of a batch, unless its ids have had it with them.
func (p *peer) answer(req *planepb.SubmitRequest, reply *planepb.SubmitReply, failed *status.Status) {
	p.turn.Lock()
	defer p.turn.Unlock()
	p.mu.Lock()
	s, r := p.session, p.requests[req.GetRequestId()]
	n := &planepb.Notice{Slot: req.GetSlot(), Accepted: reply}
	if failed.Code() != codes.OK {
		n.Refused = &planepb.Refusal{Code: uint32(failed.Code()), Message: failed.Message()}
	} else if !r.owed {
		p.mu.Unlock()
		return
	}
	if r != nil {
		r.owed = false
	}
	step := &planepb.Step{Sequence: s.next, Notice: []*planepb.Notice{n}}
	s.next++
	p.mu.Unlock()
	s.send(step)
}

// now is the peer's clock.
func (p *peer) now() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return trace.Now() + p.skew
}

func (p *peer) Control(stream grpc.BidiStreamingServer[planepb.ControlRequest, planepb.ControlReply]) error {
	for {
		req, err := stream.Recv()
		if err != nil {
			return nil
		}
		p.mu.Update(func() {
			p.aborts += len(req.GetAbort())
			for _, a := range req.GetAbort() {
				if r := p.requests[a.GetRequestId()]; r != nil && r.slot == a.GetSlot() {
					r.aborted = true
				}
			}
		})
		p.mu.Lock()
		mute := p.mute
		p.mu.Unlock()
		if ping := req.GetPing(); ping != nil && !mute {
			reply := &planepb.ControlReply{GatewayTime: ping.GetGatewayTime(), EngineTime: uint64(p.now())}
			if err := stream.Send(reply); err != nil {
				return err
			}
		}
	}
}

func (p *peer) Hold() { p.mu.Update(func() { p.hold = true }) }

func (p *peer) Confirm(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.requests[id].confirm)
}

func (p *peer) Refuse(code infer.Code) {
	c := map[infer.Code]codes.Code{
		infer.CodeInvalid:     codes.InvalidArgument,
		infer.CodeOverloaded:  codes.ResourceExhausted,
		infer.CodeUnavailable: codes.Unavailable,
	}[code]
	p.mu.Update(func() { p.refuse = c })
}

func (p *peer) Arrived(ctx context.Context, id string) error {
	return p.mu.Await(ctx, "request "+id, func() bool { return p.requests[id] != nil })
}

func (p *peer) Aborted(ctx context.Context, id string) error {
	return p.mu.Await(ctx, "abort of "+id, func() bool { r := p.requests[id]; return r != nil && r.aborted })
}

var wireReasons = map[infer.Reason]planepb.Finish_Reason{
	infer.ReasonStop:   planepb.Finish_REASON_STOP,
	infer.ReasonLength: planepb.Finish_REASON_LENGTH,
	infer.ReasonAbort:  planepb.Finish_REASON_ABORT,
	infer.ReasonError:  planepb.Finish_REASON_ERROR,
}

// build makes the wire's step of some output, with the session's next
// sequence.
func (p *peer) build(outs ...enginetest.Out) (*peerSession, *planepb.Step) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := trace.Now() + p.skew
	step := &planepb.Step{SendTime: uint64(now)}
	var s *peerSession
	for _, o := range outs {
		r := p.requests[o.ID]
		s = r.session
		n := &planepb.Notice{Slot: r.slot}
		if len(o.IDs) > 0 {
			r.total += len(o.IDs)
			step.Slot = append(step.Slot, r.slot)
			step.Count = append(step.Count, uint32(len(o.IDs)))
			step.Total = append(step.Total, uint32(r.total))
			step.Id = append(step.Id, o.IDs...)
			if l := o.Logprobs; l != nil {
				step.Logprob = append(step.Logprob, l.Own...)
				step.TopId, step.TopLogprob = append(step.TopId, l.TopIDs...), append(step.TopLogprob, l.Top...)
			}
			if r.owed {
				r.owed, n.Accepted = false, &planepb.SubmitReply{ServerCreated: uint64(now - 5)}
			}
			if !r.first {
				r.first = true
				n.Stamps = &planepb.Stamps{ServerCreated: uint64(now - 5), FirstToken: uint64(now - 1)}
			}
		}
		if o.Finish != "" {
			if r.owed {
				r.owed, n.Accepted = false, &planepb.SubmitReply{}
			}
			n.Finish = &planepb.Finish{
				Reason: wireReasons[o.Finish], PromptTokens: 3, CompletionTokens: uint32(r.total), Message: "scripted",
			}
		}
		if n.Stamps != nil || n.Finish != nil || n.Accepted != nil {
			step.Notice = append(step.Notice, n)
		}
	}
	step.Sequence = s.next
	s.next++
	return s, step
}

func (p *peer) Step(outs ...enginetest.Out) {
	p.turn.Lock()
	defer p.turn.Unlock()
	s, step := p.build(outs...)
	s.send(step)
}

func (p *peer) Miscount(id string, ids ...uint32) {
	p.turn.Lock()
	defer p.turn.Unlock()
	s, step := p.build(enginetest.Out{ID: id, IDs: ids})
	step.Total[0]++
	s.send(step)
}

func (s *peerSession) send(m any) {
	select {
	case s.out <- m:
	case <-s.end:
	}
}
