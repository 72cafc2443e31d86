package tenancy

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
)

// Isolation says whose requests for a model share the caches of prompts, in engines and in weir. A
// caller that shares a prefix cache can guess another's prompts from the time to the first token
// (CVE-2025-46570).
type Isolation uint8

// The isolations, the strictest last.
const (
	Shared   Isolation = iota // everybody's
	ByTenant                  // those of one tenant
	ByKey                     // those of one key
)

// isolations are the words for them, in the order of their values.
var isolations = [...]string{"off", "tenant", "key"}

// String returns the word that ParseIsolation reads.
func (i Isolation) String() string { return isolations[i] }

// ParseIsolation reads the word for an isolation.
func ParseIsolation(s string) (Isolation, error) {
	for i, word := range isolations {
		if s == word {
			return Isolation(i), nil
		}
	}
	return Shared, fmt.Errorf("want off, tenant or key")
}

// saltPurpose keeps a salt apart from every other hash of the same parts.
const saltPurpose = "weir cache salt 1"

// MaxOwnSalt bounds the salt that a caller gives, in bytes.
const MaxOwnSalt = 1 << 10

// Salt returns the cache salt of a caller's requests for a model, empty if they share with
// everybody. The caller's own salt, empty for none, divides further. The salt is a SHA-256
// hash, so neither the key nor the tenant can be read in it; engines accept all of its
// characters, and its length.
func (i Isolation) Salt(c *Caller, model, own string) string {
	var key string
	switch i {
	case Shared:
		return ""
	case ByKey:
		key = c.Key
	}
	if own != "" || c.Account == nil {
		return salt(saltPurpose, i.String(), model, c.Tenant, key, own)
	}
	latest := c.Account.salt.Load()
	if latest == nil || latest.isolation != i || latest.model != model || latest.tenant != c.Tenant || latest.key != key {
		latest = &salted{i, model, c.Tenant, key, salt(saltPurpose, i.String(), model, c.Tenant, key, "")}
		c.Account.salt.Store(latest)
	}
	return latest.salt
}

// salted is the latest salt of an account, and of what it is one.
type salted struct {
	isolation          Isolation
	model, tenant, key string
	salt               string
}

// salt hashes parts, each behind its length: no two lists of parts are the same bytes.
func salt(parts ...string) string {
	var room [512]byte
	b := binary.BigEndian.AppendUint64(room[:0], uint64(len(parts)))
	for _, p := range parts {
		b = append(binary.BigEndian.AppendUint64(b, uint64(len(p))), p...)
	}
	sum := sha256.Sum256(b)
	var text [43]byte
	base64.RawURLEncoding.Encode(text[:], sum[:])
	return string(text[:])
}
