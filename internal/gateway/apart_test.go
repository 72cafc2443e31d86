package gateway

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"weir/internal/engine"
)

// The parts of a request are used for later ones. Nothing of an earlier one may be seen through
// them: each request reaches its engine with its own fields and body, has its own answer and
// record, and what an engine has kept of it does not change when others follow, in any order of
// connections, and whether answers are short, leave, break off or are refusals.
func TestRequestsStayApart(t *testing.T) {
	r := &relayEngine{name: "r"}
	inWays(t, []way{wayPolled, wayKept}, Options{}, []any{r}, func(t *testing.T, b *bench) {
		type sent struct {
			c             *caller
			id, mine, end string
			f             *forward
		}
		var kept []sent
		random := rand.New(rand.NewPCG(1, 2))
		r.reply = func(_ context.Context, f *forward) (*engine.RelayResponse, error) {
			return f.response(http.StatusOK, "Content-Type", "text/event-stream", "X-Ratelimit-Mine", f.req.Header.Get("X-Mine")), nil
		}
		idle := []*caller{b.dial(0), b.dial(0), b.dial(0), b.dial(0)}
		var waits []sent
		finish := func(s sent) {
			a := s.c.answer()
			if got := a.header.Get("X-Ratelimit-Mine"); got != s.mine || a.header.Get("X-Request-Id") != s.id {
				t.Fatalf("request %q has the answer of %q, id %q", s.mine, got, a.header.Get("X-Request-Id"))
			}
			if want := relayToken + eventOf(s.mine) + relayEnd; s.end == "" && (string(a.body) != want || !a.whole) {
				t.Fatalf("request %q: whole %v, body %q", s.mine, a.whole, a.body)
			}
			if a.closed {
				s.c = b.dial(0)
			}
			idle, kept = append(idle, s.c), append(kept, s)
		}
		for n := range 60 {
			if len(idle) == 0 || len(waits) > 0 && random.IntN(2) == 0 {
				i := random.IntN(len(waits))
				s := waits[i]
				waits = append(waits[:i], waits[i+1:]...)
				if s.end == "cut" {
					s.f.fail(false)
				} else {
					s.f.send(eventOf(s.mine), relayEnd)
					s.f.end()
				}
				finish(s)
				continue
			}
			s := sent{c: idle[0], mine: fmt.Sprint("mine-", n)}
			idle = idle[1:]
			if random.IntN(4) == 0 {
				s.c.send("POST", chatPath, `{"model":7}`, "X-Mine", s.mine)
				if a := s.c.answer(); a.status != 400 || a.header.Get("X-Request-Id") != s.c.id {
					t.Fatalf("status %d, headers %v", a.status, a.header)
				}
				idle = append(idle, s.c)
				continue
			}
			before := len(r.handed())
			s.c.send("POST", chatPath, relayBody, "X-Mine", s.mine, fmt.Sprint("X-Only-", n), "x")
			s.id, s.f = s.c.id, r.forward(t, before+1)
			switch random.IntN(3) {
			case 0: // short
				s.f.chunks <- []byte(relayToken)
				s.f.chunks <- []byte(eventOf(s.mine) + relayEnd)
				s.f.end()
				finish(s)
				continue
			case 1:
				s.end = "cut"
			}
			s.f.send(relayToken)
			waits = append(waits, s)
		}
		synctest.Wait()
		for _, s := range kept {
			only := 0
			for name := range s.f.req.Header {
				if len(name) > 7 && name[:7] == "X-Only-" {
					only++
				}
			}
			if got := s.f.req.Header.Get("X-Mine"); got != s.mine || only != 1 {
				t.Errorf("the engine has %q and %d fields of others for request %q", got, only-1, s.mine)
			}
		}
		for _, s := range waits {
			s.f.send(eventOf(s.mine), relayEnd)
			s.f.end()
		}
		ids := map[string]bool{}
		for _, rec := range b.records() {
			if ids[rec.ID] {
				t.Errorf("two records of %s", rec.ID)
			}
			ids[rec.ID] = true
		}
	})
}

// eventOf is an event of a chat's stream with a text.
func eventOf(text string) string { return strings.Replace(relayToken, `"a"`, `"`+text+`"`, 1) }
