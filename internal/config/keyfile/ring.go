// Package keyfile reads keys files: who may ask, by the hashes of keys and by certificates, and
// what each may use. It finds the callers of requests by them.
package keyfile

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"strings"

	"weir/internal/tenancy"
)

// Prefix begins each key that weir makes, so that scanners for leaked secrets can find them.
const Prefix = "weir_"

// maxKey bounds what is looked up as a key, in bytes; what is longer is none.
const maxKey = 512

// Hash is the SHA-256 of a key. A key has 256 random bits, so its hash needs no salt and no slow
// function: there is nothing to guess.
type Hash [sha256.Size]byte

// hashWord begins a hash in a keys file.
const hashWord = "sha256:"

func (h Hash) String() string { return hashWord + hex.EncodeToString(h[:]) }

// parseHash reads a hash as a keys file has it.
func parseHash(s string) (h Hash, ok bool) {
	digits, ok := strings.CutPrefix(s, hashWord)
	if !ok || len(digits) != hex.EncodedLen(len(h)) {
		return h, false
	}
	_, err := hex.Decode(h[:], []byte(digits))
	return h, err == nil
}

// NewKey makes a key and its hash.
func NewKey() (key string, h Hash) {
	var random [32]byte
	rand.Read(random[:]) // never fails
	key = Prefix + base64.RawURLEncoding.EncodeToString(random[:])
	return key, sha256.Sum256([]byte(key))
}

// Ring finds callers by their keys. It does not change.
type Ring struct {
	byHash map[Hash]*entry
}

// entry is a key of a ring.
type entry struct {
	hash   Hash
	caller *tenancy.Caller
	role   Role
}

// Keys returns how many keys there are.
func (r *Ring) Keys() int { return len(r.byHash) }

// Find returns the caller of a key, nil if there is none. The time that it takes depends on the
// length of what was presented, not on its value: the map is searched by the hash, of which a
// caller cannot choose the bits, and the hashes are compared in constant time.
func (r *Ring) Find(presented string) *tenancy.Caller {
	if e := r.find(presented); e != nil {
		return e.caller
	}
	return nil
}

func (r *Ring) find(presented string) *entry {
	if presented == "" || len(presented) > maxKey {
		return nil
	}
	var buf [maxKey]byte
	hash := Hash(sha256.Sum256(buf[:copy(buf[:], presented)]))
	e := r.byHash[hash]
	if e == nil || subtle.ConstantTimeCompare(e.hash[:], hash[:]) != 1 {
		return nil
	}
	return e
}

// Role is what the holder of an admin key may do.
type Role uint8

// The roles. Each may do what those before it may.
const (
	NoRole  Role = iota
	Read         // look at what the admin listener shows
	Operate      // change engines, models and limits
)

// String returns the word of a keys file.
func (r Role) String() string { return [...]string{"none", "read", "operate"}[r] }

// Role returns the role of an admin key and its name; NoRole if there is no such key.
func (r *Ring) Role(presented string) (role Role, name string) {
	if e := r.find(presented); e != nil {
		return e.role, e.caller.Key
	}
	return NoRole, ""
}
