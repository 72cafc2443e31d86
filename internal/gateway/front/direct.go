package front

import (
	"bytes"
	"io"
	"iter"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"weir/internal/gateway/freelist"
	"weir/internal/trace"
	"weir/internal/wire/http1"
	"weir/internal/wire/sock"
)

// direct serves plain requests (http1.ParsePlain) without net/http, whose reader, writer and
// goroutine for hang-ups take a fifth of a short request's CPU. net/http gets everything else,
// with the bytes that were read: a request of any other form, one whose head did not come in one
// read, and one with another behind it. So direct serves no request that another reader
// could understand otherwise.
//
// A goroutine serves a connection, from its beginning and again after a stream that had left
// it, until net/http gets it or it ends.
type direct struct {
	f       *Front
	handler http.Handler
	urls    map[string]*url.URL // of the paths served
	base    *http.Request       // what all requests have in common
	spare   *freelist.List[*plainRequest]
	serving sync.WaitGroup
}

// plainRequest is what a request takes that is served without net/http. It is used again for another
// one only after a whole response: the request has no goroutine or stream any more that has a
// part of it, and what the handler keeps of a request is text.
type plainRequest struct {
	request http.Request
	body    directBody
	writer  directWriter
	fields  http.Header // of the request
	answer  http.Header // of the response
}

// newPlainRequests returns spare ones. They are kept empty, so that whoever still uses one is seen to.
func newPlainRequests() *freelist.List[*plainRequest] {
	return &freelist.List[*plainRequest]{
		Make: func() *plainRequest {
			return &plainRequest{fields: make(http.Header, fewFields), answer: make(http.Header, fewFields)}
		},
		Empty: func(s *plainRequest) {
			clear(s.fields)
			clear(s.answer)
			s.request, s.body, s.writer = http.Request{}, directBody{}, directWriter{}
		},
	}
}

// fewFields is as many as Go keeps in a map without hashing them into a table, which takes longer
// to clear than a short request's fields take to be parsed.
const fewFields = 8

// directBuffer bounds a request that is served without net/http, in bytes.
const directBuffer = 16 << 10

// newBuffers returns spare ones of directBuffer, for what is read or written at once.
func newBuffers() *freelist.List[*[]byte] {
	return &freelist.List[*[]byte]{Make: func() *[]byte { b := make([]byte, directBuffer); return &b }}
}

func newDirect(f *Front, handler http.Handler, paths iter.Seq[string]) *direct {
	d := &direct{f: f, handler: handler, urls: map[string]*url.URL{}, spare: newPlainRequests()}
	base := &http.Request{Method: http.MethodPost, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
	d.base = base.WithContext(f.base) // a request's connection is known by its writer
	for path := range paths {
		d.urls[path] = &url.URL{Path: path}
	}
	return d
}

// peer is what the requests of a connection have in common. Each stream keeps it, so it is small.
type peer struct {
	remote  string // its address
	writer  TryWriter
	raw     syscall.RawConn // nil: the connection is read as it is
	polled  func(fd uintptr) bool
	buffers *freelist.List[*[]byte]
	buf     *[]byte // what polled has read into
	n       int
	began   int64         // when the request that net/http gets did; 0: there is none
	bounded time.Time     // when the wait for the next request was bounded last
	within  time.Duration // and by what
	late    atomic.Bool   // writes have a deadline
	looked  bool          // for a hang-up of the first request's client
}

// accept begins to serve a connection; false if only net/http can. Its client's hang-up must
// be noticed without net/http, and its address be known.
func (d *direct) accept(c *conn) bool {
	if c.Conn != c.socket || !d.f.returned.Serving.Load() {
		return false
	}
	w, ok := tryWriterOf(c.socket)
	if !ok || c.follow(d.f.Hangups, nil) != nil {
		return false
	}
	p := &peer{remote: c.RemoteAddr().String(), writer: w, buffers: d.f.buffers}
	if sys, ok := c.socket.(syscall.Conn); ok {
		raw, err := sys.SyscallConn()
		if err != nil {
			return false
		}
		p.raw, p.polled = raw, p.read
	}
	c.peer = p
	d.serve(c, d.f.opts.BodyTimeout)
	return true
}

// serve serves a connection. Its first request must begin within a time.
func (d *direct) serve(c *conn, within time.Duration) {
	if !d.f.returned.rest(c) {
		c.Close()
		return
	}
	d.serving.Go(func() {
		for c.bound(within); d.next(c); c.bound(KeepAliveTimeout) {
			c.entry.Idle(time.Now())
			if !d.f.returned.rest(c) {
				c.Close()
				return
			}
		}
	})
}

// bound bounds the wait for the next request, by a deadline that is at most a second early.
func (c *conn) bound(within time.Duration) {
	p := c.peer
	if now := time.Now(); now.Sub(p.bounded) >= time.Second || p.within != within {
		p.bounded, p.within = now, within
		_ = c.Conn.SetReadDeadline(now.Add(within)) // fails only on a closed connection, as reads will
	}
}

// read reads what the socket has into a buffer, which the connection has only then.
func (p *peer) read(fd uintptr) bool {
	buf := p.buffers.Take()
	var err error
	if p.n, err = sock.TryRead(int(fd), *buf); p.n < 0 && err == nil {
		p.buffers.Give(buf)
		return false
	}
	p.buf = buf
	return true
}

// await waits for the first bytes of a request, and returns how many there are in the buffer;
// none if none will come.
func (c *conn) await() (n int) {
	p := c.peer
	if p.raw == nil || len(c.ahead) > 0 {
		p.buf = p.buffers.Take()
		if n = copy(*p.buf, c.ahead); n > 0 {
			c.ahead = c.ahead[n:]
			return n
		}
		n, _ = c.Conn.Read(*p.buf) // an error comes again
		return n
	}
	p.n = 0
	if p.raw.Read(p.polled) != nil {
		return 0
	}
	return p.n
}

// next serves the next request, and reports whether another one may follow.
func (d *direct) next(c *conn) (kept bool) {
	n := c.await()
	p := c.peer
	s := d.spare.Take()
	body := &s.body
	*body = directBody{conn: c, buffers: p.buffers, buf: p.buf}
	p.buf = nil
	defer func() {
		if body.release(); kept {
			d.spare.Give(s)
		}
	}()
	if n <= 0 || !c.leave() {
		c.Close() // the client has, or it is too late
		return false
	}
	began := trace.Now()
	text := (*body.buf)[:n]
	head, size := http1.ParsePlain(text, s.fields)
	at := d.urls[head.Path]
	if size == 0 || at == nil || n > size+head.Length || len(c.ahead) > 0 {
		c.ahead, p.began = append(bytes.Clone(text), c.ahead...), began
		p.bounded = time.Time{} // net/http sets deadlines of its own
		if !d.f.returned.hand(c) {
			c.Close()
		}
		return false
	}
	// The connection may be closed as an idle one until it is busy; from then on its descriptor
	// belongs to the request.
	if !c.entry.Busy() {
		c.Close()
		return false
	}
	c.first.Store(began)
	r := &s.request
	*r = *d.base
	r.RemoteAddr = p.remote
	body.rest, body.left = text[size:], size+head.Length-n
	r.URL, r.RequestURI, r.Host, r.Header = at, head.Path, head.Host, head.Header
	r.ContentLength, r.Body = int64(head.Length), body
	s.writer = directWriter{conn: c, r: r, in: body, header: s.answer}
	return s.writer.serve(d)
}

// unbound takes the deadline of writes away, which few requests have needed.
func (c *conn) unbound() {
	if c.peer.late.Swap(false) {
		_ = c.Conn.SetWriteDeadline(time.Time{}) // fails only on a closed connection, as writes will
	}
}

// directBody is a request's body: what came with the head, and behind it what the connection
// still has to bring. The buffer is given back once it is empty, because the request may wait
// for its engine for long.
type directBody struct {
	conn    *conn
	buffers *freelist.List[*[]byte]
	buf     *[]byte
	rest    []byte // of buf
	left    int    // bytes that were not read from the connection
}

func (b *directBody) release() {
	if b.buf != nil {
		b.buffers.Give(b.buf)
		b.buf, b.rest = nil, nil
	}
}

// Read implements io.Reader.
func (b *directBody) Read(p []byte) (n int, err error) {
	switch {
	case len(b.rest) > 0:
		n = copy(p, b.rest)
		b.rest = b.rest[n:]
	case b.left > 0:
		n, err = b.conn.Conn.Read(p[:min(len(p), b.left)])
		if b.left -= n; err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
	}
	if len(b.rest) == 0 {
		b.release()
	}
	if err == nil && len(b.rest) == 0 && b.left == 0 {
		err = io.EOF
	}
	return n, err
}

// cameWithHead returns the body of a request if all of it came with the head, and nil otherwise.
// The request has no body from then on.
func cameWithHead(r *http.Request) (body []byte) {
	b, ok := r.Body.(*directBody)
	if !ok || b.left != 0 {
		return nil
	}
	body = append(make([]byte, 0, r.ContentLength), b.rest...)
	b.release()
	return body
}

// maxDropped is how much of a body is read that the handler has not, so that the connection can
// be kept, as net/http does.
const maxDropped = 256 << 10

// drop reads what the handler has not, and reports whether the connection can have another
// request.
func (b *directBody) drop() bool {
	if b.left == 0 {
		return true
	}
	if b.left >= maxDropped {
		return false
	}
	_, err := io.Copy(io.Discard, b)
	return err == nil
}

// Close implements io.Closer.
func (b *directBody) Close() error { return nil }
