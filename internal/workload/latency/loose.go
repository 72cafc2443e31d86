package latency

import "github.com/HdrHistogram/hdrhistogram-go"

// loose holds the values that are known only to lie in a range, in addition to their
// recorded values.
type loose struct {
	booked, low, high     *hdrhistogram.Histogram
	sumLow, sumHigh, most int64 // ns
}

// AddWithin records ns as Add does, with the knowledge that the value is between low and
// high. The figures use ns; [Judged.Bounds] are their possible values.
func (r *Recorder) AddWithin(ns, low, high int64) {
	r.Add(ns)
	if r.loose == nil {
		empty := func() *hdrhistogram.Histogram { return hdrhistogram.New(1, r.top, 3) }
		r.loose = &loose{booked: empty(), low: empty(), high: empty()}
	}
	l := r.loose
	ns = max(ns, 0)
	low, high = min(max(low, 0), ns), max(high, ns)
	l.sumLow += ns - low
	l.sumHigh += high - ns
	l.most = max(l.most, high)
	for _, x := range []struct {
		hist *hdrhistogram.Histogram
		ns   int64
	}{{l.booked, ns}, {l.low, low}, {l.high, high}} {
		_ = x.hist.RecordValue(r.bucketed(x.ns)) // in range
	}
}

// bounds returns the least and the greatest possible value of the given figures of j. If
// each value lies in its range, each order statistic lies between that of the ranges' lower
// ends and that of their upper ends.
func (r *Recorder) bounds(j *Judged) map[string]Range {
	l := r.loose
	if l == nil {
		return nil
	}
	low, high := r.instead(l.low), r.instead(l.high)
	n := float64(j.Count)
	most := Figure(max(r.max, l.most)) / 1e6
	between := func(f Figure, q float64) Range {
		at := func(h *hdrhistogram.Histogram) Figure { return min(Figure(h.ValueAtQuantile(q))/1e3, most) }
		return Range{min(at(low), f), max(at(high), f)}
	}
	b := map[string]Range{
		"mean": {j.Mean - Figure(float64(l.sumLow)/n/1e6), j.Mean + Figure(float64(l.sumHigh)/n/1e6)},
		"max":  {between(j.Max, 100)[0], most},
	}
	for _, p := range percentiles {
		if f := *p.to(j); !f.Refused() {
			b[p.name] = between(f, 100*p.share)
		}
	}
	return b
}

// instead returns the values with others in place of the recorded ones.
func (r *Recorder) instead(others *hdrhistogram.Histogram) *hdrhistogram.Histogram {
	s, booked, x := r.hist.Export(), r.loose.booked.Export(), others.Export()
	for i := range s.Counts {
		s.Counts[i] += x.Counts[i] - booked.Counts[i]
	}
	return hdrhistogram.Import(s)
}
