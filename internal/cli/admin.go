package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/pprof"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/integrity"
)

// adminHandler serves the operator's listener.
func (p *process) adminHandler(stopping context.Context) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", p.metrics.Handler())
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { p.ready(w, stopping) })
	mux.HandleFunc("GET /engines", p.engines)
	mux.HandleFunc("GET /timeline", p.follow)
	mux.HandleFunc("GET /timeline/{id}", p.request)
	mux.HandleFunc("GET /admin/integrity", p.integrityFailures)
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

// ready says whether requests should be sent here, and if not, why.
func (p *process) ready(w http.ResponseWriter, stopping context.Context) {
	if stopping.Err() != nil {
		http.Error(w, "shutting down", http.StatusServiceUnavailable)
		return
	}
	snap := p.fleet.Snapshot()
	ready := 0
	for _, e := range snap.Engines {
		if e.Ready {
			ready++
		}
	}
	if ready > 0 {
		fmt.Fprintf(w, "ready: %d of %d engines\n", ready, len(snap.Engines))
		return
	}
	w.WriteHeader(http.StatusServiceUnavailable)
	fmt.Fprintln(w, "no engine is ready")
	for _, e := range snap.Engines {
		fmt.Fprintf(w, "%s %s: %v\n", e.Kind, e.Name, e.Err)
	}
}

// engineView is an engine as /engines shows it.
type engineView struct {
	Name          string   `json:"name"`
	Kind          string   `json:"kind"`
	Ready         bool     `json:"ready"`
	Error         string   `json:"error,omitzero"`
	Note          string   `json:"note,omitzero"` // what could be better
	Models        []string `json:"models"`
	ContextLength int      `json:"context_length,omitzero"`
	MaxRunning    int      `json:"max_running,omitzero"`
	Software      string   `json:"software,omitzero"`
	Instance      string   `json:"instance,omitzero"`
	Carries       []string `json:"carries,omitzero"` // beyond what every engine of ids does
	Running       *int     `json:"running,omitzero"` // as the engine last said
	Waiting       *int     `json:"waiting,omitzero"`
	KVUsage       *float64 `json:"kv_usage,omitzero"`
}

func (p *process) engines(w http.ResponseWriter, _ *http.Request) {
	views := []engineView{}
	for _, e := range p.fleet.Snapshot().Engines {
		v := engineView{Name: e.Name, Kind: e.Kind, Ready: e.Ready, Note: e.Note, Models: e.Facts.Models,
			ContextLength: e.Facts.ContextLength, MaxRunning: e.Facts.MaxRunning,
			Software: e.Facts.Software, Instance: e.Facts.Instance, Carries: e.Facts.Carries.Words()}
		if e.Load != nil {
			if l, ok := e.Load(); ok {
				v.Running, v.Waiting = &l.Running, &l.Waiting
				if l.KVUsage >= 0 {
					v.KVUsage = &l.KVUsage
				}
			}
		}
		if e.Err != nil {
			v.Error = e.Err.Error()
		}
		views = append(views, v)
	}
	writeView(w, views)
}

// writeView answers with a value as JSON.
func writeView(w http.ResponseWriter, view any) {
	body, err := json.Marshal(view, jsontext.Multiline(true))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, "%s\n", body)
}

// integrityFailures shows what engines sent lately that does not add up, the
// latest first (docs/integrity.md).
func (p *process) integrityFailures(w http.ResponseWriter, _ *http.Request) {
	writeView(w, struct {
		Keep     int                `json:"keep"`
		Failures []integrity.Record `json:"failures"`
	}{integrity.Keep, p.integrity.Records()})
}

// follow streams the records of requests as they end, until the caller leaves.
func (p *process) follow(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/jsonl")
	out := bufio.NewWriterSize(w, 64<<10)
	control := http.NewResponseController(w)
	// The write fails when the caller is gone, and there is nobody to tell.
	_ = p.timeline.Follow(r.Context(), out, func() error {
		return errors.Join(out.Flush(), control.Flush())
	})
}

// request shows the record of a request that has ended, by its id.
func (p *process) request(w http.ResponseWriter, r *http.Request) {
	record, ok := p.timeline.Find(r.PathValue("id"))
	if !ok {
		http.Error(w, "no request with that id has ended lately; --timeline FILE keeps them all", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, "%s\n", record)
}
