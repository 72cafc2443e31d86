package relay

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/internal/engine"
	"weir/internal/trace"
	"weir/internal/wire/http1"
)

// fieldsOf returns the fields of an answer.
func fieldsOf(resp *engine.RelayResponse) http.Header {
	h := http.Header{}
	resp.Fields.Put(h)
	return h
}

// An engine gets the caller's fields, but for those that belong to the connection, by their names or
// by what Connection says, and for those that weir has others for. A name with an underscore is
// another name to weir and, where fields become variables, the same one to an engine.
func TestEndToEnd(t *testing.T) {
	p := play(t, func(_ int, w *wire) {
		for {
			r, _ := w.request()
			if r == nil {
				return
			}
			r.Header.Del("Content-Length")
			var lines []string
			for name, values := range r.Header {
				lines = append(lines, name+"="+strings.Join(values, "|"))
			}
			slices.Sort(lines)
			said := strings.Join(lines, "\n")
			w.send("HTTP/1.1 200 OK\r\nContent-Type: " + strings.ReplaceAll(said, "\n", "; ") + "\r\nContent-Length: 0\r\n\r\n")
		}
	})
	e := p.engine(Options{})
	for name, c := range map[string]struct {
		header http.Header
		id     string
		caller *trace.Caller
		want   string
	}{
		"underscores": {http.Header{"Content_length": {"5"}, "X-Trace": {"1"}, "Transfer_Encoding": {"chunked"}}, "", nil, "X-Trace=1"},
		"hops": {http.Header{"Connection": {"close, x-hop", "X-Other"}, "X-Hop": {"1"}, "X-Other": {"2"}, "Te": {"trailers"}, "Keep-Alive": {"5"}, "Trailer": {"X"},
			"Proxy-Authenticate": {"a"}, "Proxy-Authorization": {"b"}, "Proxy-Connection": {"c"}, "Upgrade": {"h2c"}, "X-End": {"3", "4"}}, "", nil, "X-End=3|4"},
		"own":             {http.Header{"X-Request-Id": {"callers"}, "Traceparent": {"p"}, "Tracestate": {"s"}}, "weirs", nil, "Traceparent=p; Tracestate=s; X-Request-Id=weirs"},
		"span":            {http.Header{"Traceparent": {"p"}, "Tracestate": {"s"}}, "", &trace.Caller{Parent: "q", State: "t", Own: true}, "Traceparent=q; Tracestate=t"},
		"span, no state":  {http.Header{"Traceparent": {"p"}, "Tracestate": {"s"}}, "", &trace.Caller{Parent: "q", Own: true}, "Traceparent=q"},
		"the caller's id": {http.Header{"Traceparent": {"p"}}, "", &trace.Caller{Parent: "p"}, "Traceparent=p"},
	} {
		t.Run(name, func(t *testing.T) {
			before := len(c.header)
			resp, err := e.Forward(bounded(t), &engine.RelayRequest{Method: "POST", Path: "/v1/x", Header: c.header, ID: c.id}, &trace.Leg{Caller: c.caller})
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if got := resp.Fields.Get("Content-Type"); got != "Accept-Encoding=identity; "+c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if len(c.header) != before {
				t.Error("the caller's fields were changed")
			}
		})
	}
}

// Only fields about an answer pass, whatever their case, and those of the connection do not.
func TestAnswered(t *testing.T) {
	for name, c := range map[string]struct {
		head string
		want http.Header
	}{
		"about the answer": {"content-TYPE: a\r\nDate: x\r\nServer: y\r\nSet-Cookie: z\r\nx-ratelimit-left: 1\r\nX-Accel-Redirect: /f\r\nopenai-version: 2\r\nX-Ratelimit-Left: 3",
			http.Header{"Content-Type": {"a"}, "X-Ratelimit-Left": {"1", "3"}, "Openai-Version": {"2"}}},
		"once":             {"Content-Type: a\r\nContent-Type: b\r\nContent-Encoding: c\r\ncontent-encoding: d", http.Header{"Content-Type": {"a"}, "Content-Encoding": {"c", "d"}}},
		"hops":             {"Content-Encoding: a\r\nConnection: close\r\nconnection: x, content-encoding\r\nSunset: s", http.Header{"Sunset": {"s"}}},
		"not the engine's": {"Cache-Control: public\r\nX-Content-Type-Options: sniff", http.Header{}},
		"weir's own":       {"Connection: X-Request-Id\r\nX-Request-Id: b", http.Header{}},
	} {
		t.Run(name, func(t *testing.T) {
			resp, err := http1.ParseResponse([]byte("HTTP/1.1 200 OK\r\n" + c.head + "\r\n\r\n"))
			if err != nil {
				t.Fatal(err)
			}
			a, h := answer{resp.Fields}, http.Header{"X-Request-Id": {"weirs"}}
			a.Put(h)
			c.want["X-Request-Id"] = []string{"weirs"}
			if diff := cmp.Diff(c.want, h); diff != "" {
				t.Error(diff)
			}
			for name := range h {
				if got := a.Get(name); name != "X-Request-Id" && got != h.Get(name) {
					t.Errorf("%s: %q", name, got)
				}
			}
			if a.Get("X-Request-Id") != "" || a.Get("Server") != "" {
				t.Error("a field is got that does not pass")
			}
		})
	}
}
