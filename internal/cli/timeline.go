package cli

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"weir/internal/load/report"
)

type timelineCommand struct {
	ID      string        `arg:"" optional:"" help:"The id of a request that has ended: its X-Request-Id."`
	Slowest int           `env:"-" placeholder:"N" help:"Show the N slowest requests, one per row, with the time in each stage."`
	By      string        `env:"-" default:"total" enum:"total,ttft" help:"With --slowest: sort by the whole time (total) or by the time to the first output (ttft) (${default})."`
	Since   time.Duration `env:"-" default:"15m" help:"With --slowest: only requests that ended within this time (${default})."`
	Model   string        `env:"-" placeholder:"NAME" help:"With --slowest: only requests for this model."`
	Engine  string        `env:"-" placeholder:"NAME" help:"With --slowest: only requests that went to this engine."`
	adminFlag
	JSON bool `name:"json" env:"-" help:"Print the gateway's answer as JSON."`
}

// Help implements kong's extended help.
func (timelineCommand) Help() string {
	return `Shows where the time of a request went, or of the slowest requests of the last minutes. Times are milliseconds, START since the request's arrival; docs/bench.md lists the stages. The gateway keeps the slow and failed requests of the last 15 minutes, and a sample of the others (docs/timeline.md). GET /timeline/ID has the raw record, and GET /timeline follows all of them.

The exit status is 1 when there is no such request.

Examples:
  weir timeline req-0123456789abcdef000000000001
  weir timeline --slowest 10
  weir timeline --slowest 5 --by ttft --since 1m --model llama
  weir timeline --slowest 10 --admin http://gateway-1:8001 --json`
}

// mostSlowest is how many requests are shown at most.
const mostSlowest = 1000

// timedRequest is the part of a record that is read.
type timedRequest struct {
	ID            string `json:"request_id"`
	Model         string
	Stream        bool
	Outcome       string
	Code          string
	Error         string
	Engine        string
	PrefillEngine string `json:"prefill_engine"`
	Attempts      int
	Prompt        int      `json:"prompt_tokens"`
	Completion    int      `json:"completion_tokens"`
	Cached        int      `json:"cached_tokens"`
	TTFT          *float64 `json:"ttft_ms"`
	Total         float64  `json:"total_ms"`
	Reason        report.Reason
}

// Run implements the command.
func (c *timelineCommand) Run(s *streams) error {
	query := url.Values{"reason": {"1"}}
	switch {
	case c.ID == "" && c.Slowest == 0:
		return wrongf("give the id of a request, or --slowest N")
	case c.ID != "" && c.Slowest != 0:
		return wrongf("give an id or --slowest, not both")
	case c.Slowest < 0 || c.Slowest > mostSlowest:
		return wrongf("--slowest %d: want a number from 1 to %d", c.Slowest, mostSlowest)
	case c.Since <= 0:
		return wrongf("--since must be positive")
	case c.ID != "":
		query.Set("id", c.ID)
		query.Set("limit", "1")
	default:
		query.Set("order", c.By)
		query.Set("limit", strconv.Itoa(c.Slowest))
		query.Set("since", c.Since.String())
		for name, value := range map[string]string{"model": c.Model, "engine": c.Engine} {
			if value != "" {
				query.Set(name, value)
			}
		}
	}
	var found struct {
		Ended   int
		Records []timedRequest
	}
	body, err := c.read("/records?"+query.Encode(), &found)
	if err != nil {
		return err
	}
	if len(found.Records) == 0 {
		if c.ID != "" {
			return fmt.Errorf("no request with the id %q has ended in the last 15 minutes, or its record was not kept; weir serve --timeline FILE keeps all", c.ID)
		}
		return errors.New("no such request has ended in that time")
	}
	switch {
	case c.JSON:
		_, err = s.out.Write(body)
	case c.ID != "":
		err = found.Records[0].print(s.out)
	default:
		err = printSlowest(s.out, found.Records, found.Ended)
	}
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// print prints a request with a row for each stage.
func (r *timedRequest) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	r.head(w)
	fmt.Fprint(t, "START\tMS\tSHARE\t  STAGE\n")
	at := 0.0
	row := func(stage string, start, ms float64) {
		fmt.Fprintf(t, "%.3f\t%.3f\t%.1f %%\t  %s\n", start, ms, 100*ms/max(r.Total, 1e-9), graphic(stage, ""))
	}
	for _, s := range r.Reason.Stages {
		row(s.Stage, s.Start, s.For)
		at = max(at, s.Start+s.For)
	}
	// Time that no stamp explains has its own row, so that the rows add up to the total.
	if rest := r.Total - at; rest >= 0.001 {
		row("(not known)", at, rest)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s\n", graphic(r.Reason.Sentence, ""))
	return err
}

// head prints a summary of the request. Its errors are those of the following writes.
func (r *timedRequest) head(w io.Writer) {
	ended := r.Outcome
	if r.Code != "" {
		ended += " (" + r.Code + ": " + r.Error + ")"
	}
	where := "no engine"
	if r.Engine != "" {
		where = "engine " + r.Engine
	}
	if r.PrefillEngine != "" && r.PrefillEngine != r.Engine {
		where += ", prefill at " + r.PrefillEngine
	}
	if r.Attempts > 1 {
		where += fmt.Sprintf(", attempt %d", r.Attempts)
	}
	sayLine(w, "request   %s, model %s, %s: %s", r.ID, r.Model, where, ended)
	sayLine(w, "tokens    %d of the prompt, %d of them cached; %d out", r.Prompt, r.Cached, r.Completion)
	first := ""
	if r.TTFT != nil && r.Stream {
		first = fmt.Sprintf(", %.3f ms to the first output", *r.TTFT)
	}
	sayLine(w, "total     %.3f ms%s\n", r.Total, first)
}

// seldomStage is the share of a request below which a stage has no column.
const seldomStage = 0.01

// printSlowest prints a row for each request, with a column for each stage that some request
// spent a part of its time in.
func printSlowest(w io.Writer, all []timedRequest, of int) error {
	spent := make([]map[string]float64, len(all))
	shown := map[string]bool{}
	for i := range all {
		spent[i] = map[string]float64{}
		for _, s := range all[i].Reason.Stages {
			spent[i][s.Stage] += s.For
		}
		for stage, ms := range spent[i] {
			shown[stage] = shown[stage] || ms >= seldomStage*all[i].Total
		}
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "TOTAL\tTTFT\t")
	for _, stage := range report.Stages() {
		if shown[stage] {
			fmt.Fprintf(t, "%s\t", strings.ToUpper(stage))
		}
	}
	engines := len("ENGINE") // texts stand at the left, and so in one column
	for i := range all {
		engines = max(engines, len(graphic(all[i].Engine, "")))
	}
	fmt.Fprintf(t, "OTHER\t  %-*s  REQUEST\n", engines, "ENGINE")
	for i := range all {
		r := &all[i]
		first := "-"
		if r.TTFT != nil && r.Stream {
			first = fmt.Sprintf("%.1f", *r.TTFT)
		}
		fmt.Fprintf(t, "%.1f\t%s\t", r.Total, first)
		rest := r.Total
		for _, stage := range report.Stages() {
			if shown[stage] {
				fmt.Fprintf(t, "%.1f\t", spent[i][stage])
				rest -= spent[i][stage]
			}
		}
		ended := ""
		if r.Outcome != "finished" {
			ended = " (" + r.Outcome + lead(": ", r.Code) + ")"
		}
		fmt.Fprintf(t, "%.1f\t  %-*s  %s%s\n", max(rest, 0), engines, textOrDash(graphic(r.Engine, "")), graphic(r.ID, ""), graphic(ended, ""))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nms; %d of %d requests that ended. weir timeline ID shows one of them.\n", len(all), of)
	return err
}
