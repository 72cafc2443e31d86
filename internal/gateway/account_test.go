package gateway

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"weir/internal/engine"
	"weir/internal/gateway/attempt"
	"weir/internal/gateway/front"
	"weir/internal/infer"
)

// errand is one request of a random mix: what is asked, and what becomes of it.
type errand struct {
	kind   string
	stream bool
	delay  time.Duration // of its sending
	leaves time.Duration // when the client hangs up, 0 for never
}

// The behaviour of an engine, or a client, for each kind of errand.
var errandKinds = []string{
	"finish", "fail", "break", "silent", "refuse", "miscount", "panic", "unread",
	"bad json", "no model", "no body", "relay", "relay cut", "relay status",
}

// For any crowd of requests and any of their fates: each ends once, and records, metrics and gate
// agree (newBench's end checks that).
func TestAccounts(t *testing.T) {
	words()
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		errands := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) errand {
			return errand{
				kind:   rapid.SampledFrom(errandKinds).Draw(rt, "kind"),
				stream: rapid.Bool().Draw(rt, "stream"),
				delay:  time.Duration(rapid.IntRange(0, 20).Draw(rt, "delay")) * 100 * time.Millisecond,
				leaves: time.Duration(rapid.SampledFrom([]int{0, 0, 0, 1, 50, 600}).Draw(rt, "leaves")) * 20 * time.Millisecond,
			}
		}), 1, 12).Draw(rt, "errands")
		way := rapid.SampledFrom(ways).Draw(rt, "way")
		limit := rapid.SampledFrom([]int{0, 0, 3}).Draw(rt, "limit")
		var err error
		synctest.Test(t, func(t *testing.T) { err = runErrands(t, dir, way, limit, errands) })
		if err != nil {
			rt.Fatal(err)
		}
	})
}

func runErrands(t *testing.T, dir string, way way, limit int, errands []errand) error {
	a, z := &tokenEngine{name: "a", accept: playErrand}, &tokenEngine{name: "z", accept: playErrand}
	r, s := &relayEngine{name: "r", reply: playRelayErrand}, &relayEngine{name: "s", reply: playRelayErrand}
	opts := Options{Attempt: attempt.Options{IdleTimeout: 5 * time.Second, FirstTimeout: 5 * time.Second}, Front: front.Options{BodyTimeout: time.Second, WriteTimeout: time.Second}}
	opts.Prepare.Limits.Requests = limit
	b := newBench(t, dir, opts, []any{a, z, r, s}, way)
	defer b.end()
	var hangUps []*time.Timer
	for _, e := range errands {
		time.Sleep(e.delay)
		window := 0
		if e.kind == "unread" {
			window = 64
		}
		c := b.dial(window)
		body := e.body()
		switch e.kind {
		case "no body":
			c.head("POST", chatPath, len(body)+10)
			c.write(body)
		default:
			c.head("POST", chatPath, len(body))
			c.write(body)
		}
		if e.leaves > 0 {
			hangUps = append(hangUps, time.AfterFunc(e.leaves, func() { c.conn.Close() }))
		}
	}
	time.Sleep(time.Minute) // longer than any of the bounds
	synctest.Wait()
	if n := b.g.Live(); n != 0 {
		return fmt.Errorf("%d requests are live after every bound has passed", n)
	}
	for _, timer := range hangUps {
		timer.Stop()
	}
	if got, want := b.sum("weir_requests_total"), float64(len(errands)); got != want {
		return fmt.Errorf("%v requests ended, %v were sent", got, want)
	}
	return nil
}

// body tells the engine, by its seed, what to do.
func (e *errand) body() string {
	seed := 0
	for i, k := range errandKinds {
		if k == e.kind {
			seed = i
		}
	}
	fields := fmt.Sprintf(`,"seed":%d,"max_tokens":50,"stream":%v`, seed, e.stream)
	switch {
	case e.kind == "bad json":
		return "{"
	case e.kind == "no model":
		return `{"model":"none","messages":[]}`
	case strings.HasPrefix(e.kind, "relay"):
		return fmt.Sprintf(`{"model":"relayed","seed":%d,"stream":%v}`, seed, e.stream)
	}
	return askChat(fields)
}

// playErrand is a token engine's part.
func playErrand(_ context.Context, c *call) error {
	w := words()
	kind := errandKinds[*c.req.Sampling.Seed]
	switch kind {
	case "refuse":
		return c.engine.fault(infer.CodeOverloaded, true)
	case "panic":
		panic("scripted panic")
	case "silent":
		return nil
	}
	go func() {
		for i := range 10 {
			time.Sleep(50 * time.Millisecond)
			c.offer(w[i:i+1], nil)
		}
		switch kind {
		case "finish", "unread":
			c.offer(nil, ending(infer.ReasonStop))
		case "fail", "break":
			f := ending(infer.ReasonError)
			f.Err = c.engine.fault(infer.CodeEngine, kind == "fail")
			c.offer(nil, f)
		case "miscount":
			c.raw(nil, 3, nil)
		}
	}()
	return nil
}

// playRelayErrand is a relay's part.
func playRelayErrand(_ context.Context, f *forward) (*engine.RelayResponse, error) {
	switch {
	case strings.Contains(string(f.req.Body), fmt.Sprintf(`"seed":%d,`, len(errandKinds)-1)):
		close(f.chunks)
		return f.response(http.StatusTooManyRequests, "Retry-After", "1"), nil
	case strings.Contains(string(f.req.Body), fmt.Sprintf(`"seed":%d,`, len(errandKinds)-2)):
		f.chunks <- []byte(relayToken)
		close(f.chunks)
		return f.events(), nil
	}
	go func() {
		time.Sleep(50 * time.Millisecond)
		f.chunks <- []byte(relayToken)
		f.chunks <- []byte(relayEnd)
		close(f.chunks)
	}()
	return f.events(), nil
}

// While a stream lives, of its prompt nothing is held but the ids.
func TestPromptsAreNotHeld(t *testing.T) {
	e := &tokenEngine{name: "a"}
	const streams, size = 8, 4 << 20
	body := askStream(`,"user":"` + strings.Repeat("x", size) + `"`)
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		heap := func() int64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.GC() // a second time for what sync.Pool keeps for one
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		before := heap()
		var callers []*caller
		for i := range streams {
			c := b.post(chatPath, body)
			e.call(t, i+1).send(words()[0])
			callers = append(callers, c)
		}
		if held := heap() - before; held > size {
			t.Errorf("%d streams with prompts of %d bytes hold %d", streams, size, held)
		}
		for i, c := range callers {
			e.handed()[i].end(infer.ReasonStop)
			c.wantWhole(text(words()[0]), "stop")
		}
	})
}

// A request that was taken in for a relay goes to a token engine that takes the model over
// meanwhile: it is prepared again, and counted once.
func TestModelChangesKind(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, nil, func(t *testing.T, b *bench) {
		e.calls = nil
		snap := *b.snapshot.Load()
		model := *snap.Models["relayed"]
		model.Name = "weir-sim"
		snap.Models["weir-sim"] = &model
		b.snapshot.Store(&snap)
		c := b.post(chatPath, askStream(``))
		b.publish(e)
		synctest.Wait()
		e.call(t, 1).end(infer.ReasonStop, words()[0])
		c.wantWhole(text(words()[0]), "stop")
		b.wantRecord(c, "finished", "")
	})
}
