package relay

import (
	"io"
	"net"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// A caller gets the fields of an engine's answer that describe it, each once, and weir's own.
// A type that the engine does not name is not guessed. A length on an answer that can have no
// body does not count as missing bytes.
func TestAnswerHeads(t *testing.T) {
	harness.Beside(t, harness.Light)
	e := startRawEngine(t)
	g := harness.StartGateway(t, "serve", "--engine", "openai="+e.url+",name=raw")
	ask := func(answer string) (head, body string) {
		t.Helper()
		// It closes, so that no request is sent to a connection that is about to be closed.
		e.script(false, 0, strings.Replace(answer, "\r\n", "\r\nConnection: close\r\n", 1))
		conn, err := net.Dial("tcp", strings.TrimPrefix(g.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		harness.PostRaw(t, conn, `{"model":"m","messages":[]}`, "Connection", "close")
		all, err := io.ReadAll(conn)
		if err != nil {
			t.Fatal(err)
		}
		head, body, _ = strings.Cut(string(all), "\r\n\r\n")
		return strings.ToLower(head) + "\r\n", body
	}

	head, body := ask("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nContent-Length: 2\r\nServer: engine\r\nSet-Cookie: a=b\r\n" +
		"X-Accel-Redirect: /etc/passwd\r\nAccess-Control-Allow-Origin: *\r\nTrailer: X\r\nCache-Control: public\r\nRetry-After: 3\r\n\r\n{}")
	for _, field := range []string{"content-length: 2", "content-type: application/json", "retry-after: 3", "cache-control: no-store, no-transform\r\n", "x-content-type-options: nosniff\r\n", "x-request-id: ", "date: "} {
		if strings.Count(head, "\n"+field) != 1 {
			t.Errorf("not once %s:\n%s", field, head)
		}
	}
	for _, name := range []string{"server", "set-cookie", "x-accel-redirect", "access-control-allow-origin", "trailer"} {
		if strings.Contains(head, "\n"+name+":") {
			t.Errorf("%s passed:\n%s", name, head)
		}
	}
	if body != "{}" {
		t.Errorf("body %q", body)
	}

	if head, body = ask("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"); strings.Contains(head, "\ncontent-type:") || body != "hello" {
		t.Errorf("%s\n%s", head, body)
	}
	for _, answer := range []string{
		"HTTP/1.1 304 Not Modified\r\nContent-Length: 10\r\n\r\n", "HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\n", "HTTP/1.1 204 No Content\r\n\r\n",
	} {
		if head, body = ask(answer); !strings.HasPrefix(head, strings.ToLower(answer[:12])) || body != "" {
			t.Errorf("%q has become\n%s\n%s", answer, head, body)
		}
	}
	if ended := g.Balanced(); ended["finished"] != 5 || len(g.Failures()) != 0 {
		t.Errorf("ended %v, failures %+v", ended, g.Failures())
	}
	g.Interrupt()
}
