package fleetsim_test

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"

	"weir/internal/fleet/kvindex"
	"weir/internal/workload"
)

// BenchmarkIndexOfTrace reports what a block of a trace's prompts takes in the index: of the
// trace that WEIR_TRACE names, or of the sample in docs. Prompts go to caches without a
// bound, each at random or, with one in ten, at random again; the rest where the prompt
// before it in the session was.
func BenchmarkIndexOfTrace(b *testing.B) {
	const blockTokens = 16
	for _, caches := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("caches=%d", caches), func(b *testing.B) {
			for b.Loop() {
				f, err := os.Open(cmp.Or(os.Getenv("WEIR_TRACE"), "../../../docs/samples/synthetic-chat.jsonl"))
				if err != nil {
					b.Fatal(err)
				}
				w, err := workload.NewTrace(f, f.Name(), "", workload.Options{Seed: 1})
				if err != nil {
					b.Fatal(err)
				}
				before := heap()
				x := kvindex.New(math.MaxInt64)
				all := make([]*kvindex.Cache, caches)
				for i := range all {
					all[i] = x.Cache(math.MaxInt64)
				}
				random := rand.New(rand.NewPCG(1, 2))
				var r workload.Request
				var ids []uint32
				var chain []kvindex.Block
				var m kvindex.Matches
				for {
					if err := w.Next(&r); errors.Is(err, io.EOF) {
						break
					} else if err != nil {
						b.Fatal(err)
					}
					ids = r.AppendPrompt(ids[:0], 1<<20)
					chain = kvindex.AppendChain(chain[:0], kvindex.Root(1), ids, blockTokens)
					m = x.Match(m, chain, 1)
					at := random.IntN(caches)
					if random.IntN(10) > 0 {
						for i, c := range all {
							if m.Of(c.ID).Resident > m.Of(all[at].ID).Resident {
								at = i
							}
						}
					}
					all[at].Place(chain, 0)
				}
				f.Close()
				took, blocks := heap()-before, int64(0)
				for _, c := range all {
					blocks += c.Used()
				}
				b.ReportMetric(float64(took)/float64(blocks), "B/block")
				b.ReportMetric(float64(x.Bytes())/float64(took), "counted/heap")
				b.ReportMetric(float64(blocks)/1e6, "Mblocks")
			}
		})
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
