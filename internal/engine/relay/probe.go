package relay

import (
	"context"
	"fmt"

	"github.com/go-json-experiment/json"

	"weir/internal/engine"
	"weir/internal/engine/sglangmode"
	"weir/internal/engine/upstream"
	"weir/internal/infer"
)

// probe reads the model list, and of an engine whose sources are known what its own API
// loses.
func (e *Engine) probe(ctx context.Context) (engine.Facts, error) {
	facts, cards, err := e.client.Models(ctx)
	owner := upstream.Owner(cards)
	if e.opts.VerifyIDs {
		facts.Verify = verify(owner)
	}
	// Whoever judges callers by their keys does so with weir, which has none.
	if e.opts.Model != "" && (upstream.Nameless(err) || e.opts.PassKey && upstream.Unauthorized(err)) {
		facts, err = engine.Facts{Models: []string{e.opts.Model}, Verify: facts.Verify}, nil
	}
	if err != nil {
		return facts, err
	}
	e.said = e.software(ctx, owner)
	facts.Lacks = e.said.lacks
	return facts, nil
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

// software is what an engine is, and what of requests it is known to lose for that.
type software struct {
	owner string // as in its model list
	lacks []infer.Lack
}

// software finds out, of engines that name themselves in their model list. One that does not say this time is
// what it said it was before, unless its model list has another owner now.
func (e *Engine) software(ctx context.Context, owner string) software {
	now := software{owner: owner}
	var err error
	switch owner {
	case "vllm":
		now.lacks, err = e.vllm(ctx)
	case "sglang":
		now.lacks, err = e.sglang(ctx)
	}
	if err != nil && e.said.owner == owner {
		return e.said
	}
	return now
}

// sglang reads how an SGLang server was started.
func (e *Engine) sglang(ctx context.Context) ([]infer.Lack, error) {
	data, err := e.client.GetFirst(ctx, upstream.SGLangServerInfo...)
	if err != nil {
		return nil, err
	}
	mode, err := sglangmode.Parse(data)
	if err != nil {
		return nil, err
	}
	return mode.APILacks(), nil
}

// vllm reads a vLLM server's release. No mode of it loses anything without a word: its
// front end refuses what its engine does not do.
func (e *Engine) vllm(ctx context.Context) ([]infer.Lack, error) {
	data, _, err := e.client.Get(ctx, "/version")
	var said struct {
		Version string `json:"version"`
	}
	if err == nil {
		err = json.Unmarshal(data, &said)
	}
	if err != nil {
		return nil, err
	}
	return vllmLacks(said.Version), nil
}

// vllmLacks gives what a release of vLLM passes over. Those before 0.12 had other
// fields, and are not judged.
func vllmLacks(version string) []infer.Lack {
	var major, minor int
	if n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor); n < 2 || major == 0 && minor < 12 {
		return nil
	}
	return []infer.Lack{
		{What: infer.SpelledGuided, Why: fmt.Sprintf("is vLLM %s, whose API passes over guided_json and its like since 0.12; it reads structured_outputs", version)},
		{What: infer.SpelledSGLang | infer.SpelledStopRegex | infer.SpelledNowhere, Why: fmt.Sprintf("is vLLM %s, whose API has no such field and passes over it", version)},
	}
}
