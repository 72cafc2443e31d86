package dialect

import "weir/internal/jsonlex"

// maxCheckDepth bounds how deep objects and arrays of an engine's event may
// nest. It is the one thing by which CheckJSON is stricter than RFC 8259 as
// encoding/json reads it, which allows any depth.
const maxCheckDepth = 512

// Notes are what CheckJSON saw of a value that decides whether an event of a stream
// of choices must be decoded. They may be set too often, and never too seldom.
type Notes struct {
	// Telling is set if some member is named finish_reason, error or usage and is not
	// null, or is named "object" with a value that begins like "error". It is also
	// set if a name has an escape, because the name might be any of these.
	Telling bool
	// Broken is set if there is a line end between two tokens. In a stream this ends
	// the line, and with it the JSON.
	Broken bool
	// Objects counts the objects in an array in the outermost object, which is where
	// choices are. Indexes counts their members named index.
	Objects, Indexes int
	// Index is the value of the last such member, -1 if it is not a plain number of
	// at most six digits.
	Index int
}

// CheckJSON checks the JSON value at b[at:], which may follow white space. It returns
// the position of its end and what it saw. If there is no valid value, ok is false
// and end is near the error. Bytes after the value are not read.
//
// A value is valid by RFC 8259 and nested at most maxCheckDepth deep. As with
// encoding/json.Valid, strings may hold bytes that are not UTF-8 and halves of
// surrogate pairs: weir relays them, and their reader judges them. Names may occur
// twice.
//
// CheckJSON runs over every event of every relayed stream. It reads the bytes in one
// pass, eight at a time inside strings, and allocates nothing. Decoders that return
// tokens take several times as long.
func CheckJSON(b []byte, at int) (end int, n Notes, ok bool) {
	var (
		arrays [maxCheckDepth / 64]uint64 // bit d-1: what is open at depth d is an array
		depth  int
		i      = at
		start  int
		how    jsonlex.Spelling
		member []byte // name of the member under way
	)
value:
	if i = SkipBlank(b, i, &n); i == len(b) {
		return i, n, false
	}
	switch c := b[i]; {
	case c == '"':
		if i, _, ok = jsonlex.String(b, i+1); !ok {
			return i, n, false
		}
		goto after
	case c == '{':
		if depth == maxCheckDepth {
			return i, n, false
		}
		arrays[depth>>6] &^= 1 << (depth & 63)
		depth++
		if depth == 3 {
			n.Objects++
		}
		if i = SkipBlank(b, i+1, &n); i < len(b) && b[i] == '}' {
			goto closed
		}
		goto name
	case c == '[':
		if depth == maxCheckDepth {
			return i, n, false
		}
		arrays[depth>>6] |= 1 << (depth & 63)
		depth++
		if i = SkipBlank(b, i+1, &n); i < len(b) && b[i] == ']' {
			goto closed
		}
		goto value
	default:
		if i, ok = skipScalar(b, i); !ok {
			return i, n, false
		}
		goto after
	}
name:
	if i == len(b) || b[i] != '"' {
		return i, n, false
	}
	start = i + 1
	if i, how, ok = jsonlex.String(b, start); !ok {
		return i, n, false
	}
	if how != 0 {
		n.Telling = true
	}
	member = b[start : i-1]
	if i < len(b) && b[i] == ':' {
		i++
	} else if i = SkipBlank(b, i, &n); i < len(b) && b[i] == ':' {
		i++
	} else {
		return i, n, false
	}
	switch len(member) {
	case len("index"), len("object"), len("finish_reason"):
		i = SkipBlank(b, i, &n)
		n.member(member, b[i:], depth)
	}
	goto value
closed:
	i++
	depth--
after:
	if depth == 0 {
		return i, n, true
	}
	if i < len(b) && b[i] <= ' ' {
		i = SkipBlank(b, i, &n)
	}
	if i == len(b) {
		return i, n, false
	}
	array := arrays[(depth-1)>>6]>>((depth-1)&63)&1 != 0
	switch c := b[i]; {
	case c == ',' && array:
		i++
		goto value
	case c == ',':
		i = SkipBlank(b, i+1, &n)
		goto name
	case c == ']' && array, c == '}' && !array:
		goto closed
	}
	return i, n, false
}

// member takes note of a member of an object; value begins with its value.
func (n *Notes) member(name, value []byte, depth int) {
	isNull := len(value) > 0 && value[0] == 'n'
	switch string(name) {
	case "index":
		if depth == 3 {
			n.Indexes++
			n.Index = smallNumber(value)
		}
	case "error", "usage", "finish_reason":
		if !isNull {
			n.Telling = true
		}
	case "object":
		if len(value) > 1 && value[0] == '"' && (value[1] == 'e' || value[1] == '\\') {
			n.Telling = true
		}
	}
}

// smallNumber reads a number of up to six digits and nothing else, or gives -1.
func smallNumber(b []byte) int {
	v := 0
	for i, c := range b {
		if d := c - '0'; d <= 9 && i < 6 {
			v = v*10 + int(d)
			continue
		}
		if i == 0 || c != ',' && c != '}' && c != ' ' {
			return -1
		}
		return v
	}
	return -1
}

// SkipBlank returns the position of the next byte that is not white space.
func SkipBlank(b []byte, i int, n *Notes) int {
	for ; i < len(b) && b[i] <= ' '; i++ {
		switch b[i] {
		case ' ', '\t':
		case '\n', '\r':
			n.Broken = true
		default:
			return i
		}
	}
	return i
}

// skipScalar returns the place after the literal or the number at b[i].
func skipScalar(b []byte, i int) (int, bool) {
	rest := b[i:]
	switch rest[0] {
	case 'n', 't':
		if len(rest) >= 4 && (string(rest[:4]) == "null" || string(rest[:4]) == "true") {
			return i + 4, true
		}
		return i, false
	case 'f':
		if len(rest) >= 5 && string(rest[:5]) == "false" {
			return i + 5, true
		}
		return i, false
	}
	n := jsonlex.Number(rest)
	return i + n, n > 0
}

// CountValues returns how many values a well-formed JSON text holds, nested ones
// included. The result may be a little too large. It bounds the memory of the decoded
// text.
func CountValues(b []byte) int {
	n := 1
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			end, _, ok := jsonlex.String(b, i+1)
			if !ok {
				return n
			}
			i = end - 1
		case ',', '[', '{':
			n++
		}
	}
	return n
}
