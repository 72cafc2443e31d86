package sglangipc

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"weir/internal/engine"
	"weir/internal/engine/coreclient"
	"weir/internal/engine/mux"
	"weir/internal/infer"
	"weir/internal/trace"
	"weir/internal/wire/zmtp"
)

// Engine is an SGLang engine, its data-parallel ranks included, reached at its
// schedulers' own sockets. It implements engine.Tokens and engine.Adapter.
type Engine struct {
	opts   Options
	host   *coreclient.Host
	meters coreclient.Meters

	place   coreclient.Place        // of the input connection that serves
	current atomic.Pointer[session] // the one that outputs belong to

	mu        sync.Mutex
	outputs   map[*zmtp.Conn]bool // that stand
	dismissed uint64              // the latest arrival whose outputs are no session's any more
}

var (
	_ engine.Tokens  = (*Engine)(nil)
	_ engine.Adapter = (*Engine)(nil)
	_ engine.Prober  = (*Engine)(nil)
	_ engine.Loaded  = (*Engine)(nil)
)

// New makes an Engine. Until an engine has connected to Run, Generate fails.
func New(o Options) *Engine {
	return &Engine{opts: o.withDefaults(), host: coreclient.NewHost("sglangipc: "+o.Name, o.Panicked), outputs: map[*zmtp.Conn]bool{}}
}

// Figures returns the counters as they stand.
func (e *Engine) Figures() coreclient.Figures {
	f := e.meters.Figures()
	if s := e.up(); s != nil {
		f.Ready, f.Live = s.manifest.Ranks, s.Table.Live()
	}
	return f
}

// up returns the session while requests can be handed to it, else nil.
func (e *Engine) up() *session {
	if s := e.current.Load(); s != nil && s.Up() {
		return s
	}
	return nil
}

// Run implements engine.Adapter. It may be called once. report is called from
// Run's own goroutine.
func (e *Engine) Run(ctx context.Context, report func(engine.State)) {
	e.host.Run(ctx, e.bind, e.state, report)
}

func (e *Engine) bind() (doors []coreclient.Door, err error) {
	if err := zmtp.PrivateDir(e.opts.Dir); err != nil {
		return nil, err
	}
	in, err := coreclient.Open(e.opts.endpoint(inputName), e.input)
	if err != nil {
		return nil, err
	}
	out, err := coreclient.Open(e.opts.endpoint(outputName), e.output)
	if err != nil {
		return []coreclient.Door{in}, err
	}
	return []coreclient.Door{in, out}, nil
}

// state is what to report.
func (e *Engine) state() engine.State {
	if s := e.up(); s != nil {
		models := []string{e.opts.Model}
		if e.opts.Model == "" {
			models[0] = s.manifest.Served
		}
		var lora []engine.LoRA
		for _, name := range slices.Sorted(maps.Keys(s.manifest.LoRA)) {
			lora = append(lora, engine.LoRA{Name: name})
		}
		a := s.about()
		events := s.manifest.kvEvents()
		var ranks []engine.Rank
		for n := range s.ranks() {
			ranks = append(ranks, engine.Rank{Number: n, Ready: true, Instance: s.manifest.Instance, MaxRunning: a.maxRunning, KVTokens: a.kv, KVEvents: events.OfRank(n)})
		}
		return engine.State{Ready: true, Facts: engine.Facts{
			Models: models, LoRA: lora, ContextLength: s.manifest.ContextLength, MaxRunning: a.maxRunning * s.manifest.Ranks, SideBySide: s.manifest.Ranks, Ranks: ranks,
			KVTokens: a.kv * s.manifest.Ranks, StepTokens: a.chunk, KVEvents: events,
			Role: s.manifest.Started.Role(), RoleSaid: s.manifest.Started.Known(), Meets: s.manifest.Started.Meets(s.manifest.BootstrapHost),
			Forgets: s.manifest.Started.Forgets(), Software: s.software(), Instance: s.manifest.Instance, Carries: s.manifest.carries(), Lacks: s.manifest.lacks, Salts: s.codec.saltsOf(s.manifest.Version),
		}}
	}
	err := e.host.Why()
	if err == nil {
		err = fmt.Errorf("no scheduler has connected yet; start one with python weir_sglang.py --weir %s --model-path MODEL", e.opts.Dir)
	}
	return e.host.Unready(err)
}

// Generate implements engine.Tokens.
func (e *Engine) Generate(ctx context.Context, req *infer.Request, attempt uint32, sink engine.Sink, leg *trace.Leg) (engine.Generation, error) {
	leg.Engine = e.opts.Name
	if err := ctx.Err(); err != nil {
		return nil, infer.AsError(err)
	}
	s := e.up()
	if s == nil {
		return nil, mux.Unavailable(e.opts.Name, nil)
	}
	if leg.DPRank >= s.ranks() {
		leg.DPRank = -1 // it was started with fewer since
	}
	if err := s.manifest.check(req, &s.adds); err != nil {
		return nil, err
	}
	g := coreclient.NewGeneration(s.Out, req, attempt, sink)
	if req.Half != nil {
		if g.Role = req.Half.Role; g.Role == infer.RoleDecode && !s.manifest.Started.Meets("").HoldsPages {
			g.Defer()
		}
	}
	if err := s.Seat(g); err != nil {
		return nil, err
	}
	if err := s.Hand(g, func(b []byte) []byte {
		return s.codec.appendRequest(b, req, &s.adds, s.manifest.LoRA[req.Model], leg.DPRank)
	}); err != nil {
		return nil, err
	}
	return s.Await(ctx, g, leg)
}
