package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func head(lines ...string) string { return strings.Join(lines, "\r\n") + "\r\n\r\n" }

// parsed is a Response with a map of its fields.
type parsed struct {
	Status  int
	Header  http.Header
	Framing Framing
	Length  int64
	Close   bool
}

func TestParseResponse(t *testing.T) {
	for _, c := range []struct {
		head string
		want parsed
	}{
		{head("HTTP/1.1 200 OK", "content-type:text/event-stream", "Transfer-Encoding: Chunked"),
			parsed{Status: 200, Framing: Chunked, Header: http.Header{"Content-Type": {"text/event-stream"}, "Transfer-Encoding": {"Chunked"}}}},
		{head("HTTP/1.1 200", "Content-Length: 5"),
			parsed{Status: 200, Framing: Sized, Length: 5, Header: http.Header{"Content-Length": {"5"}}}},
		{head("HTTP/1.1 200 ", "Content-Length: 5", "Content-Length: 5"),
			parsed{Status: 200, Framing: Sized, Length: 5, Header: http.Header{"Content-Length": {"5", "5"}}}},
		{head("HTTP/1.1 404 Not Found", "Content-Length: 0", "X-A: 1", "X-A:", "x-a: \t3 \t"),
			parsed{Status: 404, Framing: Empty, Header: http.Header{"Content-Length": {"0"}, "X-A": {"1", "", "3"}}}},
		{head("HTTP/1.1 200 OK"), parsed{Status: 200, Framing: UntilClose, Close: true, Header: http.Header{}}},
		{head("HTTP/1.0 200 OK", "Content-Length: 1"),
			parsed{Status: 200, Framing: Sized, Length: 1, Close: true, Header: http.Header{"Content-Length": {"1"}}}},
		{head("HTTP/1.0 200 OK", "Content-Length: 1", "Connection: Keep-Alive"),
			parsed{Status: 200, Framing: Sized, Length: 1, Header: http.Header{"Content-Length": {"1"}, "Connection": {"Keep-Alive"}}}},
		{head("HTTP/1.1 200 OK", "Content-Length: 1", "Connection: x, Close"),
			parsed{Status: 200, Framing: Sized, Length: 1, Close: true, Header: http.Header{"Content-Length": {"1"}, "Connection": {"x, Close"}}}},
		{head("HTTP/1.1 204 No Content"), parsed{Status: 204, Framing: Empty, Header: http.Header{}}},
		{head("HTTP/1.1 204 No Content", "Content-Length: 3"),
			parsed{Status: 204, Framing: Empty, Close: true, Header: http.Header{"Content-Length": {"3"}}}},
		{head("HTTP/1.1 304 Not Modified", "Content-Length: 3"),
			parsed{Status: 304, Framing: Empty, Header: http.Header{"Content-Length": {"3"}}}},
		{head("HTTP/1.1 100 Continue"), parsed{Status: 100, Framing: Empty, Header: http.Header{}}},
		{head("HTTP/1.1 200 d\xe9j\xe0 vu", "X: \xff"), parsed{Status: 200, Framing: UntilClose, Close: true, Header: http.Header{"X": {"\xff"}}}},
	} {
		got, err := ParseResponse([]byte(c.head))
		if err != nil {
			t.Errorf("%q: %v", c.head, err)
			continue
		}
		if diff := cmp.Diff(c.want, parsed{got.Status, got.Fields.Header(), got.Framing, got.Length, got.Close}); diff != "" {
			t.Errorf("%q: %s", c.head, diff)
		}
		if n, err := HeadLen([]byte(c.head+"more"), 0); n != len(c.head) || err != nil {
			t.Errorf("%q: length %d, %v", c.head, n, err)
		}
		for name, values := range c.want.Header {
			if value := got.Fields.Get(strings.ToLower(name)); value != values[0] {
				t.Errorf("%q: %s is %q", c.head, name, value)
			}
		}
		if value := got.Fields.Get("X-None"); value != "" {
			t.Errorf("%q: a field that is not there is %q", c.head, value)
		}
	}
}

// malformedHeads are refused, whole or, where it shows, from a part.
var malformedHeads = map[string]string{
	"garbage":                   "\x16\x03\x01\x02\x00",
	"another protocol":          "SSH-2.0-OpenSSH_9.6\r\n",
	"empty line first":          "\r\nHTTP/1.1 200 OK\r\n\r\n",
	"HTTP/2":                    head("HTTP/2.0 200 OK"),
	"minor version":             head("HTTP/1.2 200 OK"),
	"no version":                head("HTTP/1. 200 OK"),
	"two digits":                head("HTTP/1.1 20 OK"),
	"four digits":               head("HTTP/1.1 2000 OK"),
	"letters":                   head("HTTP/1.1 2x0 OK"),
	"sign":                      head("HTTP/1.1 +20 OK"),
	"below 100":                 head("HTTP/1.1 099 OK"),
	"two spaces":                head("HTTP/1.1  200 OK"),
	"tab":                       head("HTTP/1.1\t200 OK"),
	"reason with a control":     head("HTTP/1.1 200 O\x00K"),
	"bare feed in status":       "HTTP/1.1 200 OK\nX: y\r\n\r\n",
	"bare feeds":                "HTTP/1.1 200 OK\n\n",
	"bare return":               head("HTTP/1.1 200 OK", "X: a\rb"),
	"folded":                    head("HTTP/1.1 200 OK", "X: a", " b"),
	"folded by tab":             head("HTTP/1.1 200 OK", "X: a", "\tb"),
	"first field folded":        head("HTTP/1.1 200 OK", " X: a"),
	"no colon":                  head("HTTP/1.1 200 OK", "X"),
	"empty name":                head("HTTP/1.1 200 OK", ": x"),
	"space before colon":        head("HTTP/1.1 200 OK", "Content-Length : 5"),
	"space in a name":           head("HTTP/1.1 200 OK", "Content Length: 5"),
	"zero in a value":           head("HTTP/1.1 200 OK", "X: a\x00b"),
	"length and coding":         head("HTTP/1.1 200 OK", "Content-Length: 5", "Transfer-Encoding: chunked"),
	"two lengths":               head("HTTP/1.1 200 OK", "Content-Length: 5", "Content-Length: 6"),
	"same length spelled twice": head("HTTP/1.1 200 OK", "Content-Length: 5", "Content-Length: 05"),
	"list of lengths":           head("HTTP/1.1 200 OK", "Content-Length: 5, 5"),
	"negative length":           head("HTTP/1.1 200 OK", "Content-Length: -1"),
	"signed length":             head("HTTP/1.1 200 OK", "Content-Length: +1"),
	"hexadecimal length":        head("HTTP/1.1 200 OK", "Content-Length: 0x1"),
	"empty length":              head("HTTP/1.1 200 OK", "Content-Length:"),
	"length too large":          head("HTTP/1.1 200 OK", "Content-Length: 9223372036854775808"),
	"other coding":              head("HTTP/1.1 200 OK", "Transfer-Encoding: gzip"),
	"two codings":               head("HTTP/1.1 200 OK", "Transfer-Encoding: gzip, chunked"),
	"coding twice":              head("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
	"identity":                  head("HTTP/1.1 200 OK", "Transfer-Encoding: identity"),
	"coding in 1.0":             head("HTTP/1.0 200 OK", "Transfer-Encoding: chunked"),
}

func parse(in []byte) (Response, []byte, error) {
	n, err := HeadLen(in, 0)
	if err != nil {
		return Response{}, nil, err
	}
	if n == 0 {
		return Response{}, nil, io.ErrUnexpectedEOF
	}
	r, err := ParseResponse(in[:n])
	return r, in[n:], err
}

func TestMalformedHeads(t *testing.T) {
	for name, in := range malformedHeads {
		_, _, err := parse([]byte(in))
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%s: got %v, want a refusal", name, err)
		}
	}
	if _, err := ParseResponse([]byte("HTTP/1.1 200 OK\r\n")); err == nil {
		t.Error("a part of a head was parsed")
	}
}

// The end is found wherever the head is cut, and never before it is there.
func TestHeadLenAtEveryCut(t *testing.T) {
	whole := []byte(head("HTTP/1.1 200 OK", "Content-Length: 5", "X: y") + "hello")
	want := len(whole) - len("hello")
	for cut := range len(whole) {
		n, err := HeadLen(whole[:cut], 0)
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		if n == 0 {
			n, err = HeadLen(whole, cut)
		} else if cut < want {
			t.Fatalf("cut at %d: an end at %d", cut, n)
		}
		if n != want || err != nil {
			t.Errorf("cut at %d: %d, %v; want %d", cut, n, err, want)
		}
	}
}

// whole reads a complete response with this package alone, the body in pieces
// of the given size, decoded in place or into a buffer as small.
func whole(in []byte, piece int, inPlace bool) (r Response, body []byte, err error) {
	r, rest, err := parse(in)
	if err != nil {
		return r, nil, err
	}
	switch r.Framing {
	case Sized:
		if int64(len(rest)) < r.Length {
			return r, nil, io.ErrUnexpectedEOF
		}
		return r, rest[:r.Length], nil
	case UntilClose:
		return r, rest, nil
	case Empty:
		return r, nil, nil
	}
	body, _, err = dechunk(rest, piece, inPlace)
	return r, body, err
}

// Any accepted response is also accepted by net/http, and read the same.
func FuzzResponse(f *testing.F) {
	for _, in := range malformedHeads {
		f.Add([]byte(in))
	}
	for _, in := range malformedChunks {
		f.Add([]byte(head("HTTP/1.1 200 OK", "Transfer-Encoding: chunked") + in))
	}
	f.Add([]byte(head("HTTP/1.1 200 OK", "Transfer-Encoding: chunked") + "5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\n"))
	f.Add([]byte(head("HTTP/1.1 200 OK", "Content-Length: 5", "Pragma: no-cache") + "hello"))
	f.Add([]byte(head("HTTP/1.0 200 OK", "server: uvicorn") + "hello"))
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 64<<10 {
			return
		}
		got, body, err := whole(in, len(in)+1, true)
		for _, inPlace := range []bool{true, false} {
			_, again, err2 := whole(in, 1, inPlace)
			if !bytes.Equal(body, again) || (err == nil) != (err2 == nil) {
				t.Fatalf("byte by byte: %q, %v; at once: %q, %v", again, err2, body, err)
			}
		}
		if err != nil || got.Informational() {
			return
		}
		want, err := http.ReadResponse(bufio.NewReaderSize(bytes.NewReader(in), 64<<10), &http.Request{Method: "POST"})
		if err != nil {
			if strings.Contains(err.Error(), "bad trailer key") {
				return // stated in the package's comment
			}
			t.Fatalf("net/http refuses %q: %v", in, err)
		}
		wantBody, err := io.ReadAll(want.Body)
		if err != nil {
			t.Fatalf("net/http refuses the body of %q: %v", in, err)
		}
		if !bytes.Equal(body, wantBody) {
			t.Fatalf("body %q, net/http reads %q", body, wantBody)
		}
		if got.Status != want.StatusCode {
			t.Fatalf("status %d, net/http reads %d", got.Status, want.StatusCode)
		}
		// A connection kept open by us alone would answer the next request with
		// what net/http takes for this one's rest.
		if !got.Close && want.Close {
			t.Fatalf("%q: net/http would close the connection", in)
		}
		header := got.Fields.Header()
		for _, h := range []http.Header{header, want.Header} {
			for _, name := range []string{"Transfer-Encoding", "Trailer", "Cache-Control", "Content-Length"} {
				delete(h, name) // net/http moves or invents these
			}
		}
		if diff := cmp.Diff(want.Header, header); diff != "" {
			t.Fatal(diff)
		}
	})
}
