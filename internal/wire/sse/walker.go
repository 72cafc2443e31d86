package sse

import "bytes"

// Walker finds the events in a stream that passes in the regions of a Splitter. A
// region consists of whole events, or is a part of an event that is too large to be
// held. The Walker keeps no bytes.
//
//	at := w.Begin(region)
//	for at < len(region) {
//		b, next := w.Block(region, at)
//		judge(b)
//		at = next
//	}
//
// The zero value is ready to use.
type Walker struct {
	started bool // a byte order mark is no longer expected
	// The stream stands inside an event too large to hold; of its line under
	// way there were bytes already; the last byte was a CR.
	inside, midline, afterCR bool
}

// Block is one event of a region, or what is none.
type Block struct {
	// Name is the value of its event field, nil without one.
	Name []byte
	// Data is its data, the lines joined by LF. It refers to the region where
	// there is one line.
	Data []byte
	own  bool // Data refers to no region
	// Lines counts the lines of data. Without any there is no event: the block was
	// of comments, or of other fields.
	Lines int
	// Cut is set if the event continues after the region; Data is then its beginning.
	Cut bool
}

// Begin returns the place in the next region from which on events are to be read: after
// a byte order mark, and after the rest of an event too large to hold.
func (w *Walker) Begin(region []byte) (at int) {
	if !w.started && len(region) > 0 {
		w.started = true
		if bytes.HasPrefix(region, []byte(bom)) {
			at = len(bom)
		}
	}
	if !w.inside || len(region) == 0 {
		return at
	}
	return w.skip(region)
}

// Inside reports whether the latest region ended inside an event too large to hold.
func (w *Walker) Inside() bool { return w.inside }

// skip passes over the rest of an event too large to hold, and gives the place
// after it, or the region's end when it goes on.
func (w *Walker) skip(region []byte) int {
	i := 0
	if w.afterCR && region[0] == '\n' {
		i = 1
	}
	w.afterCR = false
	for i < len(region) {
		end := bytes.IndexAny(region[i:], "\r\n")
		if end < 0 {
			w.midline = true
			return len(region)
		}
		blank := end == 0 && !w.midline
		w.midline = false
		i += end + 1
		if region[i-1] == '\r' && i < len(region) && region[i] == '\n' {
			i++
		}
		if blank {
			w.inside = false
			return i
		}
	}
	w.afterCR = region[len(region)-1] == '\r'
	return len(region)
}

// Block reads the block of lines at region[at:], an event or not, and returns the
// position after it.
func (w *Walker) Block(region []byte, at int) (b Block, next int) {
	for start := at; start < len(region); {
		end := bytes.IndexAny(region[start:], "\r\n")
		if end < 0 {
			b.add(region[start:])
			break
		}
		line := region[start : start+end]
		start += end + 1
		if region[start-1] == '\r' && start < len(region) && region[start] == '\n' {
			start++
		}
		if len(line) == 0 {
			return b, start
		}
		b.add(line)
	}
	b.Cut, w.inside = true, true
	last := region[len(region)-1]
	w.afterCR = last == '\r'
	w.midline = last != '\r' && last != '\n'
	return b, len(region)
}

func (b *Block) add(line []byte) {
	field, value, _ := bytes.Cut(line, []byte{':'})
	if len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	switch string(field) {
	case "event":
		b.Name = value
	case "data":
		if b.Lines++; b.Lines == 1 {
			b.Data = value
			return
		}
		if !b.own {
			b.Data, b.own = append(make([]byte, 0, 2*(len(b.Data)+1+len(value))), b.Data...), true
		}
		b.Data = append(append(b.Data, '\n'), value...)
	}
}
