package sglangipc

import (
	"context"
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	"weir/internal/infer"
	"weir/internal/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		t.Run(fmt.Sprint(ranks, " ranks"), func(t *testing.T) {
			enginetest.Run(t, func(t *testing.T) enginetest.Rig {
				p := newPeer(t, ranks)
				// A full queue is told over another connection than the answer that
				// confirms, so that either may come first: TestEchoes.
				return enginetest.Rig{Engine: New(p.options()), Peer: p, Panics: &p.panics, NoWord: []infer.Code{infer.CodeUnavailable, infer.CodeOverloaded}}
			})
		})
	}
}

func TestFields(t *testing.T) {
	h, c := goldenCodec(t, readGolden(t)[newest.String()])
	enginetest.Fields(t, "../../../docs/engines.md", "sglang-ipc", func(req *infer.Request) ([]byte, *infer.Error) {
		req.ID += "-0000000" // none is so short
		if bad := h.check(req, &engine.Additions{}); bad != nil {
			return nil, bad
		}
		return c.appendRequest(nil, req, &engine.Additions{}, h.LoRA[req.Model]), nil
	})
}

// done is a context that has ended, to ask without waiting.
func done() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func newLeg() *trace.Leg { return new(trace.Leg) }
