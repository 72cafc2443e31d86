package harness

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Streamer is a client's connection with a request on it, which its seed names.
type Streamer struct {
	net.Conn
	Seed int64
}

// Streamers opens n connections with a request for an endless stream each.
func Streamers(t *testing.T, g *Gateway, n int) []Streamer {
	t.Helper()
	all := make([]Streamer, 0, n)
	t.Cleanup(func() {
		for _, c := range all {
			c.Close()
		}
	})
	for seed := range int64(n) {
		body := fmt.Sprintf(`{"model":"weir-sim","stream":true,"ignore_eos":true,"max_tokens":50000,"seed":%d,"messages":[{"role":"user","content":"go on"}]}`, seed)
		conn, err := net.Dial("tcp", strings.TrimPrefix(g.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, Streamer{conn, seed})
		PostRaw(t, conn, body)
	}
	return all
}

// AskStream asks for a stream of 40 tokens.
const AskStream = `{"model":"weir-sim","stream":true,"ignore_eos":true,"max_tokens":40,"messages":[{"role":"user","content":"x"}]}`

// WantTorn checks that an answer ended with an error event of that code on a
// broken connection, and not as if it were complete.
func WantTorn(t *testing.T, a Answer, code string) {
	t.Helper()
	_, event, _ := bytes.Cut(a.Body, []byte(`data: {"error":`))
	if a.Status != 200 || a.Err == nil || bytes.Contains(a.Body, []byte("data: [DONE]")) || !bytes.Contains(event, []byte(`"`+code+`"`)) {
		t.Errorf("status %d, read error %v, want an error event with %s: %.100q ... %q", a.Status, a.Err, code, a.Body, a.Body[max(0, len(a.Body)-300):])
	}
}

// WantComplete checks that a stream ended well.
func WantComplete(t *testing.T, a Answer) {
	t.Helper()
	if a.Status != 200 || a.Err != nil || !bytes.HasSuffix(a.Body, []byte("data: [DONE]\n\n")) || bytes.Contains(a.Body, []byte(`{"error":`)) {
		t.Errorf("status %d, read error %v: %.300q", a.Status, a.Err, a.Body)
	}
}

// Narrow is a net.Dialer's Control for a client that cannot take much unread: the
// socket's receive buffer is the smallest, and so are its segments, by which the
// kernel sizes the sender's buffer. Otherwise megabytes pass before a write has to
// wait.
func Narrow(_, _ string, c syscall.RawConn) (err error) {
	outer := c.Control(func(fd uintptr) {
		if err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 2048); err == nil {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, 536)
		}
	})
	if outer != nil {
		return outer
	}
	return err
}

// DialNarrow connects to a gateway with Narrow.
func DialNarrow(t *testing.T, g *Gateway) net.Conn {
	t.Helper()
	d := net.Dialer{Control: Narrow}
	conn, err := d.Dial("tcp", strings.TrimPrefix(g.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// Answer is an HTTP response read to its end.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
	Err    error // of reading the body
}

// Client bounds a request, so that a hang fails its own test.
var Client = &http.Client{Timeout: 2 * time.Minute}

// Get reads a page.
func Get(t testing.TB, url string) Answer {
	t.Helper()
	resp, err := Client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	return Read(resp)
}

// Post sends a JSON body, with headers as name, value, name, value.
func Post(t testing.TB, url, body string, headers ...string) Answer {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return Read(resp)
}

// PostRaw asks for a chat completion on a connection, and leaves its answer there.
func PostRaw(t testing.TB, conn net.Conn, body string, headers ...string) {
	t.Helper()
	head := "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	for i := 0; i+1 < len(headers); i += 2 {
		head += headers[i] + ": " + headers[i+1] + "\r\n"
	}
	if _, err := fmt.Fprintf(conn, "%sContent-Length: %d\r\n\r\n%s", head, len(body), body); err != nil {
		t.Fatal(err)
	}
}

// Read reads a response to its end.
func Read(resp *http.Response) Answer {
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return Answer{resp.StatusCode, resp.Header, body, err}
}

// APIError is the OpenAI error shape.
type APIError struct {
	Error struct {
		Message string
		Type    string
		Param   *string
		Code    *string
	}
}

// Streamed returns the text of a stream of completions or of a chat, and whether the stream
// ended well.
func Streamed(a Answer) (text string, done bool) {
	for line := range bytes.Lines(a.Body) {
		data, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data: "))
		if !ok {
			continue
		}
		if done = string(data) == "[DONE]"; done {
			continue
		}
		var e struct {
			Choices []struct {
				Text  string
				Delta struct{ Content string }
			}
		}
		if json.Unmarshal(data, &e) == nil {
			for _, choice := range e.Choices {
				text += choice.Text + choice.Delta.Content
			}
		}
	}
	return text, done
}
