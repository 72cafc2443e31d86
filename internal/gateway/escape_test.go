package gateway

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/dialect/allow"
	"weir/internal/engine"
	"weir/internal/fleet/health"
	"weir/internal/fleet/judge"
	"weir/internal/fleet/retry"
	"weir/internal/gateway/attempt"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/internal/trace"
)

// deaf is an engine that answers no probe.
type deaf struct{}

func (deaf) Run(context.Context, func(engine.State)) {}
func (deaf) Generates() bool                         { return true }
func (deaf) Probe(ctx context.Context, _ engine.Probe) error {
	<-ctx.Done()
	return ctx.Err()
}

// failing has the first engine answer no probe from now on, and judges it until end is called.
func (b *bench) failing(t *testing.T) (first *judge.Rank, end func()) {
	j := b.judged()
	first = b.snapshot.Load().Engines[0].Ranks[0].Health
	first.Is(judge.Presence{Ready: true, Serves: []string{"m"}, Prober: deaf{}})
	ctx, stop := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { j.Run(ctx) })
	return first, func() { stop(); run.Wait() }
}

// untilDown waits until an engine is down, which is a minute after it was suspected where its
// work cannot be predicted. Until then no request has gone elsewhere.
func untilDown(t *testing.T, r *judge.Rank, elsewhere func() int) {
	t.Helper()
	for range 180 {
		synctest.Wait()
		if r.View().State == health.Down {
			return
		}
		if n := elsewhere(); n != 0 {
			t.Fatalf("%d attempts elsewhere, and the first engine is %+v", n, r.View())
		}
		time.Sleep(time.Second)
	}
	t.Fatalf("it is %+v", r.View())
}

// headless is a reply that never comes.
func headless(ctx context.Context, f *forward) (*engine.RelayResponse, error) {
	<-ctx.Done()
	return nil, &infer.Error{Code: infer.CodeEngine, Engine: f.engine.name, Retryable: true, Message: "the connection was closed", Cause: context.Cause(ctx)}
}

// A request leaves the engine that goes down while it waits there, wherever it is in it: it
// is aborted there first, and then goes to another one, once.
func TestEscape(t *testing.T) {
	for _, test := range []struct {
		name   string
		relay  func(context.Context, *forward) (*engine.RelayResponse, error)
		accept func(context.Context, *call) error
		token  bool
		body   string
		some   int // tokens that come before, of an answer that is not streamed
	}{
		{"ids, confirmed", nil, nil, true, askStream(``), 0},
		{"ids, not confirmed", nil, never, true, askStream(``), 0},
		{"ids, several choices, not confirmed", nil, never, true, askChat(`,"n":3`), 0},
		{"ids, some of an answer that is not streamed", nil, nil, true, askChat(``), 3},
		{"relay, no head", headless, nil, false, `{"model":"relayed"}`, 0},
		{"relay, a head and no body", nil, nil, false, `{"model":"relayed"}`, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, z := &tokenEngine{name: "a", accept: test.accept}, &tokenEngine{name: "z"}
			ra, rz := &relayEngine{name: "a", reply: test.relay}, &relayEngine{name: "z"}
			rz.reply = func(_ context.Context, f *forward) (*engine.RelayResponse, error) {
				close(f.chunks)
				return f.response(http.StatusOK), nil
			}
			engines := []any{ra, rz}
			if test.token {
				engines = []any{a, z}
			}
			inBubble(t, Options{Attempt: attempt.Options{SubmitTimeout: time.Hour, FirstTimeout: time.Hour}}, engines, func(t *testing.T, b *bench) {
				first, end := b.failing(t)
				defer end()
				c := b.post(chatPath, test.body)
				if test.some > 0 {
					a.call(t, 1).offer(words()[:test.some], nil)
				}
				elsewhere := func() int { return z.count() + len(rz.handed()) }
				untilDown(t, first, elsewhere)
				time.Sleep(retry.AbortGrace)
				synctest.Wait()
				switch {
				case !test.token && len(rz.handed()) == 1:
					if ra.handed()[0].ctx.Err() == nil {
						t.Error("the first attempt was not ended")
					}
				case !test.token:
					t.Fatalf("%d attempts elsewhere", len(rz.handed()))
				case z.count() == 0:
					t.Fatal("no attempt elsewhere")
				default:
					for _, call := range a.handed() {
						if !call.aborted() {
							t.Error("the first attempt was not aborted")
						}
					}
					for _, call := range z.handed() {
						call.end(infer.ReasonStop, words()[0])
					}
				}
				if got := c.answer(); got.status != http.StatusOK {
					t.Errorf("%d %s", got.status, got.body)
				}
				r := b.wantRecord(c, "finished", "")
				wantLegs(t, r, "a deadline", "z finished")
				if n, begun := b.sum("weir_retries_total"), b.sum("weir_retries_begun_total"); n != 1 || begun != 1 {
					t.Errorf("%v retries, %v begun", n, begun)
				}
			})
		})
	}
}

// A request stays at an engine that goes down where it must not be repeated, and has the
// engine's answer if that goes on.
func TestNoEscape(t *testing.T) {
	paths, err := allow.RelayPaths([]string{"/v1/things"})
	if err != nil {
		t.Fatal(err)
	}
	stays := func(t *testing.T, b *bench, c *caller, down *judge.Rank, others func() int, answer func()) {
		t.Helper()
		untilDown(t, down, others)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := others(); n != 0 {
			t.Errorf("%d attempts elsewhere", n)
		}
		answer()
		if got := c.answer(); got.status != http.StatusOK {
			t.Errorf("%d %s", got.status, got.body)
		}
		wantLegs(t, b.wantRecord(c, "finished", ""), "a finished")
		if n := b.sum("weir_retries_total"); n != 0 {
			t.Errorf("%v retries", n)
		}
	}
	t.Run("an effect", func(t *testing.T) {
		a, z := &relayEngine{name: "a"}, &relayEngine{name: "z"}
		goOn := make(chan struct{})
		a.reply = func(_ context.Context, f *forward) (*engine.RelayResponse, error) {
			<-goOn
			close(f.chunks)
			return f.response(http.StatusOK), nil
		}
		inBubble(t, Options{Prepare: prepare.Options{Allow: allow.Rules{Paths: paths}}}, []any{a, z}, func(t *testing.T, b *bench) {
			goOn = make(chan struct{}) // of this bubble
			first, end := b.failing(t)
			defer end()
			stays(t, b, b.post("/v1/things", `{"model":"relayed"}`), first, func() int { return len(z.handed()) }, func() { close(goOn) })
		})
	})
	t.Run("the budget is spent", func(t *testing.T) {
		a, z := &tokenEngine{name: "a"}, &tokenEngine{name: "z"}
		inBubble(t, Options{}, []any{a, z}, func(t *testing.T, b *bench) {
			for _, m := range b.snapshot.Load().Models {
				m.Retries = retry.New(retry.Limits{Share: -1, Floor: -1}, trace.Now())
			}
			first, end := b.failing(t)
			defer end()
			stays(t, b, b.post(chatPath, askStream(``)), first, z.count, func() { a.call(t, 1).end(infer.ReasonStop, words()[0]) })
		})
	})
	t.Run("its client has some of the answer", func(t *testing.T) {
		a, z := &tokenEngine{name: "a"}, &tokenEngine{name: "z"}
		inBubble(t, Options{Attempt: attempt.Options{Continue: attempt.Continuing{Off: true}}}, []any{a, z}, func(t *testing.T, b *bench) {
			first, end := b.failing(t)
			defer end()
			c := b.post(chatPath, askStream(``))
			a.call(t, 1).send(words()[0])
			stays(t, b, c, first, z.count, func() { a.call(t, 1).end(infer.ReasonStop, words()[1]) })
			c.wantWhole(text(words()[:2]...), "stop")
		})
	})
}
