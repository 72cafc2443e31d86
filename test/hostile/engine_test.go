//go:build linux

package hostile

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// scripted is an engine whose answers are scripted. A request whose text has @TITLE is answered with
// the script of that title; others get what they say.
type scripted struct {
	net.Listener
	scripts map[string]string

	mu    sync.Mutex
	conns map[net.Conn]bool
	every string // the script for everything, where there is one
}

// startScripted listens until the test ends.
func startScripted(t *testing.T, scripts map[string]string) *scripted {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &scripted{Listener: l, scripts: scripts, conns: map[net.Conn]bool{}}
	t.Cleanup(func() { l.Close(); e.hangUp() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			e.mu.Lock()
			e.conns[c] = true
			e.mu.Unlock()
			go e.speak(c)
		}
	}()
	return e
}

func (e *scripted) url() string { return "http://" + e.Addr().String() }

// hangUp closes all connections.
func (e *scripted) hangUp() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.conns {
		c.Close()
	}
	clear(e.conns)
}

// speak answers the requests of a connection.
func (e *scripted) speak(c net.Conn) {
	defer func() {
		c.Close()
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.conns, c)
	}()
	for in := bufio.NewReader(c); ; {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		switch script, ok := e.script(body); {
		case req.Method == http.MethodGet && req.URL.Path == "/v1/models":
			whole(c, `{"object":"list","data":[{"id":"m","object":"model"}]}`)
		case req.Method == http.MethodGet:
			fmt.Fprint(c, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
		case ok:
			if !e.play(c, script) {
				return
			}
		default:
			whole(c, said(body))
		}
	}
}

// always has every request answered by a script.
func (e *scripted) always(script string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.every = script
}

// script finds the script that a request names.
func (e *scripted) script(body []byte) (string, bool) {
	e.mu.Lock()
	every := e.every
	e.mu.Unlock()
	if every != "" {
		return every, true
	}
	_, name, ok := strings.Cut(string(body), "@")
	if !ok {
		return "", false
	}
	name, _, _ = strings.Cut(name, "@")
	s, ok := e.scripts[name]
	return s, ok
}

// play writes a script; a tilde at its end closes the connection, and three tildes repeat what is
// between them and the end until the gateway hangs up, at most 48 MB.
func (e *scripted) play(c net.Conn, script string) (on bool) {
	head, again, endless := strings.Cut(script, "~~~")
	head, closes := strings.CutSuffix(head, "~")
	if _, err := io.WriteString(c, head); err != nil {
		return false
	}
	if endless {
		again = strings.Repeat(again, max(1, 65536/len(again)))
		for sent := 0; sent < 48<<20; sent += len(again) {
			_ = c.SetWriteDeadline(time.Now().Add(5 * time.Second))
			if _, err := io.WriteString(c, again); err != nil {
				break
			}
		}
	}
	return !closes && !endless
}

func whole(c net.Conn, body string) {
	fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// answerOf is an answer that says something and has a usage.
func answerOf(text, usage string) string {
	content, _ := json.Marshal(text)
	return fmt.Sprintf(`{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":%s},"finish_reason":"stop"}],"usage":%s}`, content, usage)
}

// said is the answer that says what the request's last message says.
func said(body []byte) string {
	var r struct{ Messages []struct{ Content string } }
	if json.Unmarshal(body, &r) != nil || len(r.Messages) == 0 {
		return answerOf("nothing", `null`)
	}
	return answerOf(r.Messages[len(r.Messages)-1].Content, `{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}`)
}
