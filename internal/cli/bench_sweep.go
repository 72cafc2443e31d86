package cli

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/internal/load"
	"weir/internal/load/experiment"
	"weir/internal/load/report"
	"weir/internal/load/slo"
)

// campaign carries out several runs and gathers them in one report.
type campaign struct {
	output *sweepOutputFlags
	doc    *report.Sweep
	s      *streams
	// prepare starts what a cell of the grid runs on.
	prepare func(ctx context.Context, c experiment.Cell) (*ground, error)
	factors []experiment.Factor
	cells   []experiment.Cell
	// place returns a cell's curve and where it lies on it.
	place func(c experiment.Cell) (series string, at float64)
	pages bool // a page will be written
	begun time.Time
}

// ground is what runs take place on.
type ground struct {
	plan    load.Plan
	admin   string // of the gateway, empty for none
	guessed bool
	end     func()
}

// errNoServer ends a campaign: every run would say the same.
var errNoServer = errors.New("no request reached the server")

// run carries out one run on a ground.
func (c *campaign) run(ctx context.Context, g *ground, which, series string, at float64, repeat int) (*report.Report, []report.Row, error) {
	plan := g.plan
	// Prompts and arrivals are other ones in each run: the same prompts would be
	// found in caches, and the same arrivals would repeat their noise.
	plan.Seed += uint64(len(c.doc.Runs))
	plan.RequestID = fmt.Sprintf("bench-%08x", rand.Uint32())
	after := time.Since(c.begun).Seconds()
	r, rows, err := c.output.watched(c.s, which, plan, func(plan load.Plan) (*report.Report, []report.Row, error) {
		return measure(ctx, plan, g.admin, g.guessed, true)
	})
	if err != nil {
		return nil, nil, err
	}
	if ctx.Err() == nil && r.Complete == 0 && r.Errors[load.KindConnect] == r.Requests && r.Requests > 0 {
		return nil, nil, fmt.Errorf("%w: %s", errNoServer, r.Examples[load.KindConnect])
	}
	kept := rows
	if !c.pages {
		kept = nil
	}
	return r, rows, c.doc.Add(report.SweepRun{Series: series, At: at, Repeat: repeat, After: after, Report: r}, kept)
}

// say writes a line of progress.
func (c *campaign) say(format string, args ...any) { sayLine(c.s.err, format, args...) }

// sweep runs the grid.
func (c *campaign) sweep(ctx context.Context, repeats int, seed uint64) error {
	order := experiment.Order(len(c.cells), repeats, seed)
	for i, run := range order {
		if ctx.Err() != nil {
			break
		}
		cell := c.cells[run.Cell]
		err := c.one(ctx, cell, run, i, len(order))
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// one runs a cell once.
func (c *campaign) one(ctx context.Context, cell experiment.Cell, run experiment.Run, i, of int) error {
	g, err := c.prepare(ctx, cell)
	if err != nil {
		return err
	}
	defer g.end()
	series, at := c.place(cell)
	label := cell.Label(c.factors)
	r, _, err := c.run(ctx, g, fmt.Sprintf("run %d of %d, %s: ", i+1, of, label), series, at, run.Repeat)
	if err != nil {
		return fmt.Errorf("run %d (%s): %w", i+1, label, err)
	}
	verdict := string(r.Verdict.Trust)
	if r.Unstable() != "" {
		verdict = "unstable"
	}
	c.say("%*d/%d  %s: %s, %.2f requests/s, ttft p50 %s p99 %s ms, %d of %d complete", len(strconv.Itoa(of)), i+1, of, label, verdict,
		r.RequestsPerSecond, millis(float64(r.TTFT.P50)), millis(float64(r.TTFT.P99)), r.Complete, r.Requests)
	return nil
}

// millis writes a figure of a progress line.
func millis(ms float64) string {
	if ms != ms {
		return "-"
	}
	return fmt.Sprintf("%.1f", ms)
}

// search finds the highest rate of each cell.
func (c *campaign) search(ctx context.Context, objectives []slo.Objective, o slo.Options) error {
	for _, cell := range c.cells {
		if ctx.Err() != nil {
			return nil
		}
		if err := c.searchOne(ctx, cell, objectives, o); err != nil {
			return err
		}
	}
	return nil
}

func (c *campaign) searchOne(ctx context.Context, cell experiment.Cell, objectives []slo.Objective, o slo.Options) error {
	series, _ := c.place(cell)
	search := slo.NewSearch(objectives, o)
	n := 0
	for rate, ok := search.Next(); ok && ctx.Err() == nil; rate, ok = search.Next() {
		g, err := c.prepare(ctx, cell)
		if err != nil {
			return c.unlessInterrupted(ctx, err)
		}
		g.plan.Rate, g.plan.Concurrency = rate, 0
		n++
		r, rows, err := c.run(ctx, g, fmt.Sprintf("trial %d, %s", n, prefix(series)), series, rate, n)
		g.end()
		if err != nil {
			return c.unlessInterrupted(ctx, err)
		}
		if ctx.Err() != nil {
			break // what was cut short decides nothing
		}
		search.Add(trial(objectives, rate, r, rows))
		path := search.Result().Path
		step := path[len(path)-1]
		run := &c.doc.Runs[len(c.doc.Runs)-1]
		run.Decision, run.Repeat = step.Decision.String(), step.Repeat
		c.say("%3d  %s%s/s %s: %s", n, prefix(series), slo.Round(rate), step.Decision, step.Why)
	}
	result := search.Result()
	if ctx.Err() != nil {
		result.Why = "interrupted"
	}
	c.doc.Searches = append(c.doc.Searches, report.SweepSearch{Series: series, Result: result, Sentence: result.Sentence()})
	return nil
}

// prefix puts a series in front of a message about it.
func prefix(series string) string {
	if series == "" {
		return ""
	}
	return series + ": "
}

// unlessInterrupted returns an error that is not just how a run ended that was
// called off.
func (c *campaign) unlessInterrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// trial returns what a run showed about a rate: the requests of its steady part, or all if
// there is none, in the order in which they were intended.
func trial(objectives []slo.Objective, rate float64, r *report.Report, rows []report.Row) slo.Trial {
	t := slo.Trial{Rate: rate, Unstable: r.Unstable(), Void: r.Overdriven()}
	slices.SortFunc(rows, func(a, b report.Row) int { return int(min(1, max(-1, a.Intended-b.Intended))) })
	requests := make([]slo.Request, 0, len(rows))
	for i := range rows {
		row := &rows[i]
		if since := float64(row.Intended-rows[0].Intended) / 1e9; r.Steady.Why == "" && since < r.Steady.From {
			continue
		}
		if request, ok := judged(row); ok {
			requests = append(requests, request)
		}
	}
	for i := range objectives {
		t.Tallies = append(t.Tallies, objectives[i].Take(requests))
	}
	return t
}

// judged returns the figures that objectives use; ok is false if this client ended the
// request itself.
func judged(row *report.Row) (x slo.Request, ok bool) {
	switch row.Outcome {
	case load.Abandoned, load.Unfinished:
		return x, false
	case load.Complete:
	default:
		return x, true
	}
	x = slo.Request{Complete: true, E2E: time.Duration(row.LastByte - row.Intended)}
	if row.Streamed() && row.FirstContent != 0 {
		x.TTFT = time.Duration(row.FirstContent - row.Intended)
		if row.FirstToken != 0 {
			x.TTFTAnswer = time.Duration(row.FirstToken - row.Intended)
		}
	}
	if ns, ok := row.TPOT(); ok {
		x.TPOT = time.Duration(ns)
	}
	return x, true
}

// finish settles the report, writes it and gives the command's end.
func (c *campaign) finish(ctx context.Context, problem error, files *outputFiles[*report.Sweep]) error {
	c.doc.Elapsed = time.Since(c.begun).Seconds()
	c.doc.Interrupted = ctx.Err() != nil || problem != nil
	var order []report.SweepPoint
	if c.doc.SLO == "" {
		for _, cell := range c.cells {
			series, at := c.place(cell)
			order = append(order, report.SweepPoint{Series: series, At: at})
		}
	}
	c.doc.Settle(order)
	if problem != nil && len(c.doc.Runs) == 0 {
		return errors.Join(problem, files.close())
	}
	if err := errors.Join(problem, files.write(c.doc, c.doc.Text, c.s.out), files.close()); err != nil {
		return err
	}
	if c.doc.Failed() {
		return exitStatus(1)
	}
	return nil
}

// runSweep loads a server at several rates or concurrencies, or searches for the
// rate that meets objectives.
func (c *benchCommand) runSweep(s *streams) error {
	for name, path := range map[string]string{"jsonl": c.JSONL, "perfetto": c.Perfetto, "record": c.Record, "start-at": c.StartAt} {
		if path != "" {
			return wrongf("--%s belongs to a single run: a sweep takes --%s", name, strings.Join(sweepForms, ", --"))
		}
	}
	axis, values := experiment.Rate, c.Rate
	if c.Concurrency.Several() {
		axis, values = experiment.Concurrency, c.Concurrency
	}
	if c.SLO == "" && len(values.List) == 0 {
		return wrongf("--%s: a range to sweep needs steps, as in 10..100+10 or 1..64x2", axis)
	}
	if c.Repeats < 1 {
		return wrongf("--repeats must be at least 1")
	}
	objectives, options, err := c.objectives()
	if err != nil {
		return err
	}
	ctx, _, stop := s.interrupt()
	defer stop()
	plan, err := unlessStopped(ctx, 1, func() (load.Plan, error) { return c.plan(ctx, s) })
	if err != nil {
		return err
	}
	files, err := c.openSweep()
	if err != nil {
		return err
	}
	run := &campaign{output: &c.sweepOutputFlags, s: s, pages: c.HTML != "", begun: time.Now(), doc: &report.Sweep{
		Name: "weir bench", URL: c.URL, SLO: c.SLO, Seed: c.Seed, Repeats: c.Repeats, Started: time.Now(), Factors: []experiment.Factor{},
	}}
	run.prepare = func(_ context.Context, cell experiment.Cell) (*ground, error) {
		g := &ground{plan: plan, admin: c.admin(), guessed: c.Admin == "auto", end: func() {}}
		if len(cell) > 0 {
			if v := values.List[cell[0]]; axis == experiment.Rate {
				g.plan.Rate = v
			} else {
				g.plan.Concurrency = int(v)
			}
		}
		return g, nil
	}
	run.place = func(cell experiment.Cell) (string, float64) {
		if len(cell) == 0 {
			return "", 0
		}
		return "", values.List[cell[0]]
	}
	if c.SLO != "" {
		run.cells = experiment.Grid(nil)
		err = run.search(ctx, objectives, options)
	} else {
		run.factors = []experiment.Factor{{Name: axis, Values: values.Texts()}}
		run.doc.Factors, run.cells = run.factors, experiment.Grid(run.factors)
		err = run.sweep(ctx, c.Repeats, c.Seed)
	}
	return run.finish(ctx, err, files)
}

// objectives reads --slo and what belongs to it.
func (c *benchCommand) objectives() ([]slo.Objective, slo.Options, error) {
	o := slo.Options{Start: c.Rate.One(), Low: c.Rate.Low, High: c.Rate.High, Tolerance: c.Tolerance / 100, Trials: c.Trials}
	if c.SLO == "" {
		return nil, o, nil
	}
	switch {
	case len(c.Concurrency.List) > 0 || c.Concurrency.Several():
		return nil, o, wrongf("--slo searches for a rate: drop --concurrency")
	case len(c.Rate.List) > 1:
		return nil, o, wrongf("--slo chooses the rates itself: --rate may give the ends of a range, as in 1..64, or the rate to begin with")
	case !(c.Tolerance > 0 && c.Tolerance <= 100) || c.Trials < 1:
		return nil, o, wrongf("--tolerance must be a percentage above 0 and up to 100, and --trials at least 1")
	}
	all, err := slo.Parse(c.SLO)
	if err != nil {
		return nil, o, wrongf("--slo: %w", err)
	}
	return all, o, nil
}
