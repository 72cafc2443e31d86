package tokenizer

import (
	"sort"
	"unicode/utf8"
)

// Hangul syllables are composed by arithmetic.
const (
	hangulBase  = 0xac00
	hangulL     = 0x1100
	hangulV     = 0x1161
	hangulT     = 0x11a7
	hangulCount = 11172
	hangulVs    = 21
	hangulTs    = 28
)

// normalizer puts text in form NFC. Its memory is reused.
//
// A rune is stable if NFC leaves it alone and never joins it to what is
// before it; text is cut before stable runes, and only what lies between is
// taken apart and put together again. Unlike golang.org/x/text it follows the
// letter: a run of marks of any length is one sequence, nothing is inserted.
type normalizer struct {
	out   []byte
	runes []rune
	class []byte
	swap  []rune
}

// nfc gives s in form NFC. The result is s itself where nothing changes, and
// otherwise valid until the next call.
func (n *normalizer) nfc(s string, p pauser) (string, error) {
	n.out = n.out[:0]
	copied := 0 // s[:copied] is in out
	base := 0   // where the last stable rune begins
	changed := false
	for i := 0; i < len(s); {
		if s[i] < utf8.RuneSelf {
			base = i
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if class(r)&bitUnstable == 0 {
			base = i
			i += size
			continue
		}
		end := n.unstable(s, i)
		n.out = append(n.out, s[copied:base]...)
		if err := n.compose(s[base:end], p); err != nil {
			return "", err
		}
		copied, base, changed = end, end, true
		i = end
	}
	if !changed {
		return s, nil
	}
	n.out = append(n.out, s[copied:]...)
	return string(n.out), nil
}

// unstable gives the end of the run of unstable runes at i.
func (n *normalizer) unstable(s string, i int) int {
	for i < len(s) && s[i] >= utf8.RuneSelf {
		r, size := utf8.DecodeRuneInString(s[i:])
		if class(r)&bitUnstable == 0 {
			break
		}
		i += size
	}
	return i
}

// compose appends the NFC of one sequence to out.
func (n *normalizer) compose(s string, p pauser) error {
	n.runes, n.class = n.runes[:0], n.class[:0]
	for i, r := range s {
		if i%pauseSteps == pauseSteps-1 {
			if err := p.pause(); err != nil {
				return err
			}
		}
		n.decompose(r)
	}
	n.order()
	if err := p.pause(); err != nil {
		return err
	}
	starter, kept, last := -1, 0, byte(0)
	for i, r := range n.runes {
		c := n.class[i]
		// A rune joins the last starter unless something of its own or a higher
		// class, or another starter, stands between.
		if starter >= 0 && (kept == starter+1 || last != 0 && last < c) {
			if joined, ok := join(n.runes[starter], r); ok {
				n.runes[starter] = joined
				continue
			}
		}
		if c == 0 {
			starter = kept
		}
		n.runes[kept], last = r, c
		kept++
	}
	for _, r := range n.runes[:kept] {
		n.out = utf8.AppendRune(n.out, r)
	}
	return nil
}

// decompose appends the full canonical decomposition of r.
func (n *normalizer) decompose(r rune) {
	if s := uint32(r - hangulBase); s < hangulCount {
		n.add(hangulL + rune(s/(hangulVs*hangulTs)))
		n.add(hangulV + rune(s%(hangulVs*hangulTs)/hangulTs))
		if t := rune(s % hangulTs); t > 0 {
			n.add(hangulT + t)
		}
		return
	}
	const width = 7
	count := len(decompIndex) / width
	at := sort.Search(count, func(i int) bool { return u24(decompIndex, width*i) >= r })
	if r < utf8.RuneSelf || at == count || u24(decompIndex, width*at) != r {
		n.add(r)
		return
	}
	off, size := int(u24(decompIndex, width*at+3)), int(decompIndex[width*at+6])
	for _, d := range decompText[off : off+size] {
		n.add(d)
	}
}

func (n *normalizer) add(r rune) {
	n.runes = append(n.runes, r)
	n.class = append(n.class, cccData[int(cccIndex[r>>8])<<8|int(r&0xff)])
}

// order sorts each run of marks by class, keeping equals in order. Counting
// keeps a megabyte of marks linear.
func (n *normalizer) order() {
	for i := 0; i < len(n.class); {
		if n.class[i] == 0 {
			i++
			continue
		}
		end, sorted := i+1, true
		for end < len(n.class) && n.class[end] != 0 {
			sorted = sorted && n.class[end-1] <= n.class[end]
			end++
		}
		if !sorted {
			n.countingSort(i, end)
		}
		i = end
	}
}

func (n *normalizer) countingSort(i, end int) {
	var at [256]int
	for _, c := range n.class[i:end] {
		at[c]++
	}
	sum := 0
	for c, count := range at {
		at[c] = sum
		sum += count
	}
	n.swap = append(n.swap[:0], n.runes[i:end]...)
	for k, r := range n.swap {
		c := n.class[i+k]
		n.runes[i+at[c]] = r
		at[c]++
	}
	// The classes follow from the ends of the buckets.
	from := 0
	for c, to := range at {
		for k := from; k < to; k++ {
			n.class[i+k] = byte(c)
		}
		from = to
	}
}

// join gives the primary composite of two runes.
func join(a, b rune) (rune, bool) {
	if l, v := a-hangulL, b-hangulV; l >= 0 && l < 19 && v >= 0 && v < hangulVs {
		return hangulBase + (l*hangulVs+v)*hangulTs, true
	}
	if s, t := a-hangulBase, b-hangulT; s >= 0 && s < hangulCount && s%hangulTs == 0 && t > 0 && t < hangulTs {
		return a + t, true
	}
	const width = 9
	count := len(composePairs) / width
	at := sort.Search(count, func(i int) bool {
		first := u24(composePairs, width*i)
		return first > a || first == a && u24(composePairs, width*i+3) >= b
	})
	if at == count || u24(composePairs, width*at) != a || u24(composePairs, width*at+3) != b {
		return 0, false
	}
	return u24(composePairs, width*at+6), true
}

func u24(s string, i int) rune { return rune(s[i])<<16 | rune(s[i+1])<<8 | rune(s[i+2]) }
