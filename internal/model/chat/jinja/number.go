package jinja

import (
	"math"
	"math/big"
)

// maxIntBits bounds the integers that arithmetic makes.
const maxIntBits = 1 << 16

// number is a numeric operand: an integer (small or big) or a float.
type number struct {
	float bool
	f     float64
	small bool
	i     int64
	b     *big.Int
}

func asNumber(v Value) (number, bool) {
	switch v := v.(type) {
	case Int:
		return number{small: true, i: int64(v)}, true
	case Bool:
		n := number{small: true}
		if v {
			n.i = 1
		}
		return n, true
	case Float:
		return number{float: true, f: float64(v)}, true
	case *Big:
		return number{b: v.n}, true
	}
	return number{}, false
}

func (n number) big() *big.Int {
	if n.small {
		return big.NewInt(n.i)
	}
	return n.b
}

// exactFloat reports whether an integer is a float without rounding.
func (n number) exactFloat() bool {
	return n.small && n.i <= 1<<53 && n.i >= -1<<53
}

func (n number) zero() bool {
	if n.float {
		return n.f == 0
	}
	return n.small && n.i == 0
}

// toFloat converts as Python does: an integer too large for a float fails.
func (n number) toFloat() (float64, error) {
	switch {
	case n.float:
		return n.f, nil
	case n.small:
		return float64(n.i), nil
	}
	f, _ := new(big.Float).SetInt(n.b).Float64()
	if math.IsInf(f, 0) {
		return 0, errorf(KindRuntime, "int too large to convert to float")
	}
	return f, nil
}

// floatToInt returns the integer part of f; not for infinities and NaN.
func floatToInt(f float64) (*big.Int, bool) {
	if math.IsInf(f, 0) || math.IsNaN(f) {
		return nil, false
	}
	b, _ := big.NewFloat(f).Int(nil)
	return b, float64OfBig(b) == f
}

func float64OfBig(b *big.Int) float64 {
	f, _ := new(big.Float).SetInt(b).Float64()
	return f
}

// cmpNumbers compares exactly, also an integer with a float; ok is false for
// NaN.
func cmpNumbers(a, b number) (c int, ok bool) {
	switch {
	case a.small && b.small:
		switch {
		case a.i < b.i:
			return -1, true
		case a.i > b.i:
			return 1, true
		}
		return 0, true
	case a.float && math.IsNaN(a.f), b.float && math.IsNaN(b.f):
		return 0, false
	case a.float && b.float:
		switch {
		case a.f < b.f:
			return -1, true
		case a.f > b.f:
			return 1, true
		}
		return 0, true
	case b.float:
		c, ok = cmpNumbers(b, a)
		return -c, ok
	case a.float:
		if math.IsInf(a.f, 0) {
			return int(math.Copysign(1, a.f)), true
		}
		return new(big.Float).SetFloat64(a.f).Cmp(new(big.Float).SetInt(b.big())), true
	}
	return a.big().Cmp(b.big()), true
}

// arith is a binary operator.
func arith(st *state, op string, a, b Value) (Value, error) {
	x, xok := asNumber(a)
	y, yok := asNumber(b)
	if xok && yok {
		if op == "**" {
			return power(x, y)
		}
		if x.float || y.float || op == "/" {
			return floatArith(op, x, y)
		}
		return intArith(op, x, y)
	}
	for _, v := range []Value{a, b} {
		if u, ok := v.(*Undefined); ok {
			if s, isText := asText(a); isText && op == "%" {
				return formatPercent(st, s, b)
			}
			return nil, u.fail()
		}
	}
	switch op {
	case "+":
		return add(st, a, b)
	case "*":
		if yok && !y.float {
			return repeat(st, a, y, b)
		}
		if xok && !x.float {
			return repeat(st, b, x, a)
		}
	case "%":
		switch s := a.(type) {
		case Str:
			return formatPercent(st, string(s), b)
		case Markup:
			return nil, errorf(KindUnsupported, "formatting a string marked safe is not supported")
		}
	}
	if op == "**" {
		op = "** or pow()"
	}
	return nil, typeErrorf("unsupported operand type(s) for %s: '%s' and '%s'", op, a.typeName(), b.typeName())
}

func intArith(op string, x, y number) (Value, error) {
	if x.small && y.small {
		if v, ok := smallArith(op, x.i, y.i); ok {
			return v, nil
		}
	}
	a, b := x.big(), y.big()
	out := new(big.Int)
	switch op {
	case "+":
		out.Add(a, b)
	case "-":
		out.Sub(a, b)
	case "*":
		if a.BitLen()+b.BitLen() > maxIntBits {
			return nil, errorf(KindLimit, "an integer of more than %d bits", maxIntBits)
		}
		out.Mul(a, b)
	default:
		if y.zero() {
			return nil, errorf(KindRuntime, "integer division or modulo by zero")
		}
		// Python rounds towards minus infinity.
		q, m := new(big.Int).QuoRem(a, b, new(big.Int))
		if m.Sign() != 0 && m.Sign() != b.Sign() {
			q.Sub(q, big.NewInt(1))
			m.Add(m, b)
		}
		if out = q; op == "%" {
			out = m
		}
	}
	return bigValue(out), nil
}

// smallArith is the operators on 64-bit integers where the result fits.
func smallArith(op string, a, b int64) (Value, bool) {
	switch op {
	case "+":
		c := a + b
		return Int(c), (c > a) == (b > 0)
	case "-":
		c := a - b
		return Int(c), (c < a) == (b > 0)
	case "*":
		if a == int64(int32(a)) && b == int64(int32(b)) {
			return Int(a * b), true
		}
	case "//", "%":
		if b == 0 || b == -1 {
			return nil, false
		}
		q, m := a/b, a%b
		if m != 0 && (m < 0) != (b < 0) {
			q, m = q-1, m+b
		}
		if op == "//" {
			return Int(q), true
		}
		return Int(m), true
	}
	return nil, false
}

func floatArith(op string, x, y number) (Value, error) {
	if op == "/" && !x.float && !y.float {
		if y.zero() {
			return nil, errorf(KindRuntime, "division by zero")
		}
		if !x.exactFloat() || !y.exactFloat() {
			f, _ := new(big.Rat).SetFrac(x.big(), y.big()).Float64()
			if math.IsInf(f, 0) {
				return nil, errorf(KindRuntime, "integer division result too large for a float")
			}
			return Float(f), nil
		}
	}
	a, err := x.toFloat()
	if err != nil {
		return nil, err
	}
	b, err := y.toFloat()
	if err != nil {
		return nil, err
	}
	switch op {
	case "+":
		return Float(a + b), nil
	case "-":
		return Float(a - b), nil
	case "*":
		return Float(a * b), nil
	}
	if b == 0 {
		switch op {
		case "/":
			return nil, errorf(KindRuntime, "float division by zero")
		case "//":
			return nil, errorf(KindRuntime, "float floor division by zero")
		}
		return nil, errorf(KindRuntime, "float modulo by zero")
	}
	if op == "/" {
		return Float(a / b), nil
	}
	q, m := floatDivMod(a, b)
	if op == "//" {
		return Float(q), nil
	}
	return Float(m), nil
}

// floatDivMod is Python's divmod of floats.
func floatDivMod(a, b float64) (q, m float64) {
	m = math.Mod(a, b)
	q = (a - m) / b
	if m != 0 {
		if (b < 0) != (m < 0) {
			m += b
			q--
		}
	} else {
		m = math.Copysign(0, b)
	}
	if q != 0 {
		f := math.Floor(q)
		if q-f > 0.5 {
			f++
		}
		return f, m
	}
	return math.Copysign(0, a/b), m
}

func power(x, y number) (Value, error) {
	if !x.float && !y.float && y.big().Sign() >= 0 {
		a, e := x.big(), y.big()
		if !e.IsInt64() || int64(a.BitLen())*e.Int64() > maxIntBits && a.BitLen() > 1 || e.BitLen() > 40 && a.BitLen() > 1 {
			return nil, errorf(KindLimit, "an integer of more than %d bits", maxIntBits)
		}
		if a.BitLen() <= 1 {
			// 0, 1 and -1, whose powers need no work.
			switch {
			case e.Sign() == 0 || a.Sign() > 0 || a.Sign() < 0 && e.Bit(0) == 0:
				return Int(1), nil
			}
			return Int(a.Int64()), nil
		}
		return bigValue(new(big.Int).Exp(a, e, nil)), nil
	}
	a, err := x.toFloat()
	if err != nil {
		return nil, err
	}
	b, err := y.toFloat()
	if err != nil {
		return nil, err
	}
	if a == 0 && b < 0 {
		return nil, errorf(KindRuntime, "0.0 cannot be raised to a negative power")
	}
	if a < 0 && b != math.Trunc(b) && !math.IsInf(b, 0) && !math.IsInf(a, 0) {
		return nil, errorf(KindUnsupported, "complex numbers are not supported")
	}
	f, ok := exactPower(a, b)
	if !ok {
		return nil, errorf(KindUnsupported, "the power %v ** %v is not supported: only exponents that are halves up to 64", a, b)
	}
	if math.IsInf(f, 0) && !math.IsInf(a, 0) && !math.IsInf(b, 0) {
		return nil, errorf(KindRuntime, "(34, 'Numerical result out of range')")
	}
	return Float(f), nil
}

// exactPower is a ** b rounded once, for exponents that are whole or half and
// small: math.Pow is not exact in the last digit, which a template may print.
func exactPower(a, b float64) (float64, bool) {
	twice := 2 * b
	if a == 0 || a == 1 || b == 0 || b == 1 || math.IsInf(a, 0) || math.IsNaN(a) || math.IsInf(b, 0) || math.IsNaN(b) {
		return math.Pow(a, b), true
	}
	if twice != math.Trunc(twice) || math.Abs(twice) > 128 {
		return 0, false
	}
	const prec = 8192 // 129 factors of 53 bits each
	p := new(big.Float).SetPrec(prec).SetInt64(1)
	x := new(big.Float).SetPrec(prec).SetFloat64(a)
	if half := math.Trunc(b) != b; half {
		for range int(math.Abs(twice)) {
			p.Mul(p, x)
		}
		p.Sqrt(p)
	} else {
		for range int(math.Abs(b)) {
			p.Mul(p, x)
		}
	}
	if b < 0 {
		p.Quo(new(big.Float).SetPrec(prec).SetInt64(1), p)
	}
	f, _ := p.Float64()
	return f, true
}

// sign is the unary plus or minus.
func sign(op string, v Value) (Value, error) {
	if u, ok := v.(*Undefined); ok {
		return nil, u.fail()
	}
	n, ok := asNumber(v)
	if !ok {
		return nil, typeErrorf("bad operand type for unary %s: '%s'", op, v.typeName())
	}
	switch {
	case op == "+" && n.float, op == "+" && !n.small:
		return v, nil
	case op == "+":
		return Int(n.i), nil
	case n.float:
		return Float(-n.f), nil
	case n.small && n.i != math.MinInt64:
		return Int(-n.i), nil
	}
	return bigValue(new(big.Int).Neg(n.big())), nil
}
