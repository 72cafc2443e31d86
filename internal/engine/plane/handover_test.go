package plane

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	"weir/internal/engine/mux"
	"weir/internal/engine/plane/planepb"
	"weir/internal/infer"
	"weir/internal/trace"
)

// scripted is a client whose Submit does as the test says. It stands for
// orders of events that a real connection shows only rarely.
type scripted struct {
	planepb.PlaneClient
	submit func(req *planepb.SubmitRequest) (*planepb.SubmitReply, error)
}

func (c scripted) Submit(_ context.Context, req *planepb.SubmitRequest, opts ...grpc.CallOption) (*planepb.SubmitReply, error) {
	reply, err := c.submit(req)
	for _, o := range opts {
		if h, ok := o.(grpc.TrailerCallOption); ok {
			*h.TrailerAddr = metadata.MD{"content-type": {"application/grpc"}}
		}
	}
	return reply, err
}

// offline returns an Engine with a session that has no connection.
func offline() (*Engine, *core, *session) {
	e, c := New(Options{Name: "e1"}), newCore()
	s := &session{opts: &e.opts, meters: &e.meters, table: &c.t, out: c.out, reader: engine.NewReader(nil, ""), oneClock: true}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	e.current.Store(s)
	return e, c, s
}

func TestConfirmedAsTheSessionEnded(t *testing.T) {
	e, c, s := offline()
	s.client = scripted{submit: func(*planepb.SubmitRequest) (*planepb.SubmitReply, error) {
		c.d.close((&mux.End{Why: mux.LossEngine}).Terminal("e1"), 9)
		return &planepb.SubmitReply{}, nil
	}}
	r := enginetest.NewRecorder(1)
	_, err := e.Generate(t.Context(), &infer.Request{ID: "a", MaxTokens: 4}, 1, r, new(trace.Leg))
	if got := infer.AsError(err); got.Code != infer.CodeUnavailable || !got.Retryable || r.Deltas() != 0 {
		t.Fatalf("error %v, %d deltas", err, r.Deltas())
	}
	_, err = e.Generate(t.Context(), &infer.Request{ID: "b", MaxTokens: 4}, 1, r, new(trace.Leg))
	if got := infer.AsError(err); got.Code != infer.CodeUnavailable || !got.Retryable {
		t.Fatalf("error %v of a session that has ended", err)
	}
}

// An engine that sends ids for a request and then refuses it contradicts
// itself, and none of them is followed by others.
func TestRefusedAfterIDs(t *testing.T) {
	e, c, s := offline()
	s.client = scripted{submit: func(req *planepb.SubmitRequest) (*planepb.SubmitReply, error) {
		step := &planepb.Step{Sequence: 1, Slot: []uint32{req.GetSlot()}, Total: []uint32{1}, Id: []uint32{5}}
		if f := c.step(step); f != nil {
			t.Error(f)
		}
		return nil, status.Error(codes.ResourceExhausted, "full after all")
	}}
	r := enginetest.NewRecorder(1)
	_, err := e.Generate(t.Context(), &infer.Request{ID: "a", MaxTokens: 4}, 1, r, new(trace.Leg))
	r.Seal()
	if got := infer.AsError(err); got.Code != infer.CodeIntegrity || !got.Retryable || faultOf(err) != FaultRefused {
		t.Fatalf("error %v", err)
	}
	if f := c.step(&planepb.Step{Sequence: 2, Slot: []uint32{0}, Total: []uint32{2}, Id: []uint32{6}}); f != nil {
		t.Fatal(f)
	}
	if !slices.Equal(r.IDs(), []uint32{5}) || len(r.Faults()) > 0 || c.t.live() != 1 {
		t.Fatalf("ids %v, faults %v, %d slots held", r.IDs(), r.Faults(), c.t.live())
	}
}

// Slots held by requests of unknown fate are freed by a new session when there
// are too many of them.
func TestTooManyOfUnknownFate(t *testing.T) {
	e, c, s := offline()
	for range maxSlots {
		g, _ := c.seat("x", 1)
		g.GiveUp(false)
	}
	_, err := e.Generate(t.Context(), &infer.Request{ID: "a", MaxTokens: 4}, 1, new(nullSink), new(trace.Leg))
	if got := infer.AsError(err); got.Code != infer.CodeOverloaded || !got.Retryable {
		t.Fatalf("error %v", err)
	}
	var end *mux.End
	if !errors.As(context.Cause(s.ctx), &end) || end.Why != mux.LossSlots {
		t.Fatalf("session ended for %v", context.Cause(s.ctx))
	}
}

// An engine that drains asks for another connection; gRPC would dial it by
// itself, but the session is bound to its own.
func TestDrainingEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t, "bufconn")
		o := p.options()
		var dials atomic.Int32
		dial := o.Dial
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			dials.Add(1)
			return dial(ctx, addr)
		}
		b, _ := start(t, p, o)
		running := b.Accept(4)
		p.mu.Lock()
		srv := p.server
		p.mu.Unlock()
		var drained sync.WaitGroup
		drained.Go(srv.GracefulStop)
		synctest.Wait()
		late := b.Go(b.Ctx, 4)
		b.Wait(late)
		if got := infer.AsError(late.Err); got.Code != infer.CodeUnavailable || !got.Retryable {
			t.Errorf("error %v", late.Err)
		}
		if n := dials.Load(); n != 2 {
			t.Errorf("%d connections", n)
		}
		p.Step(enginetest.Out{ID: running.Request.ID, IDs: []uint32{5}, Finish: infer.ReasonStop})
		b.WantFinish(running, infer.ReasonStop)
		b.Stop()
		p.Cut()
		drained.Wait()
	})
}
