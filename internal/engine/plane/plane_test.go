package plane

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weir/internal/engine/enginetest"
)

func TestMain(m *testing.M) {
	if pace, err := time.ParseDuration(os.Getenv(senderPace)); err == nil {
		if err := send(pace); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func TestConformance(t *testing.T) {
	for _, network := range []string{"bufconn", "tcp"} {
		t.Run(network, func(t *testing.T) {
			enginetest.Run(t, func(t *testing.T) enginetest.Rig {
				p := newPeer(t, network)
				return enginetest.Rig{Engine: New(p.options()), Peer: p, Panics: &p.panics, Clock: true}
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
