// Package openai serves the OpenAI API of a simulated engine, as its owner documents it.
package openai

import (
	"net/http"

	"weir/internal/infer"
	"weir/internal/sim/simserver/catalog"
	"weir/internal/sim/simserver/completion"
	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/pool"
	"weir/internal/sim/simserver/vocab"
	"weir/internal/sim/simserver/web"
)

// Handler serves the OpenAI API, as its owner documents it.
func Handler(run *engine.Engine, v *vocab.Vocab) http.Handler {
	c, p := completion.New(run, v, nil, nil), pool.New(run.Options(), v, false, false)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", c.Handler(completion.Chat))
	mux.HandleFunc("POST /v1/completions", c.Handler(completion.Text))
	mux.HandleFunc("POST /v1/embeddings", p.Embeddings(web.WriteError, nil))
	mux.HandleFunc("GET /v1/models", catalog.Plain(run.Options(), "weir"))
	mux.HandleFunc("GET /v1/models/{model...}", catalog.One(run.Options(), "weir"))
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		web.WriteError(w, infer.Errorf(infer.CodeNotFound, "no %s %s here", r.Method, r.URL.Path))
	})
	return mux
}
