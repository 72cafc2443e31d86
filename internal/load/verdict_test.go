package load

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const answerLen = 12

// TestVerdict damages a stream in one way at a time. Each must get its own
// verdict: a client that cannot tell them apart cannot say what broke.
func TestVerdict(t *testing.T) {
	vocab := vocabulary(t)
	words := answer(t, vocab, answerLen)
	raw := func(edit func(r *reply)) string {
		r := whole(slices.Clone(words))
		edit(r)
		return r.wire()
	}
	events := func(edit func(e []string) []string) string {
		r := whole(slices.Clone(words))
		return streamHead + chunked(r.frames(edit(r.events()))) + lastChunk
	}
	uncut := whole(words).wire()

	for _, c := range []struct {
		name    string
		wire    string
		outcome Outcome
		kind    Kind
		lost    int
	}{
		{"whole", uncut, Complete, "", 0},
		{"CRLF", raw(func(r *reply) { r.newline = "\r\n" }), Complete, "", 0},
		{"several words in an event", raw(func(r *reply) {
			r.words = []string{strings.Join(words[:5], ""), strings.Join(words[5:], "")}
		}), Complete, "", 0},
		{"a word over two events", raw(func(r *reply) {
			r.words = slices.Insert(slices.Clone(words[1:]), 0, words[0][:2], words[0][2:])
		}), Complete, "", 0},
		{"comments and fields before the end", events(func(e []string) []string {
			e[3] += "\nid: 7\nretry: 100\n: keep-alive"
			return e
		}), Complete, "", 0},
		{"an end id counted", raw(func(r *reply) { r.finish, r.usage = "stop", answerLen+1 }), Complete, "", 0},

		{"a token missing", raw(func(r *reply) { r.words = slices.Delete(r.words, 4, 5) }), Corrupt, KindLost, 1},
		{"three tokens missing", raw(func(r *reply) { r.words = slices.Delete(r.words, 4, 7) }), Corrupt, KindLost, 3},
		{"the last token missing", raw(func(r *reply) { r.words = r.words[:answerLen-1] }), Corrupt, KindLost, 1},
		{"the last token missing, usage counts what was sent", raw(func(r *reply) {
			r.words, r.usage = r.words[:answerLen-1], answerLen-1
		}), Corrupt, KindLost, 1},
		{"two end tokens missing at a stop", raw(func(r *reply) {
			r.words, r.finish = r.words[:answerLen-2], "stop"
		}), Corrupt, KindLost, 2},
		{"all tokens missing", raw(func(r *reply) { r.words = nil }), Corrupt, KindLost, answerLen},
		{"a token twice", raw(func(r *reply) { r.words = slices.Insert(r.words, 4, r.words[4]) }), Corrupt, KindDuplicated, 0},
		{"two tokens exchanged", raw(func(r *reply) { r.words[4], r.words[5] = r.words[5], r.words[4] }), Corrupt, KindOrder, 0},
		{"a foreign token", raw(func(r *reply) { r.words[4] = " notaword" }), Corrupt, KindOrder, 0},
		{"usage one more", raw(func(r *reply) { r.usage++ }), Corrupt, KindUsage, 0},
		{"usage one less", raw(func(r *reply) { r.usage-- }), Corrupt, KindUsage, 0},
		{"usage one less at a stop", raw(func(r *reply) { r.usage, r.finish = r.usage-1, "stop" }), Corrupt, KindUsage, 0},
		{"no usage", raw(func(r *reply) { r.usage = -1 }), Corrupt, KindNoUsage, 0},
		{"no finish_reason", raw(func(r *reply) { r.finish = "" }), Corrupt, KindNoFinish, 0},
		{"text after finish_reason", events(func(e []string) []string {
			return append(slices.Clone(e[:len(e)-2]), e[3], e[len(e)-2], e[len(e)-1])
		}), Corrupt, KindAfterFinish, 0},
		{"finish_reason twice", events(func(e []string) []string {
			return slices.Insert(e, len(e)-2, e[len(e)-3])
		}), Corrupt, KindAfterFinish, 0},
		{"an event after [DONE]", raw(func(r *reply) { r.tail = "data: {\"choices\":[]}\n\n" }), Corrupt, KindAfterDone, 0},
		{"[DONE] twice", raw(func(r *reply) { r.tail = "data: [DONE]\n\n" }), Corrupt, KindAfterDone, 0},
		{"a comment after [DONE]", raw(func(r *reply) { r.tail = ": late\n\n" }), Corrupt, KindAfterDone, 0},
		{"half an event after [DONE]", raw(func(r *reply) { r.tail = "data: x" }), Corrupt, KindAfterDone, 0},

		{"no [DONE]", raw(func(r *reply) { r.done = false }), Errored, KindNoDone, 0},
		{"an error event after 200", events(func(e []string) []string {
			return append(slices.Clone(e[:5]), `{"error":{"message":"engine died","type":"server_error","code":"engine"}}`)
		}), Errored, KindErrorEvent, 0},
		{"a named error event", events(func(e []string) []string {
			return append(slices.Clone(e[:5]), "oops\nevent: error")
		}), Errored, KindErrorEvent, 0},
		{"an error event and yet [DONE]", events(func(e []string) []string {
			return slices.Insert(e, 5, `{"error":{"message":"engine died"}}`)
		}), Errored, KindErrorEvent, 0},
		{"an error event, then cut", strings.TrimSuffix(raw(func(r *reply) {
			r.done, r.tail = false, "data: {\"error\":\"engine died\"}\n\n"
		}), lastChunk), Errored, KindErrorEvent, 0},
		{"an event that is no JSON", events(func(e []string) []string { e[4] = "{\"choices\":"; return e }), Errored, KindBadEvent, 0},
		{"an event that is no chunk", events(func(e []string) []string { e[4] = `{"hello":1}`; return e }), Errored, KindBadEvent, 0},
		{"a second choice", events(func(e []string) []string {
			e[4] = strings.Replace(e[4], `"index":0`, `"index":1`, 1)
			return e
		}), Errored, KindBadEvent, 0},
		{"the last event cut", raw(func(r *reply) { r.done, r.tail = false, "data: [DONE]\n" }), Errored, KindPartialEvent, 0},
		{"no last chunk", strings.TrimSuffix(uncut, lastChunk), Errored, KindCut, 0},
		{"cut inside a chunk", uncut[:len(uncut)-60], Errored, KindCut, 0},
		{"cut inside the head", uncut[:30], Errored, KindNoResponse, 0},
		{"no response", "", Errored, KindNoResponse, 0},
		{"a chunk size that is none", strings.Replace(uncut, "\r\n\r\n", "\r\n\r\nzz\r\n", 1), Errored, KindFraming, 0},
		{"a chunk longer than its size", strings.Replace(uncut, "}\n\n\r\n", "}\n\n!\r\n", 1), Errored, KindFraming, 0},
		{"not HTTP", "SSH-2.0-OpenSSH_9.2\r\n\r\n", Errored, KindFraming, 0},
		{"another content type", strings.Replace(uncut, "text/event-stream", "text/html", 1), Errored, KindContentType, 0},
		{"whole JSON in place of a stream", jsonReply(200, wholeBody(words, answerLen)), Errored, KindContentType, 0},
		{"an error as 200", jsonReply(200, `{"error":{"message":"no"}}`), Errored, KindErrorEvent, 0},
		{"a refusal", jsonReply(503, `{"error":{"message":"full","code":"overloaded"}}`), Errored, "status_503", 0},
		{"a refusal without words", jsonReply(429, ``), Errored, "status_429", 0},
		{"a redirect", "HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", Errored, "status_302", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			url := serveText(t, c.wire)
			r, s := once(t, t.Context(), Plan{URL: url, OutputTokens: answerLen, Verify: vocab})
			if s.Outcome != c.outcome || s.Kind != c.kind || s.Lost != c.lost {
				t.Errorf("got %v %q (%s), %d lost; want %v %q, %d lost",
					s.Outcome, s.Kind, s.Detail, s.Lost, c.outcome, c.kind, c.lost)
			}
			if (c.kind != "") != (s.Detail != "") {
				t.Errorf("detail %q of kind %q", s.Detail, c.kind)
			}
			if c.outcome != Complete && (r.Complete != 0 || r.Errors[c.kind] != 1) {
				t.Errorf("report counts it as %+v", r)
			}
		})
	}
}

// wholeBody is an answer that is not streamed.
func wholeBody(words []string, usage int) string {
	return fmt.Sprintf(`{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":"length"}],`+
		`"usage":{"prompt_tokens":5,"completion_tokens":%d}}`, strings.Join(words, ""), usage)
}

func jsonReply(status int, body string) string {
	return fmt.Sprintf("HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
}

func TestVerdictWithoutStream(t *testing.T) {
	vocab := vocabulary(t)
	words := answer(t, vocab, answerLen)
	good := wholeBody(words, answerLen)
	for _, c := range []struct {
		name, wire string
		outcome    Outcome
		kind       Kind
	}{
		{"whole", jsonReply(200, good), Complete, ""},
		{"token missing", jsonReply(200, wholeBody(words[1:], answerLen)), Corrupt, KindLost},
		{"no finish_reason", jsonReply(200, strings.Replace(good, `"length"`, "null", 1)), Corrupt, KindNoFinish},
		{"no usage", jsonReply(200, strings.Replace(good, `"usage"`, `"other"`, 1)), Corrupt, KindNoUsage},
		{"not JSON", jsonReply(200, good[1:]), Errored, KindBadEvent},
		{"no choices", jsonReply(200, "{}"), Errored, KindBadEvent},
		{"cut", jsonReply(200, good)[:200], Errored, KindCut},
		{"refused", jsonReply(400, `{"error":{"message":"no"}}`), Errored, "status_400"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, s := once(t, t.Context(), Plan{URL: serveText(t, c.wire), NoStream: true, OutputTokens: answerLen, Verify: vocab})
			if s.Outcome != c.outcome || s.Kind != c.kind {
				t.Errorf("got %v %q (%s), want %v %q", s.Outcome, s.Kind, s.Detail, c.outcome, c.kind)
			}
		})
	}
}

// TestUnverified holds that a server whose tokens are not words is judged by
// its framing alone.
func TestUnverified(t *testing.T) {
	r := whole([]string{"any", " text, with \u00e9 and \"quotes\" "})
	r.usage, r.chat = 40, false
	rep, s := once(t, t.Context(), Plan{URL: serveText(t, r.wire()), API: Completions, OutputTokens: 40})
	if s.Outcome != Complete || s.Tokens != 40 || s.TextEvents != 2 || rep.EventsPerToken != 0.05 {
		t.Errorf("got %v %q, %d tokens in %d events, %v events per token", s.Outcome, s.Kind, s.Tokens, s.TextEvents, rep.EventsPerToken)
	}
}

func TestReset(t *testing.T) {
	const tokens = 2000
	vocab := vocabulary(t)
	wire := whole(answer(t, vocab, tokens)).wire()
	url := serve(t, func(_ int, _ map[string]any, c *net.TCPConn) {
		// The client must have read the head before the reset overtakes it. Half of
		// the answer is more than the buffers of both sides hold.
		if err := c.SetWriteBuffer(4096); err != nil {
			t.Error(err)
		}
		if _, err := c.Write([]byte(wire[:len(wire)/2])); err != nil {
			t.Error(err)
		}
		if err := c.SetLinger(0); err != nil {
			t.Error(err)
		}
	})
	_, s := once(t, t.Context(), Plan{URL: url, Verify: vocab, OutputTokens: tokens, ReceiveBuffer: 4096})
	if s.Outcome != Errored || s.Kind != KindReset || s.Status != 200 {
		t.Errorf("got %v %q (%s), status %d", s.Outcome, s.Kind, s.Detail, s.Status)
	}
}

func TestConnectRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	_, s := once(t, t.Context(), Plan{URL: "http://" + addr})
	if s.Outcome != Errored || s.Kind != KindConnect {
		t.Errorf("got %v %q (%s)", s.Outcome, s.Kind, s.Detail)
	}
}

// TestStall holds that a server that stops sending is told apart from the end
// of the run, and that both bounds hold.
func TestStall(t *testing.T) {
	vocab := vocabulary(t)
	wire := whole(answer(t, vocab, answerLen)).wire()
	release := make(chan struct{})
	defer close(release)
	stalling := func() (url string, stalled <-chan struct{}) {
		told := make(chan struct{}, 1)
		return serve(t, func(_ int, _ map[string]any, c *net.TCPConn) {
			_, _ = c.Write([]byte(wire[:len(wire)/2])) // fails where the client is already gone
			told <- struct{}{}
			<-release
		}), told
	}
	// On a busy machine the timeout is over before the server has the request.
	url, _ := stalling()
	_, s := once(t, t.Context(), Plan{URL: url, Verify: vocab, Timeout: 100 * time.Millisecond})
	if s.Outcome != Errored || s.Kind != KindTimeout {
		t.Errorf("past the timeout: got %v %q (%s)", s.Outcome, s.Kind, s.Detail)
	}
	url, stalled := stalling()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-stalled
		cancel()
	}()
	r, s := once(t, ctx, Plan{URL: url, Verify: vocab})
	if s.Outcome != Unfinished || s.Kind != "" || !r.Interrupted {
		t.Errorf("past the run's end: got %v %q (%s)", s.Outcome, s.Kind, s.Detail)
	}
}

// TestAnyDamageShows drops, repeats or exchanges words at random places: no
// such stream is ever complete.
func TestAnyDamageShows(t *testing.T) {
	vocab := vocabulary(t)
	words := answer(t, vocab, 64)
	rapid.Check(t, func(t *rapid.T) {
		got := slices.Clone(words)
		at := rapid.IntRange(0, len(got)-2).Draw(t, "at")
		var want Kind
		switch rapid.SampledFrom([]string{"drop", "repeat", "exchange"}).Draw(t, "damage") {
		case "drop":
			got, want = slices.Delete(got, at, at+1), KindLost
		case "repeat":
			got, want = slices.Insert(got, at, got[at]), KindDuplicated
		case "exchange":
			got[at], got[at+1], want = got[at+1], got[at], KindOrder
		}
		r := whole(got)
		r.usage = len(words)
		s := judgeWire(t, r.wire(), &Plan{Verify: vocab, OutputTokens: len(words)}, 0)
		if s.Outcome != Corrupt || s.Kind != want {
			t.Fatalf("got %v %q (%s), want %q", s.Outcome, s.Kind, s.Detail, want)
		}
	})
}

// TestCutPoints reads a stream in two reads cut at every byte, and byte by
// byte: the verdict and the counts never depend on how bytes arrive.
func TestCutPoints(t *testing.T) {
	vocab := vocabulary(t)
	r := whole(answer(t, vocab, answerLen))
	r.newline = "\r\n"
	wire := r.wire()
	plan := &Plan{Verify: vocab, OutputTokens: answerLen}
	for cut := range len(wire) + 1 {
		s := judgeWire(t, wire, plan, cut)
		if s.Outcome != Complete || s.Tokens != answerLen || s.Events != answerLen+4 || s.Frames != answerLen+4 {
			t.Fatalf("cut at %d: %v %q (%s), %d tokens, %d events, %d frames",
				cut, s.Outcome, s.Kind, s.Detail, s.Tokens, s.Events, s.Frames)
		}
	}
}
