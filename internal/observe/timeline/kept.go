package timeline

import (
	"container/heap"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"weir/internal/infer"
	"weir/internal/trace"
)

// Shelves define which records stay in memory for Window after their requests have ended,
// whatever comes after them. Each number applies to one minute. The zero value keeps only
// the latest (Options.Keep).
type Shelves struct {
	// Slowest is the number of requests with the longest time to the first output, and also
	// of those with the longest total time.
	Slowest int
	// Failed are requests that weir or an engine failed; Refused are those that were
	// rejected or cancelled. If a minute has more, a fair sample of them is kept.
	Failed, Refused int
	// Sample is the size of a fair sample of all requests, including slow and failed ones,
	// so that its percentiles are those of the traffic.
	Sample int
}

// Window is how long the Shelves keep records.
const Window = 15 * time.Minute

// minutes is how many minutes the window touches.
const minutes = int64(Window/time.Minute) + 1

// held is a record in memory. It stays there while a place holds it: the ring of the
// latest, or a shelf of its minute.
type held struct {
	rec     *trace.Record
	seq     uint64      // of its end
	sampled atomic.Bool // in the fair sample of a minute that is not over
	at      int         // its place among all
	places  int8        // that hold it
}

// kept is the records in memory. It is pure, and its clock is the time of the records. The
// Recorder's lock guards it.
//
// Goal: of thousands of requests a second, keep the few thousand records that will be asked
// for: the latest, all slow or failed ones, and enough of the rest for a comparison.
// Invariants: memory is bounded for any traffic; adding a record takes a bounded number of
// steps; a reader only copies pointers under the lock.
type kept struct {
	shelves Shelves
	random  func(n int) int // below n

	all     []*held // in no order
	latest  []*held // a ring
	next    int
	ended   uint64
	passed  uint64 // over: let go of before their time
	buckets [minutes]bucket
	leaving []*held // of minutes that are over, to be let go of a few at a time
}

// bucket holds the records of one minute.
type bucket struct {
	begun   bool
	minute  int64 // of the clock
	ended   int
	passed  int
	byFirst slowest
	byTotal slowest
	failed  reservoir
	refused reservoir
	sample  reservoir
}

func newKept(latest int, shelves Shelves) kept {
	return kept{shelves: shelves, random: rand.IntN, latest: make([]*held, latest)}
}

// most is how many shelves a record may be on.
const most = 4

// add takes a record in.
func (k *kept) add(rec *trace.Record) {
	h := &held{rec: rec, seq: k.ended, at: len(k.all)}
	k.ended++
	k.all = append(k.all, h)
	if old := k.latest[k.next]; old != nil {
		k.release(old)
	}
	k.latest[k.next], h.places = h, 1
	k.next = (k.next + 1) % len(k.latest)
	if b := k.bucket(rec.Finished); b != nil {
		b.ended++
		k.shelve(b, h)
	}
	for range min(most, len(k.leaving)) {
		last := len(k.leaving) - 1
		k.release(k.leaving[last])
		k.leaving[last] = nil
		k.leaving = k.leaving[:last]
	}
}

// shelve puts a record onto the shelves of its minute that it belongs on.
func (k *kept) shelve(b *bucket, h *held) {
	out := [...]*held{
		b.byFirst.put(h, k.shelves.Slowest, firstOf(h.rec)),
		b.byTotal.put(h, k.shelves.Slowest, h.rec.Total()),
		nil,
		b.sample.put(h, k.shelves.Sample, k.random),
	}
	if old := out[3]; old != h {
		h.sampled.Store(true)
		if old != nil {
			old.sampled.Store(false)
		}
	}
	switch h.rec.Outcome {
	case infer.Failed:
		out[2] = b.failed.put(h, k.shelves.Failed, k.random)
	case infer.Rejected, infer.Cancelled:
		out[2] = b.refused.put(h, k.shelves.Refused, k.random)
	default:
		out[2] = h // on neither
	}
	for _, old := range out {
		if old != h {
			h.places++
			if old != nil {
				k.release(old)
			}
		}
	}
}

// release removes one of the places that hold a record, and forgets the record with the
// last.
func (k *kept) release(h *held) {
	if h.places--; h.places > 0 {
		return
	}
	last := k.all[len(k.all)-1]
	k.all[h.at], last.at = last, h.at
	k.all[len(k.all)-1] = nil
	k.all = k.all[:len(k.all)-1]
	if b := k.find(h.rec.Finished); b != nil { // its minute is not over
		b.passed++
		k.passed++
	}
}

// minuteOf is the minute of a time. The clock may begin below 0.
func minuteOf(at int64) int64 {
	minute := at / int64(time.Minute)
	if at%int64(time.Minute) < 0 {
		minute--
	}
	return minute
}

// place is where the bucket of a minute is, or would be.
func (k *kept) place(minute int64) *bucket {
	return &k.buckets[(minute%minutes+minutes)%minutes]
}

// find returns the bucket of a time, if it is kept.
func (k *kept) find(at int64) *bucket {
	minute := minuteOf(at)
	if b := k.place(minute); b.begun && b.minute == minute {
		return b
	}
	return nil
}

// bucket returns the bucket for a time, and creates it if needed; nil if the time is past.
func (k *kept) bucket(at int64) *bucket {
	minute := minuteOf(at)
	b := k.place(minute)
	switch {
	case b.begun && b.minute > minute:
		return nil
	case b.begun && b.minute == minute:
		return b
	}
	for _, shelf := range [...][]*held{b.byFirst.all, b.byTotal.all, b.failed.all, b.refused.all, b.sample.all} {
		k.leaving = append(k.leaving, shelf...)
	}
	for _, h := range b.sample.all {
		h.sampled.Store(false)
	}
	*b = bucket{begun: true, minute: minute}
	return b
}

// shuffle puts records into an order by chance.
func (k *kept) shuffle(some []*held) {
	for i := len(some) - 1; i > 0; i-- {
		j := k.random(i + 1)
		some[i], some[j] = some[j], some[i]
	}
}

// firstOf is the time to the first output, negative where there was none.
func firstOf(r *trace.Record) int64 {
	if ttft, ok := r.TTFT(); ok {
		return ttft
	}
	return -1
}

// slowest is the slowest records, as a heap with the fastest of them first.
type slowest struct {
	all   []*held
	times []int64
}

// put adds a record, and returns the one that it displaces: another one, the record itself,
// or nil.
func (s *slowest) put(h *held, room int, took int64) (out *held) {
	switch {
	case took < 0 || room == 0:
		return h
	case len(s.all) < room:
		heap.Push(s, slow{h, took})
		return nil
	case took <= s.times[0]:
		return h
	}
	out = s.all[0]
	s.all[0], s.times[0] = h, took
	heap.Fix(s, 0)
	return out
}

type slow struct {
	h    *held
	took int64
}

// Len, Less, Swap, Push and Pop implement heap.Interface.
func (s *slowest) Len() int           { return len(s.all) }
func (s *slowest) Less(i, j int) bool { return s.times[i] < s.times[j] }
func (s *slowest) Swap(i, j int) {
	s.all[i], s.all[j] = s.all[j], s.all[i]
	s.times[i], s.times[j] = s.times[j], s.times[i]
}

// Push implements heap.Interface.
func (s *slowest) Push(x any) {
	s.all, s.times = append(s.all, x.(slow).h), append(s.times, x.(slow).took)
}

// Pop implements heap.Interface. A full heap has its first replaced instead.
func (s *slowest) Pop() any { panic("timeline: nothing is popped") }

// reservoir is a sample that contains each record seen with the same probability.
type reservoir struct {
	all  []*held
	seen int
}

// put adds a record, and returns the one that it displaces: another one, the record itself,
// or nil.
func (r *reservoir) put(h *held, room int, random func(int) int) (out *held) {
	r.seen++
	if len(r.all) < room {
		r.all = append(r.all, h)
		return nil
	}
	if room == 0 {
		return h
	}
	i := random(r.seen)
	if i >= room {
		return h
	}
	out, r.all[i] = r.all[i], h
	return out
}
