package http1

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRequest(t *testing.T) {
	r := Request{Method: "POST", Target: "/v1/chat/completions?x=%20", Host: "engine:8000", Length: 12,
		Header: http.Header{"Content-Type": {" application/json\t"}, "cookie": {"a=b"}, "Accept": {"*/*"}}, Fields: "Accept: text/html\r\n",
		Omit: func(name string) bool { return name == "Cookie" || name == "Accept" }}
	got, err := r.Append([]byte("before"))
	if err != nil {
		t.Fatal(err)
	}
	want := "beforePOST /v1/chat/completions?x=%20 HTTP/1.1\r\nHost: engine:8000\r\nContent-Type: application/json\r\nAccept: text/html\r\nContent-Length: 12\r\n\r\n"
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
}

// A request's framing is the client's own, whatever fields it is handed.
func TestRequestOwnsItsFraming(t *testing.T) {
	r := Request{Method: "POST", Target: "/", Host: "engine", Length: 3, Header: http.Header{
		"Host": {"other"}, "Content-Length": {"999"}, "content-length": {"999"}, "Transfer-Encoding": {"chunked"},
		"Connection": {"close"}, "Expect": {"100-continue"}, "Trailer": {"X"}, "Te": {"trailers"}, "Upgrade": {"h2c"},
	}}
	got, err := r.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := "POST / HTTP/1.1\r\nHost: engine\r\nContent-Length: 3\r\n\r\n"; string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestRequestRefusals(t *testing.T) {
	good := func() Request {
		return Request{Method: "POST", Target: "/v1", Host: "engine", Header: http.Header{}}
	}
	for name, spoil := range map[string]func(*Request){
		"no method":            func(r *Request) { r.Method = "" },
		"method with a space":  func(r *Request) { r.Method = "GET /x" },
		"no target":            func(r *Request) { r.Target = "" },
		"absolute target":      func(r *Request) { r.Target = "http://x/" },
		"target with a space":  func(r *Request) { r.Target = "/a HTTP/1.1" },
		"target with a CR":     func(r *Request) { r.Target = "/a\r\nX: y" },
		"no host":              func(r *Request) { r.Host = "" },
		"host with a line":     func(r *Request) { r.Host = "a\r\nX: y" },
		"host with user info":  func(r *Request) { r.Host = "u@a" },
		"empty name":           func(r *Request) { r.Header[""] = []string{"x"} },
		"name with a colon":    func(r *Request) { r.Header["X:"] = []string{"x"} },
		"name with a line":     func(r *Request) { r.Header["X\r\nY"] = []string{"x"} },
		"value with a line":    func(r *Request) { r.Header["X"] = []string{"a\r\nY: z"} },
		"value with a feed":    func(r *Request) { r.Header["X"] = []string{"a\nY: z"} },
		"value with a zero":    func(r *Request) { r.Header["X"] = []string{"a\x00"} },
		"value with a delete":  func(r *Request) { r.Header["X"] = []string{"a\x7f"} },
		"second value is evil": func(r *Request) { r.Header["X"] = []string{"a", "b\r"} },
	} {
		r := good()
		spoil(&r)
		if got, err := r.Append([]byte("kept")); err == nil || string(got) != "kept" {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
}

// Any accepted request is read by a server as exactly one request, with the parts it was made of.
func FuzzRequest(f *testing.F) {
	f.Add("POST", "/v1/x?y=z", "engine:80", "X-Name", "value", []byte("{}"))
	f.Add("GET", "/", "[::1]:80", "A", " b ", []byte(nil))
	f.Fuzz(func(t *testing.T, method, target, host, name, value string, body []byte) {
		r := Request{Method: method, Target: target, Host: host, Header: http.Header{name: {value}}, Length: int64(len(body))}
		head, err := r.Append(nil)
		if err != nil {
			return
		}
		in := bufio.NewReader(bytes.NewReader(append(head, body...)))
		got, err := http.ReadRequest(in)
		if err != nil {
			// A URL has more rules than HTTP's grammar.
			if strings.Contains(err.Error(), "invalid URI") || strings.Contains(err.Error(), "parse ") || strings.Contains(err.Error(), "malformed Host") {
				return
			}
			t.Fatalf("a server refuses %q: %v", head, err)
		}
		read, err := io.ReadAll(got.Body)
		if err != nil || !bytes.Equal(read, body) {
			t.Fatalf("body %q, %v; want %q", read, err, body)
		}
		if got.Method != method || got.RequestURI != target {
			t.Fatalf("got %s %s, want %s %s", got.Method, got.RequestURI, method, target)
		}
		if _, err := in.ReadByte(); err != io.EOF {
			t.Fatalf("bytes are left behind the request %q", head)
		}
	})
}
