package report

import (
	"fmt"
	"math"

	"weir/internal/workload/latency"
)

// meanOf returns the mean of the values of several runs and its interval; alone is
// that of a single run.
func meanOf(values []float64, alone latency.Range) SweepFigure {
	if len(values) == 1 {
		return SweepFigure{latency.Figure(values[0]), alone}
	}
	mean, half := StudentOf(values)
	return SweepFigure{latency.Figure(mean), latency.Range{latency.Figure(max(0, mean-half)), latency.Figure(mean + half)}}
}

// StudentOf returns the mean of at least two values and half its 95 % interval, by
// Student's distribution.
func StudentOf(values []float64) (mean, half float64) {
	mean = averageOf(values)
	squares := 0.0
	for _, v := range values {
		squares += (v - mean) * (v - mean)
	}
	n := float64(len(values))
	return mean, student(len(values)-1) * math.Sqrt(squares/(n-1)/n)
}

// normal is the normal distribution's quantile of a 95 % interval.
const normal = 1.959964

// student is the quantile of Student's distribution that leaves 2.5 % above it.
func student(freedom int) float64 {
	table := [...]float64{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086}
	if freedom < 1 {
		return math.Inf(1)
	}
	if freedom <= len(table) {
		return table[freedom-1]
	}
	// Within 0.2 % from here on.
	return normal + (normal*normal*normal+normal)/(4*float64(freedom))
}

// driftFigures are the figures that are checked for changes over time.
var driftFigures = []string{"ttft_p50_ms", "tpot_p50_ms", "e2e_p50_ms"}

// drift finds figures that rise or fall with the order of the runs, apart from the effect
// of their points. It takes the slope of the logarithm, less its point's mean, over the
// order, and reports it if it is beyond 99.9 % of what chance produces.
func (s *Sweep) drift() []string {
	found := []string{}
	if len(s.Searches) > 0 {
		return found // a search looks at each rate twice, and says what contradicts
	}
	for _, name := range driftFigures {
		var order, left []float64
		used := 0
		for _, p := range s.Points {
			var at, logs []float64
			for _, i := range p.Runs {
				for _, f := range sweepFigures {
					if v, _ := f.of(s.Runs[i].Report); f.name() == name && !v.Refused() && v > 0 {
						at, logs = append(at, float64(i)), append(logs, math.Log(float64(v)))
					}
				}
			}
			if len(logs) < 2 {
				continue
			}
			used++
			a, l := averageOf(at), averageOf(logs)
			for k := range logs {
				order, left = append(order, at[k]-a), append(left, logs[k]-l)
			}
		}
		freedom := len(left) - used - 1
		if freedom < 3 {
			continue
		}
		var xx, xy, yy float64
		for k := range left {
			xx += order[k] * order[k]
			xy += order[k] * left[k]
			yy += left[k] * left[k]
		}
		if xx == 0 {
			continue
		}
		slope := xy / xx
		noise := math.Sqrt(max(0, yy-slope*xy) / float64(freedom) / xx)
		const sure, least = 4.0, 0.02 // standard errors; and no drift of less than 2 % is worth a word
		change := math.Expm1(slope * float64(len(s.Runs)-1))
		if math.Abs(slope) > sure*noise && math.Abs(change) > least {
			found = append(found, fmt.Sprintf("%s changed by %+.0f %% from the first run to the last, whatever the load: something else than the factors was at work", name, 100*change))
		}
	}
	return found
}

func averageOf(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}
