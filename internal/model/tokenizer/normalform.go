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

// scratch is the memory that rewriting text reuses.
type scratch struct {
	runes []rune
	class []byte
	swap  []rune
	found
	room // of the text
}

// normalForm rewrites text in one of Unicode's normal forms: NFD, or NFKD with
// compat; NFC and NFKC with compose. The zero value is NFD.
//
// Text is cut before runes that the form leaves alone and never joins to what
// is before them, and only what lies between is taken apart and put together
// again. For NFC the tables know those runes; for the other forms they are
// ASCII. Unlike golang.org/x/text it follows the letter: a run of marks of any
// length is one sequence, nothing is inserted.
type normalForm struct {
	compat, compose bool
}

// stable reports whether text can be cut before a rune beyond ASCII.
func (f normalForm) stable(r rune) bool {
	return f.compose && !f.compat && class(r)&bitUnstable == 0
}

func (f normalForm) rewrite(x *scratch, dst []byte, s string, p pauser) ([]byte, bool, error) {
	copied := 0 // s[:copied] is in dst
	base := 0   // where the last stable rune begins
	changed := false
	for i := 0; i < len(s); {
		if s[i] < utf8.RuneSelf {
			base = i
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if f.stable(r) {
			base = i
			i += size
			continue
		}
		end := f.unstable(s, i)
		base = max(base, copied)
		dst = append(dst, s[copied:base]...)
		var err error
		if dst, err = f.sequence(x, dst, s[base:end], p); err != nil {
			return dst, false, err
		}
		copied, base, changed = end, end, true
		i = end
	}
	if !changed {
		return dst, false, nil
	}
	return append(dst, s[copied:]...), true, nil
}

// unstable returns the end of the run of runes at i that are not stable.
func (f normalForm) unstable(s string, i int) int {
	for i < len(s) && s[i] >= utf8.RuneSelf {
		r, size := utf8.DecodeRuneInString(s[i:])
		if f.stable(r) {
			break
		}
		i += size
	}
	return i
}

// sequence appends the form of one sequence.
func (f normalForm) sequence(x *scratch, dst []byte, s string, p pauser) ([]byte, error) {
	x.runes, x.class = x.runes[:0], x.class[:0]
	for i, r := range s {
		if i%pauseSteps == pauseSteps-1 {
			if err := p.pause(); err != nil {
				return dst, err
			}
		}
		x.decompose(r, f.compat)
	}
	x.order()
	if err := p.pause(); err != nil {
		return dst, err
	}
	if f.compose {
		x.compose()
	}
	for _, r := range x.runes {
		dst = utf8.AppendRune(dst, r)
	}
	return dst, nil
}

// compose joins runes that are decomposed and in order.
func (x *scratch) compose() {
	starter, kept, last := -1, 0, byte(0)
	for i, r := range x.runes {
		c := x.class[i]
		// A rune joins the last starter unless something of its own or a higher
		// class, or another starter, stands between.
		if starter >= 0 && (kept == starter+1 || last != 0 && last < c) {
			if joined, ok := join(x.runes[starter], r); ok {
				x.runes[starter] = joined
				continue
			}
		}
		if c == 0 {
			starter = kept
		}
		x.runes[kept], last = r, c
		kept++
	}
	x.runes = x.runes[:kept]
}

// decompose appends the full decomposition of r, canonical or compatible.
func (x *scratch) decompose(r rune, compat bool) {
	if s := uint32(r - hangulBase); s < hangulCount {
		x.add(hangulL + rune(s/(hangulVs*hangulTs)))
		x.add(hangulV + rune(s%(hangulVs*hangulTs)/hangulTs))
		if t := rune(s % hangulTs); t > 0 {
			x.add(hangulT + t)
		}
		return
	}
	d, ok := "", false
	if compat {
		d, ok = lookUp(compatIndex, compatText, r)
	}
	if !ok {
		d, ok = lookUp(decompIndex, decompText, r)
	}
	if !ok {
		x.add(r)
		return
	}
	for _, d := range d {
		x.add(d)
	}
}

// lookUp finds a rune in a table of 7 bytes an entry: rune, offset in text,
// length.
func lookUp(index, text string, r rune) (string, bool) {
	const width = 7
	if r < utf8.RuneSelf {
		return "", false
	}
	count := len(index) / width
	at := sort.Search(count, func(i int) bool { return u24(index, width*i) >= r })
	if at == count || u24(index, width*at) != r {
		return "", false
	}
	off, size := int(u24(index, width*at+3)), int(index[width*at+6])
	return text[off : off+size], true
}

func (x *scratch) add(r rune) {
	x.runes = append(x.runes, r)
	x.class = append(x.class, cccData[int(cccIndex[r>>8])<<8|int(r&0xff)])
}

// order sorts each run of marks by class, keeping equals in order. Counting
// keeps a megabyte of marks linear.
func (x *scratch) order() {
	for i := 0; i < len(x.class); {
		if x.class[i] == 0 {
			i++
			continue
		}
		end, sorted := i+1, true
		for end < len(x.class) && x.class[end] != 0 {
			sorted = sorted && x.class[end-1] <= x.class[end]
			end++
		}
		if !sorted {
			x.countingSort(i, end)
		}
		i = end
	}
}

func (x *scratch) countingSort(i, end int) {
	var at [256]int
	for _, c := range x.class[i:end] {
		at[c]++
	}
	sum := 0
	for c, count := range at {
		at[c] = sum
		sum += count
	}
	x.swap = append(x.swap[:0], x.runes[i:end]...)
	for k, r := range x.swap {
		c := x.class[i+k]
		x.runes[i+at[c]] = r
		at[c]++
	}
	// The classes follow from the ends of the buckets.
	from := 0
	for c, to := range at {
		for k := from; k < to; k++ {
			x.class[i+k] = byte(c)
		}
		from = to
	}
}

// join returns the primary composite of two runes.
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
