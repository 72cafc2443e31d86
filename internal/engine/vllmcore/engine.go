package vllmcore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"weir/internal/engine"
	"weir/internal/engine/coreclient"
	"weir/internal/infer"
	"weir/internal/wire/zmtp"
)

// Engine is a group of engine cores that serve one model, reached over their own
// wire. It implements engine.Tokens and engine.Adapter.
type Engine struct {
	opts   Options
	host   *coreclient.Host
	meters coreclient.Meters
	ranks  []*rank
	lora   []lora

	mu     sync.Mutex
	waves  waves
	dataTo [2]string // where engines are told to connect to
}

var (
	_ engine.Tokens  = (*Engine)(nil)
	_ engine.Adapter = (*Engine)(nil)
	_ engine.Prober  = (*Engine)(nil)
	_ engine.Loaded  = (*Engine)(nil)
)

// New makes an Engine. Until an engine has connected to Run, Generate fails.
func New(o Options) *Engine {
	e := &Engine{opts: o.withDefaults(), host: coreclient.NewHost("vllmcore: "+o.Name, o.Panicked), waves: waves{running: false, last: -1, seen: -1}}
	e.lora = loraList(e.opts.LoRA)
	for i := range e.opts.Engines {
		e.ranks = append(e.ranks, &rank{index: e.opts.First + i})
	}
	return e
}

// rank is one place for an engine. Engines come and go in it, one at a time.
type rank struct {
	index   int
	current atomic.Pointer[session] // from the engine's word that it can serve on

	place coreclient.Place // of the connection that serves it

	mu      sync.Mutex
	known   []byte      // what the engine said of itself; nil: nothing yet
	lost    []string    // requests that ended here and may still run there
	refused bool        // this engine cannot be spoken to
	said    engine.Rank // its latest facts
}

// rank returns the place of an engine's index.
func (e *Engine) rank(index int) *rank {
	if i := index - e.opts.First; i >= 0 && i < len(e.ranks) {
		return e.ranks[i]
	}
	return nil
}

// up returns the session of an engine to which requests can be handed, else nil. adapter
// is the index of what it must have loaded; -1 for none.
func (e *Engine) up(index, adapter int) *session {
	r := e.rank(index)
	if r == nil {
		return nil
	}
	if s := r.current.Load(); s != nil && s.Up() && (adapter < 0 || s.loras.usable(adapter)) {
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
	e.remember()
	if e.opts.InputListener != nil {
		return []coreclient.Door{{Listener: e.opts.InputListener, Serve: e.input}, {Listener: e.opts.OutputListener, Serve: e.output}}, nil
	}
	open := func(at zmtp.Endpoint, serve coreclient.Serve) error {
		d, err := coreclient.Open(at, serve)
		if err == nil {
			doors = append(doors, d)
		}
		return err
	}
	if err := errors.Join(open(e.opts.Input, e.input), open(e.opts.Output, e.output)); err != nil {
		return doors, err
	}
	e.mu.Lock()
	e.dataTo = [2]string{zmtp.EndpointOf(doors[0].Listener).String(), zmtp.EndpointOf(doors[1].Listener).String()}
	e.mu.Unlock()
	err = open(e.opts.Handshake, e.handshake)
	return doors, err
}

// state is what to report.
func (e *Engine) state() engine.State {
	facts := engine.Facts{Models: []string{e.opts.Model}, Carries: infer.CarriesAll, Salts: engine.Salts{Carried: true}, LoRA: e.loraFacts()}
	up := 0
	var why error
	for _, r := range e.ranks {
		s := e.up(r.index, -1)
		if s != nil && e.opts.AskHalves {
			meets, err := s.meets()
			if err == nil && up > 0 && meets != facts.Meets {
				err = fmt.Errorf("it reports that its halves of requests meet at %s of %s:%d, and another rank at %s of %s:%d, both without a rank number", meets.EngineID, meets.Host, meets.Port, facts.Meets.EngineID, facts.Meets.Host, facts.Meets.Port)
			}
			if err != nil {
				why, s = fmt.Errorf("engine %d: %w", r.index, err), nil
			} else {
				facts.Meets = meets
			}
		}
		if len(e.ranks) > 1 {
			facts.Ranks = append(facts.Ranks, e.rankFacts(r.index, s))
		}
		if s == nil {
			continue
		}
		up++
		if n := s.ready.contextLength; facts.ContextLength == 0 || n < facts.ContextLength {
			facts.ContextLength = n
		}
		facts.SideBySide = up
		facts.MaxRunning += s.ready.maxRunning
		facts.KVTokens += s.ready.kvTokens()
		facts.StepTokens = s.ready.stepTokens
		facts.Carries &= s.carries()
		if facts.Lacks == nil {
			facts.Lacks = s.lacks()
		}
		facts.KVEvents = s.kvEvents()
		facts.Software = s.ready.software()
		if s.ready.instance != "" {
			facts.Instance = s.ready.instance
		}
	}
	if up > 0 {
		if n := len(e.ranks); up < n {
			facts.Software += fmt.Sprintf(", %d of %d engines", up, n)
		}
		return engine.State{Ready: true, Facts: facts}
	}
	if why == nil {
		why = e.host.Why()
	}
	if why == nil {
		why = e.nobody()
	}
	return e.host.Unready(why)
}

// rankFacts returns the facts of one of several engines, the latest ones while it is not up and s is
// nil.
func (e *Engine) rankFacts(index int, s *session) engine.Rank {
	r, at := engine.Rank{Number: index}, e.rank(index)
	at.mu.Lock()
	defer at.mu.Unlock()
	if s == nil {
		r = at.said
		r.Number, r.Ready = index, false
	} else {
		r.Ready, r.Instance, r.KVTokens, r.MaxRunning, r.KVEvents = true, s.ready.instance, s.ready.kvTokens(), s.ready.maxRunning, s.kvEvents()
		for i := range e.lora {
			if !s.loras.usable(i) {
				r.Without = append(r.Without, e.lora[i].name)
			}
		}
		at.said = r
	}
	return r
}

// nobody is the error while no engine has connected, with advice.
func (e *Engine) nobody() error {
	host, port, err := net.SplitHostPort(e.opts.Handshake.Address)
	if err != nil {
		return errors.New("no engine has connected yet")
	}
	n := ""
	if e.opts.Engines > 1 {
		n = fmt.Sprintf(" --data-parallel-size %d --data-parallel-size-local %d", e.opts.Engines, e.opts.Engines)
	}
	return fmt.Errorf("no engine has connected yet; start one with vllm serve MODEL --headless%s --data-parallel-address %s --data-parallel-rpc-port %s", n, host, port)
}
