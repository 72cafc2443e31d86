package sglang

import (
	"context"
	"errors"
	"math"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/engine"
	"weir/internal/engine/upstream"
	"weir/internal/trace"
)

// server is what an engine says of itself.
type server struct {
	form     form
	adapters map[string]bool // LoRA names among its models
	clock    clock
	load     engine.Load
	loaded   bool // load was said
}

// Load implements engine.Loaded, as of the latest probe.
func (e *Engine) Load() (engine.Load, bool) {
	srv := e.server.Load()
	return srv.load, srv.loaded
}

// clock brings an engine's wall times to the timeline's clock.
type clock struct {
	known             bool
	offset, uncertain int64 // engine's wall time minus this machine's, ns
}

// stamp converts a wall time in seconds. Zero, which means not known, stays
// zero, and so does everything while the offset is not known.
func (c *clock) stamp(seconds float64) int64 {
	if !c.known || seconds <= 0 || seconds > math.MaxInt64/1e9 {
		return 0
	}
	return trace.Stamp(time.Unix(0, int64(seconds*1e9)-c.offset))
}

// info is what is read of /server_info.
type info struct {
	Version     string `json:"version"`
	Incremental *bool  `json:"incremental_streaming_output"`
	Stream      *bool  `json:"stream_output"` // its name before 2026-03
	MaxRunning  int    `json:"max_running_requests"`
	Context     int    `json:"context_length"`
	Served      string `json:"served_model_name"`
	NoTokenizer bool   `json:"skip_tokenizer_init"`
}

// probe reads the engine's facts. A server without /server_info is one all the
// same: the counts tell what its chunks hold.
func (e *Engine) probe(ctx context.Context) (engine.Facts, error) {
	facts, adapters, err := e.models(ctx)
	if err != nil {
		return engine.Facts{}, err
	}
	was := e.server.Load()
	facts.Carries = carries
	srv := &server{adapters: adapters, clock: was.clock}
	var about info
	if err := e.info(ctx, &about); err == nil {
		facts.Software = strings.TrimSpace("sglang " + about.Version)
		if about.MaxRunning > 0 {
			facts.MaxRunning = about.MaxRunning
		}
		if facts.ContextLength == 0 {
			facts.ContextLength = about.Context
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
	} else if ctx.Err() != nil {
		return engine.Facts{}, err
	} else {
		srv.form = was.form // learned, if anything
	}
	e.readLoads(ctx, srv)
	e.server.Store(srv)
	return facts, nil
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

// models reads the model list. A card with a parent is a LoRA adapter.
func (e *Engine) models(ctx context.Context) (engine.Facts, map[string]bool, error) {
	facts, data, err := e.client.Models(ctx)
	var refused *upstream.StatusError
	if errors.As(err, &refused) && e.opts.Model != "" && refused.Status < 500 {
		return engine.Facts{Models: []string{e.opts.Model}}, nil, nil
	}
	if err != nil {
		return engine.Facts{}, nil, err
	}
	var list struct {
		Data []struct {
			ID     string  `json:"id"`
			Parent *string `json:"parent"`
		} `json:"data"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return engine.Facts{}, nil, err
	}
	var adapters map[string]bool
	for _, m := range list.Data {
		if m.Parent != nil && *m.Parent != "" {
			if adapters == nil {
				adapters = map[string]bool{}
			}
			adapters[m.ID] = true
		}
	}
	return facts, adapters, nil
}

// info reads /server_info, or its older name.
func (e *Engine) info(ctx context.Context, to *info) error {
	data, _, err := e.client.Get(ctx, "/server_info")
	var refused *upstream.StatusError
	if errors.As(err, &refused) {
		data, _, err = e.client.Get(ctx, "/get_server_info")
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(data, to, jsontext.AllowDuplicateNames(true))
}

// readLoads reads how busy the engine is and, from the same answer, how far its
// clock is from this machine's.
func (e *Engine) readLoads(ctx context.Context, srv *server) {
	sent := time.Now()
	data, _, err := e.client.Get(ctx, "/v1/loads?include=core")
	took := time.Since(sent)
	if local(e.opts.URL.Hostname()) {
		srv.clock = clock{known: true}
	}
	if err != nil {
		return
	}
	var said struct {
		Timestamp jsontext.Value `json:"timestamp"`
		Loads     []struct {
			Running int     `json:"num_running_reqs"`
			Waiting int     `json:"num_waiting_reqs"`
			Usage   float64 `json:"token_usage"`
		} `json:"loads"`
	}
	if json.Unmarshal(data, &said, jsontext.AllowDuplicateNames(true)) != nil {
		return
	}
	if n := len(said.Loads); n > 0 {
		srv.loaded = true
		for _, rank := range said.Loads {
			srv.load.Running += rank.Running
			srv.load.Waiting += rank.Waiting
			srv.load.KVUsage += rank.Usage / float64(n)
		}
	}
	if at, ok := wallTime(said.Timestamp); ok && !local(e.opts.URL.Hostname()) {
		srv.clock = srv.clock.better(at, sent, took, e.opts.ProbeInterval)
	}
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

// better gives the better estimate of two: the one at hand, which ages as two
// clocks drift apart by up to 100 ppm, and one from a request sent at a time
// that took so long and was answered at another by the engine's clock.
func (c clock) better(at, sent time.Time, took, age time.Duration) clock {
	half := took / 2
	now := clock{known: true, offset: at.Sub(sent.Round(0).Add(half)).Nanoseconds(), uncertain: int64(half) + 1}
	c.uncertain += int64(float64(age) * 100e-6)
	if !c.known || now.uncertain <= c.uncertain {
		return now
	}
	return c
}

// local says whether a host is this machine.
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
