package gateway

import (
	"io"
	"net/http"
	"time"

	"weir/internal/dialect"
	"weir/internal/dialect/sglang"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/internal/tenancy"
)

// handleNative serves what clients and routers of SGLang's ask of a server beside
// /generate.
func (g *Gateway) handleNative(mux *http.ServeMux) {
	mux.HandleFunc(sglang.Path, g.handle)
	mux.HandleFunc("POST /abort_request", g.forCallers(g.abortRequest))
	for _, prefix := range []string{"GET /", "GET /get_"} {
		mux.HandleFunc(prefix+"model_info", g.forCallers(g.modelInfoOf))
		mux.HandleFunc(prefix+"server_info", g.forCallers(g.serverInfo))
	}
	mux.HandleFunc("GET /v1/loads", g.forCallers(g.loads))
	mux.HandleFunc("GET /health", g.view(g.health))
	mux.HandleFunc("GET /health_generate", g.view(g.health))
}

// native is SGLang's own endpoint, for errors.
func (g *Gateway) native() dialect.Endpoint { return g.preparer.Endpoint(sglang.Path) }

// software is the name of the server in answers to clients.
const software = "weir"

// modelInfoOf answers GET /model_info, of the model named by the query or else of
// the only one.
func (g *Gateway) modelInfoOf(w http.ResponseWriter, r *http.Request, c *tenancy.Caller) {
	snap := g.opts.Snapshot()
	name := r.URL.Query().Get("model")
	if models := prepare.Served(snap, c); name == "" && len(models) == 1 {
		name = models[0].Name
	} else if m := snap.Models[name]; m == nil || !m.Known() || !c.Uses(name, m.Name) {
		e := infer.Errorf(infer.CodeNotFound, "there is no model %q; %s", name, prepare.ServedModels(snap, c))
		if name == "" {
			e = infer.Invalid("model", "there is not one model here but %d; name one: %s?model=NAME; %s", len(models), r.URL.Path, prepare.ServedModels(snap, c))
		}
		e.Param = "model"
		writeError(w, g.native(), e)
		return
	}
	writeInfo(g, w, sglang.ModelInfo{ModelPath: name, TokenizerPath: name, IsGeneration: true})
}

func (g *Gateway) serverInfo(w http.ResponseWriter, _ *http.Request, c *tenancy.Caller) {
	snap := g.opts.Snapshot()
	info := sglang.ServerInfo{
		Version: software, Deterministic: true, Incremental: g.opts.Prepare.Generate.Incremental, StreamOutput: g.opts.Prepare.Generate.Incremental,
		DPSize: max(1, len(snap.Engines)), InternalStates: []sglang.EngineState{}, Models: []string{},
	}
	models := prepare.Served(snap, c)
	for _, m := range models {
		info.Models = append(info.Models, m.Name)
	}
	if len(models) == 1 {
		info.ModelPath, info.ServedModelName = models[0].Name, models[0].Name
		info.ContextLength = g.modelInfo(models[0].Name, models[0]).MaxModelLen
	}
	for i, e := range snap.Engines {
		info.InternalStates = append(info.InternalStates, sglang.EngineState{DPRank: i, Ready: e.Ready})
		info.MaxRunning += e.Facts.MaxRunning
	}
	writeInfo(g, w, info)
}

func (g *Gateway) loads(w http.ResponseWriter, _ *http.Request, _ *tenancy.Caller) {
	list := sglang.Loads{Timestamp: time.Now().UTC().Format(time.RFC3339Nano), Version: software, Loads: []sglang.Load{}}
	for i, e := range g.opts.Snapshot().Engines {
		if e.Load == nil {
			continue
		}
		if l, ok := e.Load(); ok {
			list.Loads = append(list.Loads, sglang.Load{DPRank: i, Running: l.Running, Waiting: l.Waiting,
				MaxRunning: e.Facts.MaxRunning, TokenUsage: max(0, l.KVUsage)})
		}
	}
	writeInfo(g, w, list)
}

// health reports whether any engine is ready. It does not send a request to engines,
// because a health check that generates is load.
func (g *Gateway) health(w http.ResponseWriter, _ *http.Request) {
	for _, e := range g.opts.Snapshot().Engines {
		if e.Ready {
			w.WriteHeader(http.StatusOK)
			return
		}
	}
	writeError(w, g.native(), infer.Errorf(infer.CodeUnavailable, "no engine is ready"))
}

func writeInfo[T sglang.ModelInfo | sglang.ServerInfo | sglang.Loads](g *Gateway, w http.ResponseWriter, info T) {
	body, err := sglang.Marshal(info)
	if err != nil {
		writeError(w, g.native(), infer.AsError(err))
		return
	}
	writeJSON(w, body)
}

// maxAbort bounds the body of /abort_request in bytes.
const maxAbort = 16 << 10

// abortRequest aborts the requests to /generate that were given an id. Like SGLang it
// does not return their number, because they may just have ended by themselves.
func (g *Gateway) abortRequest(w http.ResponseWriter, r *http.Request, c *tenancy.Caller) {
	if !g.opts.Prepare.AllowAbort {
		writeError(w, g.native(), infer.Errorf(infer.CodeNotFound, "/abort_request is off: whoever knows a rid could end another caller's request. Close the request's connection instead, which frees the engine; an operator who trusts all clients allows it with --allow-abort"))
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(g.opts.Front.BodyTimeout)) // as in readBody
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxAbort))
	if err != nil {
		writeError(w, g.native(), infer.Errorf(infer.CodeInvalid, "the body cannot be read, or is larger than %d bytes", maxAbort))
		return
	}
	a, err := sglang.ParseAbort(body)
	if err != nil {
		writeError(w, g.native(), infer.AsError(err))
		return
	}
	g.rids.abort(a.RID, c)
}
