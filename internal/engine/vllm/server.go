package vllm

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"weir/internal/engine"
	"weir/internal/engine/upstream"
	"weir/internal/engine/vllmserver"
	"weir/internal/infer"
)

// server is what an engine says of itself.
type server struct {
	version  string
	release  vllmserver.Release
	asked    bool            // whether it generates is known
	generate bool            // it has /inference/v1/generate
	adapters map[string]bool // LoRA names among its models
	model    string          // its own, which a request names that names no adapter
	carries  infer.Carries
	defaults engine.Defaults // of /inference/v1/generate, for requests that do not say
	ranks    int             // of data parallelism that a request can be for; 0: it cannot say
	load     engine.Load
	loaded   bool   // load was said
	differs  string // how the model's folder differs from what it renders; empty: not
	note     string
}

// Load implements engine.Loaded, as of the latest probe.
func (e *Engine) Load() (engine.Load, bool) {
	srv := e.server.Load()
	return srv.load, srv.loaded
}

// readings are what is known of an engine's pages, the probe's.
type readings struct {
	models  upstream.Reading[upstream.List]
	version upstream.Reading[string]
	events  upstream.Reading[map[int]engine.KVEvents]
	figures upstream.Reading[*vllmserver.Figures]
	process upstream.Process
}

// probe reads the engine's facts.
func (e *Engine) probe(ctx context.Context) (engine.Facts, error) {
	was := e.server.Load()
	facts, adapters, err := e.client.ModelsAndLoRA(ctx, &e.known.models, e.opts.Model)
	if err != nil || len(facts.Old) > 0 {
		again := *was
		again.asked = false // it may come back as another
		e.server.Store(&again)
		was, e.met = &again, engine.Meets{}
	}
	if err != nil {
		return engine.Facts{}, err
	}
	srv := &server{adapters: adapters, generate: was.generate}
	if len(facts.Models) > 0 {
		srv.model = facts.Models[0]
	}
	version, err := vllmserver.Version(ctx, e.client)
	if had, ok := e.known.version.Known(e.client); err == nil && ok && had != "" && version == "" {
		err = upstream.ErrHalf
	}
	srv.version, _ = e.known.version.Take(e.client, version, err)
	if ctx.Err() != nil {
		return engine.Facts{}, ctx.Err()
	}
	if srv.release = vllmserver.ParseRelease(srv.version); srv.release.Before(vllmserver.WithIDs) {
		return engine.Facts{}, fmt.Errorf("vLLM %s does not take all that is asked of it by ids over HTTP, and passes over it without a word; %s do, and openai=URL relays it", srv.version, known())
	}
	if srv.asked = was.asked && srv.version == was.version; !srv.asked {
		if err := e.ask(ctx, srv); err != nil {
			return engine.Facts{}, err
		}
	}
	var a engine.Additions
	if e.opts.Additions != nil && srv.model != "" {
		a = e.opts.Additions(srv.model)
	}
	srv.defaults, srv.differs = a.Defaults, was.differs
	if !was.asked || srv.version != was.version {
		if srv.differs = ""; a.Prompts != nil {
			srv.differs = e.compare(ctx, srv.model, a.Prompts)
		}
	}
	srv.note = srv.noted()
	facts.Software = strings.TrimSpace("vLLM "+srv.version) + " by " + srv.path(srv.generate)
	srv.carries = carries
	if e.flags.Priority {
		srv.carries |= infer.CarriesPriority
	}
	if srv.generate {
		srv.carries |= infer.CarriesMedia
	}
	facts.Carries, facts.Salts = srv.carries, engine.Salts{Carried: true}
	if e.flags.AskHalves {
		if e.met.Way == engine.Nowhere {
			if e.met, err = vllmserver.Meets(ctx, e.client, srv.model, e.flags.Decodes); err != nil {
				return engine.Facts{}, err
			}
		}
		facts.Meets = e.met
	}
	e.readFigures(ctx, srv, &facts)
	facts.Old = e.known.version.Old(facts.Old, vllmserver.VersionPath)
	facts.Old = e.known.events.Old(facts.Old, vllmserver.KVEventsPath)
	facts.Old = e.known.figures.Old(facts.Old, vllmserver.MetricsPath)
	e.server.Store(srv)
	return facts, nil
}

// ask finds out which endpoints a server has.
func (e *Engine) ask(ctx context.Context, srv *server) (err error) {
	if !srv.release.Before(vllmserver.WithGenerate) {
		if srv.generate, err = vllmserver.Serves(ctx, e.client, vllmserver.GeneratePath); err != nil {
			return err
		}
	}
	completes, err := vllmserver.Serves(ctx, e.client, vllmserver.CompletionsPath)
	if err == nil && !completes && !srv.generate {
		err = errors.New("its model generates no text: it has no " + vllmserver.CompletionsPath)
	}
	srv.asked = err == nil
	return err
}

// readFigures reads how busy the engine is, which ranks it has, and where these publish
// what their KV caches hold.
func (e *Engine) readFigures(ctx context.Context, srv *server, facts *engine.Facts) {
	events, err := vllmserver.KVEvents(ctx, e.client, e.opts.URL.Hostname())
	if had, ok := e.known.events.Known(e.client); err == nil && ok && len(events) < len(had) {
		err = upstream.ErrHalf
	}
	events, _ = e.known.events.Take(e.client, events, err)
	had, _ := e.known.figures.Known(e.client)
	f, err := vllmserver.Metrics(ctx, e.client, had)
	if f, err = e.known.figures.Take(e.client, f, err); err != nil {
		facts.KVEvents = events[0]
		return
	}
	facts.Instance = e.known.process.Is(e.client, f.Started)
	srv.load, srv.loaded = f.Load, true
	for _, r := range f.Ranks {
		facts.KVTokens += r.KVTokens
	}
	if srv.ranks = f.Apart(); srv.ranks == 0 {
		if len(f.Ranks) == 1 {
			facts.KVEvents = events[f.Ranks[0].Number]
		}
		return
	}
	facts.KVEvents, facts.SideBySide = events[0], srv.ranks
	for _, r := range f.Ranks {
		facts.Ranks = append(facts.Ranks, engine.Rank{Number: r.Number, Ready: true, Instance: facts.Instance, KVTokens: r.KVTokens, KVEvents: events[r.Number]})
	}
}

// known returns which releases were compared.
func known() string {
	return fmt.Sprintf("vLLM %v to %v", vllmserver.WithIDs, vllmserver.Newest)
}

// noted is what the operator should know although nothing is wrong.
func (srv *server) noted() string {
	switch {
	case srv.differs != "":
		return srv.differs
	case srv.release == vllmserver.Release{}:
		return fmt.Sprintf("its version is %q; %s are known to work", srv.version, known())
	case vllmserver.Newest.Before(srv.release):
		return fmt.Sprintf("vLLM %s is newer than what this was tested with; %s are known to work", srv.version, known())
	case !srv.generate && !srv.release.Before(vllmserver.WithGenerate):
		return fmt.Sprintf("exchanges ids by %s, which repeats each prompt; started with %s it does so by %s, at less cost", vllmserver.CompletionsPath, vllmserver.ScaleOut, vllmserver.GeneratePath)
	}
	return ""
}

// path is where a request goes.
func (srv *server) path(generate bool) string {
	if generate {
		return vllmserver.GeneratePath
	}
	return vllmserver.CompletionsPath
}
