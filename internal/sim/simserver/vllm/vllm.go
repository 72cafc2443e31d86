// Package vllm serves the API of vLLM: the OpenAI API in its form, and its own paths.
package vllm

import (
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
	"weir/internal/sim/simserver/catalog"
	"weir/internal/sim/simserver/completion"
	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/fields"
	"weir/internal/sim/simserver/flags"
	"weir/internal/sim/simserver/pool"
	"weir/internal/sim/simserver/tally"
	"weir/internal/sim/simserver/vocab"
	"weir/internal/sim/simserver/web"
)

// Server serves vLLM's HTTP API.
type Server struct {
	run         *engine.Engine
	vocab       *vocab.Vocab
	flags       *flags.VLLM
	completions *completion.Server
	load        atomic.Int64 // requests under way
}

// New makes a server of an engine in vLLM's form.
func New(run *engine.Engine, v *vocab.Vocab, o *flags.VLLM) *Server {
	return &Server{run: run, vocab: v, flags: o, completions: completion.New(run, v, nil, o)}
}

// Handler serves vLLM's paths.
func (f *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /v1/chat/completions", f.tracked(f.completions.Handler(completion.Chat)))
	mux.Handle("POST /v1/completions", f.tracked(f.completions.Handler(completion.Text)))
	mux.Handle("POST /v1/messages", f.tracked(f.served(acceptMessages, writeMessagesError)))
	mux.HandleFunc("POST /v1/messages/count_tokens", f.countTokens)
	mux.Handle("POST /v1/responses", f.tracked(f.served(acceptResponses, web.WriteVLLMError)))
	for _, kept := range []string{"GET /v1/responses/{id}", "POST /v1/responses/{id}/cancel"} {
		mux.HandleFunc(kept, func(w http.ResponseWriter, r *http.Request) { web.WriteVLLMError(w, noResponse(r.PathValue("id"))) })
	}
	mux.HandleFunc("POST /inference/v1/generate", f.generate)
	mux.HandleFunc("POST /v1/embeddings", f.pool().Embeddings(web.WriteVLLMError, embeddingsLacks))
	for _, path := range []string{"/rerank", "/v1/rerank", "/v2/rerank"} {
		mux.HandleFunc("POST "+path, f.rerank)
	}
	mux.HandleFunc("POST /score", f.score)
	mux.HandleFunc("POST /v1/score", f.score)
	mux.HandleFunc("GET /v1/models", catalog.Full(f.run.Options(), "vllm"))
	mux.HandleFunc("POST /tokenize", f.tokenize)
	mux.HandleFunc("POST /detokenize", f.detokenize)
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		web.WriteJSON(w, http.StatusOK, map[string]string{"version": flags.VLLMVersion})
	})
	mux.HandleFunc("GET /kv_event_sources", f.kvEventSources)
	mux.HandleFunc("GET /load", func(w http.ResponseWriter, _ *http.Request) {
		web.WriteJSON(w, http.StatusOK, map[string]int64{"server_load": f.load.Load()})
	})
	ok := func(http.ResponseWriter, *http.Request) {}
	mux.HandleFunc("GET /health", ok)
	mux.HandleFunc("GET /ping", ok)
	mux.HandleFunc("POST /ping", ok)

	mux.Handle("GET /metrics", tally.Handler(f.metrics))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		web.WriteVLLMError(w, infer.Errorf(infer.CodeNotFound, "no %s %s here", r.Method, r.URL.Path))
	})
	return mux
}

// pool serves what is answered without generating.
func (f *Server) pool() *pool.Pool { return pool.New(f.run.Options(), f.vocab, false, true) }

// tracked counts the requests under way.
func (f *Server) tracked(h http.HandlerFunc) http.Handler {
	if !f.flags.LoadTracking {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.load.Add(1)
		defer f.load.Add(-1)
		h(w, r)
	})
}

// kvEventSources gives the addresses at which each rank publishes the content of its KV
// cache.
func (f *Server) kvEventSources(w http.ResponseWriter, _ *http.Request) {
	sources := map[string]any{}
	if p := f.run.KVEvents(); p != nil {
		for rank, c := range p.Sources() {
			sources[strconv.Itoa(rank)] = map[string]any{
				"enable_kv_cache_events": true, "publisher": c.Publisher, "endpoint": c.Endpoint, "replay_endpoint": c.ReplayEndpoint,
				"buffer_steps": c.BufferSteps, "hwm": c.HWM, "max_queue_size": c.MaxQueueSize, "topic": c.Topic,
			}
		}
	}
	web.WriteJSON(w, http.StatusOK, sources)
}

// tokenizeRequest asks for the ids of a text or of a chat.
type tokenizeRequest struct {
	Model    string         `json:"model"`
	Prompt   *string        `json:"prompt"`
	Messages jsontext.Value `json:"messages"`
	Strs     bool           `json:"return_token_strs"`
	Special  *bool          `json:"add_special_tokens"`
	fields.Mode
	fields.Unread
}

func (f *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	var req tokenizeRequest
	ids, err := func() ([]uint32, error) {
		if err := web.ReadJSON(w, r, &req); err != nil {
			return nil, err
		}
		if _, err := catalog.LoRA(f.run.Options(), req.Model); err != nil {
			return nil, err
		}
		if req.Strs {
			return nil, fields.NotSimulated("return_token_strs")
		}
		if err := tokensLacks.Refuse(req.Rest); err != nil {
			return nil, err
		}
		if req.Prompt == nil {
			if fields.ValueOr(req.Special, false) {
				return nil, fields.NotSimulated("add_special_tokens")
			}
			return f.vocab.Chat(r.Context(), "", req.Messages, req.Offered(), req.TemplateKwargs)
		}
		ids, err := f.vocab.Encode(*req.Prompt, fields.ValueOr(req.Special, true))
		if err != nil {
			return nil, fields.AsInvalid("prompt", err)
		}
		return ids, nil
	}()
	if err != nil {
		web.WriteVLLMError(w, err)
		return
	}
	web.WriteJSON(w, http.StatusOK, struct {
		Count       int       `json:"count"`
		MaxModelLen int       `json:"max_model_len"`
		Tokens      []uint32  `json:"tokens"`
		TokenStrs   *[]string `json:"token_strs"`
	}{len(ids), f.run.Options().ContextLength, ids, nil})
}

func (f *Server) detokenize(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Model  string    `json:"model"`
		Tokens *[]uint32 `json:"tokens"`
	}
	text, err := func() (string, error) {
		if err := web.ReadJSON(w, r, &req); err != nil {
			return "", err
		}
		if _, err := catalog.LoRA(f.run.Options(), req.Model); err != nil {
			return "", err
		}
		if req.Tokens == nil {
			return "", infer.Invalid("tokens", "tokens is missing; send a list of token ids")
		}
		return f.vocab.Detokenize("tokens", *req.Tokens)
	}()
	if err != nil {
		web.WriteVLLMError(w, err)
		return
	}
	web.WriteJSON(w, http.StatusOK, map[string]string{"prompt": text})
}

// The fields of each request that are not simulated.
var (
	messagesLacks = fields.Unsimulated{"ec_transfer_params": "null", "watermarking": "false"}
	answersLacks  = fields.Unsimulated{
		"enable_response_messages": "false", "include_stop_str_in_output": "false", "logit_bias": "{}",
		"media_io_kwargs": "null", "mm_processor_kwargs": "null", "previous_input_messages": "null", "skip_special_tokens": "true",
		"ec_transfer_params": "null", "watermarking": "false",
	}
	samplingLacks = fields.Unsimulated{
		"allowed_token_ids": "null", "bad_words": "[]", "flat_logprobs": "false", "logit_bias": "{}", "logprob_token_ids": "null",
		"prompt_logprob_start": "null", "prompt_logprob_token_ids": "null", "repetition_detection": "null",
		"thinking_token_budget": "null", "trace_decode_token_ids": "null", "watermarking": "false",
	}
	generateLacks = fields.Unsimulated{
		"ec_transfer_params": "null", "reasoning_ended": "null", "reasoning_parser_kwargs": "null", "token_offsets": "null",
	}
	poolingLacks = fields.Unsimulated{
		"add_special_tokens": "true", "chat_template_kwargs": "null", "instruction": "null", "max_tokens_per_doc": "0",
		"max_tokens_per_query": "0", "messages": "null", "mm_processor_kwargs": "null", "padding": "null", "truncate_prompt_tokens": "null",
		"use_activation": "null",
	}
	embeddingsLacks = poolingLacks.And(fields.Unsimulated{"embed_dtype": `"float32"`, "endianness": `"native"`})
	tokensLacks     = fields.Unsimulated{
		"add_generation_prompt": "true", "chat_template": "null", "continue_final_message": "false",
		"media_io_kwargs": "null", "mm_processor_kwargs": "null",
	}
)
