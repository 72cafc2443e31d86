//go:build linux

package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"weir/internal/lab"
	"weir/internal/lab/control"
	"weir/internal/load"
	"weir/internal/model/tokenizer"
	"weir/internal/trace"
	"weir/internal/workload/content"
	"weir/models"
)

// The collapse scenario: two engines that compute five large prompts in a step, so that the
// engines are the bottleneck, and a gateway has time to spare.
const (
	collapseEngines = 2
	collapsePrefill = 250 * time.Millisecond
	collapseDecode  = 10 * time.Millisecond
	collapseChunk   = 5 * promptTokens // prompt tokens of a step
	// collapseLate is how late the control must see the acknowledgements of all prompts at
	// once, as a multiple of its deadline. collapseShare is the least share of the engines'
	// capacity that weir must reach.
	collapseLate  = 3
	collapseShare = 0.95
)

// Collapsed is one gateway of collapse.
type Collapsed struct {
	Gateway string `json:"gateway"`
	// NotMeasured is why there are no figures.
	NotMeasured string `json:"not_measured,omitempty"`

	Prompts float64 `json:"prompts_per_second"` // answered in full
	Tokens  float64 `json:"prompt_tokens_each"`
	// Capacity is how many of them the engines can compute, by their cost model, less the
	// share that the machine took away (engine_lost_share).
	Capacity float64 `json:"engines_can_do_per_second"`
	Lost     float64 `json:"engine_lost_share"`
	// TTFT is the client's, in seconds.
	TTFT50   float64 `json:"ttft_p50_seconds"`
	TTFT     float64 `json:"ttft_max_seconds"`
	Timeouts int     `json:"acknowledgement_timeouts"`
	// Ready is the least number of engines in use at any time; all of them are alive.
	Ready      int    `json:"least_engines_ready"`
	Engines    int    `json:"engines"`
	Errors     int    `json:"ended_by_error"`
	LostTokens int    `json:"lost_tokens"`
	FirstError string `json:"first_error,omitempty"`
}

// collapse is the incident's other half: 920 prompts of 40k tokens at once on two engines,
// and a gateway that takes an engine out at the first acknowledgement that it sees 5 s
// late. The remaining engine then gets all of them, and goes out next. The control has a
// loop that tokenizes as slowly as the incident's did. weir must keep both engines in use,
// and answer as many as they can compute.
func collapse(ctx context.Context, r *runner) *Report {
	report := &Report{Rows: []Row{}}
	gateways := []string{lab.Plane, loopControl}
	each := r.options.Duration / time.Duration(len(gateways))
	cost, err := control.PromptCost(promptTokens)
	if err != nil {
		return report.failed("tokenizing could not be measured: %v", err)
	}
	words, err := simWords()
	if err != nil {
		return report.failed("the engines' words: %v", err)
	}
	r.ackTimeout = min(ackTimeout, each/6).Round(time.Millisecond)
	all := cost * time.Duration(r.options.Streams)
	encodes := max(1, int(math.Ceil(float64(collapseLate*r.ackTimeout)/float64(all))))
	fmt.Fprintf(r.options.Progress, "acknowledgements have %v; the control tokenizes each prompt %d times, %v in all\n",
		r.ackTimeout, encodes, (cost * time.Duration(encodes)).Round(10*time.Microsecond))
	for _, gateway := range gateways {
		fmt.Fprintf(r.options.Progress, "%-12s %d prompts at once ... ", gateway, r.options.Streams)
		row, err := r.rush(ctx, gateway, words, encodes, each)
		if r.interrupted(ctx) {
			return report
		}
		if row.Gateway, row.Engines = gateway, collapseEngines; err != nil {
			row.NotMeasured = err.Error()
			fmt.Fprintln(r.options.Progress, "not measured:", err)
		} else {
			fmt.Fprintf(r.options.Progress, "%.1f prompts/s of %.1f, %d of %d engines left\n", row.Prompts, row.Capacity, row.Ready, row.Engines)
		}
		report.Collapsed = append(report.Collapsed, row)
	}
	report.Verdicts = judgeCollapse(report.Collapsed, r.ackTimeout)
	return report
}

// simWords are the words of the simulated engines, by which their answers are verified.
func simWords() (*content.Words, error) {
	m, err := tokenizer.Load(models.Sim())
	if err != nil {
		return nil, err
	}
	return content.New(m.VocabSize, m.Tokenizer.OrdinaryBytes)
}

// rush runs one gateway with all prompts at once, and hangs up on the unfinished ones at
// the end.
func (r *runner) rush(ctx context.Context, gateway string, words *content.Words, encodes int, each time.Duration) (row Collapsed, err error) {
	flags := []string{"--cost", "constant", "--prefill-cost", collapsePrefill.String(), "--decode-cost", collapseDecode.String(),
		"--max-running-requests", strconv.Itoa(stepTokens), "--chunked-prefill-size", strconv.Itoa(collapseChunk)}
	b, err := r.startBed(ctx, bedding{gateway: gateway, engines: collapseEngines, engine: flags, ackTimeout: r.ackTimeout, encodes: encodes})
	defer b.stop()
	if err != nil {
		return row, err
	}
	lead, measure := each/4, each*13/20
	span := [2]int64{trace.Now() + int64(lead), trace.Now() + int64(lead+measure)}
	from := trace.Now()
	running, stop := context.WithCancel(ctx)
	defer stop()
	seen := newSeen(span)
	done := make(chan error, 1)
	go func() {
		report, err := load.Run(running, load.Plan{
			URL: b.url, Model: "weir-sim", Concurrency: r.options.Streams, Duration: lead + measure, InputTokens: promptTokens, OutputTokens: largeOutput,
			Seed: 2, Body: map[string]any{"ignore_eos": true}, Verify: words, OnSample: seen.take,
		})
		if err == nil {
			row.LostTokens = report.Lost
			row.Errors = report.Errored + report.Corrupt
			for kind, example := range report.Examples {
				row.FirstError = fmt.Sprintf("%s: %s", kind, example)
			}
		}
		done <- err
	}()
	// The load's goroutine has ended when the row is read.
	least, lost, err := b.watched(ctx, lead, measure)
	stop()
	if err := errors.Join(err, <-done); err != nil {
		return row, err
	}
	row.Ready = least
	row.Lost = lost / (collapseEngines * measure.Seconds())
	seen.figures(&row, measure)
	if row.Tokens == 0 {
		row.Tokens = promptTokens // none was answered
	}
	if row.Capacity, err = r.engineCanDo(ctx, flags, row.Tokens); err != nil {
		return row, err
	}
	row.Capacity *= collapseEngines * (1 - row.Lost)
	b.gateway.Stop() // writes its timeline to the end
	data, err := os.ReadFile(b.timeline)
	if err != nil {
		return row, err
	}
	var line Starved
	if err := line.read(data, [2]int64{from, span[1]}); err != nil {
		return row, err
	}
	row.Timeouts = line.Timeouts
	return row, nil
}

// watched looks at a bed while its load runs: how many engines were asked at least, from
// the beginning, and how many seconds the machine kept the engines from within the
// window.
func (b *bed) watched(ctx context.Context, lead, measure time.Duration) (least int, lost float64, err error) {
	if least, err = b.leastReady(ctx, lead); err != nil {
		return 0, 0, err
	}
	before, err := b.lost(ctx)
	if err != nil {
		return 0, 0, err
	}
	n, err := b.leastReady(ctx, measure)
	if err != nil {
		return 0, 0, err
	}
	after, err := b.lost(ctx)
	return min(least, n), after - before, err
}

// lost is the time of their schedules that the engines have given up, in seconds, because
// the machine had none for them.
func (b *bed) lost(ctx context.Context) (seconds float64, err error) {
	for _, admin := range b.admins {
		var state struct {
			Lost float64 `json:"lost_ms"`
		}
		if err := lab.FetchJSON(ctx, "http://"+admin+"/admin/state", &state); err != nil {
			return 0, err
		}
		seconds += state.Lost / 1000
	}
	return seconds, nil
}

// engineCanDo returns how many prompts a second one engine answers if it always has enough
// of them, by its cost model: a replay on virtual time.
func (r *runner) engineCanDo(ctx context.Context, flags []string, tokens float64) (float64, error) {
	users := max(1, r.options.Streams/collapseEngines)
	return r.replayed(ctx, fmt.Sprintf("synthetic:concurrency=%d,duration=5m,input=%.0f,output=%d", users, tokens, largeOutput), flags)
}

// replayed is how many requests of a workload one engine answers a second, on virtual time.
func (r *runner) replayed(ctx context.Context, workload string, flags []string) (float64, error) {
	p, err := lab.Start(append([]string{r.options.Binary, "engine", "--json", "-", "--offline", workload}, flags...), r.environment)
	if err != nil {
		return 0, err
	}
	defer p.Stop()
	within, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	out, err := p.Wait(within)
	if err != nil {
		return 0, fmt.Errorf("the engine's replay does not end: %w", err)
	}
	var replay struct {
		PerSecond float64 `json:"requests_per_s"`
	}
	if err := json.Unmarshal(out, &replay); err != nil {
		return 0, fmt.Errorf("the engine's replay: %w: %s", err, p.Problem())
	}
	return replay.PerSecond, nil
}

// seen are the requests of a load that ended within a span of time.
type seen struct {
	span [2]int64

	mu     sync.Mutex
	tokens int
	ttft   []float64
}

func newSeen(span [2]int64) *seen { return &seen{span: span} }

func (s *seen) take(x *load.Sample) {
	if x.Outcome != load.Complete || x.LastByte < s.span[0] || x.LastByte >= s.span[1] {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens += x.PromptTokens
	s.ttft = append(s.ttft, float64(x.FirstToken-x.Started)/1e9)
}

func (s *seen) figures(row *Collapsed, measure time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.ttft)
	row.Prompts = float64(len(s.ttft)) / measure.Seconds()
	row.Tokens = float64(s.tokens) / float64(max(1, len(s.ttft)))
	row.TTFT50, row.TTFT = percentile(s.ttft, 0.5), percentile(s.ttft, 1)
}

// judgeCollapse judges weir's row and the control's.
func judgeCollapse(rows []Collapsed, ack time.Duration) []Verdict {
	var verdicts []Verdict
	var ours Collapsed
	must := fmt.Sprintf("the control takes live engines out for an acknowledgement that it sees %v late, and answers less than half of what weir does", ack)
	judged := verdict(false, Failed, "%s: it was not run", must)
	for _, x := range rows {
		if x.NotMeasured != "" {
			verdicts = append(verdicts, verdict(false, Failed, "%s was not measured: %s", x.Gateway, x.NotMeasured))
			continue
		}
		if x.Gateway != lab.Plane {
			collapsed := x.Ready < x.Engines && x.Prompts < ours.Prompts/2
			what := fmt.Sprintf("%.1f prompts/s beside weir's %.1f, %d of %d live engines left", x.Prompts, ours.Prompts, x.Ready, x.Engines)
			if judged = verdict(collapsed, Failed, "%s: %s", must, what); !collapsed {
				judged.Text += "; it did not, so this run shows nothing: give it more --streams or --duration"
			}
			continue
		}
		ours = x
		verdicts = append(verdicts,
			verdict(x.LostTokens == 0, Failed, "weir loses no token: %d lost", x.LostTokens),
			verdict(x.Ready == x.Engines, Failed, "weir takes no live engine out: %d of %d left", x.Ready, x.Engines),
			verdict(x.Prompts >= collapseShare*x.Capacity && x.Capacity > 0, Failed, "weir answers at least %.0f %% of what the engines can do: %.1f prompts/s of %.1f (%.1f %%)",
				100*collapseShare, x.Prompts, x.Capacity, 100*x.Prompts/max(x.Capacity, 0.001)),
			figure(x.Timeouts == 0, "no acknowledgement times out: %d", x.Timeouts),
			figure(x.Errors == 0, "weir ends no request by error: %s", example(x.Errors, x.FirstError)))
	}
	return append(verdicts, judged)
}

// example returns how many there were, and the first of them.
func example(n int, first string) string {
	if n == 0 {
		return "0"
	}
	return fmt.Sprintf("%d, such as %.200s", n, first)
}

// collapsedTable is the rows for a person.
func collapsedTable(rows []Collapsed) (table [][]string) {
	table = [][]string{
		{"gateway", "prompts/s", "engines", "share", "TTFT", "", "ack", "engines", "ended", "lost"},
		{"", "", "can do", "%", "p50 s", "max s", "timeouts", "left", "by error", ""},
	}
	for _, x := range rows {
		if x.NotMeasured != "" {
			continue // its verdict says why
		}
		table = append(table, []string{x.Gateway, fmt.Sprintf("%.1f", x.Prompts), fmt.Sprintf("%.1f", x.Capacity), fmt.Sprintf("%.1f", 100*x.Prompts/max(x.Capacity, 0.001)),
			fmt.Sprintf("%.1f", x.TTFT50), fmt.Sprintf("%.1f", x.TTFT), fmt.Sprint(x.Timeouts), fmt.Sprint(x.Ready), fmt.Sprint(x.Errors), fmt.Sprint(x.LostTokens)})
	}
	return table
}
