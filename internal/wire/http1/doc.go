// Package http1 is the client's side of the HTTP/1.1 wire (RFC 9112) as pure functions
// over bytes: a request head is appended, a response head is found and parsed, a
// chunked body is decoded. For servers it has the head of a plain request
// (ParsePlain), and whether a caller accepts gzip. It has no socket, goroutine or clock, and it does not retain the
// buffers that it is given.
//
// It is stricter than necessary. A response with ambiguous framing is refused, because
// two parsers could disagree where it ends: a length next to chunked coding, two
// lengths, a coding other than chunked, bare line feeds, folded fields. It accepts
// nothing that net/http refuses, with one harmless exception: a Trailer field may name
// any field, since trailers are checked and discarded.
package http1

// Error is a violation of the protocol, in words.
type Error struct{ What string }

// Error implements error.
func (e *Error) Error() string { return "http1: " + e.What }

// FaultReason names the whole kind, for a metric's label.
func (e *Error) FaultReason() string { return "framing" }

func malformed(what string) error { return &Error{what} }
