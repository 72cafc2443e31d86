package tokenizer

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// unigram is a Unigram vocabulary: a text is cut into the tokens whose scores
// add up to the most. It is immutable.
type unigram struct {
	tokens  *trie
	scores  []float64 // by id
	ids     *lexicon
	longest int // bytes of the longest token
	unk     uint32
	// unkScore is that of a rune that is no token.
	unkScore float64
	bytes    [256]uint32 // tokens <0x00> to <0xFF>, noID where there is none
	fallback bool
}

// unknownPenalty is how far below the worst token an unknown rune is.
const unknownPenalty = 10

// readUnigram takes the vocabulary. Ids are places in the list.
func (t *Tokenizer) readUnigram(n node) error {
	var m unigramModel
	if err := n.decode(&m); err != nil {
		return err
	}
	switch {
	case t.byteLevel:
		return n.at("/type", nil).unsupported("model Unigram after pre-tokenizer ByteLevel")
	case m.Vocab == nil:
		return n.errorf("there is no vocab")
	case len(m.Vocab) > maxIDs:
		return n.at("/vocab", nil).errorf("more than %d tokens", maxIDs)
	case m.UnkID == nil:
		return n.at("/unk_id", nil).unsupported("a Unigram model without unknown token")
	case int(*m.UnkID) >= len(m.Vocab):
		return n.at("/unk_id", nil).errorf("id %d is not below the vocabulary's size, %d", *m.UnkID, len(m.Vocab))
	}
	u := &unigram{unk: *m.UnkID, fallback: m.ByteFallback, ids: newLexicon(len(m.Vocab), 8*len(m.Vocab)), scores: make([]float64, len(m.Vocab))}
	lowest := math.Inf(1)
	keys := make([]string, 0, len(m.Vocab))
	keyIDs := make([]int32, 0, len(m.Vocab))
	for id, token := range m.Vocab {
		u.ids.set(token.token, uint32(id)) // of equal tokens the last counts
		u.scores[id] = token.score
		lowest = min(lowest, token.score)
	}
	for id, token := range m.Vocab {
		if last, _ := u.ids.get(token.token); token.token != "" && last == uint32(id) {
			keys, keyIDs = append(keys, token.token), append(keyIDs, int32(id))
			u.longest = max(u.longest, len(token.token))
		}
	}
	u.tokens = newTrie(keys)
	for i := range u.tokens.nodes {
		if value := &u.tokens.nodes[i].value; *value >= 0 {
			*value = keyIDs[*value]
		}
	}
	u.unkScore = lowest - unknownPenalty
	for b := range u.bytes {
		id, ok := u.ids.get(byteToken(byte(b)))
		if !ok {
			id = noID
		}
		u.bytes[b] = id
	}
	t.unigram, t.ids, t.size = u, u.ids, len(m.Vocab)
	t.repeated = make(map[uint32]string)
	for id, token := range m.Vocab {
		if last, _ := u.ids.get(token.token); last != uint32(id) {
			t.repeated[uint32(id)] = token.token
		}
	}
	return nil
}

// viterbi finds the best path through a text. Its memory is reused.
type viterbi struct {
	best []bestPath // by end
	path []span
}

// bestPath is the best way to cover the text up to a place.
type bestPath struct {
	score float64
	start int32 // of its last token, -1 if no way is known
	id    uint32
}

type span struct{ start, end int }

// encode appends the ids of a piece. Scores are added from left to right and
// compared as the reference does it, so that paths of nearly equal scores come
// out alike.
func (w *viterbi) encode(u *unigram, dst []uint32, s string, p pauser) ([]uint32, error) {
	if len(s) >= math.MaxInt32 {
		return dst, errors.New("the text is longer than 2 GB")
	}
	if cap(w.best) <= len(s) {
		w.best = make([]bestPath, len(s)+1)
	}
	w.best = w.best[:len(s)+1]
	if err := w.forward(u, s, p); err != nil {
		return dst, err
	}
	w.path = w.path[:0]
	for end := len(s); end > 0; {
		start := int(w.best[end].start)
		if k := len(w.path); k > 0 && w.path[k-1].start == end && w.best[end].id == u.unk && w.best[w.path[k-1].end].id == u.unk {
			w.path[k-1].start = start // neighbouring unknown runes are one
		} else {
			w.path = append(w.path, span{start, end})
		}
		end = start
	}
	for i := len(w.path) - 1; i >= 0; i-- {
		dst = u.token(dst, s[w.path[i].start:w.path[i].end])
		if i%pauseSteps == pauseSteps-1 {
			if err := p.pause(); err != nil {
				return dst, err
			}
		}
	}
	if cap(w.best) > keepSymbols {
		*w = viterbi{}
	}
	return dst, nil
}

// forward fills in the best path to every place.
func (w *viterbi) forward(u *unigram, s string, p pauser) error {
	const none = -1
	for i := range w.best {
		if i%(16*pauseSteps) == 16*pauseSteps-1 {
			if err := p.pause(); err != nil {
				return err
			}
		}
		w.best[i] = bestPath{start: none}
	}
	work := 0
	for i := 0; i < len(s); {
		size := 1
		if s[i] >= utf8.RuneSelf {
			_, size = utf8.DecodeRuneInString(s[i:])
		}
		soFar, single := w.best[i].score, false
		node, end := int32(0), i
		for end < len(s) {
			if node = u.tokens.step(node, s[end]); node < 0 {
				break
			}
			end++
			id := u.tokens.nodes[node].value
			if id < 0 {
				continue
			}
			to := &w.best[end]
			if score := u.scores[id] + soFar; to.start == none || score > to.score {
				*to = bestPath{score, int32(i), uint32(id)}
			}
			single = single || end == i+size
		}
		if !single {
			to := &w.best[i+size]
			if score := u.unkScore + soFar; to.start == none || score > to.score {
				*to = bestPath{score, int32(i), u.unk}
			}
		}
		work += end - i + 1
		i += size
		if work >= pauseSteps {
			work = 0
			if err := p.pause(); err != nil {
				return err
			}
		}
	}
	return nil
}

// token appends the ids of one part of the path: a token, or unknown runes.
func (u *unigram) token(dst []uint32, part string) []uint32 {
	if len(part) <= u.longest {
		if id, ok := u.ids.get(part); ok {
			return append(dst, id)
		}
	}
	if !u.fallback {
		return append(dst, u.unk)
	}
	from := len(dst)
	for i := range len(part) {
		id := u.bytes[part[i]]
		if id == noID {
			return append(dst[:from], u.unk)
		}
		dst = append(dst, id)
	}
	return dst
}

// referenceFloat reads a JSON number as the reference's JSON library does,
// which is not always the nearest: the digits as a whole number, times or
// divided by one power of ten.
func referenceFloat(number []byte) (float64, error) {
	text, negative := strings.CutPrefix(string(number), "-")
	mantissa, exponentText, hasExponent := strings.Cut(strings.ToLower(text), "e")
	exponent := 0
	if hasExponent {
		var err error
		if exponent, err = strconv.Atoi(strings.TrimPrefix(exponentText, "+")); err != nil {
			return 0, fmt.Errorf("number %s: exponent out of range", number)
		}
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	var digits uint64
	full := false // further digits would not fit
	for i, c := range []byte(whole + fraction) {
		d := uint64(c - '0')
		if full = full || digits > (math.MaxUint64-d)/10; full {
			if i < len(whole) {
				exponent++
			}
			continue
		}
		digits = digits*10 + d
		if i >= len(whole) {
			exponent--
		}
	}
	f := float64(digits)
	for exponent < -308 && f != 0 {
		f /= 1e308
		exponent += 308
	}
	switch {
	case f == 0:
	case exponent > 308:
		return 0, fmt.Errorf("number %s: out of range", number)
	case exponent >= 0:
		f *= pow10(exponent)
	default:
		f /= pow10(-exponent)
	}
	if math.IsInf(f, 0) {
		return 0, fmt.Errorf("number %s: out of range", number)
	}
	if negative {
		f = -f
	}
	return f, nil
}

// pow10 is the float nearest to ten to the power of n, which is at most 308.
func pow10(n int) float64 {
	f, _ := strconv.ParseFloat("1e"+strconv.Itoa(n), 64)
	return f
}
