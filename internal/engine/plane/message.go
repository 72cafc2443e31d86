package plane

import (
	"encoding/binary"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir/internal/engine/mux"
	"weir/internal/infer"
)

// messagePrefix is what gRPC puts before each message: a flag that says whether
// it is compressed, and its length in 4 bytes, big endian.
const messagePrefix = 5

// messages extracts a call's messages from its DATA frames, however these are cut. A
// message within one payload is not copied. The beginning of a longer one is held in a
// buffer that is reused. The buffer grows with the bytes that arrive, not with the
// length that the prefix announces.
type messages struct {
	limit int    // bytes of a message
	rest  []byte // of the payload at hand
	held  []byte // the beginning of a message that goes on in the next payload
}

// keepHeld bounds in bytes what is held for a message to come.
const keepHeld = 1 << 20

// feed adds the next payload, after next has reported that the one before has no more
// messages. The caller owns the payload and must not change it until next reports its
// end.
func (m *messages) feed(payload []byte) { m.rest = payload }

// next returns the next message, which is valid until the next call. ok is false when
// it is not all there.
func (m *messages) next() (msg []byte, ok bool, err error) {
	if len(m.held) == 0 {
		m.held = infer.Reuse(m.held, keepHeld)
		n, err := m.length(m.rest)
		if err != nil {
			return nil, false, err
		}
		if n > 0 && len(m.rest) >= n {
			msg, m.rest = m.rest[messagePrefix:n], m.rest[n:]
			return msg, true, nil
		}
	}
	m.hold(messagePrefix)
	n, err := m.length(m.held)
	if err != nil || n == 0 {
		return nil, false, err
	}
	m.hold(n)
	if len(m.held) < n {
		return nil, false, nil
	}
	msg, m.held = m.held[messagePrefix:n], m.held[:0]
	return msg, true, nil
}

// hold moves bytes from the payload until n are held, or there are no more.
func (m *messages) hold(n int) {
	k := min(max(n-len(m.held), 0), len(m.rest))
	m.held = append(m.held, m.rest[:k]...)
	m.rest = m.rest[k:]
}

// length returns the length of the message that begins at b, its prefix included; 0
// when the prefix is not all there.
func (m *messages) length(b []byte) (int, error) {
	if len(b) < messagePrefix {
		return 0, nil
	}
	if b[0] != 0 {
		return 0, status.Errorf(codes.Internal, "a message is flagged as compressed (%d), which weir does not offer to read", b[0])
	}
	n := binary.BigEndian.Uint32(b[1:])
	if uint64(n) > uint64(m.limit) {
		return 0, &mux.Fault{Reason: FaultOversized, Detail: fmt.Sprintf("a step of %d bytes, of at most %d", n, m.limit)}
	}
	return messagePrefix + int(n), nil
}

// partial reports whether a message has begun and not ended.
func (m *messages) partial() bool { return len(m.held) > 0 }
