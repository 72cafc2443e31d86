package sglangipc

import (
	"context"
	"fmt"
	"strings"
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
		return c.appendRequest(nil, req, &engine.Additions{}, h.LoRA[req.Model], -1), nil
	})
}

// A guide behind reasoning is asked for where the structure has the field, and refused
// where the scheduler cannot.
func TestReasoningBeforeAGuide(t *testing.T) {
	h, c := goldenCodec(t, readGolden(t)[newest.String()])
	no := false
	h.Started.SkipTokenizer, h.Started.ReasoningParser = &no, "qwen3"
	send := func(r infer.Reasoning) ([]byte, *infer.Error) {
		req := &infer.Request{ID: "a-0000000", Prompt: []uint32{1}, MaxTokens: 8, Guide: &infer.Guide{Kind: infer.GuideRegex, Text: "a", Reasoning: r}}
		if bad := h.check(req, &engine.Additions{}); bad != nil {
			return nil, bad
		}
		return c.appendRequest(nil, req, &engine.Additions{}, "", -1), nil
	}
	plain, bad := send(infer.NoReasoning)
	if bad != nil {
		t.Fatal(bad)
	}
	behind, bad := send(infer.OpenReasoning)
	if bad != nil {
		t.Fatal(bad)
	}
	differ := 0
	for i := range min(len(plain), len(behind)) {
		if plain[i] != behind[i] {
			if differ++; plain[i] != 0xc2 || behind[i] != 0xc3 { // false and true
				t.Errorf("byte %d: %x and %x", i, plain[i], behind[i])
			}
		}
	}
	if differ != 1 || len(plain) != len(behind) {
		t.Errorf("%d bytes differ of %d and %d", differ, len(plain), len(behind))
	}
	h.Started.ReasoningParser = ""
	if _, bad := send(infer.OpenReasoning); bad == nil || !strings.Contains(bad.Message, "--reasoning-parser") {
		t.Errorf("%v", bad)
	}
}

// done is a context that has ended, to ask without waiting.
func done() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func newLeg() *trace.Leg { return new(trace.Leg) }
