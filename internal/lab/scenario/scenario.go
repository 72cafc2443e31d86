//go:build linux

// Package scenario runs the founding scenarios of weir: incidents in production, repeated
// on this machine with weir, and in the same run with the gateway that failed then. The
// command weir scenario NAME runs one.
//
// A scenario passes only if its control fails. A run in which the simple gateway does as
// well as weir shows nothing, and is reported as such: the load is raised until the control
// fails, within bounds, and a control that never did is a failure of the run.
//
// Everything runs on loopback addresses, in processes of this program's own binary (package
// lab), and is gone when Run returns.
//
// A new scenario is an entry in All, with a function that runs its cells and judges them.
package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"weir/internal/lab"
	"weir/internal/lab/cell"
	"weir/internal/lab/client"
	"weir/internal/lab/proc"
)

// Scenario is one of the founding incidents.
type Scenario struct {
	Name    string
	Summary string // in one line
	// Streams is how many there are unless Options say otherwise; of starvation and
	// collapse it is the number of large prompts in their closed loops, of overload
	// and tenants how many requests the engines run at once, and of replicas the streams
	// under which gateways are restarted.
	Streams int
	run     func(ctx context.Context, r *runner) *Report
}

// All lists the scenarios.
func All() []Scenario {
	return []Scenario{
		{Name: "backlog", Streams: 4096, run: backlog,
			Summary: "thousands of streams step at one instant, faster than a path with a write per token carries them"},
		{Name: "blame", Streams: 200, run: blame,
			Summary: "one fault at a time, at clients, in weir, on the network and at the engine: do the records blame that one?"},
		{Name: "collapse", Streams: 920, run: collapse,
			Summary: "prompts of 40k tokens, hundreds at once, on two engines: does a late acknowledgement take them out?"},
		{Name: "continuation", Streams: continuationStreams, run: continuation,
			Summary: "one of three engines is killed under a thousand streams: do they go on at the others, and after how long?"},
		{Name: "faults", Streams: faultStreams, run: faults,
			Summary: "one of three engines fails in each way, over each kind of wire: what do its clients see?"},
		{Name: "loss", Streams: 4096, run: loss,
			Summary: "several engine batches land before a stream's reader wakes: which of them arrive?"},
		{Name: "overload", Streams: overloadStreams, run: overload,
			Summary: "up to ten times what a fleet can do is asked of it: what does the queue still have in time, and what if everything is pushed?"},
		{Name: "replicas", Streams: replicaStreams, run: replicas,
			Summary: "eight engines behind one, two and four gateways: what do several lose, and what do their clients see when one is killed or restarted?"},
		{Name: "starvation", Streams: 920, run: starvation,
			Summary: "prompts of 40k tokens, a hundred a second and hundreds at once, while small streams run: which engines stay in?"},
		{Name: "tenants", Streams: tenantStreams, run: tenants,
			Summary: "ten times what a fleet can do is asked of it, nearly all by one of a hundred tenants: what do the others get?"},
	}
}

// Names lists their names.
func Names() []string {
	var names []string
	for _, s := range All() {
		names = append(names, s.Name)
	}
	return names
}

// Find returns the scenario of a name; its error lists the names.
func Find(name string) (Scenario, error) {
	for _, s := range All() {
		if s.Name == name {
			return s, nil
		}
	}
	return Scenario{}, fmt.Errorf("unknown scenario %q; the scenarios are %s", name, strings.Join(Names(), ", "))
}

// Options shape a run. The zero value of each means its default.
type Options struct {
	// Duration is about how long the run takes; a minute unless given. A load
	// that must be raised makes it longer, by at most half.
	Duration time.Duration
	// Streams is the number of streams at once; the scenario's own unless given.
	Streams int
	// Binary is weir's binary; this process's own unless given.
	Binary string
	// RoleCommand is the command of the binary that runs lab.RunRole.
	RoleCommand string
	// Faults, of faults alone, are which of FaultNames to run; all unless given.
	Faults []string
	// Kinds are which kinds of engines to run: of FaultKinds for faults, all unless given,
	// of ContinuationKinds for continuation, the plane unless given, and of ReplicaKinds for
	// the restarts of replicas.
	Kinds []string
	// Loads, used by overload, are multiples of the engines' capacity, in ascending order;
	// DefaultLoads if empty.
	Loads []float64
	// Commit is the commit that Binary was built from, for the report.
	Commit string
	// Progress gets a line per cell; nothing unless given.
	Progress io.Writer
}

// The bounds of Options.
const (
	DefaultDuration = time.Minute
	MinDuration     = 3 * time.Second
	MinStreams      = 8
	MaxStreams      = 20000 // a loopback address has 28,232 ports for their connections
)

// Invalid is an option that cannot be meant; Flag names it as the command line
// does.
type Invalid struct {
	Flag string
	Err  error
}

func (i Invalid) Error() string { return i.Flag + ": " + i.Err.Error() }

// check fills in the defaults and refuses what cannot be run.
func (o *Options) check(s Scenario) error {
	if o.Duration == 0 {
		o.Duration = DefaultDuration
	}
	if o.Streams == 0 {
		o.Streams = s.Streams
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if o.Duration < MinDuration {
		return Invalid{"--duration", fmt.Errorf("%v is too short to measure anything; give at least %v", o.Duration, MinDuration)}
	}
	if o.Streams < MinStreams || o.Streams > MaxStreams {
		return Invalid{"--streams", fmt.Errorf("%d is out of range; give %d to %d", o.Streams, MinStreams, MaxStreams)}
	}
	if err := o.checkLoads(s); err != nil {
		return err
	}
	var kinds []string
	switch s.Name {
	case "blame":
		kinds = BlameKinds()
	case "faults":
		kinds = FaultKinds()
	case "continuation":
		kinds = ContinuationKinds()
	case "replicas":
		kinds = ReplicaKinds()
	}
	faults := FaultNames()
	if s.Name == "blame" {
		faults = BlameFaults()
	}
	if err := oneOf("--fault", o.Faults, faults, s.Name == "faults" || s.Name == "blame", "only weir scenario faults and weir scenario blame have it"); err != nil {
		return err
	}
	if err := oneOf("--kind", o.Kinds, kinds, kinds != nil, "only weir scenario blame, weir scenario faults, weir scenario continuation and weir scenario replicas have it"); err != nil {
		return err
	}
	switch s.Name {
	case "continuation":
		return o.checkContinuation()
	case "replicas":
		return o.checkReplicas()
	case "tenants":
		return o.checkTenants()
	}
	return nil
}

// oneOf refuses names in a flag that a scenario does not have; without states which
// scenario has any.
func oneOf(flag string, given, are []string, has bool, without string) error {
	for _, name := range given {
		if !has {
			return Invalid{flag, errors.New(without)}
		}
		if !slices.Contains(are, name) {
			return Invalid{flag, fmt.Errorf("unknown: %q; there are %s", name, strings.Join(are, ", "))}
		}
	}
	return nil
}

// The bounds of Loads.
const minLoad, maxLoad = 0.1, 20

// checkLoads checks the options of overload.
func (o *Options) checkLoads(s Scenario) error {
	if s.Name != "overload" {
		if len(o.Loads) > 0 {
			return Invalid{"--load", errors.New("only weir scenario overload has it")}
		}
		return nil
	}
	if len(o.Loads) == 0 {
		o.Loads = DefaultLoads()
	}
	for i, load := range o.Loads {
		if !(load >= minLoad && load <= maxLoad) || i > 0 && load <= o.Loads[i-1] {
			return Invalid{"--load", fmt.Errorf("%v: want rising multiples of what the engines can serve, from %v to %v, as in 0.5,1,10", o.Loads, minLoad, maxLoad)}
		}
	}
	if o.Streams > overloadMost {
		return Invalid{"--streams", fmt.Errorf("%d engines' requests at once are more than this machine can ask ten times of; give at most %d", o.Streams, overloadMost)}
	}
	// A wait that is to be seen must have time.
	if _, control := overloadTimes(o); control < 2*budget {
		least := (2*budget*time.Duration(len(o.Loads))*100/30 + time.Second).Truncate(time.Second)
		return Invalid{"--duration", fmt.Errorf("%v is too short for %d loads; give at least %v, or fewer by --load", o.Duration, len(o.Loads), least)}
	}
	return nil
}

// enoughFiles refuses what would have more connections than a process may have.
func (s Scenario) enoughFiles(o *Options, limit uint64) error {
	switch s.Name {
	case "overload":
	case "tenants": // as many connections as requests run and wait, and one for each tenant
		return enoughFiles((1+tenantQueue)*o.Streams+tenantCount, limit)
	case "replicas": // a service carries them in this process too
		return enoughFiles(4*o.Streams, limit)
	default:
		return enoughFiles(o.Streams, limit)
	}
	n := overloadConnections(o)
	if enoughFiles(n, limit) != nil {
		return Invalid{"--load", fmt.Errorf("with everything pushed about %d requests are under way at once, which is more than the limit of open files lets a process have, %d; raise it (ulimit -n), or give a lower --load or fewer --streams", n, limit)}
	}
	return nil
}

// enoughFiles refuses more streams than a gateway may hold connections of: one
// to the client and one to the engine for each.
func enoughFiles(streams int, limit uint64) error {
	const spare = 512
	if need := uint64(2*streams + spare); need > limit {
		return Invalid{"--streams", fmt.Errorf("%d streams need %d open files in one process and the limit is %d; raise it (ulimit -n %d) or give at most %d",
			streams, need, limit, need, max(0, int(limit)-spare)/2)}
	}
	return nil
}

// Run runs the scenario. It returns an error when it could not run, an Invalid
// when the options are to blame, and the context's when it was interrupted; then
// too, everything it started has ended.
func (s Scenario) Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.check(s); err != nil {
		return nil, err
	}
	limit, err := lab.RaiseFiles()
	if err != nil {
		return nil, err
	}
	if err := s.enoughFiles(&o, limit); err != nil {
		return nil, err
	}
	if o.Binary == "" {
		if o.Binary, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	dir, err := os.MkdirTemp("", "weir-"+s.Name)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	b := &lab.Bench{Self: []string{o.Binary, o.RoleCommand}, Weir: o.Binary, Dir: dir, Log: io.Discard, Env: lab.Environment()}
	r := &runner{options: o, dir: dir, environment: b.Env, cell: func(ctx context.Context, l cell.Load, times cell.Times, gateway string) *client.Result {
		b.Times = times
		return b.Cell(ctx, l, lab.Named(gateway))
	}}
	fmt.Fprintf(o.Progress, "%s: %s\n%d streams, about %v on this machine (%s)\n", s.Name, s.Summary, o.Streams, o.Duration, proc.Machine())
	started := time.Now()
	report := s.run(ctx, r)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	report.Scenario, report.Summary, report.Machine = s.Name, s.Summary, proc.Machine()
	report.Started, report.Elapsed = started, time.Since(started).Seconds()
	report.Streams, report.Commit = o.Streams, o.Commit
	report.Passed = !slices.ContainsFunc(report.Verdicts, func(v Verdict) bool { return v.Outcome == Failed })
	return report, nil
}

// runner runs a scenario's cells one after the other and keeps their results.
type runner struct {
	options Options
	cell    func(context.Context, cell.Load, cell.Times, string) *client.Result
	dir     string // for files
	planned int    // cells, for the progress
	results []*client.Result
	// environment is that of every process started.
	environment []string
	ackTimeout  time.Duration // of starvation and collapse
	loads       map[string]cell.Load
}

// times shares the run's duration among its cells. A quarter of a cell's share
// is for starting its processes, opening its streams and ending them.
func (r *runner) times() cell.Times {
	share := r.options.Duration / time.Duration(r.planned)
	return cell.Times{Warm: share / 10, Measure: share * 6 / 10, Tail: share / 20, Drain: max(5*time.Second, share)}
}

// interrupted reports whether the run was cancelled, and ends its line of progress then.
func (r *runner) interrupted(ctx context.Context) bool {
	if ctx.Err() == nil {
		return false
	}
	fmt.Fprintln(r.options.Progress, "interrupted")
	return true
}

// unmeasured returns why something was not measured, and ends its line of progress with that.
func (r *runner) unmeasured(err error) string {
	why := strings.TrimSpace(err.Error())
	fmt.Fprintln(r.options.Progress, "not measured:", why)
	return why
}

// measure runs one gateway under one load; nil once the run is interrupted.
func (r *runner) measure(ctx context.Context, l cell.Load, gateway string) *client.Result {
	if ctx.Err() != nil {
		return nil
	}
	if r.loads == nil {
		r.loads = map[string]cell.Load{}
	}
	r.loads[l.Name] = l
	fmt.Fprintf(r.options.Progress, "%2d/%d  %-20s %s tokens/s offered ... ", len(r.results)+1, max(r.planned, len(r.results)+1), gateway, thousands(offered(l)))
	began := time.Now()
	result := r.cell(ctx, l, r.times(), gateway)
	if r.interrupted(ctx) {
		return nil
	}
	if result.Failed != "" {
		fmt.Fprintln(r.options.Progress, "not measured:", result.Failed)
	} else {
		fmt.Fprintf(r.options.Progress, "%s delivered, p99 %.1f ms, lost %d (%v)\n", thousands(result.Delivered), result.P99, result.Lost,
			time.Since(began).Round(100*time.Millisecond))
	}
	r.results = append(r.results, result)
	return result
}

// of returns the result of a gateway under a load, nil where there is none that
// was measured.
func (r *runner) of(l cell.Load, gateway string) *client.Result {
	for _, x := range r.results {
		if x.Load == l.Name && x.Gateway == gateway && x.Failed == "" {
			return x
		}
	}
	return nil
}

// The founding incident's rate: 4096 streams with 135k tokens a second. The overload is
// four times that, more than a write per token achieves on two present-day cores. If a
// control achieves it, it gets four times as much again, and so on.
const (
	foundingRate = 135_000
	raise        = 4
	maxRaises    = 3
)

// stepping is a load in which all streams step at one instant and together say
// this many tokens a second.
func (r *runner) stepping(name string, tokens float64) cell.Load {
	return cell.Load{Name: name, Streams: r.options.Streams, Rate: tokens / float64(r.options.Streams), EndOnTime: true}
}

// founding and overload are the two loads, the latter raised n times.
func (r *runner) founding() cell.Load { return r.stepping("founding", foundingRate) }

func (r *runner) overload(n int) cell.Load {
	tokens, name := float64(foundingRate), "overload"
	for range n {
		tokens *= raise
	}
	if n > 1 {
		name = fmt.Sprintf("overload %d", n)
	}
	return r.stepping(name, tokens)
}

// offered returns the rate of a load, in tokens a second.
func offered(l cell.Load) float64 { return l.Rate * float64(l.Streams) }

// thousands writes a number so that its size can be seen.
func thousands(n float64) string {
	if n < 10_000 {
		return fmt.Sprintf("%.0f", n)
	}
	return fmt.Sprintf("%.0fk", n/1000)
}
