package http1

import (
	"bufio"
	"bytes"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const plainHead = "POST /v1/chat/completions HTTP/1.1\r\nHost: weir:8080\r\nuser-agent: x\r\nAccept: */*\r\nContent-Type: application/json\r\nX-A: 1\r\nx-a: 2\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\n"

// notPlain are requests in whose reading servers have differed, each with what it is about, and
// requests that only net/http reads.
var notPlain = []struct{ name, text string }{
	{"another method", "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"},
	{"a method in small letters", "post / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"},
	{"an empty line first", "\r\n" + plainHead + "hello"},
	{"no version", "POST /\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"},
	{"HTTP/1.0", "POST / HTTP/1.0\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"},
	{"HTTP/2.0", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"},
	{"two spaces", "POST  / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"},
	{"a tab in the request line", "POST\t/ HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"},
	{"a whole address", "POST http://b/ HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"},
	{"a query", "POST /?a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"},
	{"a fragment", "POST /#a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"},
	{"an escape", "POST /%61 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"},
	{"a byte that is not ASCII in the path", "POST /\xc3\xa9 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"},
	{"line feeds alone", "POST / HTTP/1.1\nHost: a\nContent-Length: 5\n\nhello"},
	{"a line feed alone", "POST / HTTP/1.1\r\nHost: a\nX: y\r\nContent-Length: 5\r\n\r\nhello"},
	{"a line feed alone before the end", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\n\r\n\r\nhello"},
	{"a carriage return in a value", "POST / HTTP/1.1\r\nHost: a\r\nX: y\rContent-Length: 1\r\nContent-Length: 5\r\n\r\nhello"},
	{"a NUL in a value", "POST / HTTP/1.1\r\nHost: a\r\nX: y\x00\r\nContent-Length: 5\r\n\r\nhello"},
	{"a byte that is not ASCII in a value", "POST / HTTP/1.1\r\nHost: a\r\nX: \xff\r\nContent-Length: 5\r\n\r\nhello"},
	{"a folded field", "POST / HTTP/1.1\r\nHost: a\r\nX: y\r\n Content-Length: 1\r\nContent-Length: 5\r\n\r\nhello"},
	{"a first field that is folded", "POST / HTTP/1.1\r\n Host: a\r\nContent-Length: 5\r\n\r\nhello"},
	{"a space before the colon", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length : 5\r\n\r\nhello"},
	{"a tab before the colon", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length\t: 5\r\n\r\nhello"},
	{"a NUL in a name", "POST / HTTP/1.1\r\nHost: a\r\nContent-\x00Length: 5\r\n\r\nhello"},
	{"no name", "POST / HTTP/1.1\r\nHost: a\r\n: 5\r\nContent-Length: 5\r\n\r\nhello"},
	{"no colon", "POST / HTTP/1.1\r\nHost: a\r\nX\r\nContent-Length: 5\r\n\r\nhello"},
	{"no host", "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"},
	{"an empty host", "POST / HTTP/1.1\r\nHost:\r\nContent-Length: 5\r\n\r\nhello"},
	{"two hosts", "POST / HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: 5\r\n\r\nhello"},
	{"the same host twice", "POST / HTTP/1.1\r\nHost: a\r\nhost: a\r\nContent-Length: 5\r\n\r\nhello"},
	{"a user in the host", "POST / HTTP/1.1\r\nHost: a@b\r\nContent-Length: 5\r\n\r\nhello"},
	{"no length", "POST / HTTP/1.1\r\nHost: a\r\n\r\nhello"},
	{"an empty length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\nhello"},
	{"two lengths", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello"},
	{"the same length twice", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\ncontent-length: 5\r\n\r\nhello"},
	{"two lengths in one field", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5\r\n\r\nhello"},
	{"a sign", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\nhello"},
	{"a negative length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\nhello"},
	{"a leading zero", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 05\r\n\r\nhello"},
	{"a hexadecimal length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x5\r\n\r\nhello"},
	{"an underscore in a length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1_0\r\n\r\nhello"},
	{"a length that overflows", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551621\r\n\r\nhello"},
	{"chunks", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
	{"chunks and a length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
	{"a coding that is none", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\ntransfer-encoding: identity\r\n\r\nhello"},
	{"chunks with white space", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n"},
	{"a connection that ends", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"},
	{"fields of the connection", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nConnection: keep-alive, X-A\r\n\r\nhello"},
	{"another protocol", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nUpgrade: h2c\r\n\r\nhello"},
	{"a body on request", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello"},
	{"trailers", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTrailer: X\r\n\r\nhello"},
	{"what net/http rewrites", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nPragma: no-cache\r\n\r\nhello"},
	{"a head without end", plainHead[:len(plainHead)-2]},
	{"many fields", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n" + strings.Repeat("X: y\r\n", MaxPlainFields) + "\r\nhello"},
	{"a long head", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nX: " + strings.Repeat("y", MaxPlainHead) + "\r\n\r\nhello"},
}

func TestParsePlain(t *testing.T) {
	r, n := ParsePlain([]byte(plainHead+"hello, and more"), nil)
	if n != len(plainHead) || r.Length != 5 {
		t.Fatalf("%d bytes of %d, length %d", n, len(plainHead), r.Length)
	}
	likeNetHTTP(t, []byte(plainHead+"hello, and more"))
	for _, test := range notPlain {
		if _, n := ParsePlain([]byte(test.text), nil); n != 0 {
			t.Errorf("%s: %d bytes are plain", test.name, n)
		}
	}
}

// likeNetHTTP checks that net/http reads a plain request as ParsePlain does.
func likeNetHTTP(t *testing.T, text []byte) {
	plain, n := ParsePlain(text, nil)
	if n == 0 {
		return
	}
	in := bytes.NewReader(text)
	buffered := bufio.NewReader(in)
	req, err := http.ReadRequest(buffered)
	if err != nil {
		t.Fatalf("net/http refuses %q: %v", text, err)
	}
	if req.Method != http.MethodPost || req.RequestURI != plain.Path || req.URL.String() != plain.Path || req.URL.Path != plain.Path || req.Host != plain.Host ||
		req.Proto != "HTTP/1.1" || req.ContentLength != int64(plain.Length) || req.Close || req.TransferEncoding != nil || req.Trailer != nil {
		t.Fatalf("net/http reads %q as %+v, not %+v", text, req, plain)
	}
	if diff := cmp.Diff(req.Header, plain.Header); diff != "" {
		t.Fatalf("%q: %s", text, diff)
	}
	if rest := buffered.Buffered() + in.Len(); rest != len(text)-n {
		t.Fatalf("%q: the body of net/http begins at %d, not %d", text, len(text)-rest, n)
	}
	body, err := io.ReadAll(req.Body)
	if whole := len(text)-n >= plain.Length; whole != (err == nil) || whole && !bytes.Equal(body, text[n:n+plain.Length]) {
		t.Fatalf("%q: net/http reads the body %q, %v", text, body, err)
	}
}

// A plain request is the same request for net/http, with the same body.
func FuzzPlain(f *testing.F) {
	f.Add([]byte(plainHead + "hello"))
	f.Add([]byte("POST //a HTTP/1.1\r\nHost: [::1]:80\r\nContent-Length: 0\r\n\r\n"))
	for _, test := range notPlain {
		f.Add([]byte(test.text))
	}
	f.Fuzz(func(t *testing.T, text []byte) { likeNetHTTP(t, text) })
}

// A whole server of net/http's, and not its parser alone, is given the same request.
func FuzzPlainServed(f *testing.F) {
	f.Add([]byte(plainHead + "hello"))
	for _, test := range notPlain {
		f.Add([]byte(test.text))
	}
	served := make(chan *http.Request, 1)
	in := make(conns)
	server := http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close") // and no request behind it is read
		body, err := io.ReadAll(r.Body)
		if r.Body = io.NopCloser(bytes.NewReader(body)); err != nil {
			r = nil
		}
		served <- r
	})}
	go func() { _ = server.Serve(in) }()
	f.Cleanup(func() { server.Close() })
	f.Fuzz(func(t *testing.T, text []byte) {
		plain, n := ParsePlain(text, nil)
		if n == 0 || len(text)-n < plain.Length {
			return
		}
		client, conn := net.Pipe()
		in <- conn
		go io.Copy(io.Discard, client)
		go client.Write(text)
		r := <-served
		client.Close()
		if r == nil || r.Method != http.MethodPost || r.RequestURI != plain.Path || r.Host != plain.Host || r.ContentLength != int64(plain.Length) || !cmp.Equal(r.Header, plain.Header) {
			t.Fatalf("net/http's server reads %q as %+v, not %+v", text, r, plain)
		}
		if body, _ := io.ReadAll(r.Body); !bytes.Equal(body, text[n:n+plain.Length]) {
			t.Fatalf("%q: net/http's server reads the body %q", text, body)
		}
	})
}

// conns is a listener of connections that are sent to it.
type conns chan net.Conn

func (c conns) Accept() (net.Conn, error) {
	if conn, ok := <-c; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}
func (c conns) Close() error   { close(c); return nil }
func (c conns) Addr() net.Addr { return &net.TCPAddr{} }

func BenchmarkParsePlain(b *testing.B) {
	text := []byte(plainHead)
	b.ReportAllocs()
	for b.Loop() {
		if _, n := ParsePlain(text, nil); n == 0 {
			b.Fatal("not plain")
		}
	}
}
