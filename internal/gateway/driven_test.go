package gateway

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// A driven stream misses nothing, whenever in a turn, between two, or while the
// client's socket is full its engine sends something: a turn that was missed
// would leave it waiting for ever. Wake-ups for nothing do no harm.
func TestDrivenInterleavings(t *testing.T) {
	words()
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		window := rapid.SampledFrom([]int{0, 0, 64, 400}).Draw(rt, "window")
		acts := rapid.SliceOfN(rapid.SampledFrom([]string{"send", "send in the turn", "send unseen", "half", "wake", "read", "tick"}), 0, 30).Draw(rt, "acts")
		endInTurn := rapid.Bool().Draw(rt, "endInTurn")
		var got, want string
		var whole bool
		synctest.Test(t, func(t *testing.T) {
			r := &relayEngine{name: "r"}
			b := newBench(t, dir, Options{}, []any{r}, wayPolled)
			defer b.end()
			c := b.dial(window)
			c.send("POST", chatPath, relayBody)
			f := r.forward(t, 1)
			send := func(s string, notified bool) {
				want += s
				f.put(s, notified)
			}
			send(relayToken, true) // with it the stream leaves net/http
			synctest.Wait()
			cut := ""
			for _, act := range acts {
				event := relayToken[len(cut):]
				switch act {
				case "send":
					send(event, true)
					cut = ""
				case "send in the turn":
					synctest.Wait()
					f.onEmpty = func() { send(event, true) }
					f.notify()
					synctest.Wait()
					if f.onEmpty != nil { // the stream is held up by its client
						f.onEmpty = nil
						send(event, true)
					}
					cut = ""
				case "send unseen": // the edge comes with what follows
					send(event, false)
					cut = ""
				case "half":
					if cut == "" {
						cut = relayToken[:30]
						send(cut, true)
					}
				case "wake":
					f.notify()
				case "read":
					c.answer()
				case "tick":
					time.Sleep(time.Millisecond)
				}
			}
			end := relayEnd
			if cut != "" {
				end = relayToken[len(cut):] + relayEnd
			}
			finish := func() {
				want += end
				f.put(end, false)
				f.close()
			}
			synctest.Wait()
			f.onEmpty = nil
			if endInTurn && window == 0 {
				f.onEmpty = finish
				f.notify()
				synctest.Wait()
			}
			if f.onEmpty != nil || !endInTurn || window != 0 { // no read found nothing
				f.onEmpty = nil
				finish()
			}
			for before := -1; len(c.raw) > before; { // until nothing more comes
				before = len(c.raw)
				c.answer()
			}
			a := c.answer()
			got, whole = string(a.body), a.whole
		})
		if got != want || !whole {
			rt.Fatalf("whole %v, the client has %d bytes of %d, from %q on", whole, len(got), len(want), want[min(len(got), len(want)):])
		}
	})
}

// A driven stream whose engine leaves the answer open after the end marker is
// ended as TestRelayLeftOpenAfterDone has it.
func TestDrivenLeftOpenAfterDone(t *testing.T) {
	words()
	for _, test := range []struct {
		name  string
		play  func(f *forward)
		whole time.Duration // 0: never
	}{
		{"says nothing more", func(*forward) {}, time.Second},
		{"ends it later", func(f *forward) {
			time.Sleep(300 * time.Millisecond)
			f.close()
		}, 300 * time.Millisecond},
		{"goes on with comments", func(f *forward) {
			for range 4 {
				time.Sleep(400 * time.Millisecond)
				f.put(": ping\n\n", true)
				synctest.Wait()
			}
		}, 1200 * time.Millisecond},
		{"goes on with an event", func(f *forward) { f.put(relayToken, true) }, 0},
		{"begins an event", func(f *forward) { f.put("data: ", true) }, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				r := &relayEngine{name: "r"}
				b := newBench(t, dir, Options{}, []any{r}, wayPolled)
				defer b.end()
				c := b.post(chatPath, relayBody)
				f := r.forward(t, 1)
				f.put(relayToken, true)
				synctest.Wait()
				f.put(relayEnd, true)
				synctest.Wait()
				done := time.Now()
				test.play(f)
				time.Sleep(2 * time.Second)
				a := c.answer()
				if test.whole == 0 {
					if a.whole || !a.closed || !strings.Contains(string(a.body), `data: {"error":`) {
						t.Errorf("whole %v, closed %v, %q", a.whole, a.closed, a.body)
					}
					b.record(c)
					return
				}
				if !a.whole || !strings.HasPrefix(string(a.body), relayToken+relayEnd) {
					t.Fatalf("whole %v, closed %v, %q", a.whole, a.closed, a.body)
				}
				if !f.abandoned() {
					t.Fatal("the engine's answer was left open")
				}
				within(t, "the end", f.closedAt.Sub(done), test.whole, test.whole)
				b.wantRecord(c, "finished", "")
			})
		})
	}
}
