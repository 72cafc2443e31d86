package http1_test

import (
	"fmt"
	"net/http"

	"weir/internal/wire/http1"
)

// An exchange as bytes: a request's head is appended, a response's is found and
// parsed, and its chunked body is decoded in place.
func Example() {
	req := http1.Request{Method: "POST", Target: "/v1/completions", Host: "engine:8000", Header: http.Header{"Accept": {"text/event-stream"}}, Length: 2}
	head, err := req.Append(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%q\n", head)

	received := []byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n")
	n, err := http1.HeadLen(received, 0) // 0 until the blank line is there
	if err != nil {
		fmt.Println(err)
		return
	}
	resp, err := http1.ParseResponse(received[:n])
	fmt.Println(resp.Status, resp.Framing == http1.Chunked, err)
	var body http1.Chunks
	wrote, _, err := body.Decode(received[n:], received[n:])
	fmt.Printf("%s, whole %v, %v\n", received[n:n+wrote], body.Done(), err)
	// Output:
	// "POST /v1/completions HTTP/1.1\r\nHost: engine:8000\r\nAccept: text/event-stream\r\nContent-Length: 2\r\n\r\n"
	// 200 true <nil>
	// hello world, whole true, <nil>
}

// A response whose framing can be read in two ways is refused.
func ExampleParseResponse() {
	_, err := http1.ParseResponse([]byte("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"))
	fmt.Println(err)
	// Output:
	// http1: the answer has both a length and a transfer coding
}
