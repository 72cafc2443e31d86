package relay

import (
	"context"

	"weir/internal/engine"
	"weir/internal/engine/upstream"
	"weir/internal/infer"
)

// probe reads the model list.
func (e *Engine) probe(ctx context.Context) (engine.Facts, error) {
	facts, cards, err := e.client.Models(ctx)
	if e.opts.VerifyIDs {
		facts.Verify = verify(upstream.Owner(cards))
	}
	// Whoever judges callers by their keys does so with weir, which has none.
	if e.opts.Model != "" && (upstream.Nameless(err) || e.opts.PassKey && upstream.Unauthorized(err)) {
		return engine.Facts{Models: []string{e.opts.Model}, Verify: facts.Verify}, nil
	}
	return facts, err
}

// verify is how an engine by whose model list is can be asked for ids.
func verify(owner string) infer.Verify {
	switch owner {
	case "vllm":
		return infer.VerifyVLLM
	case "sglang":
		return infer.VerifySGLang
	}
	return infer.VerifyUnknown
}
