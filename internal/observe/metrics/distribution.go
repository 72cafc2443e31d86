package metrics

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Distribution is a histogram of whole numbers that is cheap enough for the output path. A
// goroutine that runs thousands of streams tallies its values, and adds them once before it
// waits (Tally). client_golang's histogram takes one value at a time, which costs several
// times as much per token.
//
// Its buckets are those of a native histogram of schema 3, eight for each doubling. The
// classic buckets are whole doublings.
type Distribution struct {
	counts [numSlots]atomic.Uint64
	sum    atomic.Int64
	scale  *scale
	began  time.Time
}

const (
	schema    = 3
	perDouble = 1 << schema
	doublings = 30
	// The first slot counts values up to the scale's least one, the last slot those above
	// all others.
	numSlots = perDouble*doublings + 2
)

// scale defines the values of distributions.
type scale struct {
	unit     float64 // of a value of 1
	exponent int     // of two, the least value that is told from nothing
	// The classic buckets end at these exponents of two, and those between.
	first, last int
}

var (
	// Nanoseconds, exported as seconds: from 1 us to a quarter of an hour.
	scaleSeconds = &scale{1e-9, -20, -14, 5}
	// Dispatching a batch takes microseconds.
	scaleShort = &scale{1e-9, -20, -17, 0}
	// Numbers of things.
	scaleCount = &scale{1, -1, 0, 12}
)

// newDistribution makes one without values.
func newDistribution(s *scale) *Distribution { return &Distribution{scale: s, began: time.Now()} }

// bounds are the upper ones of a doubling's buckets but the last, as the fractions of numbers
// between a half and 1.
var bounds = func() (b [perDouble]uint64) {
	for i := range b {
		b[i] = math.Float64bits(math.Exp2(float64(i)/perDouble-1)) & fraction
	}
	return b
}()

const fraction = 1<<52 - 1

// slot is where a value is counted.
func (s *scale) slot(v int64) int {
	bits := math.Float64bits(float64(v) * s.unit)
	at := (int(bits>>52) - 1023 - s.exponent) * perDouble // of the power of two at or below it
	if v <= 0 || at < 0 {
		return 0
	}
	f, i := bits&fraction, 0
	for step := perDouble / 2; step > 0; step /= 2 { // to the last bound below it
		if i+step < perDouble && bounds[i+step] < f {
			i += step
		}
	}
	if bounds[i] < f {
		i++
	}
	return min(at+i, numSlots-1)
}

// Add counts n values that are the same.
func (d *Distribution) Add(v int64, n int) {
	d.counts[d.scale.slot(v)].Add(uint64(n))
	d.sum.Add(v * int64(n))
}

// Tally holds one goroutine's values that are not yet added. The zero value is ready to
// use.
type Tally struct {
	of        *Distribution
	low, high int // of what is not zero in counts
	sum       int64
	counts    [numSlots]uint32
}

// Add notes n values of d that are the same. Values of one distribution mostly follow each
// other.
func (t *Tally) Add(d *Distribution, v int64, n int) {
	if t.of != d {
		t.Tell()
		t.of, t.low = d, numSlots
	}
	i := d.scale.slot(v)
	t.low, t.high = min(t.low, i), max(t.high, i)
	t.counts[i] += uint32(n)
	t.sum += v * int64(n)
}

// Tell adds the noted values to the distribution. It is called before the goroutine waits.
func (t *Tally) Tell() {
	if t.of == nil {
		return
	}
	for i := t.low; i <= t.high; i++ {
		if n := t.counts[i]; n > 0 {
			t.of.counts[i].Add(uint64(n))
			t.counts[i] = 0
		}
	}
	t.of.sum.Add(t.sum)
	t.of, t.low, t.high, t.sum = nil, 0, 0, 0
}

// metric returns a distribution as it stands.
func (d *Distribution) metric(desc *prometheus.Desc, labels ...string) prometheus.Metric {
	return distributed{d, desc, prometheus.MakeLabelPairs(desc, labels)}
}

// distributed is a Distribution with its labels, as a metric.
type distributed struct {
	of     *Distribution
	desc   *prometheus.Desc
	labels []*dto.LabelPair
}

// Desc implements prometheus.Metric.
func (m distributed) Desc() *prometheus.Desc { return m.desc }

// Write implements prometheus.Metric, with both forms of buckets. In Prometheus' text
// format are the classic ones.
func (m distributed) Write(to *dto.Metric) error {
	d, s := m.of, m.of.scale
	h := &dto.Histogram{Schema: new(int32(schema)), ZeroThreshold: new(math.Exp2(float64(s.exponent))), CreatedTimestamp: timestamppb.New(d.began)}
	var count, before uint64
	classic := s.first
	next := -1 // the slot that the last span would go on with
	for i := range numSlots {
		n := d.counts[i].Load()
		count += n
		switch {
		case i == 0:
			h.ZeroCount = new(n)
		case n > 0:
			if i == next {
				*h.PositiveSpan[len(h.PositiveSpan)-1].Length++
			} else {
				offset := int32(i - next)
				if next < 0 { // from the bucket that ends at 1
					offset = int32(i + s.exponent*perDouble)
				}
				h.PositiveSpan = append(h.PositiveSpan, &dto.BucketSpan{Offset: &offset, Length: new(uint32(1))})
			}
			h.PositiveDelta = append(h.PositiveDelta, int64(n-before))
			before, next = n, i+1
		}
		if classic <= s.last && i == (classic-s.exponent)*perDouble {
			h.Bucket = append(h.Bucket, &dto.Bucket{CumulativeCount: new(count), UpperBound: new(math.Exp2(float64(classic)))})
			classic++
		}
	}
	if len(h.PositiveSpan) == 0 { // which says that it is a native one all the same
		h.PositiveSpan = []*dto.BucketSpan{{Offset: new(int32(0)), Length: new(uint32(0))}}
	}
	h.SampleCount, h.SampleSum = new(count), new(float64(d.sum.Load())*s.unit)
	to.Label, to.Histogram = m.labels, h
	return nil
}
