package tenancy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/infer"
)

// Tokens verifies signed tokens.
type Tokens interface {
	// Tenant returns the tenant that a token names. An error is for the caller, and has
	// nothing of the token.
	Tenant(ctx context.Context, token string) (string, error)
}

// Options configure a Registry.
type Options struct {
	Path   string // of the keys file; empty: there are no keys
	Tokens Tokens // nil: no tokens are taken
}

// Registry knows the callers of a keys file, which it reads again when it is asked to.
type Registry struct {
	opts Options
	now  atomic.Pointer[state]

	mu       sync.Mutex // of those who change it
	accounts map[string]*Account
	live     map[string]live // limits that were set over the admin listener
}

// state is what a file comes to.
type state struct {
	file *File
	ring *Ring
}

// live are limits that were set while weir runs, in place of the file's.
type live struct{ set, file Limits }

// Open reads the keys file.
func Open(o Options) (*Registry, error) {
	r := &Registry{opts: o, accounts: map[string]*Account{}, live: map[string]live{}}
	return r, r.Reload()
}

// Path is that of the keys file; empty if there is none.
func (r *Registry) Path() string { return r.opts.Path }

// Reload reads the file again. Accounts go on by the names of their keys. If the file has an
// error, nothing changes. Limits that were set meanwhile stay until the file has others.
func (r *Registry) Reload() error {
	f := &File{}
	if r.opts.Path != "" {
		var err error
		if f, err = ReadFile(r.opts.Path, false); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	accounts := map[string]*Account{}
	for _, c := range f.callers() {
		wants := c.Account.Limits()
		if l, ok := r.live[c.Key]; ok && l.file == wants {
			wants = l.set
		} else {
			delete(r.live, c.Key)
		}
		if had := r.accounts[c.Key]; had != nil {
			c.Account = had
		}
		c.Account.Set(wants, now)
		accounts[c.Key] = c.Account
	}
	maps.DeleteFunc(r.live, func(name string, _ live) bool { return accounts[name] == nil })
	r.accounts = accounts
	r.now.Store(&state{f, f.Ring()})
	return nil
}

// Keys returns how many keys there are.
func (r *Registry) Keys() int { return len(r.now.Load().file.keys) }

// The messages of refusals. None has anything of what was presented.
const (
	wantsKey   = "this gateway wants a key, and the request has none; send it as Authorization: Bearer KEY (or x-api-key: KEY)"
	unknownKey = "the key is not known here: it is mistyped, was revoked, or belongs to another gateway"
)

// Identify says who sends a request, by its head and its TLS connection. A key or a token comes
// before a certificate: what a caller sends with the request is meant for it.
func (r *Registry) Identify(h http.Header, secure *tls.ConnectionState) (*Caller, error) {
	s := r.now.Load()
	presented := Presented(h)
	if presented == "" {
		if c := s.file.certified(secure); c != nil {
			return c, nil
		}
		return nil, infer.Errorf(infer.CodeUnauthorized, wantsKey)
	}
	if c := s.ring.Find(presented); c != nil {
		return c, nil
	}
	if r.opts.Tokens == nil || !isToken(presented) {
		return nil, infer.Errorf(infer.CodeUnauthorized, unknownKey)
	}
	tenant, err := r.opts.Tokens.Tenant(context.Background(), presented)
	if err != nil {
		return nil, infer.AsError(err)
	}
	return s.file.bearer(tenant)
}

// isToken reports whether what is presented has the form of a signed token.
func isToken(s string) bool {
	return len(s) <= maxToken && strings.HasPrefix(s, "eyJ") && strings.Count(s, ".") == 2
}

// maxToken bounds a token, in bytes.
const maxToken = 8 << 10

// bearer returns the caller of a token of a tenant.
func (f *File) bearer(tenant string) (*Caller, error) {
	if c := f.tenants[tenant]; c != nil {
		return c, nil
	}
	if f.rest == nil && len(f.tenants) > 0 {
		return nil, infer.Errorf(infer.CodeUnauthorized, "the token's tenant has no place here; an operator adds it to the tokens of the keys file")
	}
	c := Caller{Band: Anyone.Band, Share: 1}
	if f.rest != nil {
		c = *f.rest
	}
	c.Key, c.Tenant = "token:"+tenant, tenant
	return &c, nil
}

// certified returns the caller of a verified client certificate, by its DNS names, e-mail
// addresses and URIs, its whole subject, and its common name; nil if none of them has a place.
func (f *File) certified(secure *tls.ConnectionState) *Caller {
	if secure == nil || len(secure.VerifiedChains) == 0 || len(f.certs) == 0 {
		return nil
	}
	for name := range namesOf(secure.PeerCertificates[0]) {
		if c := f.certs[name]; c != nil {
			return c
		}
	}
	return nil
}

// namesOf goes through the names of a certificate, the most specific first.
func namesOf(cert *x509.Certificate) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for _, u := range cert.URIs {
			if !yield(u.String()) {
				return
			}
		}
		for _, name := range slices.Concat(cert.DNSNames, cert.EmailAddresses, []string{cert.Subject.String(), cert.Subject.CommonName}) {
			if name != "" && !yield(name) {
				return
			}
		}
	}
}

// Standing is what an operator sees of a caller.
type Standing struct {
	Key    string   `json:"key"`
	Tenant string   `json:"tenant"`
	Band   string   `json:"band"`
	Share  float64  `json:"share"`
	Models []string `json:"models,omitempty"`
	Limits Limits   `json:"limits"`
	// Set says that the limits were set while weir runs, and are not the file's.
	Set   bool  `json:"set,omitzero"`
	Usage Usage `json:"usage"`
}

// Standings returns all callers that have names, sorted.
func (r *Registry) Standings(now time.Time) []Standing {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := []Standing{}
	for _, c := range r.now.Load().file.callers() {
		_, set := r.live[c.Key]
		all = append(all, Standing{Key: c.Key, Tenant: c.Tenant, Band: c.Band, Share: c.Share, Models: c.Models, Limits: c.Account.Limits(), Set: set, Usage: c.Account.Usage(now)})
	}
	slices.SortFunc(all, func(a, b Standing) int { return strings.Compare(a.Key, b.Key) })
	return all
}

// SetLimits sets limits until the file has others for the key, or a restart. It reports whether
// there is the key.
func (r *Registry) SetLimits(key string, l Limits, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.accounts[key]
	if a == nil {
		return false
	}
	was, again := r.live[key]
	if !again {
		was.file = a.Limits()
	}
	r.live[key] = live{set: l, file: was.file}
	a.Set(l, now)
	return true
}
