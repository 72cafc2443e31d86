package timeline

import (
	"cmp"
	"math"
	"slices"
	"time"

	"weir/internal/infer"
	"weir/internal/trace"
)

// Order is how found records are sorted.
type Order string

// The orders: the latest ends first, or what took longest to its first output or as a
// whole.
const (
	ByLatest Order = "latest"
	ByTTFT   Order = "ttft"
	ByTotal  Order = "total"
)

// Query selects records in memory. Its zero value selects all.
type Query struct {
	ID      string // the request's, or one on an engine's wire
	Model   string
	Engine  string // of any attempt
	Outcome string // its name
	Code    string // of the error
	// Since is how long ago a request may have ended; 0 is any time.
	Since time.Duration
	Order Order
	// Limit bounds the records that are given; 0 is no bound.
	Limit int
}

// Found is a record that was found. It must not be changed.
type Found struct {
	*trace.Record
	// Sampled reports whether it is in the fair sample.
	Sampled bool
}

// Result holds the found records, and how many there are.
type Result struct {
	// Ended counts the requests that have ended within Window. Passed counts those of them
	// whose records were dropped because there were too many.
	Ended, Passed int
	Kept          int // records in memory
	Matched       int // those of them that the query wants
	Records       []Found
}

// Search finds records in memory. now is the time of trace's clock.
func (r *Recorder) Search(q Query, now int64) Result {
	all, result := r.snapshot(now)
	for _, h := range all {
		if q.wants(h, now) {
			result.Records = append(result.Records, Found{h.rec, h.sampled.Load()})
		}
	}
	result.Matched = len(result.Records)
	slices.SortFunc(result.Records, func(a, b Found) int { return q.Order.compare(a.Record, b.Record) })
	if q.Limit > 0 && result.Matched > q.Limit {
		result.Records = slices.Clip(result.Records[:q.Limit])
	}
	return result
}

// Sample returns a fair sample of the requests that the query selects, in no order: it
// contains each ended request with the same probability, whichever minute it ended in. The
// minute with the smallest kept share determines this probability.
func (r *Recorder) Sample(q Query, now int64) (records []*trace.Record) {
	r.mu.Lock()
	share := 1.0
	shelves := make([][]*held, 0, minutes)
	var seen []int
	for i := range r.kept.buckets {
		b := &r.kept.buckets[i]
		if n := len(b.sample.all); b.begun && n > 0 && (q.Since == 0 || now-(b.minute+1)*int64(time.Minute) <= int64(q.Since)) {
			share = min(share, float64(n)/float64(b.sample.seen))
			shelves, seen = append(shelves, slices.Clone(b.sample.all)), append(seen, b.sample.seen)
		}
	}
	r.mu.Unlock()
	for i, shelf := range shelves {
		r.kept.shuffle(shelf)
		for _, h := range shelf[:min(len(shelf), int(math.Round(share*float64(seen[i]))))] {
			if q.wants(h, now) {
				records = append(records, h.rec)
			}
		}
	}
	return records
}

// snapshot returns all that is in memory. It holds the lock for a copy of pointers.
func (r *Recorder) snapshot(now int64) ([]*held, Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := &r.kept
	result := Result{Kept: len(k.all)}
	for i := range k.buckets {
		if b := &k.buckets[i]; b.begun && b.minute > minuteOf(now)-minutes {
			result.Ended += b.ended
			result.Passed += b.passed
		}
	}
	return slices.Clone(k.all), result
}

func (q *Query) wants(h *held, now int64) bool {
	rec := h.rec
	switch {
	case q.Since > 0 && now-rec.Finished > int64(q.Since),
		q.Model != "" && rec.Model != q.Model,
		q.Outcome != "" && rec.Outcome.String() != q.Outcome,
		q.Code != "" && rec.Code != q.Code,
		q.Engine != "" && !servedBy(rec, q.Engine),
		q.ID != "" && !named(rec, q.ID):
		return false
	}
	return true
}

// servedBy reports whether a request was at an engine.
func servedBy(rec *trace.Record, engine string) bool {
	for i := range rec.Attempts {
		for k := range rec.Attempts[i].Legs {
			if rec.Attempts[i].Legs[k].Engine == engine {
				return true
			}
		}
	}
	return false
}

// named reports whether an id is a request's, or its name on an engine's wire.
func named(rec *trace.Record, id string) bool {
	if rec.RequestID == id {
		return true
	}
	for i := range rec.Attempts {
		for k := range rec.Attempts[i].Legs {
			if rec.Attempts[i].Legs[k].RequestID == id {
				return true
			}
		}
	}
	return false
}

// compare puts what comes first before what follows.
func (o Order) compare(a, b *trace.Record) int {
	switch o {
	case ByTTFT:
		if c := cmp.Compare(firstOf(b), firstOf(a)); c != 0 {
			return c
		}
	case ByTotal:
		if c := cmp.Compare(b.Total(), a.Total()); c != 0 {
			return c
		}
	}
	return cmp.Compare(b.Finished, a.Finished)
}

// fails reports whether a record is written to the file whatever the share of the others.
func fails(rec *trace.Record) bool { return rec.Outcome == infer.Failed }
