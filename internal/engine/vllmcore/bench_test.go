package vllmcore

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"weir/internal/engine"
	"weir/internal/engine/coreclient"
	"weir/internal/engine/vllmcore/coretest"
	"weir/internal/infer"
)

const benchStreams = 4096

type nullSink struct{ n int }

func (s *nullSink) Offer(d *infer.Delta) { s.n += len(d.IDs) }

// benchCore seats one accepted generation per stream and makes the message of a
// step in which each of them gets some ids.
func benchCore(tb testing.TB, release string, ids int) (*session, []byte) {
	e := New(Options{Options: coreclient.Options{Name: "e", Model: "m"}})
	s := e.newSession(tb.Context(), 0, ready{contextLength: 1 << 30}, nil)
	r := rand.New(rand.NewPCG(1, 2))
	var step coretest.Batch
	for i := range benchStreams {
		id := fmt.Sprintf("%016x%012x", 0x419f8673ad28e099, i)
		g := newGeneration(s, &infer.Request{ID: id, MaxTokens: 1 << 40, Prompt: []uint32{1}}, 1, engine.Sink(new(nullSink)))
		s.Table.Seat(g)
		g.Hear(1)
		o := coretest.Output{ID: id, Finish: -1}
		for range ids {
			o.IDs = append(o.IDs, r.Uint32N(128_000))
		}
		step.Outputs = append(step.Outputs, o)
	}
	step.Stats = &coretest.Stats{Running: benchStreams, KVUsage: 0.5}
	return s, coretest.Append(nil, step, release)
}

// BenchmarkDispatch is a step of 4096 streams: decoding it, and handing it to sinks
// that do nothing.
func BenchmarkDispatch(b *testing.B) {
	for _, ids := range []int{1, 4} {
		s, step := benchCore(b, "0.33.0", ids)
		frames := [][]byte{step}
		for name, f := range map[string]func() error{
			"decode": func() error { return s.batch.decode(step) },
			"all": func() error {
				if !s.Receive(frames, 1) {
					return fmt.Errorf("the session ended")
				}
				return nil
			},
		} {
			b.Run(fmt.Sprintf("%s/ids=%d", name, ids), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := f(); err != nil {
						b.Fatal(err)
					}
				}
				per := float64(b.Elapsed().Nanoseconds()) / float64(b.N) / float64(benchStreams*ids)
				b.ReportMetric(per, "ns/token")
				b.ReportMetric(1e3/per, "Mtokens/s")
			})
		}
	}
}

// BenchmarkAdd is the encoding of a request with a long prompt.
func BenchmarkAdd(b *testing.B) {
	req := &infer.Request{ID: "419f8673ad28e099000000000001", MaxTokens: 100}
	for i := range 40_000 {
		req.Prompt = append(req.Prompt, uint32(i*3))
	}
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf = appendAdd(buf[:0], req, nil, nil, &Options{EndIDs: []uint32{2, 3}}, 1)
	}
	b.SetBytes(int64(len(buf)))
}

func TestDispatchDoesNotAllocate(t *testing.T) {
	for _, release := range []string{"0.33.0", "0.20.0"} {
		s, step := benchCore(t, release, 3)
		frames := [][]byte{step}
		s.Receive(frames, 1) // grows the buffers
		if n := testing.AllocsPerRun(20, func() {
			if !s.Receive(frames, 1) {
				t.Fatal("the session ended")
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations for %d ids", release, n, benchStreams*3)
		}
	}
}
