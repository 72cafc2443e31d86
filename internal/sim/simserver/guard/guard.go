// Package guard defines who may ask a simulated engine.
package guard

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"net"
	"net/http"
	"slices"
	"strings"

	"weir/internal/sim/simserver/web"
)

// Access defines who may ask an engine, and with which keys and TLS settings.
type Access struct {
	// Keys are those of which requests must show one, as "Authorization: Bearer KEY";
	// none lets everybody in. Which paths they guard is up to the server.
	Keys []string
	// AdminKey is asked for in place of Keys where SGLang does.
	AdminKey string
	// TLS is the configuration of the servers; nil is plain text.
	TLS *tls.Config
}

// Takes reports whether an Authorization field contains one of keys. Like vLLM and SGLang,
// it accepts the word Bearer in any case.
func Takes(field string, keys ...string) bool {
	scheme, shown, _ := strings.Cut(field, " ")
	if !strings.EqualFold(scheme, "bearer") {
		return false
	}
	sum, ok := sha256.Sum256([]byte(shown)), 0
	for _, key := range keys {
		want := sha256.Sum256([]byte(key))
		ok |= subtle.ConstantTimeCompare(sum[:], want[:])
	}
	return ok == 1
}

// Paths refuses who shows none of the keys that a path asks for. The admin's pages are
// weir's own and open.
func Paths(h http.Handler, keys func(r *http.Request) []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/admin/") && r.Method != http.MethodOptions {
			if want := keys(r); want != nil && !Takes(r.Header.Get("Authorization"), want...) {
				web.WriteJSON(w, http.StatusUnauthorized, map[string]string{"error": "Unauthorized"})
				return
			}
		}
		h.ServeHTTP(w, r)
	})
}

// Secured puts TLS over a listener where the engine is spoken to so.
func (a *Access) Secured(l net.Listener) net.Listener {
	if a.TLS == nil {
		return l
	}
	config := a.TLS.Clone()
	config.NextProtos = []string{"http/1.1"}
	return tls.NewListener(l, config)
}

// vllmGuarded are the beginnings of the paths that vLLM asks a key for (its
// AuthenticationMiddleware); /metrics, /health, /version and /tokenize are open.
var vllmGuarded = []string{"/v1", "/v2", "/inference", "/cohere"}

// VLLMKeys returns the keys that vLLM asks for; any one of them is enough.
func (a *Access) VLLMKeys(r *http.Request) []string {
	if len(a.Keys) == 0 || !slices.ContainsFunc(vllmGuarded, func(p string) bool { return strings.HasPrefix(r.URL.Path, p) }) {
		return nil
	}
	return a.Keys
}

// SGLangKeys returns the key that SGLang asks for (its decide_request_auth). Probes and
// metrics need none. Aborting requests and flushing the cache need the admin's key, if
// there is one.
func (a *Access) SGLangKeys(r *http.Request) []string {
	for _, open := range []string{"/health", "/ready", "/metrics"} {
		if strings.HasPrefix(r.URL.Path, open) {
			return nil
		}
	}
	if a.AdminKey != "" && (r.URL.Path == "/abort_request" || r.URL.Path == "/flush_cache") {
		return []string{a.AdminKey}
	}
	return a.Keys
}
