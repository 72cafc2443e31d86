package http1

import (
	"bytes"
	"errors"
	"io"
	"net/http/httputil"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// dechunk decodes in pieces of the given size, in place or into a buffer as
// small. It gives what stands behind the body.
func dechunk(in []byte, piece int, inPlace bool) (body, behind []byte, err error) {
	var c Chunks
	for at := 0; at < len(in); {
		src := bytes.Clone(in[at:min(len(in), at+piece)])
		dst := src
		if !inPlace {
			dst = make([]byte, piece)
		}
		for {
			wrote, used, err := c.Decode(dst, src)
			body = append(body, dst[:wrote]...)
			if err != nil {
				return body, nil, err
			}
			at += used
			if c.Done() {
				return body, in[at:], nil
			}
			if src = src[used:]; len(src) == 0 {
				break
			}
			dst = src
			if !inPlace {
				dst = make([]byte, piece)
			}
		}
	}
	return body, nil, io.ErrUnexpectedEOF
}

func TestChunks(t *testing.T) {
	for _, c := range []struct{ in, want, behind string }{
		{"0\r\n\r\n", "", ""},
		{"5\r\nhello\r\n0\r\n\r\n", "hello", ""},
		{"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n", "hello world", ""},
		{"A\r\n0123456789\r\na\r\nabcdefghij\r\n000\r\n\r\n", "0123456789abcdefghij", ""},
		{"5;name=value;x=\"y\"\r\nhello\r\n0;last\r\n\r\n", "hello", ""},
		{"5 \t \r\nhello\r\n0\r\n\r\n", "hello", ""},
		{"0\r\nX-Trailer: a\r\nother:\r\n\r\n", "", ""},
		{"2\r\n\r\n\r\n0\r\n\r\n", "\r\n", ""},
		{"5\r\nhello\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n", "hello", "HTTP/1.1 200 OK\r\n"},
		{"0000000000000005\r\nhello\r\n0\r\n\r\n", "hello", ""},
	} {
		for piece := 1; piece <= len(c.in)+1; piece++ {
			for _, inPlace := range []bool{true, false} {
				body, behind, err := dechunk([]byte(c.in), piece, inPlace)
				if err != nil || string(body) != c.want || string(behind) != c.behind {
					t.Errorf("%q in pieces of %d: %q, %q, %v", c.in, piece, body, behind, err)
				}
			}
		}
		// Every part is a beginning, and none is the whole.
		for cut := range len(c.in) - len(c.behind) {
			if _, _, err := dechunk([]byte(c.in[:cut]), 1<<10, true); err != io.ErrUnexpectedEOF {
				t.Errorf("%q: %v, want it to be incomplete", c.in[:cut], err)
			}
		}
	}
}

var malformedChunks = map[string]string{
	"no size":               "\r\nhello\r\n0\r\n\r\n",
	"no size, extension":    ";x\r\n",
	"blank size":            "  \r\n",
	"space first":           " 5\r\nhello\r\n0\r\n\r\n",
	"space within":          "1 0\r\n",
	"space and extension":   "5 ;x\r\nhello\r\n0\r\n\r\n",
	"negative":              "-5\r\nhello\r\n0\r\n\r\n",
	"prefixed":              "0x5\r\nhello\r\n0\r\n\r\n",
	"letters":               "zz\r\n",
	"too large":             "8000000000000000\r\n",
	"too many digits":       "00000000000000005\r\nhello\r\n0\r\n\r\n",
	"bare feed":             "5\nhello\r\n0\r\n\r\n",
	"bare feed, extension":  "5;x\nhello\r\n0\r\n\r\n",
	"return in extension":   "5;x\ry\r\nhello\r\n0\r\n\r\n",
	"two returns":           "5\r\r\nhello\r\n0\r\n\r\n",
	"size too small":        "4\r\nhello\r\n0\r\n\r\n",
	"size too large":        "6\r\nhello\r\n0\r\n\r\n",
	"data ends with feed":   "5\r\nhello\n0\r\n\r\n",
	"data without return":   "5\r\nhello0\r\n\r\n",
	"data, return, no feed": "5\r\nhello\rx0\r\n\r\n",
	"plain text":            "data: {}\n\n",
	"trailer without name":  "0\r\n: x\r\n\r\n",
	"folded trailer":        "0\r\nX: y\r\n z\r\n\r\n",
	"trailer with space":    "0\r\nX : y\r\n\r\n",
	"trailer without end":   "0\r\nX: y\n\r\n",
	"trailer, bare return":  "0\r\nX: y\rz\r\n\r\n",
	"trailer with a zero":   "0\r\nX: \x00\r\n\r\n",
	"last line":             "0\r\n\rx",
	"long size line":        "5;" + strings.Repeat("x", 2000) + "\r\nhello\r\n0\r\n\r\n",
	"long trailers":         "0\r\n" + strings.Repeat("X-Trailer: value\r\n", 400) + "\r\n",
	"little data":           strings.Repeat("1;"+strings.Repeat("x", 1000)+"\r\na\r\n", 20) + "0\r\n\r\n",
}

func TestMalformedChunks(t *testing.T) {
	for name, in := range malformedChunks {
		for _, piece := range []int{1, 7, 1 << 20} {
			_, _, err := dechunk([]byte(in), piece, true)
			var e *Error
			if !errors.As(err, &e) {
				t.Errorf("%s in pieces of %d: %v, want a refusal", name, piece, err)
			}
		}
	}
}

// An engine that sends a byte at a time is in order, however long.
func TestChunksOfOneByte(t *testing.T) {
	in := strings.Repeat("1\r\nx\r\n", 100_000) + "0\r\n\r\n"
	body, _, err := dechunk([]byte(in), 4096, true)
	if err != nil || len(body) != 100_000 {
		t.Errorf("%d bytes, %v", len(body), err)
	}
}

// Any data, cut into chunks anyhow and read in pieces anyhow, comes out again.
func TestChunksProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var in, want bytes.Buffer
		w := httputil.NewChunkedWriter(&in)
		for _, chunk := range rapid.SliceOf(rapid.SliceOfN(rapid.Byte(), 1, 300)).Draw(t, "chunks") {
			want.Write(chunk)
			if _, err := w.Write(chunk); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		in.WriteString("\r\n")
		body, behind, err := dechunk(in.Bytes(), rapid.IntRange(1, 400).Draw(t, "piece"), rapid.Bool().Draw(t, "in place"))
		if err != nil || !bytes.Equal(body, want.Bytes()) || len(behind) != 0 {
			t.Fatalf("%q: %q, %q, %v", in.Bytes(), body, behind, err)
		}
	})
}

// The result does not depend on where the bytes are cut, and what is accepted
// net/http decodes to the same.
func FuzzChunks(f *testing.F) {
	for _, in := range malformedChunks {
		f.Add([]byte(in), 3)
	}
	f.Add([]byte("5;x\r\nhello\r\n0\r\nX: y\r\n\r\n"), 2)
	f.Fuzz(func(t *testing.T, in []byte, piece int) {
		body, behind, err := dechunk(in, len(in)+1, true)
		piece = 1 + abs(piece)%(len(in)+1)
		for _, inPlace := range []bool{true, false} {
			body2, behind2, err2 := dechunk(in, piece, inPlace)
			if !bytes.Equal(body, body2) || !bytes.Equal(behind, behind2) || (err == nil) != (err2 == nil) {
				t.Fatalf("in pieces of %d: %q, %v; at once: %q, %v", piece, body2, err2, body, err)
			}
		}
		if err != nil {
			return
		}
		want, err := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(in)))
		if err != nil || !bytes.Equal(body, want) {
			t.Fatalf("got %q; net/http: %q, %v", body, want, err)
		}
	})
}

func abs(n int) int {
	if n < 0 {
		return -(n + 1)
	}
	return n
}

func BenchmarkChunks(b *testing.B) {
	event := []byte("b4\r\n" + strings.Repeat("x", 0xb4) + "\r\n")
	buf := make([]byte, len(event))
	var c Chunks
	b.ReportAllocs()
	b.SetBytes(int64(len(event)))
	for b.Loop() {
		copy(buf, event)
		if n, _, err := c.Decode(buf, buf); n != 0xb4 || err != nil {
			b.Fatal(n, err)
		}
	}
}

func BenchmarkParseResponse(b *testing.B) {
	in := []byte(head("HTTP/1.1 200 OK", "date: Mon, 01 Jan 2024 00:00:00 GMT", "server: uvicorn",
		"content-type: text/event-stream; charset=utf-8", "transfer-encoding: chunked"))
	b.ReportAllocs()
	for b.Loop() {
		n, _ := HeadLen(in, 0)
		if _, err := ParseResponse(in[:n]); err != nil {
			b.Fatal(err)
		}
	}
}
