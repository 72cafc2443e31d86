//go:build linux

package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"weir/internal/bench"
	"weir/internal/bench/cell"
	"weir/internal/bench/control"
	"weir/internal/bench/proc"
	"weir/internal/load"
	"weir/internal/trace"
)

// The starvation scenario's shape: the incident's, but for the engine, which
// costs next to nothing, so that the gateway is what is loaded.
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
)

// inlineControl is the gateway that tokenizes where the request is.
const inlineControl = "inline tokenizing"

// phase is what is offered beside the small streams.
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
	// Machine is the same of a process beside it that does nothing.
	Machine  float64 `json:"machine_stall_p99_ms"`
	Timeouts int     `json:"acknowledgement_timeouts"`
	Errors   int     `json:"ended_by_error"`
	Lost     int     `json:"lost_tokens"`
	// FirstError is an example of what ended a request.
	FirstError string `json:"first_error,omitempty"`
}

// starvation is the incident in which prompts of 40k tokens were tokenized on
// the loop that also carries I/O: it stalled for 2.66 s, acknowledgements timed
// out, live engines were taken out. Here such prompts come while small streams
// run; beside weir stands a gateway that tokenizes where the request is.
func starvation(ctx context.Context, r *runner) *Report {
	phases := []phase{
		{name: "none"},
		{name: fmt.Sprintf("%d/s", largeRate), rate: largeRate},
		{name: fmt.Sprintf("%d at once", r.options.Streams), concurrency: r.options.Streams},
	}
	gateways := []string{bench.Plane, inlineControl}
	each := r.options.Duration / time.Duration(len(phases)*len(gateways))
	report := &Report{Rows: []Row{}}
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
	if t != nil {
		defer t.stop()
	}
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
		row.Gateway, row.Large = gateway, p.name
		rows, spans = append(rows, row), append(spans, span)
	}
	t.gateway.Stop() // writes its timeline to the end
	data, err := os.ReadFile(t.timeline)
	if err != nil {
		return rows, err
	}
	for i := range rows {
		if err := rows[i].read(data, spans[i]); err != nil {
			rows[i].NotMeasured = fmt.Sprintf("large prompts %s: %v", rows[i].Large, err)
		}
	}
	return rows, nil
}

// starved is an engine and a gateway under test.
type starved struct {
	r               *runner
	engine, gateway *bench.Process
	url, metrics    string
	timeline        string
}

func (t *starved) stop() {
	if t.gateway != nil {
		t.gateway.Stop()
	}
	t.engine.Stop()
}

func (r *runner) startStarved(ctx context.Context, gateway string) (*starved, error) {
	var addr [3]string
	for i := range addr {
		var err error
		if addr[i], err = bench.FreeAddr(); err != nil {
			return nil, err
		}
	}
	binary := r.options.Binary
	engine, err := bench.Start([]string{binary, "engine", "--wire", "weir=" + addr[0], "--cost", "constant", "--prefill-cost", prefillCost.String(),
		"--decode-cost", decodeCost.String(), "--max-running-requests", strconv.Itoa(stepTokens)}, r.environment)
	if err != nil {
		return nil, err
	}
	t := &starved{r: r, engine: engine, url: "http://" + addr[1], timeline: filepath.Join(r.dir, gateway+".jsonl")}
	if err := engine.AwaitTCP(ctx, addr[0]); err != nil {
		return t, err
	}
	args := []string{binary, "serve", "--listen", addr[1], "--admin-listen", addr[2], "--engine", "weir=" + addr[0], "--timeline", t.timeline,
		"--submit-timeout", control.AckTimeout.String(), "--log-level", "error"}
	ready := "http://" + addr[2] + "/readyz"
	t.metrics = "http://" + addr[2] + "/metrics"
	if gateway != bench.Plane {
		spec, err := json.Marshal(&cell.Cell{Engine: addr[0], Gateway: addr[1], Timeline: t.timeline})
		if err != nil {
			return t, err
		}
		args = []string{binary, r.options.RoleCommand, bench.InlineRole, string(spec)}
		t.metrics, ready = t.url, t.url
	}
	if t.gateway, err = bench.Start(args, r.environment); err != nil {
		return t, err
	}
	return t, t.gateway.AwaitHTTP(ctx, ready)
}

// load starts this binary as a load generator.
func (t *starved) load(args ...string) (*bench.Process, error) {
	return bench.Start(append([]string{t.r.options.Binary, "bench", t.url, "--model", "weir-sim", "--json", "-", "--admin", "off", "--field", "ignore_eos=true"}, args...), t.r.environment)
}

// phase runs one phase. What is still under way at its end is hung up on.
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
	loads := []*bench.Process{small}
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
	select {
	case <-ctx.Done():
		return row, span, ctx.Err()
	case <-time.After(measure):
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
func readReport(ctx context.Context, l *bench.Process) (*load.Report, error) {
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

// read takes from a timeline what the small streams that began in a span of
// time saw, and the acknowledgements that did not come.
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
				// A deadline is also what a wait for the pool or for a token may run
				// into.
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
	if len(delays) == 0 {
		return errors.New("timeline: no small stream has an output_path_delay")
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
	failed, seen := "", ""
	for _, x := range rows {
		if x.NotMeasured != "" {
			verdicts = append(verdicts, verdict(false, Failed, "%s was not measured: %s", x.Gateway, x.NotMeasured))
			continue
		}
		if x.Large == "none" {
			alone[x.Gateway] = x
		}
		what := fmt.Sprintf("%s, %s: p99 %.2f ms, %.2f alone; %d acknowledgement timeouts; %.0f prompts/s", x.Gateway, x.Large, x.P99, alone[x.Gateway].P99, x.Timeouts, x.Prompts)
		if x.Gateway != bench.Plane {
			if x.Large != "none" {
				seen = what
				if x.P99 > 2*alone[x.Gateway].P99 && x.P99 > 2*ours[x.Large].P99 || x.Timeouts > 0 {
					failed = what
				}
			}
			continue
		}
		ours[x.Large] = x
		verdicts = append(verdicts, verdict(x.Lost == 0, Failed, "weir loses no token with large prompts %s: %d lost", x.Large, x.Lost))
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
	switch {
	case failed != "":
		verdicts = append(verdicts, verdict(true, Failed, "the control starves I/O (%s)", failed))
	default:
		verdicts = append(verdicts, verdict(false, Failed, "the control starves I/O: it did not (%s), so this run shows nothing; give it more --streams or --duration", seen))
	}
	return verdicts
}

// starvedTable is the rows for a person.
func starvedTable(rows []Starved) (table [][]string) {
	table = [][]string{
		{"gateway", "large", "prompts/s", "gateway", "output", "path", "delay", "I/O stall", "idle", "ack", "ended", "lost"},
		{"", "prompts", "", "CPUs", "p50 ms", "p99 ms", "max ms", "p99 ms", "p99 ms", "timeouts", "by error", ""},
	}
	for _, x := range rows {
		if x.NotMeasured != "" {
			continue // its verdict says why
		}
		table = append(table, []string{x.Gateway, x.Large, fmt.Sprintf("%.1f", x.Prompts), fmt.Sprintf("%.2f", x.CPU),
			fmt.Sprintf("%.2f", x.P50), fmt.Sprintf("%.2f", x.P99), fmt.Sprintf("%.1f", x.Max), fmt.Sprintf("%.2f", x.Stall), fmt.Sprintf("%.2f", x.Machine),
			fmt.Sprint(x.Timeouts), fmt.Sprint(x.Errors), fmt.Sprint(x.Lost)})
	}
	return table
}
