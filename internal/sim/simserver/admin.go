package simserver

import (
	"context"
	"net"
	"net/http"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/simserver/web"
)

// faultsBody is the body of the admin call's request and response.
type faultsBody struct {
	Faults []string `json:"faults"`
}

// AdminHandler serves the engine's introspection. GET /admin/state returns the State. POST
// /admin/faults replaces the faults by those of its body, {"faults":
// ["cut,after=20,rate=0.01"]}, and GET returns them and how often each took effect. GET
// /admin/aborts returns the latest Aborts, and GET /admin/media the media that the engine
// has Seen.
func (e *Engine) AdminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /admin/state", func(w http.ResponseWriter, _ *http.Request) {
		web.WriteJSON(w, http.StatusOK, e.State())
	})
	mux.HandleFunc("GET /admin/aborts", func(w http.ResponseWriter, _ *http.Request) {
		web.WriteJSON(w, http.StatusOK, e.Aborts())
	})
	mux.HandleFunc("GET /admin/media", func(w http.ResponseWriter, _ *http.Request) {
		web.WriteJSON(w, http.StatusOK, e.vocab.Seen())
	})
	mux.HandleFunc("GET /admin/faults", func(w http.ResponseWriter, _ *http.Request) {
		e.writeFaults(w)
	})
	mux.HandleFunc("POST /admin/faults", func(w http.ResponseWriter, r *http.Request) {
		if err := e.postFaults(w, r); err != nil {
			web.WriteError(w, err)
			return
		}
		e.writeFaults(w)
	})
	return mux
}

func (e *Engine) writeFaults(w http.ResponseWriter) {
	web.WriteJSON(w, http.StatusOK, struct {
		Faults []sim.Struck `json:"faults"`
	}{e.State().Faults})
}

func (e *Engine) postFaults(w http.ResponseWriter, r *http.Request) error {
	body, err := web.ReadBody(w, r)
	if err != nil {
		return err
	}
	var req faultsBody
	if err := web.Decode(body, &req); err != nil {
		return err
	}
	var list []sim.Fault
	for _, text := range req.Faults {
		f, err := sim.ParseFault(text)
		if err != nil {
			return infer.Invalid("faults", "%v", err)
		}
		list = append(list, f)
	}
	return e.SetFaults(list)
}

// ServeAdmin serves the admin calls alone, for an engine without an HTTP server,
// on l until ctx ends. Faults do not touch it.
func (e *Engine) ServeAdmin(ctx context.Context, l net.Listener) error {
	h := e.AdminHandler()
	if e.opts.Admin != nil {
		mux := http.NewServeMux()
		mux.Handle("/admin/", h)
		mux.Handle("/", e.opts.Admin)
		h = mux
	}
	return web.Serve(ctx, l, h)
}
