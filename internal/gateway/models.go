package gateway

import (
	"net/http"
	"strconv"

	"weir/internal/dialect/openai"
	"weir/internal/fleet/route"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/internal/model"
	"weir/internal/tenancy"
)

// listModels answers GET /v1/models with every name that the caller can ask for.
func (g *Gateway) listModels(w http.ResponseWriter, _ *http.Request, c *tenancy.Caller) {
	snap := g.opts.Snapshot()
	var list []openai.ModelInfo
	for _, name := range snap.Names() {
		if m := snap.Models[name]; len(m.Targets) > 0 && c.Uses(name, m.Name) {
			list = append(list, g.modelInfo(name, m))
		}
	}
	writeJSON(w, openai.AppendModels(nil, list))
}

// getModel answers GET /v1/models/{id}; an id may contain slashes.
func (g *Gateway) getModel(w http.ResponseWriter, r *http.Request, c *tenancy.Caller) {
	snap := g.opts.Snapshot()
	name := r.PathValue("id")
	if name == "" {
		writeError(w, openai.Other, g.preparer.Services.NothingAt(r.URL.Path))
		return
	}
	m := snap.Models[name]
	if m == nil || !c.Uses(name, m.Name) {
		e := infer.Errorf(infer.CodeNotFound, "there is no model %q; %s", name, prepare.ServedModels(snap, c))
		e.Param = "model"
		writeError(w, openai.Other, e)
		return
	}
	writeJSON(w, openai.AppendModel(nil, g.modelInfo(name, m)))
}

func (g *Gateway) modelInfo(name string, m *route.Model) openai.ModelInfo {
	info := openai.ModelInfo{ID: name, Created: g.started, OwnedBy: "weir", MaxModelLen: m.ContextLength, Parent: m.Base}
	if folder := g.preparer.Folder(m); info.MaxModelLen == 0 && folder != nil {
		info.MaxModelLen = folder.ContextLength
	}
	return info
}

// Folder returns the model folder of a model; nil: it is not known.
func (g *Gateway) Folder(m *route.Model) *model.Folder { return g.preparer.Folder(m) }

func writeJSON(w http.ResponseWriter, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // the client may be gone, and then no client is left to report it to
}
