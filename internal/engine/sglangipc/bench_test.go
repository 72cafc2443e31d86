package sglangipc

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"weir/internal/engine"
	"weir/internal/engine/coreclient"
	"weir/internal/engine/sglangipc/schedtest"
	"weir/internal/infer"
)

const benchStreams = 4096

type nullSink struct{ n int }

func (s *nullSink) Offer(d *infer.Delta) { s.n += len(d.IDs) }

// benchCore seats one accepted generation per stream, with a limit past all counting,
// and gives a function that makes the message of the next step: each of them gets
// some ids, and its count goes on.
func benchCore(tb testing.TB, ids int) (*session, func() []byte) {
	h, c, err := parseManifest(schedtest.Manifest(nil))
	if err != nil {
		tb.Fatal(err)
	}
	s := New(Options{Options: coreclient.Options{Name: "e"}}).newSession(context.Background(), h, c, nil)
	r := rand.New(rand.NewPCG(1, 2))
	var all []*coreclient.Generation
	var outs []schedtest.Output
	for i := range benchStreams {
		id := fmt.Sprintf("%016x%012x", 0x419f8673ad28e099, i)
		g := coreclient.NewGeneration(s.Out, &infer.Request{ID: id, MaxTokens: 1 << 40, Prompt: []uint32{1}}, 1, new(nullSink))
		s.Table.Seat(g)
		g.Hear(1)
		all = append(all, g)
		o := schedtest.Output{ID: id, Prompt: 1, Count: 1000 + ids}
		for range ids {
			o.IDs = append(o.IDs, r.Uint32N(128_000))
		}
		outs = append(outs, o)
	}
	wire := schedtest.AppendStep(nil, outs...)
	return s, func() []byte {
		for _, g := range all { // the same step again
			g.Total = 1000
		}
		return wire
	}
}

// BenchmarkDispatch is a step of 4096 streams: decoding it, and handing it to sinks
// that do nothing.
func BenchmarkDispatch(b *testing.B) {
	for _, ids := range []int{1, 4} {
		s, step := benchCore(b, ids)
		frames := [][]byte{step()}
		b.Run(fmt.Sprintf("decode/ids=%d", ids), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := s.batch.decode(frames[0]); err != nil {
					b.Fatal(err)
				}
			}
			perToken(b, ids)
		})
		b.Run(fmt.Sprintf("all/ids=%d", ids), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				step()
				if !s.Receive(frames, 1) {
					b.Fatal("the session ended")
				}
			}
			perToken(b, ids)
		})
	}
}

func perToken(b *testing.B, ids int) {
	per := float64(b.Elapsed().Nanoseconds()) / float64(b.N) / float64(benchStreams*ids)
	b.ReportMetric(per, "ns/token")
	b.ReportMetric(1e3/per, "Mtokens/s")
}

// BenchmarkRequest is the encoding of a request with a long prompt.
func BenchmarkRequest(b *testing.B) {
	h, c, err := parseManifest(schedtest.Manifest(nil))
	if err != nil {
		b.Fatal(err)
	}
	req := &infer.Request{ID: "419f8673ad28e099000000000001", MaxTokens: 100}
	for i := range 4000 {
		req.Prompt = append(req.Prompt, uint32(i*3))
	}
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		if err := h.check(req, &engine.Additions{}); err != nil {
			b.Fatal(err)
		}
		buf = c.appendRequest(buf[:0], req, &engine.Additions{}, "", -1)
	}
	b.SetBytes(int64(len(buf)))
}

func TestDispatchDoesNotAllocate(t *testing.T) {
	s, step := benchCore(t, 3)
	frames := [][]byte{step()}
	s.Receive(frames, 1) // grows the buffers
	if n := testing.AllocsPerRun(20, func() {
		step()
		if !s.Receive(frames, 1) {
			t.Fatal(s.Err())
		}
	}); n != 0 {
		t.Errorf("%v allocations for %d ids", n, benchStreams*3)
	}
	if broken := s.e.meters.Broken.Load(); broken != 0 {
		t.Errorf("%d requests did not add up", broken)
	}
}
