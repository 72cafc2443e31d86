package cli

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"weir/internal/config/keyfile"
	"weir/internal/tenancy"
)

// operators are those who may use the admin listener, by the keys of a file.
type operators struct {
	path string
	mu   sync.Mutex
	file *keyfile.File // of the latest reading
	ring atomic.Pointer[keyfile.Ring]
}

func openOperators(path string) (*operators, error) {
	o := &operators{path: path}
	return o, o.reload()
}

// reload reads the file again; with an error, the old keys stay.
func (o *operators) reload() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	f, err := keyfile.ReadAgain(o.path, true, o.file)
	if err != nil {
		return err
	}
	o.file = f
	o.ring.Store(f.Ring())
	return nil
}

// openPath reports whether a pattern of the admin listener needs no key: probes, and the page's
// own files, which have nothing of any request.
func openPath(pattern string, page []string) bool {
	return pattern == "GET /healthz" || pattern == "GET /readyz" || slices.Contains(page, pattern)
}

// guard lets through who may use the admin listener.
func (k *keys) guard(h http.Handler) http.Handler {
	if k == nil {
		return h
	}
	return k.operators.only(h)
}

// wants is the role that a request to the admin listener needs. Profiles may hold prompts, and
// making one takes the process's time.
func wants(r *http.Request) keyfile.Role {
	switch path := r.URL.Path; {
	case strings.HasPrefix(path, "/debug/"), strings.HasPrefix(path, "/profiles"):
		return keyfile.Operate
	case r.Method == http.MethodGet, r.Method == http.MethodHead, path == "/admin/why":
		return keyfile.Read
	}
	return keyfile.Operate
}

// only lets through who has a key whose role suffices. A nil o lets everybody through. The key
// is taken from the head alone: a cookie or a query would be sent by other sites' pages, and
// would be kept in logs.
func (o *operators) only(h http.Handler) http.Handler {
	if o == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		role, name := o.ring.Load().Role(tenancy.Presented(r.Header))
		need := wants(r)
		switch {
		case role == keyfile.NoRole:
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "the admin listener wants an operator's key: send it as Authorization: Bearer KEY, or give weir's own commands --admin-key-file FILE or WEIR_ADMIN_KEY", http.StatusUnauthorized)
		case role < need:
			http.Error(w, fmt.Sprintf("the key %s has the role %s, and this needs %s", name, role, need), http.StatusForbidden)
		default:
			tenancy.Conceal(r.Header)
			h.ServeHTTP(w, r)
		}
	})
}
