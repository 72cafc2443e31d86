package prepare

import (
	"net/http"

	"weir/internal/fleet/kvindex"
	"weir/internal/tenancy"
)

// sessionHeaders are the headers by which clients and other gateways name a session
// (docs/routing.md lists their origins), if the operator names none. The first one of
// this list that a request has counts.
var sessionHeaders = []string{"X-Session-Id", "X-Session-Affinity", "X-Claude-Code-Session-Id", "Session-Id", "Session_id", "X-Dynamo-Session-Id"}

// maxSession is how much of a session's name counts, in bytes.
const maxSession = 8 << 10

// first returns the first value of a field by its canonical name, which Header.Get would make
// anew.
func first(h http.Header, canonical string) string {
	if v := h[canonical]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// session stands for the session that a request's head names, among those of its
// caller; 0 is none. Where callers are not known, the key that they present tells them apart.
func (pr *Preparer) session(h http.Header, c *tenancy.Caller) uint64 {
	names, value := sessionHeaders, first
	if len(pr.opts.Sessions) > 0 {
		names, value = pr.opts.Sessions, http.Header.Get
	}
	for _, name := range names {
		if v := value(h, name); v != "" {
			key := h.Get("Authorization")
			if key == "" {
				key = h.Get("X-Api-Key")
			}
			return max(uint64(kvindex.Root(0, c.Tenant, c.Key, key, v[:min(len(v), maxSession)])), 1)
		}
	}
	return 0
}
