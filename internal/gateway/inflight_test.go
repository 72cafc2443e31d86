package gateway

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"weir/internal/dialect/openai"
	"weir/internal/infer"
	"weir/internal/model/tokenizer"
	"weir/internal/trace"
	"weir/models"
)

// BenchmarkInFlight shows the oldest hundred of 50,000 streams.
func BenchmarkInFlight(b *testing.B) {
	g := &Gateway{}
	for i := range 50000 {
		x := &exchange{g: g, stages: stages{rec: &trace.Record{RequestID: fmt.Sprint(i), Arrival: int64(i), Client: netip.MustParseAddr("10.0.0.1")}}, request: request{endpoint: openai.Chat}}
		x.flight.tell(trace.Engine, int64(i))
		x.flight.driven.Store(true)
		x.flight.silence.Store(&silence{})
		x.flight.silence.Load().begin(int64(i))
		x.flight.known.Store(&known{id: "r", model: "m"})
		x.booked.generations = []generation{{tokens: i}}
		g.flights.enter(x)
	}
	b.ReportAllocs()
	for b.Loop() {
		if f := g.InFlight(InFlightQuery{Stage: trace.NumStages, Limit: 100}); f.Total != 50000 || len(f.Requests) != 100 || f.Requests[7].Tokens != 7 {
			b.Fatal(f.Total, len(f.Requests))
		}
	}
}

// BenchmarkFlight is what a request pays to be seen: its coming and going, while somebody
// reads all the time or nobody does.
func BenchmarkFlight(b *testing.B) {
	for _, read := range []bool{false, true} {
		b.Run(fmt.Sprint("read=", read), func(b *testing.B) {
			var fs flights
			for range 50000 {
				fs.enter(&exchange{})
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
			x := &exchange{}
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
			var own []*exchange
			for i := range 2000 {
				x := &exchange{stages: stages{rec: &trace.Record{Arrival: int64(i)}}}
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

// A request is seen where it is, from its arrival to its end, and its tokens are counted
// while it streams; none of that changes what its client gets.
func TestInFlight(t *testing.T) {
	engine := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{engine}, func(t *testing.T, b *bench) {
		look := func(what string, want trace.Stage, since time.Duration, tokens int) Underway {
			t.Helper()
			synctest.Wait()
			f := b.g.InFlight(InFlightQuery{Stage: trace.NumStages})
			if f.Total != 1 || len(f.Requests) != 1 || f.Stages[f.Requests[0].Stage] != 1 {
				t.Fatalf("%s: %+v", what, f)
			}
			u := f.Requests[0]
			if u.Stage != want || u.Tokens != tokens || since >= 0 && trace.Now()-u.Since-int64(since) > 2000 {
				t.Errorf("%s: in %v for %v with %d tokens, want %v, %v, %d", what, u.Stage, time.Duration(trace.Now()-u.Since), u.Tokens, want, since, tokens)
			}
			return u
		}
		c := b.dial(0)
		c.head("POST", chatPath, len(askStream("")))
		if u := look("its body does not come", trace.Read, -1, -1); u.Endpoint != chatPath || u.Dialect != "openai" || u.Model != "" {
			t.Errorf("%+v", u)
		}
		c.write(askStream(""))
		call := engine.call(t, 1)
		time.Sleep(3 * time.Second)
		if u := look("the engine has it", trace.Engine, 3*time.Second, 0); u.RequestID != c.id || u.Model != models.SimName || u.Engine != "a" || u.Attempt != 1 || u.PromptTokens == 0 || !u.Stream {
			t.Errorf("%+v", u)
		}
		ids := idsOf(t, " one two three four", tokenizer.EncodeOptions{})
		call.send(ids[:3]...)
		look("it streams", trace.Engine, 0, 3)
		time.Sleep(5 * time.Second)
		look("the engine is silent", trace.Engine, 5*time.Second, 3)
		call.send(ids[3:]...)
		look("it goes on", trace.Engine, 0, len(ids))
		for _, q := range []InFlightQuery{{Stage: trace.Queue}, {Stage: trace.NumStages, Model: "other"}, {Stage: trace.NumStages, Engine: "b"}} {
			if f := b.g.InFlight(q); f.Total != 1 || f.Matched != 0 || len(f.Requests) != 0 {
				t.Errorf("%+v finds %+v", q, f)
			}
		}
		call.end(infer.ReasonStop)
		if a := c.answer(); !a.whole || !strings.Contains(string(a.body), "[DONE]") {
			t.Errorf("%q", a.body)
		}
		if f := b.g.InFlight(InFlightQuery{Stage: trace.NumStages}); f.Total != 0 {
			t.Errorf("%d are left", f.Total)
		}
	})
}

// While somebody looks all the time, streams lose and delay nothing.
func TestInFlightDisturbsNobody(t *testing.T) {
	engine := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{engine}, func(t *testing.T, b *bench) {
		const streams, tokens = 8, 40
		ids := idsOf(t, strings.Repeat(" word", tokens), tokenizer.EncodeOptions{})
		var over atomic.Bool
		var reader sync.WaitGroup
		reader.Go(func() {
			for !over.Load() {
				b.g.InFlight(InFlightQuery{Stage: trace.NumStages})
				runtime.Gosched()
				time.Sleep(time.Microsecond)
			}
		})
		var callers []*caller
		for range streams {
			callers = append(callers, b.dial(0))
		}
		for _, c := range callers {
			c.head("POST", chatPath, len(askStream("")))
			c.write(askStream(""))
		}
		var calls []*call
		for len(calls) < streams {
			time.Sleep(time.Millisecond)
			engine.mu.Lock()
			calls = append(calls[:0], engine.calls...)
			engine.mu.Unlock()
		}
		for _, id := range ids {
			for _, c := range calls {
				c.offer([]uint32{id}, nil)
			}
			time.Sleep(time.Microsecond)
		}
		for _, c := range calls {
			c.offer(nil, ending(infer.ReasonStop))
		}
		time.Sleep(time.Millisecond) // a thousand looks more
		over.Store(true)
		reader.Wait()
		for _, c := range callers {
			if a := c.answer(); !a.whole || strings.Count(string(a.body), "word") == 0 || !strings.HasSuffix(string(a.body), "data: [DONE]\n\n") {
				t.Errorf("%q", a.body)
			}
		}
	})
}
