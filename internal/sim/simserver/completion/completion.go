package completion

import (
	"crypto/rand"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/simserver/catalog"
	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/exchange"
	"weir/internal/sim/simserver/fields"
	"weir/internal/sim/simserver/flags"
	"weir/internal/sim/simserver/pairs"
	"weir/internal/sim/simserver/speech"
	"weir/internal/sim/simserver/vocab"
	"weir/internal/sim/simserver/web"
	"weir/internal/trace"
)

// Server serves completions of the OpenAI API in a voice.
type Server struct {
	run   *engine.Engine
	vocab *vocab.Vocab
	voice voice
	// The flags of the engine whose voice it is; nil: of another one.
	sglang *flags.SGLang
	vllm   *flags.VLLM
}

// New serves completions as OpenAI documents them or, with flags, as SGLang or vLLM does.
func New(run *engine.Engine, v *vocab.Vocab, s *flags.SGLang, f *flags.VLLM) *Server {
	c := &Server{run: run, vocab: v, sglang: s, vllm: f}
	switch {
	case s != nil:
		c.voice = sglang
	case f != nil:
		c.voice = vllm
	}
	return c
}

// Begin begins the answer to a request that came at a time. id is the request's own, if it has one.
func (c *Server) Begin(w http.ResponseWriter, r *http.Request, d *Dialect, id string, created int64) Answer {
	return Answer{Exchange: exchange.New(c.run, c.vocab, w, r, id, created), of: c, d: d, voice: c.voice}
}

// Handler serves one dialect of completions in the plain voice or in
// vLLM's.
func (c *Server) Handler(d *Dialect) http.HandlerFunc {
	refuse := web.WriteError
	if c.voice == vllm {
		refuse = web.WriteVLLMError
	}
	return func(w http.ResponseWriter, r *http.Request) {
		a := c.NewAnswer(w, r, d)
		requests, err := a.Accept()
		a.Serve(requests, err, a, func(err error) { refuse(w, err) })
	}
}

// NewAnswer begins the answer to a request and gives it an id.
func (c *Server) NewAnswer(w http.ResponseWriter, r *http.Request, d *Dialect) *Answer {
	created := trace.Now()
	id := r.Header.Get("X-Request-Id")
	if id == "" {
		id = rand.Text()
	}
	w.Header().Set("X-Request-Id", id)
	a := c.Begin(w, r, d, id, created)
	return &a
}

// API is a way of writing answers, streamed and whole.
type API interface {
	exchange.Form
	// WholeBody returns a complete answer that is not streamed.
	WholeBody() []byte
}

// Serve has the engine work on a request that was accepted, or not, and answers it.
func (a *Answer) Serve(requests []sim.Request, err error, as API, refuse func(error)) {
	if errors.Is(err, flags.ErrDies) {
		a.Run.Die(err)
		panic(http.ErrAbortHandler) // the server goes with it
	}
	if err != nil {
		if !a.Empty {
			a.Run.Refused()
		}
		refuse(err)
		return
	}
	if !a.Delay(refuse) {
		a.Run.Refused()
		return
	}
	defer a.Abandon()
	for i := range requests {
		if err := a.Submit(&a.Outputs[i], requests[i]); err != nil {
			refuse(err)
			return
		}
	}
	if !a.Streamed {
		if a.Whole(refuse) {
			a.WriteWhole(as.WholeBody())
		}
		return
	}
	web.EventStream(a.Writer, "text/event-stream; charset=utf-8")
	if a.voice == vllm && http.NewResponseController(a.Writer).Flush() != nil {
		// It sends the head before it has anything to say.
		return
	}
	a.Exchange.Stream(as, a.voice == plain)
}

// Read reads the request's body, and whether it asks for nothing.
func (a *Answer) Read(into any) error {
	if a.voice != plain {
		if err := web.WantJSON(a.Request); err != nil {
			return err
		}
	}
	body, err := web.ReadBody(a.Writer, a.Request)
	if err != nil {
		return err
	}
	a.Empty = string(body) == "{}"
	return web.Decode(body, into)
}

// Accept reads a request up to the point where the engine may be asked.
func (a *Answer) Accept() ([]sim.Request, error) {
	var req Request
	if err := a.Read(&req); err != nil {
		return nil, err
	}
	if err := a.unsimulated().Refuse(req.Rest); err != nil {
		return nil, err
	}
	if a.voice == vllm && req.RequestID != "" && a.Request.Header.Get("X-Request-Id") == "" {
		a.ID = req.RequestID
	}
	return a.Prepare(&req)
}

// Prepare checks a request and prepares its outputs.
func (a *Answer) Prepare(req *Request) ([]sim.Request, error) {
	if a.voice == plain {
		if err := a.Run.WantWhole(); err != nil {
			return nil, err
		}
	}
	lora, err := a.lora(req)
	if err != nil {
		return nil, err
	}
	params, err := a.params(req)
	if err != nil {
		return nil, err
	}
	params.LoRA = lora
	if params.CacheSalt, err = a.salt(req); err != nil {
		return nil, err
	}
	bounds := &fields.VLLMBounds
	if a.voice == sglang {
		bounds = &fields.SGLangBounds
	}
	if err := req.Distribution.Check(bounds); err != nil {
		return nil, err
	}
	if a.n, err = req.choices(); err != nil {
		return nil, err
	}
	stops, err := fields.Stops(req.Stop)
	if err != nil {
		return nil, err
	}
	if a.Logprobs, err = req.alternatives(a.d); err != nil {
		return nil, err
	}
	if err := a.adapt(req); err != nil {
		return nil, err
	}
	var messages jsontext.Value
	if a.d.chat {
		messages = req.Messages
	}
	switch a.voice {
	case sglang:
		if err := a.asSGLang(req, &params); err != nil {
			return nil, err
		}
	case vllm:
		// vLLM's API has neither guided_json and similar fields, which were removed after
		// 0.11, nor SGLang's fields.
		req.GuidedJSON, req.GuidedRegex, req.GuidedChoice, req.GuidedGrammar = nil, nil, nil, nil
		req.JSONSchema, req.Regex, req.EBNF, req.StructuralTag = nil, nil, nil, nil
	}
	ask, err := req.Mode.Ask(messages)
	if err != nil {
		return nil, err
	}
	prompts, err := a.prompts(req)
	if err != nil {
		return nil, err
	}
	if len(prompts)*a.n > fields.MaxChoices {
		return nil, infer.Invalid("prompt", "%d prompts of %d choices are more than %d", len(prompts), a.n, fields.MaxChoices)
	}

	a.Streamed, a.tokenIDs, a.tokensAsIDs = req.Stream, a.voice != plain && req.ReturnTokenIDs, a.voice == vllm && req.TokensAsIDs
	a.AtOnce = !req.Stream
	a.Run.Asked(a.n, params.MaxTokens)
	if o := req.StreamOptions; o != nil && req.Stream {
		a.WithUsage, a.Continuous = o.IncludeUsage, o.ContinuousUsageStats && (a.voice == sglang || o.IncludeUsage && a.voice == vllm)
	}
	if err := a.introduce(req, lora, len(prompts)); err != nil {
		return nil, err
	}
	a.Draw(prompts)
	pairings, err := req.Pair.Each(len(prompts), a.n)
	if err != nil && a.voice == sglang {
		return nil, err
	}

	requests := make([]sim.Request, 0, len(prompts)*a.n)
	a.Outputs, a.said = make([]exchange.Output, 0, cap(requests)), make([]saying, cap(requests))
	for i, prompt := range prompts {
		a.PromptTokens += len(prompt)
		for k := range a.n {
			p := params
			p.Prompt = prompt
			// The choices of one prompt must differ.
			p.Seed += uint64(k) * 0x9e3779b97f4a7c15
			o := exchange.Output{
				Name:     a.rid(i*a.n + k),
				Stops:    exchange.NewStops(stops, req.showStop()),
				ShowStop: req.showStop(),
				Ask:      ask,
			}
			switch a.voice {
			case sglang:
				err = pairs.SGLang(&a.Exchange, a.of.sglang, &o, &p, &pairings[i*a.n+k])
			case vllm:
				err = pairs.VLLM(a.of.vllm.Transfer, &o, &p, req.KVTransferParams, a.baseID(i*a.n+k))
			}
			if err != nil {
				return nil, err
			}
			prepared, err := a.Add(o, p)
			if err != nil {
				return nil, err
			}
			// Aborts are identified by the request's seed, not by the choice's.
			added := &a.Outputs[len(a.Outputs)-1]
			if added.Seed = int64(params.Seed); added.Scripted && a.d.chat {
				a.said[added.Slot].speech = speech.New(!fields.IsNull(req.Offered()), req.Separate())
			}
			requests = append(requests, prepared)
		}
	}
	return requests, nil
}

// salt returns the salt of the cache, which is the same for all prompts.
func (a *Answer) salt(req *Request) (string, error) {
	switch a.voice {
	case vllm:
		return req.Salt.VLLM()
	case sglang:
		one, err := req.Salt.SGLang(1)
		if err != nil {
			return "", err
		}
		return one[0], nil
	}
	return "", nil
}

// unsimulated returns the fields that the request's engine acts on and this one cannot.
func (a *Answer) unsimulated() fields.Unsimulated {
	switch {
	case a.voice == sglang && a.d.chat:
		return sglangChat
	case a.voice == sglang:
		return sglangText
	case a.voice == vllm && a.d.chat:
		return vllmChat
	case a.voice == vllm:
		return vllmText
	case a.d.chat:
		return openAIChat
	}
	return openAIText
}

// adapt removes the fields that the request's engine does not know, and refuses what the
// real engine can do and this one cannot.
func (a *Answer) adapt(req *Request) error {
	if a.voice != sglang {
		req.InputIDs = nil
	} else if a.of.sglang.SkipTokenizer {
		return infer.Invalid("", "this engine has no tokenizer (--skip-tokenizer-init); use /generate")
	}
	if a.voice == vllm && !fields.ValueOr(req.IncludeReasoning, true) {
		return fields.NotSimulated("include_reasoning")
	}
	for _, f := range []struct {
		name  string
		value jsontext.Value
	}{
		{"echo", req.Echo}, {"suffix", req.Suffix}, {"use_beam_search", req.BeamSearch},
		{"prompt_logprobs", req.PromptLogprobs}, {"return_hidden_states", req.HiddenStates},
	} {
		if fields.Given(f.value) {
			return fields.NotSimulated(f.name)
		}
	}
	return nil
}

// asSGLang removes the fields that SGLang ignores, and refuses what SGLang refuses.
func (a *Answer) asSGLang(req *Request, p *sim.Params) error {
	flags := a.of.sglang
	if p.IgnoreEOS {
		p.StopIDs = nil
	}
	if !flags.Deterministic {
		p.Seed = 0
	}
	// Nor does it know vLLM's words.
	req.GuidedJSON, req.GuidedRegex, req.GuidedChoice, req.GuidedGrammar, req.StructuredOutputs = nil, nil, nil, nil, nil
	req.StructuralTag = nil
	if a.d.chat {
		req.JSONSchema = nil // a field of completions only
	}
	var format struct {
		Type string `json:"type"`
	}
	if len(req.ResponseFormat) > 0 {
		if err := json.Unmarshal(req.ResponseFormat, &format); err != nil {
			return infer.Invalid("response_format", "response_format is not valid: %v", err)
		}
	}
	forced := req.ToolChoice.Kind() == '{' || string(req.ToolChoice) == `"required"`
	if forced || fields.Given(req.JSONSchema) || fields.Given(req.Regex) || fields.Given(req.EBNF) || format.Type != "" && format.Type != "text" {
		return flags.Guided()
	}
	return nil
}

// introduce puts together what all events begin with.
func (a *Answer) introduce(req *Request, lora string, prompts int) error {
	model, now := a.Run.Options().Model, time.Now().Unix()
	if lora != "" {
		model = lora
	}
	if a.Model = model; a.voice != sglang {
		id := a.d.idPrefix + a.ID
		a.head, a.headWhole = head(id, a.d.chunk, model, now), head(id, a.d.object, model, now)
		return nil
	}
	// SGLang repeats the model's name as the request has it, and each output has its own
	// request id, which is the id of its events.
	if model = req.Model; model == "" {
		model = "default"
	}
	batch := a.n > 1 || req.Prompt.Kind() == '[' && (prompts > 1 || !isIDs(req.Prompt))
	var err error
	if a.rids, err = fields.RIDs(req.RID, batch, prompts, a.n); err != nil {
		return err
	}
	if a.ID == "" {
		a.ID = a.rids[0]
	}
	for _, rid := range a.rids {
		a.heads = append(a.heads, head(rid, a.d.chunk, model, now))
	}
	a.head, a.headWhole = a.heads[len(a.heads)-1], head(a.rids[0], a.d.object, model, now)
	return nil
}

// isIDs reports whether a list consists of token ids.
func isIDs(v jsontext.Value) bool {
	var ids []uint32
	return json.Unmarshal(v, &ids) == nil
}

// rid returns an output's request id on SGLang.
func (a *Answer) rid(slot int) string {
	if a.rids == nil {
		return ""
	}
	return a.rids[slot]
}

// params returns the engine's parameters for a request, without the prompt.
func (a *Answer) params(req *Request) (sim.Params, error) {
	limit, err := req.limit()
	if err != nil {
		return sim.Params{}, err
	}
	if limit == 0 && a.voice != plain && !a.d.chat {
		limit = defaultTextTokens
	}
	p := sim.Params{
		MaxTokens: limit, MinTokens: req.MinTokens, IgnoreEOS: req.IgnoreEOS, StopIDs: req.StopTokenIDs,
		Priority: req.Priority, DPRank: req.dpRank(),
	}
	if a.voice == vllm {
		// Here the lowest comes first.
		p.Priority = -p.Priority
		if rank := a.Request.Header.Get("X-Data-Parallel-Rank"); rank != "" {
			n, err := strconv.Atoi(rank)
			if err != nil {
				return p, infer.Invalid("X-Data-Parallel-Rank", "X-Data-Parallel-Rank is %q; it must be a number", rank)
			}
			p.DPRank = &n
		}
		p.StreamInterval = req.StreamInterval
	}
	if req.Seed != nil {
		p.Seed = uint64(*req.Seed)
	}
	return p, nil
}

// defaultTextTokens is the max_tokens of text completions that name none, on
// vLLM and SGLang.
const defaultTextTokens = 16

func (a *Answer) prompts(req *Request) ([][]uint32, error) {
	switch {
	case a.d.chat && len(req.InputIDs) > 0:
		// SGLang's: the caller rendered and encoded the messages.
		return [][]uint32{req.InputIDs}, nil
	case a.d.chat:
		ids, err := a.Vocab.Chat(a.Request.Context(), a.ID, req.Messages, req.Offered(), req.TemplateKwargs)
		return [][]uint32{ids}, err
	}
	return a.Vocab.Prompts("prompt", req.Prompt)
}

// lora returns the LoRA adapter that a request selects by its model or, on SGLang, by its
// lora_path; empty is none. SGLang accepts any name for the model, and MODEL:ADAPTER.
func (a *Answer) lora(req *Request) (string, error) {
	if a.voice != sglang {
		return catalog.LoRA(a.Run.Options(), req.Model)
	}
	if req.LoRAPath != nil {
		return *req.LoRAPath, nil
	}
	_, name, _ := strings.Cut(req.Model, ":")
	return name, nil
}

// ChatID returns the id of a chat's answer.
func (a *Answer) ChatID() string { return a.d.idPrefix + a.ID }

// baseID returns the part of a request's id that both legs of a pushed pair have in common.
func (a *Answer) baseID(index int) string {
	if a.d.chat {
		return a.ChatID()
	}
	return a.d.idPrefix + a.ID + "-" + strconv.Itoa(index)
}

// AppendTransferParams appends vLLM's kv_transfer_params of a prefill leg's answer, or null.
func (a *Answer) AppendTransferParams(b []byte, o *exchange.Output) []byte {
	return pairs.AppendParams(b, a.Run, a.of.vllm.Transfer, o)
}
