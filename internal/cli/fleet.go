package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"weir/internal/engine"
	"weir/internal/fleet/balance"
	"weir/internal/lab/fleetsim"
	"weir/internal/load"
	"weir/internal/load/experiment"
	"weir/internal/load/slo"
	"weir/internal/sim"
	"weir/internal/workload"
)

// fleetCommand replays a workload through several simulated engines.
type fleetCommand struct {
	Workload string `arg:"" placeholder:"WORKLOAD" help:"A trace (FILE in the format of Mooncake, Azure or BurstGPT, KIND:FILE, or - for standard input), or synthetic:SETTINGS."`

	fleetFlags       `group:"The fleet:"`
	policyFlags      `group:"Comparing policies:"`
	replayFlags      `group:"The workload:"`
	fleetEngineFlags `group:"Each simulated engine:"`
	fleetHalfFlags   `group:"Separate prefill and decode:"`
	fleetOutputFlags `group:"Output:"`
}

// fleetFlags are the fleets that are compared, and the changes in them.
type fleetFlags struct {
	Engines  []string        `sep:"," placeholder:"N,..." help:"Numbers of engines (4; with --slo, weir looks for the smallest number). 1+3 is one prefill engine and three decode engines; 1+2+1 adds an engine that serves whole requests."`
	Gateways []int           `default:"1" sep:"," placeholder:"N,..." help:"Numbers of gateways that share the requests (${default})."`
	Age      []time.Duration `default:"0s" sep:"," placeholder:"D,..." help:"Intervals at which engines report, and gateways exchange their books. 0 is at once (${default})."`
	Stamps   bool            `default:"true" negatable:"" help:"Engines report when prefill began and how many tokens were cached (${default})."`
	Slow     []string        `sep:"," placeholder:"ENGINE=X,..." help:"Engines, counted from 1, whose steps take X times as long."`
	Event    []string        `sep:";" placeholder:"TIME,KIND,ENGINE[,X]" help:"An event at an engine: fail, join (empty, after a failure), slow (steps take X times as long) or evict (its cache, without a report). Repeatable."`
}

// policyFlags say which policies are compared, and by which objectives.
type policyFlags struct {
	SLO         string   `name:"slo" aliases:"objective" placeholder:"METRIC=BOUND,..." help:"Find which policy meets these objectives with how many engines, as in ttft_p99=2s,tpot_p99=50ms,success=99%."`
	MostEngines int      `default:"64" placeholder:"N" help:"Largest number of engines that --slo tries (${default})."`
	Policy      []string `default:"cost,round-robin" sep:"," placeholder:"NAME,..." help:"Policies to compare (${default}). all is every policy of weir, reference is every published one."`
	Queue       string   `default:"off" enum:"off,on,both" help:"Whether requests wait in the gateways until an engine has room, as in weir serve: on, off, or both, which runs each policy twice (${default}). The name of a policy may also end with +queue."`
}

// replayFlags say how the workload is replayed.
type replayFlags struct {
	Speed         []float64     `sep:"," placeholder:"X,..." help:"Divide arrival times by these factors: 2 doubles the rate (1)."`
	Utilisation   []float64     `sep:"," placeholder:"U,..." help:"Set the speed relative to the fleet, instead of --speed: 1 is the highest speed at which the oracle's backlog does not grow."`
	Seed          uint64        `default:"1" placeholder:"N" help:"Seed of prompts, arrivals, lengths and ties (${default})."`
	TraceRequests int           `default:"0" placeholder:"N" help:"Replay only the first N requests of a trace. 0 is all."`
	TraceDuration time.Duration `default:"0s" placeholder:"D" help:"Replay only the requests that arrive within this virtual time of a trace. 0 is all."`
	TraceBlock    int           `default:"512" placeholder:"N" help:"Tokens per hash id of a Mooncake trace (${default})."`
}

// fleetEngineFlags describe each simulated engine.
type fleetEngineFlags struct {
	Cost               string        `default:"per-batch" placeholder:"MODEL" help:"Cost model of a step, as in weir engine (${default})."`
	PrefillCost        time.Duration `default:"16.5ms" help:"With --cost constant: time of a step with prefill (${default})."`
	DecodeCost         time.Duration `default:"20ms" help:"With --cost constant: time of a step with decode (${default})."`
	MaxTotalTokens     int           `default:"400000" placeholder:"N" help:"Size of each engine's KV cache in tokens (${default})."`
	PageSize           int           `default:"16" placeholder:"N" help:"Number of tokens in a page of the KV cache (${default})."`
	MaxRunningRequests int           `default:"256" placeholder:"N" help:"Largest number of requests in an engine's running batch (${default})."`
	ChunkedPrefillSize int           `default:"0" placeholder:"N" help:"Largest number of prompt tokens in one step. 0 takes as many as fit."`
	ContextLength      int           `default:"131072" placeholder:"N" help:"Largest number of prompt and output tokens of a request (${default})."`
}

// fleetHalfFlags describe engines with roles.
type fleetHalfFlags struct {
	Handover        string        `default:"pull" enum:"pull,push,room" help:"How the halves of a request meet if engines have roles: pull or push, as in vLLM, whose decode engines serve whole requests too, or room, as in SGLang (${default})."`
	KVBytesPerToken int           `name:"kv-bytes-per-token" default:"131072" placeholder:"N" help:"Size of a token's KV in a transfer to a decode engine (${default}, as for Llama 3.1 8B)."`
	KVBandwidth     byteRate      `name:"kv-bandwidth" default:"25e9" placeholder:"BYTES/S" help:"Bandwidth of the link over which KV reaches a decode engine (${default}, as for 200 Gb/s). 0 is no limit."`
	KVLatency       time.Duration `name:"kv-latency" default:"0s" help:"Latency of each transfer of KV."`
}

// fleetOutputFlags are the files that results are written to.
type fleetOutputFlags struct {
	HTML string `name:"html" type:"path" placeholder:"FILE" help:"Write a page with plots, which opens without a network; - prints it instead of the table."`
	JSON string `name:"json" type:"path" placeholder:"FILE" help:"Write the runs as one JSON object; - prints it instead of the table."`
}

// Help implements kong's extended help.
func (fleetCommand) Help() string {
	return `Which policy is best, and how many engines are needed? --slo finds the fewest engines with which each policy meets objectives. The workload runs through simulated engines on virtual time. The same packages as in a gateway choose the engine of each request. Each policy is compared with an oracle, which knows the true state of every engine: the column "captured" is the share of the oracle's cache reuse that the policy reached. Read it together with max/mean load.

Examples:
  weir fleet trace.jsonl --slo ttft_p99=2s,tpot_p99=50ms --html answer.html
  weir fleet trace.jsonl --engines 4,8 --policy cost,round-robin,least-load
  weir fleet trace.jsonl --utilisation 0.5,0.8,0.95 --policy all,reference --json runs.json
  weir fleet 'synthetic:rate=1.5,turns=uniform(1,8),think=5s,duration=1h,input=600,output=200,prefix=2000,groups=8'
  weir fleet 'synthetic:concurrency=64,turns=8,think=2s,duration=10m,input=300,output=200,prefix=2000,groups=8'
  weir fleet trace.jsonl --engines 4,1+3,2+2 --speed 0.5,1,2 --policy cost,round-robin
  weir fleet trace.jsonl --slow 3=2 --event 10m,fail,1 --event 12m,join,1

Settings of a synthetic workload are those of weir engine --offline (weir engine --help lists them), and
  turns=LENGTHS, think=TIME     sessions: each request repeats the conversation so far
  branch=LENGTHS                number of requests that follow an answer at once, like an agent's calls
With these settings, rate counts sessions.

Policies: ` + strings.Join(fleetsim.Policies(), ", ")
}

// Run implements the command.
func (c *fleetCommand) Run(s *streams) error {
	o, policies, err := c.options()
	if err != nil {
		return err
	}
	var files openFiles
	defer files.close()
	plan, err := c.plan(s, &files)
	if err != nil {
		return err
	}
	o.Plan = plan
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	stop := s.notify(signals, os.Interrupt, syscall.SIGTERM)
	defer stop()
	go func() {
		select {
		case <-signals:
			cancel(errors.New("interrupted"))
		case <-ctx.Done():
		}
	}()
	outputs, err := openOutputs(
		outputFile[*fleetsim.Study]{flag: "json", path: c.JSON, write: func(w io.Writer, study *fleetsim.Study) error { return load.WriteJSON(w, study) }},
		outputFile[*fleetsim.Study]{flag: "html", path: c.HTML, write: func(w io.Writer, study *fleetsim.Study) error { return study.WriteHTML(w) }},
	)
	if err != nil {
		return err
	}
	defer outputs.close()
	study := &fleetsim.Study{Workload: c.Workload, Settings: []fleetsim.Setting{
		{Name: "engine", Value: fmt.Sprintf("cost %s, KV %d tokens in pages of %d", c.Cost, c.MaxTotalTokens, c.PageSize)},
		{Name: "stamps", Value: fmt.Sprint(c.Stamps)}, {Name: "seed", Value: fmt.Sprint(c.Seed)},
	}}
	if c.SLO != "" {
		study.Settings = append(study.Settings, fleetsim.Setting{Name: "slo", Value: c.SLO})
	}
	if len(c.Slow)+len(c.Event) > 0 {
		study.Settings = append(study.Settings, fleetsim.Setting{Name: "changes", Value: strings.Join(slices.Concat(c.Slow, c.Event), "; ")})
	}
	if c.searches() {
		err = c.size(ctx, s, o, policies, study)
	} else {
		err = c.compare(ctx, o, policies, study)
	}
	if err != nil {
		return err
	}
	return outputs.write(study, study.Text, s.out)
}

// searches reports whether the number of engines is looked for.
func (c *fleetCommand) searches() bool { return c.SLO != "" && len(c.Engines) == 0 }

// compare runs every policy in every cell that was asked for.
func (c *fleetCommand) compare(ctx context.Context, o fleetsim.Options, policies []string, study *fleetsim.Study) (err error) {
	engines := c.Engines
	if len(engines) == 0 {
		engines = []string{defaultEngines}
	}
	var settings []string // all but the number of engines
	bySetting := map[string][]*fleetsim.Cell{}
	for _, text := range engines {
		fleet, err := experiment.ParseFleet(text, maxFleet)
		if err != nil {
			return wrongf("--engines: %w", err)
		}
		if o.Engines, err = c.engines(fleet); err != nil {
			return err
		}
		shape := fleetsim.Shape(o.Engines)
		speeds, utilisations, err := c.speeds(ctx, o)
		if err != nil {
			return err
		}
		for i, speed := range speeds {
			for _, gateways := range c.Gateways {
				for _, age := range c.Age {
					o.Speed, o.Gateways, o.Age = speed, gateways, age
					cell, err := fleetsim.Compare(ctx, o, policies)
					if err != nil {
						return err
					}
					setting := fmt.Sprintf("speed %.3g", speed)
					cell.Name = fmt.Sprintf("%s, speed %.3g", shape, speed)
					if utilisations != nil {
						cell.Utilisation = utilisations[i]
						setting = fmt.Sprintf("utilisation %.2g", utilisations[i])
						cell.Name += " (" + setting + ")"
					}
					setting += c.spread(gateways, age)
					cell.Name += c.spread(gateways, age)
					study.Cells = append(study.Cells, cell)
					if bySetting[setting] == nil {
						settings = append(settings, setting)
					}
					bySetting[setting] = append(bySetting[setting], cell)
				}
			}
		}
	}
	for _, setting := range settings {
		a := fleetsim.Judge(bySetting[setting])
		if len(settings) > 1 && len(a.Objectives) > 0 {
			a.Setting = setting
		}
		study.Answers = append(study.Answers, a)
	}
	study.Answers = append(study.Answers, fleetsim.Shapes(study.Cells)...)
	return nil
}

// size looks for the fewest engines, in every setting of all else.
func (c *fleetCommand) size(ctx context.Context, s *streams, o fleetsim.Options, policies []string, study *fleetsim.Study) error {
	speeds := c.Speed
	if len(speeds) == 0 {
		speeds = []float64{1}
	}
	fleets := fleetsim.Fleets{Least: 1, Most: c.MostEngines, Engines: func(n int) ([]fleetsim.Engine, error) { return c.engines(experiment.Fleet{Whole: n}) }}
	for _, e := range o.Events {
		fleets.Least = max(fleets.Least, e.Engine+1)
	}
	for _, text := range c.Slow {
		engine, _, _ := strings.Cut(text, "=")
		if i, err := strconv.Atoi(engine); err == nil { // else engines says so
			fleets.Least = max(fleets.Least, i)
		}
	}
	if fleets.Least > fleets.Most {
		return wrongf("--slow or --event names engine %d, and --most-engines is %d", fleets.Least, fleets.Most)
	}
	fleets.Tell = func(policy string, n int, r *fleetsim.Report) {
		fmt.Fprintf(s.err, "%s, %s: TTFT p99 %.0f ms, goodput %.2f/s, in %.1f s\n", fleetsim.Count(n), policy, r.TTFT.P99, r.Goodput, r.RealSeconds)
	}
	for _, speed := range speeds {
		for _, gateways := range c.Gateways {
			for _, age := range c.Age {
				o.Speed, o.Gateways, o.Age = speed, gateways, age
				a, cells, err := fleetsim.Size(ctx, o, policies, fleets)
				if err != nil {
					return err
				}
				setting := fmt.Sprintf("speed %.3g", speed) + c.spread(gateways, age)
				if len(speeds)*len(c.Gateways)*len(c.Age) > 1 {
					a.Setting = setting
				}
				for _, cell := range cells {
					cell.Name = fmt.Sprintf("%s, %s", fleetsim.Count(cell.Engines), setting)
				}
				study.Answers, study.Cells = append(study.Answers, a), append(study.Cells, cells...)
			}
		}
	}
	return nil
}

// spread names a setting of gateways, where it is not that of one that knows all.
func (*fleetCommand) spread(gateways int, age time.Duration) string {
	if gateways == 1 && age == 0 {
		return ""
	}
	return fmt.Sprintf(", %d gateways, reports %v old", gateways, age)
}

// defaultEngines is the number of engines if none is given.
const defaultEngines = "4"

// maxFleet is the most engines that there may be.
const maxFleet = 1000

// engine returns the options of each simulated engine.
func (f *fleetEngineFlags) engine() (sim.Options, error) {
	cost := simFlags{Cost: f.Cost, PrefillCost: f.PrefillCost, DecodeCost: f.DecodeCost}
	model, err := cost.cost()
	return sim.Options{
		Cost: model, KVTokens: f.MaxTotalTokens, PageSize: f.PageSize, MaxRunning: f.MaxRunningRequests,
		ChunkedPrefill: f.ChunkedPrefillSize, ContextLength: f.ContextLength,
	}, err
}

// policies returns the names of the policies to compare. The oracle is always compared.
func (f *policyFlags) policies() (names []string, err error) {
	for _, name := range f.Policy {
		switch name {
		case "all":
			names = append(names, balance.Names()...)
		case "reference":
			for _, r := range fleetsim.References() {
				names = append(names, r.Name)
			}
		case fleetsim.Oracle:
		default:
			if err := fleetsim.Known(name); err != nil {
				return nil, wrongf("--policy: %w", err)
			}
			names = append(names, name)
		}
	}
	return f.queued(names), nil
}

// options returns the options that all runs share.
func (c *fleetCommand) options() (o fleetsim.Options, policies []string, err error) {
	o = fleetsim.Options{Stamps: c.Stamps, Seed: c.Seed}
	if o.Engine, err = c.engine(); err != nil {
		return o, nil, err
	}
	o.Engine.Transfer = sim.Transfer{BytesPerToken: c.KVBytesPerToken, Bandwidth: float64(c.KVBandwidth), Latency: c.KVLatency}
	if o.Way, err = engine.ParseWay(c.Handover); err != nil {
		return o, nil, wrongf("--handover: %w", err)
	}
	if o.Way == engine.ByRoom {
		o.Engine.Retraction = sim.RetractRestore
	}
	if policies, err = c.policies(); err != nil {
		return o, nil, err
	}
	for _, text := range c.Event {
		e, err := parseEvent(text)
		if err != nil {
			return o, nil, wrongf("--event %s: %w", text, err)
		}
		o.Events = append(o.Events, e)
	}
	if c.SLO != "" {
		if o.Objectives, err = slo.Parse(c.SLO); err != nil {
			return o, nil, wrongf("--slo: %w", err)
		}
	}
	switch {
	case len(policies) == 0:
		return o, nil, wrongf("--policy %s: every table includes the oracle; name another policy to compare with it", strings.Join(c.Policy, ","))
	case c.searches() && len(c.Utilisation) > 0:
		return o, nil, wrongf("--utilisation scales the load with the fleet, so there is no smallest number of engines; give --speed, or --engines")
	case c.MostEngines < 1 || c.MostEngines > 1000:
		return o, nil, wrongf("--most-engines %d: want 1 to 1000", c.MostEngines)
	case len(c.Speed) > 0 && len(c.Utilisation) > 0:
		return o, nil, wrongf("--speed and --utilisation both set the rate of requests; give one of them")
	case c.MaxTotalTokens < 0 || c.PageSize <= 0 || c.TraceBlock <= 0 || c.TraceRequests < 0 || c.TraceDuration < 0:
		return o, nil, wrongf("--page-size and --trace-block must be positive, --max-total-tokens, --trace-requests and --trace-duration not negative")
	}
	for _, x := range append(c.Speed, c.Utilisation...) {
		if !(x > 0 && x < 1e6) {
			return o, nil, wrongf("--speed and --utilisation must be positive, not %v", x)
		}
	}
	for _, n := range c.Gateways {
		if n < 1 || n > maxFleet {
			return o, nil, wrongf("--gateways: want 1 to %d, not %d", maxFleet, n)
		}
	}
	if c.KVBytesPerToken < 0 || !(c.KVBandwidth >= 0) || c.KVLatency < 0 {
		return o, nil, wrongf("--kv-bytes-per-token, --kv-bandwidth and --kv-latency must not be negative")
	}
	return o, policies, nil
}

// queued are the policies as --queue has them.
func (f *policyFlags) queued(policies []string) (all []string) {
	for _, p := range policies {
		if f.Queue != "on" {
			all = append(all, p)
		}
		if q := fleetsim.WithQueue(p); f.Queue != "off" && !slices.Contains(all, q) {
			all = append(all, q)
		}
	}
	return all
}

// engines returns the engines of a fleet, some of them slow.
func (c *fleetCommand) engines(f experiment.Fleet) ([]fleetsim.Engine, error) {
	n := f.Engines()
	all := make([]fleetsim.Engine, n)
	for i := range all {
		all[i].Role = f.Role(i + 1)
	}
	for _, text := range c.Slow {
		engine, by, _ := strings.Cut(text, "=")
		i, err := strconv.Atoi(engine)
		x, err2 := strconv.ParseFloat(by, 64)
		if err != nil || err2 != nil || i < 1 || i > n || !(x > 0) {
			return nil, wrongf("--slow %s: want ENGINE=X, as in 3=2, with an engine from 1 to %d", text, n)
		}
		all[i-1].Slow = x
	}
	return all, nil
}

func parseEvent(text string) (e fleetsim.Event, err error) {
	parts := strings.Split(text, ",")
	if len(parts) < 3 {
		return e, errors.New("want TIME,KIND,ENGINE, as in 10m,fail,2")
	}
	if e.At, err = time.ParseDuration(parts[0]); err != nil || e.At < 0 {
		return e, fmt.Errorf("%q is not a time such as 90s or 10m", parts[0])
	}
	e.Kind = fleetsim.EventKind(parts[1])
	if e.Engine, err = strconv.Atoi(parts[2]); err != nil {
		return e, fmt.Errorf("%q is not the number of an engine", parts[2])
	}
	e.Engine--
	switch {
	case e.Kind == fleetsim.Slow && len(parts) == 4:
		if e.By, err = strconv.ParseFloat(parts[3], 64); err != nil || !(e.By > 0) {
			return e, fmt.Errorf("%q is not a factor by which steps slow down", parts[3])
		}
	case e.Kind == fleetsim.Slow:
		return e, errors.New("a slow event needs the factor by which steps slow down, as in 10m,slow,2,3.5")
	case e.Kind != fleetsim.Fail && e.Kind != fleetsim.Join && e.Kind != fleetsim.Evict:
		return e, fmt.Errorf("there is no event %q; the events are fail, join, slow and evict", parts[1])
	case len(parts) > 3:
		return e, fmt.Errorf("%s takes an engine and nothing after it", e.Kind)
	}
	return e, nil
}

// speeds are those of the runs, and the utilisations that they were found for.
func (c *fleetCommand) speeds(ctx context.Context, o fleetsim.Options) (speeds, utilisations []float64, err error) {
	if len(c.Utilisation) == 0 {
		if len(c.Speed) == 0 {
			return []float64{1}, nil, nil
		}
		return c.Speed, nil, nil
	}
	full, err := fleetsim.Saturation(ctx, o)
	if err != nil {
		return nil, nil, fmt.Errorf("--utilisation: %w", err)
	}
	for _, u := range c.Utilisation {
		speeds = append(speeds, u*full)
	}
	return speeds, c.Utilisation, nil
}

// plan reads the workload.
func (c *fleetCommand) plan(s *streams, files *openFiles) (*fleetsim.Plan, error) {
	kind, rest := workload.SplitSpec(c.Workload)
	if kind == workload.SyntheticKind {
		p, err := fleetsim.NewSessions(rest, c.Seed)
		if err != nil {
			return nil, wrongf("%w", err)
		}
		return p, nil
	}
	in, name := io.Reader(s.in), "standard input"
	if rest != "-" {
		var err error
		if in, err = files.open(rest); err != nil {
			return nil, err
		}
		name = rest
	}
	w, err := workload.NewTrace(in, name, kind, workload.Options{Seed: c.Seed, Block: c.TraceBlock, Requests: c.TraceRequests, For: c.TraceDuration})
	if err != nil {
		return nil, err
	}
	return fleetsim.NewTrace(w, name)
}
