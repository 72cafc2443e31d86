package front

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// directWriter is the http.ResponseWriter of a request that net/http does not serve. It writes
// a response that is whole at its end with one system call, head and body together. It
// belongs to the goroutine that serves the request.
type directWriter struct {
	conn     *conn
	r        *http.Request
	in       *directBody
	header   http.Header
	status   int // 0: not decided
	body     []byte
	declared int64 // what Content-Length says; -1: nothing
	written  int64 // bytes of the body
	sent     bool  // the head is
	chunked  bool
	over     bool // the end of the chunks was sent
	left     bool // a stream goes on with the connection
	until    time.Time
	breaking *breaking // ends a write that waits; nil: nothing does
	failed   error
}

// maxDirect is how much of a body is gathered before it is sent.
const maxDirect = 32 << 10

// serve serves the request and reports whether the connection can have another one.
func (w *directWriter) serve(d *direct) (kept bool) {
	c := w.conn
	defer func() {
		p := recover()
		if p != nil && p != http.ErrAbortHandler {
			d.f.log.Error("panic in a handler", "panic", p)
		}
		if p != nil {
			kept = false
			c.Close()
		}
	}()
	d.handler.ServeHTTP(w, w.r)
	if w.left {
		return false
	}
	if w.finish(); w.failed != nil || w.declared >= 0 && w.written != w.declared {
		c.Close()
		return false
	}
	c.unbound()
	if w.closes() {
		c.linger()
		return false
	}
	return true
}

// closes reports whether the response is the connection's last one.
func (w *directWriter) closes() bool {
	return w.r.Close || len(w.header["Connection"]) > 0 && w.header["Connection"][0] == "close"
}

// Header implements http.ResponseWriter.
func (w *directWriter) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *directWriter) WriteHeader(status int) {
	if w.status != 0 {
		return
	}
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %v", status)) // as net/http does
	}
	if status < 200 && status != http.StatusSwitchingProtocols {
		w.inform(status)
		return
	}
	w.status, w.declared = status, -1
	if v := w.header["Content-Length"]; len(v) == 1 {
		if n, err := strconv.ParseInt(v[0], 10, 64); err == nil && n >= 0 {
			w.declared = n
		}
	}
	if !bodied(status) {
		w.declared = -1
	}
}

// inform sends a head that comes before that of the response.
func (w *directWriter) inform(status int) {
	h := maps.Clone(w.header)
	suppress(h, status)
	h["Date"] = nil
	w.put(appendResponseHead(nil, h, status, true, false))
}

// suppress removes the fields that the head of a response without a body does not have.
func suppress(h http.Header, status int) {
	if !bodied(status) {
		delete(h, "Content-Length")
		delete(h, "Transfer-Encoding")
	}
	if status == http.StatusNotModified {
		delete(h, "Content-Type")
	}
}

// bodied reports whether a response of a status has a body.
func bodied(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// Write implements io.Writer.
func (w *directWriter) Write(b []byte) (n int, err error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	switch {
	case w.failed != nil:
		return 0, w.failed
	case len(b) == 0:
		return 0, nil
	case w.over:
		return 0, http.ErrContentLength
	case !bodied(w.status):
		return 0, http.ErrBodyNotAllowed
	}
	if w.written += int64(len(b)); w.declared >= 0 && w.written > w.declared { // the connection ends with the response
		return 0, http.ErrContentLength
	}
	w.body = append(w.body, b...)
	if len(w.body) >= maxDirect {
		err = w.FlushError()
	}
	return len(b), err
}

// WriteAtOnce implements atOnce.
func (w *directWriter) WriteAtOnce(b []byte, last bool) error {
	if len(w.body) == 0 && w.status != 0 && w.failed == nil && bodied(w.status) && (w.declared < 0 || w.written+int64(len(b)) <= w.declared) {
		w.written += int64(len(b))
		w.body = b
		defer func() { w.body = nil }()
	} else if _, err := w.Write(b); err != nil {
		return err
	}
	return w.send(last)
}

// FlushError is for http.ResponseController.
func (w *directWriter) FlushError() error {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	return w.send(false)
}

// finish sends what is left of the response.
func (w *directWriter) finish() {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if !w.sent && w.declared < 0 && bodied(w.status) {
		w.declared = int64(len(w.body))
		w.header["Content-Length"] = []string{strconv.Itoa(len(w.body))}
	}
	if !w.sent || w.chunked && !w.over || len(w.body) > 0 {
		_ = w.send(true) // which keeps the error
	}
}

// send sends what there is of the response, and its end if that is last.
func (w *directWriter) send(last bool) error {
	if w.failed != nil {
		return w.failed
	}
	buf := w.conn.peer.buffers.Take()
	defer w.conn.peer.buffers.Give(buf)
	out := (*buf)[:0]
	if !w.sent {
		if !w.in.drop() { // what is left of it must not be taken for a request
			w.r.Close = true
		}
		w.sent, w.chunked = true, w.declared < 0 && bodied(w.status)
		out = w.appendHead(out)
	}
	switch {
	case w.chunked:
		out, w.over = appendChunk(out, w.body, last), last
	default:
		out = append(out, w.body...)
	}
	w.body = w.body[:0]
	w.put(out)
	return w.failed
}

// put writes to the connection, and keeps the error.
func (w *directWriter) put(out []byte) {
	if len(out) == 0 || w.failed != nil {
		return
	}
	if w.conn.peer.late.Load() {
		w.bound()
	}
	n, err := w.conn.peer.writer.TryWrite(out)
	if err == nil && n < len(out) {
		w.bound()
		_, err = w.conn.Write(out[max(n, 0):])
	}
	w.failed = err
}

// bound sets the deadline of a write that may wait.
func (w *directWriter) bound() {
	if w.breaking != nil {
		w.breaking.bound(w.conn, w.until)
		return
	}
	_ = w.conn.SetWriteDeadline(w.until) // fails only on a closed connection, as writes will
}

// boundBy implements breakable.
func (w *directWriter) boundBy(b *breaking) { w.breaking = b }

// abort has the connection closed without a further byte. If nobody reads what was written, the
// kernel drops that and remembers nothing of the connection.
func (w *directWriter) abort(dropped bool) {
	w.failed = http.ErrAbortHandler
	if tcp, ok := w.conn.socket.(*net.TCPConn); ok && dropped {
		_ = tcp.SetLinger(0) // fails only on a closed connection
	}
}

// leave implements leaver. A body that has not come whole is to be read first, and only chunks
// can go on elsewhere.
func (w *directWriter) leave() (sent, ok bool) {
	w.left = w.in.left == 0 && (!w.sent || w.chunked && !w.over && w.failed == nil)
	return w.sent, w.left
}

// SetWriteDeadline is for http.ResponseController. Only a write that waits needs it.
func (w *directWriter) SetWriteDeadline(t time.Time) error {
	w.until = t
	return nil
}

// SetReadDeadline is for http.ResponseController. Only a body that has not come needs it.
func (w *directWriter) SetReadDeadline(t time.Time) error {
	if w.in.left == 0 {
		return nil
	}
	w.conn.peer.bounded = time.Time{} // the wait for the next request is bounded anew
	return w.conn.Conn.SetReadDeadline(t)
}

// appendHead appends the response's head.
func (w *directWriter) appendHead(out []byte) []byte {
	h := w.header
	if _, ok := h["Content-Type"]; !ok && len(w.body) > 0 && h.Get("Content-Encoding") == "" {
		h["Content-Type"] = []string{http.DetectContentType(w.body)}
	}
	if w.declared < 0 {
		delete(h, "Content-Length")
	}
	suppress(h, w.status)
	return appendResponseHead(out, h, w.status, !w.closes(), w.chunked)
}

// appendResponseHead appends the head that net/http would write.
func appendResponseHead(out []byte, h http.Header, status int, keepAlive, chunked bool) []byte {
	out = append(out, "HTTP/1.1 "...)
	out = strconv.AppendInt(out, int64(status), 10)
	reason := http.StatusText(status)
	if reason == "" {
		reason = "status code " + strconv.Itoa(status)
	}
	out = append(append(append(out, ' '), reason...), "\r\n"...)
	var most [16]string
	names := most[:0]
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if name == "Connection" {
			continue
		}
		for _, value := range h[name] {
			if strings.IndexByte(value, '\n') >= 0 || strings.IndexByte(value, '\r') >= 0 {
				value = lineEnds.Replace(value)
			}
			out = append(append(append(append(out, name...), ": "...), strings.TrimSpace(value)...), "\r\n"...)
		}
	}
	if _, ok := h["Date"]; !ok {
		out = append(append(append(out, "Date: "...), dateOf(time.Now())...), "\r\n"...)
	}
	if !keepAlive {
		out = append(out, "Connection: close\r\n"...)
	}
	if chunked {
		out = append(out, "Transfer-Encoding: chunked\r\n"...)
	}
	return append(out, "\r\n"...)
}

// dateOf returns a time as a head has it. Heads of the same second share the text.
func dateOf(now time.Time) string {
	second := now.Unix()
	d := lastDate.Load()
	if d == nil || d.second != second {
		d = &dated{second, now.UTC().Format(http.TimeFormat)}
		lastDate.Store(d)
	}
	return d.text
}

type dated struct {
	second int64
	text   string
}

var lastDate atomic.Pointer[dated]

// lineEnds keeps a field's value in its line.
var lineEnds = strings.NewReplacer("\n", " ", "\r", " ")
