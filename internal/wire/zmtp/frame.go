package zmtp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The bits of a frame's first byte.
const (
	flagMore    = 1 << 0 // more frames of the message follow
	flagLong    = 1 << 1 // the size has 8 bytes, not 1
	flagCommand = 1 << 2 // not a message's, but the protocol's own
)

// AppendMessage appends a message of the frames given, in wire form, to dst.
func AppendMessage(dst []byte, frames ...[]byte) []byte {
	for i, f := range frames {
		flags := byte(0)
		if i < len(frames)-1 {
			flags = flagMore
		}
		dst = appendFrame(dst, flags, f)
	}
	return dst
}

func appendFrame(dst []byte, flags byte, body []byte) []byte {
	if len(body) < 256 {
		dst = append(dst, flags, byte(len(body)))
	} else {
		dst = append(dst, flags|flagLong)
		dst = binary.BigEndian.AppendUint64(dst, uint64(len(body)))
	}
	return append(dst, body...)
}

// frameHead reads a frame's flags and size from the beginning of b; n is 0 when
// they are not all there.
func frameHead(b []byte) (flags byte, size uint64, n int, err error) {
	if len(b) == 0 {
		return 0, 0, 0, nil
	}
	flags = b[0]
	if flags&^(flagMore|flagLong|flagCommand) != 0 {
		return 0, 0, 0, fmt.Errorf("zmtp: a frame begins with %#02x, which has reserved bits set", flags)
	}
	if flags&flagCommand != 0 && flags&flagMore != 0 {
		return 0, 0, 0, errors.New("zmtp: a command that goes on in another frame")
	}
	if flags&flagLong == 0 {
		if len(b) < 2 {
			return 0, 0, 0, nil
		}
		return flags, uint64(b[1]), 2, nil
	}
	if len(b) < 9 {
		return 0, 0, 0, nil
	}
	return flags, binary.BigEndian.Uint64(b[1:]), 9, nil
}

const (
	readSize   = 256 << 10 // of an idle buffer
	keepSize   = 4 << 20   // what an idle buffer may have grown to
	maxFrames  = 4096      // of one message
	maxCommand = 64 << 10
)

// reader reads messages and commands from a stream of bytes. They point into its
// buffer, which grows with the bytes that arrive and not with the size that a frame
// announces.
type reader struct {
	src   io.Reader
	limit int // bytes of a message, its frames' heads included
	// obey is given a command that stands between the frames of a message, where
	// libzmq puts its heartbeats.
	obey func(command []byte) error

	buf        []byte
	start, end int // of what was read and not yet given
	spans      []span
	frames     [][]byte
}

// span is a frame's place, counted from the beginning of its message.
type span struct{ from, to int }

// next returns the frames of the next message, or of the next command as one frame.
// They are valid until the next call. io.EOF is the end of the stream between two of
// them; within one it is io.ErrUnexpectedEOF.
func (r *reader) next() (frames [][]byte, command bool, err error) {
	if r.start == r.end && len(r.buf) > keepSize {
		r.buf, r.start, r.end = nil, 0, 0
	}
	r.spans = r.spans[:0]
	at := 0 // of the next frame's head, from the beginning of the message
	for {
		flags, size, head, err := frameHead(r.buf[r.start+at : r.end])
		if err != nil {
			return nil, false, err
		}
		if head > 0 {
			limit := r.limit
			between := flags&flagCommand != 0 && at > 0
			switch {
			case between && r.obey == nil:
				return nil, false, errors.New("zmtp: a command in the middle of a message")
			case between && size > maxCommand:
				return nil, false, fmt.Errorf("zmtp: a command of more than %d bytes", maxCommand)
			case flags&flagCommand != 0 && at == 0:
				limit = min(limit, maxCommand)
			}
			if size > uint64(limit) || at+head+int(size) > limit {
				return nil, false, fmt.Errorf("zmtp: a message of more than %d bytes", limit)
			}
			if len(r.spans) == maxFrames {
				return nil, false, fmt.Errorf("zmtp: a message of more than %d frames", maxFrames)
			}
			from := at + head
			to := from + int(size)
			if err := r.hold(to); err != nil {
				return nil, false, err
			}
			at = to
			if between {
				if err := r.obey(r.buf[r.start+from : r.start+to]); err != nil {
					return nil, false, err
				}
				continue
			}
			r.spans = append(r.spans, span{from, to})
			if flags&flagMore == 0 {
				return r.take(at), flags&flagCommand != 0, nil
			}
			continue
		}
		if err := r.hold(r.end - r.start + 1); err != nil {
			return nil, false, err
		}
	}
}

// take returns the frames of the message of n bytes that begins the buffer.
func (r *reader) take(n int) [][]byte {
	r.frames = r.frames[:0]
	for _, s := range r.spans {
		r.frames = append(r.frames, r.buf[r.start+s.from:r.start+s.to:r.start+s.to])
	}
	r.start += n
	return r.frames
}

// hold reads until n bytes are there.
func (r *reader) hold(n int) error {
	for r.end-r.start < n {
		if err := r.fill(n); err != nil {
			return err
		}
	}
	return nil
}

// fill reads once, towards n bytes.
func (r *reader) fill(n int) error {
	if r.start == r.end {
		r.start, r.end = 0, 0
	}
	if r.end == len(r.buf) || r.start+n > len(r.buf) && r.start > 0 {
		room := r.buf
		if r.end-r.start >= len(r.buf)/2 {
			room = make([]byte, max(readSize, 2*len(r.buf)))
		}
		r.end = copy(room, r.buf[r.start:r.end])
		r.buf, r.start = room, 0
	}
	k, err := r.src.Read(r.buf[r.end:])
	r.end += k
	switch {
	case k > 0:
		return nil
	case err == io.EOF && r.end > r.start:
		return io.ErrUnexpectedEOF
	case err != nil:
		return err
	}
	return io.ErrNoProgress
}
