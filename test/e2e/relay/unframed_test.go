package relay

import (
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// An answer that ends with its connection looks like one whose engine has died. It counts as
// whole only if its own bytes show that. Otherwise the client can detect the cut, and the
// gateway keeps it as an integrity failure.
func TestUnframedAnswers(t *testing.T) {
	harness.Beside(t, harness.Light)
	const (
		json   = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
		old    = "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n"
		plain  = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"
		events = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
		chat   = "/v1/chat/completions"
		rerank = "/v1/rerank"
	)
	e := startRawEngine(t)
	g := harness.StartGateway(t, "serve", "--engine", "openai="+e.url+",name=raw")
	for _, c := range []struct {
		name, path, head, body string
		whole                  bool
		event                  string // the error event behind it
	}{
		{"half a document", chat, json, `{"choices":[{"message":{"content":"half an ans`, false, ""},
		{"half a document of HTTP/1.0", chat, old, `{"choices":[`, false, ""},
		{"a document", chat, json, `{"choices":[{"message":{"content":"} \" all"}}]}`, true, ""},
		{"a document of HTTP/1.0", rerank, old, "[1, [2]]\r\n", true, ""},
		{"text", rerank, plain, "all of it, or not", false, ""},
		{"a chat's stream", chat, events, word + stop + done, true, ""},
		{"a chat's stream without its end marker", chat, events, word + stop, false, "incomplete"},
		{"another stream", rerank, events, word + done, true, ""},
		{"another stream without end marker", rerank, events, word, false, "unframed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g.T = t
			kept := len(g.Failures())
			e.script(false, 0, c.head, c.body)
			a := harness.Post(t, g.URL+c.path, `{"model":"m","stream":true,"messages":[],"query":"","documents":[]}`)
			body, event, _ := strings.Cut(string(a.Body), `data: {"error":`)
			if a.Status != 200 || body != c.body || (a.Err == nil) != c.whole || (event != "") != (c.event != "") {
				t.Errorf("status %d, read error %v, body %q", a.Status, a.Err, a.Body)
			}
			failures := g.Failures()
			reason := "unframed"
			if c.event != "" {
				reason = c.event
			}
			switch {
			case c.whole && len(failures) != kept:
				t.Errorf("kept %+v", failures[0])
			case !c.whole && (len(failures) != kept+1 || failures[0].Reason != reason || failures[0].Engine != "raw"):
				t.Errorf("kept %+v, want one more with %s", failures, reason)
			}
		})
	}
	g.T = t
	if n := harness.Metric(t, g.Admin, `weir_integrity_failures_total{engine="raw",reason="unframed"}`); n != 4 {
		t.Errorf("%v failures counted, want 4", n)
	}
	if ended := g.Balanced(); ended["failed"] != 5 || ended["finished"] != 4 {
		t.Errorf("ended %v", ended)
	}
	g.Interrupt()
}
