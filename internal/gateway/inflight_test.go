package gateway

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/dialect/openai"
	"weir/internal/gateway/attempt"
	"weir/internal/gateway/prepare"
	"weir/internal/gateway/record"
	"weir/internal/infer"
	"weir/internal/model/tokenizer"
	"weir/internal/trace"
	"weir/models"
)

// BenchmarkInFlight shows the oldest hundred of 50,000 streams.
func BenchmarkInFlight(b *testing.B) {
	g := &Gateway{recorder: record.New(record.Options{}, nil, nil, nil), preparer: prepare.New(new(prepare.Options), 0, nil, nil, nil, nil)}
	defer g.preparer.Close()
	attempts := new(attempt.Attempts)
	for i := range 50000 {
		x := &exchange{g: g, endpoint: openai.Chat}
		x.stream.Record.Record = &trace.Record{RequestID: fmt.Sprint(i), Model: "m", Arrival: int64(i), Client: netip.MustParseAddr("10.0.0.1")}
		attempts.Open(&x.try, &x.stream, &x.prepared, &x.need)
		x.stream.Record.Publish(trace.Engine, int64(i))
		x.stream.Record.Driven()
		w := new(record.Wait)
		x.stream.Record.Awaits(w)
		w.Since.Store(int64(i))
		x.stream.Record.Known()
		x.prepared.Sent = i
		g.recorder.Enter(x)
	}
	b.ReportAllocs()
	for b.Loop() {
		if f := g.InFlight(record.Query{Stage: trace.NumStages, Limit: 100}); f.Total != 50000 || len(f.Requests) != 100 || f.Requests[7].Tokens != 7 {
			b.Fatal(f.Total, len(f.Requests))
		}
	}
}

// A request is seen where it is, from its arrival to its end, and its tokens are counted
// while it streams; none of that changes what its client gets.
func TestInFlight(t *testing.T) {
	engine := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{engine}, func(t *testing.T, b *bench) {
		look := func(what string, want trace.Stage, since time.Duration, tokens int) record.Underway {
			t.Helper()
			synctest.Wait()
			f := b.g.InFlight(record.Query{Stage: trace.NumStages})
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
		for _, q := range []record.Query{{Stage: trace.Queue}, {Stage: trace.NumStages, Model: "other"}, {Stage: trace.NumStages, Engine: "b"}} {
			if f := b.g.InFlight(q); f.Total != 1 || f.Matched != 0 || len(f.Requests) != 0 {
				t.Errorf("%+v finds %+v", q, f)
			}
		}
		call.end(infer.ReasonStop)
		if a := c.answer(); !a.whole || !strings.Contains(string(a.body), "[DONE]") {
			t.Errorf("%q", a.body)
		}
		if f := b.g.InFlight(record.Query{Stage: trace.NumStages}); f.Total != 0 {
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
				b.g.InFlight(record.Query{Stage: trace.NumStages})
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
