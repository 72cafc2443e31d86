package plot

import (
	"math"
	"strconv"
)

// axis is a scale from its lower to its upper end. Each tick is within both ends, and
// stands where at has its value.
type axis struct {
	from, to    float64
	logarithmic bool
	ticks       []float64
}

// at returns where a value lies: 0 is the lower end, 1 the upper one. A value beyond an end
// lies beyond it, and is not moved to it.
func (a axis) at(v float64) float64 {
	if a.logarithmic {
		return math.Log(v/a.from) / math.Log(a.to/a.from)
	}
	return (v - a.from) / (a.to - a.from)
}

// mostTicks is the number of labels that fit on the narrowest plot.
const mostTicks = 6

// finest are the steps within a decade at which a logarithmic axis may end; the others
// are coarser ones for its ticks.
var (
	finest = []float64{1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8}
	steps  = [][]float64{finest, {1, 1.5, 2, 3, 5, 7}, {1, 2, 5}, {1, 3}, {1}}
)

// logarithmic returns an axis that has low and high on it, both above 0.
func logarithmic(low, high float64) axis {
	a := axis{logarithmic: true, from: below(low), to: above(high)}
	if a.to <= a.from { // one value, which is a step
		a.to = above(a.from * 1.1)
	}
	for _, within := range steps {
		if a.ticks = decades(a.from, a.to, within, 1); len(a.ticks) <= mostTicks {
			return a
		}
	}
	for apart := 2; len(a.ticks) > mostTicks; apart++ {
		a.ticks = decades(a.from, a.to, []float64{1}, apart)
	}
	return a
}

// slack is the rounding error allowed at an end, because no power of ten below 1 is a
// binary number.
const slack = 1e-9

// below returns the greatest of the finest steps that is not above v.
func below(v float64) float64 {
	exponent := int(math.Floor(math.Log10(v)))
	best := times(1, exponent)
	for _, k := range finest {
		if at := times(k, exponent); at <= v*(1+slack) {
			best = at
		}
	}
	return best
}

// above returns the smallest step that is not below v.
func above(v float64) float64 {
	exponent := int(math.Floor(math.Log10(v)))
	for _, k := range finest {
		if at := times(k, exponent); at >= v*(1-slack) {
			return at
		}
	}
	return times(1, exponent+1)
}

// times returns k * 10^exponent as its decimal is read, so that 0.3 is 0.3.
func times(k float64, exponent int) float64 {
	v, err := strconv.ParseFloat(strconv.FormatFloat(k, 'f', -1, 64)+"e"+strconv.Itoa(exponent), 64)
	if err != nil {
		return k * math.Pow10(exponent)
	}
	return v
}

// decades returns the steps between two ends, of each decade or of one in several.
func decades(from, to float64, within []float64, apart int) (ticks []float64) {
	for e := int(math.Floor(math.Log10(from))); e <= int(math.Ceil(math.Log10(to))); e++ {
		if e%apart != 0 {
			continue
		}
		for _, k := range within {
			if v := times(k, e); v >= from*(1-slack) && v <= to*(1+slack) {
				ticks = append(ticks, v)
			}
		}
	}
	return ticks
}

// linear returns an axis from 0 that has high on it.
func linear(high float64) axis {
	if high <= 0 {
		high = 1
	}
	return between(0, high, step(high/4))
}

// between returns an axis from one multiple of a step to another, with low and high on it.
func between(low, high, step float64) axis {
	first, last := math.Floor(low/step+slack), math.Ceil(high/step-slack)
	if last <= first {
		last = first + 1
	}
	a := axis{from: first * step, to: last * step}
	for i := first; i <= last; i++ {
		a.ticks = append(a.ticks, exactly(i, step))
	}
	return a
}

// exactly returns the multiple of a step as a decimal: 3 times 0.1 is 0.3.
func exactly(i, step float64) float64 {
	exponent := int(math.Floor(math.Log10(step) + slack))
	return times(math.Round(i*step/math.Pow10(exponent)*10)/10, exponent)
}

// step returns the least of 1, 2, 2.5 and 5 times a power of ten that is not below v.
func step(v float64) float64 {
	exponent := int(math.Floor(math.Log10(v)))
	for _, k := range []float64{1, 2, 2.5, 5} {
		if at := times(k, exponent); at >= v*(1-slack) {
			return at
		}
	}
	return times(1, exponent+1)
}

// upTo returns an axis from 0 to length, such as that of a run.
func upTo(length float64) axis {
	a := linear(length)
	a.to = length
	for len(a.ticks) > 0 && a.ticks[len(a.ticks)-1] > length*(1+slack) {
		a.ticks = a.ticks[:len(a.ticks)-1]
	}
	return a
}

// around returns an axis for chosen values, such as loads or numbers of engines: with a
// margin on both sides, and logarithmic if they lie far apart.
func around(low, high float64, whole bool) axis {
	const far = 8
	if low > 0 && high/low >= far {
		return logarithmic(low, high)
	}
	by := step(max(high-low, math.Abs(high)/100, 1e-9) / 4)
	if whole && by < 5 {
		by = max(1, math.Floor(by)) // not 2.5, nor less than 1
	}
	a := between(low, high, by)
	a.from, a.to = a.from-by/2, a.to+by/2
	return a
}

// upwards returns an axis for figures: from 0, or logarithmic where they lie far apart.
func upwards(low, high float64) axis {
	const far = 20
	if low > 0 && high/low >= far {
		return logarithmic(low, high)
	}
	return linear(high)
}

// number writes a number with as many digits as an axis needs.
func number(v float64) string {
	v, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	if a := math.Abs(v); err != nil || a != 0 && (a < 1e-5 || a >= 1e9) {
		return strconv.FormatFloat(v, 'g', 4, 64)
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}
