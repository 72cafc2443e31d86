package simserver

import "fmt"

// Role is an engine's part where prefill and decode run on two engines.
type Role uint8

// The roles.
const (
	RoleBoth Role = iota // requests are served whole
	RolePrefill
	RoleDecode
)

var roleNames = [...]string{"both", "prefill", "decode"}

// String gives the role's word.
func (r Role) String() string { return roleNames[r] }

// ParseRole is the inverse of String.
func ParseRole(word string) (Role, error) {
	for r, name := range roleNames {
		if name == word {
			return Role(r), nil
		}
	}
	return 0, fmt.Errorf("no role %q; the roles are both, prefill and decode", word)
}
