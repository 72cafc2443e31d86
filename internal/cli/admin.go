package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/config"
	"weir/internal/engine"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/health"
	"weir/internal/fleet/kvevents"
	"weir/internal/fleet/route"
	"weir/internal/infer"
	"weir/internal/infer/spell"
	"weir/internal/observe/integrity"
	"weir/internal/observe/metrics"
	"weir/internal/observe/page"
	"weir/internal/observe/timeline"
	"weir/internal/trace"
)

// adminPatience bounds the reading of a request, and each write of an answer.
const adminPatience = 30 * time.Second

// adminServer serves the operator's listener.
func (p *process) adminServer(stopping context.Context) *http.Server {
	h := p.adminHandler(stopping)
	bounded := func(w http.ResponseWriter, r *http.Request) {
		setDeadlines(w, adminPatience) // also of what mux and guards answer: net/http reads the bodies of those requests
		h.ServeHTTP(w, r)
	}
	return &http.Server{Handler: http.HandlerFunc(bounded), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10, DisableGeneralOptionsHandler: true}
}

// adminHandler returns its handler.
func (p *process) adminHandler(stopping context.Context) http.Handler {
	mux := http.NewServeMux()
	var paths []string
	handle := func(pattern string, h http.HandlerFunc) {
		served := http.Handler(h)
		if !openPath(pattern, page.Patterns) {
			served = p.keys.guard(served)
		}
		mux.Handle(pattern, p.admin.hosts.known(own(served)))
		if _, path, ok := strings.Cut(pattern, " "); ok {
			paths = append(paths, path)
		}
	}
	routes := p.adminRoutes(stopping)
	for _, pattern := range slices.Sorted(maps.Keys(routes)) {
		handle(pattern, routes[pattern])
	}
	handle(followPattern, p.follow)
	handle("/", func(w http.ResponseWriter, r *http.Request) { nothingAt(w, r, paths) })
	if !p.admin.pprof {
		handle("/debug/pprof/", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "profiles are off; start weir with --pprof", http.StatusNotFound)
		})
		return mux
	}
	for pattern, h := range map[string]http.HandlerFunc{
		"/debug/pprof/": pprof.Index, "/debug/pprof/cmdline": pprof.Cmdline, "/debug/pprof/profile": p.self.alone(pprof.Profile),
		"/debug/pprof/symbol": pprof.Symbol, "/debug/pprof/trace": p.self.alone(pprof.Trace),
	} {
		handle(pattern, func(w http.ResponseWriter, r *http.Request) {
			seconds, _ := strconv.Atoi(r.FormValue("seconds")) // pprof itself refuses what is no number
			setDeadlines(w, adminPatience+time.Duration(max(seconds, 30))*time.Second)
			h(w, r)
		})
	}
	return mux
}

// followPattern is the pattern of the route whose answer has no end.
const followPattern = "GET /timeline"

// adminRoutes returns the handlers of the admin listener that answer in one go, by the patterns
// of http.ServeMux. Go's profiles are not among them.
func (p *process) adminRoutes(stopping context.Context) map[string]http.HandlerFunc {
	routes := map[string]http.HandlerFunc{
		"GET /metrics":         p.metrics.Handler().ServeHTTP,
		"GET /healthz":         func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") },
		"GET /readyz":          func(w http.ResponseWriter, _ *http.Request) { p.ready(w, stopping) },
		"GET /engines":         p.engines,
		"GET /live":            p.live,
		"GET /peers":           p.peers,
		"GET /config":          func(w http.ResponseWriter, _ *http.Request) { writeView(w, p.inForce()) },
		"GET /timeline/{id}":   p.request,
		"GET /requests":        p.requests,
		"GET /records":         p.records,
		"GET /stages":          p.stages,
		"GET /admin/integrity": p.integrityFailures,
		"POST /admin/why":      p.why,
	}
	for _, pattern := range page.Patterns {
		routes[pattern] = page.Serve
	}
	maps.Copy(routes, p.self.Handlers())
	maps.Copy(routes, p.limitRoutes())
	if p.changes != nil {
		maps.Copy(routes, p.changeRoutes())
	}
	return routes
}

// nothingAt answers that a path does not exist, and lists those that do.
func nothingAt(w http.ResponseWriter, r *http.Request, paths []string) {
	if slices.Contains(paths, r.URL.Path) {
		http.Error(w, fmt.Sprintf("%s does not take %s", r.URL.Path, r.Method), http.StatusMethodNotAllowed)
		return
	}
	near := ""
	if r.URL.Path == "/timeline/" {
		near = "; /timeline/ID is the record of one request, and /timeline follows all of them as they end"
	} else if said := spell.Nearest(r.URL.Path, paths, 1+len(r.URL.Path)/4); said != "" {
		near = "; did you mean " + said + "?"
	}
	http.Error(w, fmt.Sprintf("there is nothing at %s%s", r.URL.Path, near), http.StatusNotFound)
}

// setDeadlines sets the deadline of reading a request to its end and of writing its
// answer. Connections of net/http's own always take one.
func setDeadlines(w http.ResponseWriter, within time.Duration) {
	control, at := http.NewResponseController(w), time.Now().Add(within)
	_ = errors.Join(control.SetReadDeadline(at), control.SetWriteDeadline(at))
}

// names are those by which an admin listener is reached, beyond IP addresses and localhost.
type names []string

// known refuses requests to names that are not the listener's. A web page may point its
// own name to an address of this machine. The browser of its reader would then let the
// page read the answers.
func (p names) known(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if host := hostOf(r.Host); !p.reachedBy(host) {
			http.Error(w, fmt.Sprintf("the admin listener is not known by the name %q; if that is its name, start weir with --admin-host %s", host, host), http.StatusMisdirectedRequest)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// own refuses requests that a browser sends for a page of another site. That page could not
// read the answers, but weir would compute them, including profiles of minutes. Links from
// other sites are allowed, except those to profiles.
func own(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if foreign(r) {
			http.Error(w, "the admin listener answers no pages of other sites", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// foreign reports whether a page of another site causes a request. Browsers mark requests to
// this machine or over TLS. For other requests they name at least the origin of a page that
// posts, or that wants to read the answer.
func foreign(r *http.Request) bool {
	if origin := r.Header.Get("Origin"); origin != "" {
		u, err := url.Parse(origin)
		return err != nil || !strings.EqualFold(u.Host, r.Host)
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return false
	}
	follows := r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
	return !follows || strings.HasPrefix(r.URL.Path, "/debug/")
}

// hostOf is a Host without its port.
func hostOf(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.TrimSuffix(strings.Trim(host, "[]"), ".")
}

// reachedBy reports whether host is a name of the admin listener. An IP address is one, since
// no page can have it as its own name. Only clients older than HTTP/1.1 send no host.
func (p names) reachedBy(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil || host == "" {
		return true
	}
	return config.IsLocalhost(host) || slices.ContainsFunc(p, func(name string) bool { return strings.EqualFold(name, host) })
}

// ready reports whether requests should be sent here, and if not, why.
func (p *process) ready(w http.ResponseWriter, stopping context.Context) {
	if stopping.Err() != nil {
		http.Error(w, "shutting down", http.StatusServiceUnavailable)
		return
	}
	snap := p.fleet.Snapshot()
	ready := 0
	for _, e := range snap.Engines {
		if e.Ready && !e.Drained {
			ready++
		}
	}
	if ready > 0 {
		fmt.Fprintf(w, "ready: %d of %d engines\n", ready, len(snap.Engines))
		return
	}
	w.WriteHeader(http.StatusServiceUnavailable)
	fmt.Fprintln(w, "no engine is ready")
	for _, d := range p.discovered() {
		switch {
		case d.Error != "":
			fmt.Fprintf(w, "%s: %s\n", d.Source, d.Error)
		case !d.Complete:
			fmt.Fprintf(w, "%s: the API server has not been read yet\n", d.Source)
		case d.Engines == 0:
			fmt.Fprintf(w, "%s: there are no engines\n", d.Source)
		}
	}
	for _, e := range snap.Engines {
		if e.Ready {
			fmt.Fprintf(w, "%s %s: it is drained\n", e.Kind, e.Name)
			continue
		}
		fmt.Fprintf(w, "%s %s: %v\n", e.Kind, e.Name, e.Err)
	}
}

// engineView is an engine as /engines shows it.
type engineView struct {
	Name          string   `json:"name"`
	Kind          string   `json:"kind"`
	Role          string   `json:"role,omitzero"`  // prefill or decode; otherwise it serves requests whole
	Meets         *meets   `json:"meets,omitzero"` // how its halves of requests meet the others
	Ready         bool     `json:"ready"`
	Drain         string   `json:"drain,omitzero"`  // drained, or draining while it has requests
	Weight        float64  `json:"weight,omitzero"` // the share of its models' requests that it may be given, where that is not all
	Error         string   `json:"error,omitzero"`
	Note          string   `json:"note,omitzero"` // what could be better
	Models        []string `json:"models"`
	ContextLength int      `json:"context_length,omitzero"`
	MaxRunning    int      `json:"max_running,omitzero"`
	Software      string   `json:"software,omitzero"`
	Instance      string   `json:"instance,omitzero"`
	Carries       []string `json:"carries,omitzero"`          // beyond what every engine of ids does
	Lacks         []lack   `json:"lacks,omitzero"`            // of what engines of its kind carry
	Verifies      string   `json:"verifies,omitzero"`         // of a relayed engine: what is verified by its ids
	Verified      *int     `json:"streams_verified,omitzero"` // relayed streams that ended whole, and of them those that were not verified
	Unverified    *int     `json:"streams_unverified,omitzero"`
	Running       *int     `json:"running,omitzero"` // as the engine last said
	Waiting       *int     `json:"waiting,omitzero"`
	KVUsage       *float64 `json:"kv_usage,omitzero"`
	KVTokens      int      `json:"kv_tokens,omitzero"`
	Books         *books   `json:"books,omitzero"`
	Health        *state   `json:"health,omitzero"` // of its best rank
	KVEvents      *events  `json:"kv_events,omitzero"`
	Old           []old    `json:"old,omitzero"` // pages that could not be read lately
	// Templates are, by model, what its chat template does not take as it comes, and what becomes of it.
	Templates map[string]map[string]string `json:"templates,omitzero"`
	// Ranks are those of data parallelism that the engine's wire names.
	Ranks []rankView `json:"ranks,omitzero"`
}

// old is a page of an engine that could be read before and cannot be read now. What it states is as it
// was then.
type old struct {
	Page string  `json:"page"` // all: none can be read
	For  float64 `json:"for_seconds"`
	Why  string  `json:"why"`
}

// oldOf returns the views of an engine's pages that could not be read lately.
func oldOf(e *route.Engine) (views []old) {
	for _, o := range e.Facts.Old {
		views = append(views, old{o.Page, seconds(trace.Now() - o.Since), o.Why})
	}
	return views
}

// meets is how an engine's halves of requests meet the others, and where, of a prefill engine.
type meets struct {
	Way      string `json:"way"`
	At       string `json:"at,omitzero"`
	EngineID string `json:"engine_id,omitzero"`
	Whole    bool   `json:"whole"` // it serves whole requests too
}

// halvesView puts an engine's part in requests into its view.
func (v *engineView) halvesView(e *route.Engine) {
	if e.Role == infer.RoleBoth {
		return
	}
	v.Role = e.Role.String()
	if e.Meets.Way == engine.Nowhere {
		return
	}
	v.Meets = &meets{Way: e.Meets.Way.String(), EngineID: e.Meets.EngineID, Whole: e.Alone()}
	if e.Role == infer.RolePrefill && e.Meets.Port != 0 {
		v.Meets.At = net.JoinHostPort(e.Meets.Host, strconv.Itoa(e.Meets.Port))
	}
}

// rankView is one of an engine's ranks.
type rankView struct {
	Rank   int    `json:"rank"`
	Ready  bool   `json:"ready"`
	Books  *books `json:"books,omitzero"`
	Health *state `json:"health,omitzero"`

	KVEvents *events `json:"kv_events,omitzero"`
	Running  *int    `json:"running,omitzero"` // as the rank last said
	Waiting  *int    `json:"waiting,omitzero"`
	Behind   float64 `json:"report_behind_seconds,omitzero"` // how much older that is than another rank's word
}

// events are what an engine publishes of its KV cache (docs/kv-events.md), since it
// joined.
type events struct {
	Knowledge   string `json:"knowledge"`
	Error       string `json:"error,omitzero"`
	Blocks      int64  `json:"blocks"`
	BlockTokens int    `json:"block_tokens,omitzero"`
	Batches     uint64 `json:"batches"`
	Events      uint64 `json:"events"`
	Ignored     uint64 `json:"ignored"`
	// Odd are those of them that were passed over because of what they are.
	Odd       map[string]uint64 `json:"odd,omitzero"`
	Strange   uint64            `json:"strange"`
	Bad       uint64            `json:"bad"`
	Gaps      uint64            `json:"gaps"`
	Past      uint64            `json:"past"`
	Replays   uint64            `json:"replays"`
	Rebuilds  uint64            `json:"rebuilds"`
	Overflows uint64            `json:"overflows"`
}

// eventsOf returns the view of the events of ranks, or nil if they publish none. For
// several ranks it shows the state of the one that is known least.
func eventsOf(of ...*route.Events) *events {
	if len(of) == 0 {
		return nil
	}
	var s kvevents.Stats
	least, v := kvevents.Known, &events{}
	for _, e := range of {
		s.Add(e.Rank.Stats())
		least = min(least, e.Rank.Knowledge())
		if err := e.Err(); err != nil {
			v.Error = err.Error()
		}
	}
	v.Knowledge, v.Blocks, v.BlockTokens, v.Batches, v.Events, v.Ignored = least.String(), s.Blocks, s.BlockTokens, s.Batches, s.Events, s.Ignored
	for kind, n := range s.Odd {
		if n > 0 {
			if v.Odd == nil {
				v.Odd = map[string]uint64{}
			}
			v.Odd[kvevents.Odd(kind).String()] = n
		}
	}
	v.Strange, v.Bad, v.Gaps, v.Past, v.Replays, v.Rebuilds, v.Overflows = s.Strange, s.Bad, s.Gaps, s.Past, s.Replays, s.Rebuilds, s.Overflows
	return v
}

// books are the figures by which an engine is chosen (docs/routing.md). Times are in
// milliseconds.
type books struct {
	InFlight     int64         `json:"in_flight"`
	Others       int64         `json:"others_in_flight,omitzero"`  // of other gateways (docs/peers.md)
	Prefills     int64         `json:"inflight_prefills,omitzero"` // prefill halves of requests
	Decoding     int64         `json:"running_decodes,omitzero"`
	WaitMS       float64       `json:"booked_wait_ms"`
	UnseenMS     float64       `json:"unseen_wait_ms"` // besides, for work of others
	Prefill      int64         `json:"booked_prefill_tokens"`
	Observations int           `json:"observations"`
	Learned      bool          `json:"learned"` // from enough observations to be believed
	Coefficients []coefficient `json:"coefficients"`
	// Shares of the prompts' tokens that were in its KV cache. A share is missing if there
	// were no requests, or if the engine did not report it for any.
	Predicted *float64 `json:"cached_share_predicted,omitzero"`
	Reported  *float64 `json:"cached_share_reported,omitzero"`
}

// coefficient is one of those of a step's time.
type coefficient struct {
	Name  string  `json:"name"`
	MS    float64 `json:"ms"`
	Error float64 `json:"standard_error_ms"`
}

// booksOf returns the view of the books of all ranks together, or nil if there are none.
func booksOf(of ...*route.Books) *books {
	if len(of) == 0 {
		return nil
	}
	now := trace.Now()
	sum := route.Sum(of, now)
	b := sum.Best
	c, seen := b.Rank.Coefficients()
	e := b.Rank.Errors()
	idle := b.Rank.Estimate(now, cost.Work{Length: 1, New: 1, Output: 1})
	v := &books{
		InFlight: sum.InFlight, Others: sum.Others, Prefills: sum.Prefills, Decoding: sum.Decoding, WaitMS: sum.Wait, UnseenMS: sum.Unseen, Prefill: sum.Pending, Observations: seen, Learned: !idle.Cold,
		Coefficients: []coefficient{{"step", c.Step, e.Step}, {"token", c.Token, e.Token}, {"pair", c.Pair, e.Pair}, {"decode", c.Decode, e.Decode}, {"decoder", c.Decoder, e.Decoder}},
	}
	share := func(part, whole int64) *float64 {
		if whole == 0 {
			return nil
		}
		return new(float64(part) / float64(whole))
	}
	v.Predicted = share(b.Shares.Predicted.Load(), b.Shares.Given.Load())
	v.Reported = share(b.Shares.Reported.Load(), b.Shares.Told.Load())
	return v
}

// state is a rank's health. Times are seconds.
type state struct {
	State    string  `json:"state"`
	For      float64 `json:"for_seconds"`
	Why      string  `json:"why,omitzero"`
	Cause    string  `json:"cause,omitzero"` // silence, starts, transport or faults; not of what is up
	Takes    string  `json:"takes"`          // requests: freely, otherwise (what no other takes so), at last, never
	Open     int     `json:"requests"`
	Silence  float64 `json:"silence_seconds"` // for which it has owed progress
	Ejected  int     `json:"ejections,omitzero"`
	FreshMax *int    `json:"limit,omitzero"`         // of requests, after its return
	Rests    float64 `json:"rests_seconds,omitzero"` // for which it has asked not to be asked
}

func stateOf(v health.View, rests time.Duration) *state {
	s := &state{State: v.State.String(), For: seconds(trace.Now() - v.Since), Why: v.Why, Cause: v.Cause, Takes: v.Takes.String(),
		Open: v.Open, Silence: seconds(int64(v.Silence)), Ejected: v.Ejections, Rests: seconds(int64(rests))}
	if v.Limit >= 0 {
		s.FreshMax = &v.Limit
	}
	return s
}

// ranksOf returns the views of an engine's ranks, where its wire names any.
func ranksOf(e *route.Engine) (views []rankView) {
	var load engine.Load
	if e.Load != nil {
		load, _ = e.Load()
	}
	for _, r := range e.Ranks {
		if r.Number < 0 {
			continue
		}
		v := rankView{Rank: r.Number, Ready: e.Ready && r.There}
		if r.Books != nil {
			v.Books = booksOf(r.Books)
			if of := r.Books.Events(); of != nil {
				v.KVEvents = eventsOf(of)
			}
		}
		for _, l := range load.Ranks {
			if l.Rank == r.Number {
				v.Running, v.Waiting, v.Behind = &l.Running, &l.Waiting, seconds(int64(l.Behind))
			}
		}
		if v.Ready && r.Health != nil {
			v.Health = stateOf(r.Health.View(), r.Health.Rests(trace.Now()))
		}
		views = append(views, v)
	}
	return views
}

// restsOf returns the time until the first rank of an engine that asked for a pause takes
// requests again, or 0 if one takes them now.
func restsOf(e *route.Engine) (least time.Duration) {
	for i, r := range e.Ranks {
		if d := r.Health.Rests(trace.Now()); i == 0 || d < least {
			least = d
		}
	}
	return least
}

// seconds are rounded to milliseconds.
func seconds(ns int64) float64 { return math.Round(float64(ns)/1e6) / 1e3 }

// lack is what an engine does not carry and why.
type lack struct {
	What []string `json:"what"`
	Why  string   `json:"why"`
}

func (p *process) engines(w http.ResponseWriter, _ *http.Request) {
	views := []engineView{}
	snapshot := p.fleet.Snapshot()
	for _, e := range snapshot.Engines {
		v := engineView{Name: e.Name, Kind: e.Kind, Ready: e.Ready, Note: e.Note, Models: e.Facts.Models,
			ContextLength: e.Facts.ContextLength, MaxRunning: e.Facts.MaxRunning,
			Software: e.Facts.Software, Instance: e.Facts.Instance, Carries: (e.Facts.Carries &^ infer.CarriesUsual).Words()}
		for _, l := range e.Facts.Lacks {
			v.Lacks = append(v.Lacks, lack{l.What.Words(), l.Why})
		}
		v.Drain, v.Weight = drainWord(e), e.Weight
		v.halvesView(e)
		v.KVTokens = e.Facts.KVTokens
		v.Books, v.KVEvents = booksOf(e.AllBooks()...), eventsOf(e.Events()...)
		if e.Load != nil {
			if l, ok := e.Load(); ok {
				v.Running, v.Waiting = &l.Running, &l.Waiting
				if l.KVUsage >= 0 {
					v.KVUsage = &l.KVUsage
				}
			}
		}
		if e.Relay != nil {
			verified, not := p.metrics.RelayStreams(e.Name)
			v.Verifies, v.Verified, v.Unverified = e.Facts.Verify.String(), &verified, &not
		}
		if e.Err != nil {
			v.Error = e.Err.Error()
		}
		if of, ok := e.Condition(); ok {
			v.Health = stateOf(of, restsOf(e))
		}
		v.Ranks, v.Old = ranksOf(e), oldOf(e)
		v.Templates = p.templatesOf(snapshot, e.Facts.Models)
		views = append(views, v)
	}
	writeView(w, views)
}

// templatesOf returns what the chat templates of models do not take as it comes.
func (p *process) templatesOf(s *route.Snapshot, names []string) (all map[string]map[string]string) {
	for _, name := range names {
		m := s.Models[name]
		if m == nil {
			continue
		}
		folder := p.gateway.Folder(m)
		if folder == nil {
			continue
		}
		for _, r := range folder.Takes() {
			if r.Plain {
				continue
			}
			if all == nil {
				all = map[string]map[string]string{}
			}
			if all[name] == nil {
				all[name] = map[string]string{}
			}
			all[name][r.Of] = r.How
		}
	}
	return all
}

// live shows the counts so far; a client that asks again computes the differences.
func (p *process) live(w http.ResponseWriter, _ *http.Request) {
	now := time.Now()
	writeView(w, struct {
		Version string    `json:"version"`
		Wall    time.Time `json:"wall_time"`
		Uptime  float64   `json:"uptime_seconds"`
		metrics.Live
	}{p.settings.Version, now.UTC(), math.Round(1e3*now.Sub(p.started).Seconds()) / 1e3, p.metrics.Live()})
}

// writeView answers with a value as JSON.
func writeView(w http.ResponseWriter, view any) {
	// Names from clients and engines may contain anything.
	body, err := json.Marshal(view, jsontext.Multiline(true), jsontext.AllowInvalidUTF8(true))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, "%s\n", body)
}

// integrityFailures shows the latest output of engines whose counts did not match, the
// latest first (docs/integrity.md).
func (p *process) integrityFailures(w http.ResponseWriter, _ *http.Request) {
	writeView(w, struct {
		Keep     int                `json:"keep"`
		Failures []integrity.Record `json:"failures"`
	}{integrity.Keep, p.integrity.Records()})
}

// follow streams the records of requests as they end, until the caller leaves.
func (p *process) follow(w http.ResponseWriter, r *http.Request) {
	if p.timeline == nil {
		noRecords(w)
		return
	}
	w.Header().Set("Content-Type", "application/jsonl")
	to := &stream{w, http.NewResponseController(w)}
	if r.ContentLength == 0 {
		_ = to.control.SetReadDeadline(time.Time{}) // which bounds the request, and would end the answer
	}
	out := bufio.NewWriterSize(to, 64<<10)
	// The write fails if the caller is gone or does not read; then nobody can get the error.
	_ = p.timeline.Follow(r.Context(), out, func() error {
		return errors.Join(out.Flush(), to.flush())
	})
}

// stream is an answer without an end: each write of it has a deadline.
type stream struct {
	w       io.Writer
	control *http.ResponseController
}

func (s *stream) Write(b []byte) (int, error) {
	_ = s.control.SetWriteDeadline(time.Now().Add(adminPatience))
	return s.w.Write(b)
}

func (s *stream) flush() error {
	_ = s.control.SetWriteDeadline(time.Now().Add(adminPatience))
	return s.control.Flush()
}

// maxWhy bounds the body of a request to /admin/why.
const maxWhy = 64 << 20

// why shows the record that a request to the given path would have, with the engine that
// it would go to and the reason.
func (p *process) why(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxWhy))
	if err != nil {
		http.Error(w, "the request cannot be read: "+err.Error(), http.StatusBadRequest)
		return
	}
	path := r.URL.Query().Get("path")
	if path == "" {
		path = "/v1/chat/completions"
	}
	record, waiting, err := p.gateway.Explain(r.Context(), path, r.Header, body)
	if err != nil {
		http.Error(w, "the request would be refused: "+err.Error(), http.StatusUnprocessableEntity)
		return
	}
	answer := timeline.Append(nil, record, "")
	if waiting != nil { // one member more than records have
		said, err := json.Marshal(waiting)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		answer = fmt.Appendf(answer[:len(answer)-1], `,"queue":%s}`, said)
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, "%s\n", answer)
}

// request shows the record of a request that has ended, by its id.
func (p *process) request(w http.ResponseWriter, r *http.Request) {
	if p.timeline == nil {
		noRecords(w)
		return
	}
	record, ok := p.timeline.Find(r.PathValue("id"))
	if !ok {
		http.Error(w, "no request with that id has ended lately; --timeline FILE keeps them all", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, "%s\n", record)
}
