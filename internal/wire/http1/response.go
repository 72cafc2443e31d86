package http1

import (
	"iter"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
)

// MaxHead bounds the heads of a response, informational ones included, in
// bytes.
const MaxHead = 64 << 10

// Framing states how the end of a response's body is known.
type Framing uint8

// The framings.
const (
	Empty      Framing = iota // there is no body
	Sized                     // Length bytes
	Chunked                   // chunked coding, decoded by Chunks
	UntilClose                // all until the connection ends
)

// Response is the head of a response.
type Response struct {
	Status  int
	Fields  Fields
	Framing Framing
	Length  int64 // of a Sized body, in bytes
	// Close is set if the connection cannot carry another exchange.
	Close bool
}

// Informational reports whether this is not the answer yet.
func (r *Response) Informational() bool { return r.Status < 200 }

// HeadLen returns the length of the response head that buf begins with, blank line
// included, or 0 while its end has not arrived. Bytes below from were already looked at
// by an earlier call. Bytes that cannot become a head are refused as early as that
// shows.
func HeadLen(buf []byte, from int) (int, error) {
	const version = "HTTP/1."
	if n := min(len(buf), len(version)); string(buf[:n]) != version[:n] {
		return 0, malformed("the answer does not begin with HTTP/1")
	}
	for i := from; i < len(buf); i++ {
		if buf[i] != '\n' {
			continue
		}
		if i == 0 || buf[i-1] != '\r' {
			return 0, malformed("a line of the response head ends without a carriage return")
		}
		if i >= 3 && buf[i-2] == '\n' {
			return i + 1, nil
		}
	}
	return 0, nil
}

// ParseResponse parses a whole head as HeadLen found it.
func ParseResponse(head []byte) (Response, error) {
	text, ok := strings.CutSuffix(string(head), "\r\n\r\n")
	if !ok {
		return Response{}, malformed("the response head is not complete")
	}
	line, fields, _ := strings.Cut(text, "\r\n")
	status, minor, err := parseStatus(line)
	if err != nil {
		return Response{}, err
	}
	r := Response{Status: status, Fields: Fields{fields}}
	if err := r.frame(minor); err != nil {
		return Response{}, err
	}
	return r, nil
}

// parseStatus reads "HTTP/1.1 200 OK".
func parseStatus(line string) (status, minor int, err error) {
	const least = len("HTTP/1.1 200")
	if len(line) < least || line[:7] != "HTTP/1." || line[7] != '0' && line[7] != '1' || line[8] != ' ' {
		return 0, 0, malformed("the status line is malformed")
	}
	for _, c := range []byte(line[9:12]) {
		if c < '0' || c > '9' {
			return 0, 0, malformed("the status is not three digits")
		}
		status = 10*status + int(c-'0')
	}
	if status < 100 {
		return 0, 0, malformed("the status is below 100")
	}
	if len(line) > least && line[least] != ' ' || !all(line[least:], valueOctet) {
		return 0, 0, malformed("the reason phrase is malformed")
	}
	return status, int(line[7] - '0'), nil
}

// Fields are the fields of a response's head as it has them. Nearly all answers are looked at
// for their framing and one or two fields, so there is a map of them only for who asks.
type Fields struct{ lines string } // which end with CRLF, but for the last

// next returns the first of lines, and the others.
func next(lines string) (name, value, rest string) {
	line, rest, _ := strings.Cut(lines, "\r\n")
	name, value, _ = strings.Cut(line, ":")
	return name, trim(value), rest
}

// All returns the fields in their order, with their names as the answer has them.
func (f Fields) All() iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		for lines := f.lines; lines != ""; {
			name, value, rest := next(lines)
			if !yield(name, value) {
				return
			}
			lines = rest
		}
	}
}

// Values returns the values of a field in their order.
func (f Fields) Values(name string) iter.Seq[string] {
	return func(yield func(value string) bool) {
		for lines := f.lines; lines != ""; {
			has, value, rest := next(lines)
			if len(has) == len(name) && strings.EqualFold(has, name) && !yield(value) {
				return
			}
			lines = rest
		}
	}
}

// Get returns the first value of a field; empty where there is none.
func (f Fields) Get(name string) string {
	for value := range f.Values(name) {
		return value
	}
	return ""
}

// Header returns them as a map.
func (f Fields) Header() http.Header {
	h := http.Header{}
	for name, value := range f.All() {
		name = textproto.CanonicalMIMEHeaderKey(name)
		h[name] = append(h[name], value)
	}
	return h
}

// checkField refuses a line that is no field.
func checkField(line string) error {
	if line == "" || line[0] == ' ' || line[0] == '\t' {
		return malformed("a field of the response head is folded")
	}
	name, value, ok := strings.Cut(line, ":")
	if !ok || !isToken(name) {
		return malformed("a field of the response head has no proper name")
	}
	if !all(value, valueOctet) {
		return malformed("the response field " + name + " holds a control character")
	}
	return nil
}

// framing is what a head says of its body's end and its connection's.
type framing struct {
	codings, lengths int // of these fields
	coding, length   string
	keeps, closes    bool
}

// field takes a field in, by its name in any case.
func (f *framing) field(name, value string) error {
	switch len(name) {
	case len("Connection"):
		if strings.EqualFold(name, "Connection") {
			f.keeps, f.closes = f.keeps || hasToken(value, "keep-alive"), f.closes || hasToken(value, "close")
		}
	case len("Content-Length"):
		if strings.EqualFold(name, "Content-Length") {
			if f.lengths++; f.lengths > 1 && value != f.length {
				return malformed("the answer has two different lengths")
			}
			f.length = value
		}
	case len("Transfer-Encoding"):
		if strings.EqualFold(name, "Transfer-Encoding") {
			f.codings++
			f.coding = value
		}
	}
	return nil
}

// frame checks the fields, and decides how the body ends (RFC 9112, section 6.3).
func (r *Response) frame(minor int) error {
	var f framing
	for lines := r.Fields.lines; lines != ""; {
		line, rest, more := strings.Cut(lines, "\r\n")
		if err := checkField(line); err != nil {
			return err
		}
		name, value, _ := next(line)
		if err := f.field(name, value); err != nil {
			return err
		}
		if lines = rest; more && rest == "" {
			return checkField(rest)
		}
	}
	r.Close = minor == 0 && !f.keeps || f.closes
	length := int64(-1)
	if f.lengths > 0 {
		var ok bool
		if length, ok = parseLength(f.length); !ok {
			return malformed("the answer's Content-Length is not a number")
		}
	}
	if f.codings > 0 {
		switch {
		case length >= 0:
			return malformed("the answer has both a length and a transfer coding")
		case minor == 0:
			return malformed("the answer has a transfer coding that its version does not know")
		case f.codings > 1 || !strings.EqualFold(f.coding, "chunked"):
			return malformed("the answer's transfer coding is not chunked")
		}
	}
	switch {
	case r.Informational():
		r.Framing = Empty
	case r.Status == http.StatusNoContent || r.Status == http.StatusNotModified:
		r.Framing = Empty
		// A body announced where none can be may yet follow.
		if f.codings > 0 || r.Status == http.StatusNoContent && length > 0 {
			r.Close = true
		}
	case f.codings > 0:
		r.Framing = Chunked
	case length == 0:
		r.Framing = Empty
	case length > 0:
		r.Framing, r.Length = Sized, length
	default:
		r.Framing, r.Close = UntilClose, true
	}
	return nil
}

func parseLength(s string) (int64, bool) {
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}

// hasToken looks for a token in a comma-separated list.
func hasToken(list, token string) bool {
	for item := range strings.SplitSeq(list, ",") {
		if strings.EqualFold(trim(item), token) {
			return true
		}
	}
	return false
}
