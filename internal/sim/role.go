package sim

import (
	"fmt"
	"time"
)

// Role is an engine's part where prefill and decode run on two engines.
type Role uint8

// The roles.
const (
	RoleBoth    Role = iota // prompts are computed and outputs generated here
	RolePrefill             // a request ends with its first id, and leaves a Handle
	RoleDecode              // a request brings a Handle, and its prompt's KV is transferred
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

// Transfer is the link over which the KV of a prompt reaches a decode engine.
// Its zero value takes no time.
type Transfer struct {
	// BytesPerToken is the size of a token's KV, over all layers.
	BytesPerToken int
	// Bandwidth is in bytes per second; 0 is no bound. The transfers of a rank
	// share it one after another.
	Bandwidth float64
	// Latency is added to each transfer.
	Latency time.Duration
}

// Handle is what a prefill engine leaves of a request for the decode engine:
// the name of the prompt's KV. It stands for vLLM's kv_transfer_params and
// SGLang's bootstrap room.
type Handle struct {
	// Tokens is the length of the prompt whose KV it is.
	Tokens int
	// BootstrapStart and BootstrapEnd are when whoever joined the legs began to
	// look for the other one and found it, on the decode engine's clock. They go
	// into its stamps.
	BootstrapStart, BootstrapEnd int64
}
