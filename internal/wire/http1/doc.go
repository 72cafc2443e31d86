// Package http1 is the client's side of the HTTP/1.1 wire (RFC 9112) as pure
// functions over bytes: a request head is appended, a response head is found
// and parsed, a chunked body is decoded. Of a server's side it reads whether a
// caller accepts gzip. It knows no socket, goroutine or clock, and it keeps
// nothing of the buffers it is handed.
//
// It is stricter than it would have to be. A response whose framing can be
// read in two ways is refused, because what one side takes for the end of an
// answer the other may take for the beginning of the next: a length next to
// chunked coding, two lengths, a coding other than chunked, bare line feeds,
// folded fields. Nothing that net/http refuses is accepted, but for one case
// that does not matter here: a Trailer field may name any field, since
// trailers are checked and thrown away.
package http1

// Error is a violation of the protocol. It says what was wrong.
type Error struct{ What string }

// Error implements error.
func (e *Error) Error() string { return "http1: " + e.What }

// FaultReason names the whole kind, for a metric's label.
func (e *Error) FaultReason() string { return "framing" }

func malformed(what string) error { return &Error{what} }
