// Package admin serves a simulated engine's introspection.
package admin

import (
	"net/http"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/vocab"
	"weir/internal/sim/simserver/web"
)

// Handler serves the paths below /admin/. GET /admin/state returns the State. POST
// /admin/faults replaces the faults by those of its body, {"faults":
// ["cut,after=20,rate=0.01"]}, and GET returns them and how often each took effect. GET
// /admin/aborts returns the latest Aborts, and GET /admin/media the media that the
// vocabulary has Seen.
func Handler(run *engine.Engine, v *vocab.Vocab) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /admin/state", func(w http.ResponseWriter, _ *http.Request) {
		web.WriteJSON(w, http.StatusOK, run.State())
	})
	mux.HandleFunc("GET /admin/aborts", func(w http.ResponseWriter, _ *http.Request) {
		web.WriteJSON(w, http.StatusOK, run.Aborts())
	})
	mux.HandleFunc("GET /admin/media", func(w http.ResponseWriter, _ *http.Request) {
		web.WriteJSON(w, http.StatusOK, v.Seen())
	})
	mux.HandleFunc("GET /admin/faults", func(w http.ResponseWriter, _ *http.Request) {
		writeFaults(w, run)
	})
	mux.HandleFunc("POST /admin/faults", func(w http.ResponseWriter, r *http.Request) {
		list, err := readFaults(w, r)
		if err == nil {
			err = run.SetFaults(list)
		}
		if err != nil {
			web.WriteError(w, err)
			return
		}
		writeFaults(w, run)
	})
	return mux
}

// writeFaults answers with the faults, and how often each took effect.
func writeFaults(w http.ResponseWriter, run *engine.Engine) {
	web.WriteJSON(w, http.StatusOK, struct {
		Faults []sim.Struck `json:"faults"`
	}{run.State().Faults})
}

// readFaults reads the faults of a request.
func readFaults(w http.ResponseWriter, r *http.Request) (list []sim.Fault, err error) {
	var req struct {
		Faults []string `json:"faults"`
	}
	if err := web.Read(w, r, &req); err != nil {
		return nil, err
	}
	for _, text := range req.Faults {
		f, err := sim.ParseFault(text)
		if err != nil {
			return nil, infer.Invalid("faults", "%v", err)
		}
		list = append(list, f)
	}
	return list, nil
}
