package load

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/internal/workload"
	"weir/internal/workload/latency"
)

// Report is what a run measured. Its JSON form is one object. Latencies are in
// milliseconds, over complete streams.
type Report struct {
	URL         string           `json:"url"`
	API         API              `json:"api"`
	Model       string           `json:"model"`
	Stream      bool             `json:"stream"`
	Verified    bool             `json:"verified"` // texts were checked word by word
	Concurrency int              `json:"concurrency,omitempty"`
	Rate        float64          `json:"rate,omitempty"`
	Arrival     workload.Arrival `json:"arrival,omitempty"`
	CV          float64          `json:"burst_cv,omitempty"`
	// Workload is the kind of the workload that was sent. Skipped counts its requests
	// without output, which were not sent, and Problem is the reason why it ended early.
	Workload string `json:"workload,omitempty"`
	Skipped  int    `json:"skipped,omitempty"`
	// Sessions is how many conversations its users began, for a workload with
	// sessions.
	Sessions int `json:"sessions,omitempty"`
	// Images is how many each request has, and ImageBytes what their URLs take of
	// its body.
	Images     int    `json:"images,omitempty"`
	ImageBytes int    `json:"image_bytes,omitempty"`
	Problem    string `json:"problem,omitempty"`

	Seed uint64 `json:"seed"`
	// Worker of Workers means that the run sent a part of a schedule; Workers without
	// Worker means that the report covers all parts.
	Worker  int       `json:"worker,omitempty"`
	Workers int       `json:"workers,omitempty"`
	Started time.Time `json:"started"`
	// Origin is the stamp at which the open loop's schedule began, 0 without one.
	Origin int64 `json:"-"`
	// Elapsed is from the first intended time to the last byte, in seconds.
	Elapsed float64 `json:"elapsed_seconds"`
	// Interrupted reports whether the run was cancelled before its plan was done.
	Interrupted bool `json:"interrupted"`

	// Verdict states whether the figures can be trusted.
	Verdict Verdict `json:"verdict"`

	// InputTokens is the requested length of prompts. InputTokensExact reports whether it
	// was made from the server's own tokens. InputTokensOff counts answers whose usage has
	// another length nevertheless.
	InputTokens      int  `json:"input_tokens"`
	InputTokensExact bool `json:"input_tokens_exact"`
	InputTokensOff   int  `json:"input_tokens_off"`
	OutputTokens     int  `json:"output_tokens,omitempty"`

	// Requests is the sum of the five outcomes.
	Requests   int `json:"requests"`
	Complete   int `json:"complete"`
	Corrupt    int `json:"corrupt"`
	Errored    int `json:"errored"`
	Abandoned  int `json:"abandoned"`
	Unfinished int `json:"unfinished"`

	// Lost counts tokens missing from streams that were ended as complete.
	Lost int `json:"lost"`
	// ErroredShare is errored / (requests - abandoned - unfinished).
	ErroredShare float64 `json:"errored_share"`
	// Errors counts corrupt and errored requests by kind; Examples has one
	// detail of each.
	Errors   map[Kind]int    `json:"errors"`
	Examples map[Kind]string `json:"examples"`

	// Tokens counts answer tokens received, of all requests: words where texts
	// are verified, otherwise the server's usage, otherwise events with text.
	Tokens       int64 `json:"tokens"`
	PromptTokens int64 `json:"prompt_tokens"` // by the server's usage
	Events       int64 `json:"events"`
	TextEvents   int64 `json:"text_events"`
	Frames       int64 `json:"frames"` // chunks of the HTTP framing
	Reads        int64 `json:"reads"`  // reads of a socket
	Bytes        int64 `json:"bytes"`  // of response bodies

	TokensPerSecond   float64 `json:"tokens_per_second"`
	RequestsPerSecond float64 `json:"requests_per_second"` // complete ones
	// EventsPerToken falls below 1 where the server merged tokens.
	EventsPerToken float64 `json:"events_per_token"`
	FramesPerToken float64 `json:"frames_per_token"`

	// TTFT is the time from the intended time to the first content of any channel,
	// TTFTAnswer to the first content of the answer itself, after reasoning and tool calls.
	// TPOT is the mean time per token after the first, of each request. ITL is the gap
	// between events with content; it is 0 for events of one read. E2E is the time from the
	// intended time to the last byte. The first four have bounds if events have no exact
	// time.
	TTFT       latency.Judged `json:"ttft_ms"`
	TTFTAnswer latency.Judged `json:"ttft_answer_ms"`
	TPOT       latency.Judged `json:"tpot_ms"`
	ITL        latency.Judged `json:"itl_ms"`
	E2E        latency.Judged `json:"e2e_ms"`
	// The twins from the time of sending. TPOT and ITL have none: they begin with
	// the first content.
	TTFTSent       latency.Judged `json:"ttft_sent_ms"`
	TTFTAnswerSent latency.Judged `json:"ttft_answer_sent_ms"`
	E2ESent        latency.Judged `json:"e2e_sent_ms"`
	// Slip is the delay from the intended time until the generator took a request up.
	// Connect is the time from then until it had a connection.
	Slip    latency.Judged `json:"slip_ms"`
	Connect latency.Judged `json:"connect_ms"`

	// Receive describes how receive times were taken.
	Receive Receive `json:"receive"`

	// Calibration is the generator's own error at this load, if it was measured.
	Calibration *Calibration `json:"calibration,omitempty"`

	// Realised is the arrival process as it was intended by the schedule.
	Realised Arrivals `json:"realised"`
	// Steady is the part of the run in which load and answers were in balance.
	Steady Steady `json:"steady"`
	// Generator is what the load generator itself used.
	Generator Generator `json:"generator"`
	// CPUSeconds is the CPU time of this process during the run, user and
	// system, whatever else runs in it included.
	CPUSeconds float64 `json:"cpu_seconds"`
	// CPUPerEvent is that in microseconds per event.
	CPUPerEvent float64 `json:"cpu_us_per_event"`
}

// Clean reports whether every request completed that should.
func (r *Report) Clean() bool { return r.Corrupt == 0 && r.Errored == 0 && r.Complete > 0 }

// Failed reports whether requests failed, or nothing was measured. A run whose requests
// were all abandoned as planned did what it was asked to do.
func (r *Report) Failed() bool {
	return r.Problem != "" || r.Corrupt > 0 || r.Errored > 0 || r.Complete+r.Abandoned == 0
}

// JSON writes the report as one object.
func (r *Report) JSON(w io.Writer) error { return WriteJSON(w, r) }

// WriteJSON writes a report of any kind as one object, for people to read too.
func WriteJSON(w io.Writer, report any) error {
	b, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// Text writes the report for a person.
func (r *Report) Text(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", r.Heading())
	for _, f := range r.Facts() {
		fmt.Fprintf(&b, "%-11s %s\n", f.Name, f.Text)
		if f.Name == lostFact {
			for _, kind := range slices.Sorted(maps.Keys(r.Errors)) {
				fmt.Fprintf(&b, "  %-14s %6d  e.g. %s\n", kind, r.Errors[kind], r.Examples[kind])
			}
		}
	}
	fmt.Fprintf(&b, "\n%-14s %9s %9s %9s %9s %9s %9s %9s\n", "ms", "count", "mean", "p50", "p90", "p99", "p99.9", "max")
	for _, l := range r.Latencies() {
		c := l.Cells()
		fmt.Fprintf(&b, "%-14s %9s %9s %9s %9s %9s %9s %9s\n", l.Name, c[0], c[1], c[2], c[3], c[4], c[5], c[6])
		if l.Within != "" {
			fmt.Fprintf(&b, "  known to be  %s\n", l.Within)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Fact is a line of the report other than a latency.
type Fact struct{ Name, Text string }

// lostFact is the fact below which errors are listed.
const lostFact = "lost"

// Heading returns the server and the load.
func (r *Report) Heading() string {
	model := ""
	if r.Model != "" {
		model = "model " + r.Model + ", "
	}
	return fmt.Sprintf("%s %s, %s%s", r.API, r.URL, model, r.mode())
}

// Facts are the report's lines in their order, for the terminal and for the page.
func (r *Report) Facts() (all []Fact) {
	add := func(name, format string, args ...any) { all = append(all, Fact{name, fmt.Sprintf(format, args...)}) }
	more := ""
	if r.Abandoned > 0 {
		more += fmt.Sprintf(", %d abandoned as planned", r.Abandoned)
	}
	if r.Unfinished > 0 {
		more += fmt.Sprintf(", %d unfinished", r.Unfinished)
	}
	if r.Interrupted {
		more += " (interrupted)"
	}
	add("requests", "%d in %s: %d complete, %d corrupt, %d errored%s", r.Requests, latency.Seconds(r.Elapsed), r.Complete, r.Corrupt, r.Errored, more)
	if r.ErroredShare > 0 {
		add("errored", "%.4f %%", 100*r.ErroredShare)
	}
	if r.Verified {
		add(lostFact, "%d tokens (every word checked)", r.Lost)
	} else {
		add(lostFact, "not known: texts were not verified")
	}
	length := "as the workload says"
	if r.Workload == "" {
		length = fmt.Sprintf("%d a prompt", r.InputTokens)
	}
	how := ""
	switch {
	case r.InputTokensExact && r.InputTokensOff > 0:
		how = fmt.Sprintf(" (%s by the tokenizer given; in %d answers the server counts otherwise)", length, r.InputTokensOff)
	case r.InputTokensExact:
		how = fmt.Sprintf(" (%s, exact)", length)
	case r.Workload != "":
		how = fmt.Sprintf(" (%s, in words of about one token: approximate, --tokenizer DIR makes it exact)", length)
	case r.InputTokens > 0:
		how = fmt.Sprintf(" (about %s: approximate, --tokenizer DIR makes it exact)", length)
	}
	add("tokens", "%d out, %d prompt%s", r.Tokens, r.PromptTokens, how)
	if r.Sessions > 0 {
		add("sessions", "%d", r.Sessions)
	}
	if r.Images > 0 {
		add("images", "%d a request, %d bytes", r.Images, r.ImageBytes)
	}
	add("throughput", "%.1f tokens/s, %.2f requests/s", r.TokensPerSecond, r.RequestsPerSecond)
	if r.Stream {
		add("events", "%d, %.3f per token; %.3f HTTP chunks per token", r.Events, r.EventsPerToken, r.FramesPerToken)
	}
	return append(all, r.trust()...)
}

// Latency is a line of the table of latencies.
type Latency struct {
	Name string
	latency.Judged
	// Within are the bounds of its figures, where events have no time of their own.
	Within string
}

// Cells are its columns: count, mean, p50, p90, p99, p99.9 and max.
func (l *Latency) Cells() (cells [7]string) {
	cells[0] = strconv.FormatInt(int64(l.Count), 10)
	for i, f := range [...]latency.Figure{l.Mean, l.P50, l.P90, l.P99, l.P999, l.Max} {
		cells[i+1] = millis(f)
	}
	return cells
}

// Latencies are the lines of the table, leaving out those without a value. The twins from
// the time of sending are indented.
func (r *Report) Latencies() (all []Latency) {
	for _, l := range []Latency{
		{Name: "ttft", Judged: r.TTFT}, {Name: "  from sent", Judged: r.TTFTSent}, {Name: "ttft answer", Judged: r.answerApart()}, {Name: "tpot", Judged: r.TPOT}, {Name: "itl", Judged: r.ITL},
		{Name: "e2e", Judged: r.E2E}, {Name: "  from sent", Judged: r.E2ESent}, {Name: "slip", Judged: r.Slip}, {Name: "connect", Judged: r.Connect},
	} {
		if l.Count == 0 {
			continue
		}
		if l.Name[0] != ' ' {
			l.Within = l.Between()
		}
		all = append(all, l)
	}
	return all
}

// open reports whether requests were sent however many were in flight.
func (r *Report) open() bool { return r.Rate > 0 || r.Workload != "" && r.Concurrency == 0 }

// mode describes how requests were sent.
func (r *Report) mode() string {
	kind := "streaming"
	if !r.Stream {
		kind = "not streaming"
	}
	switch {
	case r.Workload != "" && r.Concurrency == 0:
		return fmt.Sprintf("%s, open loop of a workload (%s), seed %d", kind, r.Workload, r.Seed)
	case r.Rate > 0:
		process := string(r.Arrival)
		if r.CV > 0 {
			process = fmt.Sprintf("%s with CV %g", process, r.CV)
		}
		return fmt.Sprintf("%s, open loop %g/s %s, seed %d%s", kind, r.Rate, process, r.Seed, r.part())
	}
	return fmt.Sprintf("%s, closed loop of %d, seed %d", kind, r.Concurrency, r.Seed)
}

// part returns which part of a schedule it is.
func (r *Report) part() string {
	switch {
	case r.Worker > 0:
		return fmt.Sprintf(" (worker %d of %d)", r.Worker, r.Workers)
	case r.Workers > 0:
		return fmt.Sprintf(" (%d workers)", r.Workers)
	}
	return ""
}

// answerApart is the time to the first answer text where other content came
// before it.
func (r *Report) answerApart() latency.Judged {
	if r.TTFTAnswer.Count == r.TTFT.Count && r.TTFTAnswer.Mean == r.TTFT.Mean {
		return latency.Judged{}
	}
	return r.TTFTAnswer
}

// millis returns milliseconds at a useful precision.
func millis(ms latency.Figure) string { return latency.Millis(float64(ms)) }
