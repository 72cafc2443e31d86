package infer

import "fmt"

// Role is an engine's part in requests if prefill and decode run on two engines.
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

// Half makes a request one half of a pair. Otherwise both halves are the same request. An
// adapter asks a prefill half for no more than one id, which is not returned to the
// caller.
type Half struct {
	Role Role // never RoleBoth
	// Bootstrap is where the two halves meet at SGLang's engines. Both halves have
	// the same.
	Bootstrap Bootstrap
	// Params are vLLM's kv_transfer_params as JSON. In a decode half they are the
	// bytes that the prefill half answered, if it has answered.
	Params []byte
}

// Bootstrap identifies the meeting of two halves at a prefill engine of SGLang's.
type Bootstrap struct {
	Host string // the host of the prefill engine's registry
	Port int
	Room int64 // unique to this pair; modulo the prefill engine's number of ranks it is Rank
	Rank int   // the rank of the prefill half; -1: its engine has a single rank
}

// Whole returns an error if the request is a half. Adapters call it whose wire
// carries no halves.
func (r *Request) Whole() *Error {
	if r.Half == nil {
		return nil
	}
	return Errorf(CodeUnsupported, "the engine serves no half of a request (%s)", r.Half.Role)
}
