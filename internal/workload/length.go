package workload

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Lengths is a distribution of numbers of tokens. The zero value is always 0.
type Lengths struct {
	kind lengthKind
	a, b float64
}

type lengthKind uint8

const (
	fixed       lengthKind = iota // a
	uniform                       // a to b, both included
	lognormal                     // of the logarithm: mean a, deviation b
	exponential                   // mean a
)

// ParseLengths reads N, uniform(MIN,MAX), lognormal(MEAN,SD) or
// exponential(MEAN), all in tokens.
func ParseLengths(text string) (Lengths, error) {
	name, args, call := splitCall(text)
	numbers := make([]float64, len(args))
	for i, arg := range args {
		n, err := strconv.ParseFloat(arg, 64)
		if err != nil || !(n >= 0 && n <= maxTokens) {
			return Lengths{}, fmt.Errorf("%q is not a number of tokens from 0 to %d", arg, maxTokens)
		}
		numbers[i] = n
	}
	switch {
	case !call:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return Lengths{}, fmt.Errorf("%q is not N, uniform(MIN,MAX), lognormal(MEAN,SD) or exponential(MEAN)", text)
		}
		if _, err := tokens(n); err != nil {
			return Lengths{}, err
		}
		return Lengths{kind: fixed, a: float64(n)}, nil
	case name == "uniform" && len(args) == 2:
		if numbers[1] < numbers[0] {
			return Lengths{}, fmt.Errorf("%s: the second number is the larger one", text)
		}
		return Lengths{uniform, math.Round(numbers[0]), math.Round(numbers[1])}, nil
	case name == "lognormal" && len(args) == 2:
		if numbers[0] == 0 {
			return Lengths{}, fmt.Errorf("%s: the mean must be positive", text)
		}
		// From mean and deviation to those of the logarithm.
		cv := numbers[1] / numbers[0]
		variance := math.Log1p(cv * cv)
		return Lengths{lognormal, math.Log(numbers[0]) - variance/2, math.Sqrt(variance)}, nil
	case name == "exponential" && len(args) == 1:
		return Lengths{kind: exponential, a: numbers[0]}, nil
	}
	return Lengths{}, fmt.Errorf("%q is not N, uniform(MIN,MAX), lognormal(MEAN,SD) or exponential(MEAN)", text)
}

// draw returns a length, rounded, at least 0.
func (l Lengths) draw(rng *rand.Rand) int {
	v := l.a
	switch l.kind {
	case uniform:
		v = l.a + float64(rng.Int64N(int64(l.b-l.a)+1))
	case lognormal:
		v = math.Exp(l.a + l.b*rng.NormFloat64())
	case exponential:
		v = rng.ExpFloat64() * l.a
	}
	return int(min(max(math.Round(v), 0), maxTokens))
}

// splitCall splits name(a,b) into its name and arguments.
func splitCall(text string) (name string, args []string, ok bool) {
	name, rest, ok := strings.Cut(text, "(")
	if !ok || !strings.HasSuffix(rest, ")") {
		return text, nil, false
	}
	args = strings.Split(strings.TrimSuffix(rest, ")"), ",")
	for i := range args {
		args[i] = strings.TrimSpace(args[i])
	}
	return strings.TrimSpace(name), args, true
}
