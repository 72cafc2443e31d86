// Package content makes the text of a simulated engine, so that a reader can tell whether
// it arrived whole.
//
// The text consists of words: tokens whose text is one space and two or more lower-case
// ASCII letters. Words are numbered; the low bits of a word's number are a check of the
// word before it, the two bits above them are free. Because the check is never equal to the
// check of the word before, the text alone always shows a word that is missing, repeated or
// exchanged with its neighbour. Any other damage (several words lost in a row, a word of
// another stream) is missed with probability 1/(2^bits-1), where bits is at least 8. The
// text alone cannot show a loss at its very end: compare the count of words with the
// reported usage.
//
// The next id depends only on all ids so far and on the request's seed. So an engine whose
// prompt is the prompt and generated ids of another one continues exactly where that one
// stopped. Consequently the probability of an end is the same at each token, whatever the
// limit of the request.
package content

import (
	"fmt"
	"math/bits"
)

// Bounds of the word list. The free bits let texts differ; all others check.
const (
	minWords = 1 << 10
	maxWords = 1 << 12
	freeBits = 2
)

// noWord marks an id that is not a word.
const noWord = 0xffff

// Words is the word list of one vocabulary. It is immutable.
type Words struct {
	ids       []uint32          // word to id
	text      []string          // word to text, with the space
	byText    map[string]uint16 // text without the space to word
	byID      []uint16          // id to word, noWord where it is none
	follow    []uint16          // word to the check of the next one
	checkBits uint
	longest   int // bytes of the longest word, without the space
}

// New collects the words of a vocabulary: ids below size whose text is a space followed by
// two or more lower-case ASCII letters, in the order of ids, cut to the largest power of
// two up to 4096. text returns an id's bytes, and false for an id that must not be used.
// New fails on vocabularies with fewer than 1024 words.
func New(size int, text func(id uint32) ([]byte, bool)) (*Words, error) {
	w := &Words{byText: make(map[string]uint16, maxWords)}
	for id := uint32(0); int(id) < size && len(w.ids) < maxWords; id++ {
		b, ok := text(id)
		if !ok || !isWord(b) {
			continue
		}
		// Two ids with one text would make the text ambiguous.
		if _, twice := w.byText[string(b[1:])]; twice {
			continue
		}
		t := string(b)
		w.byText[t[1:]] = uint16(len(w.ids))
		w.ids = append(w.ids, id)
		w.text = append(w.text, t)
	}
	if len(w.ids) < minWords {
		return nil, fmt.Errorf("content: vocabulary of %d ids has %d words of a space and two or more lower-case letters; at least %d are needed", size, len(w.ids), minWords)
	}
	n := 1 << (bits.Len(uint(len(w.ids))) - 1)
	for _, t := range w.text[n:] {
		delete(w.byText, t[1:])
	}
	w.ids, w.text = w.ids[:n], w.text[:n]
	w.checkBits = uint(bits.Len(uint(n))-1) - freeBits
	w.follow = follow(n, w.checkBits)

	w.byID = make([]uint16, w.ids[n-1]+1)
	for i := range w.byID {
		w.byID[i] = noWord
	}
	for i, id := range w.ids {
		w.byID[id] = uint16(i)
		w.longest = max(w.longest, len(w.text[i])-1)
	}
	return w, nil
}

func isWord(b []byte) bool {
	if len(b) < 3 || b[0] != ' ' {
		return false
	}
	for _, c := range b[1:] {
		if c < 'a' || c > 'z' {
			return false
		}
	}
	return true
}

// Len is the number of words, a power of two.
func (w *Words) Len() int { return len(w.ids) }

// CheckBits is the number of bits of each word that check the word before it.
func (w *Words) CheckBits() int { return int(w.checkBits) }

// ID returns the id of word number n, which must be below Len.
func (w *Words) ID(n int) uint32 { return w.ids[n] }

// Text returns the text of a word's id, with its leading space, and false for an
// id that is not a word.
func (w *Words) Text(id uint32) (string, bool) {
	i := w.word(id)
	if i == noWord {
		return "", false
	}
	return w.text[i], true
}

// word returns the number of an id, or noWord.
func (w *Words) word(id uint32) uint16 {
	if int(id) >= len(w.byID) {
		return noWord
	}
	return w.byID[id]
}

// checkAfterNone is the check of a first word, cut to the check's bits.
const checkAfterNone = 0x2a5

func (w *Words) mask() uint16 { return 1<<w.checkBits - 1 }

// after returns the check that the word following word must carry.
func (w *Words) after(word uint16) uint16 {
	if word == noWord {
		return checkAfterNone & w.mask()
	}
	return w.follow[word]
}

// follow builds the table behind after. For each value of the free bits it holds one cycle
// through all checks (Sattolo's shuffle). A cycle has no fixed point, so a word's check
// never equals the check of the word before, and single losses are always seen. It is also
// a permutation, so all checks stay equally likely, and longer losses are missed only by
// chance. The table depends only on the number of words: every engine and every verifier
// must have the same.
func follow(words int, checkBits uint) []uint16 {
	checks := 1 << checkBits
	next := make([]uint16, words)
	order := make([]uint16, checks)
	for base := 0; base < words; base += checks {
		for i := range order {
			order[i] = uint16(i)
		}
		for i := checks - 1; i > 0; i-- {
			j := mix(uint64(base), uint64(i)) % uint64(i)
			order[i], order[j] = order[j], order[i]
		}
		copy(next[base:], order)
	}
	return next
}

// mix folds the 128-bit product of its two whitened inputs to 64 bits.
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a^0x2d358dccaa6c78a5, b^0x8bb84b93962eacc9)
	return hi ^ lo
}
