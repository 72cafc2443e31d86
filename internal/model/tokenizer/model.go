package tokenizer

import (
	"fmt"
	"sync"
	"unicode/utf8"
	"unsafe"
)

// maxIDs bounds the ids of a vocabulary; far above any real one.
const maxIDs = 1 << 24

// readModel takes the model; one without a type is BPE. read has the vocabulary and the
// merges if skim has read them.
func (t *Tokenizer) readModel(n node, read skimmed) error {
	if n.null() {
		return n.errorf("there is no model")
	}
	kind, err := n.kind()
	if err != nil {
		return err
	}
	switch kind {
	case "", "BPE":
		return t.readBPE(n, read)
	case "Unigram":
		return t.readUnigram(n)
	}
	return n.at("/type", nil).unsupported(fmt.Sprintf("model %q", kind))
}

// readBPE takes the vocabulary and the merges.
func (t *Tokenizer) readBPE(n node, read skimmed) error {
	var m bpeModel
	if err := n.decode(&m); err != nil {
		return err
	}
	switch {
	case m.Dropout != nil && *m.Dropout != 0:
		return n.at("/dropout", nil).unsupported("dropout")
	case m.Prefix != nil && *m.Prefix != "":
		return n.at("/continuing_subword_prefix", nil).unsupported("a subword prefix")
	case m.Suffix != nil && *m.Suffix != "":
		return n.at("/end_of_word_suffix", nil).unsupported("an end-of-word suffix")
	case m.Vocab == nil:
		return n.errorf("there is no vocab")
	}
	t.ids = read.vocab
	if t.ids == nil {
		t.ids = lexiconOf(m.Vocab)
	}
	t.size = t.ids.count
	tokens, err := t.checkIDs(n)
	if err != nil {
		return err
	}
	if t.byteLevel {
		err = t.readByteAlphabet(n)
	} else {
		err = t.readRunes(n, m, tokens)
	}
	if err != nil {
		return err
	}
	rules := read.merges
	if read.vocab == nil {
		if rules, err = t.readMerges(n, m.Merges); err != nil {
			return err
		}
	}
	// The tables for encoding are laid out by three goroutines at once; none reads another's.
	var work sync.WaitGroup
	work.Go(func() { t.vocab.layOutMerges(rules) })
	if !t.byteLevel {
		if m.IgnoreMerges {
			t.vocab.words = uint32(len(t.ids.text))
		}
		work.Go(func() { t.vocab.cut = t.findJoints(rules, tokens) })
	}
	t.layOutPieces(tokens, m.IgnoreMerges && t.byteLevel)
	work.Wait()
	return nil
}

// checkIDs checks that ids are tokens' one by one, and returns the tokens by their ids.
func (t *Tokenizer) checkIDs(n node) ([]string, error) {
	for token, id := range t.ids.all() {
		if id >= maxIDs {
			return nil, n.at("/vocab/"+token, nil).errorf("id %d is not below %d", id, maxIDs)
		}
	}
	tokens := t.ids.byID()
	for token, id := range t.ids.all() {
		if tokens[id] != token {
			return nil, n.at("/vocab/"+token, nil).errorf("id %d is also that of %q", id, tokens[id])
		}
	}
	return tokens, nil
}

// readByteAlphabet checks that every byte that valid text can hold is a token.
func (t *Tokenizer) readByteAlphabet(n node) error {
	for b := range 256 {
		never := b == 0xc0 || b == 0xc1 || b >= 0xf5 // in no valid UTF-8
		id, ok := t.ids.get(toByteAlphabet(string([]byte{byte(b)})))
		if !ok && !never {
			return n.at("/vocab", nil).unsupported(fmt.Sprintf("a vocabulary without a token for byte 0x%02x", b))
		}
		t.vocab.byteIDs[b] = id
	}
	return nil
}

// readRunes finds the tokens of single runes, and what becomes of others.
func (t *Tokenizer) readRunes(n node, m bpeModel, tokens []string) error {
	v := &t.vocab
	v.runes = newRuneTable()
	for id, token := range tokens {
		if r, size := utf8.DecodeRuneInString(token); size == len(token) && size > 0 {
			v.runes.set(r, uint32(id))
		}
	}
	v.unknown = unknown{id: noID, fuse: m.FuseUnk, fallback: m.ByteFallback, all: m.ByteFallback}
	for b := range v.unknown.bytes {
		id, ok := t.ids.get(byteToken(byte(b)))
		if !ok {
			id, v.unknown.all = noID, false
		}
		v.unknown.bytes[b] = id
	}
	if m.UnkToken != nil {
		id, ok := t.ids.get(*m.UnkToken)
		if !ok && !v.unknown.all {
			return n.at("/unk_token", nil).errorf("token %q is not in the vocabulary", *m.UnkToken)
		}
		if ok {
			v.unknown.id = id
		}
	}
	return nil
}

// byteToken is the token a byte falls back to.
func byteToken(b byte) string { return fmt.Sprintf("<0x%02X>", b) }

// mergeRule is a merge: two tokens, and the one that they make. Its rank is its place in
// the list.
type mergeRule struct{ a, b, made uint32 }

// ruleOf returns the merge of two tokens that stand one after the other in both.
func ruleOf(vocab *lexicon, both []byte, cut int) (mergeRule, bool) {
	s := unsafe.String(unsafe.SliceData(both), len(both)) // only read here
	a, okA := vocab.get(s[:cut])
	b, okB := vocab.get(s[cut:])
	made, okMade := vocab.get(s)
	return mergeRule{a, b, made}, cut > 0 && cut < len(s) && okA && okB && okMade
}

// readMerges finds the ids of merges.
func (t *Tokenizer) readMerges(n node, merges mergeList) ([]mergeRule, error) {
	rules := make([]mergeRule, len(merges))
	var both []byte
	for rank, pair := range merges {
		at := func() node { return n.at(fmt.Sprintf("/merges/%d", rank), nil) }
		if pair[0] == "" || pair[1] == "" {
			return nil, at().errorf("a merge with an empty token")
		}
		both = append(append(both[:0], pair[0]...), pair[1]...)
		rule, ok := ruleOf(t.ids, both, len(pair[0]))
		if !ok {
			for _, token := range [...]string{pair[0], pair[1], pair[0] + pair[1]} {
				if _, ok := t.ids.get(token); !ok {
					return nil, at().errorf("token %q is not in the vocabulary", token)
				}
			}
		}
		rules[rank] = rule
	}
	return rules, nil
}

// layOutMerges enters the merges into their table.
func (v *vocab) layOutMerges(rules []mergeRule) {
	v.merges, v.ranks = newMergeTable(len(rules)), len(rules)
	for rank, r := range rules {
		v.merges.insert(r.a, r.b, uint64(rank)<<32|uint64(r.made))
	}
}

// findJoints returns the scanner that cuts words where merges cannot join them. Where a
// merge takes the unknown token or a byte's, which stand for other text than their own,
// words stay whole.
func (t *Tokenizer) findJoints(rules []mergeRule, tokens []string) scanner {
	v := &t.vocab
	stands := map[uint32]bool{v.unknown.id: true}
	if v.unknown.fallback {
		for _, id := range v.unknown.bytes {
			stands[id] = true
		}
	}
	made := make([]bool, len(tokens))
	for _, r := range rules {
		if stands[r.a] || stands[r.b] {
			return wholeText{}
		}
		made[r.made] = true
	}
	count := 0
	for _, is := range made {
		if is {
			count++
		}
	}
	texts := make([]string, 0, count)
	for id, is := range made {
		if is {
			texts = append(texts, tokens[id])
		}
	}
	return newJoints(v, texts)
}

// layOutPieces enters the tokens as pieces of text. Whether a token's own bytes encode to it
// is decided when the token is first met in a text, because a text has few of a
// vocabulary's tokens and merging all of them takes longer than everything else in
// loading. With all, tokens are found whole whatever their bytes would merge to.
func (t *Tokenizer) layOutPieces(tokens []string, all bool) {
	v := &t.vocab
	mark := pieceUndecided
	if all {
		mark = pieceWhole
	}
	// The bytes of all tokens, so that the alphabet is read once.
	bytes := make([]byte, 0, len(t.ids.text))
	ends := make([]int, len(tokens))
	tiny, short, long, longBytes := 0, 0, 0, 0
	for id, token := range tokens {
		from, ok := len(bytes), true
		if !t.byteLevel {
			bytes = append(bytes, token...)
		} else if out, isText := appendFromByteAlphabet(bytes, token); isText {
			bytes, v.widest = out, max(v.widest, len(out)-from)
		} else {
			ok = false
		}
		ends[id] = len(bytes)
		switch n := len(bytes) - from; {
		case !ok || n == 0:
		case n <= tinyPiece:
			tiny++
		case n <= shortPiece:
			short++
		default:
			long, longBytes, v.longest = long+1, longBytes+n, max(v.longest, n)
		}
	}
	v.whole = newPieceTable(tiny, short)
	v.wholeLong, v.long = newLexicon(long, longBytes), make([]longPiece, 0, long)
	// Tokens of small ids are the frequent ones: first come, nearest found.
	from := 0
	var group pieceGroup
	for id, end := range ends {
		piece := bytes[from:end]
		switch from = end; {
		case len(piece) == 0:
		case len(piece) <= shortPiece:
			v.whole.insert(&group, piece, uint32(id), mark)
		default:
			v.wholeLong.set(string(piece), uint32(len(v.long)))
			v.long = append(v.long, longPiece{uint32(id), mark})
		}
	}
	v.whole.flush(&group)
}
