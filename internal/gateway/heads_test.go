package gateway

import (
	"strings"
	"testing"
	"time"
)

const notHTTP1 = "505 HTTP Version Not Supported: the request line says HTTP/2.0 on a connection of HTTP/1.1; send HTTP/1.1, or HTTP/2 over TLS (without TLS it needs --h2c)\n"

// Heads that cannot be read get Go's own answers, as docs/reference/errors.md lists them.
func TestUnreadHeads(t *testing.T) {
	for _, test := range []struct{ head, status, text string }{
		{"FOO\r\n\r\n", "400 Bad Request", "400 Bad Request"},
		{"GET /v1/models HTTP/1.1\r\n\r\n", "400 Bad Request: missing required Host header", "400 Bad Request: missing required Host header"},
		{"GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400 Bad Request", "400 Bad Request"},
		{"POST " + chatPath + " HTTP/1.1\r\nHost: weir\r\nContent-Length: many\r\n\r\n", "400 Bad Request", "400 Bad Request"},
		{"POST " + chatPath + " HTTP/1.1\r\nHost: weir\r\nExpect: more\r\nContent-Length: 2\r\n\r\n{}", "417 Expectation Failed", ""},
		{"GET /v1/models HTTP/1.1\r\nHost: weir\r\nX-Large: " + strings.Repeat("x", 80<<10) + "\r\n\r\n", "431 Request Header Fields Too Large", "431 Request Header Fields Too Large"},
		{"POST " + chatPath + " HTTP/1.1\r\nHost: weir\r\nTransfer-Encoding: gzip\r\n\r\n", "501 Not Implemented", "Unsupported transfer encoding"},
		{"GET /v1/models HTTP/3.1\r\nHost: weir\r\n\r\n", "505 HTTP Version Not Supported: unsupported protocol version", "505 HTTP Version Not Supported: unsupported protocol version"},
		{"PRI * HTTP/2.0\r\nHost: weir\r\nContent-Length: 10\r\n\r\n", "505 HTTP Version Not Supported", notHTTP1},
		{"PRI * HTTP/2.0\r\nHost: weir\r\nTransfer-Encoding: chunked\r\n\r\n", "505 HTTP Version Not Supported", notHTTP1},
		{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505 HTTP Version Not Supported", notHTTP1},
	} {
		inBubble(t, Options{}, []any{&tokenEngine{name: "a"}}, func(t *testing.T, b *bench) {
			c := b.dial(0)
			c.method = "GET"
			c.write(test.head)
			a := c.answer()
			time.Sleep(time.Second) // until the server has closed the connection
			first, _, _ := strings.Cut(string(c.raw), "\r\n")
			if first != "HTTP/1.1 "+test.status || string(a.body) != test.text || !strings.Contains(string(c.raw), "\r\nConnection: close\r\n") || a.header.Get("X-Request-Id") != "" {
				t.Errorf("%.60q: %q, body %q, %v", test.head, first, a.body, a.header)
			}
		})
	}
}
