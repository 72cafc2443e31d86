package gateway

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing/synctest"
	"time"

	"weir/internal/gateway/front"
	"weir/models"
)

// caller is one connection to the gateway with one request on it at a time.
type caller struct {
	b      *bench
	conn   *memConn
	id     string
	method string
	raw    []byte
}

const (
	chatPath        = "/v1/chat/completions"
	completionsPath = "/v1/completions"
)

// dial connects with a receive buffer of window bytes; 0 is a large one.
func (b *bench) dial(window int) *caller {
	if window == 0 {
		window = 4 << 20
	}
	c := &caller{b: b, conn: b.net.dial(window)}
	b.callers = append(b.callers, c)
	return c
}

// post sends a request on a connection of its own.
func (b *bench) post(path, body string, headers ...string) *caller {
	c := b.dial(0)
	c.send("POST", path, body, headers...)
	return c
}

// send sends a request and lets the gateway work on it until it waits.
func (c *caller) send(method, path, body string, headers ...string) {
	c.head(method, path, len(body), headers...)
	c.write(body)
	synctest.Wait()
}

// head sends a request's head.
func (c *caller) head(method, path string, length int, headers ...string) {
	c.b.nextID++
	c.id = fmt.Sprintf("test-%d", c.b.nextID)
	c.method, c.raw = method, nil
	var h strings.Builder
	fmt.Fprintf(&h, "%s %s HTTP/1.1\r\nHost: weir\r\nX-Request-Id: %s\r\n", method, path, c.id)
	if method == "POST" {
		fmt.Fprintf(&h, "Content-Type: application/json\r\nContent-Length: %d\r\n", length)
		c.b.sent[c.id]++
	}
	for i := 0; i < len(headers); i += 2 {
		fmt.Fprintf(&h, "%s: %s\r\n", headers[i], headers[i+1])
	}
	c.write(h.String() + "\r\n")
}

func (c *caller) write(s string) {
	c.b.t.Helper()
	if _, err := c.conn.Write([]byte(s)); err != nil {
		c.b.t.Errorf("client's write: %v", err)
	}
}

// hangUp closes the connection as a client does that goes away.
func (c *caller) hangUp() {
	c.conn.Close()
	synctest.Wait()
}

// received is what a client has of an answer so far.
type received struct {
	status int // 0: no head yet
	header http.Header
	body   []byte
	whole  bool // the body has ended as HTTP has it
	closed bool // the server has closed the connection
}

// answer gives what has arrived once everybody waits.
func (c *caller) answer() *received {
	a := c.came()
	if told := bytes.Contains(a.body, []byte(`"error"`)) && bytes.HasSuffix(a.body, []byte("\n\n")); told && !a.whole && !a.closed {
		time.Sleep(front.HearingTime) // then the response breaks
		a = c.came()
	}
	return a
}

// came reads what has come of the answer so far.
func (c *caller) came() *received {
	synctest.Wait()
	arrived, closed := c.conn.drain()
	c.raw = append(c.raw, arrived...)
	a := &received{closed: closed}
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(c.raw)), &http.Request{Method: c.method})
	if err != nil {
		return a
	}
	a.status, a.header = resp.StatusCode, resp.Header
	body, err := io.ReadAll(resp.Body)
	a.body = body
	a.whole = err == nil && (resp.ContentLength >= 0 || len(resp.TransferEncoding) > 0 || closed)
	return a
}

// apiError is an error as the API words it.
type apiError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

func (e *apiError) code() string {
	if e.Code == nil {
		return ""
	}
	return *e.Code
}

// refusal reads an answer that must be a whole error with a status.
func (c *caller) refusal(status int) *apiError {
	c.b.t.Helper()
	a := c.answer()
	var e struct{ Error *apiError }
	if err := json.Unmarshal(a.body, &e); err != nil || e.Error == nil || a.status != status || !a.whole {
		c.b.t.Fatalf("status %d, whole %v, closed %v, body %q (%v); want an error with status %d", a.status, a.whole, a.closed, a.body, err, status)
	}
	if got := a.header.Get("X-Request-Id"); got != c.id {
		c.b.t.Errorf("X-Request-Id %q, want %q", got, c.id)
	}
	return e.Error
}

// usage is an answer's usage.
type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
	Details    *struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// callerChoice is a choice of a chunk or of an answer, of either endpoint.
type callerChoice struct {
	Index int
	Text  string
	Delta struct {
		Role      string
		Content   string
		Reasoning string     `json:"reasoning_content"`
		Calls     []toolCall `json:"tool_calls"`
	}
	Message struct {
		Role      string
		Content   string
		Reasoning string     `json:"reasoning_content"`
		Calls     []toolCall `json:"tool_calls"`
	}
	FinishReason *string `json:"finish_reason"`
}

// toolCall is a call, or what a chunk says of one.
type toolCall struct {
	Index    int
	ID, Type string
	Function struct{ Name, Arguments string }
}

// object is a chunk or an answer.
type object struct {
	ID, Object, Model string
	Choices           []callerChoice
	Usage             *usage
	Error             *apiError
}

// story is a streamed answer read by its events.
type story struct {
	*received
	events []object // without the end marker
	text   string
	finish string
	usage  *usage
	err    *apiError
	done   bool
	torn   string // what follows the last whole event
	// continued counts the comments that say that the stream went on at another engine.
	continued int
}

// story reads what has arrived of a stream.
func (c *caller) story() *story {
	c.b.t.Helper()
	s := &story{received: c.answer()}
	rest := string(s.body)
	for {
		event, after, ok := strings.Cut(rest, "\n\n")
		if !ok {
			s.torn = rest
			return s
		}
		rest = after
		if strings.HasPrefix(event, ": x-weir-continued ") {
			s.continued++
			continue
		}
		data, ok := strings.CutPrefix(event, "data: ")
		if s.done || s.err != nil {
			c.b.t.Fatalf("event %q after the end of the stream", event)
		}
		if data == "[DONE]" {
			s.done = true
			continue
		}
		var o object
		if err := json.Unmarshal([]byte(data), &o); !ok || err != nil {
			c.b.t.Fatalf("event %q: %v", event, err)
		}
		s.events = append(s.events, o)
		s.take(&o)
	}
}

func (s *story) take(o *object) {
	for _, ch := range o.Choices {
		s.text += ch.Text + ch.Delta.Content
		if ch.FinishReason != nil {
			s.finish = *ch.FinishReason
		}
	}
	if o.Usage != nil {
		s.usage = o.Usage
	}
	s.err = o.Error
}

// wantWhole checks a stream that must have ended well.
func (c *caller) wantWhole(text, finish string) *story {
	c.b.t.Helper()
	s := c.story()
	if s.status != 200 || s.text != text || s.finish != finish || !s.done || !s.whole || s.err != nil {
		c.b.t.Fatalf("status %d, text %.200q, finish %q, done %v, whole %v, error %+v; want text %.200q, finish %q",
			s.status, s.text, s.finish, s.done, s.whole, s.err, text, finish)
	}
	return s
}

// wantBroken checks a stream that must have ended in an error event and a
// broken connection, after the text given.
func (c *caller) wantBroken(text, code string) *story {
	c.b.t.Helper()
	s := c.story()
	if s.err == nil {
		c.b.t.Fatalf("no error event: status %d, body %q", s.status, s.body)
	}
	if s.err.code() != code || s.text != text || s.finish != "" || s.done || s.whole || !s.closed {
		c.b.t.Fatalf("error %q, text %q, finish %q, done %v, whole %v, closed %v; want error %q after %q, and the connection broken",
			s.err.code(), s.text, s.finish, s.done, s.whole, s.closed, code, text)
	}
	return s
}

// whole reads an answer that was not streamed.
func (c *caller) whole() *object {
	c.b.t.Helper()
	a := c.answer()
	o := new(object)
	if err := json.Unmarshal(a.body, o); err != nil || a.status != 200 || !a.whole || len(o.Choices) != 1 {
		c.b.t.Fatalf("status %d, whole %v, body %q: %v", a.status, a.whole, a.body, err)
	}
	return o
}

// askChat is the body of a request; fields follow as JSON.
func askChat(fields string) string {
	return `{"model":"` + models.SimName + `","messages":[{"role":"user","content":"hi"}]` + fields + `}`
}

// askStream is the body of a streamed request.
func askStream(fields string) string { return askChat(`,"stream":true` + fields) }

// askText is the body of a completion whose prompt is three ids.
func askText(fields string) string {
	return `{"model":"` + models.SimName + `","prompt":[300,301,302]` + fields + `}`
}
