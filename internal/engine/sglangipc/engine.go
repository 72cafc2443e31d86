package sglangipc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/fenced"
	"weir/internal/engine/sglang"
	"weir/internal/infer"
	"weir/internal/trace"
	"weir/internal/zmtp"
)

// Engine is an SGLang engine, its data-parallel ranks included, reached at its
// schedulers' own sockets. It implements engine.Tokens and engine.Adapter.
type Engine struct {
	opts   Options
	meters fenced.Meters

	current atomic.Pointer[session] // while one can be given requests
	changed chan struct{}           // capacity 1: the state may have

	place sync.Mutex // held by the input connection that serves

	mu      sync.Mutex
	why     error // the last thing that kept the engine from being of use
	holder  *zmtp.Conn
	session *session // the one that outputs belong to
	outputs map[*zmtp.Conn]bool
}

var (
	_ engine.Tokens  = (*Engine)(nil)
	_ engine.Adapter = (*Engine)(nil)
)

// New makes an Engine. Until an engine has connected to Run, Generate fails.
func New(o Options) *Engine {
	return &Engine{opts: o.withDefaults(), changed: make(chan struct{}, 1), outputs: map[*zmtp.Conn]bool{}}
}

// Name gives the engine's name.
func (e *Engine) Name() string { return e.opts.Name }

// Figures gives the counters as they stand.
func (e *Engine) Figures() fenced.Figures {
	f := e.meters.Figures()
	if s := e.current.Load(); s != nil {
		f.Ready, f.Live = s.word.Ranks, s.table.Live()
	}
	return f
}

func (e *Engine) signal() {
	select {
	case e.changed <- struct{}{}:
	default:
	}
}

// note keeps why the engine is of no use, for the state.
func (e *Engine) note(err error) {
	e.mu.Lock()
	e.why = err
	e.mu.Unlock()
	e.signal()
}

// Run implements engine.Adapter. It may be called once. report is called from
// Run's own goroutine.
func (e *Engine) Run(ctx context.Context, report func(engine.State)) {
	var last string
	tell := func(s engine.State) {
		word := fmt.Sprint(s)
		if word != last {
			last = word
			report(s)
		}
	}
	for wait := 100 * time.Millisecond; ctx.Err() == nil; wait = min(2*wait, 5*time.Second) {
		err := e.serve(ctx, tell)
		if err == nil {
			return // ctx has ended
		}
		tell(e.unready(err))
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// serve binds the sockets and serves whoever connects until ctx ends. An error says
// what could not be bound.
func (e *Engine) serve(ctx context.Context, report func(engine.State)) error {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	if err := zmtp.PrivateDir(e.opts.Dir); err != nil {
		return err
	}
	for name, serve := range map[string]func(context.Context, net.Conn){inputName: e.input, outputName: e.output} {
		l, err := zmtp.Listen(e.opts.endpoint(name))
		if err != nil {
			return err
		}
		defer l.Close()
		tasks.Go(func() { e.accept(ctx, l, serve, &tasks) })
	}
	report(e.state())
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.changed:
			report(e.state())
		}
	}
}

// accept serves a listener until it is closed.
func (e *Engine) accept(ctx context.Context, l net.Listener, serve func(context.Context, net.Conn), tasks *sync.WaitGroup) {
	for {
		c, err := l.Accept()
		switch {
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			if err == nil {
				c.Close()
			}
			return
		case err != nil:
			e.note(err)
			select { // out of files, say
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		default:
			tasks.Go(func() {
				stop := context.AfterFunc(ctx, func() { c.Close() })
				defer stop()
				serve(ctx, c)
			})
		}
	}
}

// state is what to report.
func (e *Engine) state() engine.State {
	if s := e.current.Load(); s != nil {
		models := []string{e.opts.Model}
		if e.opts.Model == "" {
			models[0] = s.word.Served
		}
		models = append(models, slices.Sorted(maps.Keys(s.word.LoRA))...)
		return engine.State{Ready: true, Facts: engine.Facts{
			Models: models, ContextLength: s.word.ContextLength, MaxRunning: int(s.maxRunning.Load()) * s.word.Ranks,
			Software: s.software(), Instance: s.word.Instance, Carries: sglang.Carries,
		}}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.why
	if err == nil {
		err = fmt.Errorf("no scheduler has connected yet; start one with python weir_sglang.py --weir %s --model-path MODEL", e.opts.Dir)
	}
	return e.unready(err)
}

func (e *Engine) unready(err error) engine.State {
	return engine.State{Err: fmt.Errorf("sglangipc: %s: %w", e.opts.Name, err)}
}

// payloads are buffers for requests, which are copied once more into the outbox.
var payloads = sync.Pool{New: func() any { return new([]byte) }}

// Generate implements engine.Tokens. What confirms a request on this wire is the
// answer to the fence behind it, or its first output.
func (e *Engine) Generate(ctx context.Context, req *infer.Request, attempt uint32, sink engine.Sink, leg *trace.Leg) (engine.Generation, error) {
	leg.Engine, leg.DPRank = e.opts.Name, -1
	if err := ctx.Err(); err != nil {
		return nil, infer.AsError(err)
	}
	s := e.current.Load()
	if s == nil {
		return nil, fenced.Unavailable(e.opts.Name, nil)
	}
	if err := s.word.check(req, &e.opts.Defaults); err != nil {
		return nil, err
	}
	g := fenced.NewGeneration(s.out, req.ID, req, attempt, sink)
	switch ok, taken := s.table.Seat(g); {
	case taken:
		return nil, &infer.Error{Code: infer.CodeInternal, Engine: e.opts.Name, Message: "internal error",
			Cause: fmt.Errorf("sglangipc: request id %q is in use", req.ID)}
	case !ok:
		return nil, fenced.Unavailable(e.opts.Name, context.Cause(s.ctx))
	}
	if failed := s.hand(g, req); failed != nil {
		s.table.Release(g)
		return nil, failed
	}
	e.meters.Submitted.Add(1)
	if err := g.Await(ctx, leg); err != nil {
		return nil, err
	}
	e.meters.Accepted.Add(1)
	return g, nil
}

// hand puts the request into the outbox.
func (s *session) hand(g *fenced.Generation, req *infer.Request) *infer.Error {
	buf := payloads.Get().(*[]byte)
	defer payloads.Put(buf)
	*buf = s.codec.appendRequest((*buf)[:0], req, &s.opts.Defaults, s.word.LoRA[req.Model])
	switch ok, closed := s.out.Add(g, *buf); {
	case closed:
		return fenced.Unavailable(s.opts.Name, context.Cause(s.ctx))
	case !ok:
		return &infer.Error{Code: infer.CodeOverloaded, Engine: s.opts.Name, Retryable: true,
			Message: "the engine does not read its requests; try again later"}
	}
	return nil
}
