package vllm

import (
	"math"
	"strconv"

	"weir/internal/engine"
	"weir/internal/engine/idstream"
	"weir/internal/infer"
)

// carries is the set of vLLM's capabilities beyond those of every engine: all of them,
// but priorities only if it was started with priority scheduling, and media only if it
// has /inference/v1/generate.
const carries = infer.CarriesAll &^ (infer.CarriesPromptLogprobs | infer.CarriesPriority | infer.CarriesMedia)

// MaxLogprobs bounds the alternatives of an id. The engine has a bound of its own
// (--max-logprobs), which it names.
const MaxLogprobs = 1000

// generates reports whether a request goes to /inference/v1/generate. That endpoint
// returns one alternative less than requested if the drawn id is not among them.
// Requests for alternatives therefore go to /v1/completions, unless it cannot carry
// them.
func (srv *server) generates(req *infer.Request) (bool, *infer.Error) {
	const only = "on a server started with --enable-scale-out"
	media, whole := len(req.Media) > 0, wholly(req.Guide)
	switch {
	case !srv.generate && whole:
		e := infer.Errorf(infer.CodeUnsupported, "the engine cannot hold all of the answer to a %s, as a tool call that must come, where the model may reason: it can %s; ask for no reasoning, or leave the choice of tools to the model", req.Guide.Kind.Needs(), only)
		e.Lacks, e.Retryable = req.Guide.Kind.Needs(), true // another may
		return false, e
	case !srv.generate:
		return false, nil
	}
	if req.Half != nil { // whose other half may be at a server without it, and is known by the path too
		return media || whole, nil
	}
	return media || whole || req.Logprobs == nil || *req.Logprobs == 0, nil
}

// wholly reports whether a guide applies from the first id on although the model may
// reason, which the request must state.
func wholly(g *infer.Guide) bool { return g != nil && g.Whole && g.Reasoning != infer.NoReasoning }

// appendRequest appends req as the body of a request to one of the two endpoints. Every
// field of req is in it; fields that the caller did not set are left to the server,
// which uses the model's defaults; where it does not, they are set to the model's
// defaults here.
func (srv *server) appendRequest(b []byte, req *infer.Request, generate bool) ([]byte, *infer.Error) {
	if err := srv.check(req); err != nil {
		return nil, err
	}
	b = append(b, `{"request_id":`...)
	b = idstream.AppendString(b, req.ID)
	if model := srv.nameOf(req.Model); model != "" {
		b = append(b, `,"model":`...)
		b = idstream.AppendString(b, model)
	}
	if req.Priority != nil {
		b = append(b, `,"priority":`...)
		b = strconv.AppendInt(b, *req.Priority, 10)
	}
	if req.CacheSalt != "" {
		b = append(b, `,"cache_salt":`...)
		b = idstream.AppendString(b, req.CacheSalt)
	}
	if h := req.Half; h != nil && h.Params != nil {
		b = append(append(b, `,"kv_transfer_params":`...), h.Params...)
	}
	if prefills(req) {
		b = append(b, `,"stream":false`...)
	} else {
		b = append(b, `,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`...)
	}
	if !generate {
		if !prefills(req) {
			b = append(b, `,"return_token_ids":true`...)
		}
		b = append(b, `,"prompt":`...)
		b = idstream.AppendIDs(b, req.Prompt)
		if req.Logprobs != nil {
			b = append(b, `,"return_tokens_as_token_ids":true`...)
		}
		b = appendParams(b, ',', req, &req.Sampling, top(req, false))
		return append(b, '}'), nil
	}
	b = append(b, `,"token_ids":`...)
	b = idstream.AppendIDs(b, req.Prompt)
	if len(req.Media) > 0 {
		b = appendMedia(b, req.Media)
	}
	if wholly(req.Guide) {
		b = append(b, `,"reasoning_ended":true`...)
	}
	s := srv.defaults.Fill(req.Sampling)
	b = append(b, `,"sampling_params":`...)
	b = appendParams(b, '{', req, &s, top(req, true))
	return append(b, "}}"...), nil
}

// nameOf returns the name that the engine knows a request's model by.
func (srv *server) nameOf(model string) string {
	if srv.adapters[model] {
		return model
	}
	return srv.model
}

// top returns how many alternatives the engine is asked for.
func top(req *infer.Request, generate bool) int {
	switch {
	case req.Logprobs == nil:
		return -1
	case generate && *req.Logprobs > 0:
		return *req.Logprobs + 1
	}
	return *req.Logprobs
}

// appendParams appends the sampling parameters, whose names are the same at both
// endpoints, as members after a first character.
func appendParams(b []byte, first byte, req *infer.Request, s *infer.Sampling, top int) []byte {
	b = append(b, first)
	b = append(b, `"max_tokens":`...)
	if req.ToContext {
		b = append(b, "null"...) // as much as its context leaves
	} else {
		b = strconv.AppendInt(b, int64(req.MaxTokens), 10)
	}
	if req.MinTokens > 0 {
		b = append(b, `,"min_tokens":`...)
		b = strconv.AppendInt(b, int64(req.MinTokens), 10)
	}
	if req.IgnoreEOS {
		b = append(b, `,"ignore_eos":true`...)
	}
	if req.Portion > 1 { // releases that do not know it pass over it
		b = append(b, `,"stream_interval":`...)
		b = strconv.AppendInt(b, int64(req.Portion), 10)
	}
	if len(req.StopIDs) > 0 {
		b = append(b, `,"stop_token_ids":`...)
		b = idstream.AppendIDs(b, req.StopIDs)
	}
	b = idstream.AppendSampling(b, s)
	if s.Seed != nil {
		b = append(b, `,"seed":`...)
		b = strconv.AppendInt(b, *s.Seed, 10)
	}
	if top >= 0 {
		b = append(b, `,"logprobs":`...)
		b = strconv.AppendInt(b, int64(top), 10)
	}
	if req.Guide != nil {
		b = appendGuide(b, req.Guide)
	}
	return b
}

// check refuses what the engine would take for something else, without a word, or would
// not survive. What it refuses itself, with the name, is left to it.
func (srv *server) check(req *infer.Request) *infer.Error {
	if req.MaxTokens < 1 || int64(req.MaxTokens) > math.MaxInt32 {
		return infer.Invalid("max_tokens", "must be between 1 and %d", math.MaxInt32)
	}
	if req.MinTokens < 0 || req.MinTokens > req.MaxTokens {
		return infer.Invalid("min_tokens", "must be between 0 and max_tokens")
	}
	if err := engine.CheckHalf(req.Half); err != nil {
		return err
	}
	if err := req.Lacks(srv.carries); err != nil {
		return err
	}
	for _, bias := range req.Sampling.LogitBias { // it clamps them
		if err := engine.Within("the bias", &bias.Value, -100, 100); err != nil {
			return infer.Invalid("logit_bias", "%v", err)
		}
	}
	if req.Logprobs != nil && (*req.Logprobs < 0 || *req.Logprobs > MaxLogprobs) { // -1 is all of the vocabulary
		return infer.Invalid("logprobs", "must be between 0 and %d", MaxLogprobs)
	}
	return nil
}

// appendMedia appends the conversation's other parts, which the server resolves, in the
// order of their placeholders.
func appendMedia(b []byte, all []infer.Media) []byte {
	sep := `,"content_parts":[{"type":"`
	for i := range all {
		b = append(b, sep...)
		b = append(b, all[i].Kind.String()...)
		b = append(b, `_url","url":`...)
		b = idstream.AppendMediaURL(b, &all[i])
		sep = `},{"type":"`
	}
	return append(b, "}]"...)
}

// appendGuide appends what the output must match.
func appendGuide(b []byte, g *infer.Guide) []byte {
	b = append(b, `,"structured_outputs":{"`...)
	switch g.Kind {
	case infer.GuideChoice:
		b = append(b, `choice":[`...)
		for i, c := range g.Choices {
			if i > 0 {
				b = append(b, ',')
			}
			b = idstream.AppendString(b, c)
		}
		return append(b, "]}"...)
	case infer.GuideRegex:
		b = append(b, `regex":`...)
	case infer.GuideGrammar:
		b = append(b, `grammar":`...)
	case infer.GuideStructuralTag:
		b = append(b, `structural_tag":`...)
	default:
		b = append(b, `json":`...)
	}
	return append(idstream.AppendString(b, g.Text), '}')
}
