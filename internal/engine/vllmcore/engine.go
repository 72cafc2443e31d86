package vllmcore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/fenced"
	"weir/internal/infer"
	"weir/internal/zmtp"
)

// Engine is a group of engine cores that serve one model, reached over their own
// wire. It implements engine.Tokens and engine.Adapter.
type Engine struct {
	opts   Options
	meters fenced.Meters
	ranks  []*rank

	changed  chan struct{} // capacity 1: the state may have
	choosing sync.Mutex
	next     int // where pick begins to look

	mu     sync.Mutex
	why    error // the last thing that kept an engine from being of use
	waves  waves
	dataTo [2]string // where engines are told to connect to

}

var (
	_ engine.Tokens  = (*Engine)(nil)
	_ engine.Adapter = (*Engine)(nil)
	_ engine.Loaded  = (*Engine)(nil)
)

// New makes an Engine. Until an engine has connected to Run, Generate fails.
func New(o Options) *Engine {
	e := &Engine{opts: o.withDefaults(), changed: make(chan struct{}, 1), waves: waves{running: false, last: -1, seen: -1}}
	for i := range e.opts.Engines {
		e.ranks = append(e.ranks, &rank{index: e.opts.First + i})
	}
	return e
}

// Name gives the engine's name.
func (e *Engine) Name() string { return e.opts.Name }

// rank is one place for an engine. Engines come and go in it, one at a time.
type rank struct {
	index   int
	current atomic.Pointer[session] // from the engine's word that it can serve on

	place sync.Mutex // held by the connection that serves it

	mu      sync.Mutex
	holder  *zmtp.Conn
	known   []byte   // what the engine said of itself; nil: nothing yet
	lost    []string // requests that ended here and may still run there
	refused bool     // this engine cannot be spoken to
}

// rank gives the place of an engine's index.
func (e *Engine) rank(index int) *rank {
	if i := index - e.opts.First; i >= 0 && i < len(e.ranks) {
		return e.ranks[i]
	}
	return nil
}

// signal has Run look at the state.
func (e *Engine) signal() {
	select {
	case e.changed <- struct{}{}:
	default:
	}
}

// note keeps why an engine is of no use, for the state.
func (e *Engine) note(err error) {
	e.mu.Lock()
	e.why = err
	e.mu.Unlock()
	e.signal()
}

// pick gives the session of the engine that is best off, nil when there is none.
// Of equals they take turns.
func (e *Engine) pick() *session {
	var best *session
	var least float64
	n := len(e.ranks)
	for i := range n {
		s := e.ranks[(e.next+i)%n].current.Load()
		if s == nil || !s.up() {
			continue
		}
		if score := s.score(); best == nil || score < least {
			best, least = s, score
		}
	}
	e.next = (e.next + 1) % n
	return best
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
		tell(engine.State{Err: fmt.Errorf("vllmcore: %s: %w", e.opts.Name, err)})
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// serve binds what is to be bound and serves whoever connects until ctx ends. An
// error says what could not be bound.
func (e *Engine) serve(ctx context.Context, report func(engine.State)) error {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	e.remember()
	doors, err := e.bind()
	if err != nil {
		return err
	}
	for _, d := range doors {
		defer d.l.Close()
		tasks.Go(func() { e.accept(ctx, d, &tasks) })
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

// door is a listener and what comes through it.
type door struct {
	l net.Listener

	serve func(ctx context.Context, c net.Conn)
}

func (e *Engine) bind() (doors []door, err error) {
	defer func() {
		if err != nil {
			for _, d := range doors {
				d.l.Close()
			}
			doors = nil
		}
	}()
	open := func(at zmtp.Endpoint, serve func(context.Context, net.Conn)) error {
		l, err := zmtp.Listen(at)
		if err != nil {
			return err
		}
		doors = append(doors, door{l: l, serve: serve})
		return nil
	}
	if e.opts.InputListener != nil {
		doors = append(doors, door{l: e.opts.InputListener, serve: e.input}, door{l: e.opts.OutputListener, serve: e.output})
		return doors, nil
	}
	if err := errors.Join(open(e.opts.Input, e.input), open(e.opts.Output, e.output)); err != nil {
		return doors, err
	}
	e.mu.Lock()
	e.dataTo = [2]string{zmtp.EndpointOf(doors[0].l).String(), zmtp.EndpointOf(doors[1].l).String()}
	e.mu.Unlock()
	return doors, open(e.opts.Handshake, e.handshake)
}

// accept serves a door until it is closed.
func (e *Engine) accept(ctx context.Context, d door, tasks *sync.WaitGroup) {
	for {
		c, err := d.l.Accept()
		switch {
		case ctx.Err() != nil:
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
				d.serve(ctx, c)
			})
		}
	}
}

// state is what to report.
func (e *Engine) state() engine.State {
	facts := engine.Facts{Models: []string{e.opts.Model}, Carries: infer.CarriesAll}
	up := 0
	for _, r := range e.ranks {
		s := r.current.Load()
		if s == nil || !s.up() {
			continue
		}
		up++
		if n := s.ready.contextLength; facts.ContextLength == 0 || n < facts.ContextLength {
			facts.ContextLength = n
		}
		facts.MaxRunning += s.ready.maxRunning
		facts.Carries &= s.ready.carries()
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
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.why
	if err == nil {
		err = e.nobody()
	}
	return engine.State{Err: fmt.Errorf("vllmcore: %s: %w", e.opts.Name, err)}
}

// nobody is what is said while no engine has come, and what to do about it.
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
