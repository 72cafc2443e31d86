package front

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
)

// A connection speaks HTTP/2 if TLS has negotiated it, or if the client began with the preface
// where --h2c allows that. net/http decides so before it reads a request, and then serves the
// connection by one of the server's functions in TLSNextProto. So those functions mark the
// connection, and nothing that a request says does: net/http lets a request "PRI * HTTP/2.0"
// of HTTP/1 pass to handlers, and nothing that HTTP/2 promises holds for it.

// nextProtoPlain is the name in TLSNextProto by which net/http serves HTTP/2 over any connection,
// behind the client's preface. A net.Conn is handed to it as notTLS.
const nextProtoPlain = "unencrypted_http2"

// notTLS hands a connection to the function of nextProtoPlain, which takes a *tls.Conn.
type notTLS struct {
	net.Conn // nil
	conn     net.Conn
}

// UnencryptedNetConn is for net/http.
func (c notTLS) UnencryptedNetConn() net.Conn { return c.conn }

// takeHTTP2 has the HTTP/2 connections of a server read and written by frames, and their
// requests served by http2Streams. net/http has set up HTTP/2, unless GODEBUG turns it off.
func (f *Front) takeHTTP2(server *http.Server) {
	serve := server.TLSNextProto[nextProtoPlain]
	if serve == nil {
		return
	}
	over := func(s *http.Server, c net.Conn, secure *tls.Conn, h http.Handler) {
		framed := &frames{Conn: c, socket: connFrom(c), away: f.sentAway, budget: newFrameBudget()}
		if framed.socket != nil {
			framed.socket.http2 = new(http2Conn)
		}
		var served net.Conn = framed
		if secure != nil {
			served = tlsFrames{framed, secure}
		}
		serve(s, tls.Client(notTLS{conn: served}, nil), http2Streams{f, h})
	}
	server.TLSNextProto[nextProtoPlain] = func(s *http.Server, c *tls.Conn, h http.Handler) {
		if from, ok := c.NetConn().(interface{ UnencryptedNetConn() net.Conn }); ok {
			over(s, from.UnencryptedNetConn(), nil, h)
		}
	}
	server.TLSNextProto["h2"] = func(s *http.Server, c *tls.Conn, h http.Handler) {
		if readPreface(c) == nil {
			over(s, c, c, h)
		}
	}
}

// prefaceTimeout bounds the wait for a client's preface behind its handshake.
const prefaceTimeout = 10 * time.Second

func readPreface(c net.Conn) error {
	if err := c.SetReadDeadline(time.Now().Add(prefaceTimeout)); err != nil {
		return err
	}
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(c, preface); err != nil {
		return err
	}
	if string(preface) != http2.ClientPreface {
		return errors.New("the client's preface is not that of HTTP/2")
	}
	return c.SetReadDeadline(time.Time{})
}

// HTTP1Only refuses the one request of another version that net/http passes on over HTTP/1, as
// net/http refuses all others. Nothing of its body is read.
func (f *Front) HTTP1Only(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 1 || overHTTP2(w) {
			next.ServeHTTP(w, r)
			return
		}
		rc := http.NewResponseController(w)
		_ = rc.SetWriteDeadline(time.Now().Add(f.opts.WriteTimeout)) // as in HTTPCarrier
		_ = rc.SetReadDeadline(broken)
		Protect(w.Header())
		w.Header().Set("Connection", "close")
		http.Error(w, fmt.Sprintf("505 HTTP Version Not Supported: the request line says HTTP/%d.%d on a connection of HTTP/1.1; send HTTP/1.1, or HTTP/2 over TLS (without TLS it needs --h2c)", r.ProtoMajor, r.ProtoMinor), http.StatusHTTPVersionNotSupported)
	})
}

// frames is a connection as net/http's HTTP/2 reads and writes it. It counts the frames in both
// directions. If the client sends too many of them that bring nothing, it gets a GOAWAY with
// ENHANCE_YOUR_CALM, and the connection ends.
type frames struct {
	net.Conn       // over TLS a *tls.Conn
	socket   *conn // nil when it is not one of ours
	away     func(why error)

	budget *frameBudget
	in     frameScan
	latest uint32 // the highest stream that the client has begun
	over   atomic.Bool

	mu  sync.Mutex // of writes
	out frameScan
}

// tlsFrames is frames over TLS.
type tlsFrames struct {
	*frames
	secure *tls.Conn
}

// ConnectionState is for net/http, which checks the cipher.
func (c tlsFrames) ConnectionState() tls.ConnectionState { return c.secure.ConnectionState() }

// NetConn returns the connection underneath.
func (c *frames) NetConn() net.Conn { return c.Conn }

var errFrames = errors.New("too many frames of HTTP/2 without work")

// Read implements net.Conn.
func (c *frames) Read(p []byte) (int, error) {
	if c.over.Load() {
		return 0, errFrames
	}
	n, err := c.Conn.Read(p)
	var cost int64
	for rest := p[:n]; len(rest) > 0; {
		var ended bool
		if rest, ended = c.in.next(rest); ended {
			cost += costOf(&c.in)
			if c.in.kind() == http2.FrameHeaders {
				c.latest = max(c.latest, c.in.stream())
			}
		}
	}
	if cost == 0 || c.budget.spend(cost) {
		return n, err
	}
	c.over.Store(true)
	c.away(fmt.Errorf("%s sends more than %d frames a second that bring nothing", c.RemoteAddr(), frameRate))
	c.goAway()
	return 0, errFrames
}

// goAwayTime bounds the write of a GOAWAY to a client that may not read.
const goAwayTime = time.Second

// goAway writes a GOAWAY between two frames of net/http.
func (c *frames) goAway() {
	_ = c.SetWriteDeadline(time.Now().Add(goAwayTime)) // fails only on a closed connection, as writes will
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out.between() {
		_ = http2.NewFramer(c.Conn, nil).WriteGoAway(c.latest, http2.ErrCodeEnhanceYourCalm, []byte(errFrames.Error())) // however it ends, so does the connection
	}
}

// Write implements net.Conn.
func (c *frames) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, err := c.Conn.Write(p)
	var earned int64
	for rest := p[:n]; len(rest) > 0; {
		var ended bool
		if rest, ended = c.out.next(rest); ended {
			earned += worthOf(&c.out)
		}
	}
	c.budget.earn(earned)
	return n, err
}

// Close implements net.Conn. A connection that was told to go away is read on for a moment, so
// that a reset does not overtake the GOAWAY.
func (c *frames) Close() error {
	if c.over.Load() && c.socket != nil {
		c.socket.linger()
		return nil
	}
	return c.Conn.Close()
}

// frameScan finds the heads of frames in bytes, however those are cut.
type frameScan struct {
	head [9]byte
	have int // bytes of the head
	left int // bytes of the payload that are to come
}

// next takes bytes up to the end of the next head, and reports whether there is one.
func (s *frameScan) next(p []byte) (rest []byte, ended bool) {
	skipped := min(s.left, len(p))
	s.left -= skipped
	p = p[skipped:]
	if s.left > 0 {
		return p, false
	}
	if s.have == len(s.head) {
		s.have = 0
	}
	n := copy(s.head[s.have:], p)
	if s.have += n; s.have < len(s.head) {
		return p[n:], false
	}
	s.left = s.length()
	return p[n:], true
}

// between reports whether the bytes so far end with a frame.
func (s *frameScan) between() bool { return s.left == 0 && (s.have == 0 || s.have == len(s.head)) }

func (s *frameScan) length() int {
	return int(s.head[0])<<16 | int(s.head[1])<<8 | int(s.head[2])
}

func (s *frameScan) kind() http2.FrameType { return http2.FrameType(s.head[3]) }

func (s *frameScan) stream() uint32 {
	return uint32(s.head[5]&0x7f)<<24 | uint32(s.head[6])<<16 | uint32(s.head[7])<<8 | uint32(s.head[8])
}

// The budget of a client's frames on a connection. A frame costs one, and a part of a body the
// less the longer it is. Each head and each part of an answer brings several times what clients
// send for it: a request's frames, updates of two windows, a ping that measures the way. Time
// brings ten frames for each stream that may be reset, so pings that keep a connection alive are
// never too many.
const (
	frameRate   = 10 * ResetRate
	FrameBurst  = 10 * ResetBurst
	frameEarned = 10              // by each frame of an answer
	frameMost   = 10 * FrameBurst // that can be earned: what is sent for an answer may come late
	// wholeData is how long a part of a body is that costs nothing.
	wholeData = 256
)

// frameBudget counts in parts of a frame, of which it has wholeData.
type frameBudget struct {
	left     atomic.Int64
	refilled time.Time // by time; the reader's
}

func newFrameBudget() *frameBudget {
	b := &frameBudget{refilled: time.Now()}
	b.left.Store(FrameBurst * wholeData)
	return b
}

// costOf is what a client's frame costs.
func costOf(f *frameScan) (parts int64) {
	if f.kind() == http2.FrameData {
		return int64(wholeData - min(f.length(), wholeData))
	}
	return wholeData
}

// worthOf is what a frame of the gateway brings.
func worthOf(f *frameScan) (parts int64) {
	if kind := f.kind(); kind == http2.FrameHeaders || kind == http2.FrameData {
		return frameEarned * wholeData
	}
	return 0
}

// spend reports whether there is enough.
func (b *frameBudget) spend(parts int64) (enough bool) {
	if b.left.Add(-parts) >= 0 {
		return true
	}
	now := time.Now()
	came := min(FrameBurst, frameRate*now.Sub(b.refilled).Seconds())
	b.refilled = now
	return b.left.Add(int64(came*wholeData)) >= 0
}

func (b *frameBudget) earn(parts int64) {
	if parts > 0 && b.left.Load() < frameMost*wholeData {
		b.left.Add(parts)
	}
}
