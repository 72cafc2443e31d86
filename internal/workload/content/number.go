package content

import (
	"math"
	"math/big"
	"strconv"
	"strings"
)

// numberRange bounds numbers; nil is no bound.
type numberRange struct {
	min, max         *big.Rat
	openMin, openMax bool
	multiple         *big.Rat
}

func (r *numberRange) meet(o numberRange) {
	if o.min != nil && (r.min == nil || o.min.Cmp(r.min) > 0 || o.min.Cmp(r.min) == 0 && o.openMin) {
		r.min, r.openMin = o.min, o.openMin
	}
	if o.max != nil && (r.max == nil || o.max.Cmp(r.max) < 0 || o.max.Cmp(r.max) == 0 && o.openMax) {
		r.max, r.openMax = o.max, o.openMax
	}
	switch {
	case o.multiple == nil:
	case r.multiple == nil:
		r.multiple = o.multiple
	default:
		r.multiple = commonMultiple(r.multiple, o.multiple)
	}
}

// commonMultiple returns the least number that is a multiple of both.
func commonMultiple(a, b *big.Rat) *big.Rat {
	// Over the common denominator they are integers.
	x := new(big.Int).Mul(a.Num(), b.Denom())
	y := new(big.Int).Mul(b.Num(), a.Denom())
	gcd := new(big.Int).GCD(nil, nil, x, y)
	lcm := new(big.Int).Mul(x, new(big.Int).Div(y, gcd))
	return new(big.Rat).SetFrac(lcm, new(big.Int).Mul(a.Denom(), b.Denom()))
}

func (r *numberRange) has(x *big.Rat) bool {
	if r.min != nil {
		if c := x.Cmp(r.min); c < 0 || c == 0 && r.openMin {
			return false
		}
	}
	if r.max != nil {
		if c := x.Cmp(r.max); c > 0 || c == 0 && r.openMax {
			return false
		}
	}
	return r.multiple == nil || new(big.Rat).Quo(x, r.multiple).IsInt()
}

// number reads a number of a schema.
func number(v value, path, name string) (*big.Rat, error) {
	if v.kind != '0' || len(v.raw) > maxNumberLength {
		return nil, refuse(path, "%s must be a number of at most %d bytes", name, maxNumberLength)
	}
	// SetString makes all the digits of 1e999999999.
	if i := strings.IndexAny(string(v.raw), "eE"); i >= 0 {
		if e, err := strconv.Atoi(string(v.raw[i+1:])); err != nil || e < -30 || e > 30 {
			return nil, refuse(path, "%s: the exponent of %s is beyond 30", name, v.raw)
		}
	}
	r, ok := new(big.Rat).SetString(string(v.raw))
	if !ok {
		return nil, refuse(path, "%s: %s is no number", name, v.raw)
	}
	return r, nil
}

// count reads a count of a schema.
func count(v value, path, name string) (int, error) {
	r, err := number(v, path, name)
	if err != nil {
		return 0, err
	}
	if !r.IsInt() || r.Sign() < 0 {
		return 0, refuse(path, "%s must be a non-negative integer", name)
	}
	if !r.Num().IsInt64() || r.Num().Int64() > math.MaxInt32 {
		return math.MaxInt32, nil
	}
	return int(r.Num().Int64()), nil
}

// grid is a set of numbers to choose from: step times each of n integers from
// first on.
type grid struct {
	step  *big.Rat
	first *big.Int
	n     int
}

// grid returns the numbers of a range that are written; false when there are
// none. Numbers are written in hundredths where there is room for them.
func (r *numberRange) grid(integer bool) (grid, bool) {
	if r.multiple != nil {
		step := r.multiple
		if integer {
			// An integer multiple of a/b in lowest terms is a multiple of a.
			step = new(big.Rat).SetInt(step.Num())
		}
		return r.gridOf(step)
	}
	if integer {
		return r.gridOf(big.NewRat(1, 1))
	}
	step := big.NewRat(1, 100)
	for range 40 {
		if g, ok := r.gridOf(step); ok {
			return g, true
		}
		step.Quo(step, big.NewRat(10, 1))
	}
	return grid{}, false
}

func (r *numberRange) gridOf(step *big.Rat) (grid, bool) {
	var first, last *big.Int
	if r.min != nil {
		first = ceil(new(big.Rat).Quo(r.min, step))
		if r.openMin && new(big.Rat).Mul(new(big.Rat).SetInt(first), step).Cmp(r.min) == 0 {
			first.Add(first, big.NewInt(1))
		}
	}
	if r.max != nil {
		last = ceil(new(big.Rat).Neg(new(big.Rat).Quo(r.max, step)))
		last.Neg(last)
		if r.openMax && new(big.Rat).Mul(new(big.Rat).SetInt(last), step).Cmp(r.max) == 0 {
			last.Sub(last, big.NewInt(1))
		}
	}
	many := big.NewInt(numberChoice - 1)
	switch {
	case first == nil && last == nil:
		first, last = new(big.Int), many
	case first == nil:
		// Towards zero and beyond it only as far as the bound lies.
		if last.Sign() >= 0 {
			first = new(big.Int)
		} else {
			first = new(big.Int).Sub(last, many)
		}
	case last == nil:
		last = new(big.Int).Add(first, many)
	}
	n := new(big.Int).Sub(last, first)
	switch {
	case n.Sign() < 0:
		return grid{}, false
	case n.Cmp(many) > 0:
		n = many
	}
	return grid{step, first, int(n.Int64()) + 1}, true
}

func ceil(r *big.Rat) *big.Int {
	q, m := new(big.Int).DivMod(r.Num(), r.Denom(), new(big.Int)) // of Euclid: m >= 0
	if m.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return q
}

// pick chooses a number and gives its text. Validators that divide by
// multipleOf in floating point find a remainder in some multiples of a
// fraction; those are passed over where that is possible.
func (g grid) pick(draw func(int) int) string {
	at := draw(g.n)
	for try := range min(g.n, 64) {
		x := g.at((at + try) % g.n)
		if f, _ := x.Float64(); g.step.IsInt() || divides(f, g.step) {
			return decimal(x)
		}
	}
	return decimal(g.at(at))
}

func divides(x float64, step *big.Rat) bool {
	s, _ := step.Float64()
	q := x / s
	return q == math.Trunc(q)
}

func (g grid) at(i int) *big.Rat {
	k := new(big.Int).Add(g.first, big.NewInt(int64(i)))
	return new(big.Rat).Mul(new(big.Rat).SetInt(k), g.step)
}

// decimal returns a number whose denominator is a product of twos and fives.
func decimal(x *big.Rat) string {
	n, exact := x.FloatPrec()
	if !exact {
		panic("content: " + x.String() + " has no decimal form") // steps are decimals
	}
	return x.FloatString(n)
}
