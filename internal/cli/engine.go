package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/kong"

	"weir/internal/config"
	"weir/internal/disk"
	"weir/internal/model"
	"weir/internal/sim"
	"weir/internal/sim/kvpub"
	"weir/internal/sim/simserver"
	"weir/internal/wire/trust"
	"weir/internal/workload/content"
)

// simFlags shape a simulated engine, the same in engine and up.
type simFlags struct {
	MaxRunningRequests int           `default:"256" placeholder:"N" help:"Largest number of requests in the running batch (${default})."`
	MaxQueuedRequests  int           `default:"0" placeholder:"N" help:"Largest number of requests in the waiting queue. 0 is no limit."`
	Cost               string        `default:"per-batch" placeholder:"MODEL" help:"Cost model of a step: per-batch (6 ms, and 0.35 ms per running request), constant, table=FILE (CSV; docs/offline.md) or profile=NAME (published figures of a real engine; weir engine --help lists them) (${default})."`
	PrefillCost        time.Duration `default:"16.5ms" help:"With --cost constant: time of a step with prefill (${default})."`
	DecodeCost         time.Duration `default:"20ms" help:"With --cost constant: time of a step with decode (${default})."`
	MeanOutputTokens   int           `default:"200" placeholder:"N" help:"Mean output length of requests that reach neither a limit nor a stop string (${default})."`
	ContextLength      int           `default:"0" placeholder:"N" help:"Largest number of prompt and output tokens of a request. 0 takes the model's own."`
	ChunkedPrefillSize int           `default:"0" placeholder:"N" help:"Largest number of prompt tokens in one step. 0 takes as many as fit."`
	MaxTotalTokens     int           `default:"0" placeholder:"N" help:"Size of the KV cache of each data-parallel rank, in tokens. 0 is no limit, and prompts are then never found in the cache."`
	PageSize           int           `default:"16" placeholder:"N" help:"Number of tokens in a page of the KV cache (${default})."`
	DPSize             int           `name:"dp-size" default:"1" placeholder:"N" help:"Number of data-parallel ranks. Each has its own queue, batch and KV cache (${default})."`
	StreamInterval     int           `default:"1" placeholder:"N" help:"Number of tokens that a stream sends at a time (${default})."`
	LoRAPaths          []string      `name:"lora-paths" sep:"," placeholder:"NAME[=PATH],..." help:"LoRA adapters that requests may name. The paths are not read."`

	EnablePriorityScheduling bool    `help:"Accept a priority in requests, and schedule requests in its order."`
	PreemptionThreshold      int     `name:"priority-scheduling-preemption-threshold" default:"10" placeholder:"N" help:"With priority scheduling: a waiting request replaces running requests whose priority is lower by more than this (${default}). A negative value disables preemption."`
	ScheduleConservativeness float64 `default:"1" placeholder:"F" help:"Factor on the part of the KV cache that is kept free for the output of running requests. A lower value makes retraction likelier (${default})."`
	Speculation              float64 `default:"1" placeholder:"N" help:"Mean number of tokens that a step gives each request, as if drafts were verified (${default})."`

	Content   string   `default:"auto" enum:"auto,words,echo,json" help:"Text of the answers: whatever each request asks for (auto), or always words, the last message (echo) or a JSON document (${default})."`
	Reasoning string   `default:"" enum:",none,low,medium,high" placeholder:"EFFORT" help:"Reasoning before each answer: none, low, medium or high. By default, whatever each request asks for."`
	Fault     []string `sep:";" placeholder:"KIND[,SETTING=VALUE...]" help:"Make the engine fail, for example cut,after=20,rate=0.01. Repeatable."`
}

type engineCommand struct {
	simFlags     `group:"The simulated engine:"`
	offlineFlags `group:"Replaying a trace instead of serving:"`
	Listen       string   `group:"Where it listens:" default:"127.0.0.1:9000" placeholder:"ADDR" help:"Address of a wire that is given without one (${default})."`
	Wire         []string `group:"Where it listens:" default:"openai" sep:";" placeholder:"KIND[=ADDR]" help:"API to speak: sglang or vllm (the HTTP API of that engine), openai (the OpenAI API only) or weir (the batched plane) (${default}). Repeatable, each with its own address."`
	AdminListen  string   `group:"Where it listens:" placeholder:"ADDR" help:"Address of /metrics, /watch, /stalls, /profiles, /admin/state and /admin/faults. The HTTP wires serve the last two as well."`
	Model        string   `group:"Model and name:" placeholder:"[NAME=]DIR" help:"Model folder whose vocabulary the engine speaks. By default the built-in model."`
	Name         string   `group:"Model and name:" default:"sim" help:"Name of the engine in its state."`
	sglangFlags  `group:"Flags of SGLang:"`
	vllmFlags    `group:"Flags of vLLM:"`
	roleFlags    `group:"Separate prefill and decode:"`
	accessFlags  `group:"Access:"`
	watchFlags   `group:"Watching itself:"`
	logFlags     `group:"Watching itself:"`

	KVEventsConfig string `group:"The simulated engine:" name:"kv-events-config" placeholder:"JSON" help:"Publish the content of the KV cache as vLLM and SGLang do, with a configuration in their format (docs/kv-events.md)."`

	ServedModelName string `group:"Model and name:" placeholder:"NAME" help:"Name under which the model is served. By default the model's own name."`
}

// sglangFlags shape the sglang wire; the names are SGLang's.
type sglangFlags struct {
	IncrementalStreamingOutput bool   `help:"sglang: events of /generate contain only new output instead of the whole answer so far."`
	EnableMetrics              bool   `help:"sglang: serve /metrics, and add the time of each stage to answers of /generate."`
	PatchedStamps              bool   `help:"sglang: add the timeline's own stamps to answers of /generate under their names there (server_created_time, queue_time_start, ...), like a server that was patched for them."`
	SkipTokenizerInit          bool   `help:"sglang: /generate takes and returns token ids only. Requests that need a tokenizer or a grammar are aborted, as SGLang does."`
	GrammarBackend             string `default:"xgrammar" enum:"xgrammar,outlines,llguidance,none" placeholder:"NAME" help:"sglang: backend that makes output follow schemas. With none, such requests are aborted (${default})."`

	EnableDeterministicInference bool `help:"sglang: honour seeds."`

	SGLangVersion string `name:"sglang-version" placeholder:"RELEASE" help:"sglang: release to imitate; 0.5.23 by default. Up to 0.5.3 a schema without a grammar backend ends the engine, and up to 0.5.13 min_new_tokens without a tokenizer does."`

	EnableCacheReport bool   `help:"sglang: report cached_tokens in the usage."`
	WeightVersion     string `default:"default" placeholder:"NAME" help:"sglang: weight version in answers (${default})."`
}

// vllmFlags shape the vllm wire; the names are vLLM's.
type vllmFlags struct {
	EnablePerRequestMetrics   bool `help:"vllm: add the object metrics to answers."`
	EnablePromptTokensDetails bool `help:"vllm: report cached_tokens in the usage."`
	EnableServerLoadTracking  bool `help:"vllm: count requests in /load."`

	EnableScaleOut bool `help:"vllm: serve /inference/v1/generate, which takes and returns token ids only."`

	FingerprintValue string `placeholder:"TEXT" help:"vllm: system_fingerprint of answers. By default there is none."`
}

// accessFlags say who may ask the engine; the names are vLLM's and SGLang's.
type accessFlags struct {
	APIKey      []string `name:"api-key" sep:"none" placeholder:"KEY" help:"Require this key, on the paths that the real engine of each wire protects (docs/simulated-engine.md) and in each call of the plane. Repeatable: vLLM accepts any of them."`
	AdminAPIKey string   `name:"admin-api-key" placeholder:"KEY" help:"sglang: key that /abort_request and /flush_cache require."`
	SSLCertfile string   `name:"ssl-certfile" placeholder:"FILE" help:"Speak TLS on every wire, with this certificate."`
	SSLKeyfile  string   `name:"ssl-keyfile" placeholder:"FILE" help:"Private key of the certificate."`
	SSLCACerts  string   `name:"ssl-ca-certs" placeholder:"FILE" help:"Accept only clients with a certificate that one of these authorities signed (vLLM: with --ssl-cert-reqs 2)."`
}

// options turns the flags into options.
func (f *accessFlags) options() (a simserver.Access, err error) {
	a = simserver.Access{Keys: f.APIKey, AdminKey: f.AdminAPIKey}
	if f.SSLCertfile == "" {
		if f.SSLKeyfile != "" || f.SSLCACerts != "" {
			return a, wrongf("--ssl-keyfile and --ssl-ca-certs are for TLS; add --ssl-certfile")
		}
		return a, nil
	}
	var contents [2][]byte
	for i, path := range []string{f.SSLCertfile, cmp.Or(f.SSLKeyfile, f.SSLCertfile)} {
		if contents[i], err = disk.Read(path, disk.MaxPEM); err != nil {
			return a, wrongf("--ssl-certfile: %w", err)
		}
	}
	pair, err := trust.Pair(contents[0], contents[1])
	if err != nil {
		return a, wrongf("--ssl-certfile: %w", err)
	}
	a.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	if f.SSLCACerts != "" {
		if a.TLS.ClientCAs, err = trust.Authorities(f.SSLCACerts); err != nil {
			return a, wrongf("--ssl-ca-certs: %w", err)
		}
		a.TLS.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return a, nil
}

// Help implements kong's extended help.
func (engineCommand) Help() string {
	return `Examples:
  weir engine                                      an OpenAI-compatible engine on 127.0.0.1:9000
  weir engine --wire weir --listen 127.0.0.1:9001  an engine for weir serve --engine weir=127.0.0.1:9001
  weir engine --wire sglang --listen 127.0.0.1:30000 --incremental-streaming-output --enable-metrics
  weir engine --wire vllm=:8000 --wire weir=:9001 --cost constant --decode-cost 50ms
  weir engine --wire vllm --api-key secret         asks for a key as vLLM does
  weir engine --wire vllm --max-total-tokens 100000 --kv-events-config '{"endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}'
  weir engine --wire sglang --listen 127.0.0.1:30000 --role prefill --disaggregation-bootstrap-port 8998
  weir engine --wire sglang --listen 127.0.0.1:30001 --role decode --kv-bandwidth 25e9
  weir engine --wire vllm --listen 127.0.0.1:8100 --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'
  weir engine --fault cut,after=20,rate=0.01       one stream in a hundred breaks after 20 tokens` + offlineHelp()
}

// Run implements the command.
func (c *engineCommand) Run(k *kong.Context, s *streams) error {
	if err := c.checkOffline(k); err != nil {
		return err
	}
	ctx, _, stop := s.interrupt()
	defer stop()
	options, err := c.serving()
	if err != nil {
		return err
	}
	m, err := unlessStopped(ctx, 0, c.model)
	if err != nil {
		return err
	}
	if c.Offline != "" {
		return c.replay(ctx, s, options.Sim, m)
	}
	var run simProcess
	if run.publisher, err = c.publisher(&options); err != nil {
		return err
	}
	var e *simserver.Engine
	log := c.logger(s.err)
	run.log = log
	if run.self, options.Admin, err = c.engineWatch(log, c.AdminListen, func() simserver.State { return e.State() }); err != nil {
		return err
	}
	defer run.self.close()
	if e, err = run.begin(c, s, options, m); err != nil {
		run.close()
		return err
	}
	return run.serve(ctx, e)
}

// model loads the engine's model.
func (c *engineCommand) model() (*servedModel, error) {
	if c.Model == "" {
		return builtInModel()
	}
	m, err := config.ParseModel(c.Model)
	if err != nil {
		return nil, wrongf("--model: %w", err)
	}
	return loadModel(m)
}

// serving turns the flags into the options of an engine that serves, except those that come
// from its model.
func (c *engineCommand) serving() (o simserver.Options, err error) {
	if o, err = c.simFlags.options(c.Name); err != nil {
		return o, err
	}
	o.Sim.Model = c.ServedModelName
	if c.SGLangVersion != "" {
		if _, err := simserver.ParseSGLangVersion(c.SGLangVersion); err != nil {
			return o, wrongf("--sglang-version: %w", err)
		}
	}
	o.SGLang = simserver.SGLangOptions{
		Version: c.SGLangVersion, Grammar: c.GrammarBackend, Deterministic: c.EnableDeterministicInference,
		Incremental: c.IncrementalStreamingOutput, Metrics: c.EnableMetrics, Patched: c.PatchedStamps, SkipTokenizer: c.SkipTokenizerInit,
		CacheReport: c.EnableCacheReport, WeightVersion: c.WeightVersion,
	}
	o.VLLM = simserver.VLLMOptions{
		PerRequestMetrics: c.EnablePerRequestMetrics, PromptTokensDetails: c.EnablePromptTokensDetails, LoadTracking: c.EnableServerLoadTracking,
		ScaleOut: c.EnableScaleOut, Fingerprint: c.FingerprintValue,
	}
	if err := c.roleFlags.apply(&o, c.Wire); err != nil {
		return o, err
	}
	o.Access, err = c.accessFlags.options()
	return o, err
}

// publisher binds where the engine publishes what its KV cache holds, and puts that into
// its options; nil: nowhere. The form is that of the first wire.
func (c *engineCommand) publisher(o *simserver.Options) (*kvpub.Publisher, error) {
	if c.KVEventsConfig == "" {
		return nil, nil
	}
	config, err := kvpub.ParseConfig(c.KVEventsConfig)
	if err != nil {
		return nil, wrongf("--kv-events-config: %w", err)
	}
	if !config.On() {
		return nil, nil
	}
	form := kvpub.VLLM
	if kind, _, _ := strings.Cut(c.Wire[0], "="); kind == "sglang" {
		form = o.SGLang.KVEventForm()
	}
	return publish(o, config, form)
}

// publish binds where an engine publishes.
func publish(o *simserver.Options, config kvpub.Config, form kvpub.Form) (*kvpub.Publisher, error) {
	if o.Sim.KVTokens == 0 {
		return nil, wrongf("KV events need a KV cache of known size: add --max-total-tokens")
	}
	p, err := kvpub.Listen(config, kvpub.Options{Form: form, PageSize: o.Sim.PageSize, Ranks: o.Sim.DPSize})
	if err != nil {
		return nil, wrongf("--kv-events-config: %w", err)
	}
	o.KVEvents, o.Sim.KVEvents = p, true
	return p, nil
}

// newSim makes a simulated engine that speaks a model's vocabulary.
func newSim(f *simFlags, o simserver.Options, m *servedModel) (e *simserver.Engine, err error) {
	if err := speakModel(&o.Sim, m); err != nil {
		return nil, err
	}
	if o.Speaker, err = f.speaker(m, o.Sim.Words); err != nil {
		return nil, err
	}
	o.Tokenizer, o.Placeholders = m.folder, m.folder.Placeholders
	return simserver.New(o)
}

// speakModel makes the options those of an engine of a model.
func speakModel(o *sim.Options, m *servedModel) (err error) {
	if o.Model == "" {
		o.Model = m.Name
	}
	if o.ContextLength == 0 {
		o.ContextLength = m.folder.ContextLength
	}
	o.VocabSize, o.EOS = m.folder.VocabSize, m.folder.EOS
	if o.Words, err = content.New(m.folder.VocabSize, m.folder.Tokenizer.OrdinaryBytes); err != nil {
		return fmt.Errorf("model %s: %w", m.Name, err)
	}
	return nil
}

// options turns the flags into options, except those that come from the engine's model: a
// wrong flag is reported before that is loaded.
func (f *simFlags) options(name string) (o simserver.Options, err error) {
	if o.Sim, err = f.core(name); err != nil {
		return o, err
	}
	for _, text := range f.Fault {
		fault, err := sim.ParseFault(text)
		if err != nil {
			return o, wrongf("--fault: %w", err)
		}
		o.Faults = append(o.Faults, fault)
	}
	_, _, err = f.manner()
	return o, err
}

// core turns the flags into the options of the engine's core.
func (f *simFlags) core(name string) (sim.Options, error) {
	cost, err := f.cost()
	if err != nil {
		return sim.Options{}, err
	}
	for _, positive := range []struct {
		flag  string
		value int
	}{{"--max-running-requests", f.MaxRunningRequests}, {"--page-size", f.PageSize}, {"--dp-size", f.DPSize}, {"--stream-interval", f.StreamInterval}} {
		if positive.value < 1 {
			return sim.Options{}, wrongf("%s must be at least 1", positive.flag)
		}
	}
	if f.ScheduleConservativeness <= 0 {
		return sim.Options{}, wrongf("--schedule-conservativeness must be above 0")
	}
	if f.MaxQueuedRequests < 0 || f.ContextLength < 0 || f.ChunkedPrefillSize < 0 || f.MaxTotalTokens < 0 {
		return sim.Options{}, wrongf("--max-queued-requests, --context-length, --chunked-prefill-size and --max-total-tokens must not be negative")
	}
	o := sim.Options{
		Name: name, MaxRunning: f.MaxRunningRequests, MaxQueued: f.MaxQueuedRequests,
		ContextLength: f.ContextLength, MeanTokens: f.MeanOutputTokens, Cost: cost,
		ChunkedPrefill: f.ChunkedPrefillSize, KVTokens: f.MaxTotalTokens, PageSize: f.PageSize, DPSize: f.DPSize,
		StreamInterval: f.StreamInterval, PriorityScheduling: f.EnablePriorityScheduling, Speculation: f.Speculation,
		PreemptionThreshold: &f.PreemptionThreshold, Conservativeness: f.ScheduleConservativeness,
	}
	for _, lora := range f.LoRAPaths {
		adapter, _, _ := strings.Cut(lora, "=")
		o.LoRAs = append(o.LoRAs, adapter)
	}
	return o, nil
}

// speaker returns the generator of answers that are not only words.
func (f *simFlags) speaker(m *servedModel, words *content.Words) (*content.Speaker, error) {
	mode, think, err := f.manner()
	if err != nil {
		return nil, err
	}
	s, err := words.Speaker(content.SpeakerOptions{
		Size: m.folder.VocabSize, Text: m.folder.Text, Ordinary: m.folder.Tokenizer.OrdinaryBytes,
		Mode: mode, Think: think, MeanTokens: f.MeanOutputTokens,
	})
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", m.Name, err)
	}
	return s, nil
}

// manner is how it speaks.
func (f *simFlags) manner() (mode content.Mode, think content.Effort, err error) {
	if mode, err = content.ParseMode(f.Content); err != nil {
		return mode, think, wrongf("--content: %w", err)
	}
	think = content.EffortUnset
	if f.Reasoning != "" {
		if think, err = content.ParseEffort(f.Reasoning); err != nil {
			return mode, think, wrongf("--reasoning: %w", err)
		}
	}
	return mode, think, nil
}

var _ simserver.Tokenizer = (*model.Folder)(nil)

// server is one listener of a simulated engine and its API.
type server struct {
	kind string
	l    net.Listener
}

// wires are the APIs of a simulated engine.
var wires = []string{"sglang", "vllm", "openai", "weir"}

// simProcess is a simulated engine with its listeners.
type simProcess struct {
	servers   []server
	publisher *kvpub.Publisher // of KV events; nil: none
	self      watcher          // its Watch is nil where another process's watches
	log       *slog.Logger
}

// begin binds the listeners, makes the engine, and prints its addresses.
func (p *simProcess) begin(c *engineCommand, s *streams, o simserver.Options, m *servedModel) (*simserver.Engine, error) {
	if err := p.bind(c); err != nil {
		return nil, err
	}
	if err := p.legs(&o); err != nil {
		return nil, err
	}
	e, err := newSim(&c.simFlags, o, m)
	if err != nil {
		return nil, err
	}
	for _, f := range p.servers {
		switch {
		case f.kind == "weir":
			sayLine(s.out, "%-9s %s", f.kind, f.l.Addr())
		case f.kind != "admin" && f.kind != "bootstrap" && f.kind != "nixl" && c.SSLCertfile != "":
			sayLine(s.out, "%-9s https://%s", f.kind, f.l.Addr())
		default:
			sayLine(s.out, "%-9s http://%s", f.kind, f.l.Addr())
		}
	}
	if p.publisher != nil {
		for _, at := range p.publisher.Sources() {
			sayLine(s.out, "%-9s %s", "kv-events", at.Endpoint)
		}
	}
	return e, nil
}

func (p *simProcess) bind(c *engineCommand) error {
	used := false
	for _, wire := range c.Wire {
		kind, addr, ok := strings.Cut(wire, "=")
		flag := "--wire " + kind + "=HOST:PORT"
		if !slices.Contains(wires, kind) {
			return wrongf("--wire %s: unknown wire %q; the wires are %s", wire, kind, strings.Join(wires, ", "))
		}
		if !ok {
			if used {
				return wrongf("--wire %s: a second wire needs an address of its own, as in %s=127.0.0.1:9001", wire, kind)
			}
			flag, addr, used = "--listen", c.Listen, true
		}
		if err := p.listen(kind, flag, addr); err != nil {
			return err
		}
	}
	if c.AdminListen != "" {
		if err := p.listen("admin", "--admin-listen", c.AdminListen); err != nil {
			return err
		}
	}
	return nil
}

func (p *simProcess) listen(kind, flag, addr string) error {
	l, err := listen(flag, addr, false)
	if err != nil {
		return err
	}
	p.servers = append(p.servers, server{kind, l})
	return nil
}

func (p *simProcess) close() {
	for _, f := range p.servers {
		f.l.Close()
	}
	if p.publisher != nil {
		p.publisher.Close()
	}
}

// serve runs the engine and its servers until ctx ends or one of them fails.
func (p *simProcess) serve(ctx context.Context, e *simserver.Engine) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var tasks sync.WaitGroup
	errs := make([]error, len(p.servers))
	tasks.Go(func() {
		e.Run(ctx)
		cancel()
	})
	if p.publisher != nil {
		tasks.Go(func() { p.publisher.Serve(ctx) })
	}
	if p.self.Watch != nil {
		tasks.Go(func() {
			if err := p.self.Run(ctx); ctx.Err() == nil {
				canaryEnded(p.log, err)
			}
		})
	}
	for i, f := range p.servers {
		serve := e.ServeOpenAI
		switch f.kind {
		case "sglang":
			serve = e.ServeSGLang
		case "vllm":
			serve = e.ServeVLLM
		case "weir":
			serve = e.ServePlane
		case "admin":
			serve = e.ServeAdmin
		case "bootstrap":
			serve = e.ServeBootstrap
		case "nixl":
			serve = e.ServeSideChannel
		}
		tasks.Go(func() {
			errs[i] = serve(ctx, f.l)
			cancel()
		})
	}
	tasks.Wait()
	return errors.Join(append(errs, e.Died())...)
}
