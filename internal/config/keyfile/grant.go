package keyfile

import (
	"cmp"
	"fmt"
	"maps"
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
		all = append(all, Grant{k.Caller.Key, kindKey, k.Caller, k.limits})
	}
	for name, k := range f.certs {
		all = append(all, Grant{"certificate:" + name, kindCertificate, k.Caller, k.limits})
	}
	for name, i := range f.issuers {
		all = append(all, Grant{tenantName(name, anyTenant), kindIssuer, i.grant.Caller, i.grant.limits})
		for tenant, k := range i.tenants {
			caller := *k.Caller
			caller.Tenant = tenant
			all = append(all, Grant{tenantName(name, tenant), kindTenant, &caller, k.limits})
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
	had, has := map[string]Grant{}, map[string]Grant{}
	for _, g := range from.Grants() {
		had[g.Name] = g
	}
	for _, g := range to.Grants() {
		has[g.Name] = g
	}
	hashes := func(f *File) map[string]Hash {
		of := map[string]Hash{}
		for i := range f.keys {
			of[f.keys[i].Caller.Key] = f.keys[i].Hash
		}
		return of
	}
	before, after := hashes(from), hashes(to)
	for _, name := range slices.Sorted(maps.Keys(had)) {
		if _, stays := has[name]; !stays {
			steps = append(steps, config.Step{Verb: config.CallerRemoved, Name: name})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(has)) {
		g := has[name]
		was, there := had[name]
		if !there {
			steps = append(steps, config.Step{Verb: config.CallerAdded, Name: name, What: "tenant " + g.Caller.Tenant})
			continue
		}
		var what []string
		old, now := was.words(), g.words()
		for _, field := range append([]string{"tenant"}, Settable()...) {
			if old[field] != now[field] {
				what = append(what, fmt.Sprintf("%s %s -> %s", field, old[field], now[field]))
			}
		}
		if before[name] != after[name] {
			what = append(what, "another key")
		}
		if len(what) > 0 {
			steps = append(steps, config.Step{Verb: config.CallerChanged, Name: name, What: strings.Join(what, ", ")})
		}
	}
	return steps
}
