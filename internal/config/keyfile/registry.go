package keyfile

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"iter"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/config"
	"weir/internal/config/jwt"
	"weir/internal/infer"
	"weir/internal/tenancy"
)

// Registry knows the callers of a keys file, which it reads again when it is asked to.
type Registry struct {
	path string // of the keys file
	now  atomic.Pointer[state]

	mu       sync.Mutex // of those who change it
	accounts map[string]*tenancy.Account
	tokens   tokens
	memory   Memory // nil: there is none
}

// Memory gives accounts what was used before they were made, by other processes or before their
// keys were revoked.
type Memory interface {
	Restore(name string, a *tenancy.Account, now time.Time)
}

// Remember has the memory restore all accounts, and those that are made from now on.
func (r *Registry) Remember(m Memory) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.memory = m
	for name, a := range r.all() {
		r.restore(name, a, time.Now())
	}
}

func (r *Registry) restore(name string, a *tenancy.Account, now time.Time) {
	if r.memory != nil {
		r.memory.Restore(name, a, now)
	}
}

// all goes through the accounts by the names of their grants. r.mu is held.
func (r *Registry) all() iter.Seq2[string, *tenancy.Account] {
	return func(yield func(string, *tenancy.Account) bool) {
		for name, a := range r.accounts {
			if !yield(name, a) {
				return
			}
		}
		for at, a := range r.tokens.accounts {
			if !yield(tenantName(at.issuer, at.tenant), a) {
				return
			}
		}
	}
}

// Accounts returns the accounts that there are now, by the names of their grants.
func (r *Registry) Accounts() map[string]*tenancy.Account {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Collect(r.all())
}

// state is what a file comes to.
type state struct {
	file   *File
	ring   *Ring
	tokens *jwt.Issuers // nil: no tokens are taken
}

// Open reads the keys file. Nothing is asked for issuers' keys before Start or a token.
func Open(path string) (*Registry, error) {
	r := &Registry{path: path, accounts: map[string]*tenancy.Account{}}
	_, err := r.Reload()
	return r, err
}

// Start fetches the keys of the issuers of tokens, in the background.
func (r *Registry) Start(log *slog.Logger) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tokens.start(log)
}

// Close ends what Start has begun.
func (r *Registry) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tokens.close()
}

// Path is that of the keys file.
func (r *Registry) Path() string { return r.path }

// Reload reads the file again, and returns what has changed by it. Accounts go on by the names
// of their keys. If the file has an error, nothing changes.
func (r *Registry) Reload() ([]config.Step, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var had *File
	if now := r.now.Load(); now != nil {
		had = now.file
	}
	f, err := ReadAgain(r.path, false, had)
	if err != nil {
		return nil, err
	}
	var steps []config.Step
	if had != nil {
		steps = Diff(had, f)
	}
	now := time.Now()
	accounts := map[string]*tenancy.Account{}
	for k := range f.holders {
		c := k.Caller
		if c.Account = r.accounts[c.Key]; c.Account == nil {
			c.Account = tenancy.NewAccount(k.limits, now)
			r.restore(c.Key, c.Account, now)
		}
		c.Account.Set(k.limits, now)
		accounts[c.Key] = c.Account
	}
	r.accounts = accounts
	r.now.Store(&state{f, f.Ring(), r.tokens.reload(f, now, r.caller)})
	return steps, nil
}

// Set changes fields of a grant in the file, and reads it again.
func (r *Registry) Set(name string, fields []Field) ([]config.Step, error) {
	err := Update(r.path, false, func(lines []string, file *File, root *config.Section) ([]string, error) {
		return Set(lines, file, root, name, fields)
	})
	if err != nil {
		return nil, err
	}
	return r.Reload()
}

// Standing is a grant in force, with what is used of it.
type Standing struct {
	Grant
	Account *tenancy.Account // nil if nothing was used yet
}

// Standings returns all grants in force, sorted by name. A tenant of tokens is there if the file
// has an entry for it, or if it has an account because of a request.
func (r *Registry) Standings() (all []Standing) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.now.Load().file
	seen := map[string]bool{}
	for _, g := range f.Grants() {
		seen[g.Name] = true
		s := Standing{Grant: g, Account: g.Caller.Account}
		if g.Kind == kindTenant || g.Kind == kindIssuer {
			issuer, tenant, _ := strings.Cut(g.Name, ":")
			if tenant == anyTenant {
				tenant = g.Caller.Tenant
			}
			if s.Account = nil; g.Kind == kindTenant || f.issuers[issuer].tenantClaim == "" {
				s.Account = r.tokens.accounts[tokenTenant{issuer, tenant}]
			}
		}
		all = append(all, s)
	}
	for at, account := range r.tokens.accounts {
		name := tenantName(at.issuer, at.tenant)
		if i := f.issuers[at.issuer]; i != nil && i.tenantClaim != "" && !seen[name] {
			caller := *i.grant.Caller
			caller.Tenant = at.tenant
			all = append(all, Standing{Grant{name, kindTenant, &caller, i.grant.limits, Hash{}}, account})
		}
	}
	slices.SortFunc(all, func(a, b Standing) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// Issuers returns from how many issuers tokens are taken.
func (r *Registry) Issuers() int { return len(r.now.Load().file.issuers) }

// Keys returns how many keys there are.
func (r *Registry) Keys() int { return len(r.now.Load().file.keys) }

// The messages of refusals. None has anything of what was presented.
const (
	wantsKey   = "this gateway wants a key, and the request has none; send it as Authorization: Bearer KEY (or x-api-key: KEY)"
	unknownKey = "the key is not known here: it is mistyped, was revoked, or belongs to another gateway"
)

// Identify reports who sends a request, by its head and its TLS connection. A key or a token comes
// before a certificate: what a caller sends with the request is meant for it.
func (r *Registry) Identify(h http.Header, secure *tls.ConnectionState) (*tenancy.Caller, error) {
	s := r.now.Load()
	presented := tenancy.Presented(h)
	if presented == "" {
		if c := s.file.certified(secure); c != nil {
			return c, nil
		}
		return nil, infer.Errorf(infer.CodeUnauthorized, wantsKey)
	}
	if c := s.ring.Find(presented); c != nil {
		return c, nil
	}
	if s.tokens != nil && jwt.Like(presented) {
		return s.tokens.Caller(presented)
	}
	return nil, infer.Errorf(infer.CodeUnauthorized, unknownKey)
}

// certified returns the caller of a verified client certificate, by its DNS names, e-mail
// addresses and URIs, its whole subject, and its common name; nil if none of them has a place.
func (f *File) certified(secure *tls.ConnectionState) *tenancy.Caller {
	if secure == nil || len(secure.VerifiedChains) == 0 || len(f.certs) == 0 {
		return nil
	}
	for name := range namesOf(secure.PeerCertificates[0]) {
		if k := f.certs[name]; k != nil {
			return k.Caller
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
