//go:build linux

package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"weir/internal/lab"
	"weir/internal/lab/forward"
	"weir/internal/workload/content"
)

// The faults scenario: three engines under some streams, one of which fails in each way,
// over each kind of wire.
const (
	faultEngines = 3
	faultStreams = 200
	faultPrefill = 2 * time.Millisecond
	faultDecode  = 20 * time.Millisecond
	faultOutput  = 60 // tokens

	faultWarm = 3 * time.Second // before anything happens
	// silentFor is how long an engine shows nothing before it is probed, and as long its
	// probe is waited for: then it is known to hang.
	silentFor = 10 * time.Second
	// A fault that is never noticed ends after noticed, one that an engine lives with
	// after livesFor, by when what hangs would be out; and it has to be back within
	// returns.
	noticed  = 40 * time.Second
	livesFor = 2*silentFor + 4*time.Second
	returns  = time.Minute
	// later is when a request begins that must not wait for hanging engines. waits is the
	// time that it may take to its first token nevertheless.
	later = 1500 * time.Millisecond
	waits = time.Second

	// The required results.
	mostWaiting = 3
	downWithin  = 2 * time.Second
	backWithin  = 5 * time.Second
)

// victim is the engine that fails, and what a fault may do to it.
type victim struct {
	ctx     context.Context
	bed     *faultBed
	network *forward.Forwarder // in front of it
}

func (v *victim) signal(s syscall.Signal) error { return v.bed.engines[0].process.Signal(s) }

// strike returns the engine faults of its own; none heals it.
func (v *victim) strike(faults ...string) error {
	return setFaults(v.ctx, v.bed.engines[0].admin, faults)
}

// fault is one way to fail.
type fault struct {
	name, what string
	begin, end func(v *victim) error
	// knowable is how long after it began an engine may be known to fail; unknowable is
	// never.
	knowable time.Duration
	// lives reports whether the engine works, if badly: it must not be taken out.
	lives bool
	// answers is how long it takes to answer anything while it lives so.
	answers time.Duration
	// network reports whether the engine is behind a forwarder.
	network bool
}

// unknowable marks a fault that no client can observe.
const unknowable = -1

// own is a fault of the engine's own.
func own(name, what, word string, knowable time.Duration) fault {
	return fault{name: name, what: what, knowable: knowable,
		begin: func(v *victim) error { return v.strike(word) },
		end:   func(v *victim) error { return v.strike() }}
}

func living(f fault) fault { f.lives = true; return f }

func answering(after time.Duration, f fault) fault { f.answers = after; return f }

// between is a fault of the network.
func between(name, what string, knowable time.Duration, begin func(n *forward.Forwarder)) fault {
	return fault{name: name, what: what, knowable: knowable, network: true,
		begin: func(v *victim) error { begin(v.network); return nil },
		end:   func(v *victim) error { v.network.Heal(); return nil }}
}

// allFaults are the faults, in the order of the report.
func allFaults() []fault {
	const hung = 2 * silentFor
	return []fault{
		{name: "killed", what: "kill -9; started again, with an empty cache",
			begin: func(v *victim) error { return v.bed.engines[0].kill() },
			end:   func(v *victim) error { return v.bed.start(v.ctx, 0) }},
		{name: "restarted", what: "all connections are reset and its cache is empty, at once", lives: true,
			begin: func(v *victim) error { return v.strike("restart") },
			end:   func(v *victim) error { return v.strike() }},
		own("fails", "answers 500 to all requests, probes among them", "fail", 0),
		own("fails half", "answers 500 to half of the requests, probes among them", "fail,rate=0.5", unknowable),
		{name: "stopped", what: "SIGSTOP", knowable: hung,
			begin: func(v *victim) error { return v.signal(syscall.SIGSTOP) },
			end:   func(v *victim) error { return v.signal(syscall.SIGCONT) }},
		own("wedged", "its loop stands still, /health says 200", "wedge", hung),
		own("no prefill", "no prompt is computed, running requests go on", "noprefill", hung+faultOutput*faultDecode),
		own("no output", "prompts are computed, and nothing is generated", "stall", hung+faultOutput*faultDecode),
		own("silent", "requests are read and never answered, probes among them", "hang", hung+faultOutput*faultDecode),
		between("partitioned", "nothing passes, connections stay", hung, func(n *forward.Forwarder) { n.Hold(forward.ToServer, forward.ToClient) }),
		between("one way", "nothing comes back from it", hung, func(n *forward.Forwarder) { n.Hold(forward.ToClient) }),
		living(between("delayed", "300 ms each way", 0, func(n *forward.Forwarder) { n.Delay(300 * time.Millisecond) })),
		living(between("lossy", "2 % of what passes is lost and sent again", 0, func(n *forward.Forwarder) { n.Lose(0.02) })),
		living(own("slow", "each step takes ten times as long", "drag,by=10", 0)),
		answering(6*time.Second, living(own("late", "acknowledgements and heads come 6 s late", "slow,delay=6s", 0))),
		living(own("idle", "says that nothing runs there", "idle", 0)),
	}
}

// faultKind is a kind of engine: the simulated engine's API, and weir's flags for it.
type faultKind struct {
	name, wire, spec string
	pair             *pairing // nil: it serves whole requests
}

func faultKinds() []faultKind {
	return []faultKind{
		{"plane", "weir", "weir=%s", nil},
		{"openai", "openai", "openai=http://%s", nil},
		{"vllm", "vllm", "openai=http://%s", nil},
		{"vllm-ids", "vllm", "vllm=http://%s", nil},
		{"sglang", "sglang", "sglang=http://%s", nil},
		{"sglang-openai", "sglang", "openai=http://%s", nil},
	}
}

// FaultNames and FaultKinds list what Options.Faults and Kinds may name.
func FaultNames() (names []string) {
	for _, f := range allFaults() {
		names = append(names, f.name)
	}
	for _, c := range allConditions() {
		names = append(names, c.name)
	}
	for _, f := range allPairFaults() {
		names = append(names, f.name)
	}
	return names
}

// FaultKinds lists the kinds of engines.
func FaultKinds() (names []string) {
	for _, k := range allFaultKinds() {
		names = append(names, k.name)
	}
	return names
}

// Faulted is one fault of one kind of engine. Times are seconds; a negative one never
// came.
type Faulted struct {
	Kind  string `json:"kind"`
	Fault string `json:"fault"`
	What  string `json:"what"`
	// NotMeasured is why there are no figures.
	NotMeasured string `json:"not_measured,omitempty"`
	Lives       bool   `json:"lives"` // it must not be taken out

	// The clients' view.
	Requests int `json:"requests"`
	// Refused ended with an error before their first token, although another engine could
	// have served them; Broken ended with one afterwards.
	Refused    int     `json:"ended_by_error_without_a_token"`
	Broken     int     `json:"ended_by_error_in_mid_answer"`
	FirstError string  `json:"first_error,omitempty"`
	Lost       int     `json:"lost_tokens"`
	Wrong      int     `json:"tokens_repeated_or_wrong"`
	Waited     int     `json:"requests_that_waited_for_it"` // begun when it could be known
	Longest    float64 `json:"longest_first_token_seconds"` // of all that began meanwhile

	// When the engine was avoided, and out, since the fault began; and when a perfect
	// observer could know that it is out at the earliest. Late is how long weir was late
	// meanwhile, for which no engine is blamed. For a condition that an engine survives,
	// all but Avoided refer to the stop that follows it.
	Lasted   float64 `json:"lasted_seconds"`
	Avoided  float64 `json:"avoided_seconds"`
	Stopped  bool    `json:"stopped_while_it_lasted"`
	Out      float64 `json:"out_seconds"`
	Why      string  `json:"out_why,omitempty"`
	Knowable float64 `json:"knowable_seconds"`
	Late     float64 `json:"own_lateness_seconds"`
	// When it took requests again after the fault ended, and had half of its share of them.
	// Answers is how long it took to answer anything, if that took time for another reason.
	Back    float64 `json:"back_seconds"`
	Answers float64 `json:"answers_after_seconds,omitempty"`
	Share   float64 `json:"half_its_share_seconds"`
	// WronglyOut counts engines that were taken out and work.
	WronglyOut int `json:"engines_wrongly_out"`

	// For pairs: the number of requests that had neither a token nor an error in time, the
	// time after which no engine had anything left of them, and otherwise what was left.
	Pair    bool    `json:"pair,omitempty"`
	Between bool    `json:"between_engines,omitempty"` // neither engine fails
	Control bool    `json:"control,omitempty"`
	Overdue int     `json:"overdue_requests,omitempty"`
	Rests   float64 `json:"at_rest_seconds,omitempty"`
	Left    string  `json:"left,omitempty"`
}

// faults runs each fault on each kind of engine, and all that an engine must live with.
func faults(ctx context.Context, r *runner) *Report {
	report := &Report{Rows: []Row{}}
	words, err := simWords()
	if err != nil {
		return report.failed("the engines' words: %v", err)
	}
	chosen := func(names []string, name string) bool { return len(names) == 0 || slices.Contains(names, name) }
	var cells []func() Faulted
	for _, k := range allFaultKinds() {
		if !chosen(r.options.Kinds, k.name) {
			continue
		}
		if k.pair != nil {
			for _, f := range allPairFaults() {
				if chosen(r.options.Faults, f.name) && f.of(k.pair) {
					cells = append(cells, func() Faulted { return r.pairCell(ctx, k, f, words) })
				}
			}
			continue
		}
		for _, f := range allFaults() {
			if chosen(r.options.Faults, f.name) {
				cells = append(cells, func() Faulted { return r.faultCell(ctx, k, f, words) })
			}
		}
		for _, c := range allConditions() {
			if chosen(r.options.Faults, c.name) {
				cells = append(cells, func() Faulted { return r.conditionCell(ctx, k, c, words) })
			}
		}
	}
	began, spent := time.Now(), spentByOthers()
	report.Faulted = r.inParallel(ctx, cells)
	report.Others = max(spentByOthers()-spent, 0) / time.Since(began).Seconds()
	report.Verdicts = judgeFaults(report.Faulted)
	return report
}

// inParallel runs cells, three at a time: most of each is waiting.
func (r *runner) inParallel(ctx context.Context, cells []func() Faulted) []Faulted {
	const atOnce = 3
	results := make([]Faulted, len(cells))
	var mu sync.Mutex
	next := 0
	var workers sync.WaitGroup
	for range min(atOnce, len(cells)) {
		workers.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= len(cells) || ctx.Err() != nil {
					return
				}
				x := cells[i]()
				mu.Lock()
				results[i] = x
				fmt.Fprintf(r.options.Progress, "%2d/%d  %s\n", i+1, len(cells), x.line())
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	return results
}

// line is a cell for the progress.
func (x *Faulted) line() string {
	if x.NotMeasured != "" {
		return fmt.Sprintf("%-7s %-12s not measured: %s", x.Kind, x.Fault, x.NotMeasured)
	}
	return fmt.Sprintf("%-7s %-12s %d requests, %d refused, %d broken, %d waited; out after %s, back after %s",
		x.Kind, x.Fault, x.Requests, x.Refused, x.Broken, x.Waited, after(x.Out), after(x.Back))
}

// after is a time of a table.
func after(seconds float64) string {
	if seconds < 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f s", seconds)
}

func newFaulted(k faultKind, name, what string, lives bool) Faulted {
	return Faulted{Kind: k.name, Fault: name, What: what, Lives: lives, Avoided: -1, Out: -1, Back: -1, Share: -1, Knowable: -1}
}

// faultCell runs one fault on one kind of engine.
func (r *runner) faultCell(ctx context.Context, k faultKind, f fault, words *content.Words) (x Faulted) {
	x = newFaulted(k, f.name, f.what, f.lives)
	x.Answers = f.answers.Seconds()
	x.Knowable = f.knowable.Seconds()
	b, err := r.startFaultBed(ctx, faultBedding{kind: k, network: f.network})
	defer b.stop()
	if err == nil {
		err = b.under(ctx, r.options.Streams, words, &x, func(ctx context.Context, w *watched) error {
			v := &victim{ctx: ctx, bed: b, network: b.network}
			if err := w.wait(ctx, faultWarm); err != nil {
				return err
			}
			began := w.begin()
			if err := f.begin(v); err != nil {
				return err
			}
			if f.lives {
				return errors.Join(w.lives(ctx, began, livesFor), w.stopped(ctx, v), f.end(v), w.wait(ctx, faultWarm))
			}
			if err := w.during(ctx, began); err != nil {
				return err
			}
			ended := w.finish(began)
			if err := f.end(v); err != nil {
				return err
			}
			return w.returned(ctx, ended)
		})
	}
	if err != nil {
		x.NotMeasured = strings.TrimSpace(err.Error())
	}
	return x
}

// condition is something that all engines must survive, because weir or the machine causes
// it, or the work takes that long: no engine may be taken out.
type condition struct {
	name, what string
	engine     []string // flags of the engines
	env        []string // of the gateway
	lasts      time.Duration
	begin, end func(b *faultBed) error
	// deaf reports whether weir cannot be asked meanwhile; answers is as of a fault.
	deaf    bool
	answers time.Duration
	// slow reports whether the work explains such a long silence that an engine which is
	// stopped for good is not out within minutes. Package health tests that in virtual
	// time.
	slow bool
}

func allConditions() []condition {
	var endSpin, endStutter func()
	return []condition{
		{name: "gateway stopped", what: "SIGSTOP of weir for 6 s", lasts: 6 * time.Second, deaf: true,
			begin: func(b *faultBed) error { return b.gateway.Signal(syscall.SIGSTOP) },
			end:   func(b *faultBed) error { return b.gateway.Signal(syscall.SIGCONT) }},
		{name: "late reader", what: "weir stands still for 6 s of each 8: it reads acknowledgements and tokens so late", lasts: 30 * time.Second, deaf: true,
			begin: func(b *faultBed) error { endStutter = b.stutter(6*time.Second, 2*time.Second); return nil },
			end:   func(*faultBed) error { endStutter(); return nil }},
		{name: "collecting", what: "weir collects garbage all the time (GOGC=1)", env: []string{"GOGC=1"}, lasts: livesFor},
		{name: "busy cores", what: "four more processes than cores want to run", lasts: livesFor,
			begin: func(*faultBed) (err error) { endSpin, err = spin(); return err },
			end:   func(*faultBed) error { endSpin(); return nil }},
		{name: "all late", what: "acknowledgements and heads of all engines come 6 s late", lasts: livesFor, answers: 6 * time.Second,
			begin: func(b *faultBed) error { return b.setAll("slow,delay=6s") },
			end:   func(b *faultBed) error { return b.setAll() }},
		{name: "long steps", what: "steps with a prompt take 8 s of honest work", engine: []string{"--prefill-cost", "8s"}, lasts: 34 * time.Second, slow: true},
	}
}

// conditionCell runs one condition on one kind of engine.
func (r *runner) conditionCell(ctx context.Context, k faultKind, c condition, words *content.Words) (x Faulted) {
	x = newFaulted(k, c.name, c.what, true)
	x.Answers = c.answers.Seconds()
	b, err := r.startFaultBed(ctx, faultBedding{kind: k, engine: c.engine, env: c.env})
	defer b.stop()
	if err == nil {
		err = b.under(ctx, r.options.Streams, words, &x, func(ctx context.Context, w *watched) error {
			if err := w.wait(ctx, faultWarm); err != nil {
				return err
			}
			began := w.begin()
			if c.begin != nil {
				if err := c.begin(b); err != nil {
					return err
				}
			}
			end := func() (err error) {
				if c.end != nil {
					err = c.end(b)
				}
				return err
			}
			v := &victim{ctx: ctx, bed: b}
			switch {
			case c.deaf:
				err := errors.Join(lab.Sleep(ctx, c.lasts), end())
				w.finish(began)
				return errors.Join(err, w.wait(ctx, 2*faultWarm), w.stopped(ctx, v))
			case c.slow:
				return errors.Join(w.lives(ctx, began, c.lasts), end(), w.wait(ctx, 2*faultWarm))
			}
			return errors.Join(w.lives(ctx, began, c.lasts), w.stopped(ctx, v), end(), w.wait(ctx, 2*faultWarm))
		})
	}
	if err != nil {
		x.NotMeasured = strings.TrimSpace(err.Error())
	}
	return x
}

// judgeFaults holds the cells to what must come out.
func judgeFaults(cells []Faulted) []Verdict {
	var verdicts []Verdict
	sum := func(outcome Outcome, text string, bad func(x *Faulted) (n int, what string)) {
		total, worst := 0, ""
		for i := range cells {
			if x := &cells[i]; x.NotMeasured == "" && x.Requests > 0 && !x.Control {
				if n, what := bad(x); n > 0 {
					if total += n; worst == "" {
						worst = fmt.Sprintf(" (%s, %s: %s)", x.Kind, x.Fault, what)
					}
				}
			}
		}
		verdicts = append(verdicts, verdict(total == 0, outcome, "%s: %d%s", text, total, worst))
	}
	measured := 0
	for _, x := range cells {
		switch {
		case x.NotMeasured != "":
			verdicts = append(verdicts, verdict(false, Failed, "%s, %s was not measured: %s", x.Kind, x.Fault, x.NotMeasured))
		case x.Requests > 0:
			measured++
		}
	}
	if measured == 0 {
		return append(verdicts, verdict(false, Failed, "nothing was measured"))
	}
	sum(Failed, "tokens lost", func(x *Faulted) (int, string) { return x.Lost, fmt.Sprint(x.Lost) })
	sum(Failed, "tokens repeated or wrong", func(x *Faulted) (int, string) { return x.Wrong, fmt.Sprint(x.Wrong) })
	sum(Failed, "engines wrongly out", func(x *Faulted) (int, string) { return x.WronglyOut, fmt.Sprint(x.WronglyOut) })
	sum(Failed, "requests that failed although another engine could serve them", func(x *Faulted) (int, string) {
		return x.Refused, fmt.Sprintf("%d, such as %.200s", x.Refused, x.FirstError)
	})
	sum(Missed, fmt.Sprintf("cells in which more than %d requests that began %v after the last progress waited for it", mostWaiting, later), func(x *Faulted) (int, string) {
		return one(!x.Lives && !x.Pair && x.Waited > mostWaiting), fmt.Sprint(x.Waited)
	})
	sum(Missed, fmt.Sprintf("engines that fail and were out more than %v after that could be known, or never", downWithin), func(x *Faulted) (int, string) {
		return one(x.Knowable >= 0 && !x.Pair && (x.Out < 0 || x.Out > x.Knowable+x.Late+downWithin.Seconds())), after(x.Out)
	})
	sum(Missed, fmt.Sprintf("engines that took no request again within %v of recovering", backWithin), func(x *Faulted) (int, string) {
		return one((x.Out >= 0 || !x.Lives && !x.Between) && (x.Back < 0 || x.Back > x.Answers+backWithin.Seconds())), after(x.Back)
	})
	return append(verdicts, judgePairs(cells)...)
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}
