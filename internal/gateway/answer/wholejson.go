package answer

// wholeJSON detects whether the bytes that pass are one whole JSON object or array. It
// does not validate JSON. It is for an answer that ends with its connection, to find
// out whether the engine had sent all of it. A truncated object or array never counts
// as whole, wherever it is cut.
type wholeJSON struct {
	depth   int  // objects and arrays that are open
	inside  bool // a string
	escaped bool // the string's next byte is
	ended   bool // the value has had its last byte
	wrong   bool // what came is no object or array alone
}

// feed takes in the next bytes.
func (j *wholeJSON) feed(b []byte) {
	for _, c := range b {
		switch {
		case j.escaped:
			j.escaped = false
		case j.inside:
			j.escaped, j.inside = c == '\\', c != '"'
		case c == ' ', c == '\t', c == '\r', c == '\n':
		case c == '{', c == '[':
			j.wrong = j.wrong || j.ended
			j.depth++
		case c == '}', c == ']':
			if j.depth--; j.depth < 0 {
				j.depth, j.wrong = 0, true
			}
			j.ended = j.depth == 0
		default:
			j.wrong = j.wrong || j.depth == 0
			j.inside = c == '"'
		}
	}
}

// whole reports whether the value is there, and nothing else.
func (j *wholeJSON) whole() bool { return j.ended && !j.wrong }
