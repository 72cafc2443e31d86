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
	e.compareClocks(ctx, srv)
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

// compareClocks learns how far the engine's clock is from this machine's: not
// at all on the same machine, and else from the time that /v1/loads states, as
// far as the round trip allows. Of two estimates the one of the shorter round
// trip is believed, unless it is old.
func (e *Engine) compareClocks(ctx context.Context, srv *server) {
	if local(e.opts.URL.Hostname()) {
		srv.clock = clock{known: true}
		return
	}
	sent := time.Now()
	data, _, err := e.client.Get(ctx, "/v1/loads?include=core")
	took := time.Since(sent)
	if err != nil {
		return
	}
	var loads struct {
		Timestamp float64 `json:"timestamp"`
	}
	if json.Unmarshal(data, &loads, jsontext.AllowDuplicateNames(true)) != nil || loads.Timestamp <= 0 {
		return
	}
	now := clock{known: true, offset: int64(loads.Timestamp*1e9) - sent.Add(took/2).UnixNano(), uncertain: int64(took/2) + 1}
	// An estimate ages as two clocks drift apart, by up to 100 ppm.
	was := srv.clock
	was.uncertain += int64(float64(e.opts.ProbeInterval) * 100e-6)
	if !was.known || now.uncertain <= was.uncertain {
		srv.clock = now
	} else {
		srv.clock = was
	}
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
