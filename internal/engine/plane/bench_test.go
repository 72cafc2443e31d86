package plane

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	"weir/internal/engine/plane/planepb"
	"weir/internal/infer"
	"weir/internal/trace"
)

const benchSlots = 4096

// benchSteps makes the bytes of steps in which each of n slots gets some ids.
func benchSteps(tb testing.TB, n, ids, steps int) [][]byte {
	r := rand.New(rand.NewPCG(1, 2))
	out := make([][]byte, steps)
	for i := range out {
		s := &planepb.Step{Sequence: uint64(i + 1), SendTime: 1, Running: uint32(n)}
		for slot := range n {
			s.Slot = append(s.Slot, uint32(slot))
			s.Total = append(s.Total, uint32((i+1)*ids))
			if ids > 1 {
				s.Count = append(s.Count, uint32(ids))
			}
			for range ids {
				s.Id = append(s.Id, r.Uint32N(128_000))
			}
		}
		b, err := proto.Marshal(s)
		if err != nil {
			tb.Fatal(err)
		}
		out[i] = b
	}
	return out
}

type nullSink struct{ n int }

func (s *nullSink) Offer(d *infer.Delta) { s.n += len(d.IDs) }

// copySink does the least that a real sink must.
type copySink struct {
	mu  sync.Mutex
	ids []uint32
}

func (s *copySink) Offer(d *infer.Delta) {
	s.mu.Lock()
	if len(s.ids) > 64 {
		s.ids = s.ids[:0]
	}
	s.ids = append(s.ids, d.IDs...)
	s.mu.Unlock()
}

// benchCore seats one accepted generation per slot.
func benchCore(sink func() engine.Sink) *core {
	c := newCore()
	c.d.vocab = 128_000
	for range benchSlots {
		g := c.generation("x", 1<<30, sink())
		c.t.seat(g)
		g.Accept()
	}
	return c
}

func rewind(c *core) {
	c.d.next = 1
	for slot := range uint32(benchSlots) {
		c.t.get(slot).Total = 0
	}
}

func run(tb testing.TB, c *core, b []byte) {
	c.frame.err = c.frame.decode(b)
	if f := c.d.step(&c.frame); f != nil {
		tb.Fatal(f)
	}
}

// BenchmarkDispatch is a step of 4096 slots: decoding it, and handing it to
// sinks that do nothing or that, as a mailbox does, lock and copy.
func BenchmarkDispatch(b *testing.B) {
	for _, ids := range []int{1, 4} {
		steps := benchSteps(b, benchSlots, ids, 16)
		perToken := func(b *testing.B) {
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(benchSlots*ids), "ns/token")
		}
		b.Run(fmt.Sprintf("decode/ids=%d", ids), func(b *testing.B) {
			b.ReportAllocs()
			b.ResetTimer()
			var f frame
			for i := range b.N {
				if err := f.decode(steps[i%len(steps)]); err != nil {
					b.Fatal(err)
				}
			}
			perToken(b)
		})
		b.Run(fmt.Sprintf("decode-generated/ids=%d", ids), func(b *testing.B) {
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				var s planepb.Step
				if err := proto.Unmarshal(steps[i%len(steps)], &s); err != nil {
					b.Fatal(err)
				}
			}
			perToken(b)
		})
		b.Run(fmt.Sprintf("null/ids=%d", ids), func(b *testing.B) {
			c := benchCore(func() engine.Sink { return new(nullSink) })
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				if i%len(steps) == 0 {
					rewind(c)
				}
				run(b, c, steps[i%len(steps)])
			}
			perToken(b)
		})
		b.Run(fmt.Sprintf("copy/ids=%d", ids), func(b *testing.B) {
			c := benchCore(func() engine.Sink { return new(copySink) })
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				if i%len(steps) == 0 {
					rewind(c)
				}
				run(b, c, steps[i%len(steps)])
			}
			perToken(b)
		})
	}
}

func TestDispatchDoesNotAllocate(t *testing.T) {
	steps := benchSteps(t, benchSlots, 3, 16)
	c := benchCore(func() engine.Sink { return new(nullSink) })
	n := testing.AllocsPerRun(5, func() {
		rewind(c)
		for _, b := range steps {
			run(t, c, b)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations for %d ids", n, len(steps)*benchSlots*3)
	}
}

// BenchmarkWire is the same step over loopback TCP, gRPC on both ends
// included; what the peer's end costs is in the figures too, but the step is
// encoded beforehand.
func BenchmarkWire(b *testing.B) {
	p := newPeer(b, "tcp")
	p.facts.VocabSize = 128_000
	bench := enginetest.Start(b, enginetest.Rig{Engine: New(p.options()), Peer: p})
	e := bench.Rig.Engine.(*Engine)
	last := new(waitSink)
	last.done = make(chan struct{})
	for i := range benchSlots {
		var sink engine.Sink = new(copySink)
		if i == benchSlots-1 {
			last.want = b.N
			sink = last
		}
		req := bench.Request(1 << 30)
		if _, err := e.Generate(bench.Ctx, req, 1, sink, new(trace.Leg)); err != nil {
			b.Fatal(err)
		}
	}
	steps := benchSteps(b, benchSlots, 1, b.N)
	s := p.last()
	b.ReportAllocs()
	b.ResetTimer()
	for _, step := range steps {
		s.send(raw(step))
	}
	select {
	case <-last.done:
	case <-bench.Ctx.Done():
		b.Fatal("the steps did not arrive")
	}
	b.StopTimer()
	f := e.Figures()
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchSlots, "ns/token")
	b.ReportMetric(float64(f.Dispatch.Nanoseconds())/float64(f.IDs), "dispatch-ns/token")
}

// waitSink states when it has had a number of deltas.
type waitSink struct {
	n, want int
	done    chan struct{}
}

func (s *waitSink) Offer(d *infer.Delta) {
	if s.n++; s.n == s.want {
		close(s.done)
	}
}
