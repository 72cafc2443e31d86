package vocab

import "strconv"

// Log probabilities are made up, as there is no model: they are a function of an id and its
// position in the output, the same in every run and on every wire. A chosen id is always
// the likeliest. Its k-th alternative is the id k above it in the vocabulary, and half a
// nat less likely than the one before.

// Logprob returns the log probability of an id at a position: a multiple of 1/64
// from (-2, 0].
func Logprob(id uint32, position int) float64 {
	z := (uint64(id)<<32 | uint64(uint32(position))) * 0x9e3779b97f4a7c15
	return -float64(z>>57) / 64
}

// Alternative returns the k-th likeliest id at a position and its log
// probability; the 0th is the chosen one.
func (v *Vocab) Alternative(id uint32, position, k int) (uint32, float64) {
	other := uint64(id) + uint64(k)
	if n := uint64(v.o.VocabSize); n > 0 {
		other %= n
	}
	return uint32(other), Logprob(id, position) - 0.5*float64(k)
}

// AppendLogprob appends a log probability.
func AppendLogprob(b []byte, lp float64) []byte { return strconv.AppendFloat(b, lp, 'f', -1, 64) }

// MaxAlternatives bounds the alternatives of each token.
const MaxAlternatives = 20
