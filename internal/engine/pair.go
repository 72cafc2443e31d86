package engine

import "fmt"

// Meets is how the half of a request that an engine serves meets its other half.
type Meets struct {
	Way Way
	// Host and Port are where a decode engine reaches a prefill engine: its bootstrap
	// registry or its side channel. An empty host is that of the engine's address.
	Host string
	Port int
	// Ranks is the number of a prefill engine's ranks, among which rooms are divided
	// (ByRoom). 0 is 1.
	Ranks int
	// EngineID is the name of a prefill engine in kv_transfer_params (ByPush). If it has
	// data-parallel ranks, _dp and the rank's number follow the name, and the number is
	// added to the port.
	EngineID string
	// TP, DCP and PP are how many workers of each kind a prefill engine has (ByPush): tensor,
	// decode context and pipeline parallel; 0 is 1.
	TP, DCP, PP int
	// PageTokens is how many tokens a page of its KV cache has. Both sides must have the same
	// (ByRoom). 0: not reported.
	PageTokens int
	// HoldsPages is set if a decode engine keeps the pages of an aborted half while they
	// may still be written to (ByRoom). Aborts of its halves then need no Deferral.
	HoldsPages bool
	// Whole is set if the engine serves whole requests too, whatever its role.
	Whole bool
}

// Way is a way for halves to meet. The zero value means that none is known.
type Way uint8

// The ways.
const (
	Nowhere Way = iota // it serves no halves
	ByRoom             // SGLang's: both halves at once, with a room at the prefill engine
	ByPull             // vLLM's NixlConnector: the prefill half first, its answer goes with the decode half
	ByPush             // vLLM's NixlPushConnector: both at once, known by the same request ID
)

var wayNames = [...]string{"nowhere", "room", "pull", "push"}

// String returns the way's word.
func (w Way) String() string { return wayNames[w] }

// ParseWay is the inverse of String, for those that lead somewhere.
func ParseWay(word string) (Way, error) {
	for w, name := range wayNames {
		if name == word && Way(w) != Nowhere {
			return Way(w), nil
		}
	}
	return 0, fmt.Errorf("no way %q for halves of requests to meet; there are room (SGLang's), pull and push (vLLM's NixlConnector and NixlPushConnector)", word)
}
