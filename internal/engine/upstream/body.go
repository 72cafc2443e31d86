package upstream

import (
	"bytes"
	"context"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"weir/internal/engine"
	"weir/internal/infer"
	"weir/internal/wire/http1"
)

// Body is the decoded body of one answer. It is read straight from the
// connection into the reader's own memory, where chunked coding is taken out
// in place; nothing is held in between. One goroutine reads and closes it.
type Body struct {
	ctx      context.Context
	client   *Client
	in       reader // of it, what came with the head is left
	up       *upload
	stop     func() bool
	framing  http1.Framing
	left     int64 // of a sized body
	chunks   http1.Chunks
	reusable bool // the connection is good for another exchange
	ended    bool // the body was read to its end
	detached bool
	err      error // what Read ends with
	closed   bool
	hungUp   bool
	lent     *buffer // what Next gave
	// For a body whose connection must not be closed before the first byte has come.
	waits    *engine.Deferral // nil: it has come, or nothing was held back
	headless bool             // its head has not come either
}

// Read implements io.Reader. It returns io.EOF together with the last bytes, and only
// if the framing shows that the answer is complete.
func (b *Body) Read(p []byte) (int, error) {
	if b.err != nil || len(p) == 0 {
		return 0, b.err
	}
	if b.framing == http1.Empty {
		return 0, b.end(b.in.rest)
	}
	for {
		var n int
		var err error
		if len(b.in.rest) > 0 {
			n, err = b.take(p)
		} else {
			n, err = b.read(p)
		}
		if b.waits != nil && (n > 0 || err != nil && !timedOut(err)) {
			b.begins()
		}
		if err != nil && err != io.EOF {
			err = ended(b.ctx, err)
		}
		b.err = err
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// Buffered reports whether a part of the answer has come and was not read yet, as far as it
// is known without a system call.
func (b *Body) Buffered() bool { return b.err == nil && !b.detached && len(b.in.rest) > 0 }

// begins notes that the connection may be closed from now on: the answer has begun, or is over.
func (b *Body) begins() {
	b.in.conn.giveUpBy(b.in.conn.gives)
	b.waits.End()
	b.waits = nil
}

// Unhold ends what Waits has held back: the caller, which has the whole head, sees to it from now
// on.
func (b *Body) Unhold() {
	if b.waits == nil {
		return
	}
	b.waits = nil
	if b.in.conn.giveUpBy(b.in.conn.gives); b.ctx.Err() != nil { // which may have come before
		b.in.conn.givesUp()
	}
}

// linger lets an answer continue whose caller is gone but whose connection may not be closed
// yet. A goroutine reads the input up to the first byte of the body, and ends then or when the
// connection is closed. The caller must not use the body afterwards.
func (b *Body) linger() {
	cn := b.in.conn
	b.stop()
	cn.giveUpBy(nothing)
	_ = cn.bound(0) // fails only on a closed connection, as reads will
	b.err = nil
	waits := b.waits
	waits.Abort(cn.abort)
	go func() {
		defer func() {
			infer.Caught(recover(), b.client.panicked)
			waits.End()
			cn.abort()
			b.up.wait()
			b.in.release()
		}()
		if b.headless {
			resp, err := b.in.head()
			if err != nil {
				return
			}
			b.framing, b.left = resp.Framing, resp.Length
		}
		_, _ = b.Read(make([]byte, 64)) // whatever it is
	}()
}

// Next waits for the answer's next bytes and gives them decoded, in memory that
// is borrowed until the next call or Close: an answer that waits for its engine
// holds none. It ends as Read does, and is an alternative to it.
func (b *Body) Next() ([]byte, error) {
	spare := b.in.spare
	if b.lent == nil {
		b.lent = spare.take()
	}
	for b.err == nil {
		var n int
		var err error
		switch {
		case b.framing == http1.Empty:
			err = b.end(b.in.rest)
		case len(b.in.rest) > 0:
			n, err = b.take(b.lent.data)
		default:
			spare.give(b.lent)
			var got int
			_ = b.in.conn.bound(0) // fails only on a closed connection, as reads will
			if b.lent, got, err = b.in.conn.await(spare); err == nil {
				n, err = b.arrived(b.lent.data, got, nil)
			} else {
				b.lent = spare.take()
				n, err = b.arrived(nil, 0, err)
			}
		}
		if err != nil && err != io.EOF {
			err = ended(b.ctx, err)
		}
		if b.err = err; n > 0 {
			return b.lent.data[:n], nil
		}
	}
	return nil, b.err
}

// take decodes what came with the head.
func (b *Body) take(p []byte) (int, error) {
	n, used, err := b.decode(p, b.in.rest)
	b.in.rest = b.in.rest[used:]
	if err == io.EOF {
		b.end(b.in.rest)
	}
	if len(b.in.rest) == 0 || err != nil {
		b.in.release()
	}
	return n, err
}

// read reads from the connection and decodes in place.
func (b *Body) read(p []byte) (int, error) {
	if b.framing == http1.Sized {
		p = p[:min(int64(len(p)), b.left)]
	}
	_ = b.in.conn.bound(0) // fails only on a closed connection, as reads will
	got, err := b.in.conn.Read(p)
	return b.arrived(p, got, err)
}

// arrived decodes in place what a read brought.
func (b *Body) arrived(p []byte, got int, err error) (int, error) {
	if got <= 0 {
		switch {
		case err == io.EOF && b.framing == http1.UntilClose:
			return 0, b.end(nil)
		case err == io.EOF, err == nil:
			err = io.ErrUnexpectedEOF
		}
		if b.ctx.Err() == nil {
			b.client.doubts(nil)
		}
		return 0, err
	}
	// An error that came along comes again.
	n, used, err := b.decode(p, p[:got])
	if err == io.EOF {
		b.end(p[used:got])
	}
	return n, err
}

// Detach implements engine.Polled. It needs a plain socket, a request that was
// handed over whole, and a caller that has not given up.
func (b *Body) Detach() (fd int, ok bool) {
	if b.err != nil || b.closed || b.waits != nil || b.in.conn.secure || !b.up.finished(0) || b.up.written.Load() == 0 {
		return -1, false
	}
	fd, err := b.in.conn.dup()
	if err != nil {
		return -1, false
	}
	if !b.stop() {
		_ = unix.Close(fd)
		return -1, false
	}
	b.in.conn.detach(fd)
	b.detached, b.stop = true, nil
	return fd, true
}

// TryRead implements engine.Polled.
func (b *Body) TryRead(p []byte) (n int, drained bool, err error) {
	switch {
	case b.err != nil || len(p) == 0:
		return 0, false, b.err
	case b.waits != nil: // only Read ends that
		return 0, true, nil
	case b.framing == http1.Empty:
		b.err = b.end(b.in.rest)
		return 0, false, b.err
	case len(b.in.rest) > 0:
		n, b.err = b.take(p)
		return n, false, b.err
	}
	if b.framing == http1.Sized {
		p = p[:min(int64(len(p)), b.left)]
	}
	got, err := b.in.conn.tryRead(p)
	if got < 0 {
		return 0, true, nil
	}
	if n, err = b.arrived(p, got, err); err != nil && err != io.EOF && !b.detached {
		err = ended(b.ctx, err)
	}
	b.err = err
	return n, got < len(p), err
}

// decode takes the framing out of src. The error is io.EOF at the body's end.
func (b *Body) decode(dst, src []byte) (n, used int, err error) {
	switch b.framing {
	case http1.Chunked:
		switch n, used, err = b.chunks.Decode(dst, src); {
		case err != nil:
			err = &badFraming{err, bytes.Clone(src[used:min(len(src), used+foundBytes)])}
		case b.chunks.Done():
			err = io.EOF
		}
		return n, used, err
	case http1.Sized:
		n = copy(dst, src[:min(int64(len(src)), b.left)])
		if b.left -= int64(n); b.left == 0 {
			err = io.EOF
		}
	default:
		n = copy(dst, src)
	}
	return n, n, err
}

// badFraming is a violation of chunked coding, with the bytes that it was found
// in as evidence.
type badFraming struct {
	error
	found []byte
}

const foundBytes = 1 << 10

// Unwrap returns the *http1.Error.
func (e *badFraming) Unwrap() error { return e.error }

// FaultReason implements infer.Fault.
func (e *badFraming) FaultReason() string { return "framing" }

// Found returns the first bytes that cannot be read on from.
func (e *badFraming) Found() []byte { return e.found }

// end notes that the body is complete. Bytes behind it belong to no exchange,
// and nobody knows what the engine takes them for.
func (b *Body) end(behind []byte) error {
	b.ended = true
	if len(behind) > 0 {
		b.reusable = false
	}
	return io.EOF
}

// uploadGrace is how long an engine that has answered may take to read the rest
// of the request before its connection is given up.
const uploadGrace = 10 * time.Millisecond

// Whole reports whether all of the answer was read.
func (b *Body) Whole() bool { return b.ended }

// Close returns the connection to the pool if the answer was read to its end. Otherwise
// it closes the connection, by which the engine notices that the caller is gone.
func (b *Body) Close() error {
	if b.closed {
		return nil
	}
	b.closed = true
	if b.waits != nil && b.framing != http1.Empty {
		b.linger()
		return nil
	}
	if b.waits != nil {
		b.begins()
	}
	// An answer without a body is complete as it stands.
	whole := b.ended || b.framing == http1.Empty && len(b.in.rest) == 0
	untouched := b.detached || b.stop()
	b.err = io.ErrClosedPipe
	b.in.release()
	if b.lent != nil {
		b.in.spare.give(b.lent)
		b.lent = nil
	}
	if whole && b.reusable && !b.hungUp && untouched && b.up.finished(uploadGrace) && b.up.written.Load() != 0 {
		if b.in.conn.attach() == nil && b.in.conn.unboundFor(2*b.client.pool.keep) == nil {
			b.in.conn.fresh = false
			b.client.pool.give(b.in.conn)
			return nil
		}
	}
	b.in.conn.abort()
	b.up.wait()
	return nil
}

// HangUp closes this side of the connection, which the engine notices; output that it
// has sent until then can still be read. HangUp may be called from any goroutine, but
// not while the body is detached or closed.
func (b *Body) HangUp() {
	b.hungUp = true
	b.in.conn.hangUp()
}
