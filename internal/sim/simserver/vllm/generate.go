package vllm

import (
	"cmp"
	"crypto/rand"
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/simserver/completion"
	"weir/internal/sim/simserver/exchange"
	"weir/internal/sim/simserver/fields"
	"weir/internal/sim/simserver/vocab"
	"weir/internal/sim/simserver/web"
	"weir/internal/trace"
)

// generateIDs holds the fields that are read from a request to /inference/v1/generate.
type generateIDs struct {
	RequestID      string         `json:"request_id"`
	Model          string         `json:"model"`
	TokenIDs       *[]uint32      `json:"token_ids"`
	SamplingParams jsontext.Value `json:"sampling_params"`
	ContentParts   []struct {
		Type string `json:"type"`
		URL  string `json:"url"`
	} `json:"content_parts"`
	Features         jsontext.Value `json:"features"`
	OutputMode       *string        `json:"output_mode"`
	ReturnTokenIDs   bool           `json:"return_token_ids"`
	Stream           bool           `json:"stream"`
	StreamOptions    jsontext.Value `json:"stream_options"`
	Priority         int            `json:"priority"`
	KVTransferParams jsontext.Value `json:"kv_transfer_params"`

	fields.Salt
	fields.Unread
}

// idAnswer is the answer to a request to /inference/v1/generate: that to a completion, of
// ids alone and in words of its own.
type idAnswer struct {
	completion.Answer
	requestID string // as the server calls it
	promptIDs bool
}

// generate serves /inference/v1/generate, if the server has that path.
func (f *Server) generate(w http.ResponseWriter, r *http.Request) {
	if !f.flags.ScaleOut {
		web.WriteJSON(w, http.StatusForbidden, map[string]any{"error": map[string]any{
			"message": "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.",
			"type":    "PermissionDeniedError", "param": nil, "code": http.StatusForbidden,
		}})
		return
	}
	created := trace.Now()
	a := &idAnswer{Answer: f.completions.Begin(w, r, completion.Text, r.Header.Get("X-Request-Id"), created)}
	requests, err := a.accept()
	w.Header().Set("X-Request-Id", a.ID)
	a.Serve(requests, err, a, func(err error) { web.WriteVLLMError(w, err) })
}

// accept reads a request up to the point where the engine may be asked.
func (a *idAnswer) accept() ([]sim.Request, error) {
	var req generateIDs
	if err := a.Read(&req); err != nil {
		return nil, err
	}
	a.ID = cmp.Or(a.ID, req.RequestID, rand.Text())
	a.requestID, a.promptIDs = "generate-tokens-"+a.ID, req.ReturnTokenIDs
	as, err := a.asCompletion(&req)
	if err != nil {
		return nil, err
	}
	return a.Prepare(as)
}

// asCompletion returns the completion that a request asks for. It ignores members of
// sampling_params that vLLM does not have.
func (a *idAnswer) asCompletion(req *generateIDs) (*completion.Request, error) {
	switch {
	case req.TokenIDs == nil || len(*req.TokenIDs) == 0:
		return nil, infer.Invalid("token_ids", "token_ids: List should have at least 1 item after validation")
	case req.SamplingParams.Kind() != '{':
		return nil, infer.Invalid("sampling_params", "sampling_params: Field required")
	case req.OutputMode != nil && *req.OutputMode != "tokens":
		return nil, fields.NotSimulated("output_mode")
	case fields.Given(req.Features):
		return nil, fields.NotSimulated("features")
	}
	var as completion.Request
	if err := web.Decode(req.SamplingParams, &as); err != nil {
		return nil, err
	}
	if err := cmp.Or(generateLacks.Refuse(req.Rest), samplingLacks.Refuse(as.Rest)); err != nil {
		return nil, err
	}
	if as.N != nil && *as.N > 1 && as.Temperature != nil && *as.Temperature == 0 {
		return nil, infer.Invalid("", "n must be 1 when using greedy sampling, got %d.", *as.N)
	}
	prompt, err := a.prompt(req)
	if err != nil {
		return nil, err
	}
	if as.MaxTokens == nil {
		room := max(a.Run.Options().ContextLength-len(prompt), 1)
		as.MaxTokens = &room
	}
	b, err := json.Marshal(prompt)
	if err != nil {
		return nil, err
	}
	as.Prompt, as.Model, as.Priority, as.KVTransferParams, as.ReturnTokenIDs = b, req.Model, req.Priority, req.KVTransferParams, true
	as.Salt = req.Salt
	as.Stream, as.StreamOptions = req.Stream, nil
	if req.Stream && fields.Given(req.StreamOptions) {
		if err := web.Decode(req.StreamOptions, &as.StreamOptions); err != nil {
			return nil, err
		}
	}
	return &as, nil
}

// prompt returns the ids of the prompt, with those of its media in their places.
func (a *idAnswer) prompt(req *generateIDs) ([]uint32, error) {
	if n := a.Run.Options().VocabSize; n > 0 {
		for _, id := range *req.TokenIDs {
			if int64(id) >= int64(n) {
				return nil, infer.Invalid("", "Token id %d is out of vocabulary", id)
			}
		}
	}
	var shown []vocab.Medium
	for _, part := range req.ContentParts {
		kind := infer.MediaImage
		if part.Type == "audio_url" {
			kind = infer.MediaAudio
		}
		m, err := vocab.MediaURL("content_parts", kind, jsontext.Value(web.Quote(part.URL)))
		if err != nil {
			return nil, err
		}
		one, err := vocab.MediumOf(&m)
		if err != nil {
			return nil, infer.Invalid("content_parts", "content_parts: %v", err)
		}
		shown = append(shown, one)
	}
	full, err := a.Vocab.Expand(a.Request.Context(), a.ID, *req.TokenIDs, shown)
	return full.IDs, err
}

// open appends an event up to its choices. usage is -1 for none.
func (a *idAnswer) open(b []byte, prompt, completion int) []byte {
	b = append(b, `data: {"request_id":`...)
	b = append(b, web.Quote(a.requestID)...)
	b = append(b, `,"usage":`...)
	if completion < 0 {
		b = append(b, "null"...)
	} else {
		b = appendIDUsage(b, prompt, completion)
		b = append(b, `,"prompt_tokens_details":null,"completion_tokens_details":null}`...)
	}
	return b
}

func appendIDUsage(b []byte, prompt, completion int) []byte {
	b = append(b, `{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(prompt), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(prompt+completion), 10)
	b = append(b, `,"completion_tokens":`...)
	return strconv.AppendInt(b, int64(completion), 10)
}

// Event implements exchange.Form.
func (a *idAnswer) Event(b []byte, o *exchange.Output) []byte {
	if o.Failure != nil {
		a.Failed = true
		b = append(b, "data: "...)
		return append(web.AppendVLLMError(b, o.Failure), "\n\n"...)
	}
	if len(o.IDs) == 0 && o.Reason == "" {
		return b
	}
	completion := -1
	if a.Continuous {
		completion = a.Reported(o)
	}
	b = a.open(b, len(o.Prompt), completion)
	if a.promptIDs && !o.Began {
		b = append(b, `,"prompt_token_ids":[`...)
		b = append(web.AppendIDs(b, o.Prompt), ']')
	}
	b = append(b, `,"output_mode":"tokens","choices":[`...)
	b = a.choice(b, o)
	o.Clear()
	return append(b, "]}\n\n"...)
}

// choice appends a choice's pending output.
func (a *idAnswer) choice(b []byte, o *exchange.Output) []byte {
	b = append(b, `{"index":`...)
	b = strconv.AppendUint(b, uint64(o.Slot), 10)
	b = append(b, `,"finish_reason":`...)
	b = a.AppendReason(b, o, o.Reason != "")
	b = append(b, `,"stop_reason":`...)
	b = a.AppendStopReason(b, o)
	b = append(b, `,"token_ids":[`...)
	b = web.AppendIDs(b, o.IDs)
	b = append(b, `],"routed_experts":null,"sampling_mask":null,"weight_versions":null,"logprobs":`...)
	return append(a.appendIDLogprobs(b, o), '}')
}

// appendIDLogprobs appends the log probabilities of a choice's pending output, or null. It
// lists as many alternatives as were asked for, including the id itself.
func (a *idAnswer) appendIDLogprobs(b []byte, o *exchange.Output) []byte {
	if a.Logprobs < 0 {
		return append(b, "null"...)
	}
	entry := func(b []byte, id uint32, lp float64, rank int) []byte {
		b = append(b, `{"token_id":`...)
		b = strconv.AppendUint(b, uint64(id), 10)
		b = append(b, `,"logprob":`...)
		b = vocab.AppendLogprob(b, lp)
		b = append(b, `,"rank":`...)
		return strconv.AppendInt(b, int64(rank), 10)
	}
	b = append(b, `{"content":[`...)
	for i, id := range o.IDs {
		if i > 0 {
			b = append(b, ',')
		}
		b = entry(b, id, vocab.Logprob(id, o.Sent+i), 1)
		b = append(b, `,"top_logprobs":[`...)
		for k := range max(a.Logprobs, 1) {
			if k > 0 {
				b = append(b, ',')
			}
			other, lp := a.Vocab.Alternative(id, o.Sent+i, k)
			b = append(entry(b, other, lp, k+1), '}')
		}
		b = append(b, "]}"...)
	}
	return append(b, "]}"...)
}

// Stray implements exchange.Form.
func (a *idAnswer) Stray(b []byte) []byte {
	b = a.open(b, 1, 0)
	return append(b, `,"output_mode":"tokens","choices":[{"index":1048576,"finish_reason":null,"stop_reason":null,"token_ids":[0],"routed_experts":null,"sampling_mask":null,"weight_versions":null,"logprobs":null}]}`+"\n\n"...)
}

// End implements exchange.Form.
func (a *idAnswer) End(b []byte) []byte {
	if a.WithUsage && !a.Failed {
		b = append(b, `data: {"request_id":`...)
		b = append(b, web.Quote(a.requestID)...)
		b = append(b, `,"usage":`...)
		b = a.appendFinalUsage(b)
		b = append(b, `,"output_mode":"tokens","choices":[]}`+"\n\n"...)
	}
	return append(b, "data: [DONE]\n\n"...)
}

func (a *idAnswer) appendFinalUsage(b []byte) []byte {
	b = appendIDUsage(b, a.PromptTokens, a.Completion())
	if cached := a.Cached(); cached >= 0 {
		b = append(b, `,"prompt_tokens_details":{"cached_tokens":`...)
		b = append(strconv.AppendInt(b, int64(cached), 10), '}')
	}
	return append(b, '}')
}

// WholeBody returns a complete answer that is not streamed.
func (a *idAnswer) WholeBody() []byte {
	b := append([]byte(`{"request_id":`), web.Quote(a.requestID)...)
	b = append(b, `,"model":`...)
	b = append(b, web.Quote(a.Run.Options().Model)...)
	b = append(b, `,"created":`...)
	b = strconv.AppendInt(b, trace.Wall(a.Created).Unix(), 10)
	b = append(b, `,"usage":`...)
	b = a.appendFinalUsage(b)
	b = append(b, `,"prompt_logprobs":null,"prompt_token_id_logprobs":null,"prompt_token_ids":`...)
	if a.promptIDs {
		b = append(append(web.AppendIDs(append(b, '['), a.Outputs[0].Prompt), ']'), `,"mm_placeholders":null`...)
	} else {
		b = append(b, `null,"mm_placeholders":null`...)
	}
	b = append(b, `,"metrics":null,"kv_transfer_params":`...)
	b = a.AppendTransferParams(b, &a.Outputs[0])
	b = append(b, `,"ec_transfer_params":null,"output_mode":"tokens","choices":[`...)
	for i := range a.Outputs {
		if i > 0 {
			b = append(b, ',')
		}
		b = a.choice(b, &a.Outputs[i])
	}
	return append(b, "]}"...)
}
