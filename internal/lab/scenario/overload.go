//go:build linux

package scenario

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"weir/internal/lab"
	"weir/internal/lab/proc"
	"weir/internal/load"
	"weir/internal/trace"
	"weir/internal/workload"
	"weir/internal/workload/content"
)

// The overload scenario: two engines, whose batches bound what they answer, and requests at
// a fixed rate, however many are under way.
const (
	overloadEngines = 2
	overloadStreams = 64 // that the engines run at once, together
	overloadMost    = 256
	overloadPrefill = 15 * time.Millisecond
	overloadDecode  = 20 * time.Millisecond
	overloadInput   = 200 // tokens
	overloadOutput  = "uniform(16,48)"

	// budget is how long each caller waits. An answer is in time if its first token comes
	// within 500 ms plus three times the time that it takes on an idle engine, and each
	// further token within twice its time there.
	budget       = 500 * time.Millisecond
	timelyTTFT   = 3*overloadPrefill + 500*time.Millisecond
	timelyTPOT   = 2 * overloadDecode
	peakShare    = 0.97
	controlShare = 0.5
	// slack is how much a wait may exceed the budget, as an allowance for the machine.
	slack = 50 * time.Millisecond
	// controlLasts bounds a load of the control, whose pushed requests stay under way.
	controlLasts = 6 * time.Second
)

// The two gateways: weir holds what does not fit, or gives engines everything at once.
const (
	queued = "weir, queue"
	pushed = "pushed"
)

// DefaultLoads are the loads of overload, as multiples of the engines' capacity.
func DefaultLoads() []float64 { return []float64{0.5, 1, 2, 5, 10} }

// Overloaded is one gateway under one load of overload. Rates are per second.
type Overloaded struct {
	Gateway string `json:"gateway"`
	// Load is a multiple of Capacity, which is what the engines can do.
	Load     float64 `json:"load"`
	Capacity float64 `json:"engines_can_do_per_second"`
	// NotMeasured is why there are no figures.
	NotMeasured string `json:"not_measured,omitempty"`

	Offered float64 `json:"offered_per_second"`
	Served  float64 `json:"served_per_second"`    // in full
	Goodput float64 `json:"in_time_per_second"`   // of those
	Refused float64 `json:"refused_per_second"`   // with 429
	Lost    float64 `json:"engine_lost_share"`    // of their time, which the machine had not for the engines
	TTFT50  float64 `json:"ttft_p50_seconds"`     // of those served, the client's
	TTFT99  float64 `json:"ttft_p99_seconds"`     // likewise
	Wait    float64 `json:"longest_wait_seconds"` // in the gateway, of all that came
	Over    int     `json:"waited_beyond_their_budget"`
	// Failed were neither served nor refused.
	Failed     int    `json:"failed"`
	FirstError string `json:"first_error,omitempty"`
	LostTokens int    `json:"lost_tokens"`
	Corrupt    int    `json:"repeated_or_wrong"` // requests
	// CPU is the gateway's for each request that came, in microseconds.
	CPU float64 `json:"gateway_cpu_us_per_request"`
	// Others is how many CPUs other programs took meanwhile.
	Others float64 `json:"other_processes_cpus"`
}

// ideal is the goodput, had the machine had all their time for the engines.
func (x *Overloaded) ideal() float64 { return x.Goodput / (1 - min(x.Lost, 0.9)) }

// overload offers a fleet up to ten times its capacity. The control pushes everything into
// the engines: all requests wait behind all earlier ones, and next to nothing is in time.
// With the queue as much is in time as at the best load, because requests that would be
// late are refused at once.
func overload(ctx context.Context, r *runner) *Report {
	report := &Report{Rows: []Row{}}
	words, err := simWords()
	if err != nil {
		return report.failed("the engines' words: %v", err)
	}
	capacity, err := r.overloadCapacity(ctx)
	if err != nil {
		return report.failed("what the engines can do could not be found: %v", err)
	}
	fmt.Fprintf(r.options.Progress, "the engines can do %.1f requests/s; each caller waits %v\n", capacity, budget)
	for _, gateway := range []string{queued, pushed} {
		rows := r.overloaded(ctx, gateway, capacity, words)
		if r.interrupted(ctx) {
			return report
		}
		report.Overloaded = append(report.Overloaded, rows...)
	}
	refusing, err := r.refusing(ctx, r.options.Duration/20)
	if ctx.Err() != nil {
		return report
	}
	if err != nil {
		refusing.NotMeasured = strings.TrimSpace(err.Error())
	}
	fmt.Fprintln(r.options.Progress, refusing)
	report.Refusing = &refusing
	report.Verdicts = append(report.Verdicts, judgeOverload(report.Overloaded, report.Refusing)...)
	return report
}

// overloadFlags are those of an engine.
func (r *runner) overloadFlags() []string {
	return []string{"--cost", "constant", "--prefill-cost", overloadPrefill.String(), "--decode-cost", overloadDecode.String(),
		"--max-running-requests", strconv.Itoa(max(1, r.options.Streams/overloadEngines))}
}

// overloadWorkload returns the workload with a rate.
func overloadWorkload(rate float64, lasts time.Duration) string {
	return fmt.Sprintf("rate=%.3f,duration=%v,input=%d,output=%s", rate, lasts, overloadInput, overloadOutput)
}

// overloadCapacity returns how many such requests a second the engines answer if they
// always have enough of them, by their cost model: a replay on virtual time.
func (r *runner) overloadCapacity(ctx context.Context) (float64, error) {
	each, err := r.replayed(ctx, "synthetic:"+overloadWorkload(overloadRate(r.options.Streams), 2*time.Minute), r.overloadFlags())
	return each * overloadEngines, err
}

// overloadRate returns about twice the capacity of an engine.
func overloadRate(streams int) float64 { return 2 * float64(max(1, streams/overloadEngines)) }

// overloadConnections is about how many requests are under way at once when everything is
// pushed.
func overloadConnections(o *Options) int {
	_, control := overloadTimes(o)
	return int(1.2 * float64(o.Streams) * slices.Max(o.Loads) * control.Seconds())
}

// overloadTimes are how long a load of the queue's and of the control's takes.
func overloadTimes(o *Options) (queue, control time.Duration) {
	n := time.Duration(len(o.Loads))
	return o.Duration * 55 / 100 / n, min(o.Duration*30/100/n, controlLasts)
}

// overloaded runs one gateway under each load, from the least on.
func (r *runner) overloaded(ctx context.Context, gateway string, capacity float64, words *content.Words) []Overloaded {
	each, control := overloadTimes(&r.options)
	flags := []string{"--queue", "on"}
	if gateway == pushed {
		flags, each = []string{"--queue", "off"}, control
	}
	b, err := r.startBed(ctx, bedding{name: strings.Fields(gateway)[0], gateway: lab.Plane, engines: overloadEngines, engine: r.overloadFlags(), serve: flags})
	defer b.stop()
	if err != nil {
		return []Overloaded{{Gateway: gateway, NotMeasured: err.Error()}}
	}
	var rows []Overloaded
	var spans [][2]int64
	for i, load := range r.options.Loads {
		fmt.Fprintf(r.options.Progress, "%-12s %4.4g x what they can do, %.0f requests/s ... ", gateway, load, load*capacity)
		row := Overloaded{Gateway: gateway, Load: load, Capacity: capacity, Offered: load * capacity}
		span, err := r.offer(ctx, b, &row, uint64(i+1), words, each)
		if ctx.Err() != nil {
			return rows
		}
		if err != nil {
			row.NotMeasured = r.unmeasured(err)
			return append(rows, row)
		}
		fmt.Fprintf(r.options.Progress, "%.1f/s served, %.1f in time, %.1f refused\n", row.Served, row.Goodput, row.Refused)
		rows, spans = append(rows, row), append(spans, span)
	}
	b.gateway.Stop() // writes its timeline to the end
	data, err := os.ReadFile(b.timeline)
	for i := range rows {
		if err == nil {
			err = rows[i].waits(data, spans[i])
		}
		if err != nil {
			rows[i].NotMeasured = err.Error()
		}
	}
	return rows
}

// offer offers a load for this long, and then hangs up on the unfinished requests. span is
// when its requests came.
func (r *runner) offer(ctx context.Context, b *bed, row *Overloaded, seed uint64, words *content.Words, lasts time.Duration) (span [2]int64, err error) {
	// The first requests to end were pushed before the others came. Half of the time is
	// enough for this to pass.
	lead, measure := lasts/2, lasts*2/5
	w, err := workload.NewSynthetic(overloadWorkload(row.Offered, lead+measure+time.Second), workload.Options{Seed: seed, Texts: true})
	if err != nil {
		return span, err
	}
	began := trace.Now()
	ended := &inTime{from: began + int64(lead), to: began + int64(lead+measure)}
	running, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() {
		report, err := load.Run(running, load.Plan{
			URL: b.url, Model: "weir-sim", Workload: w, Seed: seed, Body: map[string]any{"ignore_eos": true}, Verify: words, OnSample: ended.take,
			Header: map[string]string{"X-Request-Timeout": strconv.FormatFloat(budget.Seconds(), 'f', -1, 64)},
		})
		if err == nil {
			row.LostTokens, row.Corrupt = report.Lost, report.Corrupt
		}
		done <- err
	}()
	// The load's goroutine has ended when the row is read.
	err = b.over(ctx, lead, measure, ended, row)
	stop()
	if err := errors.Join(err, <-done); err != nil {
		return span, err
	}
	span = [2]int64{began, trace.Now()}
	ended.figures(row, measure)
	return span, b.drained(ctx)
}

// over looks at a bed while its load runs: how long within the window the machine kept its
// engines from working, and what CPU the gateway and others took.
func (b *bed) over(ctx context.Context, lead, measure time.Duration, of *inTime, row *Overloaded) error {
	if err := lab.Sleep(ctx, lead); err != nil {
		return err
	}
	ours := append(b.gateway.PIDs(), os.Getpid())
	for _, e := range b.engines {
		ours = append(ours, e.PIDs()...)
	}
	var lost, gateway, all, machine [2]float64
	var ended [2]int
	for i := range lost {
		var errs [4]error
		var used [2]proc.Usage
		lost[i], errs[0] = b.lost(ctx)
		used[0], errs[1] = proc.Of(b.gateway.PIDs())
		used[1], errs[2] = proc.Of(ours)
		machine[i], errs[3] = proc.MachineCPU()
		gateway[i], all[i], ended[i] = used[0].CPU, used[1].CPU, of.count()
		if err := errors.Join(errs[:]...); err != nil {
			return err
		}
		if i == 0 {
			if err := lab.Sleep(ctx, measure); err != nil {
				return err
			}
		}
	}
	second := measure.Seconds()
	row.Lost = (lost[1] - lost[0]) / (overloadEngines * second)
	row.CPU = (gateway[1] - gateway[0]) * 1e6 / float64(max(1, ended[1]-ended[0]))
	row.Others = max(0, machine[1]-machine[0]-all[1]+all[0]) / second
	return nil
}

// drained waits until nothing is under way in the gateway.
func (b *bed) drained(ctx context.Context) error {
	return b.until(ctx, "weir_requests_in_flight", 0)
}

// until waits for the gateway's metric, the sum of its labels, to have a value.
func (b *bed) until(ctx context.Context, name string, want float64) error {
	within, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		got, err := b.metric(within, name)
		if err == nil && got == want {
			return nil
		}
		if within.Err() != nil || lab.Sleep(within, 10*time.Millisecond) != nil {
			return fmt.Errorf("the gateway's %s is %v and not %v: %w", name, got, want, cmp.Or(ctx.Err(), err, within.Err()))
		}
	}
}

// metric is the sum of a gateway's counter or gauge over its labels.
func (b *bed) metric(ctx context.Context, name string) (sum float64, err error) {
	families, err := lab.Scrape(ctx, b.metrics)
	if err != nil {
		return 0, err
	}
	for _, m := range families[name].GetMetric() {
		sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
	}
	return sum, nil
}

// waits takes from a timeline how long those waited that came within a span: until they
// were given an engine, or refused.
func (x *Overloaded) waits(timeline []byte, span [2]int64) error {
	for text := range bytes.Lines(timeline) {
		var line struct {
			Arrival  int64 `json:"arrival_time"`
			Routed   int64 `json:"routed_time"`
			Finished int64 `json:"finish_time"`
			Outcome  string
		}
		if err := json.Unmarshal(text, &line); err != nil {
			return fmt.Errorf("timeline: %w", err)
		}
		until := cmp.Or(line.Routed, line.Finished)
		if line.Arrival < span[0] || line.Arrival >= span[1] || line.Routed == 0 && line.Outcome == "cancelled" {
			continue
		}
		wait := time.Duration(until - line.Arrival)
		x.Wait = max(x.Wait, wait.Seconds())
		x.Over += one(wait > budget+slack)
	}
	return nil
}

// inTime are the requests of a load that ended within a span of time.
type inTime struct {
	from, to int64

	mu              sync.Mutex
	ended           int // whenever
	served, good    int
	refused, failed int
	first           string
	ttft            []float64
}

func (s *inTime) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

func (s *inTime) take(x *load.Sample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended++
	if x.Outcome == load.Errored && x.Status != statusRefused {
		if s.failed++; s.first == "" {
			s.first = fmt.Sprintf("%s: %.200s", x.Kind, x.Detail)
		}
	}
	if x.LastByte < s.from || x.LastByte >= s.to {
		return
	}
	switch {
	case x.Outcome == load.Errored && x.Status == statusRefused:
		s.refused++
	case x.Outcome == load.Complete:
		s.served++
		ttft := x.FirstToken - x.Started
		tpot, _ := x.TPOT()
		s.good += one(ttft <= int64(timelyTTFT) && tpot <= int64(timelyTPOT))
		s.ttft = append(s.ttft, float64(ttft)/1e9)
	}
}

func (s *inTime) figures(row *Overloaded, measure time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.ttft)
	second := measure.Seconds()
	row.Served, row.Goodput, row.Refused = float64(s.served)/second, float64(s.good)/second, float64(s.refused)/second
	row.Failed, row.FirstError = s.failed, s.first
	row.TTFT50, row.TTFT99 = percentile(s.ttft, 0.5), percentile(s.ttft, 0.99)
}

// judgeOverload judges the rows of both gateways, each from the least load on, and what
// refusing costs.
func judgeOverload(rows []Overloaded, refusing *Refusing) []Verdict {
	var verdicts []Verdict
	var lost, corrupt, failed, over, loads int
	var first string
	var longest, peak float64
	var most, control *Overloaded
	for i := range rows {
		x := &rows[i]
		if x.NotMeasured != "" {
			verdicts = append(verdicts, verdict(false, Failed, "%s was not measured at %.4g times what the engines can do: %s", x.Gateway, x.Load, x.NotMeasured))
			continue
		}
		lost, corrupt = lost+x.LostTokens, corrupt+x.Corrupt
		if x.Gateway == pushed {
			control = x
			continue
		}
		most, loads = x, loads+1
		failed, over, first = failed+x.Failed, over+x.Over, cmp.Or(first, x.FirstError)
		longest, peak = math.Max(longest, x.Wait), math.Max(peak, x.ideal())
	}
	must := fmt.Sprintf("pushed, less than %.0f %% of what is served is in time", 100*controlShare)
	if most == nil || control == nil || most.Load != control.Load {
		return append(verdicts, verdict(false, Failed, "%s: it was not run", must))
	}
	verdicts = append(verdicts,
		verdict(lost == 0 && corrupt == 0, Failed, "weir loses no token: %d lost, %d answers with repeated or wrong ones", lost, corrupt),
		verdict(failed == 0, Failed, "requests are served or refused with 429, and end in no other way: %s did", example(failed, first)),
		figure(most.ideal() >= peakShare*peak && peak > 0, "at %.4g times what the engines can do at least %.0f %% of the most of any load is in time: %.1f requests/s of %.1f (%.1f %%)",
			most.Load, 100*peakShare, most.ideal(), peak, 100*most.ideal()/max(peak, 0.001)),
		figure(over == 0, "nobody waits longer than the %v that the callers say, and %v: %d do, the longest wait is %.3f s", budget, slack, over, longest))
	verdicts = append(verdicts, refusing.judge()...)
	fell := control.Goodput < controlShare*control.Served
	v := verdict(fell, Failed, "%s: %.1f requests/s of %.1f at %.4g times what the engines can do, and the queue has %.1f of %.1f", must, control.Goodput, control.Served, most.Load, most.Goodput, most.Served)
	if !fell {
		v.Text += "; it kept up, so this run shows nothing: give it a higher --load or more --duration"
	}
	return append(verdicts, v)
}

// overloadedTable is the rows for a person.
func overloadedTable(rows []Overloaded) (table [][]string) {
	table = [][]string{
		{"gateway", "load", "offered", "engines", "served", "in time", "refused", "TTFT", "", "longest", "waited", "failed", "lost", "CPU"},
		{"", "", "/s", "can do", "/s", "/s", "/s", "p50 s", "p99 s", "wait s", "too long", "", "", "us/request"},
	}
	for _, x := range rows {
		if x.NotMeasured != "" {
			continue // its verdict says why
		}
		table = append(table, []string{x.Gateway, fmt.Sprintf("%.4g", x.Load), fmt.Sprintf("%.1f", x.Offered), fmt.Sprintf("%.1f", x.Capacity*(1-x.Lost)),
			fmt.Sprintf("%.1f", x.Served), fmt.Sprintf("%.1f", x.Goodput), fmt.Sprintf("%.1f", x.Refused), fmt.Sprintf("%.3f", x.TTFT50), fmt.Sprintf("%.3f", x.TTFT99),
			fmt.Sprintf("%.3f", x.Wait), fmt.Sprint(x.Over), fmt.Sprint(x.Failed), fmt.Sprint(x.LostTokens), fmt.Sprintf("%.0f", x.CPU)})
	}
	return table
}
