package simserver

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"weir/internal/engine/plane/planepb"
	"weir/internal/sim"
	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/vocab"
	"weir/internal/trace"
)

// gateway is a raw client of the plane that keeps the books a gateway keeps.
type gateway struct {
	t      testing.TB
	b      *bench
	client planepb.PlaneClient
	id     uint64
	steps  grpc.ServerStreamingClient[planepb.Step]
	cancel context.CancelFunc

	sequence uint64
	ids      map[uint32][]uint32
	stamps   map[uint32]*planepb.Stamps
	finish   map[uint32]*planepb.Finish
	top      map[uint32]int // of slots that asked for log probabilities
	largest  int            // ids of one slot in one step
}

// dial opens a session; window is the room for unread steps, 0 gRPC's own.
func (b *bench) dial(id uint64, window int32) *gateway {
	b.t.Helper()
	var opts []grpc.DialOption
	if window > 0 {
		opts = append(opts, grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window))
	}
	cc := b.planeClient(opts...)
	g := &gateway{t: b.t, b: b, client: planepb.NewPlaneClient(cc), id: id,
		ids: map[uint32][]uint32{}, stamps: map[uint32]*planepb.Stamps{}, finish: map[uint32]*planepb.Finish{}, top: map[uint32]int{}}
	var ctx context.Context
	ctx, g.cancel = context.WithCancel(context.Background())
	b.t.Cleanup(func() { g.cancel(); cc.Close() })
	var err error
	g.steps, err = g.client.Steps(ctx, &planepb.StepsRequest{Session: id})
	if err != nil {
		b.t.Fatal(err)
	}
	hello, err := g.steps.Recv()
	if err != nil {
		b.t.Fatal(err)
	}
	if hello.Sequence != 0 || len(hello.Slot) != 0 || hello.SendTime == 0 {
		b.t.Fatalf("hello %v", hello)
	}
	return g
}

// planeClient is a connection of gRPC to the plane.
func (b *bench) planeClient(opts ...grpc.DialOption) *grpc.ClientConn {
	b.t.Helper()
	opts = append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return b.connect(ctx, "tcp", addr) }))
	cc, err := grpc.NewClient("passthrough:///"+b.plane, opts...)
	if err != nil {
		b.t.Fatal(err)
	}
	return cc
}

func (g *gateway) submit(slot uint32, n int, set ...func(*planepb.SubmitRequest)) error {
	req := &planepb.SubmitRequest{Session: g.id, Slot: slot, RequestId: fmt.Sprintf("r%d", slot), Prompt: []uint32{1, 2, slot % 256}, MaxTokens: uint32(n), IgnoreEos: true}
	for _, f := range set {
		f(req)
	}
	if req.Logprobs != nil {
		g.top[slot] = int(*req.Logprobs)
	}
	_, err := g.client.Submit(context.Background(), req)
	return err
}

// recv reads a step and books it.
func (g *gateway) recv() error {
	s, err := g.steps.Recv()
	if err != nil {
		return err
	}
	if s.Sequence != g.sequence+1 {
		return fmt.Errorf("sequence %d after %d", s.Sequence, g.sequence)
	}
	g.sequence = s.Sequence
	if s.SendTime > uint64(trace.Now()) || len(s.Total) != len(s.Slot) || (len(s.Count) != 0 && len(s.Count) != len(s.Slot)) {
		return fmt.Errorf("odd step %v", s)
	}
	rest, own, top := s.Id, s.Logprob, s.TopLogprob
	for i, slot := range s.Slot {
		n := 1
		if len(s.Count) > 0 {
			n = int(s.Count[i])
		}
		g.largest = max(g.largest, n)
		g.ids[slot] = append(g.ids[slot], rest[:n]...)
		if asked, ok := g.top[slot]; ok {
			for k, id := range rest[:n] {
				position := len(g.ids[slot]) - n + k
				if len(own) == 0 || len(top) < asked || float64(own[0]) != vocab.Logprob(id, position) {
					return fmt.Errorf("slot %d: log probabilities %v and %v of id %d at %d", slot, own, top, id, position)
				}
				own = own[1:]
				for a := range asked {
					at := len(s.TopLogprob) - len(top)
					if want, lp := g.b.e.vocab.Alternative(id, position, a); s.TopId[at] != want || float64(top[0]) != lp {
						return fmt.Errorf("slot %d: alternative %d of id %d is %d with %v", slot, a, id, s.TopId[at], top[0])
					}
					top = top[1:]
				}
			}
		}
		rest = rest[n:]
		if int(s.Total[i]) != len(g.ids[slot]) {
			return fmt.Errorf("slot %d: total %d, received %d", slot, s.Total[i], len(g.ids[slot]))
		}
	}
	if len(own)+len(top) > 0 || len(s.TopId) != len(s.TopLogprob) {
		return fmt.Errorf("%d log probabilities and %d alternatives too many", len(own), len(top))
	}
	if len(rest) > 0 {
		return fmt.Errorf("%d ids too many", len(rest))
	}
	for _, n := range s.Notice {
		if n.Stamps != nil {
			g.stamps[n.Slot] = n.Stamps
		}
		if n.Finish != nil {
			if g.finish[n.Slot] != nil {
				return fmt.Errorf("slot %d finished twice", n.Slot)
			}
			if int(n.Finish.CompletionTokens) != len(g.ids[n.Slot]) {
				return fmt.Errorf("slot %d: completion %d, received %d", n.Slot, n.Finish.CompletionTokens, len(g.ids[n.Slot]))
			}
			g.finish[n.Slot] = n.Finish
		}
	}
	return nil
}

// until reads steps until n slots have finished.
func (g *gateway) until(n int) {
	g.t.Helper()
	for len(g.finish) < n {
		if err := g.recv(); err != nil {
			g.t.Fatal(err)
		}
	}
}

func (g *gateway) verify(slot uint32) error {
	v := g.b.words.Verifier()
	for _, id := range g.ids[slot] {
		text, _ := g.b.words.Text(id)
		v.WriteString(text)
	}
	return v.Close()
}

func TestPlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		g := b.dial(7, 0)
		facts, err := g.client.Describe(context.Background(), &planepb.DescribeRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if facts.Protocol != 1 || facts.Instance == "" || facts.BootId != trace.BootID() || facts.Model != "weir-sim" || facts.MaxRunning != 256 || facts.VocabSize != toyVocab || len(facts.EosIds) != 2 {
			t.Errorf("facts %v", facts)
		}
		const n = 32
		before := uint64(trace.Now())
		for slot := range uint32(n) {
			if err := g.submit(1000+slot, 10+int(slot)); err != nil {
				t.Fatal(err)
			}
		}
		g.until(n)
		for slot := range uint32(n) {
			f, s := g.finish[1000+slot], g.stamps[1000+slot]
			if f.Reason != planepb.Finish_REASON_LENGTH || f.PromptTokens != 3 || f.CompletionTokens != 10+slot {
				t.Errorf("slot %d: %v", slot, f)
			}
			if err := g.verify(1000 + slot); err != nil {
				t.Errorf("slot %d: %v", slot, err)
			}
			order := []uint64{before, s.ServerCreated, s.QueueStart, s.QueueEnd, s.PrefillStart, s.PrefillEnd, s.FirstToken, uint64(trace.Now())}
			for i := 1; i < len(order); i++ {
				if order[i] < order[i-1] {
					t.Errorf("slot %d: stamps go back: %v", slot, order)
				}
			}
		}
		// A slot is free after its finish.
		clear(g.finish)
		clear(g.ids)
		if err := g.submit(1000, 5); err != nil {
			t.Fatal(err)
		}
		g.until(1)
	})
}

func TestPlaneEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{Sim: sim.Options{MeanTokens: 10}})
		g := b.dial(1, 0)
		free := func(r *planepb.SubmitRequest) { r.IgnoreEos = false }
		if err := g.submit(1, 1000, free); err != nil {
			t.Fatal(err)
		}
		g.until(1)
		ids := g.ids[1]
		if last := ids[len(ids)-1]; g.finish[1].Reason != planepb.Finish_REASON_STOP || last != 257 && last != 258 {
			t.Errorf("%v after id %d", g.finish[1], last)
		}
		// A stop id ends too; it is sent and counted, as an end id is.
		if len(ids) > 2 {
			if err := g.submit(257, 1000, func(r *planepb.SubmitRequest) { r.StopIds = ids[1:2]; r.Prompt = []uint32{1, 2, 1} }); err != nil {
				t.Fatal(err)
			}
			g.until(2)
			if got := g.ids[257]; g.finish[257].Reason != planepb.Finish_REASON_STOP || len(got) != 2 || got[1] != ids[1] {
				t.Errorf("%v after %v, want an end at %d", g.finish[257], got, ids[1])
			}
		}
	})
}

func TestPlaneAborts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		g := b.dial(1, 0)
		control, err := g.client.Control(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if err := control.Send(&planepb.ControlRequest{Ping: &planepb.Ping{GatewayTime: 42}}); err != nil {
			t.Fatal(err)
		}
		before := uint64(trace.Now())
		pong, err := control.Recv()
		if err != nil || pong.GatewayTime != 42 || pong.EngineTime > uint64(trace.Now()) || pong.EngineTime+uint64(time.Minute) < before {
			t.Errorf("pong %v, %v", pong, err)
		}
		for slot := range uint32(3) {
			if err := g.submit(slot, 100000); err != nil {
				t.Fatal(err)
			}
		}
		if err := g.recv(); err != nil {
			t.Fatal(err)
		}
		// Slot 2 is named with another request's id, slot 9 is unknown.
		if err := control.Send(&planepb.ControlRequest{Session: 1, Abort: []*planepb.Abort{{Slot: 0, RequestId: "r0"}, {Slot: 2, RequestId: "r1"}, {Slot: 9, RequestId: "r9"}}}); err != nil {
			t.Fatal(err)
		}
		g.until(1)
		if g.finish[0].GetReason() != planepb.Finish_REASON_ABORT {
			t.Errorf("finishes %v", g.finish)
		}
		// An abort twice, and after the end, is nothing.
		for range 2 {
			control.Send(&planepb.ControlRequest{Session: 1, Abort: []*planepb.Abort{{Slot: 0, RequestId: "r0"}, {Slot: 1, RequestId: "r1"}, {Slot: 2, RequestId: "r2"}}})
		}
		g.until(3)
		if err := control.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if _, err := control.Recv(); err != io.EOF {
			t.Errorf("the control stream ended with %v", err)
		}
		b.settle("rest", func(s engine.State) bool { return s.Running == 0 && s.Aborted == 3 })
	})
}

func TestSessionEndAbortsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{Sim: sim.Options{MaxRunning: 4}})
		g, other := b.dial(1, 0), b.dial(2, 0)
		for slot := range uint32(6) {
			if err := g.submit(slot, 100000); err != nil {
				t.Fatal(err)
			}
		}
		if err := other.submit(1, 300); err != nil {
			t.Fatal(err)
		}
		b.settle("a full engine", func(s engine.State) bool { return s.Running == 4 && s.Waiting == 3 && s.Sessions == 2 })
		g.cancel()
		b.settle("the aborts", func(s engine.State) bool { return s.Aborted == 6 && s.Sessions == 1 })
		other.until(1)
		if err := other.verify(1); err != nil {
			t.Error(err)
		}
		if err := g.submit(1, 5); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("submit to the ended session: %v", err)
		}
	})
}

func TestPlaneRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{Sim: sim.Options{MaxRunning: 1, MaxQueued: 1, ContextLength: 1000}})
		g := b.dial(1, 0)
		check := func(what string, want codes.Code, err error) {
			t.Helper()
			if status.Code(err) != want {
				t.Errorf("%s: %v", what, err)
			}
		}
		check("too long", codes.InvalidArgument, g.submit(1, 998))
		check("no prompt", codes.InvalidArgument, g.submit(1, 5, func(r *planepb.SubmitRequest) { r.Prompt = nil }))
		check("unknown id", codes.InvalidArgument, g.submit(1, 5, func(r *planepb.SubmitRequest) { r.Prompt = []uint32{toyVocab} }))
		check("no session", codes.FailedPrecondition, g.submit(1, 5, func(r *planepb.SubmitRequest) { r.Session = 99 }))
		second, err := g.client.Steps(context.Background(), &planepb.StepsRequest{Session: 1})
		if err == nil {
			_, err = second.Recv()
		}
		check("session twice", codes.AlreadyExists, err)

		b.faults("stall")
		check("a request", codes.OK, g.submit(1, 5))
		b.settle("it runs", func(s engine.State) bool { return s.Running == 1 })
		b.faults()
		check("a waiting one", codes.OK, g.submit(2, 5))
		check("slot in use", codes.AlreadyExists, g.submit(2, 5))
		check("queue full", codes.ResourceExhausted, g.submit(3, 5))
		// The refused slot is free again.
		control, err := g.client.Control(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		control.Send(&planepb.ControlRequest{Session: 1, Abort: []*planepb.Abort{{Slot: 1, RequestId: "r1"}}})
		g.until(2)
		check("slot 3 later", codes.OK, g.submit(3, 5))
		g.until(3)
		control.CloseSend()
		if s := b.e.State(); s.Received != s.Finished+s.Aborted+s.Rejected {
			t.Errorf("state %+v", s)
		}
	})
}

// A gateway that reads late gets everything, merged.
func TestSlowGatewayGetsMergedSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{Sim: sim.Options{Cost: sim.Constant{Prefill: 20 * time.Microsecond, Decode: 20 * time.Microsecond}}})
		g := b.dial(1, 64<<10)
		const n, tokens = 64, 3000
		for slot := range uint32(n) {
			if err := g.submit(slot, tokens, func(r *planepb.SubmitRequest) {
				if top := slot % 4; top > 0 {
					top--
					r.Logprobs = &top
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		b.settle("the engine's end", func(s engine.State) bool { return s.Finished == n })
		g.until(n)
		for slot := range uint32(n) {
			if err := g.verify(slot); err != nil || len(g.ids[slot]) != tokens {
				t.Errorf("slot %d: %d ids, %v", slot, len(g.ids[slot]), err)
			}
		}
		if g.largest < 2 {
			t.Error("nothing was merged")
		}
	})
}

// A gateway that does not read at all is cut off, and its requests aborted.
func TestDeafGatewayIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{MaxPending: 20000, Sim: sim.Options{ContextLength: 1 << 30, Cost: sim.Constant{Prefill: 20 * time.Microsecond, Decode: 20 * time.Microsecond}}})
		g := b.dial(1, 64<<10)
		for slot := range uint32(32) {
			if g.submit(slot, 100_000_000) != nil {
				break // the cut came first
			}
		}
		b.settle("the cut", func(s engine.State) bool {
			return s.Sessions == 0 && s.Aborted > 0 && s.Running+s.Waiting == 0 && s.Received == s.Aborted+s.Rejected
		})
		for {
			if err := g.recv(); err != nil {
				if status.Code(err) != codes.Unavailable {
					t.Errorf("the session ended with %v", err)
				}
				return
			}
		}
	})
}

// jumped is how far a wrong sequence is from the one before, 1 when err is not
// about a sequence.
func jumped(err error) int {
	var got, before int
	if err == nil {
		return 1
	}
	if n, _ := fmt.Sscanf(err.Error(), "sequence %d after %d", &got, &before); n != 2 {
		return 1
	}
	return got - before
}

// TestFaultsOverPlane sees every fault that the plane has.
func TestFaultsOverPlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		next := uint64(100)
		run := func(fault string) (*gateway, error) {
			t.Helper()
			b.faults(fault)
			next++
			g := b.dial(next, 0)
			if err := g.submit(1, 20); err != nil {
				return g, err
			}
			for len(g.finish) == 0 {
				if err := g.recv(); err != nil {
					return g, err
				}
			}
			return g, nil
		}
		for _, c := range []struct {
			fault string
			ok    func(g *gateway, err error) bool
		}{
			{"unavailable", func(_ *gateway, err error) bool { return status.Code(err) == codes.Unavailable }},
			{"fail", func(_ *gateway, err error) bool { return status.Code(err) == codes.Internal }},
			{"cut,after=7", func(g *gateway, err error) bool { return status.Code(err) == codes.Unavailable && len(g.ids[1]) <= 7 }},
			{"reset,after=7", func(g *gateway, err error) bool { return status.Code(err) == codes.Unavailable && len(g.ids[1]) <= 7 }},
			{"truncate,after=7", func(g *gateway, err error) bool { return err == io.EOF && len(g.ids[1]) == 7 }},
			{"skip,after=7", func(g *gateway, err error) bool { return jumped(err) == 2 }},
			{"repeat,after=7", func(g *gateway, err error) bool { return jumped(err) == 0 }},
			{"swap,after=7", func(g *gateway, err error) bool { return jumped(err) == 2 }},
			{"garble,after=7", func(g *gateway, err error) bool { return status.Code(err) == codes.Internal && len(g.ids[1]) <= 7 }},
			{"oversize,after=7", func(g *gateway, err error) bool {
				return status.Code(err) == codes.ResourceExhausted && len(g.ids[1]) <= 7
			}},
			{"backward,after=7", func(g *gateway, err error) bool {
				return err != nil && strings.HasPrefix(err.Error(), "slot 1: total ")
			}},
			{"stray,after=7", func(g *gateway, err error) bool { return err == nil && len(g.ids[1<<31]) == 1 }},
			{"miscount", func(g *gateway, err error) bool {
				return err != nil && err.Error() == "slot 1: completion 21, received 20"
			}},
			{"cut,after=20", func(g *gateway, err error) bool { return err == nil && len(g.ids[1]) == 20 }},
			{"slow,delay=60ms", func(g *gateway, err error) bool {
				return err == nil && g.stamps[1].QueueStart-g.stamps[1].ServerCreated >= uint64(60*time.Millisecond)
			}},
		} {
			g, err := run(c.fault)
			if !c.ok(g, err) {
				t.Errorf("%s: %v after %d ids", c.fault, err, len(g.ids[1]))
			}
			g.cancel()
		}

		b.faults("hang")
		g := b.dial(1, 0)
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		if _, err := g.client.Submit(ctx, &planepb.SubmitRequest{Session: 1, Prompt: []uint32{1}, MaxTokens: 1}); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("hang: %v", err)
		}
		b.settle("rest", func(s engine.State) bool { return s.Running == 0 && s.Received == s.Finished+s.Aborted+s.Rejected })

		b.faults("refuse")
		cc := b.planeClient()
		defer cc.Close()
		if _, err := planepb.NewPlaneClient(cc).Describe(context.Background(), &planepb.DescribeRequest{}); status.Code(err) != codes.Unavailable {
			t.Errorf("refuse: %v", err)
		}
	})
}
