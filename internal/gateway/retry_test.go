package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"weir/internal/gateway/attempt"
	"weir/internal/gateway/drive"
	"weir/internal/infer"
)

func wantLegs(t testing.TB, r *timed, want ...string) {
	t.Helper()
	if got := r.legs(); !slices.Equal(got, want) {
		t.Errorf("attempts %q, want %q", got, want)
	}
}

// While nothing has reached the client, a failure that another engine may not
// share sends the request there; the client sees only the second one's answer.
func TestRetriesElsewhere(t *testing.T) {
	for _, test := range []struct {
		name   string
		stream bool
		accept func(context.Context, *call) error
		play   func(c *call)
		leg    string
	}{
		{"refused", true, refuse(infer.CodeOverloaded, true), nil, "a overloaded"},
		{"cannot be reached", true, refuse(infer.CodeUnavailable, true), nil, "a unavailable"},
		{"failed before the first token", true, nil,
			func(c *call) { c.fail(infer.CodeEngine, true) }, "a engine"},
		{"failed in the delta of the first token", true, nil,
			func(c *call) { c.fail(infer.CodeEngine, true, words()[7]) }, "a engine"},
		{"not streamed, failed after tokens", false, nil,
			func(c *call) { c.send(words()[8:12]...); c.fail(infer.CodeEngine, true, words()[7]) }, "a engine"},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, z := &tokenEngine{name: "a", accept: test.accept}, &tokenEngine{name: "z"}
			inBubble(t, Options{}, []any{a, z}, func(t *testing.T, b *bench) {
				body := askChat(``)
				if test.stream {
					body = askStream(``)
				}
				c := b.post(chatPath, body)
				first := a.call(t, 1)
				if test.play != nil {
					test.play(first)
				}
				second := z.call(t, 1)
				if first.req.ID == second.req.ID || len(first.req.ID) != len(second.req.ID) {
					t.Errorf("attempts named %q and %q: want distinct ids of one length", first.req.ID, second.req.ID)
				}
				// Further output of the abandoned engine reaches nobody.
				first.offer(words()[20:22], nil)
				second.send(words()[0])
				first.offer(words()[22:24], ending(infer.ReasonStop))
				second.end(infer.ReasonStop, words()[1])
				want := text(words()[:2]...)
				if test.stream {
					c.wantWhole(want, "stop")
				} else if o := c.whole(); o.Choices[0].Message.Content != want || o.Usage.Completion != 2 {
					t.Errorf("answer %+v, want %q", o, want)
				}
				wantLegs(t, b.wantRecord(c, "finished", ""), test.leg, "z finished")
				if n := b.sum("weir_retries_total"); n != 1 {
					t.Errorf("%v retries counted", n)
				}
			})
		})
	}
}

// A failure that cannot succeed elsewhere, or has been tried elsewhere, reaches the client.
func TestNotRetried(t *testing.T) {
	down := refuse(infer.CodeUnavailable, true)
	for _, test := range []struct {
		name    string
		a, z    func(context.Context, *call) error
		status  int
		outcome string
		legs    []string
	}{
		{"no use elsewhere", refuse(infer.CodeInvalid, false), nil, 400, "rejected", []string{"a invalid"}},
		{"both are down", down, down, 503, "failed", []string{"a unavailable", "z unavailable"}},
		{"second failure is final", down, refuse(infer.CodeEngine, false), 502, "failed", []string{"a unavailable", "z engine"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, z, y := &tokenEngine{name: "a", accept: test.a}, &tokenEngine{name: "z", accept: test.z}, &tokenEngine{name: "y"}
			inBubble(t, Options{}, []any{a, y, z}, func(t *testing.T, b *bench) {
				c := b.post(chatPath, askStream(``))
				c.refusal(test.status)
				y.call(t, 0)
				r := b.record(c)
				wantLegs(t, r, test.legs...)
				if r.Outcome != test.outcome {
					t.Errorf("outcome %s, want %s", r.Outcome, test.outcome)
				}
			})
		})
	}
	t.Run("nobody else", func(t *testing.T) {
		a := &tokenEngine{name: "a", accept: down}
		inBubble(t, Options{}, []any{a}, func(t *testing.T, b *bench) {
			c := b.post(chatPath, askStream(``))
			c.refusal(503)
			a.call(t, 1)
			wantLegs(t, b.wantRecord(c, "failed", "unavailable"), "a unavailable")
		})
	})
}

// Once the client has something, a failure is an error event and a broken
// connection where streams are not continued: never an end that looks whole.
func TestFailureAfterTheFirstByte(t *testing.T) {
	a, z := &tokenEngine{name: "a"}, &tokenEngine{name: "z"}
	inBubble(t, Options{Attempt: attempt.Options{Continue: attempt.Continuing{Off: true}}}, []any{a, z}, func(t *testing.T, b *bench) {
		w := words()
		c := b.post(chatPath, askStream(``))
		call := a.call(t, 1)
		call.send(w[0])
		call.fail(infer.CodeEngine, true, w[1]) // with its last token
		c.wantBroken(text(w[:2]...), "engine_error")
		z.call(t, 0)
		r := b.wantRecord(c, "failed", "engine")
		wantLegs(t, r, "a engine")
		if r.Completion != 2 {
			t.Errorf("record has %d tokens, want 2", r.Completion)
		}
		if faults := b.metric("weir_engine_faults_total"); len(faults) != 1 || faults[0].labels["engine"] != "a" || faults[0].value != 1 {
			t.Errorf("faults %v", faults)
		}
	})
}

// An error that several streams are given at once belongs to none of them.
func TestErrorsAreShared(t *testing.T) {
	a := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{a}, func(t *testing.T, b *bench) {
		shared := &infer.Error{Code: infer.CodeEngine, Message: "lost"} // names no engine
		var callers []*caller
		for i := range 8 {
			callers = append(callers, b.post(chatPath, askStream(``)))
			a.call(t, i+1).send(words()[0])
		}
		for _, call := range a.handed() {
			f := ending(infer.ReasonError)
			f.Err = shared
			call.offer(nil, f)
		}
		for _, c := range callers {
			c.wantBroken(text(words()[0]), "engine_error")
			wantLegs(t, b.wantRecord(c, "failed", "engine"), "a engine")
		}
		if shared.Engine != "" {
			t.Errorf("the engine's own error was changed: %+v", shared)
		}
	})
}

// act is what a random script does next.
type act struct {
	kind string // send, late, stop, length, fail, broken, hangup, read, tick
	n    int    // tokens
}

// plot is one attempt's part of a random script.
type plot struct {
	refused bool
	acts    []act
}

// For any actions of engines and client in any order, if streams are not continued: the client sees
// exactly the ids of the one attempt that served it, in order, and either the end of the answer or
// an explicit error, never both and never an end that looks whole. A client that reads slowly holds
// up its stream's writes meanwhile, and a flush interval its output; one that hangs up has had a
// part of it, in order.
func TestExactlyOnce(t *testing.T) {
	words()
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		way, stream := rapid.SampledFrom(ways).Draw(rt, "way"), rapid.Bool().Draw(rt, "stream")
		scene := scene{
			way: way, stream: stream,
			window: rapid.SampledFrom([]int{0, 0, 1, 100, 600}).Draw(rt, "window"),
			flush:  rapid.SampledFrom([]time.Duration{0, 0, 5 * time.Millisecond}).Draw(rt, "flush"),
		}
		plots := make([]plot, 2)
		for i := range plots {
			plots[i].refused = rapid.IntRange(0, 3).Draw(rt, "refused") == 0
			plots[i].acts = rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) act {
				return act{
					kind: rapid.SampledFrom([]string{"send", "send", "send", "send", "late", "stop", "length", "fail", "broken", "hangup", "read", "tick"}).Draw(rt, "kind"),
					n:    rapid.IntRange(0, 4).Draw(rt, "n"),
				}
			}), 0, 16).Draw(rt, "acts")
		}
		waits := rapid.SliceOfN(rapid.Bool(), 32, 32).Draw(rt, "waits")
		var err error
		synctest.Test(t, func(t *testing.T) { err = perform(t, dir, scene, plots, waits) })
		if err != nil {
			rt.Fatal(err)
		}
	})
}

// scene is what a random script is played in.
type scene struct {
	way    way
	stream bool
	window int           // bytes that the client's side holds unread; 0: many
	flush  time.Duration // the flush interval
}

// perform plays a script and says what was wrong.
func perform(t *testing.T, dir string, scene scene, plots []plot, waits []bool) error {
	engines := []*tokenEngine{{name: "a"}, {name: "z"}}
	for i, p := range plots {
		if p.refused {
			engines[i].accept = refuse(infer.CodeUnavailable, true)
		}
	}
	b := newBench(t, dir, Options{Stream: drive.Options{FlushInterval: scene.flush}, Attempt: attempt.Options{Continue: attempt.Continuing{Off: true}}}, []any{engines[0], engines[1]}, scene.way)
	defer b.end()
	body := askChat(`,"max_tokens":100`)
	if scene.stream {
		body = askStream(`,"max_tokens":100`)
	}
	c := b.dial(scene.window)
	c.send("POST", chatPath, body)
	next := 0 // of the words; attempts share none
	sent := make([][]uint32, len(plots))
	ended, hungUp := make([]bool, len(plots)), false
	for i, p := range plots {
		synctest.Wait()
		if len(engines[i].handed()) == 0 || p.refused {
			continue
		}
		call := engines[i].handed()[0]
		take := func(n int) []uint32 {
			ids := words()[next : next+n]
			next += n
			sent[i] = append(sent[i], ids...)
			return ids
		}
		for _, a := range p.acts {
			if ended[i] {
				break
			}
			switch a.kind {
			case "send":
				call.offer(take(a.n), nil)
			case "late": // from an attempt that is over
				if i > 0 && !plots[0].refused {
					engines[0].handed()[0].offer(words()[200:200+a.n], nil)
				}
			case "stop", "length":
				call.offer(take(a.n), ending(infer.Reason(a.kind)))
				ended[i] = true
			case "fail", "broken":
				f := ending(infer.ReasonError)
				f.Err = engines[i].fault(infer.CodeEngine, a.kind == "fail")
				call.offer(take(a.n), f)
				ended[i] = true
			case "hangup":
				if !hungUp {
					hungUp = true
					c.answer()
					c.conn.Close()
				}
			case "read":
				if !hungUp {
					c.answer()
				}
			case "tick":
				time.Sleep(time.Duration(a.n) * time.Millisecond)
			}
			if waits[0] {
				synctest.Wait()
			}
			waits = append(waits[1:], waits[0])
		}
	}
	synctest.Wait()
	if hungUp {
		for i, e := range engines {
			for _, call := range e.handed() {
				if !plots[i].refused && !ended[i] && !call.aborted() {
					return fmt.Errorf("the client hung up and engine %s works on", e.name)
				}
			}
		}
		if got := text(lastOf(sent, engines)...); scene.stream && !strings.HasPrefix(got, c.part()) {
			return fmt.Errorf("the client had %q when it hung up, of %q", c.part(), got)
		}
		return nil
	}
	for still := 0; still < 3; still++ { // until nothing more comes
		before := len(c.raw)
		c.answer()
		time.Sleep(scene.flush)
		if len(c.raw) > before {
			still = 0
		}
	}
	return compare(c, scene.stream, sent, engines)
}

// lastOf gives what the engine sent that the client may have.
func lastOf(sent [][]uint32, engines []*tokenEngine) []uint32 {
	if len(engines[1].handed()) > 0 {
		return sent[1]
	}
	return sent[0]
}

// part is the text that has arrived of a stream, cut at any byte.
func (c *caller) part() string {
	_, body, _ := strings.Cut(string(c.raw), "\r\n\r\n")
	var got strings.Builder
	for event := range strings.SplitSeq(body, "\n\n") {
		_, data, _ := strings.Cut(event, "data: ")
		var o object
		if json.Unmarshal([]byte(data), &o) != nil {
			continue // [DONE], or cut
		}
		for _, choice := range o.Choices {
			got.WriteString(choice.Delta.Content)
		}
	}
	return got.String()
}

// compare compares what the client has with what was sent.
func compare(c *caller, stream bool, sent [][]uint32, engines []*tokenEngine) error {
	want := text(lastOf(sent, engines)...)
	if !stream {
		a := c.answer()
		if a.status == 200 {
			if got := c.whole(); got.Choices[0].Message.Content != want || got.Usage.Completion != len(lastOf(sent, engines)) {
				return fmt.Errorf("answer %+v, want %q", got, want)
			}
		} else if a.status != 0 && (a.status < 400 || !a.whole) {
			return fmt.Errorf("status %d, whole %v", a.status, a.whole)
		}
		return nil
	}
	s := c.story()
	switch {
	case s.torn != "" && s.status == 200:
		return fmt.Errorf("a torn event %q", s.torn)
	case s.status == 0 && want == "", s.status >= 400 && s.whole:
		return nil
	case s.status != 200:
		return fmt.Errorf("status %d, whole %v", s.status, s.whole)
	case s.text != want:
		return fmt.Errorf("the client has %q, want %q", s.text, want)
	case s.done && s.err != nil, s.done != s.whole, s.err != nil && !s.closed:
		return fmt.Errorf("done %v, whole %v, closed %v, error %+v", s.done, s.whole, s.closed, s.err)
	case s.done && s.finish == "":
		return errors.New("an end without a reason")
	}
	return nil
}
