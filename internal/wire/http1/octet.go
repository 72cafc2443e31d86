package http1

// The classes of octets in RFC 9110, section 5.6.2 and 5.5.
const (
	tokenOctet = 1 << iota // in a method or a field's name
	valueOctet             // in a field's value or a reason phrase
	hexOctet
	printableOctet // in a field's value, and ASCII
	hostOctet      // in a host with its port, without escapes
	pathOctet      // in a path that is the same escaped and not
)

var octets = func() (t [256]uint8) {
	for c := range t {
		if c == '\t' || c >= ' ' && c != 0x7f {
			t[c] |= valueOctet
		}
		if c == '\t' || c >= ' ' && c < 0x7f {
			t[c] |= printableOctet
		}
		switch {
		case '0' <= c && c <= '9':
			t[c] |= tokenOctet | hexOctet
		case 'a' <= c && c <= 'f', 'A' <= c && c <= 'F':
			t[c] |= tokenOctet | hexOctet
		case 'g' <= c && c <= 'z', 'G' <= c && c <= 'Z':
			t[c] |= tokenOctet
		}
	}
	for _, c := range []byte("!#$%&'*+-.^_`|~") {
		t[c] |= tokenOctet
	}
	for c := range t {
		if '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '-' || c == '.' || c == '_' {
			t[c] |= hostOctet | pathOctet
		}
	}
	for _, c := range []byte("[]:") {
		t[c] |= hostOctet
	}
	t['/'] |= pathOctet
	return t
}()

// all reports whether s consists of octets of a class.
func all(s string, class uint8) bool {
	for i := range len(s) {
		if octets[s[i]]&class == 0 {
			return false
		}
	}
	return true
}

func isToken(s string) bool { return s != "" && all(s, tokenOctet) }

// trim takes optional whitespace off both ends.
func trim(s string) string {
	for s != "" && (s[0] == ' ' || s[0] == '\t') {
		s = s[1:]
	}
	for s != "" && (s[len(s)-1] == ' ' || s[len(s)-1] == '\t') {
		s = s[:len(s)-1]
	}
	return s
}

// digit returns the value of a hexadecimal digit.
func digit(c byte) int64 {
	switch {
	case c <= '9':
		return int64(c - '0')
	case c <= 'F':
		return int64(c-'A') + 10
	default:
		return int64(c-'a') + 10
	}
}
