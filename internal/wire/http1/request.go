package http1

import (
	"net/http"
	"strconv"
)

// Request is the head of a request. Its body has a known length.
type Request struct {
	Method string
	Target string // origin form: path and query, escaped
	Host   string
	// Header holds the fields to send. Those that frame the message or belong
	// to one connection are not taken from it.
	Header http.Header
	// Omit reports which of them are not sent all the same, by their canonical names; nil: none.
	Omit func(name string) bool
	// Fields are sent as they stand: whole lines, which the program itself has written.
	Fields string
	// Own are sent in place of the Header's that have their names, which are canonical. One without
	// a name is none.
	Own [4]Field
	// Length of the body in bytes.
	Length int64
}

// Field is a field of a head.
type Field struct{ Name, Value string }

// owned names the fields that are not the caller's to set: Append writes them
// itself, or they would promise a behaviour that it does not have.
func owned(name string) bool {
	switch name {
	case "Host", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive",
		"Proxy-Connection", "Trailer", "Te", "Upgrade", "Expect":
		return true
	}
	return false
}

// Append appends the head of r, blank line included. A value that could break
// out of its place in the head is an error, and then dst is as it was.
func (r *Request) Append(dst []byte) ([]byte, error) {
	b := dst
	if !isToken(r.Method) {
		return dst, malformed("the method is not a token")
	}
	if !validTarget(r.Target) {
		return dst, malformed("the request target holds a space or a control character, or does not begin with a slash")
	}
	if !validHost(r.Host) {
		return dst, malformed("the host is empty or holds a character that a host cannot have")
	}
	b = append(b, r.Method...)
	b = append(b, ' ')
	b = append(b, r.Target...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, r.Host...)
	b = append(b, "\r\n"...)
	var err error
	for i := range r.Own {
		if f := &r.Own[i]; f.Name != "" {
			if b, err = appendField(b, f.Name, f.Value); err != nil {
				return dst, err
			}
		}
	}
	for name, values := range r.Header {
		canonical := http.CanonicalHeaderKey(name)
		if owned(canonical) || r.Omit != nil && r.Omit(canonical) || r.replaces(canonical) {
			continue
		}
		if !isToken(name) {
			return dst, malformed("the name of a request field is not a token")
		}
		for _, v := range values {
			if b, err = appendField(b, name, v); err != nil {
				return dst, err
			}
		}
	}
	b = append(b, r.Fields...)
	b = append(b, "Content-Length: "...)
	b = strconv.AppendInt(b, r.Length, 10)
	return append(b, "\r\n\r\n"...), nil
}

// replaces reports whether a field of the Header is not sent because another one is.
func (r *Request) replaces(name string) bool {
	for i := range r.Own {
		if own := r.Own[i].Name; own != "" && own == name {
			return true
		}
	}
	return false
}

// appendField appends a line.
func appendField(b []byte, name, value string) ([]byte, error) {
	if !all(value, valueOctet) {
		return b, malformed("the request field " + name + " holds a control character")
	}
	b = append(b, name...)
	b = append(b, ": "...)
	b = append(b, trim(value)...)
	return append(b, "\r\n"...), nil
}

func validTarget(s string) bool {
	if s == "" || s[0] != '/' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c == 0x7f {
			return false
		}
	}
	return true
}

// validHost takes what may stand in the authority of a URL without user info.
func validHost(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '-', c == '.', c == '_', c == '~', c == ':', c == '[', c == ']', c == '%', c == '!',
			c == '$', c == '&', c == '\'', c == '(', c == ')', c == '*', c == '+', c == ',', c == ';', c == '=':
		default:
			return false
		}
	}
	return s != ""
}
