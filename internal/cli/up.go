package cli

import (
	"context"
	"fmt"
	"net"
	"sync"

	"weir/internal/config"
	"weir/internal/sim/kvpub"
	"weir/internal/sim/simserver"
	"weir/models"
)

type upCommand struct {
	gatewayFlags
	Engines  int  `default:"2" placeholder:"N" help:"Simulated engines to run (${default})."`
	KVEvents bool `name:"kv-events" help:"Have the engines publish what their KV caches hold, on free ports (needs --max-total-tokens)."`
	simFlags
}

// Help implements kong's extended help.
func (upCommand) Help() string {
	return `Examples:
  weir up
  weir up --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 --timeline timeline.jsonl
  weir up --engines 4 --cost constant --decode-cost 10ms`
}

// Run implements the command: the engines run in this process, but the gateway
// reaches them over their real wire.
func (c *upCommand) Run(s *streams) error {
	if c.Engines < 1 {
		return wrongf("--engines must be at least 1")
	}
	signals := s.signals()
	defer signals.stop()

	opts, err := c.gatewayFlags.options()
	if err != nil {
		return err
	}
	model, err := builtInModel()
	if err != nil {
		return err
	}
	var sims []simProcess
	defer func() {
		for _, p := range sims {
			p.close()
		}
	}()
	running, stopSims := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer stopSims()
	var engines []config.Engine
	for i := range c.Engines {
		name := fmt.Sprintf("sim-%d", i+1)
		options, err := c.simFlags.options(name)
		if err != nil {
			return err
		}
		var p simProcess
		if p.publisher, err = c.publisher(&options); err != nil {
			return err
		}
		e, err := newSim(&c.simFlags, options, model)
		if err != nil {
			p.close()
			return err
		}
		for _, kind := range []string{"weir", "admin"} {
			if err := p.listen(kind, "--engines", "127.0.0.1:0"); err != nil {
				p.close()
				return err
			}
		}
		sims = append(sims, p)
		engine := config.Engine{Kind: "weir", Addr: p.faces[0].l.Addr().String(), Name: name}
		if p.publisher != nil {
			at := p.publisher.Sources()[0]
			engine.KVEvents, engine.KVReplay = at.Endpoint, *at.ReplayEndpoint
		}
		engines = append(engines, engine)
		tasks.Go(func() {
			if err := p.serve(running, e); err != nil {
				sayLine(s.err, "weir: engine %s: %v", name, err)
			}
		})
	}
	p, err := newProcess(&c.gatewayFlags, opts, engines, servedModels{model.Name: model}, s)
	if err != nil {
		return err
	}
	c.announce(p, sims)
	return p.serve(signals)
}

// publisher binds where an engine publishes what its KV cache holds; nil: nowhere.
func (c *upCommand) publisher(o *simserver.Options) (*kvpub.Publisher, error) {
	switch {
	case !c.KVEvents:
		return nil, nil
	case c.DPSize > 1:
		return nil, wrongf("--kv-events is of engines with one rank: these are reached over the plane, which names no ranks")
	}
	config, err := kvpub.ParseConfig(`{"endpoint":"tcp://127.0.0.1:0","replay_endpoint":"tcp://127.0.0.1:0"}`)
	if err != nil {
		return nil, err
	}
	return publish(o, config, kvpub.VLLM)
}

// announce prints what runs where, and how to try it.
func (c *upCommand) announce(p *process, sims []simProcess) {
	paths := "    /metrics /healthz /readyz /engines /timeline/ID /timeline (follows) /admin/integrity"
	if p.pprof {
		paths += " /debug/pprof/"
	}
	p.announce(paths)
	for i, sim := range sims {
		p.say("engine    sim-%d on %s (weir plane), model %s, state http://%s/admin/state",
			i+1, sim.faces[0].l.Addr(), models.SimName, sim.faces[1].l.Addr())
	}
	host := p.listener.Addr().String()
	if _, port, err := net.SplitHostPort(host); err == nil {
		host = "127.0.0.1:" + port
	}
	p.say("\nTry it:\n")
	curl := "curl -N"
	if p.certificate != nil {
		curl += " --cacert " + c.TLSCert
	}
	p.say(`  %s %s/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"model": "%s", "stream": true, "max_tokens": 32, "messages": [{"role": "user", "content": "Hello"}]}'`, curl, p.url(host), models.SimName)
	p.say("\nCtrl-C drains and stops.")
}
