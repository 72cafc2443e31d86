package simserver

import (
	"context"
	"fmt"
	"net"
	"net/http"

	"weir/internal/infer"
	"weir/internal/sim/simserver/catalog"
	"weir/internal/sim/simserver/guard"
	"weir/internal/sim/simserver/web"
)

// ServeOpenAI serves the OpenAI API and the admin calls on l until ctx ends and every
// request has been answered or broken off. It closes l. The engine must have a Tokenizer.
func (e *Engine) ServeOpenAI(ctx context.Context, l net.Listener) error {
	if err := e.wantTokenizer(l, "openai"); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", e.completion(chatDialect, plain))
	mux.HandleFunc("POST /v1/completions", e.completion(textDialect, plain))
	mux.HandleFunc("POST /v1/embeddings", e.embeddings(plain, web.WriteError, nil))
	mux.HandleFunc("GET /v1/models", catalog.Plain(e.prepare, "weir"))
	mux.HandleFunc("GET /v1/models/{model...}", catalog.One(e.prepare, "weir"))
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.Handle("/admin/", e.AdminHandler())
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		web.WriteError(w, infer.Errorf(infer.CodeNotFound, "no %s %s here", r.Method, r.URL.Path))
	})
	return web.Serve(ctx, e.opts.Access.Secured(e.run.Listen(l)), guard.Paths(mux, e.opts.Access.VLLMKeys))
}

// wantTokenizer refuses to serve an engine without a tokenizer, and closes l.
func (e *Engine) wantTokenizer(l net.Listener, server string) error {
	if e.opts.Tokenizer != nil {
		return nil
	}
	l.Close()
	return fmt.Errorf("serve %s: the engine has no tokenizer", server)
}
