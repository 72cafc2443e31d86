package load

import (
	"bytes"
	"errors"
	"strconv"
)

// head holds the parts of a response's head that matter here.
type head struct {
	status      int
	contentType string
	requestID   string
	length      int64 // -1 when not given
	chunked     bool
	keep        bool // the connection may be used again
}

// maxHeadLines bounds a head.
const maxHeadLines = 256

// readHead reads the head of the final response; interim ones are passed over.
// After errAgain it is called again.
func readHead(b *buffer) (head, error) {
	for {
		b.keep()
		h, err := readOneHead(b)
		if errors.Is(err, errAgain) {
			b.rewind()
			return h, err
		}
		b.release()
		if err != nil || h.status >= 200 || h.status == 101 {
			return h, err
		}
	}
}

func readOneHead(b *buffer) (head, error) {
	h := head{length: -1}
	line, err := b.crlf()
	if err != nil {
		return h, err
	}
	// "HTTP/1.1 200 OK"; the reason may be missing.
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.")) || line[8] != ' ' ||
		(len(line) > 12 && line[12] != ' ') {
		return h, errFraming
	}
	if h.status, err = strconv.Atoi(string(line[9:12])); err != nil || h.status < 100 {
		return h, errFraming
	}
	h.keep = line[7] != '0'
	for range maxHeadLines {
		line, err := b.crlf()
		if err != nil {
			return h, unexpected(err)
		}
		if len(line) == 0 {
			return h, nil
		}
		if !h.field(line) {
			return h, errFraming
		}
	}
	return h, errFraming
}

// field reads one header line.
func (h *head) field(line []byte) bool {
	name, value, ok := bytes.Cut(line, []byte(":"))
	if !ok || len(name) == 0 || bytes.ContainsAny(name, " \t") {
		return false
	}
	value = bytes.TrimSpace(value)
	switch {
	case is(name, "content-length"):
		n, err := strconv.ParseInt(string(value), 10, 63)
		if err != nil || n < 0 || (h.length >= 0 && h.length != n) {
			return false
		}
		h.length = n
	case is(name, "transfer-encoding"):
		// The only coding asked for; any other cannot be read.
		if h.chunked || !is(value, "chunked") {
			return false
		}
		h.chunked = true
	case is(name, "connection"):
		if is(value, "close") {
			h.keep = false
		}
	case is(name, "content-encoding"):
		return is(value, "identity")
	case is(name, "content-type"):
		h.contentType = string(bytes.ToLower(value))
	case is(name, "x-request-id"):
		h.requestID = string(value)
	}
	return true
}

// is compares a header's name or token, ignoring case.
func is(b []byte, s string) bool { return len(b) == len(s) && bytes.EqualFold(b, []byte(s)) }

// body returns the reader of the body that the head announces.
func (h *head) body(b *buffer) body {
	switch {
	case h.status == 204 || h.status == 304:
		return body{src: b, framing: framedByLength}
	case h.chunked:
		return body{src: b, framing: framedByChunks}
	case h.length >= 0:
		return body{src: b, framing: framedByLength, left: h.length}
	}
	h.keep = false
	return body{src: b, framing: framedByClose}
}
