package sglang

import (
	"context"
	"math"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/engine"
	"weir/internal/engine/remote"
	"weir/internal/engine/sglangserver"
	"weir/internal/engine/upstream"
	"weir/internal/infer"
	"weir/internal/trace"
)

// server is what an engine says of itself.
type server struct {
	form     form
	adapters map[string]bool // LoRA names among its models
	carries  infer.Carries
	lacks    []infer.Lack
	mode     *sglangserver.Mode // of what it does not say, nothing
	ends     []uint32           // that end an answer, by the model's folder
	defaults engine.Defaults    // for requests that do not say
	clock    remote.Offset      // of its wall clock to the timeline's
	oneClock bool               // it is on this machine
	load     engine.Load
	loaded   bool // load was said
	ranks    int  // of data parallelism that a request can be for; 0: it cannot say
}

// Load implements engine.Loaded, as of the latest probe.
func (e *Engine) Load() (engine.Load, bool) {
	srv := e.server.Load()
	return srv.load, srv.loaded
}

// stamp converts a wall time of the engine's in seconds. Zero is not known.
func (srv *server) stamp(seconds float64) int64 {
	if seconds <= 0 || seconds > math.MaxInt64/1e9 {
		return 0
	}
	return srv.clock.ToGateway(uint64(seconds * 1e9))
}

// patched converts one of the timeline's stamps as a patched server gives it: in seconds,
// since 1970 or of the monotonic clock that Python's performance counter reads. The latter
// means something on this machine alone.
func (srv *server) patched(seconds float64) int64 {
	const wall = 1e9 // no machine has been up for so long
	switch {
	case seconds >= wall:
		return srv.stamp(seconds)
	case seconds > 0 && srv.oneClock:
		return int64(seconds * 1e9)
	}
	return 0
}

// AdaptersUntold says why the KV events of an engine with adapters are not used.
const AdaptersUntold = "its KV events are not used: before SGLang 0.5.23 they do not tell the blocks of LoRA adapters from those of the model"

// maxRanks bounds the data-parallel ranks of a server that are believed.
const maxRanks = 1024

// readings are what is known of an engine's pages, the probe's.
type readings struct {
	models  upstream.Reading[upstream.List]
	server  sglangserver.Server
	media   upstream.Reading[infer.Carries]
	process upstream.Process
}

// probe reads the engine's facts. A server without /server_info is accepted too,
// because the counts show what its chunks contain.
func (e *Engine) probe(ctx context.Context) (engine.Facts, error) {
	facts, adapters, err := e.client.ModelsAndLoRA(ctx, &e.known.models, e.opts.Model)
	if err != nil {
		return engine.Facts{}, err
	}
	was := e.server.Load()
	srv := &server{adapters: adapters, carries: Carries | infer.CarriesPromptLogprobs | e.understands(ctx), form: was.form}
	if srv.mode, err = e.known.server.Mode(ctx, e.client); err == nil {
		err = srv.mode.Fault()
	}
	if err != nil {
		return engine.Facts{}, err
	}
	if srv.mode.Told() {
		e.describe(srv, &facts)
	}
	srv.lacks = srv.mode.Lacks()
	srv.carries = srv.carries.Without(srv.lacks)
	facts.Carries, facts.Lacks, facts.Salts = srv.carries, srv.lacks, srv.mode.Salts()
	e.add(srv, &facts)
	if said := e.readLoads(ctx, srv); e.known.server.Silent() && said.TakesRank() {
		count(srv, &facts, said)
	}
	facts.Old = e.known.server.Old(e.known.media.Old(facts.Old, sglangserver.ModelInfoPaths[0]))
	e.server.Store(srv)
	return facts, nil
}

// count adds the ranks of a server that has never described itself to weir, as one of its schedulers
// hangs, by their loads. Requests that name no rank would hang wherever it does.
func count(srv *server, facts *engine.Facts, said sglangserver.Loads) {
	srv.ranks, facts.SideBySide = len(said.Ranks), len(said.Ranks)
	for _, r := range said.Ranks {
		facts.Ranks = append(facts.Ranks, engine.Rank{Number: r.Rank, Ready: true, KVTokens: max(r.KVTokens, 0), MaxRunning: max(r.MaxRunning, 0)})
	}
}

// describe adds what the server's description of itself says. What its chunks hold is learned if
// it does not say.
func (e *Engine) describe(srv *server, facts *engine.Facts) {
	about := srv.mode
	srv.form = unknownForm
	facts.Software = strings.TrimSpace("sglang " + srv.mode.Version)
	facts.Instance = e.known.process.Is(e.client, srv.mode.Started())
	facts.Role, facts.RoleSaid, facts.Meets = srv.mode.Role(), srv.mode.Known(), srv.mode.Meets(e.opts.URL.Hostname())
	facts.Forgets = srv.mode.Forgets()
	ofRank, all := about.MaxRunning()
	facts.MaxRunning = all
	facts.KVTokens, facts.StepTokens = max(about.KVTokens, 0)*max(about.Ranks, 1), max(about.Chunk, 0)
	facts.KVEvents = about.KVEvents(e.opts.URL.Hostname())
	if len(srv.adapters) > 0 && !srv.mode.TellsAdapters() {
		facts.KVEvents.Why = AdaptersUntold
	}
	facts.SideBySide = max(about.Ranks, 0)
	if about.Ranks > 1 && about.Ranks <= maxRanks && srv.mode.TakesRank() {
		srv.ranks = about.Ranks
		for n := range srv.ranks {
			r := engine.Rank{Number: n, Ready: true, Instance: facts.Instance, KVTokens: max(about.KVTokens, 0), MaxRunning: ofRank, KVEvents: facts.KVEvents.OfRank(n)}
			facts.Ranks = append(facts.Ranks, r)
		}
	}
	if facts.ContextLength == 0 {
		facts.ContextLength = about.Context
	}
	if about.Priorities {
		srv.carries |= infer.CarriesPriority
	}
	for _, said := range []*bool{about.Incremental, about.Stream} {
		if said != nil {
			srv.form = cumulative
			if *said {
				srv.form = incremental
			}
			break
		}
	}
}

// add notes what the model's folder adds to requests: which ids end an answer, and
// what is drawn by where a request does not say, if the server's own API adds that. Of
// its /generate it does not.
func (e *Engine) add(srv *server, facts *engine.Facts) {
	name := e.opts.Model
	if name == "" && len(facts.Models) > 0 {
		name = facts.Models[0]
	}
	if e.opts.Additions == nil || name == "" {
		return
	}
	a := e.opts.Additions(name)
	srv.ends = a.EndIDs
	if except, ok := srv.mode.FromModel(); ok {
		srv.defaults = a.Defaults.Without(except)
	}
}

// learn notes what the chunks of a server hold that did not say. Until then the
// second chunk of a generation is taken for what its count makes it; from then
// on every count must agree.
func (e *Engine) learn(f form) {
	if srv := e.server.Load(); f != unknownForm && srv.form == unknownForm {
		learned := *srv
		learned.form = f
		e.server.CompareAndSwap(srv, &learned)
	}
}

// understands returns the kinds of media that the server's model accepts, as the server
// reports them. If it reports none, no media are sent, because a server whose model
// cannot use them silently drops them. Videos are not reported; they are assumed where
// images are, and the model's template must have a placeholder for them.
func (e *Engine) understands(ctx context.Context) infer.Carries {
	data, err := e.client.GetFirst(ctx, sglangserver.ModelInfoPaths...)
	var model struct {
		Image *bool `json:"has_image_understanding"`
		Audio *bool `json:"has_audio_understanding"`
	}
	if err == nil {
		err = json.Unmarshal(data, &model, jsontext.AllowDuplicateNames(true))
	}
	var media infer.Carries
	if model.Image != nil && *model.Image {
		media |= infer.CarriesImage | infer.CarriesVideo
	}
	if model.Audio != nil && *model.Audio {
		media |= infer.CarriesAudio
	}
	if had, ok := e.known.media.Known(e.client); err == nil && ok && had != 0 && (model.Image == nil || model.Audio == nil) {
		err = upstream.ErrHalf
	}
	media, err = e.known.media.Take(e.client, media, err)
	if err != nil {
		return 0
	}
	return media
}

// readLoads reads how busy the engine is and, from the same answer, how far its
// clock is from this machine's.
func (e *Engine) readLoads(ctx context.Context, srv *server) sglangserver.Loads {
	sent := trace.Now()
	said, load, err := e.known.server.Loads(ctx, e.client, srv.mode)
	received := trace.Now()
	srv.load, srv.loaded = load, err == nil
	if at, ok := wallTime(said.Timestamp); ok {
		e.clock.Add(sent, at.UnixNano(), received)
	}
	srv.clock = e.clock.Best(received)
	if e.local { // then it is this machine's wall clock
		srv.clock, srv.oneClock = remote.Offset{NS: trace.Wall(0).UnixNano(), Known: true}, true
	}
	return said
}

// wallTime reads a time as seconds since 1970 or in the form of RFC 3339.
func wallTime(v jsontext.Value) (time.Time, bool) {
	switch v.Kind() {
	case '0':
		var seconds float64
		if json.Unmarshal(v, &seconds) == nil && seconds > 0 && seconds < math.MaxInt64/1e9 {
			return time.Unix(0, int64(seconds*1e9)), true
		}
	case '"':
		var text string
		if json.Unmarshal(v, &text) == nil {
			if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
				return at, true
			}
		}
	}
	return time.Time{}, false
}

// local reports whether a host is this machine.
func local(host string) bool {
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	if addr.IsLoopback() {
		return true
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range own {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr() == addr {
			return true
		}
	}
	return false
}
