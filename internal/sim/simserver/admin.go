package simserver

import (
	"net/http"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/vocab"
	"weir/internal/sim/simserver/web"
)

// faultsBody is the body of the admin call's request and response.
type faultsBody struct {
	Faults []string `json:"faults"`
}

// admin serves the engine's introspection. GET /admin/state returns the State. POST
// /admin/faults replaces the faults by those of its body, {"faults":
// ["cut,after=20,rate=0.01"]}, and GET returns them and how often each took effect. GET
// /admin/aborts returns the latest Aborts, and GET /admin/media the media that the engine
// has Seen.
type admin struct {
	run   *engine.Engine
	vocab *vocab.Vocab
}

// handler serves the paths below /admin/.
func (a *admin) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /admin/state", func(w http.ResponseWriter, _ *http.Request) {
		web.WriteJSON(w, http.StatusOK, a.run.State())
	})
	mux.HandleFunc("GET /admin/aborts", func(w http.ResponseWriter, _ *http.Request) {
		web.WriteJSON(w, http.StatusOK, a.run.Aborts())
	})
	mux.HandleFunc("GET /admin/media", func(w http.ResponseWriter, _ *http.Request) {
		web.WriteJSON(w, http.StatusOK, a.vocab.Seen())
	})
	mux.HandleFunc("GET /admin/faults", func(w http.ResponseWriter, _ *http.Request) {
		a.writeFaults(w)
	})
	mux.HandleFunc("POST /admin/faults", func(w http.ResponseWriter, r *http.Request) {
		if err := a.postFaults(w, r); err != nil {
			web.WriteError(w, err)
			return
		}
		a.writeFaults(w)
	})
	return mux
}

func (a *admin) writeFaults(w http.ResponseWriter) {
	web.WriteJSON(w, http.StatusOK, struct {
		Faults []sim.Struck `json:"faults"`
	}{a.run.State().Faults})
}

func (a *admin) postFaults(w http.ResponseWriter, r *http.Request) error {
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
	return a.run.SetFaults(list)
}
