package simserver

import (
	"fmt"

	"weir/internal/infer"
)

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

// wantWhole refuses requests over a wire that has no legs to an engine that takes
// nothing else.
func (e *Engine) wantWhole() error {
	if e.opts.Role == RoleBoth {
		return nil
	}
	return infer.Invalid("", "this engine has the role %s, and takes one half of requests only; this wire has no halves: use sglang or vllm", e.opts.Role)
}
