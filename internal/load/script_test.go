package load

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weir/internal/workload/content"
)

func TestMain(m *testing.M) {
	if serveIfAsked() {
		return
	}
	goleak.VerifyTestMain(m)
}

// vocabulary is a word list like a real one's: 2048 short words.
func vocabulary(t testing.TB) *content.Words {
	t.Helper()
	const letters = "abcdefghijklmnopqrstuvwxyz"
	w, err := content.New(4096, func(id uint32) ([]byte, bool) {
		if id < 676 {
			return []byte{' ', letters[id/26], letters[id%26]}, true
		}
		id -= 676
		return []byte{' ', letters[id/676], letters[id/26%26], letters[id%26]}, true
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// answer returns the first n words that a simulated engine would say.
func answer(t testing.TB, w *content.Words, n int) []string {
	t.Helper()
	s := w.Start([]uint32{1 << 20}, 7)
	words := make([]string, 0, n)
	for range n {
		id := w.Next(&s)
		w.Push(&s, id)
		text, ok := w.Text(id)
		if !ok {
			t.Fatalf("id %d is not a word", id)
		}
		words = append(words, text)
	}
	return words
}

// reply is a streamed answer taken apart, for a test to damage.
type reply struct {
	chat    bool
	words   []string
	finish  string // empty leaves finish_reason out
	usage   int    // completion_tokens; negative leaves usage out
	done    bool
	tail    string // raw, after all
	newline string
}

// whole is the undamaged answer of these words.
func whole(words []string) *reply {
	return &reply{chat: true, words: words, finish: "length", usage: len(words), done: true, newline: "\n"}
}

// events returns the data of the reply's events.
func (r *reply) events() []string {
	var out []string
	if r.chat {
		out = append(out, `{"id":"c-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`)
	}
	for _, w := range r.words {
		out = append(out, r.text(w))
	}
	if r.finish != "" {
		out = append(out, r.end())
	}
	if r.usage >= 0 {
		out = append(out, fmt.Sprintf(`{"id":"c-1","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":%d,"total_tokens":%d}}`, r.usage, r.usage+5))
	}
	if r.done {
		out = append(out, "[DONE]")
	}
	return out
}

func (r *reply) text(w string) string {
	if r.chat {
		return fmt.Sprintf(`{"id":"c-1","choices":[{"index":0,"delta":{"content":%q},"finish_reason":null}]}`, w)
	}
	return fmt.Sprintf(`{"id":"c-1","choices":[{"index":0,"text":%q,"finish_reason":null}]}`, w)
}

func (r *reply) end() string {
	if r.chat {
		return fmt.Sprintf(`{"id":"c-1","choices":[{"index":0,"delta":{},"finish_reason":%q}]}`, r.finish)
	}
	return fmt.Sprintf(`{"id":"c-1","choices":[{"index":0,"text":"","finish_reason":%q}]}`, r.finish)
}

// frames renders events.
func (r *reply) frames(events []string) []string {
	out := make([]string, 0, len(events)+1)
	for _, e := range events {
		out = append(out, "data: "+e+r.newline+r.newline)
	}
	if r.tail != "" {
		out = append(out, r.tail)
	}
	return out
}

const streamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\nX-Request-Id: r-1\r\n\r\n"

// chunked renders frames as HTTP chunks, one each, without the last one.
func chunked(frames []string) string {
	var b strings.Builder
	for _, f := range frames {
		fmt.Fprintf(&b, "%x\r\n%s\r\n", len(f), f)
	}
	return b.String()
}

const lastChunk = "0\r\n\r\n"

// wire renders the reply as it goes over the wire.
func (r *reply) wire() string { return streamHead + chunked(r.frames(r.events())) + lastChunk }

// serve runs a server whose every request is read to its end and then handed
// over with its raw connection.
func serve(t testing.TB, handle func(n int, body map[string]any, c *net.TCPConn)) string {
	t.Helper()
	requests := make(chan int, 1)
	requests <- 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Errorf("request body: %v", err)
		}
		n := <-requests
		requests <- n + 1
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Errorf("hijack: %v", err)
			return
		}
		defer c.Close()
		handle(n, body, c.(*net.TCPConn))
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// serveText runs a server that answers every request with the same bytes and
// closes.
func serveText(t testing.TB, text string) string {
	return serve(t, func(_ int, _ map[string]any, c *net.TCPConn) {
		if _, err := c.Write([]byte(text)); err != nil {
			t.Errorf("write: %v", err)
		}
	})
}

// once runs a plan of one request and gives its sample.
func once(t *testing.T, ctx context.Context, p Plan) (*Report, Sample) {
	t.Helper()
	var got Sample
	p.Requests, p.Model = 1, "m"
	if p.Timeout == 0 {
		p.Timeout = 20 * time.Second
	}
	p.OnSample = func(s *Sample) { got = *s }
	r, err := Run(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	if r.Requests != 1 || r.Complete+r.Corrupt+r.Errored+r.Abandoned+r.Unfinished != 1 {
		t.Fatalf("the request is counted %d times: %+v", r.Requests, r)
	}
	return r, got
}

// readRequest reads one request off a raw connection.
func readRequest(br *bufio.Reader) error {
	req, err := http.ReadRequest(br)
	if err != nil {
		return err
	}
	_, err = br.Discard(int(req.ContentLength))
	return err
}

// parseRequest takes a rendered request apart.
func parseRequest(t testing.TB, wire string) (*http.Request, []byte) {
	t.Helper()
	br := bufio.NewReader(strings.NewReader(wire))
	req, err := http.ReadRequest(br)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		t.Fatal(err)
	}
	if br.Buffered() != 0 {
		t.Errorf("%d bytes beyond the request", br.Buffered())
	}
	return req, body
}
