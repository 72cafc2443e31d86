package engine

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// KVEvents is where an engine publishes the content of its KV cache. Endpoints are ZeroMQ
// endpoints as the engine binds them: a wildcard host stands for the engine's host.
type KVEvents struct {
	Endpoint    string // empty: it does not publish
	Replay      string // where lost batches can be requested; empty: nowhere
	Topic       string
	BlockTokens int    // tokens of a block; 0: not reported
	Host        string // the engine's host, as weir reaches it
	// Why is the reason why the events cannot be used although the engine publishes
	// them.
	Why string
}

// OfRank returns where a data-parallel rank publishes, given that rank 0 does at e.
// vLLM and SGLang use the next ports for the other ranks.
func (e KVEvents) OfRank(n int) KVEvents {
	if n > 0 && e.Endpoint != "" {
		for _, endpoint := range []*string{&e.Endpoint, &e.Replay} {
			if *endpoint == "" {
				continue
			}
			colon := strings.LastIndexByte(*endpoint, ':')
			port, err := strconv.Atoi((*endpoint)[colon+1:])
			if err != nil || port+n > math.MaxUint16 {
				e.Why = fmt.Sprintf("its KV events are not used: %s has no port behind which rank %d could publish", *endpoint, n)
				return e
			}
			*endpoint = (*endpoint)[:colon+1] + strconv.Itoa(port+n)
		}
	}
	return e
}
