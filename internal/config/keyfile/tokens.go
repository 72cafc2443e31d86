package keyfile

import (
	"errors"
	"log/slog"
	"time"

	"weir/internal/config/jwt"
	"weir/internal/tenancy"
)

// tokens has what outlives a keys file that is read again: the keys of issuers, and what tenants
// have used that are known by tokens only. The registry's lock is held.
type tokens struct {
	log      *slog.Logger // nil: not started
	sources  map[jwt.Location]*jwt.Source
	accounts map[tokenTenant]*tenancy.Account
	sweepAt  int // so many accounts
}

// tokenTenant is a tenant of an issuer's tokens. All tokens of one have one account.
type tokenTenant struct{ issuer, tenant string }

// fewAccounts are kept whether they are used or not.
const fewAccounts = 10_000

// reload makes the verifiers of a file's issuers. Accounts go on, with the limits of the file.
func (t *tokens) reload(f *File, now time.Time, grant func(issuer string, c *jwt.Claims) (*tenancy.Caller, error)) *jwt.Issuers {
	sources := map[jwt.Location]*jwt.Source{}
	var list []*jwt.Issuer
	for name, i := range f.issuers {
		at := i.config.Keys
		if sources[at] == nil {
			if sources[at] = t.sources[at]; sources[at] == nil {
				sources[at] = jwt.NewSource(at)
			}
			delete(t.sources, at)
		}
		i.config.Grant = func(c *jwt.Claims) (*tenancy.Caller, error) { return grant(name, c) }
		list = append(list, jwt.NewIssuer(i.config, sources[at]))
	}
	for _, left := range t.sources {
		left.Close()
	}
	t.sources = sources
	if t.log != nil {
		t.start(t.log)
	}
	for at, account := range t.accounts {
		if i := f.issuers[at.issuer]; i != nil {
			account.Set(i.of(at.tenant).limits, now)
		} else {
			delete(t.accounts, at)
		}
	}
	if len(list) == 0 {
		return nil
	}
	return jwt.NewIssuers(list)
}

func (t *tokens) start(log *slog.Logger) {
	t.log = log
	for _, s := range t.sources {
		s.Start(log)
	}
}

func (t *tokens) close() {
	for _, s := range t.sources {
		s.Close()
	}
}

// account is that of a tenant, with limits if it has none yet. Those with nothing used are
// dropped when there are many; swept reports that.
func (t *tokens) account(at tokenTenant, l tenancy.Limits, now time.Time) (a *tenancy.Account, swept bool) {
	if a = t.accounts[at]; a != nil {
		return a, false
	}
	if t.accounts == nil {
		t.accounts, t.sweepAt = map[tokenTenant]*tenancy.Account{}, fewAccounts
	}
	if swept = len(t.accounts) >= t.sweepAt; swept {
		for at, a := range t.accounts {
			if a.Unused(now) {
				delete(t.accounts, at)
			}
		}
		t.sweepAt = max(fewAccounts, 2*len(t.accounts))
	}
	a = tenancy.NewAccount(l, now)
	t.accounts[at] = a
	return a, swept
}

var errGone = errors.New("its issuer was removed from the keys file")

// caller makes the caller of a token that an issuer of the file has signed.
func (r *Registry) caller(name string, c *jwt.Claims) (*tenancy.Caller, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.now.Load()
	i := s.file.issuers[name]
	if i == nil {
		return nil, errGone
	}
	caller, err := i.caller(c)
	if err != nil {
		return nil, err
	}
	at, now := tokenTenant{name, caller.Tenant}, time.Now()
	had := r.tokens.accounts[at]
	var swept bool
	if caller.Account, swept = r.tokens.account(at, i.of(caller.Tenant).limits, now); had == nil {
		r.restore(tenantName(name, caller.Tenant), caller.Account, now)
	}
	if swept {
		s.tokens.Forget() // callers whose account was dropped
	}
	return caller, nil
}
