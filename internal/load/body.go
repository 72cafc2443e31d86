package load

import (
	"bytes"
	"errors"
	"io"
)

// errFraming reports that a response's HTTP framing is broken.
var errFraming = errors.New("malformed HTTP framing")

// source provides a connection's bytes.
type source interface {
	// receive reads. at is the time when the last of the bytes arrived, on the clock of
	// trace.Now. It returns errAgain if there are no bytes yet.
	receive(p []byte) (n int, at int64, err error)
	// since returns the earliest time at which the bytes of the last receive may have
	// arrived: its last byte (last), or else any of them.
	since(at int64, last bool) int64
}

// errAgain reports that a connection that never waits has no bytes yet.
var errAgain = errors.New("nothing has arrived")

// buffer is a connection's read buffer. Unlike bufio.Reader it returns its content in place
// and reads once at a time, so that the caller knows when each byte arrived.
type buffer struct {
	src        source
	data       []byte
	start, end int
	mark       int   // what is kept begins here while marked
	marked     bool  // what was taken since the mark may be wanted again
	at         int64 // when what was read last had arrived
	reads      int   // reads that brought bytes
}

// errFull reports that a line is longer than the buffer.
var errFull = errors.New("line longer than the read buffer")

// maxKept bounds the size to which a buffer grows for kept content.
const maxKept = 1 << 20

// fill reads once. Held content remains, but may move.
func (b *buffer) fill() error {
	from := b.start
	if b.marked {
		from = b.mark
	}
	if from > 0 {
		copy(b.data, b.data[from:b.end])
		b.start, b.end, b.mark = b.start-from, b.end-from, 0
	}
	if b.end == len(b.data) {
		if !b.marked || b.start == 0 || len(b.data) >= maxKept {
			return errFull
		}
		b.data = append(b.data, make([]byte, len(b.data))...)
	}
	n, at, err := b.src.receive(b.data[b.end:])
	if n > 0 {
		b.end += n
		b.at = at
		b.reads++
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	if !errors.Is(err, errAgain) {
		b.at = at
	}
	return err
}

// since returns the earliest time at which the bytes taken from the last read may have
// arrived. With last, only the end of a chunk's framing is left of the read.
func (b *buffer) since(last bool) int64 {
	held := b.held()
	return b.src.since(b.at, last && (len(held) == 0 || string(held) == "\r\n"))
}

// keep marks the place up to which rewind goes back.
func (b *buffer) keep() { b.mark, b.marked = b.start, true }

// rewind undoes all takes since keep.
func (b *buffer) rewind() { b.start, b.marked = b.mark, false }

// release forgets the mark.
func (b *buffer) release() { b.marked = false }

// held returns the bytes that were read and not yet taken.
func (b *buffer) held() []byte { return b.data[b.start:b.end] }

// take returns the next n bytes held; they stay valid until the next fill.
func (b *buffer) take(n int) []byte {
	p := b.data[b.start : b.start+n]
	b.start += n
	return p
}

// crlf reads a line that must end with CRLF, and returns it without. Chunked framing allows
// nothing else: a tolerant reader would disagree with others about where a body ends.
func (b *buffer) crlf() ([]byte, error) {
	line, err := b.line()
	if err != nil {
		return nil, err
	}
	if len(line) == 0 || line[len(line)-1] != '\r' {
		return nil, errFraming
	}
	return line[:len(line)-1], nil
}

// line reads up to and including the next LF, and gives the line without it.
func (b *buffer) line() ([]byte, error) {
	for seen := 0; ; {
		if i := bytes.IndexByte(b.held()[seen:], '\n'); i >= 0 {
			return b.take(seen + i + 1)[:seen+i], nil
		}
		seen = b.end - b.start
		if err := b.fill(); err != nil {
			return nil, err
		}
	}
}

// framing is the way in which a body's end is marked.
type framing uint8

const (
	framedByChunks framing = iota
	framedByLength
	framedByClose
)

// body reads one response body from a buffer, in place.
type body struct {
	src     *buffer
	framing framing
	left    int64 // bytes left of the chunk or of the length
	inChunk bool  // a chunk's closing line end is due
	inTail  bool  // the last chunk was read, and its trailers are due
	tail    int   // lines of these so far
	frames  int   // chunks seen: what the server flushed apart
}

// next returns the next bytes of the body as far as they have arrived. They are valid until
// the next call. io.EOF is the proper end of the body; io.ErrUnexpectedEOF means that the
// connection was closed before it. After errAgain it can be called again.
func (b *body) next() ([]byte, error) {
	switch b.framing {
	case framedByLength:
		if b.left == 0 {
			return nil, io.EOF
		}
	case framedByChunks:
		if err := b.chunk(); err != nil {
			return nil, unexpected(err)
		}
		if b.left == 0 {
			return nil, io.EOF
		}
	case framedByClose:
		b.left = int64(len(b.src.data))
	}
	if b.src.start == b.src.end {
		if err := b.src.fill(); err != nil {
			if b.framing == framedByClose {
				return nil, err
			}
			return nil, unexpected(err)
		}
	}
	p := b.src.take(int(min(b.left, int64(b.src.end-b.src.start))))
	b.left -= int64(len(p))
	return p, nil
}

// unexpected makes an end of the connection the early end that it is here.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	if errors.Is(err, errFull) {
		return errFraming
	}
	return err
}

// chunk reads up to the beginning of the next chunk's bytes; left is 0 after
// the last chunk and its trailers.
func (b *body) chunk() error {
	if b.left > 0 {
		return nil
	}
	if b.inTail {
		return b.trailers()
	}
	if b.inChunk {
		line, err := b.src.crlf()
		if err != nil {
			return err
		}
		if len(line) != 0 {
			return errFraming
		}
		b.inChunk = false
	}
	line, err := b.src.crlf()
	if err != nil {
		return err
	}
	if b.left, err = chunkSize(line); err != nil {
		return err
	}
	if b.left > 0 {
		b.frames++
		b.inChunk = true
		return nil
	}
	b.inTail = true
	return b.trailers()
}

// trailers reads what follows the last chunk.
func (b *body) trailers() error {
	for ; b.tail < maxHeadLines; b.tail++ {
		line, err := b.src.crlf()
		if err != nil || len(line) == 0 {
			return err
		}
	}
	return errFraming
}

// chunkSize reads the line before a chunk.
func chunkSize(line []byte) (int64, error) {
	if i := bytes.IndexByte(line, ';'); i >= 0 {
		line = line[:i] // extensions say nothing about the size
	}
	line = bytes.TrimRight(line, " \t")
	if len(line) == 0 || len(line) > 12 {
		return 0, errFraming
	}
	var n int64
	for _, d := range line {
		switch {
		case '0' <= d && d <= '9':
			d -= '0'
		case 'a' <= d && d <= 'f':
			d -= 'a' - 10
		case 'A' <= d && d <= 'F':
			d -= 'A' - 10
		default:
			return 0, errFraming
		}
		n = n<<4 | int64(d)
	}
	return n, nil
}
