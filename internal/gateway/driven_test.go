package gateway

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"weir/internal/engine"
)

// scriptedPolls is a poller over no sockets: the test says what is ready.
type scriptedPolls struct {
	mu    sync.Mutex
	ready map[int]func(w *worker, hup bool)
	next  int
}

func (p *scriptedPolls) poll(fd int, ready func(w *worker, hup bool)) (stop func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready[fd] = ready
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.ready, fd)
	}, nil
}

func (p *scriptedPolls) close() {}

// notify says that something came in on a descriptor, if somebody polls it.
func (p *scriptedPolls) notify(fd int, hup bool) {
	p.mu.Lock()
	ready := p.ready[fd]
	p.mu.Unlock()
	if ready != nil {
		ready(new(worker), hup)
	}
}

// scriptedAnswer is a forward whose answer is polled.
type scriptedAnswer struct {
	*forward
	polls *scriptedPolls
	fd    int
	// onEmpty runs in a read that finds nothing, before that is known: what
	// happens then is as late in a turn as it can be.
	onEmpty func()
}

// Detach implements engine.Polled.
func (f *scriptedAnswer) Detach() (fd int, ok bool) { return f.fd, true }

// TryRead implements engine.Polled.
func (f *scriptedAnswer) TryRead(p []byte) (n int, drained bool, err error) {
	if len(f.rest) == 0 {
		select {
		case chunk, ok := <-f.chunks:
			if !ok {
				return 0, false, io.EOF
			}
			f.rest = chunk
		default:
			if do := f.onEmpty; do != nil {
				f.onEmpty = nil
				do()
			}
			return 0, true, nil
		}
	}
	n = copy(p, f.rest)
	f.rest = f.rest[n:]
	return n, false, nil
}

// put sends bytes; notified says that the poller learns of them now.
func (f *scriptedAnswer) put(s string, notified bool) {
	f.chunks <- []byte(s)
	if notified {
		f.polls.notify(f.fd, false)
	}
}

// polledEngine is a relay whose answers are polled by p.
func polledEngine(p *scriptedPolls, made *[]*scriptedAnswer) *relayEngine {
	return &relayEngine{name: "r", reply: func(_ context.Context, f *forward) (*engine.RelayResponse, error) {
		resp := f.events()
		p.mu.Lock()
		p.next++
		own := &scriptedAnswer{forward: f, polls: p, fd: p.next}
		p.mu.Unlock()
		*made = append(*made, own)
		resp.Body = own
		return resp, nil
	}}
}

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
			polls := &scriptedPolls{ready: map[int]func(*worker, bool){}}
			var made []*scriptedAnswer
			r := polledEngine(polls, &made)
			b := newBench(t, dir, Options{}, []any{r}, wayBare)
			defer b.end()
			b.g.polls = polls
			c := b.dial(window)
			c.send("POST", chatPath, relayBody)
			r.forward(t, 1)
			f := made[0]
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
					polls.notify(f.fd, false)
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
					polls.notify(f.fd, false)
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
				f.chunks <- []byte(end)
				close(f.chunks)
				polls.notify(f.fd, true)
			}
			synctest.Wait()
			f.onEmpty = nil
			if endInTurn && window == 0 {
				f.onEmpty = finish
				polls.notify(f.fd, false)
			} else {
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
		play  func(f *scriptedAnswer)
		whole time.Duration // 0: never
	}{
		{"says nothing more", func(*scriptedAnswer) {}, time.Second},
		{"ends it later", func(f *scriptedAnswer) {
			time.Sleep(300 * time.Millisecond)
			close(f.chunks)
			f.polls.notify(f.fd, true)
		}, 300 * time.Millisecond},
		{"goes on with comments", func(f *scriptedAnswer) {
			for range 4 {
				time.Sleep(400 * time.Millisecond)
				f.put(": ping\n\n", true)
				synctest.Wait()
			}
		}, 1200 * time.Millisecond},
		{"goes on with an event", func(f *scriptedAnswer) { f.put(relayToken, true) }, 0},
		{"begins an event", func(f *scriptedAnswer) { f.put("data: ", true) }, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				polls := &scriptedPolls{ready: map[int]func(*worker, bool){}}
				var made []*scriptedAnswer
				r := polledEngine(polls, &made)
				b := newBench(t, dir, Options{}, []any{r}, wayBare)
				defer b.end()
				b.g.polls = polls
				c := b.post(chatPath, relayBody)
				r.forward(t, 1)
				f := made[0]
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
