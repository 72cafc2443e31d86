package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"

	"github.com/alecthomas/kong"

	"weir/internal/config"
	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/kvpub"
	"weir/internal/sim/simserver"
	"weir/models"
)

type upCommand struct {
	gatewayFlags
	Engines  int  `group:"The simulated engines:" default:"2" placeholder:"N" help:"Number of simulated engines (${default})."`
	KVEvents bool `group:"The simulated engines:" name:"kv-events" help:"Make the engines publish the content of their KV caches, on free ports (needs --max-total-tokens)."`

	Alias []string `group:"The simulated engines:" sep:";" placeholder:"NAME" help:"Another name under which clients may ask for the engines' model. Repeatable."`

	Disaggregated bool `group:"The simulated engines:" help:"Separate prefill and decode: run --engines engines of each kind, which work like SGLang's (docs/disaggregation.md)."`
	simFlags      `group:"The simulated engines:"`
}

// Help implements kong's extended help.
func (upCommand) Help() string {
	return `Examples:
  weir up
  weir up --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 --timeline timeline.jsonl
  weir up --engines 4 --cost constant --decode-cost 10ms
  weir up --disaggregated                          two prefill and two decode engines`
}

// Run implements the command: the engines run in this process, but the gateway
// reaches them over their real wire.
func (c *upCommand) Run(k *kong.Context, s *streams) error {
	if c.Engines < 1 {
		return wrongf("--engines must be at least 1")
	}
	signals := s.signals()
	defer signals.stop()

	opts, err := c.gatewayFlags.options()
	if err != nil {
		return err
	}
	c.settings = flagsOf(k)
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
	for _, each := range c.parts() {
		options, err := c.simFlags.options(each.name)
		if err != nil {
			return err
		}
		p, e, engine, err := c.start(each, options, model)
		if err != nil {
			p.close()
			return err
		}
		sims, engines = append(sims, p), append(engines, engine)
		tasks.Go(func() {
			if err := p.serve(running, e); err != nil {
				sayLine(s.err, "weir: engine %s: %v", each.name, err)
			}
		})
	}
	p, err := unlessStopped(signals.stopping, 0, func() (*process, error) {
		return newProcess(&c.gatewayFlags, opts, engines, servedModels{model.Name: c.named(model)}, s)
	})
	if err != nil {
		return err
	}
	p.changes.wishes.models = []config.Model{c.named(model).Model}
	for _, e := range engines {
		p.changes.wishes.fixed = append(p.changes.wishes.fixed, &config.Wanted{Engine: e, Spec: e.Kind + "=" + e.Addr, Origin: "up"})
	}
	if p.changes.desired, _, err = p.changes.wishes.desired(); err != nil {
		return errors.Join(err, p.close())
	}
	c.announce(p, sims)
	return p.serve(signals)
}

// named returns the model with its further names.
func (c *upCommand) named(m *servedModel) *servedModel {
	as := m.Model
	as.Aliases = words(c.Alias)
	return &servedModel{as, m.folder}
}

// upEngine is one of the engines to start.
type upEngine struct {
	name, wire string
	role       infer.Role
}

// parts are the engines to start.
func (c *upCommand) parts() (all []upEngine) {
	if !c.Disaggregated {
		for i := range c.Engines {
			all = append(all, upEngine{name: fmt.Sprintf("sim-%d", i+1), wire: "weir"})
		}
		return all
	}
	for _, role := range []infer.Role{infer.RolePrefill, infer.RoleDecode} {
		for i := range c.Engines {
			all = append(all, upEngine{fmt.Sprintf("%s-%d", role, i+1), "sglang", role})
		}
	}
	return all
}

// The transports by which an engine with a role fetches KV.
const (
	upKVBytes     = 128 << 10 // of a token, as of Llama 3.1 8B
	upKVBandwidth = 25e9      // bytes in a second, as of 200 Gb/s
	upKVTokens    = 512 << 10 // that it holds: without a bound it would find no prompt again
)

// start binds the listeners of an engine, and returns how the gateway finds it. The engine
// owns what it has bound even if it cannot be started.
func (c *upCommand) start(each upEngine, o simserver.Options, m *servedModel) (p simProcess, e *simserver.Engine, found config.Engine, err error) {
	if each.role != infer.RoleBoth {
		o.Role = each.role
		o.SGLang.Incremental, o.SGLang.Metrics = true, true
		o.Sim.Transfer = sim.Transfer{BytesPerToken: upKVBytes, Bandwidth: upKVBandwidth}
		o.Sim.KVTokens = cmp.Or(o.Sim.KVTokens, upKVTokens)
	}
	if each.role == infer.RoleDecode {
		o.Sim.Retraction = sim.RetractRestore
	}
	if p.publisher, err = c.publisher(&o); err != nil {
		return p, nil, found, err
	}
	for _, kind := range []string{each.wire, "admin"} {
		if err := p.listen(kind, "--engines", "127.0.0.1:0"); err != nil {
			return p, nil, found, err
		}
	}
	if err := p.legs(&o); err != nil {
		return p, nil, found, err
	}
	if e, err = newSim(&c.simFlags, o, m); err != nil {
		return p, nil, found, err
	}
	found = config.Engine{Kind: each.wire, Addr: p.servers[0].l.Addr().String(), Name: each.name}
	if each.wire == "sglang" {
		found.URL = &url.URL{Scheme: "http", Host: found.Addr}
	}
	return p, e, found, nil
}

// publisher binds where an engine publishes what its KV cache holds; nil: nowhere.
func (c *upCommand) publisher(o *simserver.Options) (*kvpub.Publisher, error) {
	switch {
	case !c.KVEvents:
		return nil, nil
	case c.DPSize > 1:
		return nil, wrongf("--kv-events needs engines with one rank, because the plane names no ranks: drop --kv-events, or --dp-size")
	}
	config, err := kvpub.ParseConfig(`{"endpoint":"tcp://127.0.0.1:0","replay_endpoint":"tcp://127.0.0.1:0"}`)
	if err != nil {
		return nil, err
	}
	form := kvpub.VLLM
	if c.Disaggregated {
		form = o.SGLang.KVEventForm()
	}
	return publish(o, config, form)
}

// announce prints what runs where, and how to try it.
func (c *upCommand) announce(p *process, sims []simProcess) {
	paths := "    /metrics /healthz /readyz /engines /requests /records /stages /timeline/ID /timeline (follows) /admin/integrity"
	if p.admin.pprof {
		paths += " /debug/pprof/"
	}
	p.announce(paths)
	for i, each := range c.parts() {
		wire := "weir plane"
		if each.role != infer.RoleBoth {
			wire = fmt.Sprintf("SGLang's API, a %s engine", each.role)
		}
		p.say("engine    %s on %s (%s), model %s, state http://%s/admin/state",
			each.name, sims[i].servers[0].l.Addr(), wire, models.SimName, sims[i].servers[1].l.Addr())
	}
	host := p.api.listener.Addr().String()
	if _, port, err := net.SplitHostPort(host); err == nil {
		host = "127.0.0.1:" + port
	}
	p.say("\nTry it:\n")
	curl := "curl -N"
	if p.api.certificate != nil {
		curl += " --cacert " + c.TLSCert
	}
	p.say(`  %s %s/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"model": "%s", "stream": true, "max_tokens": 32, "messages": [{"role": "user", "content": "Hello"}]}'`, curl, p.api.url(host), models.SimName)
	p.say("\nCtrl-C drains and stops.")
}
