package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"weir/internal/config"
	"weir/internal/engine"
	"weir/internal/engine/access"
	"weir/internal/engine/auto"
	"weir/internal/engine/plane"
	"weir/internal/engine/relay"
	"weir/internal/engine/sglang"
	"weir/internal/engine/vllm"
	"weir/internal/fleet"
	"weir/internal/fleet/balance"
	"weir/internal/fleet/health"
	"weir/internal/fleet/route"
	"weir/internal/gateway"
	"weir/internal/gateway/drive"
	"weir/internal/gateway/prepare"
	"weir/internal/gcpace"
	"weir/internal/infer"
	"weir/internal/observe/integrity"
	"weir/internal/observe/metrics"
	"weir/internal/observe/otlp"
	"weir/internal/observe/watch"
	"weir/internal/tenancy"
	"weir/models"
)

type serveCommand struct {
	gatewayFlags
	Engine   []string `group:"Engines and models:" sep:";" placeholder:"[KIND=]URL[,OPTION=VALUE]..." help:"An engine. A URL alone lets weir find out its kind (auto). openai=URL relays bytes unchanged; sglang=URL speaks SGLang's own API; vllm=URL speaks to vLLM's server in token ids; sglang-ipc=DIR speaks to SGLang's schedulers, in place of SGLang's server; vllm-core=tcp://HOST:PORT[,dp=N] is the address to which vLLM's engine cores connect, in place of vLLM's API server; weir=HOST:PORT speaks the batched plane. Options: model=NAME is the model that it serves, name=NAME its own name. key-file=FILE has the key that the engine requires. ca=FILE, cert=FILE[,cert-key=FILE] and server-name=NAME configure TLS (https://, or weir=HOST:PORT,tls=true). pass-key=true forwards the callers' own keys. verify=ids checks the streams of a relayed vLLM or SGLang by their token ids (docs/engines.md). kv-events=tcp://HOST:PORT[,kv-replay=...][,kv-topic=...] is where the engine publishes the content of its KV cache, if it does not report that itself; kv-events=off ignores them (docs/kv-events.md). role=prefill or role=decode declares that the engine serves halves of requests, if it does not report that itself (docs/disaggregation.md). Repeatable."`
	Model    []string `group:"Engines and models:" sep:";" placeholder:"[NAME=]DIR[,alias=NAME][,lora=NAME=PATH][,max-tokens=N][,max-n=N][,policy=NAME][,isolation=WHOSE]" help:"A Hugging Face model folder. Each model of an sglang, sglang-ipc, vllm, vllm-core or weir engine needs one; weir-sim is built in. Options: lora=NAME=PATH makes vllm-core engines load an adapter and serves it as a model (docs/engines.md). tool-parser=NAME and reasoning-parser=NAME replace the parsers that weir detects for tool calls and reasoning (docs/parsers.md). max-tokens=N and max-n=N limit requests (docs/apis.md). alias=NAME is another name of the model. policy=NAME sets --policy for this model alone, and isolation=WHOSE sets --isolation. A model without a folder here may have the last five: NAME,max-tokens=N. Repeatable."`
	Discover []string `group:"Engines and models:" sep:";" placeholder:"kubernetes=WHAT[,OPTION=VALUE]..." help:"Find engines in a Kubernetes cluster, and follow its changes (docs/kubernetes.md). WHAT is service/NAME (the endpoints of a Service), pool/NAME (an InferencePool) or pods (with selector=KEY=VALUE). Options: namespace=NAME (weir's own), port=NAME or NUMBER (A+B makes an engine of each port, for example one per data-parallel rank), selector=KEY=VALUE, prefill-selector= and decode-selector= (each may be repeated), model-from=label:KEY or annotation:KEY, kind=KIND (auto), scheme=http or https, kubeconfig=FILE (outside of the cluster), and the options of --engine. Repeatable."`
	Config   string   `group:"Engines and models:" type:"path" placeholder:"FILE" help:"A YAML file with any of these flags."`

	discoveries []reached // of Discover
}

// Help implements kong's extended help.
func (serveCommand) Help() string {
	return `Examples:
  weir serve --engine http://127.0.0.1:30000
  weir serve --engine openai=http://127.0.0.1:30000
  weir serve --engine openai=http://a:8000 --engine openai=http://b:8000 --timeline timeline.jsonl
  weir serve --engine sglang=http://127.0.0.1:30000 --model llama=/models/llama
  weir serve --engine https://gpu1:8000,key-file=/etc/weir/vllm.key,ca=/etc/weir/ca.pem
  weir serve --engine weir=127.0.0.1:9000 --model llama=/models/llama
  weir serve --engine sglang-ipc=/run/weir-sglang --model llama=/models/llama
  weir serve --engine vllm-core=tcp://127.0.0.1:5570 --model llama=/models/llama
  weir serve --engine http://a:8000 --engine http://b:8000 --policy round-robin
  weir serve --engine http://a:8000,role=prefill --engine http://b:8000,role=decode
  weir serve --engine http://a:8000 --timeline timeline.jsonl --timeline-sample 0.01
  weir serve --engine http://a:8000 --keys keys.yaml --usage-log usage.jsonl --usage-log-max-size 100MiB
  weir serve --engine http://a:8000 --otlp http://127.0.0.1:4317
  weir serve --engine http://a:8000 --log-format json --access-log 0.01
  weir serve --engine http://a:8000 --stall-threshold 100ms --profiles-dir /var/lib/weir/profiles
  weir serve --discover kubernetes=service/vllm,namespace=models
  weir serve --config weir.yaml`
}

// Run implements the command.
func (c *serveCommand) Run(k *kong.Context, s *streams) error {
	if len(c.Engine)+len(c.Discover) == 0 {
		return wrongf("no engine was given; add --engine http://HOST:PORT or --discover kubernetes=service/NAME, or run \"weir up\" to try weir with simulated engines")
	}
	signals := s.signals()
	defer signals.stop()
	p, err := unlessStopped(signals.stopping, 0, func() (*process, error) { return c.start(k, s, signals) })
	if err != nil {
		return err
	}
	return p.serve(signals)
}

// start makes the process.
func (c *serveCommand) start(k *kong.Context, s *streams, signals *signals) (*process, error) {
	c.settings = flagsOf(k)
	from := &sources{again: s.again, path: c.Config, every: c.ResolveInterval, look: resolver, began: c.settings, inFile: s.inFile}
	from.watch.Took(append(listPaths(c.Engine), c.Config)...)
	loaded := ifSlow(func() {
		sayLine(s.out, "loading   the folders of models (%s); weir listens after that", strings.Join(c.Model, "; "))
	})
	parts, problems := c.judge(false)
	loaded()
	if problems != nil {
		return nil, errors.Join(problems...)
	}
	for i := range c.discoveries {
		if err := c.discoveries[i].read(); err != nil {
			return nil, err
		}
	}
	from.given = c.discoveries
	say := func(format string, args ...any) { sayLine(s.out, format, args...) }
	wanted := parts.wishes
	wanted.names = from.lookUp(signals.stopping, hosts(wanted.flags, wanted.lists), nil, say)
	want, notes, err := wanted.desired()
	if err != nil {
		return nil, err
	}
	for _, note := range notes {
		say("resolve   %v", note)
	}
	engines := enginesOf(&want)
	p, err := newProcess(&c.gatewayFlags, parts.opts, engines, parts.models, s)
	if err != nil {
		return nil, err
	}
	p.sources, p.changes.wishes, p.changes.desired = from, wanted, want
	p.announce("")
	noteModels(parts.models, say)
	for _, e := range p.fleet.Snapshot().Engines {
		if e.Kind == "auto" {
			continue // it is said what it is when it is found
		}
		p.say("engine    %s (%s)", e.Name, e.Kind)
	}
	return p, nil
}

// noteModels says what is to be known of the folders of models.
func noteModels(models servedModels, say func(format string, args ...any)) {
	for _, name := range slices.Sorted(maps.Keys(models)) {
		for _, note := range models[name].folder.Notes() {
			say("model     %s: %s", name, note)
		}
	}
}

// enginesOf returns the engines of a wanted fleet.
func enginesOf(want *config.Desired) (all []config.Engine) {
	for i := range want.Engines {
		all = append(all, want.Engines[i].Engine)
	}
	return all
}

// serveParts are the results of checking the flags of weir serve.
type serveParts struct {
	opts   gateway.Options
	wishes wishes // names are not looked up yet
	models servedModels
}

// judge checks the flags, and reads the folders of models. It binds no port and asks no
// engine. Cheap checks come first, because a folder may take seconds to read. It returns at
// the first problem, unless all are wanted.
func (c *serveCommand) judge(all bool) (p serveParts, problems []error) {
	var specs []config.Model
	for _, step := range [...]func() error{
		func() (err error) { p.opts, err = c.options(); return err },
		func() (err error) {
			if p.wishes.lists, err = readLists(c.Engine, nil); err == nil {
				p.wishes.flags, p.wishes.discover = c.Engine, c.Discover
				_, _, err = p.wishes.given()
			}
			return err
		},
		func() (err error) { c.discoveries, err = reach(c.Discover); return err },
		func() (err error) { specs, err = parseModels(c.Model); p.wishes.models = specs; return err },
		func() error {
			if problems != nil { // what is missing would be blamed on the others
				return nil
			}
			want, _, err := p.wishes.desired()
			if err != nil {
				return err
			}
			return c.oneFrontEnd(enginesOf(&want))
		},
		func() error { return c.checkIsolations(specs) },
		func() (err error) { c.policies, err = policiesOf(specs); return err },
		func() (err error) { p.models, err = loadModels(specs); return err },
	} {
		err := step()
		if joined, several := err.(interface{ Unwrap() []error }); several {
			problems = append(problems, joined.Unwrap()...)
		} else if err != nil {
			problems = append(problems, err)
		}
		if err != nil && !all {
			return p, problems
		}
	}
	p.opts.Prepare.Caps, c.aliases, c.isolations = capsOf(specs), aliasesOf(specs), isolationsOf(specs)
	return p, problems
}

// capsOf returns the caps of models that have any, by name.
func capsOf(specs []config.Model) map[string]prepare.Cap {
	caps := map[string]prepare.Cap{}
	for _, m := range specs {
		if c := (prepare.Cap{MaxTokens: m.MaxTokens, N: m.MaxN}); c != (prepare.Cap{}) {
			caps[m.Name] = c
		}
	}
	return caps
}

// policiesOf returns the policies of models that have one of their own, by name.
func policiesOf(specs []config.Model) (map[string]string, error) {
	policies := map[string]string{}
	for _, m := range specs {
		if m.Policy == "" {
			continue
		}
		if _, err := balance.New(m.Policy); err != nil {
			return nil, wrongf("--model %s,policy=%s: %w", m.Name, m.Policy, err)
		}
		policies[m.Name] = m.Policy
	}
	return policies, nil
}

// isolationsOf returns the isolations of models that have one of their own, by name.
func isolationsOf(specs []config.Model) map[string]tenancy.Isolation {
	isolations := map[string]tenancy.Isolation{}
	for _, m := range specs {
		if m.Isolation != nil {
			isolations[m.Name] = *m.Isolation
		}
	}
	return isolations
}

// aliasesOf returns the aliases of models that have no folder here, by name.
func aliasesOf(specs []config.Model) map[string][]string {
	aliases := map[string][]string{}
	for _, m := range specs {
		if m.Dir == "" && m.Name != models.SimName && len(m.Aliases) > 0 {
			aliases[m.Name] = m.Aliases
		}
	}
	return aliases
}

// newProcess assembles a gateway in front of engines.
func newProcess(f *gatewayFlags, opts gateway.Options, engines []config.Engine, served servedModels, s *streams) (*process, error) {
	say := func(format string, args ...any) { sayLine(s.out, format, args...) }
	now := new(current)
	var members func([]config.Engine, servedModels) ([]fleet.Member, error)
	p, err := assemble(f, opts, func(o *gateway.Options) ([]fleet.Member, error) {
		members = func(engines []config.Engine, served servedModels) ([]fleet.Member, error) {
			if err := now.set(served); err != nil {
				return nil, err
			}
			return newEngines(engines, f, now, o, say)
		}
		return members(engines, served)
	}, served, s, nil)
	if err != nil {
		return nil, err
	}
	p.changes = &changes{fleet: p.fleet, members: members, say: say, bound: f.EngineDrainTimeout, models: served, check: f.checkIsolations}
	p.metrics.Changes(p.changes.generation.Load, p.fleet.Snapshot)
	return p, nil
}

// assemble makes a gateway of its parts; opts are what the flags give. The listeners are bound
// last, so that an address that answers belongs to a gateway that works; that of the API may
// have been bound by somebody else.
func assemble(f *gatewayFlags, opts gateway.Options, connect func(*gateway.Options) ([]fleet.Member, error), served servedModels, s *streams, api net.Listener) (*process, error) {
	opts.Log, opts.Record.Access = f.logger(s.err), f.access(s.err)
	certificate, err := f.certificate(opts.Log)
	if err != nil {
		return nil, err
	}
	adminTLS, err := f.adminCertificate(opts.Log)
	if err != nil {
		return nil, err
	}
	authorities, err := f.clientAuthorities(opts.Log)
	if err != nil {
		return nil, err
	}
	known, err := f.openKeys()
	if err != nil {
		return nil, err
	}
	if known.callers != nil {
		opts.Prepare.Callers = known.callers.Identify
	}
	opts.Prepare.Models = served.folders()
	opts.Stream.Batch = new(drive.Batch)
	opts.Metrics = metrics.New()
	if known.shared, err = f.store(known.callers, opts.Log, opts.Metrics); err != nil {
		return nil, err
	}
	opts.Attempt.Integrity = integrity.New(integrity.Options{Log: opts.Log, Count: opts.Metrics.IntegrityFailure})
	members, err := connect(&opts)
	if err != nil {
		return nil, err
	}
	var p *process
	var fl *fleet.Fleet
	peer, err := f.peer(opts.Log, opts.Metrics, func() *route.Snapshot { return fl.Snapshot() })
	if err != nil {
		return nil, err
	}
	fl, err = newFleet(members, served, f, &opts, peer, func(m fleet.Member, e fleet.Emptied) { p.emptied(m, e) })
	if err != nil {
		return nil, err
	}
	opts.Snapshot = fl.Snapshot
	opts.Metrics.Fleet(fl.Snapshot)
	opts.Metrics.Lateness(fl.Missed)
	spans, err := f.exporter(opts.Log)
	if err != nil {
		return nil, err
	}
	if spans != nil {
		opts.Record.Spans = spans
		opts.Metrics.Spans(spans.Sent, spans.Dropped)
	}
	undo := func(err error) error {
		return errors.Join(err, (&written{opts.Record.Timeline, opts.Record.Usage, spans}).finish())
	}
	if opts.Record.Timeline, err = f.recorder(opts.Log); err != nil {
		return nil, undo(err)
	}
	if opts.Record.Timeline != nil {
		opts.Metrics.Timeline(opts.Record.Timeline)
	}
	if opts.Record.Usage, err = f.usage(opts.Log); err != nil {
		return nil, undo(err)
	}
	opts.Attempt.Counting = f.RelayUsage == "auto" && (f.identifies() || opts.Record.Usage != nil)
	if opts.Record.Usage != nil {
		opts.Metrics.UsageLog(opts.Record.Usage)
	}
	self, err := f.newWatcher(watch.Options{Registry: opts.Metrics.Registry(), Log: opts.Log, Stood: fl.Late, Limits: f.limits(f.WatchCPU),
		Load:    func() watch.Load { return p.gateway.Load() },
		Pending: func() int64 { return p.gateway.Pending() }})
	if err != nil {
		return nil, undo(err)
	}
	opts.Watch = self.Watch
	p = &process{log: opts.Log, self: self, metrics: opts.Metrics, integrity: opts.Attempt.Integrity, fleet: fl, written: written{opts.Record.Timeline, opts.Record.Usage, spans}, keys: known, settings: f.settings, started: time.Now(),
		api:     apiListener{certificate: certificate, authorities: authorities, h2c: f.H2C},
		admin:   adminListener{certificate: adminTLS, hosts: f.adminHosts(), pprof: f.PProf, changes: f.AdminChanges},
		leaving: leaving{delay: f.ShutdownDelay, drain: f.DrainTimeout},
		say:     func(format string, args ...any) { sayLine(s.out, format, args...) }}
	known.shared.Start()
	given, err := takeActivated()
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	if err := errors.Join(f.fit("LISTEN_FDS:", given.api, f.identifies(), "--keys"), f.fit("LISTEN_FDS, admin:", given.admin, f.AdminKeys != "", "--admin-keys")); err != nil {
		return nil, errors.Join(err, given.close(), p.close())
	}
	p.leaving.shared, p.admin.listener = f.ReusePort && given.api == nil, given.admin
	if p.api.listener = cmp.Or(api, given.api); p.api.listener == nil {
		if p.api.listener, err = listen("--listen", f.Listen, f.ReusePort); err != nil {
			return nil, errors.Join(err, p.close())
		}
	}
	if f.AdminListen != "off" && p.admin.listener == nil {
		if p.admin.listener, err = listen("--admin-listen", f.AdminListen, f.ReusePort); err != nil {
			p.api.listener.Close()
			return nil, errors.Join(err, p.close())
		}
	}
	if peer != nil {
		if peer.listener, err = listen("--peer-listen", f.PeerListen, f.ReusePort); err != nil {
			return nil, errors.Join(err, p.api.listener.Close(), p.close())
		}
		opts.Metrics.Peers(peer.figures)
		p.peer = peer
	}
	if f.ProxyProtocol {
		p.api.proxies = opts.Front.Proxies
	}
	p.gateway = gateway.New(opts)
	gcpace.Keep(func() bool { return p.gateway.Load().Streams > 0 })
	return p, nil
}

// closed ends what sends spans, if anything does.
func closed(spans *otlp.Exporter) error {
	if spans == nil {
		return nil
	}
	return spans.Close()
}

// newEngines makes an adapter for each engine. It calls say with the kind of each engine
// that was given without one.
func newEngines(engines []config.Engine, f *gatewayFlags, now *current, o *gateway.Options, say func(format string, args ...any)) ([]fleet.Member, error) {
	if err := f.oneFrontEnd(engines); err != nil {
		return nil, err
	}
	warnOfTwins(engines, o.Log)
	served := now.of.Load().models
	var members []fleet.Member
	for _, e := range engines {
		a, err := accessTo(&e, o.Log)
		if err != nil {
			return nil, err
		}
		dialled := func(e config.Engine) engine.Adapter { return dialled(e, a, f, now.additions, o) }
		var adapter engine.Adapter
		var lora []string
		switch e.Kind {
		case "auto":
			adapter = find(e, a, dialled, now, o, say)
		case "sglang-ipc":
			v, err := newSGLangIPC(&e, served, o)
			if err != nil {
				return nil, err
			}
			adapter = v
		case "vllm-core":
			v, err := newVLLMCore(&e, served, o)
			if err != nil {
				return nil, err
			}
			adapter = v
			if m := served.find(e.Model); m != nil {
				lora = slices.Sorted(maps.Keys(m.adapters()))
			}
		default:
			adapter = dialled(e)
		}
		halves, err := halvesOf(&e)
		if err != nil {
			return nil, wrongf("--engine %s: %w", e.Name, err)
		}
		members = append(members, fleet.Member{Name: e.Name, Kind: e.Kind, Model: e.Model, LoRA: lora, MaxRunning: e.MaxRunning, Adapter: adapter, NoKVEvents: e.KVEvents == "off",
			Setting: fleet.Setting{Weight: e.Weight}, Halves: halves, KVEvents: engine.KVEvents{Endpoint: strings.TrimPrefix(e.KVEvents, "off"), Replay: e.KVReplay, Topic: e.KVTopic}})
	}
	return members, nil
}

// accessTo reads the credentials for an engine and the certificate that it must have.
func accessTo(e *config.Engine, log *slog.Logger) (*access.Access, error) {
	secure := e.TLS || e.URL != nil && e.URL.Scheme == "https"
	a, err := access.New(access.Options{KeyFile: e.KeyFile, TLS: secure, CA: e.CA, ServerName: e.ServerName, Cert: e.Cert, CertKey: e.CertKey, Log: log})
	if err != nil {
		return nil, wrongf("--engine %s: %w", e.Name, err)
	}
	return a, nil
}

// halvesOf is an engine's part where prefill and decode run on two engines, as its
// specification says.
func halvesOf(e *config.Engine) (h fleet.Halves, err error) {
	said := &e.Halves
	if h.Given = said.Role != ""; h.Given {
		if h.Role, err = infer.ParseRole(said.Role); err != nil {
			return h, err
		}
	}
	if said.Handover != "" {
		if h.Meets.Way, err = engine.ParseWay(said.Handover); err != nil {
			return h, err
		}
	}
	h.Meets.Host, h.Meets.Port, h.Meets.EngineID = said.Host, said.Port, said.EngineID
	switch {
	case e.URL != nil:
		h.Host = e.URL.Hostname()
	case e.Dir != "":
		h.Host = "127.0.0.1"
	default:
		h.Host, _, err = net.SplitHostPort(e.Addr)
	}
	return h, err
}

// dialled makes the adapter of an engine that weir connects to.
func dialled(e config.Engine, a *access.Access, f *gatewayFlags, additions func(model string) engine.Additions, o *gateway.Options) engine.Adapter {
	switch e.Kind {
	case "openai":
		return relay.New(relay.Options{Name: e.Name, URL: e.URL, Model: e.Model, ConnectTimeout: f.ConnectTimeout, FirstByteTimeout: f.FirstTimeout, Access: a, PassKey: e.PassKey, VerifyIDs: e.VerifyIDs, AskHalves: e.Halves.Ask(), Decodes: e.Halves.Role == "decode", Panicked: panicked(e.Name, o)})
	case "sglang":
		return sglang.New(sglang.Options{Name: e.Name, URL: e.URL, Model: e.Model, Additions: additions, ConnectTimeout: f.ConnectTimeout, Access: a, Batch: o.Stream.Batch, Panicked: panicked(e.Name, o)})
	case "vllm":
		return vllm.New(vllm.Options{Name: e.Name, URL: e.URL, Model: e.Model, Additions: additions, ConnectTimeout: f.ConnectTimeout, Access: a, Batch: o.Stream.Batch, Panicked: panicked(e.Name, o)}, vllm.Flags{Priority: e.Priority, AskHalves: e.Halves.Ask(), Decodes: e.Halves.Role == "decode"})
	}
	return plane.New(plane.Options{Name: e.Name, Addr: e.Addr, Access: a, Batch: o.Stream.Batch, Panicked: panicked(e.Name, o)})
}

// panicked logs and counts the panics while the output of an engine is read.
func panicked(name string, o *gateway.Options) func(*infer.Panic) {
	return func(p *infer.Panic) {
		o.Log.Error("panic while reading an engine", "engine", name, "panic", fmt.Sprint(p.Value), "stack", string(p.Stack))
		o.Metrics.Panicked(name)
	}
}

// peerPanicked logs and counts the panics while the output of a peer that is no engine is read.
func peerPanicked(peer string, log *slog.Logger, m *metrics.Metrics) func(*infer.Panic) {
	return func(p *infer.Panic) {
		log.Error("panic while reading what a peer has sent", "peer", peer, "panic", fmt.Sprint(p.Value), "stack", string(p.Stack))
		m.Panicked("")
	}
}

// find makes the adapter of an engine that was given without its kind.
func find(e config.Engine, a *access.Access, dialled func(config.Engine) engine.Adapter, now *current, o *gateway.Options, say func(format string, args ...any)) engine.Adapter {
	return auto.New(auto.Options{
		Name: e.Name, URL: e.URL, Model: e.Model, Access: a, Panicked: panicked(e.Name, o),
		PassKey: e.PassKey,
		Describe: func(ctx context.Context, addr string) (engine.Facts, error) {
			return plane.Describe(ctx, addr, a)
		},
		Folder: func(model string) bool { return now.find(model) != nil },
		New: func(kind string) engine.Adapter {
			of := e
			of.Kind, of.Addr = kind, e.URL.Host
			return dialled(of)
		},
		Found: func(found auto.Finding) {
			what := found.Kind
			if found.Software != "" {
				what += ", found to be " + found.Software
			}
			say("engine    %s (%s)", e.Name, what)
			if found.Note != "" {
				say("          %s %s", e.Name, found.Note)
			}
		},
	})
}

// ofRank appends the rank of a log line to the engine's name.
func ofRank(words []any, rank int) []any {
	if rank < 0 {
		return words
	}
	return slices.Insert(words, 2, any("rank"), any(rank))
}

// newFleet puts the engines in front of the models.
func newFleet(members []fleet.Member, served servedModels, f *gatewayFlags, g *gateway.Options, peer *peer, emptied func(fleet.Member, fleet.Emptied)) (*fleet.Fleet, error) {
	o := fleet.Options{Members: members, Folders: map[string][]string{}, Aliases: f.aliases, Policy: f.Policy, Policies: f.policies, Isolation: f.isolation(), Isolations: f.isolations, Lenient: f.Isolation == byKeys, Retries: f.retries(), IndexBytes: int64(f.IndexMemory), NoGeneration: f.GenerationProbes == "off", Stall: f.StallTimeout, OwnLateness: f.OwnLateness,
		Lost: func(m fleet.Member, err error) { g.Attempt.Integrity.Add(m.Kind, m.Name, "", err) },
		Left: func(m fleet.Member, rank int, err error) {
			g.Log.Warn("engine left", ofRank([]any{"engine", m.Name, "kind", m.Kind, "error", err}, rank)...)
		},
		Absent: func(m fleet.Member, err error) {
			g.Log.Warn("engine is not ready", "engine", m.Name, "kind", m.Kind, "error", err)
		},
		Ready: func(e *route.Engine) {
			if e.Note != "" {
				g.Log.Warn("engine is ready, but see its note", "engine", e.Name, "kind", e.Kind, "note", e.Note)
			}
		},
		Came: func(m fleet.Member, e *route.Engine) {
			g.Log.Info("engine is ready", "engine", m.Name, "kind", e.Kind, "software", e.Facts.Software, "models", strings.Join(e.Facts.Models, ","))
		},
		Judged: func(m health.Member, v health.View, request string) {
			words := ofRank([]any{"engine", m.Engine, "state", v.State.String(), "why", v.Why, "requests", v.Open, "last_request_id", request}, m.Rank)
			switch v.State {
			case health.Up:
				g.Log.Info("engine takes requests again", words...)
			case health.Down:
				g.Log.Warn("engine is down", words...)
			default:
				g.Log.Warn("engine is avoided", words...)
			}
		},
		Events: func(m fleet.Member, err error) {
			if err != nil {
				g.Log.Warn("KV events do not come", "engine", m.Name, "error", err)
				return
			}
			g.Log.Info("KV events are followed", "engine", m.Name)
		},
		Panicked: func(m fleet.Member, p *infer.Panic) { panicked(m.Name, g)(p) },
		Emptied:  emptied,
	}
	for name, m := range served {
		o.Folders[name] = m.Aliases
	}
	if peer != nil {
		o.Placed = peer.node.Placed
	}
	return fleet.New(o)
}
