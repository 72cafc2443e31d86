//go:build linux

package client

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// response reads an HTTP/1.1 response with a body of server-sent events, in chunks or, where
// it was whole when it began, of a known length, in pieces cut anywhere, and hands over each event. It allocates
// nothing once its buffer holds the longest event.
type response struct {
	state  responseState
	left   int    // bytes of the chunk not read yet
	carry  []byte // the beginning of a line or event
	chunks int    // with content, so far
	status int
	sized  bool // the body is one chunk, of the head's Content-Length
}

type responseState uint8

const (
	inHead responseState = iota
	inSize
	inChunk
	afterChunk
	inTrailer
	ended
)

// maxHeld bounds the kept part of one head, line or event.
const maxHeld = 1 << 20

var errHeld = errors.New("an event, line or head of more than 1 MiB")

// feed reads the next piece and calls event for each event in it, without the
// empty line that ends it. The event is valid during the call.
func (r *response) feed(b []byte, event func([]byte)) error {
	for len(b) > 0 {
		var n int
		var err error
		switch r.state {
		case inHead:
			n, err = r.head(b)
		case inSize:
			n, err = r.size(b)
		case inChunk:
			n = min(r.left, len(b))
			r.left -= n
			err = r.events(b[:n], event)
			switch {
			case r.left > 0:
			case r.sized && len(r.carry) > 0:
				return fmt.Errorf("the body ends inside an event: %.80q", r.carry)
			case r.sized:
				r.state = ended
			default:
				r.state, r.left = afterChunk, 2
			}
		case afterChunk:
			if b[0] != "\r\n"[2-r.left] {
				return fmt.Errorf("chunk not followed by CRLF but %q", b[0])
			}
			n = 1
			if r.left--; r.left == 0 {
				r.state = inSize
			}
		case inTrailer:
			// No gateway here sends trailers: only the last CRLF is left.
			if b[0] != "\r\n"[2-r.left] {
				return fmt.Errorf("trailer begins with %q", b[0])
			}
			n = 1
			if r.left--; r.left == 0 {
				r.state = ended
			}
		case ended:
			return fmt.Errorf("%d bytes after the response", len(b))
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// complete reports whether the body ended as a body ends, between two events.
func (r *response) complete() bool { return r.state == ended }

// head reads up to the end of the response's head.
func (r *response) head(b []byte) (int, error) {
	from := len(r.carry)
	r.carry = append(r.carry, b...)
	i := bytes.Index(r.carry[max(0, from-3):], []byte("\r\n\r\n"))
	if i < 0 {
		if len(r.carry) > maxHeld {
			return 0, errHeld
		}
		return len(b), nil
	}
	end := max(0, from-3) + i + 4
	head := r.carry[:end]
	if len(head) < len("HTTP/1.1 200") || !bytes.HasPrefix(head, []byte("HTTP/1.1 ")) {
		return 0, fmt.Errorf("no HTTP/1.1 response: %q", head[:min(len(head), 40)])
	}
	for _, c := range head[9:12] {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("status %q", head[9:12])
		}
		r.status = 10*r.status + int(c-'0')
	}
	if r.status != 200 {
		return 0, fmt.Errorf("status %d: %.200s", r.status, r.carry[end:])
	}
	lower := bytes.ToLower(head)
	_, length, sized := bytes.Cut(lower, []byte("\r\ncontent-length: "))
	chunked := bytes.Contains(lower, []byte("\r\ntransfer-encoding: chunked\r\n"))
	r.carry = r.carry[:0]
	switch {
	case chunked == sized:
		return 0, errors.New("the response needs either chunks or a length")
	case chunked:
		r.state = inSize
		return end - from, nil
	}
	length = length[:bytes.IndexByte(length, '\r')]
	n, err := strconv.Atoi(string(length))
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("content-length %q", length)
	}
	r.state, r.left, r.sized = inChunk, n, true
	r.chunks++
	return end - from, nil
}

// size reads a chunk's size line.
func (r *response) size(b []byte) (int, error) {
	for i, c := range b {
		switch {
		case '0' <= c && c <= '9':
			r.left = r.left<<4 | int(c-'0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			r.left = r.left<<4 | int(c|0x20-'a'+10)
		case c == '\r':
		case c == '\n':
			if r.left == 0 {
				if len(r.carry) > 0 {
					return 0, fmt.Errorf("the body ends inside an event: %.80q", r.carry)
				}
				r.state, r.left = inTrailer, 2
				return i + 1, nil
			}
			r.state = inChunk
			r.chunks++
			return i + 1, nil
		default:
			return 0, fmt.Errorf("chunk size with %q", c)
		}
		if r.left > 1<<30 {
			return 0, errors.New("chunk of more than 1 GiB")
		}
	}
	return len(b), nil
}

var blank = []byte("\n\n")

// events hands over the whole events of carry and b, and keeps the rest.
func (r *response) events(b []byte, event func([]byte)) error {
	if len(r.carry) > 0 {
		from := len(r.carry)
		// Only the beginning of b is searched for the end of the held event.
		i := bytes.Index(b, blank)
		switch {
		case r.carry[from-1] == '\n' && b[0] == '\n':
			i = 1
		case i >= 0:
			i += 2
		default:
			r.carry = append(r.carry, b...)
			if len(r.carry) > maxHeld {
				return errHeld
			}
			return nil
		}
		r.carry = append(r.carry, b[:i]...)
		event(r.carry[:len(r.carry)-2])
		r.carry = r.carry[:0]
		b = b[i:]
	}
	for len(b) > 0 {
		i := bytes.Index(b, blank)
		if i < 0 {
			r.carry = append(r.carry, b...)
			return nil
		}
		event(b[:i])
		b = b[i+2:]
	}
	return nil
}
