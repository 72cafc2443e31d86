package front

import (
	"context"
	"net/http"
	"time"
)

// UnreadTimeout bounds the wait for the unused rest of a body: net/http reads it before
// it sends the answer, so that the connection can be kept.
const UnreadTimeout = time.Second

// DropBody is called before the answer to a request whose body was not read.
func DropBody(rc *http.ResponseController) {
	_ = rc.SetReadDeadline(time.Now().Add(UnreadTimeout)) // as in HTTPCarrier
}

// DrainTime bounds how long a refused body is read, and DrainSilence the wait for more of it. Over
// HTTP/2 some clients stop at the head of an error, and wait for the end of the answer, which
// net/http sends behind the drain.
const (
	DrainTime         = 30 * time.Second
	DrainSilence      = time.Second
	drainSilenceHTTP2 = 300 * time.Millisecond
)

// Drain reads and drops what still comes of a large body after its answer was sent. Many
// clients send all of a body before they read an answer. Closing the connection in the
// meantime would reset it, and the client would have a broken pipe and no reason. Over HTTP/2 the
// end of the handler resets the stream, and curl 7.88 and Node then have no answer either. As much
// is read as the bodies of two requests may have. A shutdown waits for it as for a request in
// flight, and Cut ends it.
func (f *Front) Drain(w http.ResponseWriter, r *http.Request) {
	http2 := overHTTP2(w)
	if r.ContentLength == 0 || !http2 && r.ContentLength > 0 && r.ContentLength < maxDropped {
		return // net/http reads a small one before the answer, but not over HTTP/2
	}
	rc := http.NewResponseController(w)
	if rc.Flush() != nil {
		return
	}
	var reads interface{ SetReadDeadline(time.Time) error } = rc
	if direct, ok := w.(*directWriter); ok {
		reads = direct.conn // the writer belongs to this goroutine
	}
	stop := context.AfterFunc(f.base, func() { _ = reads.SetReadDeadline(broken) }) // it ends soon in any case
	defer stop()
	buf := f.buffers.Take()
	defer f.buffers.Give(buf)
	silence := DrainSilence
	if http2 {
		silence = drainSilenceHTTP2
	}
	end := time.Now().Add(DrainTime)
	for left := 2 * f.opts.MaxBody; left > 0 && time.Now().Before(end); {
		if rc.SetReadDeadline(time.Now().Add(silence)) != nil || f.base.Err() != nil {
			return
		}
		n, err := r.Body.Read(*buf)
		if left -= int64(n); err != nil {
			return
		}
	}
}
