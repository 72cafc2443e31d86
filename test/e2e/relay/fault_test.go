package relay

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// scripted is an engine that answers every POST with the bytes it is told to,
// cut into writes as given.
func scripted(t *testing.T, pieces func(body []byte) (header http.Header, chunks [][]byte)) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
	})
	mux.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		header, chunks := pieces(body)
		for k, v := range header {
			w.Header()[k] = v
		}
		for _, c := range chunks {
			_, _ = w.Write(c)
			_ = http.NewResponseController(w).Flush()
		}
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: mux}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close(); <-done })
	return "http://" + l.Addr().String()
}

// A relay changes no byte in either direction, wherever the engine's writes
// were cut.
func TestRelayTouchesNoByte(t *testing.T) {
	harness.Beside(t, harness.Light)
	const strange = "\r\n : not an event\r\n: a comment\n\n" +
		"event: odd\r\ndata:  {\"seed\": 9007199254740993, \"x\": 1.0, \"y\": 1e400, \"z\": null, \"a\":\"<&>\\u0041\"}\r\n\r\n" +
		"data: {\"b\":1,\ndata:  \"a\":2}\n\nid: 7\nretry: 10\n\ndata: \n\ndata: {\"choices\":[{\"index\":0,\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
	var got []byte
	cut := 1
	engine := scripted(t, func(body []byte) (http.Header, [][]byte) {
		got = body
		var chunks [][]byte
		for rest := []byte(strange); len(rest) > 0; {
			n := min(cut, len(rest))
			chunks, rest = append(chunks, rest[:n]), rest[n:]
		}
		return http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}, "X-Ratelimit-Engine": {"kept"}}, chunks
	})
	g := harness.StartGateway(t, "serve", "--engine", "openai="+engine, "--engine", "openai="+engine+",model=other,name=alias")
	harness.Eventually(t, "both ready", func() bool { return harness.Metric(t, g.Admin, "weir_engine_ready") == 2 })
	sent := "{ \"model\" :\t\"m\",\r\n \"stream\":true, \"seed\":9007199254740993,\"t\":1.0,\"u\":null,\"unknown\":[ 1 ,2],\"dup\":1,\"dup\":2,\"messages\":[]}\n"
	for _, cut = range []int{1, 2, 3, 7, 50, 1000} {
		a := harness.Post(t, g.URL+"/v1/chat/completions?q=1", sent)
		if a.Status != 200 || string(a.Body) != strange || a.Err != nil || a.Header.Get("X-Ratelimit-Engine") != "kept" {
			t.Fatalf("cut %d: status %d, error %v, header %v, body\n%q", cut, a.Status, a.Err, a.Header, a.Body)
		}
		if string(got) != sent {
			t.Fatalf("the engine received\n%q", got)
		}
	}
	// An alias is spliced in and nothing else changes.
	aliased := strings.Replace(sent, `"m"`, `"other"`, 1)
	if a := harness.Post(t, g.URL+"/v1/chat/completions", aliased); a.Status != 200 || string(got) != sent {
		t.Errorf("status %d, the engine received\n%q", a.Status, got)
	}
	// Other endpoints with a model pass as well, also when they do not stream.
	for _, path := range []string{"/v1/embeddings", "/v1/rerank", "/v1/audio/speech"} {
		if a := harness.Post(t, g.URL+path, sent); a.Status != 200 || string(a.Body) != strange || string(got) != sent {
			t.Errorf("%s: status %d, %v", path, a.Status, a.Err)
		}
	}
	for _, field := range []string{"model", "stream", "n"} {
		a := harness.Post(t, g.URL+"/v1/chat/completions", `{"model":"m","stream":true,"n":1,"`+field+`":1}`)
		if a.Status != 400 || !strings.Contains(string(a.Body), field) {
			t.Errorf("%s twice: status %d %s", field, a.Status, a.Body)
		}
	}
	g.Interrupt()
}

// A relayed stream that does not end as it must never looks complete.
func TestRelayCutStreams(t *testing.T) {
	harness.Beside(t, harness.Light)
	const event = "data: {\"x\":1}\n\n"
	finish := "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
	huge := "data: " + strings.Repeat("x", 200_000)
	var answer string
	engine := scripted(t, func([]byte) (http.Header, [][]byte) {
		return http.Header{"Content-Type": {"text/event-stream"}}, [][]byte{[]byte(answer)}
	})
	g := harness.StartGateway(t, "serve", "--engine", "openai="+engine)
	for _, c := range []struct {
		name, answer string
		keeps        string // what the client has before the error
	}{
		{"no end marker", event + event, event + event},
		{"inside an event", event + "data: {\"x\":", event},
		{"inside a huge event", event + huge, ""},
		{"before a blank line", event + "data: [DONE]\n", event},
		{"garbage in an event", event + "data: {\"x\":\n\n" + event + finish + "data: [DONE]\n\n", event},
		{"no finish_reason", event + "data: [DONE]\n\n", event},
		{"token after the end", event + finish + "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\ndata: [DONE]\n\n", event + finish},
	} {
		t.Run(c.name, func(t *testing.T) {
			answer = c.answer
			a := harness.Post(t, g.URL+"/v1/chat/completions", `{"model":"m","stream":true,"messages":[]}`)
			if a.Err == nil || bytes.Contains(a.Body, []byte("data: [DONE]")) {
				t.Errorf("ended as complete: error %v, %d bytes", a.Err, len(a.Body))
			}
			if c.keeps != "" && !bytes.HasPrefix(a.Body, []byte(c.keeps+`data: {"error":`)) {
				t.Errorf("body %.300q", a.Body)
			}
		})
	}
	answer = event + huge + "\n\ndata: [DONE]\n\n"
	if a := harness.Post(t, g.URL+"/v1/chat/completions", `{"model":"m","stream":true,"messages":[]}`); a.Err != nil || string(a.Body) != answer {
		t.Errorf("a huge whole event: error %v, %d bytes of %d", a.Err, len(a.Body), len(answer))
	}
	g.Interrupt()
}
