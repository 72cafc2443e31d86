// Package tenancy says who sends a request and what that caller may have.
package tenancy

// Caller is the sender of a request, as its key, token or certificate names it. A Caller does
// not change; a keys file that is read again gives new ones.
type Caller struct {
	Key    string // the name of the key, which is no secret; "" without keys
	Tenant string // whose key it is: usage, order and isolation are the tenant's
	Band   string // the band in which the tenant's requests wait
	// Share is the weight of the tenant among those of its band; at least 1.
	Share float64
}

// Anyone is the caller of every request where no keys are configured.
var Anyone = &Caller{Tenant: "default", Band: "default", Share: 1}
