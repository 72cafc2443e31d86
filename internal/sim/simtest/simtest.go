// Package simtest starts simulated engines on loopback, for tests of code that talks to
// engines.
package simtest

import (
	"context"
	"net"
	"net/url"
	"testing"
	"time"

	"weir/internal/sim"
	"weir/internal/sim/simserver"
	"weir/internal/sim/simserver/exchange/exchangetest"
	"weir/internal/workload/content"
)

// Engine is a simulated engine that serves until its test ends.
type Engine struct {
	*simserver.Engine
	t testing.TB

	SGLang, VLLM *url.URL
	// Bootstrap and SideChannel are the ports at which a prefill engine is met.
	Bootstrap, SideChannel int
}

// Start starts an engine. By default a step takes a millisecond.
func Start(t testing.TB, o simserver.Options) *Engine {
	t.Helper()
	words, err := content.New(vocabulary, func(id uint32) ([]byte, bool) { return exchangetest.Tokens{}.Text(id), true })
	if err != nil {
		t.Fatal(err)
	}
	o.Tokenizer = exchangetest.Tokens{}
	o.Sim.Words, o.Sim.VocabSize = words, vocabulary
	if o.Sim.Cost == nil {
		o.Sim.Cost = sim.Constant{Prefill: time.Millisecond, Decode: time.Millisecond}
	}
	listeners, ports := make([]net.Listener, 4), make([]int, 4)
	for i := range listeners {
		if listeners[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		ports[i] = listeners[i].Addr().(*net.TCPAddr).Port
	}
	at := func(i int) *url.URL { return &url.URL{Scheme: "http", Host: listeners[i].Addr().String()} }
	e := &Engine{t: t, SGLang: at(0), VLLM: at(1), Bootstrap: ports[2], SideChannel: ports[3]}
	o.Legs.BootstrapPort = e.Bootstrap
	if e.Engine, err = simserver.New(o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	for i, serve := range []func(context.Context, net.Listener) error{e.ServeSGLang, e.ServeVLLM, e.ServeBootstrap, e.ServeSideChannel} {
		go func() { ended <- serve(ctx, listeners[i]) }()
	}
	go func() { e.Run(ctx); ended <- nil }()
	t.Cleanup(func() {
		cancel()
		for range len(listeners) + 1 {
			if err := <-ended; err != nil {
				t.Errorf("a server of the engine ended with %v", err)
			}
		}
	})
	return e
}

// Fault has faults strike the requests that come from now on.
func (e *Engine) Fault(list ...string) {
	e.t.Helper()
	var all []sim.Fault
	for _, text := range list {
		f, err := sim.ParseFault(text)
		if err != nil {
			e.t.Fatal(err)
		}
		all = append(all, f)
	}
	if err := e.SetFaults(all); err != nil {
		e.t.Fatal(err)
	}
}

// Left returns how many requests it has or holds KV for. gone reports whether a fault has
// ended it.
func (e *Engine) Left() (requests int, gone bool) {
	s := e.State()
	return s.Running + s.Waiting + s.Kept, e.Died() != nil
}

// vocabulary is the number of ids.
const vocabulary = 2048
