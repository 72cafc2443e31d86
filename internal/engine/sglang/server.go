package sglang

import (
	"context"
	"errors"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/engine"
	"weir/internal/engine/remote"
	"weir/internal/engine/sglangmode"
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
	mode     *sglangmode.Mode // of what it does not say, nothing
	ends     []uint32         // that end an answer, by the model's folder
	defaults engine.Defaults  // for requests that do not say
	clock    remote.Offset    // of its wall clock to the timeline's
	oneClock bool             // it is on this machine
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

// info is what is read of /server_info.
type info struct {
	Incremental *bool `json:"incremental_streaming_output"`
	Stream      *bool `json:"stream_output"` // its name before 2026-03
	MaxRunning  int   `json:"max_running_requests"`
	KVTokens    int   `json:"max_total_num_tokens"` // of each rank
	Chunk       int   `json:"chunked_prefill_size"` // -1: prompts are not divided
	Ranks       int   `json:"dp_size"`
	Attention   bool  `json:"enable_dp_attention"` // and then MaxRunning is of all ranks
	Context     int   `json:"context_length"`
	Priorities  bool  `json:"enable_priority_scheduling"`
	// Events is null where the engine publishes none.
	Events jsontext.Value `json:"kv_events"`

	mode *sglangmode.Mode
}

// kvEvents is where the engine publishes what its KV cache holds, or its first rank.
func (i *info) kvEvents(host string) engine.KVEvents {
	var said struct {
		Publisher string `json:"publisher"`
		Host      string `json:"endpoint_host"`
		Port      int    `json:"endpoint_port_base"` // of rank 0
		Replay    int    `json:"replay_endpoint_port_base"`
		Topic     string `json:"topic"`
		Block     int    `json:"block_size"`
	}
	if i.Events.Kind() != '{' || json.Unmarshal(i.Events, &said, jsontext.AllowDuplicateNames(true)) != nil || said.Publisher != "zmq" || said.Port <= 0 {
		return engine.KVEvents{}
	}
	at := func(port int) string {
		return "tcp://" + net.JoinHostPort(strings.Trim(said.Host, "[]"), strconv.Itoa(port))
	}
	e := engine.KVEvents{Endpoint: at(said.Port), Topic: said.Topic, BlockTokens: max(said.Block, 0), Host: host}
	if said.Replay > 0 {
		e.Replay = at(said.Replay)
	}
	return e
}

// AdaptersUntold says why the KV events of an engine with adapters are not used.
const AdaptersUntold = "its KV events are not used: before SGLang 0.5.23 they do not tell the blocks of LoRA adapters from those of the model"

// maxRanks bounds the data-parallel ranks of a server that are believed.
const maxRanks = 1024

// readings are what is known of an engine's pages, the probe's.
type readings struct {
	models  upstream.Reading[upstream.List]
	info    upstream.Reading[info]
	media   upstream.Reading[infer.Carries]
	loads   upstream.Reading[engine.Load]
	process upstream.Process
	unread  int64 // since when /server_info does not answer, of which nothing was ever read; 0: it does
}

// probe reads the engine's facts. A server without /server_info is accepted too,
// because the counts show what its chunks contain.
func (e *Engine) probe(ctx context.Context) (engine.Facts, error) {
	facts, adapters, err := e.client.ModelsAndLoRA(ctx, &e.known.models, e.opts.Model)
	if err != nil {
		return engine.Facts{}, err
	}
	was := e.server.Load()
	srv := &server{adapters: adapters, carries: Carries | infer.CarriesPromptLogprobs | e.understands(ctx), mode: &sglangmode.Mode{}, form: was.form}
	about, err := e.info(ctx)
	switch {
	case ctx.Err() != nil:
		return engine.Facts{}, ctx.Err()
	case err == nil:
		if err := about.mode.Fault(); err != nil {
			return engine.Facts{}, err
		}
		e.describe(srv, &facts, &about)
	}
	silent := err != nil && !answered(err)
	srv.lacks = srv.mode.Lacks()
	srv.carries = srv.carries.Without(srv.lacks)
	facts.Carries, facts.Lacks, facts.Salts = srv.carries, srv.lacks, srv.mode.Salts()
	e.add(srv, &facts)
	if said := e.readLoads(ctx, srv); silent {
		e.count(srv, &facts, said, err)
	} else {
		e.known.unread = 0
	}
	facts.Old = e.known.media.Old(facts.Old, upstream.SGLangModelInfo[0])
	facts.Old = e.known.info.Old(facts.Old, upstream.SGLangServerInfo[0])
	facts.Old = e.known.loads.Old(facts.Old, srv.mode.LoadsPath())
	e.server.Store(srv)
	return facts, nil
}

// answered reports whether the server has answered a request that ended with err.
func answered(err error) bool {
	var refused *upstream.StatusError
	return errors.As(err, &refused) && refused.Status < 500
}

// count adds the ranks of a server that has never described itself to weir, as one of its schedulers
// hangs, by their loads. Requests that name no rank would hang wherever it does.
func (e *Engine) count(srv *server, facts *engine.Facts, said sglangmode.Loads, why error) {
	if e.known.unread == 0 {
		e.known.unread = trace.Now()
	}
	facts.Old = append(facts.Old, engine.Old{Page: upstream.SGLangServerInfo[0], Since: e.known.unread, Why: why.Error()})
	if !said.TakesRank() {
		return
	}
	srv.ranks, facts.SideBySide = len(said.Ranks), len(said.Ranks)
	for _, r := range said.Ranks {
		facts.Ranks = append(facts.Ranks, engine.Rank{Number: r.Rank, Ready: true, KVTokens: max(r.KVTokens, 0), MaxRunning: max(r.MaxRunning, 0)})
	}
}

// describe adds what the server's description of itself says. What its chunks hold is learned if
// it does not say.
func (e *Engine) describe(srv *server, facts *engine.Facts, about *info) {
	srv.mode, srv.form = about.mode, unknownForm
	facts.Software = strings.TrimSpace("sglang " + srv.mode.Version)
	facts.Instance = e.known.process.Is(e.client, srv.mode.Started())
	facts.Role, facts.RoleSaid, facts.Meets = srv.mode.Role(), srv.mode.Known(), srv.mode.Meets(e.opts.URL.Hostname())
	facts.Forgets = srv.mode.Forgets()
	if facts.MaxRunning = max(about.MaxRunning, 0); !about.Attention && about.Ranks <= maxRanks {
		facts.MaxRunning *= max(about.Ranks, 1)
	}
	facts.KVTokens, facts.StepTokens = max(about.KVTokens, 0)*max(about.Ranks, 1), max(about.Chunk, 0)
	facts.KVEvents = about.kvEvents(e.opts.URL.Hostname())
	if len(srv.adapters) > 0 && !srv.mode.TellsAdapters() {
		facts.KVEvents.Why = AdaptersUntold
	}
	facts.SideBySide = max(about.Ranks, 0)
	if about.Ranks > 1 && about.Ranks <= maxRanks && srv.mode.TakesRank() {
		srv.ranks = about.Ranks
		for n := range srv.ranks {
			r := engine.Rank{Number: n, Ready: true, Instance: facts.Instance, KVTokens: max(about.KVTokens, 0), MaxRunning: max(about.MaxRunning, 0), KVEvents: facts.KVEvents.OfRank(n)}
			if about.Attention {
				r.MaxRunning = (r.MaxRunning + srv.ranks - 1) / srv.ranks
			}
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

// info reads /server_info, or its older name. It asks each of the server's schedulers, so that one
// that hangs keeps it from answering.
func (e *Engine) info(ctx context.Context) (info, error) {
	var now info
	data, err := e.client.GetFirst(ctx, upstream.SGLangServerInfo...)
	if err == nil {
		err = json.Unmarshal(data, &now, jsontext.AllowDuplicateNames(true))
	}
	if err == nil {
		now.mode, err = sglangmode.Parse(data)
	}
	if had, ok := e.known.info.Known(e.client); err == nil && ok && now.mode.Half(had.mode) {
		err = upstream.ErrHalf
	}
	return e.known.info.Take(e.client, now, err)
}

// understands returns the kinds of media that the server's model accepts, as the server
// reports them. If it reports none, no media are sent, because a server whose model
// cannot use them silently drops them. Videos are not reported; they are assumed where
// images are, and the model's template must have a placeholder for them.
func (e *Engine) understands(ctx context.Context) infer.Carries {
	data, err := e.client.GetFirst(ctx, upstream.SGLangModelInfo...)
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
func (e *Engine) readLoads(ctx context.Context, srv *server) (said sglangmode.Loads) {
	sent := trace.Now()
	data, _, err := e.client.Get(ctx, srv.mode.LoadsPath())
	received := trace.Now()
	if err == nil {
		said, err = sglangmode.ParseLoads(data)
	}
	if at, ok := wallTime(said.Timestamp); ok && err == nil {
		e.clock.Add(sent, at.UnixNano(), received)
	}
	srv.clock = e.clock.Best(received)
	if e.local { // then it is this machine's wall clock
		srv.clock, srv.oneClock = remote.Offset{NS: trace.Wall(0).UnixNano(), Known: true}, true
	}
	var now engine.Load
	if err == nil {
		ok := false
		had, known := e.known.loads.Known(e.client)
		if now, ok = said.Load(); !ok || known && len(now.Ranks) < len(had.Ranks) {
			err = upstream.ErrHalf
		}
	}
	now, err = e.known.loads.Take(e.client, now, err)
	srv.load, srv.loaded = now, err == nil
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
