package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// formatBraces is Python's str.format in the sandbox.
func formatBraces(st *state, format string, a args) (Value, error) {
	f := &braces{a: a}
	s, err := f.expand(st, format, 2)
	if err != nil {
		return nil, err
	}
	return st.str(s)
}

// braces is one call of str.format.
type braces struct {
	a      args
	auto   int
	manual bool
}

// expand replaces the fields of format; depth bounds fields within the specs
// of fields.
func (f *braces) expand(st *state, format string, depth int) (string, error) {
	if depth == 0 {
		return "", valueErrorf("Max string recursion exceeded")
	}
	var b strings.Builder
	for i := 0; i < len(format); {
		c := format[i]
		if c != '{' && c != '}' {
			b.WriteByte(c)
			i++
			continue
		}
		if i+1 < len(format) && format[i+1] == c {
			b.WriteByte(c)
			i += 2
			continue
		}
		if c == '}' {
			return "", valueErrorf("Single '}' encountered in format string")
		}
		end, level := i+1, 1
		for ; end < len(format) && level > 0; end++ {
			switch format[end] {
			case '{':
				level++
			case '}':
				level--
			}
		}
		if level > 0 {
			if i+1 == len(format) {
				return "", valueErrorf("Single '{' encountered in format string")
			}
			return "", valueErrorf("expected '}' before end of string")
		}
		s, err := f.field(st, format[i+1:end-1], depth)
		if err != nil {
			return "", err
		}
		if err := st.alloc(len(s)); err != nil {
			return "", err
		}
		b.WriteString(s)
		i = end
	}
	return b.String(), nil
}

// field formats one replacement field: name, conversion, format spec.
func (f *braces) field(st *state, field string, depth int) (string, error) {
	name, spec, conv := field, "", byte(0)
	bracket := 0
scan:
	for i := 0; i < len(field); i++ {
		switch field[i] {
		case '[':
			bracket++
		case ']':
			bracket--
		case ':', '!':
			if bracket > 0 {
				continue
			}
			name = field[:i]
			rest := field[i+1:]
			if field[i] == '!' {
				if rest == "" {
					return "", valueErrorf("end of string while looking for conversion specifier")
				}
				conv, rest = rest[0], rest[1:]
				if rest != "" && rest[0] != ':' {
					return "", valueErrorf("expected ':' after conversion specifier")
				}
				rest = strings.TrimPrefix(rest, ":")
			}
			spec = rest
			break scan
		}
	}
	v, err := f.lookup(st, name)
	if err != nil {
		return "", err
	}
	if v, err = convertField(st, v, conv); err != nil {
		return "", err
	}
	if spec != "" {
		if spec, err = f.expand(st, spec, depth-1); err != nil {
			return "", err
		}
	}
	return formatSpec(st, v, spec)
}

func convertField(st *state, v Value, conv byte) (Value, error) {
	switch conv {
	case 0:
		return v, nil
	case 's':
		s, err := text(st, v)
		return Str(s), err
	case 'r', 'a':
		b, err := appendRepr(st, nil, v, 0)
		if conv == 'a' {
			return Str(asciiOnly(string(b))), err
		}
		return Str(b), err
	}
	return nil, valueErrorf("Unknown conversion specifier '%c'", conv)
}

// lookup resolves a field name such as `0.items[key]`.
func (f *braces) lookup(st *state, name string) (Value, error) {
	first := name
	if i := strings.IndexAny(name, ".["); i >= 0 {
		first = name[:i]
	}
	rest := name[len(first):]
	var v Value
	n, err := strconv.Atoi(first)
	switch {
	case first == "" && f.manual:
		return nil, valueErrorf("cannot switch from manual field specification to automatic field numbering")
	case first == "":
		n, err = f.auto, nil
		f.auto++
	case err == nil && f.auto > 0:
		return nil, valueErrorf("cannot switch from manual field specification to automatic field numbering")
	case err == nil:
		f.manual = true
	}
	if err == nil {
		if n < 0 || n >= len(f.a.pos) {
			return nil, errorf(KindRuntime, "Replacement index %d out of range for positional args tuple", n)
		}
		v = f.a.pos[n]
	} else {
		for _, k := range f.a.kw {
			if k.name == first {
				v = k.v
			}
		}
		if v == nil {
			return nil, errorf(KindRuntime, "KeyError: '%s'", first)
		}
	}
	for rest != "" {
		if rest[0] == '.' {
			end := strings.IndexAny(rest[1:], ".[") + 1
			if end == 0 {
				end = len(rest)
			}
			if end == 1 {
				return nil, valueErrorf("Empty attribute in format string")
			}
			if v, err = getAttr(st, v, rest[1:end]); err != nil {
				return nil, err
			}
			rest = rest[end:]
			continue
		}
		end := strings.IndexByte(rest, ']')
		if rest[0] != '[' || end < 0 {
			return nil, valueErrorf("Missing ']' in format string")
		}
		key := rest[1:end]
		if key == "" {
			return nil, valueErrorf("Empty attribute in format string")
		}
		var arg Value = Str(key)
		if i, err := strconv.Atoi(key); err == nil && isDecimal(key[0]) {
			arg = Int(i)
		}
		if v, err = getItem(st, v, arg); err != nil {
			return nil, err
		}
		rest = rest[end+1:]
	}
	return v, nil
}

// spec is Python's format specification.
type spec struct {
	fill  string
	align byte // one of < > = ^, 0 when not given
	sign  byte
	alt   bool
	zero  bool
	width int
	group string
	prec  int // -1 when not given
	verb  byte
}

func parseSpec(s string) (spec, error) {
	p := spec{fill: " ", prec: -1}
	isAlign := func(c byte) bool { return strings.IndexByte("<>=^", c) >= 0 }
	if r, n := utf8.DecodeRuneInString(s); r != utf8.RuneError && n < len(s) && isAlign(s[n]) {
		p.fill, p.align, s = s[:n], s[n], s[n+1:]
	} else if s != "" && isAlign(s[0]) {
		p.align, s = s[0], s[1:]
	}
	if s != "" && strings.IndexByte("+- ", s[0]) >= 0 {
		p.sign, s = s[0], s[1:]
	}
	if strings.HasPrefix(s, "#") {
		p.alt, s = true, s[1:]
	}
	if strings.HasPrefix(s, "0") {
		if p.align == 0 {
			p.fill, p.align, p.zero = "0", '=', true
		}
		s = s[1:]
	}
	digits := func() (int, error) {
		n := 0
		for ; s != "" && isDecimal(s[0]); s = s[1:] {
			if n = n*10 + int(s[0]-'0'); n > math.MaxInt32 {
				return 0, valueErrorf("Too many decimal digits in format string")
			}
		}
		return n, nil
	}
	var err error
	if p.width, err = digits(); err != nil {
		return p, err
	}
	if s != "" && (s[0] == ',' || s[0] == '_') {
		p.group, s = s[:1], s[1:]
	}
	if strings.HasPrefix(s, ".") {
		s = s[1:]
		if s == "" || !isDecimal(s[0]) {
			return p, valueErrorf("Format specifier missing precision")
		}
		if p.prec, err = digits(); err != nil {
			return p, err
		}
	}
	if len(s) > 1 {
		return p, valueErrorf("Invalid format specifier")
	}
	if s != "" {
		p.verb = s[0]
	}
	return p, nil
}

// formatSpec is Python's format().
func formatSpec(st *state, v Value, s string) (string, error) {
	if s == "" {
		return text(st, v)
	}
	p, err := parseSpec(s)
	if err != nil {
		return "", err
	}
	if err := st.alloc((p.width + max(p.prec, 0)) * 4); err != nil {
		return "", err
	}
	if t, ok := asText(v); ok {
		if p.verb != 0 && p.verb != 's' {
			return "", valueErrorf("Unknown format code '%c' for object of type 'str'", p.verb)
		}
		if p.sign != 0 || p.alt || p.align == '=' && !p.zero || p.group != "" {
			return "", valueErrorf("Format specifier not allowed with string")
		}
		if p.prec >= 0 {
			t = t[:runeOffset(t, p.prec)]
		}
		if p.align == 0 || p.align == '=' {
			p.align = '<'
		}
		return p.pad("", t), nil
	}
	n, ok := asNumber(v)
	if !ok {
		return "", typeErrorf("unsupported format string passed to %s.__format__", v.typeName())
	}
	if n.float || strings.IndexByte("eEfFgG%", p.verb) >= 0 && p.verb != 0 {
		return p.float(n, v)
	}
	return p.integer(n, v)
}

func (p *spec) pad(head, body string) string {
	n := p.width - utf8.RuneCountInString(head) - utf8.RuneCountInString(body)
	if n <= 0 {
		return head + body
	}
	switch p.align {
	case '<':
		return head + body + strings.Repeat(p.fill, n)
	case '^':
		return strings.Repeat(p.fill, n/2) + head + body + strings.Repeat(p.fill, n-n/2)
	case '=':
		return head + strings.Repeat(p.fill, n) + body
	}
	return strings.Repeat(p.fill, n) + head + body
}

func (p *spec) signOf(negative bool) string {
	switch {
	case negative:
		return "-"
	case p.sign == '+' || p.sign == ' ':
		return string(p.sign)
	}
	return ""
}

// grouped puts the grouping character between digits, every size of them; a
// zero-padded number is padded with groups too.
func (p *spec) grouped(digits, tail string, head int, size int) string {
	if p.group == "" {
		return digits + tail
	}
	var parts []string
	for len(digits) > size {
		parts = append([]string{digits[len(digits)-size:]}, parts...)
		digits = digits[:len(digits)-size]
	}
	out := strings.Join(append([]string{digits}, parts...), p.group)
	if p.zero {
		for in := len(digits); len(out)+len(tail)+head < p.width; in++ {
			if in == size {
				out, in = p.group+out, 0
				if len(out)+len(tail)+head >= p.width {
					out = "0" + out
					break
				}
			}
			out = "0" + out
		}
	}
	return out + tail
}

func (p *spec) integer(n number, v Value) (string, error) {
	if p.prec >= 0 {
		return "", valueErrorf("Precision not allowed in integer format specifier")
	}
	b, base, prefix, size := n.big(), 10, "", 3
	switch p.verb {
	case 0, 'd', 'n':
	case 'b':
		base, prefix, size = 2, "0b", 4
	case 'o':
		base, prefix, size = 8, "0o", 4
	case 'x', 'X':
		base, prefix, size = 16, "0"+string(p.verb), 4
	case 'c':
		if !b.IsInt64() || b.Int64() < 0 || b.Int64() > utf8.MaxRune {
			return "", errorf(KindRuntime, "%%c arg not in range(0x110000)")
		}
		if p.align == 0 {
			p.align = '<'
		}
		return p.pad("", string(rune(b.Int64()))), nil
	default:
		return "", valueErrorf("Unknown format code '%c' for object of type '%s'", p.verb, v.typeName())
	}
	if !p.alt {
		prefix = ""
	}
	digits := new(big.Int).Abs(b).Text(base)
	if p.verb == 'X' {
		digits = strings.ToUpper(digits)
	}
	head := p.signOf(b.Sign() < 0) + prefix
	return p.pad(head, p.grouped(digits, "", len(head), size)), nil
}

func (p *spec) float(n number, v Value) (string, error) {
	f, err := n.toFloat()
	if err != nil {
		return "", err
	}
	head := p.signOf(math.Signbit(f) && !math.IsNaN(f))
	a := math.Abs(f)
	prec := p.prec
	if prec < 0 {
		prec = 6
	}
	var s string
	switch p.verb {
	case 'e', 'E', 'f', 'F', 'g', 'G':
		s = formatFloat(a, p.verb, prec, p.alt)
	case 'n':
		s = formatFloat(a, 'g', prec, p.alt)
	case '%':
		s = formatFloat(a*100, 'f', prec, p.alt) + "%"
	case 0:
		s = string(appendFloat(nil, a))
		if p.prec >= 0 && !math.IsInf(a, 0) && !math.IsNaN(a) {
			s = formatGeneral(a, p.prec, false)
			// Without a code one digit stays after the point, and the exponent
			// form begins one digit earlier than with g.
			if e, _, _ := strings.Cut(s, "e"); e == s && !strings.Contains(s, ".") {
				if len(s) >= max(p.prec, 1) {
					s = strconv.FormatFloat(a, 'e', max(p.prec, 1)-1, 64)
					m, x, _ := strings.Cut(s, "e")
					if strings.Contains(m, ".") {
						m = strings.TrimRight(strings.TrimRight(m, "0"), ".")
					}
					s = m + "e" + x
				} else {
					s += ".0"
				}
			}
		}
	default:
		return "", valueErrorf("Unknown format code '%c' for object of type '%s'", p.verb, v.typeName())
	}
	digits, tail := s, ""
	if i := strings.IndexFunc(s, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		digits, tail = s[:i], s[i:]
	}
	return p.pad(head, p.grouped(digits, tail, len(head), 3)), nil
}
