package shared

import (
	"errors"
	"fmt"
	"net"
)

// The scripts answer with an array of ten numbers. A reply that is larger than these is not read:
// the client library allocates what a reply claims before it comes.
const (
	maxReply    = 64 << 10 // bytes of a reply
	maxElements = 1 << 10  // of its array
)

// replies is a connection whose replies are in bounds before the client library sees them. It
// follows the framing of RESP and nothing else of it.
type replies struct {
	net.Conn
	size     int // bytes of the reply so far
	elements int // of its array that are still to come
	skip     int // bytes of a string and its end that are still to come
	line     int // bytes of the line so far
	kind     byte
	claim    int // the number in the line, of a string or an array
	err      error
}

var errReply = errors.New("the store sent what is no reply of Redis")

// Read implements net.Conn.
func (r *replies) Read(p []byte) (n int, err error) {
	if r.err != nil {
		return 0, r.err
	}
	n, err = r.Conn.Read(p)
	if r.err = r.look(p[:n]); r.err != nil {
		return 0, r.err
	}
	return n, err
}

// look follows the framing of the next bytes.
func (r *replies) look(b []byte) error {
	for len(b) > 0 {
		if n := min(r.skip, len(b)); n > 0 {
			r.skip -= n
			b = b[n:]
			if r.skip == 0 {
				r.ended()
			}
			continue
		}
		c := b[0]
		b = b[1:]
		if r.size++; r.size > maxReply {
			return fmt.Errorf("a reply of the store has more than %d bytes", maxReply)
		}
		r.line++
		switch {
		case r.line == 1:
			r.kind, r.claim = c, 0
		case c == '\n':
			r.line = 0
			if err := r.claimed(); err != nil {
				return err
			}
		case r.kind != '$' && r.kind != '*' || c == '\r':
		case r.line == 2 && c == '-':
			r.claim = -1 // nil, if a 1 follows
		case r.line == 3 && c == '1' && r.claim == -1:
		case c < '0' || c > '9' || r.claim < 0:
			return errReply
		default:
			if r.claim = 10*r.claim + int(c-'0'); r.claim > maxReply {
				return fmt.Errorf("a reply of the store claims more than %d bytes or elements", maxReply)
			}
		}
	}
	return nil
}

// claimed is called at the end of a line.
func (r *replies) claimed() error {
	switch {
	case r.kind == '$' && r.claim >= 0:
		r.skip = r.claim + len("\r\n")
		if r.size += r.skip; r.size > maxReply {
			return fmt.Errorf("a reply of the store claims more than %d bytes", maxReply)
		}
		return nil
	case r.kind == '*' && r.elements > 0:
		return errors.New("a reply of the store has an array within an array")
	case r.kind == '*' && r.claim > maxElements:
		return fmt.Errorf("a reply of the store claims %d elements, more than %d", r.claim, maxElements)
	case r.kind == '*' && r.claim > 0:
		r.elements = r.claim
		return nil
	}
	r.ended()
	return nil
}

// ended is called at the end of each element, and of a reply that is no array.
func (r *replies) ended() {
	if r.elements > 0 {
		r.elements--
	}
	if r.elements == 0 {
		r.size = 0
	}
}
