package plane

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"weir/internal/engine/enginetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	for _, network := range []string{"bufconn", "tcp"} {
		t.Run(network, func(t *testing.T) {
			enginetest.Run(t, func(t *testing.T) enginetest.Rig {
				p := newPeer(t, network)
				return enginetest.Rig{Engine: New(p.options()), Peer: p, Clock: true}
			})
		})
	}
}

// done is a context that has ended, to ask without waiting.
func done() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
