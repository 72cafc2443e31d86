package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"weir/internal/config"
	"weir/internal/fleet/health"
	"weir/internal/fleet/route"
)

// changeRoutes are the paths of the admin listener that change the fleet. docs/admin.openapi.json
// describes them, and a test compares the two.
func (p *process) changeRoutes() map[string]http.HandlerFunc {
	c := p.changes
	return map[string]http.HandlerFunc{
		"GET /admin/fleet":          p.fleetView,
		"GET /admin/pending":        p.pendingPage,
		"GET /admin/engines/{name}": p.engineOf,
		"PUT /admin/engines/{name}": p.changing(func(r *http.Request) (edit, error) {
			var body struct {
				Spec    string   `json:"spec"`
				Weight  *float64 `json:"weight"`
				Drained *bool    `json:"drained"`
			}
			if err := readBody(r, &body); err != nil {
				return nil, err
			}
			if body.Spec == "" {
				return nil, refused(codeInvalid, `spec: want the engine as --engine has it, such as "openai=http://10.0.0.1:8000"`)
			}
			weight := 0.0
			if body.Weight != nil {
				if weight = *body.Weight; !(weight > 0 && weight <= 1) {
					return nil, refused(codeInvalid, "weight: want a share of the requests, above 0 and up to 1; to give it none, drain it")
				}
			}
			return put(r.PathValue("name"), body.Spec, r.Header.Get("If-None-Match") == "*", weight, body.Drained), nil
		}),
		"DELETE /admin/engines/{name}": p.changing(func(r *http.Request) (edit, error) {
			patience, force, err := drainQuery(r)
			return c.remove(r.PathValue("name"), patience, force), err
		}),
		"POST /admin/engines/{name}/drain": p.changing(func(r *http.Request) (edit, error) {
			patience, force, err := drainQuery(r)
			return c.drain(r.PathValue("name"), patience, force), err
		}),
		"POST /admin/engines/{name}/resume": p.changing(func(r *http.Request) (edit, error) { return resume(r.PathValue("name")), nil }),
		"PUT /admin/engines/{name}/weight": p.changing(func(r *http.Request) (edit, error) {
			var body struct {
				Weight *float64 `json:"weight"`
			}
			if err := readBody(r, &body); err != nil {
				return nil, err
			}
			if body.Weight == nil {
				return nil, refused(codeInvalid, "weight: it is missing; want a share of the requests, above 0 and up to 1")
			}
			return weigh(r.PathValue("name"), *body.Weight), nil
		}),
		"PUT /admin/models/{name}": p.changing(func(r *http.Request) (edit, error) {
			var body struct {
				Spec string `json:"spec"`
			}
			if err := readBody(r, &body); err != nil {
				return nil, err
			}
			return putModel(r.PathValue("name"), body.Spec), nil
		}),
		"DELETE /admin/models/{name}": p.changing(func(r *http.Request) (edit, error) { return removeModel(r.PathValue("name")), nil }),
		"POST /admin/reload":          p.reloads,
	}
}

// edit changes the desired fleet.
type edit = func(*wishes, *config.Desired) error

// maxChange bounds the body of a change.
const maxChange = 64 << 10

// readBody reads the JSON of a change. It refuses unknown members, so that a misspelled one
// is not taken for one that was left out.
func readBody(r *http.Request, to any) error {
	if kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); strings.TrimSpace(kind) != "application/json" {
		return refused(codeInvalid, "Content-Type: want application/json")
	}
	data, err := io.ReadAll(io.LimitReader(r.Body, maxChange+1))
	switch {
	case err != nil:
		return refused(codeInvalid, "the body cannot be read: %w", err)
	case len(data) > maxChange:
		return refused(codeInvalid, "the body is longer than %d bytes", maxChange)
	}
	if err := json.Unmarshal(data, to, json.RejectUnknownMembers(true)); err != nil {
		return refused(codeInvalid, "the body is not as docs/admin.openapi.json has it: %w", err)
	}
	return nil
}

// drainQuery reads the time that a drain may take, and whether the last engine may be
// drained.
func drainQuery(r *http.Request) (patience time.Duration, force bool, err error) {
	q := r.URL.Query()
	if v := q.Get("timeout"); v != "" {
		if patience, err = time.ParseDuration(v); err != nil || patience <= 0 {
			return 0, false, refused(codeInvalid, "timeout=%s: want a duration such as 90s", v)
		}
	}
	if v := q.Get("force"); v != "" {
		if force, err = strconv.ParseBool(v); err != nil {
			return 0, false, refused(codeInvalid, "force=%s: want true or false", v)
		}
	}
	return patience, force, nil
}

// changing handles a request for the change that of reads from it.
func (p *process) changing(of func(*http.Request) (edit, error)) http.HandlerFunc {
	return p.mayChange(func(w http.ResponseWriter, r *http.Request) {
		edit, err := of(r)
		if err != nil {
			writeRefusal(w, err)
			return
		}
		out, err := p.changes.change(func(w *wishes, now *config.Desired) error {
			if match := r.Header.Get("If-Match"); match != "" && match != "*" {
				if is := strconv.FormatUint(p.changes.generation.Load(), 10); strings.Trim(match, `"`) != is {
					return refused(codeStale, "the fleet is at generation %s, and If-Match says %s: read /admin/fleet again", is, match)
				}
			}
			return edit(w, now)
		})
		if err != nil {
			writeRefusal(w, err)
			return
		}
		writeOutcome(w, out)
	})
}

// reloads reads the configuration and the keys files again and then answers.
func (p *process) reloads(w http.ResponseWriter, r *http.Request) {
	p.mayChange(func(w http.ResponseWriter, _ *http.Request) {
		flags, files := p.sources != nil && p.sources.again != nil, len(p.keys.files()) > 0
		if !flags && !files {
			writeRefusal(w, refused(codeInvalid, "there is no configuration to be read again"))
			return
		}
		out := outcome{Generation: p.changes.generation.Load(), Steps: []config.Step{}}
		if flags {
			var err error
			if out, err = p.reread(); err != nil {
				writeRefusal(w, err)
				return
			}
		}
		if files {
			steps, notes := p.keys.reload(p.log, p.say)
			out.Steps, out.Notes = append(out.Steps, steps...), append(out.Notes, notes...)
		}
		writeOutcome(w, out)
	})(w, r)
}

// mayChange refuses callers that may not change the fleet. By default only callers on
// this machine may.
func (p *process) mayChange(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		switch {
		case p.admin.changes == "any":
		case p.admin.changes == "off":
			writeRefusal(w, refused(codeForbidden, "changes over the admin listener are off (--admin-changes)"))
			return
		case err != nil || !from.Addr().Unmap().IsLoopback():
			writeRefusal(w, refused(codeForbidden, "changes over the admin listener are taken from this machine only; --admin-changes any takes them from everybody who reaches it"))
			return
		}
		h(w, r)
	}
}

const codeForbidden = "forbidden"

// refusalStatus maps the codes of refusals to HTTP statuses.
var refusalStatus = map[string]int{
	codeInvalid: http.StatusBadRequest, codeForbidden: http.StatusForbidden, codeUnknown: http.StatusNotFound,
	codeConflict: http.StatusConflict, codeLast: http.StatusConflict, codeStale: http.StatusPreconditionFailed,
}

// refusalView is the body of the answer to a refused change.
type refusalView struct {
	Error struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// writeRefusal answers a change that is refused.
func writeRefusal(w http.ResponseWriter, err error) {
	code := codeOf(err)
	var view refusalView
	view.Error.Code, view.Error.Message = code, strings.ToValidUTF8(err.Error(), "?")
	body, _ := json.Marshal(view) // strings always marshal
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(refusalStatus[code])
	fmt.Fprintf(w, "%s\n", body)
}

func writeOutcome(w http.ResponseWriter, out outcome) {
	w.Header().Set("ETag", fmt.Sprintf("%q", strconv.FormatUint(out.Generation, 10)))
	writeView(w, out)
}

// wantedView is the desired and the actual state of an engine.
type wantedView struct {
	Name       string  `json:"name"`
	Spec       string  `json:"spec,omitzero"`
	Origin     string  `json:"origin,omitzero"` // flags, admin, file=PATH, resolve=HOST, kubernetes=WHAT
	Generation uint64  `json:"generation"`      // of the engine: no two engines of the same name share it
	State      string  `json:"state"`           // ready, down, draining, drained or leaving
	Weight     float64 `json:"weight"`
	InFlight   int64   `json:"in_flight"`
	Error      string  `json:"error,omitzero"`
}

// fleetViews is the desired and the actual state of the fleet.
type fleetViews struct {
	Generation uint64       `json:"generation"` // counts changes
	Engines    []wantedView `json:"engines"`
	Leaving    []wantedView `json:"leaving"` // removed engines with requests left
	Models     []modelView  `json:"models"`
	// Discovery is the state of each --discover.
	Discovery []discoveryView `json:"discovery,omitempty"`
}

type modelView struct {
	Name    string   `json:"name"`
	Dir     string   `json:"dir,omitzero"`
	Aliases []string `json:"aliases,omitzero"`
}

// views returns the view of the fleet.
func (p *process) views() fleetViews {
	p.changes.mu.Lock()
	wanted := p.changes.desired.ByName()
	snap := p.fleet.Snapshot()
	v := fleetViews{Generation: p.changes.generation.Load(), Engines: []wantedView{}, Leaving: []wantedView{}, Models: []modelView{}}
	models := p.changes.desired.Models
	p.changes.mu.Unlock()
	for _, e := range snap.Engines {
		of := viewOf(e)
		if w := wanted[e.Name]; w != nil {
			of.Spec, of.Origin = withoutUsers(w.Spec), w.Origin
		}
		v.Engines = append(v.Engines, of)
	}
	for _, e := range snap.Leaving {
		of := viewOf(e)
		of.State = "leaving"
		v.Leaving = append(v.Leaving, of)
	}
	for _, m := range models {
		v.Models = append(v.Models, modelView{m.Name, m.Dir, m.Aliases})
	}
	v.Discovery = p.discovered()
	return v
}

// viewOf returns the view of an engine without its specification.
func viewOf(e *route.Engine) wantedView {
	v := wantedView{Name: e.Name, Generation: e.Generation, Weight: 1, InFlight: inFlightAt(e)}
	if e.Weight != 0 {
		v.Weight = e.Weight
	}
	if e.Err != nil {
		v.Error = e.Err.Error()
	}
	v.State = drainWord(e)
	if v.State == "" {
		v.State = "down"
		if of, ok := e.Condition(); e.Ready && (!ok || of.State != health.Down) {
			v.State = "ready"
		}
	}
	return v
}

// drainWord returns the state of an engine's drain, or "" if it is not drained.
func drainWord(e *route.Engine) string {
	switch {
	case !e.Drained:
		return ""
	case inFlightAt(e) > 0:
		return "draining"
	}
	return "drained"
}

// inFlightAt returns the number of requests at an engine.
func inFlightAt(e *route.Engine) (n int64) {
	for _, r := range e.Ranks {
		open := int64(0)
		if r.Books != nil {
			open = r.Books.Rank.InFlight()
		}
		if r.Health != nil {
			open = max(open, int64(r.Health.View().Open))
		}
		n += open
	}
	return n
}

func (p *process) fleetView(w http.ResponseWriter, _ *http.Request) {
	v := p.views()
	w.Header().Set("ETag", fmt.Sprintf("%q", strconv.FormatUint(v.Generation, 10)))
	writeView(w, v)
}

// engineOf answers with the engine of a name, or with one of that name that leaves.
func (p *process) engineOf(w http.ResponseWriter, r *http.Request) {
	v, name := p.views(), r.PathValue("name")
	for _, e := range slices.Concat(v.Engines, v.Leaving) {
		if e.Name == name {
			writeView(w, e)
			return
		}
	}
	p.changes.mu.Lock()
	err := unknownEngine(&p.changes.desired, name)
	p.changes.mu.Unlock()
	writeRefusal(w, err)
}
