package outputparse

// maxDepth bounds the nesting of arguments.
const maxDepth = 512

// jsonScan follows one JSON value (RFC 8259) through its text, cut anywhere.
type jsonScan struct {
	state jsonState
	key   bool   // the string at hand is a member's name
	want  string // rest of a literal
	hex   int    // digits left of \u
	stack []byte // '{' and '[' that are open
}

type jsonState uint8

const (
	jsonValue jsonState = iota // a value must begin
	jsonFirst                  // a value or the array's end
	jsonName                   // a member's name
	jsonFirstName
	jsonColon
	jsonNext // a comma or the end of what is open
	jsonString
	jsonEscape
	jsonHex
	jsonLiteral
	jsonMinus // of a number, in the order of its parts
	jsonZero
	jsonInt
	jsonPoint
	jsonFraction
	jsonE
	jsonSign
	jsonExponent
	jsonDone
)

type jsonStatus uint8

const (
	jsonMore    jsonStatus = iota // all was taken and the value goes on
	jsonEnded                     // the value ended before the rest
	jsonBad                       // the next byte cannot be
	jsonControl                   // the next byte is a control character in a string
)

func (s *jsonScan) reset() { *s = jsonScan{stack: s.stack[:0]} }

// begun reports whether anything but white space was taken.
func (s *jsonScan) begun() bool { return s.state != jsonValue || len(s.stack) > 0 }

// scan takes what it can of d and says how much and why no more. After
// jsonControl the caller may pass over that byte.
func (s *jsonScan) scan(d []byte) (n int, status jsonStatus) {
	for n < len(d) {
		b := d[n]
		switch s.state {
		case jsonDone:
			return n, jsonEnded
		case jsonString:
			for n < len(d) && d[n] >= ' ' && d[n] != '"' && d[n] != '\\' {
				n++
			}
			if n == len(d) {
				return n, jsonMore
			}
			switch d[n] {
			case '"':
				s.endString()
			case '\\':
				s.state = jsonEscape
			default:
				return n, jsonControl
			}
		default:
			again, ok := s.step(b)
			if !ok {
				return n, jsonBad
			}
			if again {
				continue
			}
		}
		n++
	}
	if s.state == jsonDone {
		return n, jsonEnded
	}
	return n, jsonMore
}

// end reports whether the value is whole if the text ends here. For a number only the
// end of the text shows that.
func (s *jsonScan) end() bool {
	if s.numberMayEnd() {
		s.endValue()
	}
	return s.state == jsonDone
}

// step takes one byte outside of a string. again: the byte ended a number and
// is still to be taken.
func (s *jsonScan) step(b byte) (again, ok bool) {
	switch s.state {
	case jsonEscape:
		switch b {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			s.state = jsonString
		case 'u':
			s.state, s.hex = jsonHex, 4
		default:
			return false, false
		}
		return false, true
	case jsonHex:
		if !isHex(b) {
			return false, false
		}
		if s.hex--; s.hex == 0 {
			s.state = jsonString
		}
		return false, true
	case jsonLiteral:
		if b != s.want[0] {
			return false, false
		}
		if s.want = s.want[1:]; s.want == "" {
			s.endValue()
		}
		return false, true
	}
	if s.state >= jsonMinus {
		return s.number(b)
	}
	if isSpace(b) {
		return false, true
	}
	return false, s.structure(b)
}

// structure takes a byte between values, names and strings.
func (s *jsonScan) structure(b byte) bool {
	switch s.state {
	case jsonFirst:
		if b == ']' {
			return s.close('[')
		}
		return s.value(b)
	case jsonValue:
		return s.value(b)
	case jsonFirstName, jsonName:
		if b == '}' && s.state == jsonFirstName {
			return s.close('{')
		}
		s.state, s.key = jsonString, true
		return b == '"'
	case jsonColon:
		s.state = jsonValue
		return b == ':'
	}
	// jsonNext: something is open.
	switch open := s.stack[len(s.stack)-1]; {
	case b == ',' && open == '{':
		s.state = jsonName
	case b == ',':
		s.state = jsonValue
	case b == '}':
		return s.close('{')
	case b == ']':
		return s.close('[')
	default:
		return false
	}
	return true
}

func (s *jsonScan) value(b byte) bool {
	switch b {
	case '{', '[':
		if len(s.stack) == maxDepth {
			return false
		}
		s.stack = append(s.stack, b)
		if s.state = jsonFirst; b == '{' {
			s.state = jsonFirstName
		}
	case '"':
		s.state, s.key = jsonString, false
	case '-':
		s.state = jsonMinus
	case '0':
		s.state = jsonZero
	case 't':
		s.state, s.want = jsonLiteral, "rue"
	case 'f':
		s.state, s.want = jsonLiteral, "alse"
	case 'n':
		s.state, s.want = jsonLiteral, "ull"
	default:
		if b < '1' || b > '9' {
			return false
		}
		s.state = jsonInt
	}
	return true
}

func (s *jsonScan) number(b byte) (again, ok bool) {
	digit := '0' <= b && b <= '9'
	switch s.state {
	case jsonMinus:
		if s.state = jsonInt; b == '0' {
			s.state = jsonZero
		}
		return false, digit
	case jsonZero, jsonInt:
		switch {
		case digit && s.state == jsonInt:
			return false, true
		case b == '.':
			s.state = jsonPoint
			return false, true
		case b == 'e' || b == 'E':
			s.state = jsonE
			return false, true
		}
	case jsonPoint:
		s.state = jsonFraction
		return false, digit
	case jsonFraction:
		switch {
		case digit:
			return false, true
		case b == 'e' || b == 'E':
			s.state = jsonE
			return false, true
		}
	case jsonE:
		if b == '+' || b == '-' {
			s.state = jsonSign
			return false, true
		}
		s.state = jsonExponent
		return false, digit
	case jsonSign:
		s.state = jsonExponent
		return false, digit
	case jsonExponent:
		if digit {
			return false, true
		}
	}
	s.endValue()
	return true, true
}

func (s *jsonScan) numberMayEnd() bool {
	switch s.state {
	case jsonZero, jsonInt, jsonFraction, jsonExponent:
		return true
	}
	return false
}

func (s *jsonScan) close(open byte) bool {
	if s.stack[len(s.stack)-1] != open {
		return false
	}
	s.stack = s.stack[:len(s.stack)-1]
	s.endValue()
	return true
}

func (s *jsonScan) endString() {
	if s.key {
		s.state = jsonColon
		return
	}
	s.endValue()
}

func (s *jsonScan) endValue() {
	if s.state = jsonNext; len(s.stack) == 0 {
		s.state = jsonDone
	}
}

func isSpace(b byte) bool { return b == ' ' || b == '\n' || b == '\t' || b == '\r' }

func isHex(b byte) bool {
	return '0' <= b && b <= '9' || 'a' <= b && b <= 'f' || 'A' <= b && b <= 'F'
}

// appendEscaped appends text as the inside of a JSON string. A rune may be cut
// at its ends: what is not ASCII passes as it is.
func appendEscaped(dst, text []byte) []byte {
	start := 0
	for i, b := range text {
		if b >= ' ' && b != '"' && b != '\\' {
			continue
		}
		dst = append(dst, text[start:i]...)
		dst = appendEscape(dst, b)
		start = i + 1
	}
	return append(dst, text[start:]...)
}

func appendEscape(dst []byte, b byte) []byte {
	const hex = "0123456789abcdef"
	switch b {
	case '"', '\\':
		return append(dst, '\\', b)
	case '\n':
		return append(dst, `\n`...)
	case '\r':
		return append(dst, `\r`...)
	case '\t':
		return append(dst, `\t`...)
	}
	return append(dst, '\\', 'u', '0', '0', hex[b>>4], hex[b&15])
}

// appendJSON appends the JSON value that text is, control characters in its
// strings escaped; ok is false if it is none.
func appendJSON(dst, text []byte, s *jsonScan) (out []byte, ok bool) {
	out = dst
	s.reset()
	for {
		n, status := s.scan(text)
		out = append(out, text[:n]...)
		text = text[n:]
		switch status {
		case jsonControl:
			out, text = appendEscape(out, text[0]), text[1:]
		case jsonMore:
			return out, s.end()
		default:
			return out, status == jsonEnded && spaces(text) == len(text)
		}
	}
}
