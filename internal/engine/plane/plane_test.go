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
	for _, c := range []struct {
		network string
		batches bool
	}{{"bufconn", false}, {"tcp", false}, {"bufconn", true}, {"tcp", true}} {
		t.Run(fmt.Sprintf("%s/batches %v", c.network, c.batches), func(t *testing.T) {
			enginetest.Run(t, func(t *testing.T) enginetest.Rig {
				p := newPeer(t, c.network)
				p.facts.Submissions = c.batches
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
