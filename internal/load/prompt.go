package load

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"weir/internal/workload"
)

// prompts makes the generated prompts of a run.
type prompts struct {
	words []string
	// around is the number of tokens that the server counts beyond the words: the
	// template's, the special ones. It is 0 where lengths are approximate.
	around int
	exact  bool
}

// leastWords keeps prompts from sharing long beginnings by chance.
const leastWords = 32

// checkedPrompts is how many prompts are counted before a run that promises
// exact lengths.
const checkedPrompts = 8

// newPrompts prepares the prompts of a plan. If the tokens can be counted, it uses only
// words that are one token wherever they stand, so that a prompt's length is the number of
// its words plus a constant. It verifies this for some prompts of the run, and refuses a
// tokenizer for which it is not true.
func newPrompts(p *Plan) (prompts, error) {
	// Only the server knows the tokens of images, earlier turns and texts.
	approximate := len(p.Images) > 0 || p.sessions() || p.Workload != nil && p.Workload.Texts
	if p.Count == nil || p.Prompt != "" {
		return prompts{words: words}, nil
	}
	// A word between others; the first and the last may be counted differently because of
	// their places.
	base, err := p.Count("the the")
	if err != nil {
		return prompts{}, fmt.Errorf("input-tokens: %w", err)
	}
	single, err := singleWords(p, base)
	switch {
	case err != nil:
		return prompts{}, fmt.Errorf("input-tokens: %w", err)
	case len(single) < leastWords && approximate:
		return prompts{words: words}, nil
	case approximate: // a word is a token nevertheless
		return prompts{words: single}, nil
	case len(single) < leastWords:
		return prompts{}, fmt.Errorf("input-tokens: exact lengths need %d words that are one token each, and this tokenizer has %d of the %d that prompts are made of; without --tokenizer lengths are approximate",
			leastWords, len(single), len(words))
	}
	out := prompts{words: single, around: base - 2, exact: true}
	length := p.InputTokens
	if p.Workload != nil {
		length = out.around + 100
	}
	if length <= out.around {
		return prompts{}, fmt.Errorf("input-tokens %d: the chat template and special tokens alone are %d; give at least %d", length, out.around, out.around+1)
	}
	for i := range checkedPrompts {
		n, err := p.Count(string(out.append(nil, p.Seed, i, length)))
		if err != nil {
			return prompts{}, fmt.Errorf("input-tokens: %w", err)
		}
		if n != length {
			return prompts{}, errors.New("input-tokens: this tokenizer does not count a prompt as the sum of its words, so lengths cannot be exact; without --tokenizer they are approximate")
		}
	}
	return out, nil
}

// singleWords returns the words that are one token each wherever they stand. base is the
// count of two.
func singleWords(p *Plan, base int) (single []string, err error) {
	for _, w := range words {
		one := true
		for _, text := range []string{w + " the the", "the " + w + " the", "the the " + w} {
			n, err := p.Count(text)
			if err != nil {
				return nil, err
			}
			one = one && n == base+1
		}
		if one {
			single = append(single, w)
		}
	}
	return single, nil
}

// appendParts appends the prompt of a workload's request, of n tokens in all. Each part has
// words of its own key, so that prompts share a prefix if their parts do. The tokens that
// the server adds around a prompt are subtracted at its end.
func (p *prompts) appendParts(dst []byte, seed uint64, parts []workload.Part, n int) []byte {
	left, first := max(1, n-p.around), true
	for _, part := range parts {
		rng := rand.NewPCG(part.Key, seed^promptStream)
		for range min(part.Tokens, left) {
			if !first {
				dst = append(dst, ' ')
			}
			first = false
			dst = append(dst, p.words[(rng.Uint64()>>32)*uint64(len(p.words))>>32]...)
			left--
		}
	}
	if first { // an empty prompt is no request
		dst = append(dst, p.words[0]...)
	}
	return dst
}

// append appends the prompt of the i-th request: as many words as make up n tokens. They
// depend only on seed and i. No two prompts share a prefix worth caching. The words need no
// escaping in JSON.
func (p *prompts) append(dst []byte, seed uint64, i, n int) []byte {
	rng := rand.NewPCG(seed^promptStream, uint64(i))
	for k := range max(1, n-p.around) {
		if k > 0 {
			dst = append(dst, ' ')
		}
		// A multiply-shift instead of a remainder; the bias is below 2^-50.
		dst = append(dst, p.words[(rng.Uint64()>>32)*uint64(len(p.words))>>32]...)
	}
	return dst
}
