package record

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"weir/internal/trace"
)

// stream is a request that nobody serves.
type stream struct{ account Request }

func (s *stream) Account() *Request   { return &s.account }
func (s *stream) Parked() bool        { return true }
func (s *stream) Tokens() (int, bool) { return 0, false }
func (s *stream) End(error)           {}

// A record of one attempt and the allocator's word before it fill a size class.
func TestRecordFillsASizeClass(t *testing.T) {
	if size, most := unsafe.Sizeof(recordOfOne{}), uintptr(896-8); size > most {
		t.Errorf("a record has %d bytes, %d more than its class", size, size-most)
	}
}

// BenchmarkFlight is what a request pays to be seen: its coming and going, while somebody
// reads all the time or nobody does.
func BenchmarkFlight(b *testing.B) {
	for _, read := range []bool{false, true} {
		b.Run(fmt.Sprint("read=", read), func(b *testing.B) {
			var fs flights
			for range 50000 {
				fs.enter(new(stream))
			}
			var over atomic.Bool
			var reader sync.WaitGroup
			if read {
				reader.Go(func() {
					for !over.Load() {
						runtime.KeepAlive(fs.list())
					}
				})
			}
			x := new(stream)
			for b.Loop() {
				fs.enter(x)
				fs.leave(x)
			}
			over.Store(true)
			reader.Wait()
		})
	}
}

// The oldest few are found among many, in whatever order these come.
func TestOldest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		arrivals := rapid.SliceOf(rapid.Int64Range(0, 30)).Draw(t, "arrivals")
		o := oldest{most: rapid.IntRange(1, 5).Draw(t, "most")}
		for _, at := range arrivals {
			o.add(seen{arrival: at})
		}
		slices.Sort(arrivals)
		arrivals = arrivals[:min(len(arrivals), o.most)]
		if len(o.all) != len(arrivals) {
			t.Fatalf("%d, want %d", len(o.all), len(arrivals))
		}
		for i, at := range arrivals {
			if o.all[i].arrival != at {
				t.Fatalf("%v, want %v", o.all, arrivals)
			}
		}
	})
}

// Requests come and go while others read: the race detector sees that nobody meets, and at
// the end nobody is left.
func TestFlightsComeAndGo(t *testing.T) {
	var fs flights
	var tasks sync.WaitGroup
	for range 4 {
		tasks.Go(func() {
			var own []*stream
			for i := range 2000 {
				x := &stream{Request{Record: &trace.Record{Arrival: int64(i)}}}
				fs.enter(x)
				if own = append(own, x); i%3 == 0 {
					fs.leave(own[0])
					own = own[1:]
				}
			}
			for _, x := range own {
				fs.leave(x)
			}
		})
	}
	tasks.Go(func() {
		for range 50 {
			for _, x := range fs.list() {
				stageOf(x)
			}
		}
	})
	tasks.Wait()
	if left := fs.list(); len(left) != 0 {
		t.Errorf("%d are left", len(left))
	}
}
