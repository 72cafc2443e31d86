package sse

import (
	"bytes"
	"fmt"
	"sync"
)

// DefaultMaxEvent bounds what a Parser keeps of one event, in bytes.
const DefaultMaxEvent = 16 << 20

// Event is one event or one comment.
type Event struct {
	// Comment is set if Data is the text of a comment line and not an event. Comments
	// come when their line ends, also those inside an event, which comes after them.
	Comment bool
	// Name is the event's "event" field, empty when it has none.
	Name []byte
	// Data holds the values of the event's data lines, joined by LF.
	Data []byte
}

// Parser takes a stream of events apart.
//
//	p.Feed(chunk)
//	for ev, ok := p.Next(); ok; ev, ok = p.Next() {
//		...
//	}
//	err := p.Err()
//
// The fields id and retry, and unknown ones, are read over; a block without
// data is no event. The zero value is ready to use.
//
// An event that comes in one chunk is given as it lies there. A Parser has memory of its own
// only while an event is under way, because thousands of streams wait for their next event.
type Parser struct {
	// Max bounds one line, and one event's data, in bytes; 0 means
	// DefaultMaxEvent.
	Max int

	lines    lines
	started  bool
	given    bool    // the event under way has been given to the caller
	line     *[]byte // of spare, with what an earlier chunk had of the line; nil: it had nothing
	partial  bool    // the stream stands inside a line or a block
	borrowed bool    // name or data are part of the chunk
	name     []byte
	data     []byte
	count    int // data lines of the event under way
	err      error
}

// Feed hands over the next chunk of the stream. It must stay unchanged until
// Next has returned false, and Next must have done so for the chunk before.
func (p *Parser) Feed(chunk []byte) { p.lines.feed(chunk) }

// Next returns the next event or comment of the chunk; ok is false when the chunk is
// used up or the stream is broken (see Err). The event's slices are valid until the
// next call.
func (p *Parser) Next() (ev Event, ok bool) {
	if p.given {
		p.given, p.borrowed, p.name, p.data, p.count = false, false, nil, nil, 0
	}
	for p.err == nil && p.lines.pos < len(p.lines.chunk) {
		line, ended := p.lines.next()
		if p.tooLarge(p.begun() + len(line)) {
			break
		}
		p.partial = true
		if !ended {
			p.own() // part of the memory that is used again
			if p.line == nil {
				p.line = spare.Get().(*[]byte)
			}
			*p.line = append(*p.line, line...)
			break
		}
		if p.begun() > 0 {
			line = append(*p.line, line...)
			*p.line = line[:0]
		}
		if ev, ok := p.take(line); ok {
			return ev, true
		}
	}
	p.own() // the chunk is the caller's again
	p.lines.chunk, p.lines.pos = nil, 0
	if p.line != nil && len(*p.line) == 0 {
		if cap(*p.line) <= maxSpare {
			spare.Put(p.line)
		}
		p.line = nil
	}
	return Event{}, false
}

// spare is memory for lines that come in several chunks, up to maxSpare bytes each.
var spare = sync.Pool{New: func() any { return new([]byte) }}

const maxSpare = 64 << 10

// Held returns the size of the parser's own memory for the event under way, in bytes.
func (p *Parser) Held() int { return p.begun() + len(p.name) + len(p.data) }

// begun is how much an earlier chunk had of the line.
func (p *Parser) begun() int {
	if p.line == nil {
		return 0
	}
	return len(*p.line)
}

// own copies what is part of the chunk, or of a line's memory.
func (p *Parser) own() {
	if p.borrowed {
		p.borrowed, p.name, p.data = false, bytes.Clone(p.name), bytes.Clone(p.data)
	}
}

// take adds a whole line to the event under way and gives what it completes.
func (p *Parser) take(line []byte) (Event, bool) {
	if !p.started {
		p.started = true
		line = bytes.TrimPrefix(line, []byte(bom))
	}
	if len(line) == 0 {
		p.partial = false
		if p.count == 0 {
			p.name = nil
			return Event{}, false
		}
		p.given = true
		return Event{Name: p.name, Data: p.data}, true
	}
	field, value, _ := bytes.Cut(line, []byte{':'})
	if len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	switch string(field) {
	case "":
		return Event{Comment: true, Data: value}, true
	case "event":
		p.name, p.borrowed = value, true
	case "data":
		if p.tooLarge(len(p.data) + 1 + len(value)) {
			break
		}
		if p.count == 0 {
			p.data, p.borrowed = value[:len(value):len(value)], true
		} else {
			p.data = append(append(p.data, '\n'), value...)
		}
		p.count++
	}
	return Event{}, false
}

func (p *Parser) tooLarge(n int) bool {
	limit := p.Max
	if limit <= 0 {
		limit = DefaultMaxEvent
	}
	if n > limit {
		p.err = fmt.Errorf("parse event: larger than %d bytes", limit)
	}
	return p.err != nil
}

// Err returns why the stream cannot be parsed further.
func (p *Parser) Err() error { return p.err }

// Last reports whether nothing of the chunk follows what Next gave last.
func (p *Parser) Last() bool { return p.lines.pos == len(p.lines.chunk) }

// Partial reports whether the stream stands inside a line or a block: if it ends here,
// it was cut.
func (p *Parser) Partial() bool { return p.partial }
