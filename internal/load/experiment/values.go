package experiment

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Values are the values of a flag that may be swept: "8", "1,2,4,8", "10..100+10",
// "1..64x2", or "1..64", a range without steps.
type Values struct {
	List []float64
	// Low and High are the ends of a range, with or without steps; 0 if the values
	// are listed.
	Low, High float64
}

// maxValues bounds a sweep.
const maxValues = 1000

// UnmarshalText implements encoding.TextUnmarshaler.
func (v *Values) UnmarshalText(text []byte) (err error) {
	*v, err = ParseValues(string(text))
	return err
}

// ParseValues reads values; they are positive.
func ParseValues(text string) (Values, error) {
	low, rest, isRange := strings.Cut(text, "..")
	if !isRange {
		var v Values
		for part := range strings.SplitSeq(text, ",") {
			n, err := value(part)
			if err != nil {
				return Values{}, err
			}
			v.List = append(v.List, n)
		}
		return v, nil
	}
	var v Values
	var err error
	if v.Low, err = value(low); err != nil {
		return Values{}, err
	}
	high, step, kind := rest, "", byte(0)
	if at := strings.IndexAny(rest, "+x"); at >= 0 {
		high, step, kind = rest[:at], rest[at+1:], rest[at]
	}
	if v.High, err = value(high); err != nil {
		return Values{}, err
	}
	if v.High <= v.Low {
		return Values{}, fmt.Errorf("%q: the second end is the higher one", text)
	}
	if kind == 0 {
		return v, nil
	}
	by, err := value(step)
	if err != nil || kind == 'x' && by <= 1 {
		return Values{}, fmt.Errorf("%q: want FROM..TO+STEP, or FROM..TOxFACTOR with a factor above 1", text)
	}
	for i := 0; ; i++ {
		// Reckoned from the beginning, so that no rounding error adds up.
		n := v.Low + float64(i)*by
		if kind == 'x' {
			n = v.Low * math.Pow(by, float64(i))
		}
		if n > v.High*(1+1e-9) {
			return v, nil
		}
		if len(v.List) == maxValues {
			return Values{}, fmt.Errorf("%q: more than %d values", text, maxValues)
		}
		v.List = append(v.List, tidy(n))
	}
}

// tidy removes rounding errors.
func tidy(n float64) float64 {
	t, err := strconv.ParseFloat(strconv.FormatFloat(n, 'g', 12, 64), 64)
	if err != nil {
		return n
	}
	return t
}

func value(text string) (float64, error) {
	n, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) || n <= 0 {
		return 0, fmt.Errorf("%q: want a positive number, several as in 1,2,4, or a range as in 10..100+10 or 1..64x2", strings.TrimSpace(text))
	}
	return n, nil
}

// One returns the value if there is just one, and 0 if there is none.
func (v Values) One() float64 {
	if len(v.List) == 1 {
		return v.List[0]
	}
	return 0
}

// Several reports whether there are several values, or a range.
func (v Values) Several() bool { return len(v.List) > 1 || v.High > 0 }

// Whole reports whether all values, and the ends of a range, are whole numbers.
func (v Values) Whole() bool {
	for _, n := range append([]float64{v.Low, v.High}, v.List...) {
		if n != math.Trunc(n) || n > math.MaxInt32 {
			return false
		}
	}
	return true
}

// Texts returns the values as they are written.
func (v Values) Texts() []string {
	texts := make([]string, len(v.List))
	for i, n := range v.List {
		texts[i] = strconv.FormatFloat(n, 'g', -1, 64)
	}
	return texts
}
