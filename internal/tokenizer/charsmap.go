package tokenizer

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"strings"
	"unicode/utf8"
)

// charsmap is the normalizer Precompiled: SentencePiece's table of what is
// written instead of what. The table is a trie of bytes as a double array
// whose leaves are offsets in a text of strings that each end in a zero byte.
//
// A cluster of marks and letters (a grapheme) of at most five bytes is looked
// up as a whole, where the shortest beginning of it that the table has stands
// for all of it. Longer clusters, and short ones that are not found, are
// looked up rune by rune.
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

// find gives what stands for the shortest beginning of s that the table has.
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

// offset gives how far a node's children are.
func offset(unit uint32) uint32 { return unit >> 10 << (unit & (1 << 9) >> 6) }

func (m *charsmap) rewrite(_ *scratch, dst []byte, s string, p pauser) ([]byte, bool, error) {
	next := pauseSteps
	for i := 0; i < len(s); {
		end := cluster(s, i)
		if end-i < longCluster {
			if out, ok := m.find(s[i:end]); ok {
				dst = append(dst, out...)
				i = end
				continue
			}
		}
		for i < end {
			_, size := decode(s, i)
			if out, ok := m.find(s[i : i+size]); ok {
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

// cluster gives the end of the grapheme at i, or of some of it if it is not
// short. The rules are those of Unicode's annex 29 that can make a short one;
// what other rules join makes a long one, so that it only matters that it is
// joined.
func cluster(s string, i int) int {
	from := i
	r, size := decode(s, i)
	i += size
	last, picture := graphemeClass(r), graphemeClass(r) == graphemePictographic
	if r == '\r' && i < len(s) && s[i] == '\n' {
		return i + 1
	}
	if last == graphemeControl {
		return i
	}
	for i < len(s) && i-from < longCluster {
		next, size := decode(s, i)
		class := graphemeClass(next)
		joined := false
		switch {
		case class == graphemeControl:
		case class == graphemeExtend, last == graphemePrepend:
			joined = true
		case class == graphemePictographic:
			joined = picture && r == joiner
		default:
			joined = hangulJoined(last, class)
		}
		if !joined {
			break
		}
		picture = picture && class == graphemeExtend || class == graphemePictographic
		r, last = next, class
		i += size
	}
	return i
}

// joiner is the zero-width joiner, which is in class Extend too.
const joiner = '\u200d'

func graphemeClass(r rune) byte { return traits(r) & graphemeMask }

// hangulJoined says whether two parts of Hangul syllables are one.
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
