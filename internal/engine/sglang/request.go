package sglang

import (
	"math"
	"regexp"
	"strconv"
	"strings"

	"weir/internal/engine/idstream"
	"weir/internal/engine/sglangserver"
	"weir/internal/infer"
)

// Carries is the set of SGLang's capabilities beyond those of every engine: all of
// them, but priorities only if it was started with priority scheduling, and media only
// if its model understands them. The log probabilities of prompts are carried over HTTP
// alone.
const Carries = infer.CarriesAll &^ (infer.CarriesPriority | infer.CarriesMedia | infer.CarriesPromptLogprobs)

// MaxLogprobs bounds the alternatives of an id, of which the engine would sort as
// many as it is asked for.
const MaxLogprobs = 1000

// appendRequest appends req as the body of a /generate of the server's, for one of its ranks
// or, with -1, for any. Every field of req is in it; what the caller did not say is the
// model's default, where the server's other API would take it from there, and else left to the
// server.
func (srv *server) appendRequest(b []byte, req *infer.Request, rank int) ([]byte, *infer.Error) {
	if req.MaxTokens < 1 || int64(req.MaxTokens) > math.MaxInt32 {
		return nil, infer.Invalid("max_tokens", "must be between 1 and %d", math.MaxInt32)
	}
	if most := srv.mode.MaxInput; most > 0 && len(req.Prompt) >= most {
		return nil, infer.Errorf(infer.CodeContext, "the prompt has %d tokens, and the engine takes at most %d", len(req.Prompt), most-1)
	}
	if err := srv.mode.Takes(req); err != nil {
		return nil, err
	}
	if err := req.Lacks(srv.carries); err != nil {
		return nil, err
	}
	if req.MinTokens < 0 || req.MinTokens > req.MaxTokens {
		return nil, infer.Invalid("min_tokens", "must be between 0 and max_tokens")
	}
	reasons, bad := srv.mode.Reasons(req)
	if bad != nil {
		return nil, bad
	}
	b = append(b, `{"rid":`...)
	b = idstream.AppendString(b, req.ID)
	if rank >= 0 {
		b = append(b, `,"routed_dp_rank":`...)
		b = strconv.AppendInt(b, int64(rank), 10)
	}
	if req.Half != nil {
		b = appendHalf(b, req.Half)
	}
	if srv.adapters[req.Model] {
		b = append(b, `,"lora_path":`...)
		b = idstream.AppendString(b, req.Model)
	}
	if req.Priority != nil {
		b = append(b, `,"priority":`...)
		b = strconv.AppendInt(b, *req.Priority, 10)
	}
	if req.Logprobs != nil {
		if *req.Logprobs < 0 || *req.Logprobs > MaxLogprobs {
			return nil, infer.Invalid("logprobs", "must be between 0 and %d", MaxLogprobs)
		}
		from := -1 // of the output alone
		if req.LogprobsFrom != nil {
			from = *req.LogprobsFrom
		}
		b = append(b, `,"return_logprob":true,"logprob_start_len":`...)
		b = strconv.AppendInt(b, int64(from), 10)
		b = append(b, `,"top_logprobs_num":`...)
		b = strconv.AppendInt(b, int64(*req.Logprobs), 10)
	}
	if req.CacheSalt != "" {
		for _, name := range sglangserver.SaltFields {
			b = append(append(append(b, `,"`...), name...), `":`...)
			b = idstream.AppendString(b, req.CacheSalt)
		}
	}
	if reasons {
		b = append(b, `,"require_reasoning":true`...)
	}
	b = append(b, `,"stream":true,"input_ids":`...)
	b = idstream.AppendIDs(b, req.Prompt)
	if len(req.Media) > 0 {
		b = appendMedia(b, req.Media)
	}
	b = append(b, `,"sampling_params":{"max_new_tokens":`...)
	most, least := Limits(req)
	if most == 0 {
		b = append(b, "null"...) // as much as its context leaves
	} else {
		b = strconv.AppendInt(b, int64(most), 10)
	}
	if least > 0 {
		b = append(b, `,"min_new_tokens":`...)
		b = strconv.AppendInt(b, int64(least), 10)
	}
	if req.IgnoreEOS {
		b = append(b, `,"ignore_eos":true`...)
	}
	if req.Portion > 1 && srv.mode.Collects() {
		b = append(b, `,"stream_interval":`...)
		b = strconv.AppendInt(b, int64(req.Portion), 10)
	}
	if stops := srv.mode.StopIDs(req, srv.ends); len(stops) > 0 {
		b = append(b, `,"stop_token_ids":`...)
		b = idstream.AppendIDs(b, stops)
	}
	s := srv.defaults.Fill(req.Sampling)
	b = idstream.AppendSampling(b, &s)
	if req.Guide != nil {
		b = appendGuide(b, req.Guide)
	}
	if s.Seed != nil {
		b = append(b, `,"sampling_seed":`...)
		b = strconv.AppendInt(b, *s.Seed, 10)
	}
	return append(b, "}}"...), nil
}

// Limits returns the most ids that the engine is asked for, 0 for as many as its context
// leaves, and the least. Of a prefill half that is one: the engine draws no more, and draws
// it by the least that the request has.
func Limits(req *infer.Request) (most, least int) {
	switch {
	case req.Half != nil && req.Half.Role == infer.RolePrefill:
		return 1, min(req.MinTokens, 1)
	case req.ToContext:
		return 0, req.MinTokens
	}
	return req.MaxTokens, req.MinTokens
}

// appendHalf appends where the halves meet, and for both halves the rank of the prefill
// half. That permits the prefill engine to serve it at a rank other than the room's.
func appendHalf(b []byte, h *infer.Half) []byte {
	b = append(b, `,"bootstrap_host":`...)
	b = idstream.AppendString(b, h.Bootstrap.Host)
	b = append(b, `,"bootstrap_port":`...)
	b = strconv.AppendInt(b, int64(h.Bootstrap.Port), 10)
	b = append(b, `,"bootstrap_room":`...)
	b = strconv.AppendInt(b, h.Bootstrap.Room, 10)
	if h.Bootstrap.Rank >= 0 {
		b = append(b, `,"disagg_prefill_dp_rank":`...)
		b = strconv.AppendInt(b, int64(h.Bootstrap.Rank), 10)
	}
	return b
}

// appendMedia appends a list for each kind of media. Their order within a kind is
// that of the placeholders in the prompt, which the server goes by. Data
// goes as a data URL, whatever the kind: the server would take any other text of
// audio for the path of a file.
func appendMedia(b []byte, all []infer.Media) []byte {
	for kind, field := range [infer.NumMediaKinds]string{`,"image_data":[`, `,"audio_data":[`, `,"video_data":[`} {
		sep := field
		for i := range all {
			m := &all[i]
			if m.Kind != infer.MediaKind(kind) {
				continue
			}
			b = append(b, sep...)
			sep = ","
			b = idstream.AppendMediaURL(b, m)
		}
		if sep != field {
			b = append(b, ']')
		}
	}
	return b
}

// appendGuide returns what the output must match in the engine's words.
func appendGuide(b []byte, g *infer.Guide) []byte {
	name, text := GuideField(g)
	b = append(append(append(b, `,"`...), name...), `":`...)
	return idstream.AppendString(b, text)
}

// GuideField returns the sampling parameter that constrains the output, and its value.
// A choice is written as a regular expression.
func GuideField(g *infer.Guide) (name, text string) {
	switch g.Kind {
	case infer.GuideRegex:
		return "regex", g.Text
	case infer.GuideGrammar:
		return "ebnf", g.Text
	case infer.GuideStructuralTag:
		return "structural_tag", g.Text
	case infer.GuideChoice:
		quoted := make([]string, len(g.Choices))
		for i, c := range g.Choices {
			quoted[i] = regexp.QuoteMeta(c)
		}
		return "regex", "(" + strings.Join(quoted, "|") + ")"
	}
	return "json_schema", g.Text
}
