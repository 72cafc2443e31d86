package allow

import (
	"bytes"
	"fmt"
	"net/url"
	"strings"

	"weir/internal/infer"
)

// Media decides which references to media may pass. An engine fetches a URL, and some
// engines open a path. The zero value lets only data pass, which is not a reference.
type Media struct {
	any      bool
	prefixes []prefix
}

// prefix is a URL prefix in its parts.
type prefix struct{ scheme, host, port, path string }

// ParseMedia parses the operator's setting: data, any, or URLs of http or https, each
// of which allows all URLs that begin with it.
func ParseMedia(words []string) (m Media, err error) {
	for _, word := range words {
		switch word {
		case "data":
		case "any":
			m.any = true
		default:
			p, err := parts(word)
			if err != nil {
				return Media{}, fmt.Errorf("%q: %w; want data, any, or the beginning of URLs, as https://images.example/public/", word, err)
			}
			if strings.Contains(word, "?") {
				return Media{}, fmt.Errorf("%q: the beginning of URLs ends with its path", word)
			}
			m.prefixes = append(m.prefixes, p)
		}
	}
	return m, nil
}

// parts takes a URL apart as every reader of it does, or refuses it: one that readers
// could understand in two ways has two hosts.
func parts(s string) (p prefix, err error) {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f || c == '\\' || c == '#' {
			return p, fmt.Errorf("the URL has a character that it may not have")
		}
	}
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return p, fmt.Errorf("it is not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return p, fmt.Errorf("it is not a URL of http or https")
	case u.User != nil:
		return p, fmt.Errorf("the URL has a user name")
	case u.Opaque != "" || u.Hostname() == "" || strings.ContainsAny(u.Host, "%@"):
		return p, fmt.Errorf("the URL has no plain host")
	case strings.HasSuffix(u.Host, ":"):
		return p, fmt.Errorf("the URL's port is empty")
	}
	p = prefix{scheme: u.Scheme, host: strings.ToLower(u.Hostname()), port: u.Port(), path: u.EscapedPath()}
	if p.port == "" {
		p.port = map[string]string{"http": "80", "https": "443"}[p.scheme]
	}
	if p.path == "" && u.RawQuery == "" && !u.ForceQuery {
		p.path = "/"
	}
	return p, plainPath(p.path)
}

// plainPath refuses a path that could be another one's spelling.
func plainPath(path string) error {
	if !strings.HasPrefix(path, "/") {
		return fmt.Errorf("the path does not begin with a slash")
	}
	for i := range len(path) {
		if c := path[i]; c < ' ' || c == 0x7f || c == '\\' {
			return fmt.Errorf("the path has a control character or a backslash")
		}
	}
	for rest := path; ; {
		i := strings.IndexByte(rest, '%')
		if i < 0 {
			break
		}
		rest = rest[i+1:]
		if len(rest) < 2 {
			return fmt.Errorf("the path has a broken escape")
		}
		switch code := strings.ToLower(rest[:2]); {
		case code == "2e", code == "2f", code == "5c", code == "25", code == "7f", code[0] == '0', code[0] == '1':
			return fmt.Errorf("the path has %%%s in it, an encoded dot, slash, backslash, per cent sign or control character", code)
		}
	}
	for rest, last := path[1:], false; !last; {
		var segment string
		segment, rest, last = strings.Cut(rest, "/")
		last = !last
		segment, _, _ = strings.Cut(segment, ";")
		if segment == "." || segment == ".." || segment == "" && !last {
			return fmt.Errorf("the path has an empty or a dot segment")
		}
	}
	return nil
}

// allows reports whether a URL begins with a prefix, in whole segments of its path.
func (m *Media) allows(s string) bool {
	p, err := parts(s)
	if err != nil {
		return false
	}
	for _, allowed := range m.prefixes {
		rest, ok := strings.CutPrefix(p.path, allowed.path)
		if ok && p.scheme == allowed.scheme && p.host == allowed.host && p.port == allowed.port &&
			(rest == "" || rest[0] == '/' || strings.HasSuffix(allowed.path, "/")) {
			return true
		}
	}
	return false
}

// Check refuses the reference at path if it may not pass.
func (m *Media) Check(path string, ref []byte) error {
	switch {
	case m.any, len(ref) == 0:
		return nil
	case len(ref) > 5 && strings.EqualFold(string(ref[:5]), "data:"):
		if !bytes.Contains(ref, []byte("../")) { // no base64 has it, and a path would
			return nil
		}
	case len(ref) < 8192 && m.allows(string(ref)):
		return nil
	}
	what := "only data URLs (data:TYPE;base64,...) pass here"
	if len(m.prefixes) > 0 {
		what = "only data URLs (data:TYPE;base64,...) and the URLs that the operator has listed pass here"
	}
	return &infer.Error{Code: infer.CodeUnsupported, Param: path,
		Message: fmt.Sprintf("%s is a reference, which the engine would fetch or open, and %s: send the data itself; an operator allows references with --media", path, what)}
}
