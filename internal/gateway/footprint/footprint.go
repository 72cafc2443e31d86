// Package footprint has what a request is in the books of engines. Package prepare makes it, and
// the code that places the request, books it and learns from its end reads it.
package footprint

import (
	"math"

	"weir/internal/fleet/balance"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/kvindex"
	"weir/internal/fleet/promptkey"
	"weir/internal/fleet/route"
)

// Footprint is how long the prompts of a request are, and the blocks by which caches are known to
// have them. It is made while the request is prepared, on a worker of the pool where the body is
// large, and does not change. A stream that continues at another engine has a new first prompt.
type Footprint struct {
	Prompts     []Extent
	only        [1]Extent     // is prompts, for most requests
	Root        kvindex.Block // where the blocks' chains begin
	BlockTokens int           // tokens of a block
	Text        int           // bytes of the prompts where tokens are told by them, else 0
	Width       int           // answers to each prompt
	Limit       int           // the most tokens of an answer; 0: not known
	// Computed is set if nothing is generated, as for embeddings. Whole is set if the
	// answer arrives at once, so that the time of its first token is unknown.
	Computed, Whole bool
	// ByIDs is set if the blocks depend only on the prompts' ids, Relayed if they are blocks
	// of text.
	ByIDs, Relayed bool
	// Bytes is what the request is in the books of relayed engines, where it can be given to
	// those and to others; nil: there is one form of it.
	Bytes *Footprint
}

// Add adds a prompt.
func (f *Footprint) Add(e Extent) {
	if f.Prompts == nil {
		f.Prompts = f.only[:0]
	}
	f.Prompts = append(f.Prompts, e)
}

// At returns what the request is in the books of an engine.
func (f *Footprint) At(e *route.Engine) *Footprint {
	if f.Bytes != nil && e.Relay != nil {
		return f.Bytes
	}
	return f
}

// Prompt is the first prompt as caches see it.
func (f *Footprint) Prompt() route.Prompt {
	first := &f.Prompts[0]
	p := route.Prompt{Blocks: first.Blocks, Length: first.Tokens, ByIDs: f.ByIDs}
	if b := f.Bytes; b != nil {
		if p.Text, p.TextTokens = b.Prompts[0].Blocks, float64(b.BlockTokens); b.Text > 0 { // how many there are is known
			p.TextTokens = float64(b.Prompts[0].Tokens) * promptkey.BlockBytes / float64(b.Text)
		}
	}
	return p
}

// Extent is a prompt as caches see it.
type Extent struct {
	Tokens int
	Blocks []kvindex.Block // none where nobody knows them
	Rest   []uint32        // the ids that are in no block
}

// ExtentOf is a prompt of ids whose blocks follow a root.
func ExtentOf(root kvindex.Block, ids []uint32) Extent {
	n := len(ids) / route.BlockTokens
	blocks := kvindex.AppendChain(make([]kvindex.Block, 0, n), root, ids, route.BlockTokens)
	return Extent{len(ids), blocks, ids[n*route.BlockTokens:]}
}

// Answers is how many generations the request is.
func (f *Footprint) Answers() int { return len(f.Prompts) * f.Width }

// Length is how many tokens are to be resident for the request, with what its prompts
// begin with alike counted once.
func (f *Footprint) Length() int {
	n := 0
	for i := range f.Prompts {
		n += f.Prompts[i].Tokens - f.Shared(i)
	}
	return n
}

// Shared is how much of a prompt is the beginning of the first one too, if it is
// another.
func (f *Footprint) Shared(i int) int {
	if i == 0 {
		return 0
	}
	n, first, other := 0, f.Prompts[0].Blocks, f.Prompts[i].Blocks
	for n < min(len(first), len(other)) && first[n] == other[n] {
		n++
	}
	return n * f.BlockTokens
}

// WorkOf returns the predicted work of an engine until the request shows progress, in
// milliseconds; it is negative if unknown. An answer that is not streamed shows no
// progress before it is whole.
func (f *Footprint) WorkOf(chosen *balance.Option) float64 {
	switch {
	case chosen.Cold:
		return -1
	case f.Whole:
		return chosen.Prefill + chosen.Decode
	}
	return chosen.Prefill
}

// Expected is how many tokens an answer is expected to have, by the lengths of others,
// beside those that it has had.
func (f *Footprint) Expected(lengths *cost.Lengths, had int) float64 {
	if f.Computed {
		return 0
	}
	limit := f.Limit
	if limit == 0 {
		limit = math.MaxInt32
	}
	return lengths.Expect(had, limit)
}

// Charge is what a request takes of a rank of its model at the model's median rates, where so
// many tokens of its first prompt are cached, so many others decode beside it, and each answer
// has so many tokens.
func (f *Footprint) Charge(rank *cost.Rank, resident, beside int, output float64) (ms float64) {
	c, budget, k := rank.Model().Median(), float64(max(rank.Budget(), 1)), float64(beside)
	for i := range f.Prompts {
		length := float64(f.Prompts[i].Tokens)
		n := length
		if i == 0 {
			n = max(length-float64(resident), 1)
		}
		ms += c.Charge(n, length, output*float64(f.Width), k, budget)
	}
	return ms
}
