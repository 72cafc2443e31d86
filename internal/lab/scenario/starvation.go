//go:build linux

package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"weir/internal/lab"
	"weir/internal/lab/control"
	"weir/internal/lab/proc"
	"weir/internal/load"
	"weir/internal/trace"
)

// The starvation scenario is the incident's, except for the engine, which costs next to
// nothing, so that the gateway carries the load.
const (
	promptTokens = 40_000 // of a large prompt
	largeOutput  = 16     // tokens
	largeRate    = 105    // of the open loop, requests a second
	smallStreams = 64
	smallOutput  = 64
	prefillCost  = 5 * time.Millisecond
	decodeCost   = 10 * time.Millisecond
	stepTokens   = 1 << 22 // a step takes any number of prompts
	// smallPrompt parts the small streams' records from the large ones'.
	smallPrompt = 4096
	engines     = 4
	// ackTimeout is how long the incident's gateways waited for an acknowledgement, on a
	// loop that took ten times as long to tokenize a prompt.
	ackTimeout    = 5 * time.Second
	minAckTimeout = 50 * time.Millisecond
)

// loopControl is the gateway that tokenizes on the loop that carries I/O, and takes an
// engine for dead whose acknowledgement it sees late.
const loopControl = "one loop"

// phase is the load beside the small streams.
type phase struct {
	name        string
	rate        float64 // open loop
	concurrency int     // closed loop
}

// Starved is one gateway in one phase of starvation.
type Starved struct {
	Gateway string `json:"gateway"`
	Large   string `json:"large_prompts"` // none, or how they are offered
	// NotMeasured is why there are no figures.
	NotMeasured string `json:"not_measured,omitempty"`

	Prompts float64 `json:"large_prompts_per_second"` // answered in full
	Tokens  float64 `json:"prompt_tokens_each"`
	CPU     float64 `json:"gateway_cpus"`
	// P50 to Max are the small streams' output_path_delay.
	Small int     `json:"small_streams"`
	P50   float64 `json:"small_output_path_delay_p50_ms"`
	P99   float64 `json:"small_output_path_delay_p99_ms"`
	Max   float64 `json:"small_output_path_delay_max_ms"`
	// Stall is how late the gateway's I/O was, p99, by its own canary
	// (watch.Canary).
	Stall float64 `json:"io_stall_p99_ms"`
	// Machine is the same for a process next to it that does nothing.
	Machine  float64 `json:"machine_stall_p99_ms"`
	Timeouts int     `json:"acknowledgement_timeouts"`
	// Ready is the least number of engines in use at any time; all of them are alive.
	Ready   int `json:"least_engines_ready"`
	Engines int `json:"engines"`
	Errors  int `json:"ended_by_error"`
	Lost    int `json:"lost_tokens"`
	// FirstError is an example of an error that ended a request.
	FirstError string `json:"first_error,omitempty"`
}

// starvation is the incident in which prompts of 40k tokens were tokenized on the loop that
// also carries I/O: it stalled for 2.66 s, acknowledgements timed out, live engines were
// taken out, and of 105 requests a second 14 remained. Here such prompts come while small
// streams run. The control is a gateway with such a loop, which must collapse in the same
// way.
func starvation(ctx context.Context, r *runner) *Report {
	phases := []phase{
		{name: "none"},
		{name: fmt.Sprintf("%d/s", largeRate), rate: largeRate},
		{name: fmt.Sprintf("%d at once", r.options.Streams), concurrency: r.options.Streams},
	}
	gateways := []string{lab.Plane, loopControl}
	each := r.options.Duration / time.Duration(len(phases)*len(gateways))
	report := &Report{Rows: []Row{}}
	cost, err := control.PromptCost(promptTokens)
	if err != nil {
		return report.failed("tokenizing could not be measured: %v", err)
	}
	// A loop with all of the prompts at once sees an acknowledgement as late as it takes
	// to tokenize them. A quarter of that is the incident's deadline on this machine.
	r.ackTimeout = min(max(cost*time.Duration(r.options.Streams)/4, minAckTimeout), ackTimeout).Round(time.Millisecond)
	fmt.Fprintf(r.options.Progress, "%v to tokenize a prompt here: acknowledgements have %v\n", cost.Round(10*time.Microsecond), r.ackTimeout)
	for _, gateway := range gateways {
		rows, err := r.starve(ctx, gateway, phases, each)
		if ctx.Err() != nil {
			return report
		}
		if err != nil {
			rows = append(rows, Starved{Gateway: gateway, NotMeasured: err.Error()})
		}
		report.Starved = append(report.Starved, rows...)
	}
	report.Verdicts = judgeStarvation(report.Starved)
	return report
}

// starve runs one gateway through the phases.
func (r *runner) starve(ctx context.Context, gateway string, phases []phase, each time.Duration) ([]Starved, error) {
	t, err := r.startStarved(ctx, gateway)
	defer t.stop()
	if err != nil {
		return nil, err
	}
	var rows []Starved
	var spans [][2]int64
	for _, p := range phases {
		fmt.Fprintf(r.options.Progress, "%-20s %d small streams, large prompts: %s ... ", gateway, smallStreams, p.name)
		row, span, err := t.phase(ctx, p, each)
		if err != nil {
			fmt.Fprintln(r.options.Progress, "not measured:", err)
			return rows, err
		}
		fmt.Fprintf(r.options.Progress, "%.0f prompts/s, %.2f CPUs\n", row.Prompts, row.CPU)
		row.Gateway, row.Large, row.Engines = gateway, p.name, engines
		rows, spans = append(rows, row), append(spans, span)
	}
	t.gateway.Stop() // writes its timeline to the end
	data, err := os.ReadFile(t.timeline)
	if err != nil {
		return rows, err
	}
	for i := range rows {
		err := rows[i].read(data, spans[i])
		if err == nil && rows[i].Small == 0 && gateway == lab.Plane {
			err = errors.New("timeline: no small stream has an output_path_delay")
		}
		if err != nil {
			rows[i].NotMeasured = fmt.Sprintf("large prompts %s: %v", rows[i].Large, err)
		}
	}
	return rows, nil
}

// starved is a bed whose gateway will be starved.
type starved struct {
	*bed
	r *runner
}

// startStarved starts a gateway and its engines. On failure the result contains what was
// started.
func (r *runner) startStarved(ctx context.Context, gateway string) (*starved, error) {
	b, err := r.startBed(ctx, bedding{
		gateway: gateway, engines: engines, ackTimeout: r.ackTimeout,
		engine: []string{"--cost", "constant", "--prefill-cost", prefillCost.String(), "--decode-cost", decodeCost.String(), "--max-running-requests", strconv.Itoa(stepTokens)},
	})
	return &starved{bed: b, r: r}, err
}

// load starts this binary as a load generator.
func (t *starved) load(args ...string) (*lab.Process, error) {
	return lab.Start(append([]string{t.r.options.Binary, "bench", t.url, "--model", "weir-sim", "--json", "-", "--admin", "off", "--field", "ignore_eos=true"}, args...), t.r.environment)
}

// phase runs one phase, and hangs up on the unfinished requests at its end.
func (t *starved) phase(ctx context.Context, p phase, each time.Duration) (Starved, [2]int64, error) {
	var row Starved
	var span [2]int64
	// The load generators must start, and the closed loop fill up, before the
	// window begins.
	lead, measure := each*2/10, each*6/10
	length := (lead + measure).String()
	small, err := t.load("--concurrency", strconv.Itoa(smallStreams), "--output-tokens", strconv.Itoa(smallOutput), "--duration", length)
	if err != nil {
		return row, span, err
	}
	defer small.Stop()
	loads := []*lab.Process{small}
	if p.name != "none" {
		args := []string{"--input-tokens", strconv.Itoa(promptTokens), "--output-tokens", strconv.Itoa(largeOutput), "--duration", length, "--seed", "2"}
		if p.rate > 0 {
			args = append(args, "--rate", fmt.Sprint(p.rate))
		} else {
			args = append(args, "--concurrency", strconv.Itoa(p.concurrency))
		}
		large, err := t.load(args...)
		if err != nil {
			return row, span, err
		}
		defer large.Stop()
		loads = append(loads, large)
	}
	select {
	case <-ctx.Done():
		return row, span, ctx.Err()
	case <-time.After(lead):
	}
	span[0] = trace.Now()
	before, err := proc.Of(t.gateway.PIDs())
	if err != nil {
		return row, span, err
	}
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	readings := [2]func() (buckets, error){func() (buckets, error) { return stalls(ctx, t.metrics) }, idle(within)}
	var earlier [2]buckets
	for i, read := range readings {
		if earlier[i], err = read(); err != nil {
			return row, span, err
		}
	}
	if row.Ready, err = t.leastReady(ctx, measure); err != nil {
		return row, span, err
	}
	for i, p99 := range []*float64{&row.Stall, &row.Machine} {
		later, err := readings[i]()
		if err != nil {
			return row, span, err
		}
		if *p99, err = later.since(earlier[i]).quantile(0.99); err != nil {
			return row, span, err
		}
	}
	span[1] = trace.Now()
	after, err := proc.Of(t.gateway.PIDs())
	if err != nil {
		return row, span, err
	}
	row.CPU = (after.CPU - before.CPU) / (float64(span[1]-span[0]) / 1e9)
	for i, l := range loads {
		l.Interrupt()
		report, err := readReport(ctx, l)
		if err != nil {
			return row, span, err
		}
		row.Lost += report.Lost
		row.Errors += report.Errored + report.Corrupt
		for kind, example := range report.Examples {
			row.FirstError = fmt.Sprintf("%s: %s", kind, example)
		}
		if i == 1 {
			row.Prompts = report.RequestsPerSecond
			row.Tokens = float64(report.PromptTokens) / float64(max(1, report.Complete))
		}
	}
	return row, span, nil
}

// readReport waits for a load generator's report.
func readReport(ctx context.Context, l *lab.Process) (*load.Report, error) {
	within, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	out, err := l.Wait(within)
	if err != nil {
		return nil, fmt.Errorf("the load generator does not end: %w", err)
	}
	report := new(load.Report)
	if err := json.Unmarshal(out, report); err != nil {
		return nil, fmt.Errorf("the load generator's report: %w: %s", err, l.Problem())
	}
	return report, nil
}

// read takes from a timeline what happened to the small streams that began in a span of
// time, and the missing acknowledgements.
func (s *Starved) read(timeline []byte, span [2]int64) error {
	var delays []float64
	for text := range bytes.Lines(timeline) {
		var line struct {
			control.Line
			Attempts []struct {
				Legs []struct {
					Sent  int64 `json:"to_server_time"`
					Acked int64 `json:"acked_time"`
				}
			}
		}
		if err := json.Unmarshal(text, &line); err != nil {
			return fmt.Errorf("timeline: %w", err)
		}
		if line.Arrival < span[0] || line.Arrival >= span[1] {
			continue
		}
		unacked := line.Code == control.AckTimedOut
		for _, a := range line.Attempts {
			for _, leg := range a.Legs {
				// A wait for the pool or for a token can also reach a deadline.
				unacked = unacked || line.Code == "deadline" && leg.Sent > 0 && leg.Acked == 0
			}
		}
		if unacked {
			s.Timeouts++
		}
		if line.Delay != nil && line.PromptTokens < smallPrompt {
			delays = append(delays, float64(*line.Delay)/1e6)
		}
	}
	slices.Sort(delays)
	s.Small, s.P50, s.P99, s.Max = len(delays), percentile(delays, 0.5), percentile(delays, 0.99), percentile(delays, 1)
	return nil
}

// percentile is the value that a share of sorted values does not exceed; 0 of
// none.
func percentile(sorted []float64, share float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(share*float64(len(sorted)-1))]
}

// judgeStarvation judges the rows: of each gateway first the small streams
// alone, then with large prompts.
func judgeStarvation(rows []Starved) []Verdict {
	var verdicts []Verdict
	alone := map[string]Starved{}
	ours := map[string]Starved{} // by phase
	collapsed, seen := "", ""
	for _, x := range rows {
		if x.NotMeasured != "" {
			verdicts = append(verdicts, verdict(false, Failed, "%s was not measured: %s", x.Gateway, x.NotMeasured))
			continue
		}
		if x.Large == "none" {
			alone[x.Gateway] = x
		}
		if x.Gateway != lab.Plane {
			if x.Large != "none" {
				seen = fmt.Sprintf("with %s: %.0f prompts/s beside weir's %.0f, %d of %d live engines left", x.Large, x.Prompts, ours[x.Large].Prompts, x.Ready, engines)
				if x.Ready < engines && x.Prompts < ours[x.Large].Prompts/2 {
					collapsed = seen
				}
			}
			continue
		}
		ours[x.Large] = x
		verdicts = append(verdicts,
			verdict(x.Lost == 0, Failed, "weir loses no token with large prompts %s: %d lost", x.Large, x.Lost),
			verdict(x.Ready == engines, Failed, "weir takes no live engine out with large prompts %s: %d of %d left", x.Large, x.Ready, engines))
		if x.Errors > 0 {
			verdicts = append(verdicts, figure(false, "weir ends no request by error with large prompts %s: %d, such as %.200s", x.Large, x.Errors, x.FirstError))
		}
		if x.Large == "none" {
			continue
		}
		verdicts = append(verdicts,
			verdict(x.Prompts > 0, Failed, "weir answers large prompts %s: %.0f a second of %.0f tokens", x.Large, x.Prompts, x.Tokens),
			figure(x.P99 <= 2*alone[x.Gateway].P99, "the small streams' output_path_delay p99 is at most twice what it is without large prompts %s: %.2f ms and %.2f ms", x.Large, x.P99, alone[x.Gateway].P99),
			figure(x.Stall <= max(2, x.Machine), "I/O stalls at most 2 ms at p99, or as much as in an idle process, with large prompts %s: %.2f ms, and %.2f in one", x.Large, x.Stall, x.Machine),
			figure(x.Timeouts == 0, "no acknowledgement times out with large prompts %s: %d", x.Large, x.Timeouts))
		if x.Large == fmt.Sprintf("%d/s", largeRate) {
			verdicts = append(verdicts, figure(x.CPU <= 0.9, "the gateway takes at most 0.9 CPUs at %s: %.2f", x.Large, x.CPU))
		}
	}
	const must = "the control takes live engines out and answers less than half of what weir does"
	if collapsed != "" {
		verdicts = append(verdicts, verdict(true, Failed, must+" (%s)", collapsed))
	} else {
		verdicts = append(verdicts, verdict(false, Failed, must+": it did not (%s), so this run shows nothing; give it more --streams or --duration", seen))
	}
	return verdicts
}

// starvedTable is the rows for a person.
func starvedTable(rows []Starved) (table [][]string) {
	table = [][]string{
		{"gateway", "large", "prompts/s", "gateway", "output", "path", "delay", "I/O stall", "idle", "ack", "engines", "ended", "lost"},
		{"", "prompts", "", "CPUs", "p50 ms", "p99 ms", "max ms", "p99 ms", "p99 ms", "timeouts", "left", "by error", ""},
	}
	for _, x := range rows {
		if x.NotMeasured != "" {
			continue // its verdict says why
		}
		table = append(table, []string{x.Gateway, x.Large, fmt.Sprintf("%.1f", x.Prompts), fmt.Sprintf("%.2f", x.CPU),
			fmt.Sprintf("%.2f", x.P50), fmt.Sprintf("%.2f", x.P99), fmt.Sprintf("%.1f", x.Max), fmt.Sprintf("%.2f", x.Stall), fmt.Sprintf("%.2f", x.Machine),
			fmt.Sprint(x.Timeouts), fmt.Sprint(x.Ready), fmt.Sprint(x.Errors), fmt.Sprint(x.Lost)})
	}
	return table
}
