// Package tenancy defines the callers of requests, with their rights and limits.
package tenancy

import "slices"

// Caller is the sender of a request, as its key, token or certificate names it. A Caller does
// not change; a keys file that is read again gives new ones. Its Account is the same as before.
type Caller struct {
	Key    string // the name of the key, which is no secret; "" without keys
	Tenant string // the tenant of the key, to which usage, order and isolation apply
	Band   string // the band in which the tenant's requests wait
	// Share is the weight of the tenant among those of its band; at least 1.
	Share float64
	// Models are those that it may use, sorted; nil: all.
	Models []string
	// Account has the caller's limits and its usage; nil: it has no limits.
	Account *Account
}

// Anyone is the caller of every request where no keys are configured.
var Anyone = &Caller{Tenant: "default", Band: "default", Share: 1}

// Uses reports whether the caller may use a model, by any of its names.
func (c *Caller) Uses(names ...string) bool {
	return c.Models == nil || slices.ContainsFunc(names, func(name string) bool {
		_, ok := slices.BinarySearch(c.Models, name)
		return ok
	})
}

// Same reports whether two requests were sent with the same key: then the caller of the one may
// end the other.
func (c *Caller) Same(other *Caller) bool { return c.Key == other.Key && c.Tenant == other.Tenant }
