package relay

import (
	"net/http"
	"slices"
	"strings"

	"weir/internal/wire/http1"
)

// hopByHop headers belong to one connection and are not handed on (RFC 9110,
// section 7.6.1).
var hopByHop = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
	"Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// EndToEnd puts the headers of a request that concern the two ends into out, with the values
// that h has. Names with an underscore are left out: servers that hand them to programs as
// variables take Content_Length for Content-Length.
func EndToEnd(out, h http.Header) {
	for name, values := range h {
		if !slices.Contains(hopByHop, name) && !strings.Contains(name, "_") {
			out[name] = values
		}
	}
	for _, field := range h["Connection"] {
		delHops(out, field)
	}
}

// delHops removes what a Connection field names.
func delHops(h http.Header, connection string) {
	for name := range strings.SplitSeq(connection, ",") {
		h.Del(strings.TrimSpace(name))
	}
}

// credentials are fields by which a caller shows who it is, to whom it calls: to weir,
// not to the engines behind it.
var credentials = []string{"Authorization", "X-Api-Key", "Api-Key", "Cookie"}

// identity has the engine's bytes be such as can be looked into.
const identity = "Accept-Encoding: identity\r\n"

// omits returns which fields of a request the engine does not get.
func (e *Engine) omits(name string) bool {
	return name == "Accept-Encoding" || !e.opts.PassKey && slices.Contains(credentials, name)
}

// answered are the fields of an engine's answer that are about the answer. No other field
// may pass from an engine to weir's callers, or to proxies between: an engine must not set
// their cookies, say which origins may read, send nginx to a file (X-Accel-Redirect), or
// name itself. Where a field may stand once, only the first passes.
var answered = map[string]struct{ once bool }{
	"Cache-Control":         {},
	"Content-Disposition":   {once: true},
	"Content-Encoding":      {},
	"Content-Language":      {},
	"Content-Type":          {once: true},
	"Deprecation":           {once: true},
	"Endpoint-Load-Metrics": {once: true}, // of vLLM, for callers that ask for it
	"Retry-After":           {once: true},
	"Sunset":                {once: true},
}

// answeredBegin are beginnings of such fields: what hosted APIs say of a request's limits.
var answeredBegin = []string{"X-Ratelimit-", "Anthropic-Ratelimit-", "Openai-"}

// answerFields returns those of an answer that the caller gets.
func answerFields(said http1.Fields) http.Header {
	h := make(http.Header)
	values := make([]string, 0, 4) // never beyond its capacity, so the slices of it stay
	for name, value := range said.All() {
		rule, ok := answered[name]
		for _, begin := range answeredBegin {
			ok = ok || strings.HasPrefix(name, begin)
		}
		switch before := h[name]; {
		case !ok || rule.once && before != nil:
		case before == nil && len(values) < cap(values):
			values = append(values, value)
			h[name] = values[len(values)-1 : len(values) : len(values)]
		default:
			h[name] = append(before, value)
		}
	}
	for value := range said.Values("Connection") {
		delHops(h, value)
	}
	return h
}
