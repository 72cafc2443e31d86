package gateway

import (
	"errors"
	"net/http"
	"os"
	"strconv"
	"time"

	"weir/internal/infer"
	"weir/internal/trace"
)

// flush is stage 13: one write to the client of all that is encoded. A client
// that does not read within the write deadline is given up; only its own
// stream waits for it.
func (x *exchange) flush() error {
	x.enter(trace.Flush)
	if len(x.out) == 0 {
		return nil
	}
	if !x.committed {
		h := x.w.Header()
		if x.req.Stream {
			h.Set("Content-Type", "text/event-stream")
			h.Set("Cache-Control", "no-cache")
			x.carriesSSE = true
		} else {
			h.Set("Content-Type", "application/json")
			h.Set("Content-Length", strconv.Itoa(len(x.out)))
		}
		if x.commit(http.StatusOK); x.detached {
			return nil // resume flushes
		}
	}
	err := x.write(x.out, x.complete)
	x.out = x.out[:0]
	return err
}

// commit decides on the response head and the way it goes. From here on the
// request cannot be retried.
func (x *exchange) commit(status int) {
	x.committed = true
	x.rec.Status = status
	if x.hasMedia {
		x.req.Media = nil // which may be the whole body, while a stream may live for long
	}
	if !x.detach() {
		x.w.WriteHeader(status)
	}
}

// write writes b at once; last says that the response is complete with it.
func (x *exchange) write(b []byte, last bool) error {
	if err := x.armWrite(); err != nil {
		return err
	}
	if err := x.client.write(b, last); err != nil {
		return x.writeError(err)
	}
	x.wrote(len(b))
	return nil
}

// armWrite bounds the write to come. The context is looked at after that: a
// deadline just set would undo breakWrites.
func (x *exchange) armWrite() error {
	x.extendDeadline(trace.Now())
	if x.ctx.Err() != nil && x.err == nil {
		return x.gone()
	}
	return nil
}

// wrote counts a write of n bytes of output.
func (x *exchange) wrote(n int) {
	x.g.opts.Metrics.Wrote(1, n)
	x.noteWrite(n)
}

// noteWrite puts a write of n bytes into the record.
func (x *exchange) noteWrite(n int) {
	x.rec.Flushes++
	x.rec.BytesOut += int64(n)
	if x.g.opts.FlushInterval > 0 {
		x.lastFlush = trace.Now()
	}
	if x.rec.FirstFlushed == 0 {
		x.rec.FirstFlushed = trace.Now()
	}
}

// extendDeadline keeps the write deadline between one and one and a half
// timeouts ahead, so that it is not set for every write. It tells when it was.
func (x *exchange) extendDeadline(now int64) (extended bool) {
	timeout := x.g.opts.WriteTimeout
	if x.bounded && x.writeDeadline-now >= int64(timeout) {
		return false
	}
	ahead := timeout + timeout/2
	x.bounded, x.writeDeadline = true, now+int64(ahead)
	x.client.setDeadline(time.Now().Add(ahead))
	return true
}

func (x *exchange) writeError(err error) error {
	if x.ctx.Err() != nil && !errors.Is(err, errUnread) {
		return x.gone()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &infer.Error{Code: infer.CodeSlowClient, Cause: err,
			Message: "the client did not read for " + x.g.opts.WriteTimeout.String()}
	}
	return &infer.Error{Code: infer.CodeCancelled, Message: "the client closed the connection", Cause: err}
}
