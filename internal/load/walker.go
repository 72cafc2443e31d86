package load

import "bytes"

// maxDepth bounds the nesting of JSON that a server may send.
const maxDepth = 1000

// walker reads JSON in place, without allocating, because it parses hundreds of thousands
// of events a second. Every method leaves the position after what it read, and reports
// whether that was valid.
type walker struct {
	data []byte
	at   int
}

// space skips insignificant whitespace.
func (w *walker) space() {
	for w.at < len(w.data) {
		switch w.data[w.at] {
		case ' ', '\t', '\n', '\r':
			w.at++
		default:
			return
		}
	}
}

// peek returns the next byte, 0 at the end.
func (w *walker) peek() byte {
	if w.at < len(w.data) {
		return w.data[w.at]
	}
	return 0
}

// object reads an object at the given depth; field reads the value of each
// key. Keys with escapes are passed as they are written.
func (w *walker) object(depth int, field func(key []byte) bool) bool {
	if w.peek() != '{' || depth > maxDepth {
		return false
	}
	w.at++
	w.space()
	if w.peek() == '}' {
		w.at++
		return true
	}
	for {
		key, _, ok := w.str()
		if !ok {
			return false
		}
		w.space()
		if w.peek() != ':' {
			return false
		}
		w.at++
		w.space()
		if !field(key) {
			return false
		}
		if more, ok := w.next('}'); !more {
			return ok
		}
	}
}

// array reads an array; element reads each value.
func (w *walker) array(depth int, element func() bool) bool {
	if w.peek() != '[' || depth > maxDepth {
		return false
	}
	w.at++
	w.space()
	if w.peek() == ']' {
		w.at++
		return true
	}
	for {
		if !element() {
			return false
		}
		if more, ok := w.next(']'); !more {
			return ok
		}
	}
}

// next reads what follows an element: a comma, or the closing byte.
func (w *walker) next(closing byte) (more, ok bool) {
	w.space()
	switch w.peek() {
	case ',':
		w.at++
		w.space()
		return true, true
	case closing:
		w.at++
		return false, true
	}
	return false, false
}

// skip reads any value.
func (w *walker) skip(depth int) bool {
	switch w.peek() {
	case '{':
		return w.object(depth, func([]byte) bool { return w.skip(depth + 1) })
	case '[':
		return w.array(depth, func() bool { return w.skip(depth + 1) })
	case '"':
		_, _, ok := w.str()
		return ok
	case 't':
		return w.literal("true")
	case 'f':
		return w.literal("false")
	case 'n':
		return w.literal("null")
	}
	return w.number()
}

func (w *walker) literal(s string) bool {
	if !bytes.HasPrefix(w.data[w.at:], []byte(s)) {
		return false
	}
	w.at += len(s)
	return true
}

// str reads a string and returns the bytes between its quotes.
func (w *walker) str() (raw []byte, escaped, ok bool) {
	if w.peek() != '"' {
		return nil, false, false
	}
	w.at++
	start := w.at
	for w.at < len(w.data) {
		switch b := w.data[w.at]; {
		case b == '"':
			raw = w.data[start:w.at]
			w.at++
			return raw, escaped, true
		case b < ' ':
			return nil, false, false
		case b == '\\':
			escaped = true
			if !w.escape() {
				return nil, false, false
			}
		default:
			w.at++
		}
	}
	return nil, false, false
}

// escape reads one escape sequence.
func (w *walker) escape() bool {
	w.at++
	switch w.peek() {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		w.at++
		return true
	case 'u':
		if len(w.data)-w.at < 5 {
			return false
		}
		for _, d := range w.data[w.at+1 : w.at+5] {
			if !('0' <= d && d <= '9' || 'a' <= d && d <= 'f' || 'A' <= d && d <= 'F') {
				return false
			}
		}
		w.at += 5
		return true
	}
	return false
}

// digits reads at least one digit.
func (w *walker) digits() bool {
	start := w.at
	for d := w.peek(); '0' <= d && d <= '9'; d = w.peek() {
		w.at++
	}
	return w.at > start
}

// number reads a number.
func (w *walker) number() bool {
	if w.peek() == '-' {
		w.at++
	}
	if w.peek() == '0' {
		w.at++
	} else if !w.digits() {
		return false
	}
	if w.peek() == '.' {
		w.at++
		if !w.digits() {
			return false
		}
	}
	if b := w.peek(); b == 'e' || b == 'E' {
		w.at++
		if b := w.peek(); b == '+' || b == '-' {
			w.at++
		}
		return w.digits()
	}
	return true
}

// integer reads a value; *dst is set when it is a non-negative integer.
func (w *walker) integer(depth int, dst *int) bool {
	start := w.at
	if !w.skip(depth) {
		return false
	}
	n := 0
	for _, d := range w.data[start:w.at] {
		if d < '0' || d > '9' || n > 1<<40 {
			return true
		}
		n = n*10 + int(d-'0')
	}
	*dst = n
	return true
}
