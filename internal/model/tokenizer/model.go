package tokenizer

import (
	"fmt"
	"slices"
	"unicode/utf8"
)

// maxIDs bounds the ids of a vocabulary; far above any real one.
const maxIDs = 1 << 24

// readModel takes the model. That without a type is BPE.
func (t *Tokenizer) readModel(n node) error {
	if n.null() {
		return n.errorf("there is no model")
	}
	kind, err := n.kind()
	if err != nil {
		return err
	}
	switch kind {
	case "", "BPE":
		return t.readBPE(n)
	case "Unigram":
		return t.readUnigram(n)
	}
	return n.at("/type", nil).unsupported(fmt.Sprintf("model %q", kind))
}

// readBPE takes the vocabulary and the merges.
func (t *Tokenizer) readBPE(n node) error {
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
	t.ids, t.size = m.Vocab, len(m.Vocab)
	if err := t.checkIDs(n); err != nil {
		return err
	}
	var err error
	if t.byteLevel {
		err = t.readByteAlphabet(n)
	} else {
		err = t.readRunes(n, m)
	}
	if err != nil {
		return err
	}
	if err := t.readMerges(n, m.Merges); err != nil {
		return err
	}
	t.findWhole(m.IgnoreMerges && t.byteLevel)
	if t.byteLevel {
		return nil
	}
	if m.IgnoreMerges {
		t.vocab.words = m.Vocab
	}
	t.vocab.cut = t.findJoints(m.Merges)
	return nil
}

// checkIDs checks that ids are tokens' one by one.
func (t *Tokenizer) checkIDs(n node) error {
	most := uint32(0)
	for token, id := range t.ids {
		if id >= maxIDs {
			return n.at("/vocab/"+token, nil).errorf("id %d is not below %d", id, maxIDs)
		}
		most = max(most, id)
	}
	taken := make([]bool, most+1)
	for token, id := range t.ids {
		if taken[id] {
			for other, same := range t.ids {
				if same == id && other != token {
					return n.at("/vocab/"+token, nil).errorf("id %d is also that of %q", id, other)
				}
			}
		}
		taken[id] = true
	}
	return nil
}

// readByteAlphabet checks that every byte that valid text can hold is a token.
func (t *Tokenizer) readByteAlphabet(n node) error {
	for b := range 256 {
		never := b == 0xc0 || b == 0xc1 || b >= 0xf5 // in no valid UTF-8
		id, ok := t.ids[toByteAlphabet(string([]byte{byte(b)}))]
		if !ok && !never {
			return n.at("/vocab", nil).unsupported(fmt.Sprintf("a vocabulary without a token for byte 0x%02x", b))
		}
		t.vocab.byteIDs[b] = id
	}
	return nil
}

// readRunes finds the tokens of single runes, and what becomes of others.
func (t *Tokenizer) readRunes(n node, m bpeModel) error {
	v := &t.vocab
	v.runes = newRuneTable()
	for token, id := range t.ids {
		if r, size := utf8.DecodeRuneInString(token); size == len(token) && size > 0 {
			v.runes.set(r, id)
		}
	}
	v.unknown = unknown{id: noID, fuse: m.FuseUnk, fallback: m.ByteFallback, all: m.ByteFallback}
	for b := range v.unknown.bytes {
		id, ok := t.ids[byteToken(byte(b))]
		if !ok {
			id, v.unknown.all = noID, false
		}
		v.unknown.bytes[b] = id
	}
	if m.UnkToken != nil {
		id, ok := t.ids[*m.UnkToken]
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

// findJoints returns the scanner that cuts words where merges cannot join them. Where a
// merge takes the unknown token or a byte's, which stand for other text than their own,
// words stay whole.
func (t *Tokenizer) findJoints(merges mergeList) scanner {
	v := &t.vocab
	stands := map[uint32]bool{v.unknown.id: true}
	if v.unknown.fallback {
		for _, id := range v.unknown.bytes {
			stands[id] = true
		}
	}
	made := make([]string, len(merges))
	for i, pair := range merges {
		if stands[t.ids[pair[0]]] || stands[t.ids[pair[1]]] {
			return wholeText{}
		}
		made[i] = pair[0] + pair[1]
	}
	return newJoints(v, made)
}

func (t *Tokenizer) readMerges(n node, merges mergeList) error {
	t.vocab.merges = newMergeTable(len(merges))
	t.vocab.ranks = len(merges)
	for rank, pair := range merges {
		if pair[0] == "" || pair[1] == "" {
			return n.at(fmt.Sprintf("/merges/%d", rank), nil).errorf("a merge with an empty token")
		}
		var ids [3]uint32
		for i, token := range [...]string{pair[0], pair[1], pair[0] + pair[1]} {
			id, ok := t.ids[token]
			if !ok {
				return n.at(fmt.Sprintf("/merges/%d", rank), nil).errorf("token %q is not in the vocabulary", token)
			}
			ids[i] = id
		}
		t.vocab.merges.insert(ids[0], ids[1], uint64(rank)<<32|uint64(ids[2]))
	}
	return nil
}

// findWhole collects the tokens that their own bytes encode to; with all, the
// tokens that are found whole whatever their bytes would merge to.
func (t *Tokenizer) findWhole(all bool) {
	type entry struct {
		text []byte
		id   uint32
	}
	entries := make([]entry, 0, len(t.ids))
	var ids []uint32
	var m merger
	for token, id := range t.ids {
		text, ok := []byte(token), true
		if t.byteLevel {
			text, ok = fromByteAlphabet(token)
			t.vocab.widest = max(t.vocab.widest, len(text))
		}
		if !ok || len(text) == 0 {
			continue
		}
		if !all {
			if len(text) <= shortMerge {
				ids = t.vocab.mergeShort(ids[:0], text)
			} else {
				ids, _ = m.merge(&t.vocab, ids[:0], text, neverPause{})
			}
			if len(ids) != 1 || ids[0] != id {
				continue
			}
		}
		entries = append(entries, entry{text, id})
	}
	// Tokens of small ids are the frequent ones: first come, nearest found.
	slices.SortFunc(entries, func(a, b entry) int { return int(a.id) - int(b.id) })
	short := 0
	for _, e := range entries {
		if len(e.text) <= shortPiece {
			short++
		}
	}
	t.vocab.whole = newPieceTable(short)
	t.vocab.wholeLong = make(map[string]uint32, len(entries)-short)
	for _, e := range entries {
		if len(e.text) <= shortPiece {
			t.vocab.whole.insert(e.text, e.id)
			continue
		}
		t.vocab.wholeLong[string(e.text)] = e.id
		t.vocab.longest = max(t.vocab.longest, len(e.text))
	}
}
