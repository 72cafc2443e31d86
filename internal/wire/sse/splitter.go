package sse

// DefaultMax is the tail a Splitter holds back at most, in bytes.
const DefaultMax = 64 << 10

// Splitter finds the ends of whole events in a stream that is passed on
// untouched. It keeps no bytes: the caller holds what is not whole yet at the
// front of its own buffer and hands over each new chunk once.
//
//	n, err := body.Read(buf[held:])
//	r := s.Feed(buf[held : held+n])
//	write(buf[:r.Len])
//	held = copy(buf, buf[r.Len:held+n])
//
// Invariants: the forwarded regions concatenate to the stream; counts do not depend on where chunks
// were cut; held is never above Max after Feed, so a buffer of Max plus the size of a read is
// enough; each byte is looked at once, however small the chunks are.
//
// The zero value is ready to use.
type Splitter struct {
	// Max bounds the held tail in bytes; 0 means DefaultMax. Larger events
	// still pass: see Region.Open.
	Max int

	lines   lines
	held    int
	open    bool
	started bool // the first line is over, a BOM is no longer expected
	// The line under way, when it began in an earlier chunk: its length and
	// its first bytes, enough to recognise a field and the end marker.
	size int
	head [16]byte
	// The block under way.
	data int  // data lines
	mark bool // its data is the end marker
	done bool // the last data event of the stream was the end marker
}

// Region is what may be forwarded after a chunk was fed.
type Region struct {
	// Len counts bytes from the front of what the caller holds, the chunk just
	// fed included.
	Len int
	// Events counts the data events that end in the region. Comments and
	// blocks without data are none.
	Events int
	// Done is set if the last data event of the stream, up to the end of the region,
	// was the [DONE] marker.
	Done bool
	// DoneAt is the offset in the region of the block that holds the marker,
	// and -1 when the marker is not in this region or not from its start.
	DoneAt int
	// Open is set if the region ends inside an event, because the event is larger than
	// Max. Nothing may be put after it but the rest of the event.
	Open bool
}

// Feed looks at the next chunk of the stream.
func (s *Splitter) Feed(chunk []byte) Region {
	r := Region{DoneAt: -1}
	start, cut := 0, 0 // block's start in what is held; whole part of chunk
	if s.open {
		start = -1
	}
	s.lines.feed(chunk)
	if s.lines.pos > 0 && s.held == 0 && !s.open {
		// The LF of a blank line whose CR has been forwarded.
		start, cut = 1, 1
	}
	for s.lines.pos < len(chunk) {
		line, ended := s.lines.next()
		size := len(line)
		if s.size > 0 || !ended {
			line, size = s.carry(line)
			if !ended {
				break
			}
			s.size = 0
		}
		if !s.endLine(line, size) {
			continue
		}
		cut = s.lines.pos
		if s.data > 0 {
			r.Events++
			s.done = s.mark
			r.DoneAt = -1
			if s.done {
				r.DoneAt = start
			}
		}
		s.data, s.mark = 0, false
		start = s.held + cut
	}
	r.Done = s.done
	if cut > 0 {
		r.Len = s.held + cut
		s.held, s.open = len(chunk)-cut, false
	} else {
		s.held += len(chunk)
	}
	limit := s.Max
	if limit <= 0 {
		limit = DefaultMax
	}
	if s.open || s.held > limit {
		r.Len += s.held
		s.held, s.open = 0, true
	}
	r.Open = s.open
	return r
}

// carry adds to the line that began in an earlier chunk, or begins one, and
// gives its first bytes and its size so far.
func (s *Splitter) carry(part []byte) ([]byte, int) {
	if s.size < len(s.head) {
		copy(s.head[s.size:], part)
	}
	s.size += len(part)
	return s.head[:min(s.size, len(s.head))], s.size
}

// endLine takes note of a line and says whether it is blank. line may be only
// the first bytes of a line of size bytes.
func (s *Splitter) endLine(line []byte, size int) (blank bool) {
	if !s.started {
		s.started = true
		if len(line) >= len(bom) && string(line[:len(bom)]) == bom {
			line, size = line[len(bom):], size-len(bom)
		}
	}
	if size == 0 {
		return true
	}
	if value, ok := dataValue(line); ok {
		s.data++
		s.mark = s.data == 1 && len(line) == size && string(value) == DoneMarker
	}
	return false
}

// dataValue returns the value of a data line.
func dataValue(line []byte) (value []byte, ok bool) {
	const name = "data"
	if len(line) < len(name) || string(line[:len(name)]) != name {
		return nil, false
	}
	rest := line[len(name):]
	switch {
	case len(rest) == 0:
		return rest, true
	case rest[0] != ':':
		return nil, false
	case len(rest) > 1 && rest[1] == ' ':
		return rest[2:], true
	}
	return rest[1:], true
}

// Held returns the bytes of the stream that have not been released: the part of an
// event that the end of the stream, if it comes now, has cut.
func (s *Splitter) Held() int { return s.held }

// Open reports whether what was released ends inside an event.
func (s *Splitter) Open() bool { return s.open }

// Done reports whether the last data event so far was the [DONE] marker.
func (s *Splitter) Done() bool { return s.done }
