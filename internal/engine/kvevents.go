package engine

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// KVEvents is where an engine publishes what its KV cache holds. Endpoints are ZeroMQ's,
// as the engine's own side has them, so that a host of all addresses is the engine's own.
type KVEvents struct {
	Endpoint    string // empty: it does not publish
	Replay      string // where batches can be asked for again; empty: they cannot
	Topic       string
	BlockTokens int    // of a block; 0: not said
	Host        string // the engine's, as it is reached
	// Why states why they cannot be used, although it publishes.
	Why string
}

// OfRank is where a data-parallel rank publishes, if e is where rank 0 does: vLLM and
// SGLang have the publishers of the others at the ports behind that.
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
