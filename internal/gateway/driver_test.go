package gateway

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"weir/internal/gateway/attempt"
	"weir/internal/gateway/drive"
	"weir/internal/gateway/front"
	"weir/internal/infer"
)

// response gives the body that has arrived, and whether it has ended as HTTP has it.
func (r *rig) response() (body []byte, whole bool) {
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(r.arrived)), nil)
	if err != nil {
		return nil, false
	}
	body, err = io.ReadAll(resp.Body)
	return body, err == nil
}

var contentOf = regexp.MustCompile(`"content":"([^"]*)"`)

// For any actions of an engine and a client at any time: the client has the text of all tokens that
// the engine reported, once and in order, and then the end; or the text of the first of them and an
// explicit error, or a broken connection that nobody takes for whole. Nothing is left behind.
func TestDriverExactlyOnce(t *testing.T) {
	words()
	rapid.Check(t, func(rt *rapid.T) {
		window := rapid.SampledFrom([]int{1 << 20, 1 << 20, 100, 300, 700}).Draw(rt, "window")
		acts := rapid.SliceOfN(rapid.SampledFrom([]string{
			"offer", "offer", "offer", "settle", "settle", "wake", "read", "read all", "tick",
		}), 0, 30).Draw(rt, "acts")
		end := rapid.SampledFrom([]string{"stop", "stop", "fail", "miscount", "hang up", "abort", "cut", "silence"}).Draw(rt, "end")
		flush := rapid.SampledFrom([]time.Duration{0, 0, 0, 3 * time.Millisecond}).Draw(rt, "flush")
		n := rapid.IntRange(1, 3).Draw(rt, "n")
		var failed error
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, Options{Stream: drive.Options{FlushInterval: flush}, Attempt: attempt.Options{IdleTimeout: time.Hour, FirstTimeout: time.Hour}, Front: front.Options{WriteTimeout: 2 * time.Hour}})
			defer r.close()
			r.ask(chatPath, askStream(fmt.Sprintf(`,"n":%d`, n)), window)
			sent := make([][]uint32, n)
			next := 0
			for _, act := range acts {
				switch act {
				case "offer":
					i := next % n
					id := words()[next%len(words())]
					next++
					sent[i] = append(sent[i], id)
					r.call(i).offer([]uint32{id}, nil)
				case "settle":
					r.settle()
				case "wake":
					r.x.try.Wake()
				case "read":
					r.read(150)
				case "read all":
					r.read(1 << 20)
				case "tick":
					time.Sleep(time.Millisecond)
				}
			}
			switch end {
			case "stop":
				for i := range n {
					r.call(i).offer(nil, ending(infer.ReasonStop))
				}
			case "fail":
				f := ending(infer.ReasonError)
				f.Err = r.tokens.fault(infer.CodeEngine, false)
				r.call(0).offer(nil, f)
			case "miscount":
				r.call(0).raw(words()[:1], 1000, nil)
			case "hang up":
				r.settle()
				r.client.Reset()
			case "abort":
				r.x.try.Abort(r.x.stream.Ctx.End)
				r.settle()
				for i := range n {
					r.call(i).offer(nil, ending(infer.ReasonAbort))
				}
			case "cut":
				r.g.Cut()
			case "silence":
			}
			r.settle()
			if end == "silence" {
				for len(acts) > 0 && r.g.recorder.Live() > 0 { // the client takes what there is first
					if got, _ := r.read(1 << 20); len(got) == 0 {
						break
					}
				}
				time.Sleep(2*time.Hour + time.Minute)
			}
			for range 60 {
				r.read(1 << 20)
				time.Sleep(time.Millisecond)
			}
			time.Sleep(4 * time.Hour)
			r.read(1 << 20)
			failed = r.check(sent, end)
		})
		if failed != nil {
			rt.Fatal(failed)
		}
	})
}

// check compares what the client has with what the engine has sent, at the end.
func (r *rig) check(sent [][]uint32, end string) error {
	if n := r.g.recorder.Live(); n != 0 {
		return fmt.Errorf("the request is live after its end by %s", end)
	}
	if requests, tokens := r.g.preparer.Gate.Load(); requests != 0 || tokens != 0 || r.g.Pending() != 0 {
		return fmt.Errorf("at rest the gate holds %d requests and %d tokens, and %d mailboxes have output pending", requests, tokens, r.g.Pending())
	}
	rec := r.x.stream.Record.Record
	if rec.Residual() != 0 {
		return fmt.Errorf("a residual of %d ns", rec.Residual())
	}
	body, whole := r.response()
	if body == nil {
		body = r.whole.Body.Bytes() // an error before the first byte
	}
	got := make([]string, len(sent))
	for event := range strings.SplitSeq(string(body), "\n\n") {
		var index int
		if _, after, ok := strings.Cut(event, `"index":`); ok {
			fmt.Sscanf(after, "%d", &index)
		}
		if m := contentOf.FindStringSubmatch(event); m != nil {
			got[index] += m[1]
		}
	}
	finished := strings.Contains(string(body), "data: [DONE]")
	complete := end == "stop" || end == "abort"
	if finished != complete || whole && !complete {
		return fmt.Errorf("ended by %s: finished %t, whole %t: %q", end, finished, whole, body)
	}
	if complete != (rec.Outcome == infer.Finished) {
		return fmt.Errorf("ended by %s: outcome %s %s", end, rec.Outcome, rec.Code)
	}
	for i, ids := range sent {
		want := text(ids...)
		if complete && got[i] != want || !strings.HasPrefix(want, got[i]) {
			return fmt.Errorf("ended by %s: choice %d has %q of %q", end, i, got[i], want)
		}
	}
	switch end {
	case "fail", "miscount", "cut", "silence":
		if told := strings.Contains(string(body), `"error":{`); !told && rec.Code != "slow_client" && end != "cut" {
			return fmt.Errorf("ended by %s, and the client was not told: %q", end, body)
		}
	}
	for _, c := range r.tokens.handed() {
		if complete && end != "abort" && c.aborted() {
			return fmt.Errorf("the engine was told to stop although it had ended")
		}
		if !complete && !c.aborted() {
			return fmt.Errorf("ended by %s, and the engine works on", end)
		}
	}
	return nil
}

// A driven stream of a relay misses nothing, whenever in a turn, between two, or while
// the client's socket is full its engine sends something: TestDrivenInterleavings
// without the server.
func TestDriverMissesNothing(t *testing.T) {
	words()
	rapid.Check(t, func(rt *rapid.T) {
		window := rapid.SampledFrom([]int{1 << 20, 1 << 20, 64, 400}).Draw(rt, "window")
		acts := rapid.SliceOfN(rapid.SampledFrom([]string{"send", "send in the turn", "send unseen", "half", "wake", "read", "tick"}), 0, 30).Draw(rt, "acts")
		leaves := rapid.IntRange(0, 4).Draw(rt, "leaves") == 0
		endInTurn := rapid.Bool().Draw(rt, "endInTurn")
		var failed error
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, Options{})
			defer r.close()
			r.ask(chatPath, relayBody, window)
			f := r.forward()
			want, cut := "", ""
			put := func(s string, notified bool) {
				want += s
				f.put(s, notified)
			}
			put(relayToken, true)
			r.settle()
			for _, act := range acts {
				event := relayToken[len(cut):]
				switch act {
				case "send", "send unseen":
					put(event, act == "send")
					cut = ""
				case "send in the turn":
					r.settle()
					f.onEmpty = func() { put(event, true) }
					f.notify()
					r.settle()
					if f.onEmpty != nil { // the stream is held up by its client
						f.onEmpty = nil
						put(event, true)
					}
					cut = ""
				case "half":
					if cut == "" {
						cut = relayToken[:30]
						put(cut, true)
					}
				case "wake":
					f.notify()
				case "read":
					r.read(200)
				case "tick":
					time.Sleep(time.Millisecond)
				}
			}
			r.settle()
			f.onEmpty = nil
			if leaves {
				r.client.Reset()
				time.Sleep(time.Minute)
				if r.settle(); r.g.recorder.Live() != 0 || !f.abandoned() {
					failed = fmt.Errorf("the client has gone: %d live, the engine's answer abandoned %t", r.g.recorder.Live(), f.abandoned())
				}
				return
			}
			end := relayEnd
			if cut != "" {
				end = relayToken[len(cut):] + relayEnd
			}
			finish := func() {
				put(end, false)
				f.close()
			}
			if endInTurn {
				f.onEmpty = finish
				f.notify()
				r.settle()
			}
			if f.onEmpty != nil || !endInTurn { // no read found nothing
				f.onEmpty = nil
				finish()
			}
			r.settle()
			for got := []byte{0}; len(got) > 0; {
				got, _ = r.read(1 << 20)
			}
			r.read(1)
			if body, whole := r.response(); string(body) != want || !whole {
				failed = fmt.Errorf("whole %t, the client has %d bytes of %d, from %q on", whole, len(body), len(want), want[min(len(body), len(want)):])
			}
			if rec := r.x.stream.Record.Record; failed == nil && (r.g.recorder.Live() != 0 || rec.Outcome != infer.Finished || rec.Residual() != 0) {
				failed = fmt.Errorf("live %d, outcome %s %s, residual %d", r.g.recorder.Live(), rec.Outcome, rec.Code, rec.Residual())
			}
		})
		if failed != nil {
			rt.Fatal(failed)
		}
	})
}

// The books hear of tokens once for each wake-up of a worker, and before they hear of the
// end of a request: they never have a request's end without its tokens.
func TestBooksAreToldAtOnce(t *testing.T) {
	words()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{})
		defer r.close()
		r.ask(chatPath, askStream(``), 1<<20)
		c, rank := r.call(0), r.x.try.Target.Books.Rank
		c.offer(words()[:1], nil)
		r.settle() // and the stream has left net/http
		prompt := rank.Held() - 1
		turn := func(ids int, f *infer.Finish) {
			c.offer(words()[:ids], f)
			synctest.Wait()
			for _, s := range r.g.driver.Take(0, nil) {
				s.Turn(r.w)
			}
			synctest.Wait()
		}
		turn(2, nil)
		turn(3, nil)
		if got := rank.Generated(); got != 1 {
			t.Errorf("before the worker waits, the books have heard of %d tokens", got)
		}
		r.w.Idle()
		if got := rank.Generated(); got != 6 || rank.Held() != prompt+6 {
			t.Errorf("of 6 tokens the books have heard of %d", got)
		}
		turn(4, nil)
		turn(1, &infer.Finish{Reason: infer.ReasonStop, PromptTokens: -1, CachedTokens: -1})
		if got := rank.Generated(); got != 11 || rank.Held() != 0 || rank.InFlight() != 0 {
			t.Errorf("after the end, %d of 11 tokens, %d held, %d in flight", got, rank.Held(), rank.InFlight())
		}
	})
}
