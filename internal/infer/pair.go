package infer

import "fmt"

// Role is an engine's part in requests, where prefill and decode run on two engines.
type Role uint8

// The roles.
const (
	RoleBoth    Role = iota // it serves requests whole
	RolePrefill             // it computes prompts, for decode engines
	RoleDecode              // it generates what follows a prompt that was computed elsewhere
)

var roleNames = [...]string{"both", "prefill", "decode"}

// String returns the role's word.
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

// Half makes a request one half of a pair. Both halves are the same request otherwise: an
// adapter asks for no more than one id of a prefill half, which nobody is shown.
type Half struct {
	Role Role // never RoleBoth
	// Bootstrap is where the halves of SGLang's engines meet, the same for both.
	Bootstrap Bootstrap
	// Params are vLLM's kv_transfer_params as JSON. Of a decode half they are what the
	// prefill half has answered, as it came, where it came before.
	Params []byte
}

// Bootstrap is a meeting of two halves at a prefill engine of SGLang's.
type Bootstrap struct {
	Host string // of the prefill engine's registry
	Port int
	Room int64 // this pair's alone; modulo the prefill engine's ranks it is Rank
	Rank int   // of the prefill half; -1: its engine has one
}

// Whole refuses a half for an engine whose wire carries none.
func (r *Request) Whole() *Error {
	if r.Half == nil {
		return nil
	}
	return Errorf(CodeUnsupported, "the engine serves no half of a request (%s)", r.Half.Role)
}
