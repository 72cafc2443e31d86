package answer

// wholeJSON finds out whether bytes that pass are one JSON object or array, to its
// end. It does not judge them as JSON: it is for an answer whose end is that of its
// connection, where what matters is whether the engine had said all. A part of a
// valid object or array never looks whole to it, wherever it is cut.
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

// whole says that the value is there, and nothing else.
func (j *wholeJSON) whole() bool { return j.ended && !j.wrong }
