package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// percent is one conversion of a %-format.
type percent struct {
	left, plus, space, zero, alt bool
	width, prec                  int // prec is -1 when not given
	verb                         byte
}

// percentArgs hands out the operand's values.
type percentArgs struct {
	operand Value
	items   []Value
	i       int
	tuple   bool
	keyed   bool
}

func (p *percentArgs) next() (Value, error) {
	if p.i >= len(p.items) {
		return nil, typeErrorf("not enough arguments for format string")
	}
	p.i++
	return p.items[p.i-1], nil
}

// formatPercent is Python's `format % operand`.
func formatPercent(st *state, format string, operand Value) (Value, error) {
	p := &percentArgs{operand: operand, items: []Value{operand}}
	if t, ok := operand.(*Tuple); ok {
		p.items, p.tuple = t.Items, true
	}
	var b []byte
	for {
		i := strings.IndexByte(format, '%')
		if i < 0 {
			b = append(b, format...)
			break
		}
		b = append(b, format[:i]...)
		rest, err := p.conversion(st, &b, format[i+1:])
		if err != nil {
			return nil, err
		}
		format = rest
		if len(b) > st.opt.MaxAlloc-st.allocated {
			return nil, st.alloc(len(b))
		}
	}
	if p.i < len(p.items) && !p.keyed {
		switch operand.(type) {
		case *Dict, *List, *Range:
			// A mapping (and what looks like one) may be left unused.
		default:
			return nil, typeErrorf("not all arguments converted during string formatting")
		}
	}
	return st.str(string(b))
}

// conversion formats one conversion at the start of s, after its percent sign,
// and gives what follows it.
func (p *percentArgs) conversion(st *state, b *[]byte, s string) (string, error) {
	c := percent{prec: -1}
	var arg Value
	if strings.HasPrefix(s, "(") {
		end, depth := 1, 1
		for ; end < len(s) && depth > 0; end++ {
			switch s[end] {
			case '(':
				depth++
			case ')':
				depth--
			}
		}
		if depth > 0 {
			return "", valueErrorf("incomplete format key")
		}
		if u, ok := p.operand.(*Undefined); ok {
			return "", u.fail()
		}
		d, ok := p.operand.(*Dict)
		if !ok {
			return "", typeErrorf("format requires a mapping")
		}
		v, ok := d.Get(s[1 : end-1])
		if !ok {
			return "", errorf(KindRuntime, "KeyError: '%s'", s[1:end-1])
		}
		arg, s, p.keyed = v, s[end:], true
	}
	s = c.flags(s)
	var err error
	if c.width, s, err = p.count(s); err != nil {
		return "", err
	}
	if c.width < 0 {
		c.left, c.width = true, -c.width
	}
	if strings.HasPrefix(s, ".") {
		if c.prec, s, err = p.count(s[1:]); err != nil {
			return "", err
		}
		c.prec = max(c.prec, 0)
	}
	s = strings.TrimLeft(s, "hlL")
	if s == "" {
		return "", valueErrorf("incomplete format")
	}
	if err := st.alloc(c.width + max(c.prec, 0)); err != nil {
		return "", err
	}
	r, n := utf8.DecodeRuneInString(s)
	if r == '%' {
		*b = append(*b, '%')
		return s[n:], nil
	}
	if arg == nil {
		if arg, err = p.next(); err != nil {
			return "", err
		}
	}
	c.verb = s[0]
	out, err := c.format(st, arg)
	if err != nil {
		return "", err
	}
	*b = append(*b, out...)
	return s[n:], nil
}

func (c *percent) flags(s string) string {
	for ; s != ""; s = s[1:] {
		switch s[0] {
		case '-':
			c.left = true
		case '+':
			c.plus = true
		case ' ':
			c.space = true
		case '0':
			c.zero = true
		case '#':
			c.alt = true
		default:
			return s
		}
	}
	return s
}

// count reads a width or precision: digits, or a star that takes an argument.
func (p *percentArgs) count(s string) (int, string, error) {
	if strings.HasPrefix(s, "*") {
		v, err := p.next()
		if err != nil {
			return 0, "", err
		}
		if _, ok := v.(Int); !ok {
			return 0, "", typeErrorf("* wants int")
		}
		n, err := asIndex(v)
		return n, s[1:], err
	}
	n := 0
	for s != "" && isDecimal(s[0]) {
		if n = n*10 + int(s[0]-'0'); n > math.MaxInt32 {
			return 0, "", valueErrorf("width too big")
		}
		s = s[1:]
	}
	return n, s, nil
}

func (c *percent) format(st *state, v Value) (string, error) {
	switch c.verb {
	case 's', 'r', 'a':
		var s string
		var err error
		if c.verb == 's' {
			s, err = text(st, v)
		} else {
			var b []byte
			b, err = appendRepr(st, nil, v, 0)
			if s = string(b); c.verb == 'a' {
				s = asciiOnly(s)
			}
		}
		if err != nil {
			return "", err
		}
		if c.prec >= 0 {
			s = s[:runeOffset(s, c.prec)]
		}
		return c.pad(s), nil
	case 'c':
		if s, ok := asText(v); ok {
			if utf8.RuneCountInString(s) != 1 {
				return "", typeErrorf("%%c requires int or char")
			}
			return c.pad(s), nil
		}
		n, err := asIndex(v)
		if err != nil {
			return "", typeErrorf("%%c requires int or char")
		}
		if n < 0 || n > utf8.MaxRune || n >= 0xd800 && n < 0xe000 {
			return "", errorf(KindRuntime, "%%c arg not in range(0x110000)")
		}
		return c.pad(string(rune(n))), nil
	case 'd', 'i', 'u', 'o', 'x', 'X':
		return c.integer(v)
	case 'e', 'E', 'f', 'F', 'g', 'G':
		n, ok := asNumber(v)
		if !ok {
			if u, isUndef := v.(*Undefined); isUndef {
				return "", u.fail()
			}
			return "", typeErrorf("must be real number, not %s", v.typeName())
		}
		f, err := n.toFloat()
		if err != nil {
			return "", err
		}
		if c.prec < 0 {
			c.prec = 6
		}
		return c.number(formatFloat(math.Abs(f), c.verb, c.prec, c.alt), math.Signbit(f) && !math.IsNaN(f), "", !math.IsInf(f, 0) && !math.IsNaN(f)), nil
	}
	return "", valueErrorf("unsupported format character '%c' (0x%x)", c.verb, c.verb)
}

func (c *percent) integer(v Value) (string, error) {
	n, ok := asNumber(v)
	if !ok || n.float && c.verb != 'd' && c.verb != 'i' && c.verb != 'u' {
		if u, isUndef := v.(*Undefined); isUndef && c.verb|32 != 'x' && c.verb != 'o' {
			return "", u.fail()
		}
		if !ok && (c.verb == 'd' || c.verb == 'i' || c.verb == 'u') {
			return "", typeErrorf("%%%c format: a real number is required, not %s", c.verb, v.typeName())
		}
		return "", typeErrorf("%%%c format: an integer is required, not %s", c.verb, v.typeName())
	}
	var b *big.Int
	if n.float {
		var err error
		if b, err = truncate(n.f); err != nil {
			return "", err
		}
	} else {
		b = n.big()
	}
	base, prefix := 10, ""
	switch c.verb {
	case 'o':
		base, prefix = 8, "0o"
	case 'x':
		base, prefix = 16, "0x"
	case 'X':
		base, prefix = 16, "0X"
	}
	if !c.alt {
		prefix = ""
	}
	digits := new(big.Int).Abs(b).Text(base)
	if c.verb == 'X' {
		digits = strings.ToUpper(digits)
	}
	if missing := c.prec - len(digits); missing > 0 {
		digits = strings.Repeat("0", missing) + digits
	}
	return c.number(digits, b.Sign() < 0, prefix, true), nil
}

// number puts sign, prefix and padding around digits.
func (c *percent) number(digits string, negative bool, prefix string, finite bool) string {
	sign := ""
	switch {
	case negative:
		sign = "-"
	case c.plus:
		sign = "+"
	case c.space:
		sign = " "
	}
	head := sign + prefix
	if missing := c.width - len(head) - len(digits); missing > 0 && c.zero && !c.left && finite {
		digits = strings.Repeat("0", missing) + digits
	}
	return c.pad(head + digits)
}

func (c *percent) pad(s string) string {
	n := c.width - utf8.RuneCountInString(s)
	if n <= 0 {
		return s
	}
	if c.left {
		return s + strings.Repeat(" ", n)
	}
	return strings.Repeat(" ", n) + s
}

// truncate is Python's int() of a float.
func truncate(f float64) (*big.Int, error) {
	if math.IsNaN(f) {
		return nil, valueErrorf("cannot convert float NaN to integer")
	}
	if math.IsInf(f, 0) {
		return nil, errorf(KindRuntime, "cannot convert float infinity to integer")
	}
	b, _ := big.NewFloat(f).Int(nil)
	return b, nil
}

// maxFloatPrec bounds the digits after the point; a float has no more than
// 1074 that are not zero.
const maxFloatPrec = 1 << 12

// formatFloat formats a float that is not negative with one of efgEFG, as
// Python and C do.
func formatFloat(f float64, verb byte, prec int, alt bool) string {
	upperCase := verb < 'a'
	var s string
	switch {
	case math.IsInf(f, 0):
		s = "inf"
	case math.IsNaN(f):
		s = "nan"
	case verb|32 == 'g':
		s = formatGeneral(f, prec, alt)
	default:
		s = strconv.FormatFloat(f, verb|32, min(prec, maxFloatPrec), 64)
		if alt && prec == 0 {
			if i := strings.IndexByte(s, 'e'); i >= 0 {
				s = s[:i] + "." + s[i:]
			} else {
				s += "."
			}
		}
	}
	if upperCase {
		return strings.ToUpper(s)
	}
	return s
}

func formatGeneral(f float64, prec int, alt bool) string {
	prec = min(max(prec, 1), maxFloatPrec)
	e := strconv.FormatFloat(f, 'e', prec-1, 64)
	i := strings.IndexByte(e, 'e')
	exp, _ := strconv.Atoi(e[i+1:])
	mant, tail := e[:i], e[i:]
	if exp >= -4 && exp < prec {
		mant, tail = strconv.FormatFloat(f, 'f', prec-1-exp, 64), ""
	}
	if !alt && strings.IndexByte(mant, '.') >= 0 {
		mant = strings.TrimRight(strings.TrimRight(mant, "0"), ".")
	}
	return mant + tail
}

// asciiOnly escapes what is not ASCII, for ascii().
func asciiOnly(s string) string {
	if isASCII(s) {
		return s
	}
	var b []byte
	for _, r := range s {
		switch {
		case r < 0x80:
			b = append(b, byte(r))
		case r < 0x100:
			b = appendHex(append(b, `\x`...), r, 2)
		case r < 0x10000:
			b = appendHex(append(b, `\u`...), r, 4)
		default:
			b = appendHex(append(b, `\U`...), r, 8)
		}
	}
	return string(b)
}
