package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httputil"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"weir/internal/wire/sse"
)

// wireConn is a connection whose answer is known beforehand.
type wireConn struct {
	net.Conn
	io.Reader
}

func (c wireConn) Read(p []byte) (int, error)  { return c.Reader.Read(p) }
func (c wireConn) Write(p []byte) (int, error) { return len(p), nil }

// memoryConn returns a connection that answers with what r has.
func memoryConn(r io.Reader) *conn {
	cn := &conn{Conn: wireConn{Reader: r}}
	cn.slow.src = reading{cn.Conn}
	cn.buf = buffer{src: &cn.slow, data: make([]byte, readBuffer)}
	return cn
}

// judgeWire returns the sample of a response that arrives in two reads cut at
// that byte, or byte by byte when cut is 0.
func judgeWire(t interface{ Fatal(...any) }, wire string, p *Plan, cut int) *Sample {
	p.URL, p.Requests = "http://x", 1
	if _, err := p.normalize(); err != nil {
		t.Fatal(err)
	}
	r := io.MultiReader(strings.NewReader(wire[:cut]), strings.NewReader(wire[cut:]))
	if cut == 0 {
		r = iotest.OneByteReader(strings.NewReader(wire))
	}
	x := newExchange(p, &client{}, p.Verify)
	x.judge.reset()
	cn := memoryConn(r)
	x.begin(context.Background(), cn)
	x.converse(cn)
	return &x.sample
}

// FuzzResponse feeds arbitrary bytes as a response: the verdict must come, be
// one of the outcomes, and not depend on where the bytes were cut.
func FuzzResponse(f *testing.F) {
	vocab := vocabulary(f)
	wire := whole(answer(f, vocab, 4)).wire()
	f.Add(wire, 10)
	f.Add(strings.Replace(wire, "Transfer-Encoding: chunked\r\n", "", 1), 200)
	f.Add(jsonReply(200, wholeBody(answer(f, vocab, 4), 4)), 50)
	f.Add("HTTP/1.1 100 Continue\r\n\r\n"+wire, 5)
	f.Add("HTTP/1.0 200\r\ncontent-type: text/event-stream\r\n\r\ndata: [DONE]\n\n", 30)
	f.Fuzz(func(t *testing.T, wire string, cut int) {
		if cut < 1 || cut > len(wire) {
			cut = len(wire)
		}
		plan := &Plan{Verify: vocab, OutputTokens: 4}
		a, b := judgeWire(t, wire, plan, cut), judgeWire(t, wire, plan, 0)
		if a.Outcome != b.Outcome || a.Kind != b.Kind || a.Tokens != b.Tokens || a.Events != b.Events {
			t.Errorf("cut at %d: %v %q %d/%d; byte by byte: %v %q %d/%d",
				cut, a.Outcome, a.Kind, a.Tokens, a.Events, b.Outcome, b.Kind, b.Tokens, b.Events)
		}
		if a.Outcome == Complete && (a.Status != 200 || !a.Done || a.FinishReason == "" || !a.HasUsage) {
			t.Errorf("complete without being so: %+v", a)
		}
	})
}

// FuzzChunked compares the reading of chunked bodies with net/http's.
func FuzzChunked(f *testing.F) {
	f.Add("5\r\nhello\r\n0\r\n\r\n", 3)
	f.Add("5;ext=1\r\nhello\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n", 9)
	f.Add("5\r\nhello!\r\n0\r\n\r\n", 1)
	f.Add("ffffffffffffffff\r\n", 1)
	f.Fuzz(func(t *testing.T, wire string, cut int) {
		if cut < 0 || cut > len(wire) {
			cut = 0
		}
		src := &buffer{data: make([]byte, 4096), src: reading{io.MultiReader(strings.NewReader(wire[:cut]), strings.NewReader(wire[cut:]))}}
		b := body{src: src, framing: framedByChunks}
		var got []byte
		var err error
		for err == nil {
			var p []byte
			p, err = b.next()
			got = append(got, p...)
		}
		want, wantErr := io.ReadAll(httputil.NewChunkedReader(strings.NewReader(wire)))
		// Ours reads the trailers too, and is stricter about line ends and
		// oversized padding; it must never accept what the reference refuses.
		if errors.Is(err, io.EOF) && (wantErr != nil || !bytes.Equal(got, want)) {
			t.Errorf("accepted %q; the reference says %q, %v", got, want, wantErr)
		}
		if !bytes.HasPrefix(want, got) && !bytes.HasPrefix(got, want) {
			t.Errorf("read %q, the reference %q", got, want)
		}
	})
}

// FuzzChunk holds that exactly the JSON objects are accepted.
func FuzzChunk(f *testing.F) {
	f.Add([]byte(`{"choices":[{"index":0,"delta":{"content":" a\u00e9\ud83d\ude00\n\"/\\"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":4}}`))
	f.Add([]byte(`{"choices":[{"text":"x"}],"error":{"message":"\ud800x","code":"c"}}`))
	f.Add([]byte(` {"a":[1,-2.5e+7,true,false,null,{"b":""}]} `))
	f.Add([]byte(`{"choices":[{"message":{"content":null}}],"usage":null,"error":null}`))
	f.Add([]byte(`{"a":01}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var c chunk
		err := c.parse(data)
		isObject := json.Valid(data) && bytes.TrimLeft(data, " \t\r\n")[0] == '{'
		if (err == nil) != isObject {
			t.Errorf("%q: parse says %v, encoding/json says object: %v", data, err, isObject)
		}
	})
}

// FuzzChunkText holds that text comes out of a chunk as it was put in, however
// it is escaped and wherever it stands.
func FuzzChunkText(f *testing.F) {
	f.Add(" a\u00e9\U0001F600\n\"/\\\x00", "stop")
	f.Add("<&>\u2028", "length")
	f.Fuzz(func(t *testing.T, text, finish string) {
		text, finish = strings.ToValidUTF8(text, "?"), strings.ToValidUTF8(finish, "?")
		choice := map[string]any{"index": 0, "finish_reason": finish, "logprobs": map[string]any{"content": []string{text}}}
		for _, field := range []string{"delta", "message", "text"} {
			choice[field] = map[string]any{"content": text, "refusal": nil}
			if field == "text" {
				choice[field] = text
			}
			data, err := json.MarshalIndent(map[string]any{"id": text, "choices": []any{choice}}, "", "\t")
			if err != nil {
				t.Fatal(err)
			}
			var c chunk
			if err := c.parse(data); err != nil || string(c.text) != text || string(c.finish) != finish || !c.hasText {
				t.Errorf("%s: text %q, finish %q, %v", data, c.text, c.finish, err)
			}
			delete(choice, field)
		}
	})
}

func TestChunkText(t *testing.T) {
	for _, c := range []struct{ in, text, finish string }{
		{`{"choices":[{"delta":{"content":"a\u0062\t\ud83d\ude00\ud800 \/"}}]}`, "ab\t\U0001F600\ufffd /", ""},
		{`{"choices":[{"text":"x","finish_reason":"le\u006egth"}]}`, "x", "length"},
		{`{"choices":[{"message":{"tool_calls":[{"content":"no"}],"content":"yes"},"finish_reason":"stop"}]}`, "yes", "stop"},
		{`{"x":{"choices":[{"text":"no"}]},"choices":[{"delta":{"content":null}}]}`, "", ""},
	} {
		var k chunk
		if err := k.parse([]byte(c.in)); err != nil {
			t.Errorf("%s: %v", c.in, err)
		}
		if string(k.text) != c.text || string(k.finish) != c.finish {
			t.Errorf("%s: text %q, finish %q", c.in, k.text, k.finish)
		}
	}
	var k chunk
	if err := k.parse([]byte(strings.Repeat(`{"a":`, 1e5) + "1" + strings.Repeat("}", 1e5))); err == nil {
		t.Error("a nesting of 100000 was accepted")
	}
}

// TestEventsAllocateNothing holds that the cost of an event is its bytes.
func TestEventsAllocateNothing(t *testing.T) {
	vocab := vocabulary(t)
	words := answer(t, vocab, 1)
	event := []byte(whole(nil).text(words[0]))
	x := newExchange(&Plan{}, &client{}, vocab)
	x.judge.reset()
	x.sample.gaps = make([]int64, 0, 4096)
	ev := sse.Event{Data: event}
	x.judge.event(ev, 1)
	if n := testing.AllocsPerRun(1000, func() { x.judge.event(ev, 2) }); n != 0 {
		// A repeated word is a mismatch, which is described once.
		t.Errorf("%v allocations per event", n)
	}
}

// BenchmarkStream is the client's own work per event: framing, events, JSON
// and the check of the words, without a socket.
func BenchmarkStream(b *testing.B) {
	const n = 1000
	vocab := vocabulary(b)
	wire := whole(answer(b, vocab, n)).wire()
	p := &Plan{URL: "http://x", Requests: 1, OutputTokens: n, Verify: vocab, Timeout: time.Minute}
	if _, err := p.normalize(); err != nil {
		b.Fatal(err)
	}
	x := newExchange(p, &client{}, vocab)
	r := strings.NewReader(wire)
	cn := memoryConn(r)
	b.ReportAllocs()
	b.SetBytes(int64(len(wire)))
	events := 0
	for b.Loop() {
		r.Reset(wire)
		cn.buf.start, cn.buf.end = 0, 0
		x.sample.reset(0, 0)
		x.judge.reset()
		x.events = sse.Parser{}
		x.begin(b.Context(), cn)
		x.converse(cn)
		if x.sample.Outcome != Complete {
			b.Fatalf("%v %q", x.sample.Outcome, x.sample.Kind)
		}
		events += x.sample.Events
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(events), "ns/event")
}

// endless repeats a text, and counts the bytes that were read of it.
type endless struct {
	text string
	at   int
	read int
}

func (e *endless) Read(p []byte) (n int, err error) {
	for n < len(p) {
		m := copy(p[n:], e.text[e.at:])
		n, e.at = n+m, (e.at+m)%len(e.text)
	}
	e.read += n
	return n, nil
}

// An answer without end is given up, whatever it is made of, with a word for what is wrong.
func TestEndlessAnswers(t *testing.T) {
	const events = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	chunk := func(text string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(text), text) }
	text := `data: {"choices":[{"index":0,"delta":{"content":"x"}}]}` + "\n\n"
	for _, x := range []struct {
		name, begin, more string
		kind              Kind
		most              int // bytes
	}{
		{"head", "HTTP/1.1 200 OK\r\n", "A: b\r\n", KindFraming, 1 << 20},
		{"line of the head", "HTTP/1.1 200 OK\r\nA: ", "a", KindFraming, 1 << 20},
		{"extension of a chunk", events + "2", ";e", KindFraming, 1 << 20},
		{"trailer", events + "0\r\n", "A: b\r\n", KindFraming, 1 << 20},
		{"events", events, chunk(text), KindBadEvent, 4 << 20},
		{"line of an event", events, chunk(strings.Repeat("a", 8000)), KindBadEvent, maxBody * 5 / 4},
		{"body", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n", chunk(strings.Repeat("[", 8000)), KindFraming, maxBody * 5 / 4},
	} {
		more := &endless{text: x.more}
		plan := &Plan{URL: "http://x", Requests: 1, OutputTokens: 4}
		if _, err := plan.normalize(); err != nil {
			t.Fatal(err)
		}
		e := newExchange(plan, &client{}, nil)
		e.judge.maxTokens = 4
		e.judge.reset()
		cn := memoryConn(io.MultiReader(strings.NewReader(x.begin), more))
		e.begin(t.Context(), cn)
		e.converse(cn)
		if s := &e.sample; s.Outcome != Errored || s.Kind != x.kind || more.read > x.most {
			t.Errorf("%s: %v %s after %d bytes", x.name, s.Outcome, s.Kind, more.read)
		}
	}
}

// Answers in flight hold a bounded amount together, and what an answer held is free when it
// is over.
func TestAnswersTogether(t *testing.T) {
	const n, size, others = 4, 3 << 20, mostHeld - 6<<20
	for name, begin := range map[string]string{
		"events": "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: ",
		"bodies": "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n",
	} {
		plan := &Plan{URL: "http://x", Requests: n, OutputTokens: 4}
		if _, err := plan.normalize(); err != nil {
			t.Fatal(err)
		}
		c := &client{}
		c.held.Store(others)
		failed := 0
		all := make([]*exchange, n)
		for i := range all {
			x := newExchange(plan, c, nil)
			all[i] = x
			x.judge.reset()
			x.sample.reset(0, 0)
			x.events = sse.Parser{Max: maxBody}
			body := io.LimitReader(&endless{text: strings.Repeat("a", 8000)}, size)
			cn := memoryConn(io.MultiReader(strings.NewReader(begin), body, stalled{}))
			x.begin(t.Context(), cn)
			if x.turn(cn) {
				failed++
				if s := &x.sample; !strings.Contains(s.Detail, "together") {
					t.Errorf("%s: %v %s", name, s.Kind, s.Detail)
				}
				x.free()
			}
			if held := c.held.Load(); held > mostHeld {
				t.Fatalf("%s: %d answers hold %d bytes", name, i+1, held)
			}
		}
		if failed == 0 || failed == n {
			t.Errorf("%s: %d of %d answers were refused", name, failed, n)
		}
		for _, x := range all {
			x.free()
		}
		if held := c.held.Load(); held != others {
			t.Errorf("%s: %d bytes are held by no answer", name, held-others)
		}
	}
}

// stalled has nothing to read yet.
type stalled struct{}

func (stalled) Read([]byte) (int, error) { return 0, errAgain }
