package gateway

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/fleet/judge"
	"weir/internal/gateway/attempt"
	"weir/internal/gateway/front"
	"weir/internal/infer"
)

// goingOn plays two engines that give each of their requests an id a second, except one.
type goingOn struct {
	b     *bench
	both  [2]*tokenEngine
	still *call
	given map[*call]int
}

// seconds lets n seconds pass. If requests come, each engine gets a new one every third second.
func (s *goingOn) seconds(n int, come bool) {
	for i := range n {
		if come && i%3 == 0 {
			s.b.post(chatPath, askStream(``))
			s.b.post(chatPath, askStream(``))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		for _, e := range s.both {
			for _, c := range e.handed() {
				if c != s.still && !c.aborted() {
					c.send(words()[s.given[c]%9])
					s.given[c]++
				}
			}
		}
	}
}

// end ends all requests.
func (s *goingOn) end() {
	for _, e := range s.both {
		for _, c := range e.handed() {
			if !c.aborted() {
				c.end(infer.ReasonStop, words()[9])
			}
		}
	}
}

// A stream that gets nothing from an engine that goes on with others goes on at another engine
// when its time has come. It stays where the engine may have a reason, or where nothing
// shows that it has none.
func TestStalledStream(t *testing.T) {
	for _, test := range []struct {
		name, fields string
		stall        time.Duration
		had          int  // ids before it stands still
		come         bool // requests
		window       int  // of its client, which does not read beyond it
		goes         bool
	}{
		{"a stream", `,"stream":true`, 20 * time.Second, 3, true, 0, true},
		{"not streamed", ``, 20 * time.Second, 3, true, 0, true},
		{"only its client does not read", `,"stream":true`, 20 * time.Second, 3, true, 300, false},
		{"no first token yet", `,"stream":true`, 20 * time.Second, 0, true, 0, false},
		{"the engine begins nothing new", `,"stream":true`, 20 * time.Second, 3, false, 0, false},
		{"it may not be continued", `,"stream":true,"seed":7`, 20 * time.Second, 3, true, 0, false},
		{"switched off", `,"stream":true`, 0, 3, true, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, z := &tokenEngine{name: "a"}, &tokenEngine{name: "z"}
			inBubble(t, Options{Attempt: attempt.Options{IdleTimeout: time.Hour, FirstTimeout: time.Hour}, Front: front.Options{WriteTimeout: time.Hour}}, []any{a, z}, func(t *testing.T, b *bench) {
				j := b.judgedBy(judge.Options{Stall: test.stall})
				ctx, stop := context.WithCancel(t.Context())
				var run sync.WaitGroup
				run.Go(func() { j.Run(ctx) })
				defer run.Wait()
				defer stop()

				c := b.dial(test.window)
				c.send("POST", chatPath, askChat(test.fields))
				one := a.call(t, 1)
				for _, id := range words()[:test.had] {
					one.send(id)
				}
				for range 6 {
					b.post(chatPath, askStream(``))
				}
				s := &goingOn{b, [2]*tokenEngine{a, z}, one, map[*call]int{}}
				if test.window > 0 {
					s.still = nil
				}
				s.seconds(20, test.come)
				if one.aborted() {
					t.Fatal("it has left too early")
				}
				s.seconds(12, test.come)
				if one.aborted() != test.goes {
					t.Fatalf("it has left: %v", one.aborted())
				}
				if !test.goes {
					s.seconds(60, test.come)
				}
				s.end()
				got := c.answer()
				for range 200 { // as much as its window at a time
					if got.whole {
						break
					}
					got = c.answer()
				}
				if want := text(words()[:test.had]...); !strings.Contains(c.part(), want) && test.window == 0 && strings.Contains(test.fields, `"stream"`) {
					t.Errorf("%d %s, want %q in it", got.status, got.body, want)
				}
				if n := b.sum("weir_continuations_total") + b.sum("weir_retries_total"); (n == 1) != test.goes || n > 1 {
					t.Errorf("%v went elsewhere", n)
				}
				if test.goes {
					wantLegs(t, b.wantRecord(c, "finished", ""), "a deadline", "z finished")
				} else {
					wantLegs(t, b.wantRecord(c, "finished", ""), "a finished")
				}
			})
		})
	}
}
