package gateway

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"weir/internal/dialect/responses"
	"weir/internal/gateway/front"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/internal/tenancy"
)

// exposed are the fields of weir's answers that a script may read beside those that it
// may always read.
const exposed = "X-Request-Id, Request-Id, Retry-After, " + reasonHeader + ", Server-Timing, " + prepare.IgnoredHeader

// Handler serves the API's paths.
func (g *Gateway) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", g.forCallers(g.listModels))
	mux.HandleFunc("GET /v1/models/{id...}", g.forCallers(g.getModel))
	mux.HandleFunc(responses.Path, g.handle) // not a redirect to the next
	for _, kept := range []string{"GET " + responses.Path + "/{rest...}", "DELETE " + responses.Path + "/{rest...}", "POST " + responses.Path + "/{id}/cancel"} {
		mux.HandleFunc(kept, g.forCallers(g.noAnswersKept))
	}
	mux.HandleFunc("/v1/", g.handle)
	mux.HandleFunc("/tokenize", g.handle)
	mux.HandleFunc("/detokenize", g.handle)
	for _, path := range g.opts.Prepare.Allow.Paths.More() {
		if !strings.HasPrefix(path, "/v1/") {
			mux.HandleFunc("POST "+path, g.handle)
		}
	}
	g.handleNative(mux)
	mux.HandleFunc("/", g.view(g.notFound))
	options := g.view(func(w http.ResponseWriter, r *http.Request) { g.options(w, r, mux) })
	return g.opts.Front.CORS.Handler(exposed, g.view, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodOptions:
			options(w, r)
		case g.known(r):
			g.handle(w, r)
		default:
			if r.ContentLength != 0 {
				front.DropBody(http.NewResponseController(w)) // mux answers some by itself; net/http reads their bodies
			}
			mux.ServeHTTP(w, r)
		}
	})
}

// known reports whether a request is to an engine, as nearly all are: then no mux has to go
// through its patterns.
func (g *Gateway) known(r *http.Request) bool {
	_, known := g.preparer.Services[r.URL.Path]
	return known && r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, "/v1/")
}

// view serves requests that do not go to an engine. They have an id too. They also need
// deadlines of their own, because a kept connection still has the deadline of its last
// response, and net/http reads the rest of a body that the handler has not read.
func (g *Gateway) view(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", requestID(r.Header.Get("X-Request-Id"), g.ids.request()))
		rc := http.NewResponseController(w)
		_ = rc.SetWriteDeadline(time.Now().Add(g.opts.Front.WriteTimeout)) // as in front.HTTPCarrier
		front.DropBody(rc)
		serve(w, r)
		g.refused.Add(1)
		defer g.refused.Add(-1)
		g.front.Drain(w, r)
	}
}

func (g *Gateway) notFound(w http.ResponseWriter, r *http.Request) {
	writeError(w, g.preparer.Endpoint(r.URL.Path), g.preparer.Services.NothingAt(r.URL.Path))
}

// noAnswersKept answers who asks for an answer of the past.
func (g *Gateway) noAnswersKept(w http.ResponseWriter, r *http.Request, _ *tenancy.Caller) {
	writeError(w, responses.Endpoint{}, responses.Stateless(r.URL.Path))
}

// options answers with the methods of a path.
func (g *Gateway) options(w http.ResponseWriter, r *http.Request, mux *http.ServeMux) {
	path := r.URL.Path
	if r.RequestURI == "*" { // the whole server
		w.Header().Set("Allow", front.Methods+", "+http.MethodOptions)
		w.WriteHeader(http.StatusNoContent)
		return
	}
	methods := slices.Clone(g.preparer.Services[path].Methods)
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete} {
		asks := &http.Request{Method: method, URL: r.URL, Host: r.Host}
		_, pattern := mux.Handler(asks)
		own := strings.HasPrefix(pattern, method+" ") || method == http.MethodPost && g.opts.Prepare.Allow.Paths.Has(path)
		if own && !slices.Contains(methods, method) {
			methods = append(methods, method)
		}
	}
	if len(methods) == 0 || g.preparer.Services.Meant(path) != "" {
		writeError(w, g.preparer.Endpoint(path), g.preparer.Services.NothingAt(path))
		return
	}
	w.Header().Set("Allow", strings.Join(append(methods, http.MethodOptions), ", "))
	w.WriteHeader(http.StatusNoContent)
}

// forCallers serves requests that do not go to an engine, of known callers only.
func (g *Gateway) forCallers(serve func(http.ResponseWriter, *http.Request, *tenancy.Caller)) http.HandlerFunc {
	return g.view(func(w http.ResponseWriter, r *http.Request) {
		c, err := g.preparer.Caller(r)
		if err != nil {
			writeError(w, g.preparer.Endpoint(r.URL.Path), infer.AsError(err))
			return
		}
		serve(w, r, c)
	})
}
