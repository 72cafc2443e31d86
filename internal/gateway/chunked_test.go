package gateway

import (
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"weir/internal/infer"
)

// A body whose chunks are malformed is refused with what is wrong with them.
func TestMalformedChunks(t *testing.T) {
	for _, test := range []struct{ body, want string }{
		{"zz\r\n{}\r\n0\r\n\r\n", "chunked encoding is malformed (invalid byte in chunk length): each chunk must be its length in hexadecimal"},
		{"1\r\n{}\r\n0\r\n\r\n", "chunked encoding is malformed (malformed chunked encoding)"},
	} {
		inBubble(t, Options{}, []any{&tokenEngine{name: "a"}}, func(t *testing.T, b *bench) {
			c := b.dial(0)
			c.id, c.method = "a", "POST"
			b.sent["a"]++
			c.write("POST " + chatPath + " HTTP/1.1\r\nHost: weir\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\nX-Request-Id: a\r\n\r\n" + test.body)
			a := c.answer()
			if a.status != 400 {
				t.Errorf("%q: status %d", test.body, a.status)
			}
			wantParts(t, string(a.body), test.want)
		})
	}
}

// A request that declares its length both by chunks and by Content-Length is served, and
// nothing more on its connection; nor is there where that cannot be known. One in chunks
// alone keeps its connection.
func TestLengthDeclaredTwice(t *testing.T) {
	e := &tokenEngine{name: "a"}
	body := askStream(``)
	chunks := "1\r\n" + body[:1] + "\r\n" + strconv.FormatInt(int64(len(body)-1), 16) + "\r\n" + body[1:] + "\r\n0\r\n\r\n"
	head := "POST " + chatPath + " HTTP/1.1\r\nHost: weir\r\nContent-Type: application/json\r\n"
	for _, test := range []struct {
		name  string
		parts []string // one write each
		kept  bool
	}{
		{"chunks", []string{head + "Transfer-Encoding: chunked\r\nX-Request-Id: a\r\n\r\n" + chunks}, true},
		{"both", []string{head + "content-Length: 5\r\nTransfer-Encoding: chunked\r\nX-Request-Id: a\r\n\r\n" + chunks}, false},
		{"in pieces", []string{head + "Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\nX-Request-Id: a\r\n\r\n" + chunks}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
				c := b.dial(0)
				c.id, c.method = "a", "POST"
				b.sent["a"]++
				for _, p := range test.parts {
					c.write(p)
					synctest.Wait()
				}
				e.call(t, 1).end(infer.ReasonStop, words()[0])
				c.wantWhole(text(words()[0]), "stop")
				a := c.answer()
				if said := strings.Count(string(c.raw), "Connection: close") == 1; a.closed == test.kept || said == test.kept {
					t.Errorf("closed %v, said %v", a.closed, said)
				}
			})
		})
	}
}
