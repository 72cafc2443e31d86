package front

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"weir/internal/trace"
)

// The bounds of a connection that speaks HTTP/2.
const (
	// MaxStreams bounds the requests of one connection at a time: enough for a
	// proxy that sends all it has over a few connections, and what one client
	// can make the gateway hold at once.
	MaxStreams = 1000
	// maxUpload and maxStreamUpload bound the bytes of bodies that have arrived
	// and were not read yet.
	maxUpload       = 1 << 20
	maxStreamUpload = 512 << 10
	// ResetRate is how many streams a second a client may reset, on one connection,
	// that have no answer yet, and ResetBurst how many at once: all that it can have
	// open, twice. Each one costs more than it costs the client.
	ResetRate  = 100
	ResetBurst = 2 * MaxStreams
)

// http2Conn is the state of a connection that speaks HTTP/2.
type http2Conn struct {
	resets resets
	intake intake
}

// resets is a connection's allowance of streams that are reset before they are
// answered. The zero value is full. A stream that is answered gives one back, so that a
// connection whose streams mostly come to something never runs out.
type resets struct {
	mu    sync.Mutex
	spent float64
	at    time.Time // when it was spent
}

// reset counts a stream that was reset, and reports whether there were too many.
func (a *resets) reset(now time.Time) (over bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.spent = 1 + max(0, a.spent-ResetRate*max(0, now.Sub(a.at).Seconds()))
	a.at = now
	return a.spent > ResetBurst
}

// answered counts a stream that was answered.
func (a *resets) answered() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.spent = max(0, a.spent-1)
}

// http2Config bounds HTTP/2 connections. One on which nothing can be written
// for two write timeouts is closed. A stream's own bound, of one, comes first;
// but where the whole connection is stuck, its reset is stuck too.
//
// There are no pings: a client that is not reading for lack of anything to read
// would not answer them, and hosts that vanish are found by TCP's keep-alive.
func http2Config(writeTimeout time.Duration) *http.HTTP2Config {
	return &http.HTTP2Config{
		MaxConcurrentStreams:          MaxStreams,
		MaxReceiveBufferPerConnection: maxUpload,
		MaxReceiveBufferPerStream:     maxStreamUpload,
		WriteByteTimeout:              2 * writeTimeout,
	}
}

// http2Streams serves the requests of a connection that speaks HTTP/2 with what net/http lacks
// for them. Each write has a deadline that bounds nothing but writes. A request begins once all
// that was sent with it is taken in (intake). Streams that are reset before they are answered
// are counted, and a connection with too many of them gets a GOAWAY: what streams it has may
// end, and no others begin. A request has its own arrival, because the connection's stamp
// belongs to no one request.
type http2Streams struct {
	f    *Front
	next http.Handler // net/http's, of the connection
}

// BaseContext is for net/http, which looks for it at the handlers of HTTP/2.
func (h http2Streams) BaseContext() context.Context {
	if next, ok := h.next.(interface{ BaseContext() context.Context }); ok {
		return next.BaseContext()
	}
	return context.Background()
}

// ServeHTTP implements http.Handler.
func (h http2Streams) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f := h.f
	s := &http2Writer{ResponseWriter: w, rc: http.NewResponseController(w), timeout: f.opts.WriteTimeout, arrival: trace.Now()}
	if c := connOf(r.Context()); c != nil {
		begun := false
		defer func() { // the handler may have broken the stream off by a panic
			if s.answered {
				c.http2.resets.answered()
			} else if r.Context().Err() != nil {
				f.metrics.StreamCancelled(begun)
				if c.http2.resets.reset(time.Now()) {
					s.goAway()
					f.sentAway(fmt.Errorf("%s resets more than %d requests a second before they are answered", r.RemoteAddr, ResetRate))
				}
			}
		}()
		c.http2.intake.wait(r.Context(), c.unread)
		if r.Context().Err() != nil {
			return
		}
		begun = true
	}
	h.next.ServeHTTP(s, r.WithContext(context.WithValue(r.Context(), connKey{}, nil)))
	s.last()
}

// overHTTP2 reports whether a response goes over HTTP/2.
func overHTTP2(w http.ResponseWriter) bool {
	_, ok := w.(*http2Writer)
	return ok
}

// errUnread is a write through net/http that took too long. It differs from other
// deadlines because it also ends the request's context, like a hang-up: over HTTP/2 by
// resetting the stream, and otherwise by net/http itself.
var errUnread = fmt.Errorf("write through net/http: %w", os.ErrDeadlineExceeded)

// http2Writer bounds each write to a stream. net/http's own deadline resets an
// HTTP/2 stream when it passes, written to or not: a stream whose engine is
// silent for as long would be cut. So that deadline is left alone, and a timer
// runs during writes only.
//
// A stream waits for its own flow-control window. It does not hold up the
// others of its connection, and being reset frees the window it held.
type http2Writer struct {
	http.ResponseWriter
	rc       *http.ResponseController // of ResponseWriter
	timeout  time.Duration
	arrival  int64 // of the request
	timer    *time.Timer
	pending  bool // written and not flushed
	answered bool // a head, at least, was written

	mu      sync.Mutex
	writing bool
	until   time.Time // when writing: the time it must be done by
	expired bool
}

// Unwrap is for http.ResponseController.
func (s *http2Writer) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// SetWriteDeadline is for http.ResponseController. Each write has its own bound here. A
// deadline in the past interrupts a write that waits.
func (s *http2Writer) SetWriteDeadline(t time.Time) error {
	if t.IsZero() || time.Now().Before(t) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writing {
		return s.rc.SetWriteDeadline(t)
	}
	return nil
}

// WriteHeader implements http.ResponseWriter. net/http removes a length of no body over HTTP/1
// only, and clients would wait for that body.
func (s *http2Writer) WriteHeader(status int) {
	if status >= 200 {
		s.answered = true
		suppress(s.Header(), status)
	}
	s.ResponseWriter.WriteHeader(status)
}

// goAway makes net/http send a GOAWAY on the stream's connection. It does so by the
// header of a response that is never delivered, because the stream is reset.
func (s *http2Writer) goAway() {
	s.Header().Set("Connection", "close")
	s.ResponseWriter.WriteHeader(http.StatusTooManyRequests)
	_ = s.rc.Flush() // fails, because the stream is reset
}

// Write implements io.Writer. net/http refuses even an empty part of a body where there is none, over
// HTTP/2 only.
func (s *http2Writer) Write(b []byte) (n int, err error) {
	if len(b) == 0 {
		if !s.answered {
			s.WriteHeader(http.StatusOK)
		}
		return 0, nil
	}
	s.answered = true
	s.begin()
	n, err = s.ResponseWriter.Write(b)
	s.pending = true
	return n, s.done(err)
}

// FlushError is for http.ResponseController.
func (s *http2Writer) FlushError() error {
	s.begin()
	s.pending = false
	return s.done(s.rc.Flush())
}

// last flushes a response that was left to net/http to send, which would wait
// for the stream's window without a bound.
func (s *http2Writer) last() {
	if s.pending {
		_ = s.FlushError() // no client is left to report it to
	}
}

func (s *http2Writer) begin() {
	s.mu.Lock()
	s.writing, s.until = true, time.Now().Add(s.timeout)
	s.mu.Unlock()
	if s.timer == nil {
		s.timer = time.AfterFunc(s.timeout, s.expire)
	} else {
		s.timer.Reset(s.timeout)
	}
}

// done ends the bound of a write and gives its error. Once it has the lock, no
// expire touches the response any more, which is net/http's again when the
// handler has returned.
func (s *http2Writer) done(err error) error {
	s.timer.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writing = false
	if err != nil && s.expired {
		return errUnread
	}
	return err
}

// expire resets the stream if its write has taken too long: a deadline that has
// passed already does just that, and wakes the writer. A timer that fired
// while it was being stopped finds no write, or one that has time left.
func (s *http2Writer) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writing && !time.Now().Before(s.until) {
		s.expired = true
		_ = s.rc.SetWriteDeadline(time.Unix(1, 0)) // fails for no HTTP/2 stream
	}
}
