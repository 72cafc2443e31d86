package kvindex

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
)

const blockTokens = 16

func tokens(r *rand.Rand, n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = r.Uint32N(150_000)
	}
	return ids
}

// fleetOf returns caches which all have a system prompt of 512 tokens, and of which
// every eighth has the prompt.
func fleetOf(caches, length int) (*Index, []uint32) {
	r := rand.New(rand.NewPCG(1, 2))
	x := New(math.MaxInt64)
	prompt := tokens(r, length)
	chain := AppendChain(nil, Root(1), prompt, blockTokens)
	for i := range caches {
		c := x.Cache(1 << 30)
		c.Place(chain[:512/blockTokens], 0)
		if i%8 == 0 {
			// As a conversation comes: turn by turn.
			for n := 512; n < length; n += 500 {
				c.Place(chain[:n/blockTokens], 0)
			}
			c.Place(chain, 0)
		}
	}
	return x, prompt
}

// BenchmarkMatch hashes a prompt and looks it up: all that a decision needs of the
// index.
func BenchmarkMatch(b *testing.B) {
	for _, caches := range []int{4, 1000} {
		for _, length := range []int{2_000, 100_000} {
			b.Run(fmt.Sprintf("caches=%d/tokens=%d", caches, length), func(b *testing.B) {
				x, prompt := fleetOf(caches, length)
				b.ResetTimer() // a thousand caches take a second to fill
				b.RunParallel(func(pb *testing.PB) {
					m := make(Matches, caches)
					chain := make([]Block, 0, length/blockTokens)
					for pb.Next() {
						chain = AppendChain(chain[:0], Root(1), prompt, blockTokens)
						m = x.Match(m, chain, 1)
					}
				})
				b.ReportAllocs()
			})
		}
	}
}

// BenchmarkHash is the part of it that goes through the ids.
func BenchmarkHash(b *testing.B) {
	prompt := tokens(rand.New(rand.NewPCG(1, 2)), 100_000)
	chain := make([]Block, 0, len(prompt)/blockTokens)
	b.ReportAllocs()
	for b.Loop() {
		chain = AppendChain(chain[:0], Root(1), prompt, blockTokens)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(chain)), "ns/block")
}

// BenchmarkConversations places and looks up what conversations bring: each turn is
// the one before with 320 tokens more. A block operation is a block looked up or
// placed.
func BenchmarkConversations(b *testing.B) {
	const turns, turn = 16, 20
	x := New(math.MaxInt64)
	var seed atomic.Uint64
	var blocks atomic.Int64
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		r := rand.New(rand.NewPCG(seed.Add(1), 3))
		c := x.Cache(4_000_000 / blockTokens)
		chain := make([]Block, turns*turn)
		m := make(Matches, 64)
		at, ops := turns, 0
		for pb.Next() {
			if at == turns {
				for i := range chain {
					chain[i] = Block(r.Uint64())
				}
				at = 0
			}
			at++
			m = x.Match(m, chain[:at*turn], 1)
			c.Place(chain[:at*turn], 0)
			ops += 2 * at * turn
		}
		blocks.Add(int64(ops))
	})
	b.ReportMetric(float64(blocks.Load())/b.Elapsed().Seconds()/1e6, "Mblocks/s")
}

// BenchmarkMemory reports what a million blocks take, by the blocks of a segment.
func BenchmarkMemory(b *testing.B) {
	for _, run := range []int{1, 8, 20, 100} {
		b.Run(fmt.Sprintf("segment=%d", run), func(b *testing.B) {
			const blocks = 2_000_000
			r := rand.New(rand.NewPCG(1, 2))
			for b.Loop() {
				before := heap()
				x := New(math.MaxInt64)
				c := x.Cache(math.MaxInt64)
				chain := make([]Block, run)
				for range blocks / run {
					for i := range chain {
						chain[i] = Block(r.Uint64())
					}
					c.Place(chain, 0)
				}
				took := heap() - before
				b.ReportMetric(float64(took)/blocks, "B/block")
				b.ReportMetric(float64(x.Bytes())/float64(took), "counted/heap")
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
