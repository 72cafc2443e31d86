package load

import (
	"maps"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/workload/latency"
)

// Live holds the figures of a run while it is under way, for display. Requests add to it
// without locks, once when they begin and once when they end. A reader does not stop them:
// a request may end between two of its reads. The zero value is ready for use.
type Live struct {
	begun    atomic.Int64
	outcomes [len(outcomeNames)]atomic.Int64
	tokens   atomic.Int64
	ttft     [liveBuckets]atomic.Int64
	tpot     [liveBuckets]atomic.Int64

	mu     sync.Mutex // taken by requests that failed alone
	errors map[Kind]int
}

// The buckets of Live's latencies are an eighth of an octave wide (9 %) and cover 10 us to
// an hour.
const (
	liveBuckets  = 8 * 29
	perOctave    = 8
	liveShortest = 10 * time.Microsecond
)

// LiveBuckets counts latencies.
type LiveBuckets [liveBuckets]int64

// Reading is the state of Live at one moment, over all requests so far.
type Reading struct {
	Begun, Complete, Corrupt, Errored, Abandoned, Unfinished int64
	// Tokens are those of requests that have ended.
	Tokens     int64
	TTFT, TPOT LiveBuckets // of complete requests
	Errors     map[Kind]int
}

// Ended is the number of requests that have.
func (r *Reading) Ended() int64 {
	return r.Complete + r.Corrupt + r.Errored + r.Abandoned + r.Unfinished
}

// bucketOf returns the bucket of a latency.
func bucketOf(ns int64) int {
	return min(liveBuckets-1, max(0, int(perOctave*math.Log2(float64(ns)/float64(liveShortest)))))
}

// Since returns what was counted since an earlier reading.
func (b LiveBuckets) Since(earlier *LiveBuckets) LiveBuckets {
	for i := range b {
		b[i] -= earlier[i]
	}
	return b
}

// Quantile returns the latency below which a share of the counted values lies, to within a
// bucket; ok is false if nothing was counted.
func (b *LiveBuckets) Quantile(share float64) (d time.Duration, ok bool) {
	i, ok := latency.Bucket(b[:], share)
	if !ok {
		return 0, false
	}
	return time.Duration(float64(liveShortest) * math.Exp2((float64(i)+0.5)/perOctave)), true
}

// begin counts a request that is taken up.
func (l *Live) begin() { l.begun.Add(1) }

// end counts a request that has ended.
func (l *Live) end(s *Sample) {
	if s.Outcome == Complete && s.FirstContent != 0 && !s.whole {
		l.ttft[bucketOf(s.FirstContent-s.Intended)].Add(1)
		if tpot, ok := s.TPOT(); ok {
			l.tpot[bucketOf(tpot)].Add(1)
		}
	}
	l.tokens.Add(int64(s.Tokens))
	if s.Kind != "" {
		l.mu.Lock()
		if l.errors == nil {
			l.errors = map[Kind]int{}
		}
		l.errors[s.Kind]++
		l.mu.Unlock()
	}
	l.outcomes[s.Outcome].Add(1)
}

// Read returns the figures now.
func (l *Live) Read() Reading {
	var r Reading
	// Ended requests are read before begun ones, so that there are never more of them.
	for i, to := range []*int64{&r.Complete, &r.Corrupt, &r.Errored, &r.Abandoned, &r.Unfinished} {
		*to = l.outcomes[i].Load()
	}
	r.Begun, r.Tokens = l.begun.Load(), l.tokens.Load()
	for i := range liveBuckets {
		r.TTFT[i], r.TPOT[i] = l.ttft[i].Load(), l.tpot[i].Load()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Errors = maps.Clone(l.errors)
	return r
}
