package engine

import "fmt"

// Meets is how the half of a request that an engine serves meets its other half.
type Meets struct {
	Way Way
	// Host and Port are where a prefill engine is met: its bootstrap registry's, or its
	// side channel's. An empty host is that of the engine's address.
	Host string
	Port int
	// Ranks are those of a prefill engine that rooms are divided among (ByRoom); 0 is 1.
	Ranks int
	// EngineID is what a prefill engine calls itself in kv_transfer_params (ByPush). Of one
	// with data-parallel ranks, each has _dp and its number behind it, and a port that is as
	// much higher.
	EngineID string
	// TP, DCP and PP are how many workers of each kind a prefill engine has (ByPush): tensor,
	// decode context and pipeline parallel; 0 is 1.
	TP, DCP, PP int
	// PageTokens is how many tokens a page of its KV cache has, which must be as many on both
	// sides (ByRoom); 0: it does not say.
	PageTokens int
	// HoldsPages is set if a decode engine keeps the pages of an aborted half until nobody
	// writes to them (ByRoom). The abort of its halves need not wait (Deferral).
	HoldsPages bool
	// Whole is set if the engine serves whole requests too, whatever its role.
	Whole bool
}

// Way is a way to meet. Its zero value is that nothing is known of any.
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
