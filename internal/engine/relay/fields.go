package relay

import (
	"net/http"
	"slices"
	"strings"

	"weir/internal/engine"
	"weir/internal/trace"
	"weir/internal/wire/http1"
)

// Ends are the fields of a request that concern its two ends, the caller and the engine.
type Ends struct {
	connection []string // what the caller's Connection fields name belongs to one connection
	traced     bool     // the engine gets weir's span, and not the caller's
}

// EndToEnd returns which of a request's fields the engine of a leg gets, and those that it gets in
// place of the caller's.
func EndToEnd(req *engine.RelayRequest, leg *trace.Leg) (e Ends, own [3]http1.Field) {
	e.connection = req.Header["Connection"]
	if req.ID != "" {
		own[0] = http1.Field{Name: "X-Request-Id", Value: req.ID}
	}
	if c := leg.Caller; c != nil && c.Own {
		e.traced = true
		own[1] = http1.Field{Name: "Traceparent", Value: c.Parent}
		if c.State != "" {
			own[2] = http1.Field{Name: "Tracestate", Value: c.State}
		}
	}
	return e, own
}

// Omits reports whether a field of the caller's is not handed on, by its canonical name: one that
// belongs to a connection (RFC 9110, section 7.6.1), that the engine gets another one for, or with an
// underscore. Servers that hand fields to programs as variables take Content_Length for
// Content-Length.
func (e Ends) Omits(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
		"Content-Length", "Accept-Encoding":
		return true
	case "Traceparent", "Tracestate":
		if e.traced {
			return true
		}
	}
	for _, field := range e.connection {
		if lists(field, name) {
			return true
		}
	}
	return strings.IndexByte(name, '_') >= 0
}

// lists reports whether a Connection field names another field.
func lists(connection, field string) bool {
	for name := range strings.SplitSeq(connection, ",") {
		if strings.EqualFold(strings.TrimSpace(name), field) {
			return true
		}
	}
	return false
}

// credentials are fields by which a caller shows who it is, to whom it calls: to weir,
// not to the engines behind it.
var credentials = []string{"Authorization", "X-Api-Key", "Api-Key", "Cookie"}

// identity has the engine's bytes be such as can be looked into.
const identity = "Accept-Encoding: identity\r\n"

// answered are the fields of an engine's answer that are about the answer. No other field
// may pass from an engine to weir's callers, or to proxies between: an engine must not set
// their cookies, say which origins may read, send nginx to a file (X-Accel-Redirect), or
// name itself. Where a field may stand once, only the first passes.
var answered = [...]struct {
	name string
	once bool
}{
	{"Content-Type", true},
	{"Content-Disposition", true},
	{"Content-Encoding", false},
	{"Content-Language", false},
	{"Deprecation", true},
	{"Endpoint-Load-Metrics", true}, // of vLLM, for callers that ask for it
	{"Retry-After", true},
	{"Sunset", true},
}

// answeredBegin are beginnings of such fields: what hosted APIs say of a request's limits.
var answeredBegin = [...]string{"X-Ratelimit-", "Anthropic-Ratelimit-", "Openai-"}

// passes reports whether the caller gets a field of an answer, and returns its canonical name.
func passes(name string) (canonical string, once, ok bool) {
	for i := range answered {
		if a := &answered[i]; len(name) == len(a.name) && strings.EqualFold(name, a.name) {
			return a.name, a.once, true
		}
	}
	for _, begin := range answeredBegin {
		if len(name) >= len(begin) && strings.EqualFold(name[:len(begin)], begin) {
			return http.CanonicalHeaderKey(name), false, true
		}
	}
	return "", false, false
}

// answer implements engine.Fields by an answer's head.
type answer struct{ said http1.Fields }

// Get implements engine.Fields.
func (a *answer) Get(name string) string {
	if _, _, ok := passes(name); !ok || a.hop(name) {
		return ""
	}
	return a.said.Get(name)
}

// Put implements engine.Fields.
func (a *answer) Put(h http.Header) {
	for name, value := range a.said.All() {
		name, once, ok := passes(name)
		if !ok || a.hop(name) {
			continue
		}
		if before := h[name]; !once || before == nil {
			h[name] = append(before, value)
		}
	}
}

// hop reports whether the answer says that a field belongs to the connection.
func (a *answer) hop(name string) bool {
	for field := range a.said.Values("Connection") {
		if lists(field, name) {
			return true
		}
	}
	return false
}

// omits returns which fields of a request the engine does not get, besides those that concern the
// connection.
func (e *Engine) omits(name string) bool {
	return !e.opts.PassKey && slices.Contains(credentials, name)
}
