package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
)

func filterAbs(_ *state, v Value, a args) (Value, error) {
	if _, err := a.bindPos("abs", 0, 0); err != nil {
		return nil, err
	}
	n, ok := asNumber(v)
	switch {
	case !ok:
		return nil, typeErrorf("bad operand type for abs(): '%s'", v.typeName())
	case n.float:
		return Float(math.Abs(n.f)), nil
	}
	return bigValue(new(big.Int).Abs(n.big())), nil
}

func filterDefault(_ *state, v Value, a args) (Value, error) {
	p, err := a.bind("default", 0, "default_value", "boolean")
	if err != nil {
		return nil, err
	}
	def := p[0]
	if def == nil {
		def = Str("")
	}
	if _, ok := v.(*Undefined); ok {
		return def, nil
	}
	loose, err := flag(p[1], false)
	if err != nil || !loose {
		return v, err
	}
	ok, err := truth(v)
	if err != nil || ok {
		return v, err
	}
	return def, nil
}

func filterAttr(st *state, v Value, a args) (Value, error) {
	p, err := a.bind("attr", 1, "name")
	if err != nil {
		return nil, err
	}
	name, err := argText("attr", p[0])
	if err != nil {
		return nil, err
	}
	r, err := attribute(st, v, name)
	if err != nil || r != nil {
		return r, err
	}
	return &Undefined{obj: v, name: Str(name)}, nil
}

// parseInt is Python's int() of text: white space around, a sign, digits of
// any script with single underscores between them, and a base's prefix.
func parseInt(s string, base int) (Value, error) {
	bad := func() error {
		return valueErrorf("invalid literal for int() with base %d: %s", base, appendReprStr(nil, s))
	}
	t := strings.TrimFunc(s, isSpace)
	neg := false
	if t != "" && (t[0] == '+' || t[0] == '-') {
		neg, t = t[0] == '-', t[1:]
	}
	t = asciiDigits(t)
	if len(t) > 1 && t[0] == '0' && (base == 0 || base == 2 || base == 8 || base == 16) {
		want := map[byte]int{'b': 2, 'o': 8, 'x': 16}[t[1]|32]
		if want != 0 && (base == 0 || base == want) {
			base, t = want, strings.TrimPrefix(t[2:], "_")
		}
	}
	if base == 0 {
		if base = 10; len(t) > 1 && t[0] == '0' && strings.Trim(t, "0_") != "" {
			return nil, bad()
		}
	}
	if t == "" || t[0] == '_' || t[len(t)-1] == '_' || strings.Contains(t, "__") || t[0] == '+' || t[0] == '-' {
		return nil, bad()
	}
	t = strings.ReplaceAll(t, "_", "")
	if len(t) > maxIntDigits && base&(base-1) != 0 {
		return nil, valueErrorf("Exceeds the limit (4300 digits) for integer string conversion")
	}
	if len(t) > maxIntBits {
		return nil, errorf(KindLimit, "an integer of more than %d digits", maxIntBits)
	}
	if base > 10 {
		t = strings.ToLower(t)
	}
	n, ok := new(big.Int).SetString(t, base)
	if !ok {
		return nil, bad()
	}
	if neg {
		n.Neg(n)
	}
	return bigValue(n), nil
}

// asciiDigits turns decimal digits of other scripts into ASCII ones.
func asciiDigits(s string) string {
	if isASCII(s) {
		return s
	}
	return strings.Map(func(r rune) rune {
		if r < 0x80 || !unicode.Is(unicode.Nd, r) {
			return r
		}
		// Decimal digits come in runs of ten that start at zero, and runs that
		// touch each other are all of them.
		d := rune(0)
		for unicode.Is(unicode.Nd, r-d-1) {
			d++
		}
		return '0' + d%10
	}, s)
}

// parseFloat is Python's float() of text.
func parseFloat(s string) (float64, error) {
	bad := func() error { return valueErrorf("could not convert string to float: %s", appendReprStr(nil, s)) }
	t := asciiDigits(strings.TrimFunc(s, isSpace))
	for i := 0; i < len(t); i++ {
		if t[i] != '_' {
			continue
		}
		if i == 0 || i+1 == len(t) || !isDecimal(t[i-1]) || !isDecimal(t[i+1]) {
			return 0, bad()
		}
	}
	t = strings.ReplaceAll(t, "_", "")
	switch strings.ToLower(strings.TrimLeft(t, "+-")) {
	case "inf", "infinity", "nan":
	default:
		if strings.ContainsAny(t, "xXpPiInN") {
			return 0, bad()
		}
	}
	f, err := strconv.ParseFloat(t, 64)
	if err != nil && !math.IsInf(f, 0) {
		return 0, bad()
	}
	return f, nil
}

// toFloat is Python's float().
func toFloat(v Value) (Value, error) {
	if s, ok := asText(v); ok {
		f, err := parseFloat(s)
		return Float(f), err
	}
	if u, ok := v.(*Undefined); ok {
		return nil, u.fail()
	}
	n, ok := asNumber(v)
	if !ok {
		return nil, typeErrorf("float() argument must be a string or a real number, not '%s'", v.typeName())
	}
	f, err := n.toFloat()
	return Float(f), err
}

func filterFloat(st *state, v Value, a args) (Value, error) {
	p, err := a.bind("float", 0, "default")
	if err != nil {
		return nil, err
	}
	if s, ok := asText(v); ok {
		if err := st.scan(s); err != nil {
			return nil, err
		}
	}
	f, err := toFloat(v)
	if isKind(err, KindType, KindValue) {
		if p[0] != nil {
			return p[0], nil
		}
		return Float(0), nil
	}
	return f, err
}

func filterInt(st *state, v Value, a args) (Value, error) {
	p, err := a.bind("int", 0, "default", "base")
	if err != nil {
		return nil, err
	}
	if s, ok := asText(v); ok {
		if err := st.scan(s); err != nil {
			return nil, err
		}
	}
	var def Value = Int(0)
	if p[0] != nil {
		def = p[0]
	}
	base := 10
	if p[1] != nil {
		if base, err = asIndex(p[1]); err != nil {
			return nil, err
		}
	}
	r, err := toInt(v, base)
	if !isKind(err, KindType, KindValue) {
		return r, err
	}
	// "42.23" gives 42.
	f, err := toFloat(v)
	if isKind(err, KindType, KindValue) {
		return def, nil
	}
	if err != nil {
		return nil, err
	}
	b, err := truncate(float64(f.(Float)))
	if err != nil {
		return def, nil
	}
	return bigValue(b), nil
}

// toInt is Python's int().
func toInt(v Value, base int) (Value, error) {
	if s, ok := asText(v); ok {
		if base != 0 && (base < 2 || base > 36) {
			return nil, valueErrorf("int() base must be >= 2 and <= 36, or 0")
		}
		return parseInt(s, base)
	}
	if u, ok := v.(*Undefined); ok {
		return nil, u.fail()
	}
	n, ok := asNumber(v)
	if !ok {
		return nil, typeErrorf("int() argument must be a string, a bytes-like object or a real number, not '%s'", v.typeName())
	}
	if n.float {
		b, err := truncate(n.f)
		if err != nil {
			return nil, err
		}
		return bigValue(b), nil
	}
	return bigValue(n.big()), nil
}

func filterRound(st *state, v Value, a args) (Value, error) {
	p, err := a.bind("round", 0, "precision", "method")
	if err != nil {
		return nil, err
	}
	prec := 0
	if p[0] != nil {
		if prec, err = asIndex(p[0]); err != nil {
			return nil, err
		}
	}
	method := "common"
	if p[1] != nil {
		method, _ = asText(p[1])
	}
	if method != "common" && method != "ceil" && method != "floor" {
		return nil, errorf(KindRuntime, "method must be common, ceil or floor")
	}
	n, ok := asNumber(v)
	if !ok {
		if u, isUndef := v.(*Undefined); isUndef && method != "common" {
			return nil, u.fail()
		}
		return nil, typeErrorf("type %s doesn't define __round__ method", v.typeName())
	}
	if method == "common" {
		return roundNumber(n, prec)
	}
	if prec > 300 || prec < -300 {
		return nil, errorf(KindLimit, "round: a precision beyond 300")
	}
	scale, err := arith(st, "**", Int(10), Int(prec))
	if err != nil {
		return nil, err
	}
	scaled, err := arith(st, "*", v, scale)
	if err != nil {
		return nil, err
	}
	if f, ok := scaled.(Float); ok {
		whole := math.Floor(float64(f))
		if method == "ceil" {
			whole = math.Ceil(float64(f))
		}
		b, err := truncate(whole)
		if err != nil {
			return nil, err
		}
		scaled = bigValue(b)
	}
	return arith(st, "/", scaled, scale)
}

// roundNumber is Python's round(): half to even, on the exact decimal value.
func roundNumber(n number, prec int) (Value, error) {
	if n.float {
		switch {
		case math.IsInf(n.f, 0), math.IsNaN(n.f), prec > 323:
			return Float(n.f), nil
		case prec < -308:
			return Float(math.Copysign(0, n.f)), nil
		case prec < 0:
			r, _ := new(big.Float).SetPrec(2000).SetFloat64(n.f).Rat(nil)
			unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(-prec)), nil)
			q := roundHalfEven(new(big.Rat).Quo(r, new(big.Rat).SetInt(unit)))
			f := float64OfBig(q.Mul(q, unit))
			return Float(math.Copysign(f, n.f)), nil
		}
		f, err := strconv.ParseFloat(strconv.FormatFloat(n.f, 'f', prec, 64), 64)
		return Float(f), err
	}
	if prec >= 0 {
		return bigValue(n.big()), nil
	}
	if prec < -maxIntDigits {
		return Int(0), nil
	}
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(-prec)), nil)
	q := roundHalfEven(new(big.Rat).SetFrac(n.big(), unit))
	return bigValue(q.Mul(q, unit)), nil
}

func roundHalfEven(r *big.Rat) *big.Int {
	q, m := new(big.Int).DivMod(r.Num(), r.Denom(), new(big.Int))
	c := new(big.Int).Lsh(m, 1).Cmp(r.Denom())
	if c > 0 || c == 0 && q.Bit(0) == 1 {
		q.Add(q, big.NewInt(1))
	}
	return q
}

func filterFileSize(_ *state, v Value, a args) (Value, error) {
	p, err := a.bind("filesizeformat", 0, "binary")
	if err != nil {
		return nil, err
	}
	binary, err := flag(p[0], false)
	if err != nil {
		return nil, err
	}
	fv, err := toFloat(v)
	if err != nil {
		return nil, err
	}
	f, base, suffix := float64(fv.(Float)), 1000.0, "B"
	if binary {
		base, suffix = 1024, "iB"
	}
	switch {
	case f == 1:
		return Str("1 Byte"), nil
	case f < base:
		b, err := truncate(f)
		if err != nil {
			return nil, err
		}
		return Str(b.String() + " Bytes"), nil
	}
	prefixes := "kMGTPEZY"
	if binary {
		prefixes = "KMGTPEZY"
	}
	unit := base
	for i := 0; ; i++ {
		unit *= base
		if f < unit || i == len(prefixes)-1 {
			return Str(strconv.FormatFloat(base*f/unit, 'f', 1, 64) + " " + prefixes[i:i+1] + suffix), nil
		}
	}
}
