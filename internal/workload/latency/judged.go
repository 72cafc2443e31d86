package latency

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Figure is a figure in milliseconds, or NaN where it is refused. Its JSON is a
// number or null.
type Figure float64

// Refused reports whether there is no such figure.
func (f Figure) Refused() bool { return math.IsNaN(float64(f)) }

// MarshalJSON implements json.Marshaler.
func (f Figure) MarshalJSON() ([]byte, error) {
	if f.Refused() {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, float64(f), 'g', -1, 64), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (f *Figure) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*f = Figure(math.NaN())
		return nil
	}
	return json.Unmarshal(b, (*float64)(f))
}

// Range is a confidence interval in milliseconds. An end beyond the observed values is NaN,
// null in JSON.
type Range [2]Figure

// Judged is a summary in which what too few values cannot carry is refused.
type Judged struct {
	Count int64  `json:"count"`
	Mean  Figure `json:"mean"`
	P50   Figure `json:"p50"`
	P90   Figure `json:"p90"`
	P99   Figure `json:"p99"`
	P999  Figure `json:"p999"`
	Max   Figure `json:"max"`
	// CI95 holds intervals in which the mean and the percentiles of the process
	// lie with 95 % confidence, by their names, as far as the values are
	// independent of each other.
	CI95 map[string]Range `json:"ci95,omitempty"`
	// Bounds holds between which values a figure lies, by its name, where some of
	// the values are known only to lie in a range. It is absent where all are known.
	Bounds map[string]Range `json:"bounds,omitempty"`
	// Refused maps the name of a refused figure, which is null, to the reason.
	Refused map[string]string `json:"refused,omitempty"`
}

// percentiles are those of a summary, each with the number of values from which
// on at least one is expected above it: with fewer it is the maximum under
// another name.
var percentiles = [...]struct {
	name  string
	share float64
	least int64
	of    func(*Summary) float64
	to    func(*Judged) *Figure
}{
	{"p50", 0.5, 2, func(s *Summary) float64 { return s.P50 }, func(j *Judged) *Figure { return &j.P50 }},
	{"p90", 0.9, 10, func(s *Summary) float64 { return s.P90 }, func(j *Judged) *Figure { return &j.P90 }},
	{"p99", 0.99, 100, func(s *Summary) float64 { return s.P99 }, func(j *Judged) *Figure { return &j.P99 }},
	{"p999", 0.999, 1000, func(s *Summary) float64 { return s.P999 }, func(j *Judged) *Figure { return &j.P999 }},
}

// Judge returns the figures so far. It leaves out figures for which there are too few
// values, and adds intervals if the values are independent of each other.
func (r *Recorder) Judge(independent bool) Judged {
	s := r.Summary()
	nan := Figure(math.NaN())
	j := Judged{Count: s.Count, Mean: Figure(s.Mean), Max: Figure(s.Max)}
	if s.Count == 0 {
		j.Mean, j.Max = nan, nan
		j.Refused = map[string]string{"mean": "no values", "max": "no values"}
	}
	for _, p := range percentiles {
		if s.Count >= p.least {
			*p.to(&j) = Figure(p.of(&s))
			continue
		}
		*p.to(&j) = nan
		if j.Refused == nil {
			j.Refused = map[string]string{}
		}
		j.Refused[p.name] = fmt.Sprintf("needs %d values, has %d", p.least, s.Count)
	}
	if independent && s.Count > 1 {
		j.CI95 = r.intervals(&s)
	}
	j.Bounds = r.bounds(&j)
	return j
}

// Refuse refuses every figure for a reason.
func (j *Judged) Refuse(why string) {
	nan := Figure(math.NaN())
	*j = Judged{Count: j.Count, Mean: nan, P50: nan, P90: nan, P99: nan, P999: nan, Max: nan, Refused: map[string]string{"all": why}}
}

// Between writes the bounds for a person, empty where there are none.
func (j *Judged) Between() string {
	var b strings.Builder
	for _, name := range []string{"mean", "p50", "p90", "p99", "p999", "max"} {
		if in, ok := j.Bounds[name]; ok {
			if b.Len() > 0 {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, "%s %.3f to %.3f", name, in[0], in[1])
		}
	}
	return b.String()
}

// z95 is the quantile of the normal distribution that leaves 2.5 % above it.
const z95 = 1.959964

// intervals returns the 95 % intervals: for the mean by the normal distribution, for
// percentiles by the order statistics whose ranks the binomial distribution determines,
// whatever the distribution of the values.
func (r *Recorder) intervals(s *Summary) map[string]Range {
	n := float64(s.Count)
	half := z95 * math.Sqrt(max(0, r.squares/n-s.Mean*s.Mean)*n/(n-1)) / math.Sqrt(n)
	ci := map[string]Range{"mean": {Figure(max(0, s.Mean-half)), Figure(s.Mean + half)}}
	for _, p := range percentiles {
		if s.Count < p.least {
			continue
		}
		spread := z95 * math.Sqrt(n*p.share*(1-p.share))
		ci[p.name] = Range{r.rank(math.Floor(n*p.share-spread), s.Max), r.rank(math.Ceil(n*p.share+spread)+1, s.Max)}
	}
	return ci
}

// rank returns the value of a rank from 1, NaN where there is none.
func (r *Recorder) rank(k, most float64) Figure {
	n := float64(r.hist.TotalCount())
	if k < 1 || k > n {
		return Figure(math.NaN())
	}
	// Half a rank below, so that no rounding lands on the next one.
	return Figure(min(float64(r.hist.ValueAtQuantile(100*(k-0.5)/n))/1e3, most))
}
