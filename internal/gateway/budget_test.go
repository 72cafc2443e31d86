package gateway

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/dialect/allow"
	"weir/internal/engine"
	"weir/internal/fleet/judge"
	"weir/internal/fleet/retry"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/internal/trace"
)

// refuseUnread is an accept that refuses before the engine can have begun.
func refuseUnread(code infer.Code) func(context.Context, *call) error {
	return func(_ context.Context, c *call) error {
		e := c.engine.fault(code, true)
		e.NotRun = true
		return e
	}
}

// judged gives each engine of the fleet a health, which must be done before anything is
// asked for.
func (b *bench) judged() *judge.Judge { return b.judgedBy(judge.Options{}) }

func (b *bench) judgedBy(o judge.Options) *judge.Judge {
	j := judge.New(o)
	for _, e := range b.snapshot.Load().Engines {
		e.Ranks[0].Health = j.Add(e.Name, -1, nil)
		e.Ranks[0].Health.Is(judge.Presence{Ready: true, Fresh: true, Serves: []string{"m"}})
	}
	return j
}

// Retries beyond the model's budget wait for their turns, and fail where those are too far
// off. Requests that do not fail wait for nothing.
func TestRetryBudget(t *testing.T) {
	a, z := &tokenEngine{name: "a", accept: refuse(infer.CodeEngine, true)}, &tokenEngine{name: "z"}
	inBubble(t, Options{}, []any{a, z}, func(t *testing.T, b *bench) {
		// Two at rest, and another one each 4 s.
		for _, m := range b.snapshot.Load().Models {
			m.Retries = retry.New(retry.Limits{Share: -1, Floor: 0.25}, trace.Now())
		}
		var callers []*caller
		for range 12 { // in turns, so that a has six of them
			callers = append(callers, b.post(chatPath, askStream(``)))
			synctest.Wait()
		}
		time.Sleep(retry.Jitter)
		synctest.Wait()
		if n := z.count(); n != 8 {
			t.Fatalf("at once %d of 8 are there", n)
		}
		time.Sleep(8 * time.Second)
		synctest.Wait()
		if n := z.count(); n != 10 {
			t.Errorf("after two more turns %d of 10 are there", n)
		}
		time.Sleep(retry.Patience)
		synctest.Wait()
		for _, c := range z.handed() {
			c.end(infer.ReasonStop, words()[0])
		}
		failed := 0
		for _, c := range callers {
			if r := b.record(c); r.Outcome == "failed" {
				failed++
				wantLegs(t, r, "a engine")
			}
		}
		if failed != 1 {
			t.Errorf("%d failed, want the one beyond all turns", failed)
		}
		if n := b.sum("weir_retries_total"); n != 5 {
			t.Errorf("%v retries", n)
		}
		if all := b.metric("weir_retries_refused_total"); len(all) != 1 || all[0].value != 1 || all[0].labels["why"] != "budget" {
			t.Errorf("refused %v", all)
		}
	})
}

// A client that hangs up while its retry waits is not served any more.
func TestHangUpBeforeRetry(t *testing.T) {
	a, z := &tokenEngine{name: "a", accept: refuse(infer.CodeEngine, true)}, &tokenEngine{name: "z"}
	inBubble(t, Options{}, []any{a, z}, func(t *testing.T, b *bench) {
		for _, m := range b.snapshot.Load().Models {
			m.Retries = retry.New(retry.Limits{Share: -1, Floor: 0.1}, trace.Now())
			m.Retries.Decide(trace.Now(), &retry.Failure{}, 0)
		}
		c := b.post(chatPath, askStream(``))
		synctest.Wait()
		c.conn.Close()
		b.wantRecord(c, "cancelled", "cancelled")
		time.Sleep(retry.Patience)
		z.call(t, 0)
	})
}

// A request that no engine has begun is offered to the others. A request that may end engines is
// offered to two of them.
func TestAttempts(t *testing.T) {
	for _, test := range []struct {
		name   string
		accept func(context.Context, *call) error
		begun  bool
	}{
		{"not begun", refuseUnread(infer.CodeUnavailable), false},
		{"begun", refuse(infer.CodeUnavailable, true), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var all []any
			for _, name := range []string{"a", "b", "c", "d", "e"} {
				all = append(all, &tokenEngine{name: name, accept: test.accept})
			}
			inBubble(t, Options{}, all, func(t *testing.T, b *bench) {
				r := b.record(b.post(chatPath, askStream(``)))
				want := retry.MaxAttempts
				if test.begun {
					want = retry.MaxBegun
				}
				legs := r.legs()
				slices.Sort(legs)
				if len(slices.Compact(legs)) != want {
					t.Errorf("attempts %q, want %d at one engine each", r.legs(), want)
				}
				for i, a := range r.Attempts {
					if repeated := i < want-1; a.Repeated != repeated || a.MayHaveRun != (repeated && test.begun) {
						t.Errorf("attempt %d: %+v", i, a)
					}
				}
				if begun := b.sum("weir_retries_begun_total"); begun != map[bool]float64{true: 1}[test.begun] {
					t.Errorf("%v were begun before", begun)
				}
			})
		})
	}
}

// Requests on a path that an operator has added may have unknown effects: they are repeated only if
// the engine cannot have begun them.
func TestEffectsAreNotRepeated(t *testing.T) {
	paths, err := allow.RelayPaths([]string{"/v1/things"})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, path string
		notRun     bool
		legs       []string
	}{
		{"an answer", chatPath, false, []string{"a engine", "z finished"}},
		{"an effect", "/v1/things", false, []string{"a engine"}},
		{"an effect, not begun", "/v1/things", true, []string{"a engine", "z finished"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, z := &relayEngine{name: "a"}, &relayEngine{name: "z"}
			a.reply = func(context.Context, *forward) (*engine.RelayResponse, error) {
				return nil, &infer.Error{Code: infer.CodeEngine, Engine: "a", Retryable: true, NotRun: test.notRun, Message: "lost"}
			}
			z.reply = func(_ context.Context, f *forward) (*engine.RelayResponse, error) {
				close(f.chunks)
				return f.response(http.StatusOK), nil
			}
			inBubble(t, Options{Prepare: prepare.Options{Allow: allow.Rules{Paths: paths}}}, []any{a, z}, func(t *testing.T, b *bench) {
				wantLegs(t, b.record(b.post(test.path, `{"model":"relayed"}`)), test.legs...)
			})
		})
	}
}

// An engine that says when it wants to be asked again is not asked before, and while all
// have said it the client is told when the first of them does.
func TestRetryAfterOfEngines(t *testing.T) {
	busy := func(after time.Duration) func(context.Context, *forward) (*engine.RelayResponse, error) {
		return func(_ context.Context, f *forward) (*engine.RelayResponse, error) {
			f.chunks <- []byte("full")
			close(f.chunks)
			resp := f.response(http.StatusServiceUnavailable, "Retry-After", "3")
			resp.RetryAfter = after
			return resp, nil
		}
	}
	well := func(_ context.Context, f *forward) (*engine.RelayResponse, error) {
		close(f.chunks)
		return f.response(http.StatusOK), nil
	}
	a, z := &relayEngine{name: "a"}, &relayEngine{name: "z"}
	inBubble(t, Options{}, []any{a, z}, func(t *testing.T, b *bench) {
		b.judged()
		a.reply, z.reply = busy(3*time.Second), well
		ask := func() *timed { return b.record(b.post(chatPath, `{"model":"relayed"}`)) }
		wantLegs(t, ask(), "a overloaded", "z finished")
		// A record is waited for, which takes a second.
		for range 2 {
			if r := ask(); !slices.Equal(r.legs(), []string{"z finished"}) {
				t.Errorf("attempts %q", r.legs())
			}
		}
		time.Sleep(time.Second)
		ask()
		if ask(); len(a.handed()) != 2 { // and says it again
			t.Errorf("it was asked %d times", len(a.handed()))
		}

		z.reply = busy(time.Minute)
		c := b.post(chatPath, `{"model":"relayed"}`)
		if got := c.answer(); got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") != "3" || string(got.body) != "full" {
			t.Errorf("the last one's refusal passes as it is: %d %v %q", got.status, got.header, got.body)
		}
		asked := len(a.handed()) + len(z.handed())
		c = b.post(chatPath, `{"model":"relayed"}`)
		e := c.refusal(http.StatusTooManyRequests)
		if wait := c.answer().header.Get("Retry-After"); wait == "" || wait == "60" || !strings.Contains(e.Message, "pause") {
			t.Errorf("Retry-After %q, %+v", wait, e)
		}
		if n := len(a.handed()) + len(z.handed()); n != asked {
			t.Errorf("they were asked %d times more", n-asked)
		}
		a.reply, z.reply = well, well
		time.Sleep(judge.MaxRest) // however long one wants
		for range 2 {
			if r := ask(); r.Outcome != "finished" {
				t.Errorf("%+v", r)
			}
		}
		if len(a.handed()) < 3 || len(z.handed()) < 5 {
			t.Errorf("asked %d and %d times", len(a.handed()), len(z.handed()))
		}
	})
}

// The refusal of an engine that takes ids reaches the client with the engine's own Retry-After.
func TestRetryAfterReachesTheClient(t *testing.T) {
	a := &tokenEngine{name: "a", accept: func(_ context.Context, c *call) error {
		e := c.engine.fault(infer.CodeOverloaded, true)
		e.NotRun, e.RetryAfter = true, 7*time.Second
		return e
	}}
	inBubble(t, Options{}, []any{a}, func(t *testing.T, b *bench) {
		b.judged()
		for _, want := range []string{"7", "7"} { // the second one does not get there
			c := b.post(chatPath, askStream(``))
			c.refusal(http.StatusTooManyRequests)
			if got := c.answer().header.Get("Retry-After"); got != want {
				t.Errorf("Retry-After %q, want %q", got, want)
			}
		}
		a.call(t, 1)
	})
}

// nobody is an engine whose connections are refused.
type nobody struct{}

func (nobody) Run(context.Context, func(engine.State)) {}
func (nobody) Generates() bool                         { return false }
func (nobody) Probe(context.Context, engine.Probe) error {
	return fmt.Errorf("probe: %w", syscall.ECONNREFUSED)
}

// Where all engines are out a client is told to come back when the first of them is probed
// next, in every dialect; where one is not connected, when it is looked for next.
func TestRetryAfterOfNobody(t *testing.T) {
	a := &tokenEngine{name: "a", accept: func(_ context.Context, c *call) error {
		e := c.engine.fault(infer.CodeUnavailable, true)
		e.NotRun, e.Cause = true, syscall.ECONNREFUSED
		return e
	}}
	inBubble(t, Options{}, []any{a}, func(t *testing.T, b *bench) {
		j := b.judged()
		for _, m := range b.snapshot.Load().Models {
			m.Settled = true
		}
		rank := b.snapshot.Load().Engines[0].Ranks[0].Health
		rank.Is(judge.Presence{Ready: true, Serves: []string{"m"}, Prober: nobody{}})
		ctx, stop := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { j.Run(ctx) })
		b.post(chatPath, askStream(``)).refusal(http.StatusServiceUnavailable)
		time.Sleep(time.Second)
		told := map[string]bool{}
		for range 40 { // over several probes, the one later than the other
			synctest.Wait()
			next := rank.View().Next
			want := strconv.Itoa(int(max(1, math.Ceil(next.Seconds()))))
			for path, body := range map[string]string{chatPath: askStream(``), "/v1/messages": `{"model":"weir-sim","max_tokens":5,"messages":[{"role":"user","content":"x"}]}`} {
				c := b.post(path, body)
				if got := c.answer().header.Get("Retry-After"); next <= 0 || got != want {
					t.Fatalf("%s: %d %s: Retry-After %q, and it is probed in %v", path, c.answer().status, c.answer().body, got, next)
				}
				told[want] = true
			}
			time.Sleep(410 * time.Millisecond)
		}
		if len(told) < 2 {
			t.Errorf("told %v", told)
		}
		for _, m := range b.snapshot.Load().Models {
			m.Awaited = true
		}
		last := b.post(chatPath, askStream(``))
		if got := last.answer().header.Get("Retry-After"); got != "1" && got != "2" {
			t.Errorf("of one that is not connected: %q", got)
		}
		stop()
		run.Wait()
	})
}
