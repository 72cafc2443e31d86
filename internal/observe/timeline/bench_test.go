package timeline

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"weir/internal/trace"
)

// served is a record as a request leaves it behind that a token engine has served, the
// best of four.
func served(i int, at int64) *trace.Record {
	r := sample(fmt.Sprintf("req-0123456789abcdef%012d", i))
	r.Code, r.Message, r.Outcome = "", "", 0
	r.Attempts = r.Attempts[1:]
	r.Attempts = append([]trace.Attempt(nil), r.Attempts...)
	r.Attempts[0].Legs = append([]trace.Leg(nil), r.Attempts[0].Legs...)
	r.Attempts[0].Legs[0].RequestID = strings.Clone(r.RequestID[4:])
	r.Attempts[0].Choice.Best = make([]trace.Option, 4)
	r.Stream, r.Arrival, r.FirstFlushed, r.Finished = true, at-5e8, at-4e8, at
	return r
}

// BenchmarkRecords is what a record costs the end of its request, and the memory that it
// takes while it is kept, beside what a request has to keep anyway.
func BenchmarkRecords(b *testing.B) {
	for _, kept := range []struct {
		name    string
		shelves Shelves
		gap     int64 // between ends
	}{
		{"latest", Shelves{}, 1e6},
		{"shelves", Shelves{Slowest: 50, Failed: 128, Refused: 64, Sample: 300}, 1e6},
	} {
		b.Run(kept.name, func(b *testing.B) {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			r, err := New(Options{Shelves: kept.shelves})
			if err != nil {
				b.Fatal(err)
			}
			at := trace.Now()
			recs := make([]*trace.Record, 4096)
			for i := 0; b.Loop(); i++ {
				if i%len(recs) == 0 {
					b.StopTimer()
					for k := range recs {
						at += kept.gap
						recs[k] = served(i+k, at)
					}
					b.StartTimer()
				}
				r.Add(recs[i%len(recs)])
			}
			b.StopTimer()
			clear(recs)
			runtime.GC()
			runtime.ReadMemStats(&after)
			n := r.Kept()
			b.ReportMetric(float64(n), "kept")
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(n), "B/kept")
			if err := r.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkSearch is the slowest hundred of 10,000 records.
func BenchmarkSearch(b *testing.B) {
	r, err := New(Options{Keep: 10000})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	at := trace.Now()
	for i := range 10000 {
		r.Add(served(i, at+int64(i)))
	}
	for b.Loop() {
		if found := r.Search(Query{Order: ByTTFT, Limit: 100}, at); len(found.Records) != 100 {
			b.Fatal(len(found.Records))
		}
	}
}
