package cli

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/kong"

	"weir/internal/content"
	"weir/internal/gateway"
	"weir/internal/sim"
	"weir/internal/sim/simserver"
	"weir/models"
)

// simFlags shape a simulated engine, the same in engine and up.
type simFlags struct {
	MaxRunningRequests int           `default:"256" placeholder:"N" help:"Requests in the running batch (${default})."`
	MaxQueuedRequests  int           `default:"0" placeholder:"N" help:"Requests in the waiting queue; 0 is no limit."`
	Cost               string        `default:"per-batch" placeholder:"MODEL" help:"Cost model of a step: per-batch (6 ms and 0.35 ms per running request), constant, table=FILE (CSV, see docs/offline.md) or profile=NAME (published figures of a real engine, listed by weir engine --help)."`
	PrefillCost        time.Duration `default:"16.5ms" help:"Of a step with prefill, with --cost constant (${default})."`
	DecodeCost         time.Duration `default:"20ms" help:"Of a step with decode, with --cost constant (${default})."`
	MeanOutputTokens   int           `default:"200" placeholder:"N" help:"Expected length of an output that nothing else ends (${default})."`
	Content            string        `default:"auto" enum:"auto,words,echo,json" help:"What the engine says: what each request asks for (auto), or always words, the last message (echo) or a JSON document."`
	Reasoning          string        `default:"" enum:",none,low,medium,high" placeholder:"EFFORT" help:"Reasoning before each answer: low, medium or high, or none; unless given, what each request asks for."`
	Fault              []string      `sep:";" placeholder:"KIND[,SETTING=VALUE...]" help:"Make the engine fail, for example cut,after=20,rate=0.01. Repeatable."`
}

type engineCommand struct {
	simFlags
	offlineFlags
	Listen      string   `default:"127.0.0.1:9000" placeholder:"ADDR" help:"Address of a wire that names none (${default})."`
	Wire        []string `default:"openai" sep:";" placeholder:"KIND[=ADDR]" help:"What to speak: openai (HTTP) or weir (the batched plane). Repeatable, each with an address of its own."`
	AdminListen string   `placeholder:"ADDR" help:"Address of /admin/state and /admin/faults, which the openai wire serves as well."`
	Model       string   `placeholder:"[NAME=]DIR" help:"Model folder whose vocabulary the engine speaks; the built-in one unless given."`
	Name        string   `default:"sim" help:"The engine's name in its state."`
}

// Help implements kong's extended help.
func (engineCommand) Help() string {
	return `Examples:
  weir engine                                      an OpenAI-compatible engine on 127.0.0.1:9000
  weir engine --wire weir --listen 127.0.0.1:9001  an engine for weir serve --engine weir=127.0.0.1:9001
  weir engine --wire openai=:9000 --wire weir=:9001 --cost constant --decode-cost 50ms
  weir engine --fault cut,after=20,rate=0.01       one stream in a hundred breaks after 20 tokens` + offlineHelp()
}

// Run implements the command.
func (c *engineCommand) Run(k *kong.Context, s *streams) error {
	if err := c.checkOffline(k); err != nil {
		return err
	}
	ctx, _, stop := interrupt()
	defer stop()
	spec := []string(nil)
	name := models.SimName
	if c.Model != "" {
		spec = append(spec, c.Model)
	}
	folders, err := loadModels(spec)
	if err != nil {
		return err
	}
	for n := range folders {
		if len(spec) > 0 && n != models.SimName {
			name = n
		}
	}
	if c.Offline != "" {
		return c.replay(ctx, s, folders[name])
	}
	e, err := newSim(&c.simFlags, c.Name, folders[name])
	if err != nil {
		return err
	}
	var run simProcess
	if err := run.bind(c, s); err != nil {
		run.close()
		return err
	}
	return run.serve(ctx, e)
}

// newSim makes a simulated engine that speaks a model's vocabulary.
func newSim(f *simFlags, name string, m *gateway.Model) (*simserver.Engine, error) {
	options, err := f.options(name, m)
	if err != nil {
		return nil, err
	}
	speaker, err := f.speaker(m, options.Words)
	if err != nil {
		return nil, err
	}
	var faults []sim.Fault
	for _, text := range f.Fault {
		fault, err := sim.ParseFault(text)
		if err != nil {
			return nil, wrongf("--fault: %w", err)
		}
		faults = append(faults, fault)
	}
	return simserver.New(simserver.Options{Sim: options, Tokenizer: m, Speaker: speaker, Faults: faults})
}

// options turns the flags into the options of the engine's core.
func (f *simFlags) options(name string, m *gateway.Model) (sim.Options, error) {
	words, err := m.Words()
	if err != nil {
		return sim.Options{}, err
	}
	cost, err := f.cost()
	if err != nil {
		return sim.Options{}, err
	}
	return sim.Options{
		Name: name, Model: m.Name, MaxRunning: f.MaxRunningRequests, MaxQueued: f.MaxQueuedRequests,
		ContextLength: m.ContextLength, VocabSize: m.VocabSize, EOS: m.EOS,
		MeanTokens: f.MeanOutputTokens, Cost: cost, Words: words,
	}, nil
}

// speaker gives what says more than words.
func (f *simFlags) speaker(m *gateway.Model, words *content.Words) (*content.Speaker, error) {
	mode, err := content.ParseMode(f.Content)
	if err != nil {
		return nil, wrongf("--content: %w", err)
	}
	think := content.EffortUnset
	if f.Reasoning != "" {
		if think, err = content.ParseEffort(f.Reasoning); err != nil {
			return nil, wrongf("--reasoning: %w", err)
		}
	}
	return m.Speaker(words, mode, think, f.MeanOutputTokens)
}

var _ simserver.Tokenizer = (*gateway.Model)(nil)

// face is one listener of a simulated engine and what it speaks.
type face struct {
	kind string
	l    net.Listener
}

// simProcess is a simulated engine with its listeners.
type simProcess struct{ faces []face }

func (p *simProcess) bind(c *engineCommand, s *streams) error {
	used := false
	for _, wire := range c.Wire {
		kind, addr, ok := strings.Cut(wire, "=")
		if kind != "openai" && kind != "weir" {
			return wrongf("--wire %s: unknown wire %q; the wires are openai and weir", wire, kind)
		}
		if !ok {
			if used {
				return wrongf("--wire %s: a second wire needs an address of its own, as in %s=127.0.0.1:9001", wire, kind)
			}
			addr, used = c.Listen, true
		}
		if err := p.listen(kind, "--wire "+kind, addr); err != nil {
			return err
		}
	}
	if c.AdminListen != "" {
		if err := p.listen("admin", "--admin-listen", c.AdminListen); err != nil {
			return err
		}
	}
	for _, f := range p.faces {
		switch f.kind {
		case "weir":
			sayLine(s.out, "%-9s %s", f.kind, f.l.Addr())
		default:
			sayLine(s.out, "%-9s http://%s", f.kind, f.l.Addr())
		}
	}
	return nil
}

func (p *simProcess) listen(kind, flag, addr string) error {
	l, err := listen(flag, addr)
	if err != nil {
		return err
	}
	p.faces = append(p.faces, face{kind, l})
	return nil
}

func (p *simProcess) close() {
	for _, f := range p.faces {
		f.l.Close()
	}
}

// serve runs the engine and its faces until ctx ends or one of them fails.
func (p *simProcess) serve(ctx context.Context, e *simserver.Engine) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var tasks sync.WaitGroup
	errs := make([]error, len(p.faces))
	tasks.Go(func() { e.Run(ctx) })
	for i, f := range p.faces {
		serve := e.ServeOpenAI
		switch f.kind {
		case "weir":
			serve = e.ServePlane
		case "admin":
			serve = e.ServeAdmin
		}
		tasks.Go(func() {
			errs[i] = serve(ctx, f.l)
			cancel()
		})
	}
	tasks.Wait()
	return errors.Join(errs...)
}
