package load

import (
	"fmt"
	"testing"
	"time"
)

// feed is a source that gives this many pieces at a read, each read a millisecond
// after the one before. since is what a socket would say.
type feed struct {
	pieces []string
	each   int
	next   int
	at     int64
	given  bool
}

func (f *feed) receive(p []byte) (n int, at int64, err error) {
	if f.given = !f.given; !f.given {
		return 0, 0, errAgain
	}
	f.at += int64(time.Millisecond)
	for range f.each {
		if f.next < len(f.pieces) {
			n += copy(p[n:], f.pieces[f.next])
			f.next++
		}
	}
	return n, f.at, nil
}

func (f *feed) since(at int64, last bool) int64 {
	if last {
		return at
	}
	return at - int64(time.Millisecond)
}

const turnTokens = 100

// turns returns what takes in one answer whose tokens come this many at a read.
func turns(tb testing.TB, each int) func() *Sample {
	r := whole(nil)
	for range turnTokens {
		r.words = append(r.words, " word")
	}
	f := &feed{pieces: []string{streamHead}, each: each}
	for _, e := range r.frames(r.events()) {
		f.pieces = append(f.pieces, chunked([]string{e}))
	}
	f.pieces = append(f.pieces, lastChunk)
	cn := &conn{late: make([]int64, 0, turnTokens)}
	cn.buf = buffer{src: f, data: make([]byte, readBuffer)}
	x := newExchange(&Plan{OutputTokens: turnTokens}, &client{}, nil)
	return func() *Sample {
		f.next, f.given = 0, false
		x.take(tb.Context(), 0, 1)
		x.begin(tb.Context(), cn)
		for !x.turn(cn) {
		}
		cn.buf.reads = 0
		return &x.sample
	}
}

// No event allocates, alone or with others: an answer does, a few times.
func TestTurnAllocates(t *testing.T) {
	for _, each := range []int{1, 4} {
		turn := turns(t, each)
		if s := turn(); s.TextEvents != turnTokens || each == 1 && s.Unknown != 0 || each == 4 && s.Unknown < turnTokens/2 {
			t.Fatalf("%d events, %d unknown", s.TextEvents, s.Unknown)
		}
		if n := testing.AllocsPerRun(20, func() { turn() }); n >= 10 {
			t.Errorf("%d at a read: %v allocations for %d events", each, n, turnTokens)
		}
	}
}

// The cost of an event between the read that brought it and its booking.
func BenchmarkTurn(b *testing.B) {
	for _, each := range []int{1, 4} {
		b.Run(fmt.Sprintf("%d at a read", each), func(b *testing.B) {
			turn := turns(b, each)
			b.ReportAllocs()
			for b.Loop() {
				if s := turn(); s.Outcome != Complete {
					b.Fatalf("%v %s", s.Kind, s.Detail)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/turnTokens, "ns/event")
		})
	}
}
