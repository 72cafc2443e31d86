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

// transfer puts a request's KV on the link, where it follows those before it.
func (c *Core) transfer(k *rank, ref Ref, at int64) {
	r, d := &c.requests[ref], &c.details[ref]
	t, tokens := &c.opts.Transfer, r.length()-int(r.prefilled)
	begin := max(at, k.link)
	k.link = begin
	if t.Bandwidth > 0 {
		k.link += int64(float64(tokens) * float64(t.BytesPerToken) / t.Bandwidth * 1e9)
	}
	d.ready = k.link + int64(t.Latency)
	d.stamps.TransferStart, d.stamps.TransferEnd = begin, d.ready
	r.phase = phaseTransfer
	c.counts.Transferred += uint64(tokens)
	k.transfer = append(k.transfer, ref)
}

// arrive lets the requests decode whose KV is there.
func (c *Core) arrive(k *rank, at int64) {
	kept := k.transfer[:0]
	for _, ref := range k.transfer {
		r, d := &c.requests[ref], &c.details[ref]
		if d.ready > at {
			kept = append(kept, ref)
			continue
		}
		if k.kv != nil {
			k.kv.enter(d, r.length())
		}
		d.stamps.WaitingToRunning = at
		c.join(k, ref)
	}
	k.transfer = kept
}
