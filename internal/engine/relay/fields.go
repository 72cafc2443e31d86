package relay

import (
	"maps"
	"net/http"
	"strings"
)

// hopByHop headers belong to one connection and are not handed on (RFC 9110,
// section 7.6.1).
var hopByHop = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
	"Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// EndToEnd copies the headers of a request that concern the two ends. Names with an
// underscore are left out: servers that hand them to programs as variables take
// Content_Length for Content-Length.
func EndToEnd(h http.Header) http.Header {
	out := h.Clone()
	stripHops(out)
	maps.DeleteFunc(out, func(name string, _ []string) bool { return strings.Contains(name, "_") })
	return out
}

func stripHops(h http.Header) {
	for _, field := range h["Connection"] {
		for name := range strings.SplitSeq(field, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range hopByHop {
		delete(h, name)
	}
}

// credentials are fields by which a caller shows who it is, to whom it calls: to weir,
// not to the engines behind it.
var credentials = []string{"Authorization", "X-Api-Key", "Api-Key", "Cookie"}

// fields gives those of a request that the engine gets.
func (e *Engine) fields(h http.Header) http.Header {
	h = maps.Clone(h)
	if h == nil {
		h = http.Header{}
	}
	h["Accept-Encoding"] = []string{"identity"} // the bytes must be such as can be looked into
	if !e.opts.PassKey {
		for _, name := range credentials {
			delete(h, name)
		}
	}
	return h
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

// answerFields gives those of an answer that the caller gets.
func answerFields(h http.Header) http.Header {
	stripHops(h)
	for name, values := range h {
		rule, ok := answered[name]
		for _, begin := range answeredBegin {
			ok = ok || strings.HasPrefix(name, begin)
		}
		if !ok {
			delete(h, name)
		} else if rule.once {
			h[name] = values[:1]
		}
	}
	return h
}
