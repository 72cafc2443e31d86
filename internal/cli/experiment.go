package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"weir/internal/load/experiment"
	"weir/internal/load/report"
)

type experimentCommand struct {
	File             string `arg:"" optional:"" type:"path" help:"The experiment, a YAML file (docs/bench.md#experiments); examples/ has some."`
	sweepOutputFlags `group:"Output:"`
}

// Help implements kong's extended help.
func (experimentCommand) Help() string {
	return `The file names the loads and the fleets to measure. A list of values is a factor, and every combination of factors is a cell. Each cell is run with simulated engines and a gateway of its own, in processes that end with this one.

Examples:
  weir experiment examples/rate.yaml --html rate.html
  weir experiment examples/policies.yaml --json before.json
  weir report before.json after.json               compares two`
}

// Run implements the command. It exits 1 when any stream was not complete.
func (c *experimentCommand) Run(k *kong.Context, s *streams) error {
	if c.File == "" {
		return wrongf("no experiment: give its file, as in weir experiment examples/rate.yaml")
	}
	return c.run(k, s)
}

// asExperiment is the command line that replaces weir bench --experiment.
func (c *benchCommand) asExperiment() string {
	line := "weir experiment " + c.Experiment
	for _, f := range []struct{ name, path string }{{"csv", c.CSV}, {"json", c.JSON}, {"html", c.HTML}} {
		if f.path != "" {
			line += " --" + f.name + " " + f.path
		}
	}
	return line
}

// Flags that the sections of an experiment may not hold: the fleet sets them, or they
// select outputs and modes.
var (
	notLoad    = []string{"repeats", "slo", "tolerance", "trials", "admin", "progress", "csv", "json", "jsonl", "html", "perfetto", "seed", "config", "worker", "start-at", "record", "calibrate"}
	notEngine  = []string{"offline", "wire", "listen", "admin-listen", "name"}
	notGateway = []string{"engine", "listen", "admin-listen", "config", "tls-cert", "tls-key", "h2c", "log-level"}
)

// knownFlags returns the flags that an experiment may set, by command.
func knownFlags(k *kong.Context) experiment.Known {
	of := func(command string, but []string) (names []string) {
		for _, node := range k.Model.Children {
			if node.Name != command {
				continue
			}
			for _, f := range node.Flags {
				if !f.Hidden && f.Name != "help" && !slices.Contains(but, f.Name) {
					names = append(names, f.Name)
				}
			}
		}
		return names
	}
	return experiment.Known{
		Load: of("bench", notLoad), Gateway: of("serve", notGateway),
		Engine: slices.DeleteFunc(of("engine", notEngine), func(f string) bool { return slices.Contains(offlineOnly, f) }),
	}
}

// parsed reads the flags of another command as the command line would.
func parsed(args []string) (*commands, error) {
	var c commands
	parser, err := kong.New(&c, kong.Name("weir"), kong.Exit(func(int) {}), kong.Writers(io.Discard, io.Discard), kong.Vars{"version": ""})
	if err != nil {
		return nil, err
	}
	_, err = parser.Parse(args)
	return &c, err
}

// loadCommand returns the weir bench of a cell.
func loadCommand(e *experiment.Experiment, c experiment.Cell, url string) (*benchCommand, error) {
	all, err := parsed(append([]string{"bench", url}, e.LoadArgs(c)...))
	if err != nil {
		return nil, fmt.Errorf("experiment %s: load: %w", e.Path, err)
	}
	b := &all.Bench
	b.Seed = e.Seed
	return b, nil
}

// warmTokens bounds the length of the answers to the requests that warm a fleet.
const warmTokens = 8

// checkCells refuses what some cell could not be run with, before any is.
func checkCells(e *experiment.Experiment, cells []experiment.Cell) error {
	for _, c := range cells {
		b, err := loadCommand(e, c, "http://127.0.0.1:1")
		if err != nil {
			return err
		}
		if b.Requests == 0 && b.Duration == 0 && b.Workload == "" {
			return fmt.Errorf("experiment %s: load: say how much to send: requests or duration", e.Path)
		}
		for n := 1; n <= e.Fleet(c).Engines(); n++ {
			if _, err := parsed(append([]string{"engine"}, e.EngineArgs(c, n)...)); err != nil {
				return fmt.Errorf("experiment %s: engine-%d: %w", e.Path, n, err)
			}
		}
		if _, err := parsed(append([]string{"serve", "--engine=openai=http://127.0.0.1:1"}, e.GatewayArgs(c)...)); err != nil {
			return fmt.Errorf("experiment %s: gateway: %w", e.Path, err)
		}
	}
	return nil
}

// run runs the grid of the file.
func (c *experimentCommand) run(k *kong.Context, s *streams) error {
	e, err := experiment.Read(c.File, knownFlags(k))
	if err != nil {
		return wrongUsage{err}
	}
	cells := experiment.Grid(e.Factors)
	if err := checkCells(e, cells); err != nil {
		return wrongUsage{err}
	}
	ctx, _, stop := s.interrupt()
	defer stop()
	files, err := c.openSweep()
	if err != nil {
		return err
	}
	run := &campaign{output: &c.sweepOutputFlags, s: s, pages: c.HTML != "", begun: time.Now(), factors: e.Factors, cells: cells, doc: &report.Sweep{
		Name: e.Name, Fleet: describeFleet(e), Fixed: e.Fixed(), SLO: e.Text, Seed: e.Seed, Repeats: e.Repeats, Factors: e.Factors, Started: time.Now(),
	}}
	if run.doc.Factors == nil {
		run.doc.Factors = []experiment.Factor{}
	}
	run.place = func(cell experiment.Cell) (string, float64) {
		series, text := e.Series(cell)
		at, err := strconv.ParseFloat(text, 64)
		if err != nil { // nothing is swept
			return series, 0
		}
		return series, at
	}
	run.prepare = func(ctx context.Context, cell experiment.Cell) (*ground, error) {
		f, err := startFleet(ctx, e, cell)
		if err != nil {
			return nil, err
		}
		g := &ground{admin: f.admin, end: f.stop}
		b, err := loadCommand(e, cell, f.url)
		if err == nil {
			g.plan, err = b.plan(ctx, s)
		}
		if err == nil {
			like := g.plan
			if b.Workload != "" { // it says itself how long answers are
				like.OutputTokens = warmTokens
			}
			err = f.warm(ctx, like, e.Fleet(cell).Engines())
		}
		if err == nil && b.Workload != "" {
			var trace openFiles
			g.end = func() { f.stop(); trace.close() }
			b.Seed += uint64(len(run.doc.Runs)) // each run's own, as its prompts are
			g.plan.Workload, err = b.workload(&trace)
		}
		if err != nil {
			g.end()
			return nil, err
		}
		return g, nil
	}
	if e.Objectives != nil {
		err = run.search(ctx, e.Objectives, e.Search)
	} else {
		err = run.sweep(ctx, e.Repeats, e.Seed)
	}
	return run.finish(ctx, err, files)
}

// describeFleet returns what each run is given.
func describeFleet(e *experiment.Experiment) string {
	engines := "engines as the cell says"
	if !slices.ContainsFunc(e.Factors, func(f experiment.Factor) bool { return f.Name == experiment.EnginesFactor }) {
		engines = e.Fleet(make(experiment.Cell, len(e.Factors))).String()
	}
	text := fmt.Sprintf("a fleet for each run: %s over %s behind a gateway", engines, e.Wire)
	if e.Direct {
		text = fmt.Sprintf("a simulated engine for each run, over %s and without a gateway", e.Wire)
	}
	return strings.Replace(text, "1 simulated engines", "1 simulated engine", 1)
}
