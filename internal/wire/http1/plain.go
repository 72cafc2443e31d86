package http1

import (
	"bytes"
	"net/http"
	"net/textproto"
	"strings"
)

// PlainRequest is a request in the one form that nearly all clients of an API send: a POST
// to a plain path, whose body has a declared length.
type PlainRequest struct {
	Path   string
	Host   string
	Header http.Header // without Host, as net/http has it
	Length int         // of the body
}

// MaxPlainHead bounds the head of a plain request in bytes, and MaxPlainFields its fields.
const (
	MaxPlainHead   = 8 << 10
	MaxPlainFields = 64
)

// maxPlainLength bounds the digits of a body's length.
const maxPlainLength = 9

// ParsePlain parses the head of the request that buf begins with and returns its length, or 0 if
// the request is not plain. Its fields go into an empty map, or a new one for nil. A request is
// plain only if every reader of HTTP/1.1 understands it in the same way: there is nothing to
// smuggle in it. Its lines end with CRLF and none is folded, each field name is a token directly
// before its colon, values are printable ASCII, there is one Host and one Content-Length of
// digits alone, and no field says how the connection or the body goes on otherwise. Another
// server must read what is not plain.
func ParsePlain(buf []byte, into http.Header) (r PlainRequest, n int) {
	end := bytes.Index(buf[:min(len(buf), MaxPlainHead)], []byte("\r\n\r\n"))
	if end < 0 {
		return r, 0
	}
	text := string(buf[:end+2]) // with the CRLF of its last line
	line, fields, _ := strings.Cut(text, "\r\n")
	path, ok := strings.CutPrefix(line, "POST ")
	if !ok {
		return r, 0
	}
	if path, ok = strings.CutSuffix(path, " HTTP/1.1"); !ok || path == "" || path[0] != '/' || !all(path, pathOctet) {
		return r, 0
	}
	r.Path = path
	count := strings.Count(fields, "\r\n")
	if count > MaxPlainFields {
		return r, 0
	}
	if r.Header = into; into == nil {
		r.Header = make(http.Header, count)
	}
	values, sized := make([]string, 0, count), false
	for fields != "" {
		var name, value string
		if line, fields, _ = strings.Cut(fields, "\r\n"); line == "" {
			return r, 0
		}
		if name, value, ok = strings.Cut(line, ":"); !ok || name == "" || !all(name, tokenOctet) {
			return r, 0
		}
		if value = trim(value); !all(value, printableOctet) {
			return r, 0
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
		switch name {
		case "Host":
			if r.Host != "" || value == "" || !all(value, hostOctet) {
				return r, 0
			}
			r.Host = value
			continue
		case "Content-Length":
			if sized || value == "" || len(value) > maxPlainLength || value[0] == '0' && value != "0" {
				return r, 0
			}
			for _, c := range []byte(value) {
				if c < '0' || c > '9' {
					return r, 0
				}
				r.Length = 10*r.Length + int(c-'0')
			}
			sized = true
		case "Connection":
			if !strings.EqualFold(value, "keep-alive") {
				return r, 0
			}
		case "Transfer-Encoding", "Trailer", "Expect", "Upgrade", "Pragma", "Proxy-Connection", "Keep-Alive", "Http2-Settings":
			return r, 0
		}
		if before, again := r.Header[name]; again {
			r.Header[name] = append(before, value)
			continue
		}
		values = append(values, value) // never beyond its capacity, so the slices stay
		r.Header[name] = values[len(values)-1 : len(values) : len(values)]
	}
	if r.Host == "" || !sized {
		return r, 0
	}
	return r, end + 4
}
