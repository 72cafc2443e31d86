package http1

import (
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
)

// MaxHead bounds the heads of a response, informational ones included, in
// bytes.
const MaxHead = 64 << 10

// Framing says how the end of a response's body is known.
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
	Header  http.Header
	Framing Framing
	Length  int64 // of a Sized body, in bytes
	// Close says that the connection cannot carry another exchange.
	Close bool
}

// Informational says that this is not the answer yet.
func (r *Response) Informational() bool { return r.Status < 200 }

// HeadLen gives the length of the response head that buf begins with, blank
// line included, or 0 while its end has not arrived. Bytes below from were
// already looked at by an earlier call. Bytes that cannot become a head are
// refused as early as that shows.
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
	r := Response{Status: status}
	if r.Header, err = parseFields(fields); err != nil {
		return Response{}, err
	}
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

// parseFields reads the lines after the status line. All strings share the
// head's one copy, all values one array.
func parseFields(text string) (http.Header, error) {
	if text == "" {
		return http.Header{}, nil
	}
	n := strings.Count(text, "\r\n") + 1
	h, values := make(http.Header, n), make([]string, n)
	for line := range strings.SplitSeq(text, "\r\n") {
		if line == "" || line[0] == ' ' || line[0] == '\t' {
			return nil, malformed("a field of the response head is folded")
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok || !isToken(name) {
			return nil, malformed("a field of the response head has no proper name")
		}
		if !all(value, valueOctet) {
			return nil, malformed("the response field " + name + " holds a control character")
		}
		name, value = textproto.CanonicalMIMEHeaderKey(name), trim(value)
		if have := h[name]; have != nil {
			h[name] = append(have, value)
			continue
		}
		values[0] = value
		h[name], values = values[:1:1], values[1:]
	}
	return h, nil
}

// frame decides how the body ends (RFC 9112, section 6.3).
func (r *Response) frame(minor int) error {
	codings, lengths := r.Header["Transfer-Encoding"], r.Header["Content-Length"]
	r.Close = minor == 0 && !hasToken(r.Header["Connection"], "keep-alive") || hasToken(r.Header["Connection"], "close")
	length := int64(-1)
	for _, s := range lengths {
		if s != lengths[0] {
			return malformed("the answer has two different lengths")
		}
	}
	if len(lengths) > 0 {
		var ok bool
		if length, ok = parseLength(lengths[0]); !ok {
			return malformed("the answer's Content-Length is not a number")
		}
	}
	if len(codings) > 0 {
		switch {
		case length >= 0:
			return malformed("the answer has both a length and a transfer coding")
		case minor == 0:
			return malformed("the answer has a transfer coding that its version does not know")
		case len(codings) > 1 || !strings.EqualFold(codings[0], "chunked"):
			return malformed("the answer's transfer coding is not chunked")
		}
	}
	switch {
	case r.Informational():
		r.Framing = Empty
	case r.Status == http.StatusNoContent || r.Status == http.StatusNotModified:
		r.Framing = Empty
		// A body announced where none can be may yet follow.
		if len(codings) > 0 || r.Status == http.StatusNoContent && length > 0 {
			r.Close = true
		}
	case len(codings) > 0:
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

// hasToken looks for a token in comma-separated lists.
func hasToken(lists []string, token string) bool {
	for _, list := range lists {
		for item := range strings.SplitSeq(list, ",") {
			if strings.EqualFold(trim(item), token) {
				return true
			}
		}
	}
	return false
}
