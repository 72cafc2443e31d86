package cost

import (
	"math"
	"sync"
	"sync/atomic"
)

// Ratio learns the number of tokens per byte for prompts of one model whose text weir
// has without the tokens. The zero value is ratioPrior.
//
// It is a mean weighted by bytes, like a cost, so the tokens that a template adds to
// each prompt count more for short prompts. No single request changes it by much,
// whatever its engine reports.
type Ratio struct {
	// value is the logarithm of the ratio to the prior, as bits.
	value atomic.Uint64

	mu     sync.Mutex // of Add
	weight float64    // of what was added, in bytes
}

const (
	// ratioPrior is that of English, of most tokenizers.
	ratioPrior = 0.25
	// priorBytes is what the prior weighs.
	priorBytes = 2048
	// ratioMost bounds what a prompt weighs.
	ratioMost = 32 << 10
	// ratioMemory is how much a prompt counts after the next one.
	ratioMemory = 1 - 1.0/16
	// ratioStep bounds by how much a prompt may lie beside the mean: beyond that it
	// counts as if it lay there.
	ratioStep = 0.7
	// Ratios beyond these are of no tokenizer.
	ratioLow, ratioHigh = 1.0 / 64, 4
)

// Tokens is how many tokens a prompt of so many bytes is expected to have: one at least.
func (r *Ratio) Tokens(bytes int) int { return max(int(math.Round(float64(bytes)*r.PerByte())), 1) }

// PerByte is how many tokens there are to a byte.
func (r *Ratio) PerByte() float64 { return ratioPrior * math.Exp(r.log()) }

func (r *Ratio) log() float64 { return math.Float64frombits(r.value.Load()) }

// Add notes that a prompt of so many bytes had so many tokens, as its engine said.
func (r *Ratio) Add(bytes, tokens int) {
	if bytes <= 0 || tokens <= 0 {
		return
	}
	seen := float64(tokens) / float64(bytes)
	if seen < ratioLow || seen > ratioHigh {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.weight == 0 {
		r.weight = priorBytes
	}
	w := float64(min(bytes, ratioMost))
	r.weight = r.weight*ratioMemory + w
	log := r.log()
	off := max(-ratioStep, min(ratioStep, math.Log(seen/ratioPrior)-log))
	r.value.Store(math.Float64bits(log + off*w/r.weight))
}
