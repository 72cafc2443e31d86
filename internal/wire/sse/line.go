package sse

import "bytes"

// lines cuts chunks of a stream into lines. The positions of the next LF and
// CR are remembered until they are passed, so that a chunk is searched once for
// each of the two however its lines end; looking for both from every line's
// start would be quadratic in a chunk that holds only one of them.
type lines struct {
	chunk   []byte
	pos     int // start of the next line
	lf, cr  int // next LF and CR at or after pos; len(chunk) when there is none
	afterCR bool
}

// feed starts on the next chunk. The one before must be used up.
func (l *lines) feed(chunk []byte) {
	l.chunk, l.pos, l.lf, l.cr = chunk, 0, -1, -1
	if l.afterCR && len(chunk) > 0 {
		l.afterCR = false
		if chunk[0] == '\n' {
			l.pos = 1
		}
	}
}

// next returns the next line without its end. When ended is false it is the rest of the
// chunk, possibly empty, and the line goes on in the next chunk.
func (l *lines) next() (line []byte, ended bool) {
	if l.lf < l.pos {
		l.lf = l.find('\n')
	}
	if l.cr < l.pos {
		l.cr = l.find('\r')
	}
	start, end := l.pos, min(l.lf, l.cr)
	if end == len(l.chunk) {
		l.pos = end
		return l.chunk[start:], false
	}
	l.pos = end + 1
	if end == l.cr {
		if l.pos == len(l.chunk) {
			l.afterCR = true
		} else if l.chunk[l.pos] == '\n' {
			l.pos++
		}
	}
	return l.chunk[start:end], true
}

func (l *lines) find(c byte) int {
	if i := bytes.IndexByte(l.chunk[l.pos:], c); i >= 0 {
		return l.pos + i
	}
	return len(l.chunk)
}
