package watch

import (
	"encoding/json"
	"io"
	"net/http"
)

// Handlers returns the pages of the operator's listener, by their patterns. The caller
// restricts access to them.
func (w *Watch) Handlers() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"GET /watch":           w.serveState,
		"GET /stalls":          w.serveStalls,
		"GET /profiles":        w.serveProfiles,
		"GET /profiles/{name}": w.serveProfile,
	}
}

func answer(w http.ResponseWriter, view any) {
	w.Header().Set("Content-Type", "application/json")
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	_ = out.Encode(view) // the reader is gone, and there is nobody to tell
}

func (w *Watch) serveState(to http.ResponseWriter, _ *http.Request) { answer(to, w.State()) }

func (w *Watch) serveStalls(to http.ResponseWriter, _ *http.Request) {
	latest, total := w.Stalls()
	answer(to, struct {
		ThresholdMS float64 `json:"threshold_ms"` // 0: none are looked for
		Total       int     `json:"total"`
		Keep        int     `json:"keep"`
		Stalls      []Stall `json:"stalls"`
	}{millis(w.o.StallThreshold), total, maxStalls, latest})
}

func (w *Watch) serveProfiles(to http.ResponseWriter, _ *http.Request) {
	type view struct {
		On       bool      `json:"on"`
		Underway string    `json:"underway,omitzero"` // who takes one now
		PerHour  int       `json:"per_hour,omitzero"` // of each trigger
		Taken    int       `json:"taken_last_hour"`
		Keep     int       `json:"keep,omitzero"`
		MaxBytes int64     `json:"max_bytes,omitzero"`
		Profiles []Profile `json:"profiles"`
	}
	p := w.o.Profiles
	if p == nil {
		answer(to, view{Profiles: []Profile{}})
		return
	}
	answer(to, view{true, p.o.Turn.Holder(), p.o.PerHour, p.takenLastHour(), p.o.Keep, p.o.MaxBytes, p.List()})
}

func (w *Watch) serveProfile(to http.ResponseWriter, r *http.Request) {
	p := w.o.Profiles
	if p == nil {
		http.Error(to, "no profiles are kept; start weir with --profiles-dir DIR", http.StatusNotFound)
		return
	}
	name := r.PathValue("name")
	file, err := p.Open(name)
	if err != nil {
		http.Error(to, "there is no such profile; /profiles lists them", http.StatusNotFound)
		return
	}
	defer file.Close()
	to.Header().Set("Content-Type", "application/octet-stream")
	to.Header().Set("Content-Disposition", `attachment; filename="`+name+`"`)
	_, _ = io.Copy(to, file) // the reader is gone, and there is nobody to tell
}
