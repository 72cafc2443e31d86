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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/lab"
	"weir/internal/load"
	"weir/internal/trace"
	"weir/internal/workload"
	"weir/internal/workload/content"
)

// The continuation scenario's shape: three engines, one of which is killed under streams that
// have all begun.
const (
	continuationStreams = 1000
	continuationMost    = 4000
	continuationPrefill = 60 * time.Millisecond // more for a step with prompts, whatever their number
	continuationDecode  = 15 * time.Millisecond
	// onePrefill is the step that computes a prompt at an engine that decodes.
	onePrefill        = continuationPrefill + continuationDecode
	continuationInput = 32 // tokens
	continuationCap   = 32 // --continuations
	// A twentieth as many streams have a seed, and at least seededLeast, so that some are at
	// the engine that is killed.
	seededShare, seededLeast = 20, 24
	// continuationLeast is the least that a stream lasts.
	continuationLeast = time.Second
	// gapSpare is how much longer than the prefills the longest gap may be.
	gapSpare = 500 * time.Millisecond
)

// The two gateways of continuation, and what begins the ids of its two sorts of streams.
const (
	goingOn  = "weir"
	endingIt = "continuation off"

	plainID, seededID = "plain-", "seeded-"
)

// mayNotGoOn is in the error of a stream with a seed.
const mayNotGoOn = "the stream could not go on at another engine: the request has a seed"

// continuationKinds are the kinds of engines whose ids weir knows and that can be
// simulated.
func continuationKinds() []faultKind {
	return slices.DeleteFunc(faultKinds(), func(k faultKind) bool { return k.wire == "openai" || strings.HasPrefix(k.spec, "openai=") })
}

// continuationKinds are the kinds to run.
func (o *Options) continuationKinds() []faultKind {
	return slices.DeleteFunc(continuationKinds(), func(k faultKind) bool {
		if len(o.Kinds) == 0 {
			return k.name != "plane"
		}
		return !slices.Contains(o.Kinds, k.name)
	})
}

// continuationLife is how long a stream lasts. The rest of a gateway's time is for starting
// processes, beginning streams and ending.
func (o *Options) continuationLife() time.Duration {
	return o.Duration * 3 / 10 / time.Duration(2*max(1, len(o.continuationKinds())))
}

// checkContinuation checks the options of continuation.
func (o *Options) checkContinuation() error {
	if o.Streams > continuationMost {
		return Invalid{"--streams", fmt.Errorf("%d streams are more than one process can verify word by word; give at most %d", o.Streams, continuationMost)}
	}
	if o.continuationLife() < continuationLeast {
		least := (continuationLeast * time.Duration(2*len(o.continuationKinds())) * 10 / 3).Truncate(time.Second) + time.Second
		return Invalid{"--duration", fmt.Errorf("%v is too short for streams to be in the midst of their answers; give at least %v", o.Duration, least)}
	}
	return nil
}

// ContinuationKinds lists what Options.Kinds of continuation may name.
func ContinuationKinds() (names []string) {
	for _, k := range continuationKinds() {
		names = append(names, k.name)
	}
	return names
}

// Continued is one gateway over one kind of engine, of which one was killed. Times are
// seconds.
type Continued struct {
	Kind    string `json:"kind"`
	Gateway string `json:"gateway"`
	// NotMeasured is why there are no figures.
	NotMeasured string `json:"not_measured,omitempty"`

	Streams    int    `json:"streams"` // that may be continued
	Tokens     int    `json:"tokens_each"`
	Complete   int    `json:"complete"`
	Broken     int    `json:"ended_by_error"`
	FirstError string `json:"first_error,omitempty"`
	Lost       int    `json:"lost_tokens"`               // of all streams
	Wrong      int    `json:"streams_repeated_or_wrong"` // likewise

	Seeded          int `json:"seeded_streams"` // that may not
	SeededBroken    int `json:"seeded_ended_by_error_that_says_why"`
	SeededOtherwise int `json:"seeded_ended_otherwise"` // neither so nor complete

	Continued int     `json:"continued"` // streams of both sorts
	Unasked   int     `json:"seeded_continued"`
	Cap       int     `json:"cap"`
	Prefill   float64 `json:"one_prefill_seconds"`
	Predicted float64 `json:"predicted_gap_seconds"`
	// The gaps are the clients': the longest time between two tokens of a stream that ended
	// after the engine was killed. Others belong to streams that were not continued.
	Gap50    float64 `json:"gap_p50_seconds"`
	Gap99    float64 `json:"gap_p99_seconds"`
	Gap      float64 `json:"gap_max_seconds"`
	Others99 float64 `json:"gap_of_others_p99_seconds"`
	// Prefills is the most prompts of continued streams that the survivors had at once
	// without a first token, by their own stamps; -1 where the wire has none. Turns is the
	// most that the gateway's weir_continuations_under_way was seen at.
	Prefills int `json:"most_prefills_of_continuations"`
	Turns    int `json:"most_continuations_under_way"`
	// EngineLost is the share of their time that the machine had not for the survivors.
	EngineLost float64 `json:"engine_lost_share"`
}

// continuation kills one of three engines under streams. Each stream that may be continued
// must be continued exactly once, with one prefill after the other, and the others must end
// with an error that states why. The control ends all of them.
func continuation(ctx context.Context, r *runner) *Report {
	report := &Report{Rows: []Row{}}
	words, err := simWords()
	if err != nil {
		return report.failed("the engines' words: %v", err)
	}
	kinds := r.options.continuationKinds()
	life := r.options.continuationLife()
	began, spent := time.Now(), spentByOthers()
	for _, k := range kinds {
		for _, gateway := range []string{goingOn, endingIt} {
			fmt.Fprintf(r.options.Progress, "%-9s %-17s one of %d engines is killed ... ", k.name, gateway, faultEngines)
			x := Continued{Kind: k.name, Gateway: gateway}
			err := r.outlive(ctx, &x, k, words, life)
			if r.interrupted(ctx) {
				return report
			}
			if err != nil {
				x.NotMeasured = r.unmeasured(err)
			} else {
				fmt.Fprintf(r.options.Progress, "%d went on, %d of %d complete, gap p99 %.3f s\n", x.Continued, x.Complete, x.Streams, x.Gap99)
			}
			report.Continued = append(report.Continued, x)
		}
	}
	report.Others = max(spentByOthers()-spent, 0) / time.Since(began).Seconds()
	report.Verdicts = judgeContinuation(report.Continued)
	return report
}

// outlive runs one gateway: streams begin one after the other, and when all have, an engine is
// killed.
func (r *runner) outlive(ctx context.Context, x *Continued, k faultKind, words *content.Words, life time.Duration) error {
	x.Streams, x.Seeded, x.Cap = r.options.Streams, max(seededLeast, r.options.Streams/seededShare), continuationCap
	x.Tokens, x.Prefill = int(life/continuationDecode), onePrefill.Seconds()
	all := x.Streams + x.Seeded
	// Engines with equally many streams; their steps cost the same whatever their number, to
	// which cost would be indifferent.
	serve := []string{"--policy", "least-load", "--continuations", strconv.Itoa(continuationCap)}
	if x.Gateway == endingIt {
		serve = append(serve, "--continuation", "off")
	}
	engine := []string{"--prefill-cost", continuationPrefill.String(), "--decode-cost", continuationDecode.String(), "--max-running-requests", strconv.Itoa(all)}
	if k.wire == "sglang" {
		engine = append(engine, "--enable-deterministic-inference") // it takes seeds only so
	}
	b, err := r.startFaultBed(ctx, faultBedding{kind: k, serve: serve, engine: engine})
	defer b.stop()
	if err != nil {
		return err
	}
	begin := life / 4
	running, stop := context.WithCancel(ctx)
	defer stop()
	g := &gaps{of: map[string]float64{}}
	var plain, seeded *load.Report
	var errs [2]error
	var loads sync.WaitGroup
	offer := func(i int, id string, n int, body map[string]any, into **load.Report, ended func(*load.Sample)) {
		body["ignore_eos"] = true
		loads.Go(func() {
			*into, errs[i] = load.Run(running, load.Plan{URL: b.url, Model: "weir-sim", Rate: float64(n) / begin.Seconds(), Arrival: workload.Constant, Requests: n,
				InputTokens: continuationInput, OutputTokens: x.Tokens, Seed: uint64(i + 1), RequestID: id, Body: body, Verify: words, KeepChunks: true, OnSample: ended})
		})
	}
	offer(0, plainID, x.Streams, map[string]any{}, &plain, g.take)
	offer(1, seededID, x.Seeded, map[string]any{"seed": 7, "temperature": 0.8}, &seeded, g.takeSeeded)
	ended := make(chan struct{})
	go func() { loads.Wait(); close(ended) }()
	err = b.strikeAmid(ctx, x, g, life, ended)
	stop()
	<-ended
	if err := errors.Join(err, errs[0], errs[1]); err != nil {
		return err
	}
	x.Complete, x.Broken = plain.Complete, plain.Errored
	for kind, example := range plain.Examples {
		x.FirstError = fmt.Sprintf("%s: %s", kind, example)
	}
	x.Lost, x.Wrong = plain.Lost+seeded.Lost, plain.Corrupt+seeded.Corrupt
	x.SeededBroken = g.refused
	x.SeededOtherwise = x.Seeded - seeded.Complete - seeded.Corrupt - g.refused
	b.gateway.Stop() // writes its timeline to the end
	data, err := os.ReadFile(b.timeline)
	if err != nil {
		return err
	}
	return x.wentOn(data, g.of)
}

// strikeAmid kills the engine that has most streams once all have come to engines, and looks at
// the gateway and the survivors until they have ended.
func (b *faultBed) strikeAmid(ctx context.Context, x *Continued, g *gaps, life time.Duration, ended <-chan struct{}) error {
	victim, err := b.begun(ctx, x.Streams+x.Seeded, ended)
	if err != nil {
		return err
	}
	if err := lab.Sleep(ctx, life/8); err != nil {
		return err
	}
	lost := func() (ms float64, err error) {
		for i, e := range b.engines {
			if i == victim {
				continue
			}
			s, err := stateOf(ctx, e.admin)
			if err != nil {
				return 0, err
			}
			ms += s.Lost
		}
		return ms, nil
	}
	before, err := lost()
	if err != nil {
		return err
	}
	killed := time.Now()
	g.killed.Store(trace.Now())
	if err := b.engines[victim].kill(); err != nil {
		return err
	}
	for {
		if err := b.turns(ctx, &x.Turns); err != nil {
			return err
		}
		select {
		case <-ended:
			after, err := lost()
			x.EngineLost = (after - before) / 1e3 / time.Since(killed).Seconds() / float64(faultEngines-1)
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// simState is the state that an engine reports.
type simState struct {
	Running, Received int
	Lost              float64 `json:"lost_ms"`
}

func stateOf(ctx context.Context, admin string) (s simState, err error) {
	return s, lab.FetchJSON(ctx, "http://"+admin+"/admin/state", &s)
}

// begun waits until all streams have reached engines, and returns the engine that has most
// of them.
func (b *faultBed) begun(ctx context.Context, streams int, ended <-chan struct{}) (busiest int, err error) {
	for {
		received, most := 0, -1
		for i, e := range b.engines {
			s, err := stateOf(ctx, e.admin)
			if err != nil {
				return 0, err
			}
			if received += s.Received; s.Running > most {
				most, busiest = s.Running, i
			}
		}
		switch {
		case received < streams:
		case most < streams/8:
			return 0, fmt.Errorf("all %d streams have come to engines, and only %d run at the one that has most: they end too soon on this machine; give them more --duration", streams, most)
		default:
			return busiest, nil
		}
		select {
		case <-ended:
			return 0, fmt.Errorf("the streams have ended, and only %d of %d came to engines", received, streams)
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// turns raises most to how many streams are on their way to another engine.
func (b *faultBed) turns(ctx context.Context, most *int) error {
	families, err := lab.Scrape(ctx, b.admin+"/metrics")
	if err != nil {
		return err
	}
	for _, m := range families["weir_continuations_under_way"].GetMetric() {
		*most = max(*most, int(m.GetGauge().GetValue()))
	}
	return nil
}

// gaps are the longest times between two tokens of streams, for tokens that came after an
// engine was killed.
type gaps struct {
	killed atomic.Int64 // 0: not yet

	mu      sync.Mutex
	of      map[string]float64 // seconds, by the request's id
	refused int                // of streams with a seed, those whose error says so
}

func (g *gaps) take(s *load.Sample) {
	killed := g.killed.Load()
	if killed == 0 || s.Outcome != load.Complete {
		return
	}
	longest := int64(-1)
	for i := 1; i < len(s.Chunks); i++ {
		if s.Chunks[i] > killed {
			longest = max(longest, s.Chunks[i]-s.Chunks[i-1])
		}
	}
	if longest < 0 {
		return // it had ended
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.of[s.RequestID] = float64(longest) / 1e9
}

// takeSeeded counts a stream that ended as one with a seed has to.
func (g *gaps) takeSeeded(s *load.Sample) {
	if s.Outcome != load.Errored || s.Kind != load.KindErrorEvent || !strings.Contains(s.Detail, mayNotGoOn) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refused++
}

// wentOn takes from the timeline which streams were continued, and how many of them
// computed prompts at once. gaps are by the requests' ids.
func (x *Continued) wentOn(timeline []byte, gaps map[string]float64) error {
	type edge struct {
		at int64
		by int
	}
	var edges []edge
	stamped := true
	var theirs, others []float64
	for text := range bytes.Lines(timeline) {
		var line struct {
			ID       string `json:"request_id"`
			Attempts []struct {
				Continued bool
				Legs      []struct {
					Handed int64 `json:"handed_time"`
					First  int64 `json:"server_first_token_time"`
				}
			}
		}
		if err := json.Unmarshal(text, &line); err != nil {
			return fmt.Errorf("timeline: %w", err)
		}
		continued := false
		for i, a := range line.Attempts {
			if !a.Continued {
				continue
			}
			continued = true
			if i+1 == len(line.Attempts) {
				continue // no engine was found
			}
			for _, leg := range line.Attempts[i+1].Legs {
				stamped = stamped && leg.Handed > 0 && leg.First > 0
				edges = append(edges, edge{leg.Handed, 1}, edge{leg.First, -1})
			}
		}
		gap, measured := gaps[line.ID]
		switch {
		case !continued && measured:
			others = append(others, gap)
		case continued:
			x.Continued++
			x.Unasked += one(strings.HasPrefix(line.ID, seededID))
			if measured {
				theirs = append(theirs, gap)
			}
		}
	}
	slices.Sort(theirs)
	slices.Sort(others)
	x.Gap50, x.Gap99, x.Gap, x.Others99 = percentile(theirs, 0.5), percentile(theirs, 0.99), percentile(theirs, 1), percentile(others, 0.99)
	x.Predicted = float64((x.Continued+x.Cap-1)/x.Cap)*x.Prefill + gapSpare.Seconds()
	// A prompt that has its first token makes room for one that comes in the same instant.
	slices.SortFunc(edges, func(a, b edge) int {
		if a.at != b.at {
			return int(min(max(a.at-b.at, -1), 1))
		}
		return a.by - b.by
	})
	if x.Prefills = -1; stamped && len(edges) > 0 {
		now := 0
		for _, e := range edges {
			now += e.by
			x.Prefills = max(x.Prefills, now)
		}
	}
	return nil
}

// judgeContinuation judges the rows of each kind: weir's, and then the control's.
func judgeContinuation(rows []Continued) (verdicts []Verdict) {
	controls := map[string]bool{}
	for _, x := range rows {
		controls[x.Kind] = controls[x.Kind] || x.Gateway == endingIt
		if x.NotMeasured != "" {
			verdicts = append(verdicts, verdict(false, Failed, "%s, %s was not measured: %s", x.Kind, x.Gateway, x.NotMeasured))
			continue
		}
		intact := verdict(x.Lost == 0 && x.Wrong == 0, Failed, "%s, %s: no token is lost or comes twice: %d lost, %d streams with repeated or wrong ones", x.Kind, x.Gateway, x.Lost, x.Wrong)
		if x.Gateway == endingIt {
			v := verdict(x.Broken > 0 && x.Continued == 0, Failed, "%s: the control, with --continuation off, breaks streams: %d of %d, %d went on", x.Kind, x.Broken, x.Streams, x.Continued)
			if v.Outcome != OK {
				v.Text += "; so this run shows nothing: give it more --streams or --duration"
			}
			verdicts = append(verdicts, intact, v)
			continue
		}
		verdicts = append(verdicts, intact,
			verdict(x.Complete == x.Streams && x.Continued > 0, Failed, "%s: each stream that may be continued is: %d of %d are whole, %d went on; ended by error: %s",
				x.Kind, x.Complete, x.Streams, x.Continued, example(x.Broken, x.FirstError)),
			verdict(x.SeededBroken > 0 && x.SeededOtherwise == 0 && x.Unasked == 0, Failed, "%s: a stream with a seed ends with an error that says so: %d of %d, %d in another way, %d went on",
				x.Kind, x.SeededBroken, x.Seeded, x.SeededOtherwise, x.Unasked),
			verdict(max(x.Prefills, x.Turns) <= x.Cap, Failed, "%s: at most %d continued streams have their prompts computed at once: %s", x.Kind, x.Cap, x.most()),
			figure(x.Gap99 <= x.Predicted, "%s: the gap's p99 is at most ceil(%d / %d) x %.0f ms + %.0f ms = %.3f s: %.3f s",
				x.Kind, x.Continued, x.Cap, 1e3*x.Prefill, 1e3*gapSpare.Seconds(), x.Predicted, x.Gap99))
	}
	for _, x := range rows {
		if !controls[x.Kind] {
			controls[x.Kind] = true
			verdicts = append(verdicts, verdict(false, Failed, "%s: the control was not run", x.Kind))
		}
	}
	if len(rows) == 0 {
		verdicts = append(verdicts, verdict(false, Failed, "nothing was measured"))
	}
	return verdicts
}

// most is how many prompts were computed at once, for a person.
func (x *Continued) most() string {
	if x.Prefills < 0 {
		return fmt.Sprintf("%d by the gateway's metric", x.Turns)
	}
	return fmt.Sprintf("%d by the engines' stamps, %d by the gateway's metric", x.Prefills, x.Turns)
}

// continuedTable is the rows for a person.
func continuedTable(rows []Continued) (table [][]string) {
	table = [][]string{
		{"engines, gateway", "streams", "whole", "went", "ended", "lost", "wrong", "seeded,", "prompts", "cap", "gap", "", "", "bound", "others'", "engines"},
		{"", "", "", "on", "by error", "", "", "ended", "at once", "", "p50 s", "p99 s", "max s", "s", "p99 s", "lost %"},
	}
	for _, x := range rows {
		if x.NotMeasured != "" {
			continue // its verdict says why
		}
		prompts := "-"
		if x.Prefills >= 0 {
			prompts = fmt.Sprint(x.Prefills)
		}
		row := []string{x.Kind + ", " + x.Gateway, fmt.Sprint(x.Streams), fmt.Sprint(x.Complete), fmt.Sprint(x.Continued), fmt.Sprint(x.Broken), fmt.Sprint(x.Lost), fmt.Sprint(x.Wrong),
			fmt.Sprintf("%d/%d", x.SeededBroken, x.Seeded), prompts, fmt.Sprint(x.Cap)}
		if x.Continued == 0 {
			row = append(row, "-", "-", "-", "-")
		} else {
			row = append(row, fmt.Sprintf("%.3f", x.Gap50), fmt.Sprintf("%.3f", x.Gap99), fmt.Sprintf("%.3f", x.Gap), fmt.Sprintf("%.3f", x.Predicted))
		}
		table = append(table, append(row, fmt.Sprintf("%.3f", x.Others99), fmt.Sprintf("%.1f", 100*x.EngineLost)))
	}
	return table
}
