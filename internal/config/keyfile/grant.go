package keyfile

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"weir/internal/config"
	"weir/internal/tenancy"
)

// Grant is what a keys file grants to those who share an account: the holder of a key or of a
// certificate, or a tenant of an issuer's tokens.
type Grant struct {
	// Name is that of the key; or "certificate:" and the certificate's; or the issuer's, a colon
	// and the tenant's, with * for all tenants that have no entry.
	Name   string
	Kind   string // key, certificate, tenant or issuer
	Caller *tenancy.Caller
	Limits tenancy.Limits
	hash   Hash // of a key
}

// The kinds of grants.
const (
	kindKey         = "key"
	kindCertificate = "certificate"
	kindTenant      = "tenant"
	kindIssuer      = "issuer"
)

// anyTenant stands for the tenants of an issuer that have no entry.
const anyTenant = "*"

func tenantName(issuer, tenant string) string { return issuer + ":" + tenant }

// Grants returns all grants of the file, sorted by name.
func (f *File) Grants() (all []Grant) {
	for i := range f.keys {
		k := &f.keys[i]
		all = append(all, Grant{k.Caller.Key, kindKey, k.Caller, k.limits, k.Hash})
	}
	for name, k := range f.certs {
		all = append(all, Grant{"certificate:" + name, kindCertificate, k.Caller, k.limits, Hash{}})
	}
	for name, i := range f.issuers {
		all = append(all, Grant{tenantName(name, anyTenant), kindIssuer, i.grant.Caller, i.grant.limits, Hash{}})
		for tenant, k := range i.tenants {
			caller := *k.Caller
			caller.Tenant = tenant
			all = append(all, Grant{tenantName(name, tenant), kindTenant, &caller, k.limits, Hash{}})
		}
	}
	slices.SortFunc(all, func(a, b Grant) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// Settable are the fields of a grant that Set changes.
func Settable() []string { return slices.Concat([]string{"models", "band", "share"}, limitFields) }

// words are the fields of the grant as a file has them.
func (g *Grant) words() map[string]string {
	words := map[string]string{"tenant": g.Caller.Tenant, "band": g.Caller.Band, "share": strconv.FormatFloat(g.Caller.Share, 'g', -1, 64), "models": "all"}
	if g.Caller.Models != nil {
		words["models"] = strings.Join(g.Caller.Models, ",")
	}
	for _, field := range limitFields {
		words[field] = "none"
		if n := *limitOf(&g.Limits, field); n != 0 {
			words[field] = strconv.FormatInt(n, 10)
		}
	}
	return words
}

// Diff returns the steps from one file to another. A new hash of a key is a change, but is not
// shown.
func Diff(from, to *File) (steps []config.Step) {
	from, to = apart(from, to)
	had, has := from.Grants(), to.Grants() // sorted by name
	find := func(all []Grant, name string) (g *Grant, ok bool) {
		i, ok := slices.BinarySearchFunc(all, name, func(g Grant, name string) int { return cmp.Compare(g.Name, name) })
		if ok {
			g = &all[i]
		}
		return g, ok
	}
	for i := range had {
		if _, stays := find(has, had[i].Name); !stays {
			steps = append(steps, config.Step{Verb: config.CallerRemoved, Name: had[i].Name})
		}
	}
	for i := range has {
		g := &has[i]
		was, there := find(had, g.Name)
		if !there {
			steps = append(steps, config.Step{Verb: config.CallerAdded, Name: g.Name, What: "tenant " + g.Caller.Tenant})
			continue
		}
		var what []string
		if !g.same(was) {
			old, now := was.words(), g.words()
			for _, field := range append([]string{"tenant"}, Settable()...) {
				if old[field] != now[field] {
					what = append(what, fmt.Sprintf("%s %s -> %s", field, old[field], now[field]))
				}
			}
		}
		if was.hash != g.hash {
			what = append(what, "another key")
		}
		if len(what) > 0 {
			steps = append(steps, config.Step{Verb: config.CallerChanged, Name: g.Name, What: strings.Join(what, ", ")})
		}
	}
	return steps
}

// apart returns the files without the keys that are the same in both, at their beginning and their
// end: most of the time one of thousands has changed.
func apart(from, to *File) (*File, *File) {
	same := func(a, b *Key) bool {
		x, y := Grant{Caller: a.Caller, Limits: a.limits}, Grant{Caller: b.Caller, Limits: b.limits}
		return a.Caller.Key == b.Caller.Key && a.Hash == b.Hash && x.same(&y)
	}
	a, b := *from, *to
	for len(a.keys) > 0 && len(b.keys) > 0 && same(&a.keys[0], &b.keys[0]) {
		a.keys, b.keys = a.keys[1:], b.keys[1:]
	}
	for len(a.keys) > 0 && len(b.keys) > 0 && same(&a.keys[len(a.keys)-1], &b.keys[len(b.keys)-1]) {
		a.keys, b.keys = a.keys[:len(a.keys)-1], b.keys[:len(b.keys)-1]
	}
	return &a, &b
}

// same reports whether all fields are the same.
func (g *Grant) same(was *Grant) bool {
	a, b := g.Caller, was.Caller
	return g.Limits == was.Limits && a.Tenant == b.Tenant && a.Band == b.Band && a.Share == b.Share && slices.Equal(a.Models, b.Models) && (a.Models == nil) == (b.Models == nil)
}
