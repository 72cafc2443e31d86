package tokenizer

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"strings"
	"unicode/utf8"
)

// charsmap is the normalizer Precompiled: SentencePiece's table of replacements. The
// table is a trie of bytes as a double array. Its leaves are offsets into the
// replacements, which end in zero bytes.
//
// A grapheme of at most five bytes is looked up as a whole, and the shortest prefix of
// it in the table replaces all of it. Longer graphemes, and short ones that are not
// found, are looked up rune by rune.
type charsmap struct {
	units []uint32
	text  string
}

// longCluster is the length from which clusters are taken rune by rune.
const longCluster = 6

func readCharsmap(n node) (*charsmap, error) {
	var part struct {
		Type string `json:"type"`
		Map  string `json:"precompiled_charsmap"`
	}
	if err := n.decode(&part); err != nil {
		return nil, err
	}
	at := n.at("/precompiled_charsmap", nil)
	data, err := base64.StdEncoding.DecodeString(part.Map)
	if err != nil {
		return nil, at.errorf("%v", err)
	}
	m, err := parseCharsmap(data)
	if err != nil {
		return nil, at.errorf("%v", err)
	}
	return m, nil
}

func parseCharsmap(data []byte) (*charsmap, error) {
	if len(data) < 4 {
		return nil, errors.New("shorter than its own length")
	}
	size := int(binary.LittleEndian.Uint32(data))
	data = data[4:]
	if size > len(data) || size%4 != 0 || size == 0 {
		return nil, errors.New("its trie is cut off")
	}
	m := &charsmap{units: make([]uint32, size/4), text: string(data[size:])}
	for i := range m.units {
		m.units[i] = binary.LittleEndian.Uint32(data[4*i:])
	}
	if !utf8.ValidString(m.text) {
		return nil, errors.New("its text is not valid UTF-8")
	}
	return m, nil
}

// find returns what stands for the shortest beginning of s that the table has.
func (m *charsmap) find(s string) (string, bool) {
	at := offset(m.units[0])
	for i := range len(s) {
		c := uint32(s[i])
		if c == 0 {
			break
		}
		at ^= c
		if int(at) >= len(m.units) {
			break
		}
		unit := m.units[at]
		if unit&(1<<31|0xff) != c {
			break
		}
		at ^= offset(unit)
		if unit>>8&1 == 1 {
			if int(at) >= len(m.units) {
				break
			}
			from := int(m.units[at] &^ (1 << 31))
			if from > len(m.text) {
				break
			}
			end := strings.IndexByte(m.text[from:], 0)
			if end < 0 {
				return m.text[from:], true
			}
			return m.text[from : from+end], true
		}
	}
	return "", false
}

// offset returns how far a node's children are.
func offset(unit uint32) uint32 { return unit >> 10 << (unit & (1 << 9) >> 6) }

func (m *charsmap) rewrite(x *scratch, dst []byte, s string, p pauser) ([]byte, bool, error) {
	e, _ := p.(*Encoder)
	next := pauseSteps
	for i := 0; i < len(s); {
		end := cluster(s, i, e)
		if end-i < longCluster {
			if out, ok := m.find(s[i:end]); ok {
				if !x.has(len(dst) + len(out) - len(s)) {
					return dst, false, errGrown
				}
				dst = append(dst, out...)
				i = end
				continue
			}
		}
		for i < end {
			_, size := decode(s, i)
			if out, ok := m.find(s[i : i+size]); ok {
				if !x.has(len(dst) + len(out) - len(s)) {
					return dst, false, errGrown
				}
				dst = append(dst, out...)
			} else {
				dst = append(dst, s[i:i+size]...)
			}
			i += size
		}
		if i >= next {
			next = i + pauseSteps
			if err := p.pause(); err != nil {
				return dst, false, err
			}
		}
	}
	return dst, true, nil
}

// cluster returns the end of the grapheme at i, by the rules of Unicode's annex 29, but
// for the one of flags, which joins only what is long already.
func cluster(s string, i int, e *Encoder) int {
	r, size := decode(s, i)
	i += size
	if r == '\r' && i < len(s) && s[i] == '\n' {
		return i + 1
	}
	var c clusterState
	if c.after(r); c.last == graphemeControl {
		return i
	}
	for part := partAt(s, i); i < len(s); {
		if i >= part {
			if !e.pace() {
				break
			}
			part = partAt(s, i)
		}
		next, size := decode(s, i)
		if !c.joins(graphemeClass(next)) {
			break
		}
		c.after(next)
		i += size
	}
	return i
}

// clusterState is what the rules look back on.
type clusterState struct {
	last    byte // class of the last rune
	joiner  bool // which is a zero-width joiner
	picture bool // a pictograph and marks that extend it end here
	// conjunct is 1 after a consonant and marks that extend it, and 2 if one of
	// them is a linker.
	conjunct int
}

// joins reports whether a rune of a class belongs to the cluster.
func (c *clusterState) joins(class byte) bool {
	switch class {
	case graphemeControl:
		return false
	case graphemeExtend, graphemeExtendPlain, graphemeLinker, graphemeSpacing:
		return true
	case graphemePictographic:
		return c.last == graphemePrepend || c.picture && c.joiner
	case graphemeConsonant:
		return c.last == graphemePrepend || c.conjunct == 2
	}
	return c.last == graphemePrepend || hangulJoined(c.last, class)
}

// after takes a rune into account.
func (c *clusterState) after(r rune) {
	class := graphemeClass(r)
	extends := class == graphemeExtend || class == graphemeExtendPlain || class == graphemeLinker
	switch {
	case class == graphemeConsonant:
		c.conjunct = 1
	case class == graphemeLinker && c.conjunct > 0:
		c.conjunct = 2
	case class != graphemeExtend:
		c.conjunct = 0
	}
	c.last, c.joiner = class, r == zeroWidthJoiner
	c.picture = class == graphemePictographic || extends && c.picture
}

// zeroWidthJoiner is in class Extend.
const zeroWidthJoiner = '\u200d'

func graphemeClass(r rune) byte { return traits(r) & graphemeMask }

// hangulJoined reports whether two parts of Hangul syllables are one.
func hangulJoined(a, b byte) bool {
	switch a {
	case graphemeHangulL:
		return b == graphemeHangulL || b == graphemeHangulV || b == graphemeHangulLV || b == graphemeHangulLVT
	case graphemeHangulV, graphemeHangulLV:
		return b == graphemeHangulV || b == graphemeHangulT
	case graphemeHangulT, graphemeHangulLVT:
		return b == graphemeHangulT
	}
	return false
}
