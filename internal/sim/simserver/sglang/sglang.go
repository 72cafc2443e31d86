// Package sglang serves the API of SGLang: /generate, the OpenAI API in its form, and its own paths.
package sglang

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/simserver/catalog"
	"weir/internal/sim/simserver/completion"
	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/exchange"
	"weir/internal/sim/simserver/fields"
	"weir/internal/sim/simserver/flags"
	"weir/internal/sim/simserver/pool"
	"weir/internal/sim/simserver/tally"
	"weir/internal/sim/simserver/vocab"
	"weir/internal/sim/simserver/web"
	"weir/internal/trace"
)

// Server serves SGLang's HTTP API.
type Server struct {
	run         *engine.Engine
	vocab       *vocab.Vocab
	flags       *flags.SGLang
	completions *completion.Server
	weights     string // of every meta_info: the weights, up to the retractions

	mu   sync.Mutex
	jobs map[string]*engine.Job // under way, by request id
}

// New makes a server of an engine in SGLang's form.
func New(run *engine.Engine, v *vocab.Vocab, o *flags.SGLang) *Server {
	return &Server{
		run: run, vocab: v, flags: o, completions: completion.New(run, v, o, nil), jobs: map[string]*engine.Job{},
		weights: `,"weight_version":` + web.Quote(o.WeightVersion) + `,"num_retractions":`,
	}
}

// Handler serves SGLang's paths.
func (f *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	both := func(path string, h http.HandlerFunc) {
		mux.HandleFunc("GET "+path, h)
		mux.HandleFunc("POST "+path, h)
	}
	mux.HandleFunc("POST /generate", f.generate)
	mux.HandleFunc("PUT /generate", f.generate)
	mux.HandleFunc("POST /v1/chat/completions", f.completion(completion.Chat))
	mux.HandleFunc("POST /v1/completions", f.completion(completion.Text))
	mux.HandleFunc("POST /v1/embeddings", f.pool().Embeddings(web.WriteSGLangError, embeddingsLacks))
	mux.HandleFunc("POST /v1/rerank", f.rerank)
	mux.HandleFunc("GET /v1/models", catalog.Full(f.run.Options(), "sglang"))
	mux.HandleFunc("GET /v1/models/{model...}", catalog.One(f.run.Options(), "sglang"))
	mux.HandleFunc("POST /v1/tokenize", f.tokenize)
	mux.HandleFunc("POST /v1/detokenize", f.detokenize)
	mux.HandleFunc("GET /health", f.health)
	mux.HandleFunc("GET /health_generate", f.health)
	for _, prefix := range []string{"/", "/get_"} {
		mux.HandleFunc("GET "+prefix+"server_info", f.serverInfo)
		mux.HandleFunc("GET "+prefix+"model_info", f.modelInfo)
	}
	mux.HandleFunc("GET /v1/loads", f.loads)
	mux.HandleFunc("GET /get_load", f.getLoad)
	mux.HandleFunc("POST /abort_request", f.abortRequest)
	both("/flush_cache", f.flushCache)
	if f.flags.Metrics {
		mux.Handle("GET /metrics", tally.Handler(f.metrics))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		web.WriteJSON(w, http.StatusNotFound, map[string]string{"detail": "Not Found"})
	})
	return mux
}

// pool serves what is answered without generating.
func (f *Server) pool() *pool.Pool { return pool.New(f.run.Options(), f.vocab, true, false) }

// register notes an exchange's outputs by their request ids, so that they can
// be aborted. One that is under way already is refused.
func (f *Server) register(x *exchange.Exchange) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range x.Outputs {
		name := x.Outputs[i].Name
		if _, twice := f.jobs[name]; twice {
			for k := range i {
				delete(f.jobs, x.Outputs[k].Name)
			}
			return infer.Errorf(infer.CodeInvalid, "Duplicate request ID detected: %s", name)
		}
		f.jobs[name] = &x.Outputs[i].Job
	}
	return nil
}

// forget is the end of register.
func (f *Server) forget(x *exchange.Exchange) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range x.Outputs {
		delete(f.jobs, x.Outputs[i].Name)
	}
}

// abortRequest aborts all requests whose id begins with the given one. Like SGLang it
// compares prefixes, so that conv-1 aborts conv-10 too. Unknown ids are no error.
func (f *Server) abortRequest(w http.ResponseWriter, r *http.Request) {
	var req struct {
		RID      string `json:"rid"`
		AbortAll bool   `json:"abort_all"`
	}
	if err := web.ReadJSON(w, r, &req); err != nil {
		web.WriteSGLangError(w, err)
		return
	}
	if req.RID == "" && !req.AbortAll {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for rid, j := range f.jobs {
		if req.AbortAll || strings.HasPrefix(rid, req.RID) {
			f.run.Abort(j)
		}
	}
}

// completion serves one dialect of completions.
func (f *Server) completion(d *completion.Dialect) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		begun := f.completions.Begin(w, r, d, r.Header.Get("X-Request-Id"), trace.Now())
		a := &begun
		refuse := func(err error) { web.WriteSGLangError(w, err) }
		requests, err := a.Accept()
		if err == nil {
			err = f.register(&a.Exchange)
		}
		if err != nil {
			f.run.Refused()
			refuse(err)
			return
		}
		defer f.forget(&a.Exchange)
		if !a.Delay(refuse) {
			f.run.Refused()
			return
		}
		defer a.Abandon()
		for i := range requests {
			err := a.Submit(&a.Outputs[i], requests[i])
			switch {
			case err == nil:
			case infer.AsError(err).Code != infer.CodeOverloaded:
				refuse(err)
				return
			case !a.Streamed:
				refuse(errQueueFull())
				return
			default:
				// It is found out when the stream has begun.
				a.Refused(&a.Outputs[i], errQueueFull())
			}
		}
		switch {
		case a.Streamed:
			web.EventStream(w, "text/event-stream; charset=utf-8")
			a.Exchange.Stream(a, false)
		case a.Whole(refuse):
			a.WriteWhole(a.WholeBody())
		}
	}
}

// Health checks generate a token, and look for an answer once a second.
const (
	healthStep  = time.Second
	healthBound = 20 * time.Second
)

// health runs a generation of one token and reports success when any output has come from
// the scheduler since. It looks only after a second, so it never answers sooner.
func (f *Server) health(w http.ResponseWriter, r *http.Request) {
	since := trace.Now()
	ctx, cancel := context.WithTimeout(r.Context(), healthBound)
	defer cancel()
	x := exchange.New(f.run, f.vocab, w, r.WithContext(ctx), "", since)
	x.Outputs = make([]exchange.Output, 0, 1)
	request, err := x.Add(exchange.Output{}, sim.Params{Prompt: []uint32{0}, MaxTokens: 1})
	if err != nil {
		web.WriteSGLangError(w, err)
		return
	}
	defer x.Abandon()
	// A full queue does not matter while it moves.
	_ = x.Submit(&x.Outputs[0], request)
	tick := time.NewTicker(healthStep)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		case <-f.run.Done():
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		x.Drop()
		if f.run.LastOutput() >= since {
			return
		}
	}
}

// The fields of each request that are not simulated.
var (
	generateLacks = fields.Unsimulated{
		"images_config": "null", "lora_id": "null", "max_dynamic_patch": "null", "max_thinking_tokens": "null", "min_dynamic_patch": "null",
		"image_max_dynamic_patch": "null", "video_max_dynamic_patch": "null", "mm_processor_kwargs": "null",
		"kv_hints": "null", "multi_item_delimiter_indices": "null", "positional_embed_overrides": "null", "require_reasoning": "false", "return_bytes": "false",
		"return_entropy": "false", "return_flat_raw_output_top_logprobs": "false", "return_flat_raw_top_logprobs": "false",
		"return_indexer_topk": "false", "return_sampling_mask": "false", "sampling_logprobs_mode": "null", "token_indices_to_pool": "null",
		"use_audio_in_video": "false", "video_config": "null", "watermark": "null",
	}
	embeddingsLacks = fields.Unsimulated{"embed_override_token_id": "null", "embed_overrides": "null", "lora_path": "null"}
	rerankLacks     = fields.Unsimulated{"instruct": "null"}
	tokensLacks     = fields.Unsimulated{"add_generation_prompt": "true", "add_special_tokens": "true", "continue_final_message": "false"}
	decodedLacks    = fields.Unsimulated{"skip_special_tokens": "true"}
)
