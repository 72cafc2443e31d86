package load

import (
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Counts are read back to within a bucket, also during counting, and never more has ended than has
// begun.
func TestLive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ms := rapid.Float64Range(0.02, 1e6).Draw(t, "ms")
		var l Live
		var tasks sync.WaitGroup
		for range 4 {
			tasks.Go(func() {
				for i := range 50 {
					l.begin()
					s := Sample{Intended: 1, FirstContent: 1 + int64(ms*1e6), LastToken: 1 + int64(3*ms*1e6), Tokens: 3}
					if i%10 == 0 {
						s.fail(KindReset, "x")
					}
					l.end(&s)
				}
			})
		}
		for range 10 {
			if r := l.Read(); r.Ended() > r.Begun {
				t.Fatalf("%+v", r)
			}
		}
		tasks.Wait()
		r := l.Read()
		if r.Begun != 200 || r.Complete != 180 || r.Errored != 20 || r.Errors[KindReset] != 20 || r.Tokens != 600 {
			t.Fatalf("%+v", r)
		}
		for _, b := range []*LiveBuckets{&r.TTFT, &r.TPOT} {
			d, ok := b.Quantile(0.5)
			if got := float64(d) / float64(time.Millisecond); !ok || got < 0.9*ms || got > 1.1*ms {
				t.Fatalf("%v ms for %v", got, ms)
			}
		}
		if since := r.TTFT.Since(&r.TTFT); since != (LiveBuckets{}) {
			t.Fatal(since)
		}
		if _, ok := (&LiveBuckets{}).Quantile(0.5); ok {
			t.Fatal("a quantile of nothing")
		}
	})
}

func TestLiveAllocatesNothing(t *testing.T) {
	var l Live
	s := Sample{Intended: 1, FirstContent: 1e6, LastToken: 2e6, Tokens: 3}
	if n := testing.AllocsPerRun(100, func() { l.begin(); l.end(&s) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
