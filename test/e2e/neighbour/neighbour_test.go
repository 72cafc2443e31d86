//go:build linux

package neighbour

import (
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// The small form of the matrix: each bad neighbour in turn beside good streams, over each
// protocol. Each good stream is whole, and the memory stays below the documented bound.
// Nothing of a neighbour is left when it has gone, and new clients are served. make measure
// measures the streams' times, and runs the matrix at full scale. A short run leaves out TLS,
// whose connections are net/http's as HTTP/2's are.
func TestBadNeighbours(t *testing.T) {
	t.Parallel()
	for _, p := range Protocols {
		if testing.Short() && p == TLS {
			continue
		}
		t.Run(string(p), func(t *testing.T) {
			harness.Beside(t, harness.Heavy)
			b := Make(t, Options{Protocol: p, Path: "plane", Streams: 32, Tokens: 20, Step: 20 * time.Millisecond})
			limits, most := Memory(t), int64(0)
			for _, kind := range Kinds {
				n := b.Bad(kind, Small(kind))
				b.Phase(string(kind), 0)
				standing, answers := n.End()
				t.Logf("%s: %d standing, %v, %d MB at most", kind, standing, answers, b.Peak()/1e6)
				if most = max(most, limits[kind]); b.Peak() > most {
					t.Errorf("%s: %d MB resident, the docs say at most %d", kind, b.Peak()/1e6, most/1e6)
				}
			}
			b.End()
		})
	}
}
