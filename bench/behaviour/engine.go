//go:build linux

package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
)

// engine is an OpenAI-compatible engine that follows a script. The current script
// answers each completion request.
type engine struct {
	listener net.Listener
	wait     sync.WaitGroup

	mu     sync.Mutex
	script func(*exchange)
	tries  int
	body   []byte // of the last completion's request
	conns  map[net.Conn]bool
}

// exchange is one completion request at the engine.
type exchange struct {
	conn net.Conn
	// gone is closed when the peer has closed or broken the connection.
	gone chan struct{}
}

func newEngine() (*engine, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	e := &engine{listener: l, conns: map[net.Conn]bool{}}
	e.wait.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			e.mu.Lock()
			e.conns[conn] = true
			e.mu.Unlock()
			e.wait.Go(func() { e.serve(conn) })
		}
	})
	return e, nil
}

func (e *engine) addr() string { return e.listener.Addr().String() }

func (e *engine) close() {
	e.listener.Close()
	e.mu.Lock()
	for conn := range e.conns {
		conn.Close()
	}
	e.mu.Unlock()
	e.wait.Wait()
}

// follow sets the script for all later requests.
func (e *engine) follow(script func(*exchange)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.script, e.tries, e.body = script, 0, nil
}

// asked returns the number of completion requests since the script was set, and the
// body of the last one.
func (e *engine) asked() (tries int, body []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.tries, e.body
}

// serve answers the requests of a connection one after the other, until the connection
// ends or a completion request is answered.
func (e *engine) serve(conn net.Conn) {
	defer func() {
		conn.Close()
		e.mu.Lock()
		delete(e.conns, conn)
		e.mu.Unlock()
	}()
	in := bufio.NewReader(conn)
	for {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if r.Method != http.MethodPost || r.URL.Path != "/v1/chat/completions" {
			const models = `{"object":"list","data":[{"id":"bench","object":"model","created":1767225600,"owned_by":"bench"}]}`
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(models), models)
			continue
		}
		e.mu.Lock()
		script := e.script
		e.tries++
		e.body = body
		e.mu.Unlock()
		if script == nil {
			return
		}
		x := &exchange{conn: conn, gone: make(chan struct{})}
		// Only the end of the connection can come before the answer is over.
		e.wait.Go(func() {
			defer close(x.gone)
			_, _ = in.ReadByte()
		})
		script(x)
		conn.Close()
		<-x.gone
		return
	}
}

// begin begins a stream of events.
func (x *exchange) begin() {
	io.WriteString(x.conn, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
}

// say sends a text as one chunk.
func (x *exchange) say(text string) error {
	_, err := fmt.Fprintf(x.conn, "%x\r\n%s\r\n", len(text), text)
	return err
}

// end sends the chunk that ends a body.
func (x *exchange) end() { io.WriteString(x.conn, "0\r\n\r\n") }

// event returns the n-th word of a stream.
func event(n int) string {
	return fmt.Sprintf(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1767225600,"model":"bench","choices":[{"index":0,"delta":{"content":" w%d"},"logprobs":null,"finish_reason":null}]}`+"\n\n", n)
}

const finish = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1767225600,"model":"bench","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}` + "\n\n"
const done = "data: [DONE]\n\n"
