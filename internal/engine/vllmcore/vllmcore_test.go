package vllmcore

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"weir/internal/engine/enginetest"
	"weir/internal/infer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	for _, version := range []string{"0.33.0", "0.20.0"} {
		t.Run(version, func(t *testing.T) {
			enginetest.Run(t, func(t *testing.T) enginetest.Rig {
				p := newPeer(t, version)
				rig := enginetest.Rig{Engine: New(p.options()), Peer: p, Panics: &p.panics, Clock: true, NoWord: []infer.Code{infer.CodeOverloaded}}
				if version != "0.33.0" { // the word came with later releases
					rig.NoWord = append(rig.NoWord, infer.CodeInvalid)
				}
				return rig
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
