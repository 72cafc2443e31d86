package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/go-json-experiment/json"

	"weir/internal/disk"
	"weir/internal/infer"
	"weir/internal/trace"
)

type whyCommand struct {
	ID      string   `arg:"" optional:"" help:"The X-Request-Id of a request that has ended."`
	Request string   `group:"A request that has not been sent:" placeholder:"FILE" help:"Show where a request with this body would go, without sending it to an engine; - reads standard input."`
	Path    string   `group:"A request that has not been sent:" default:"/v1/chat/completions" help:"Path of the request (${default})."`
	Header  []string `group:"A request that has not been sent:" sep:"none" placeholder:"'NAME: VALUE'" help:"A header of the request, such as its session. Repeatable."`
	adminFlag
	JSON bool `name:"json" help:"Print the gateway's answer as JSON."`
}

// Help implements kong's extended help.
func (whyCommand) Help() string {
	return `Explains why a request went to its engine, or where a request would go (docs/receipts.md). For each attempt it prints the engines with the lowest cost, the chosen one first. CACHED is the number of prompt tokens that weir expected in the engine's cache, WAIT the time until prefill would begin, OTHERS the delay of all other requests there, and TOTAL the cost that was compared. A * marks an engine that has not been measured enough.

Examples:
  weir why req-0123456789abcdef000000000001
  weir why --request body.json
  weir why --request - --path /v1/completions < body.json
  weir why --request body.json --header "X-Session-Id: a" --admin http://gateway-1:8001`
}

// receipt is the part of a record that is read.
type receipt struct {
	ID       string `json:"request_id"`
	Model    string
	Outcome  string
	Code     string
	Message  string `json:"error"`
	TTFT     int64  `json:"ttft"`
	Queue    *receiptQueue
	Pair     map[string]int64 // where its time went, if two engines served it
	Attempts []receiptAttempt
}

// receiptTurn is whose turn it was.
type receiptTurn struct {
	Band, Tenant string
	Own          int   `json:"waiting_own"`
	Others       int   `json:"waiting_others"`
	Tenants      int   `json:"waiting_tenants"`
	Charged      int64 `json:"charged_ns"`
}

type receiptAttempt struct {
	Choice   *receiptChoice
	Turn     *receiptTurn
	Repeated bool
	// Continued reports whether another engine went on behind the Given tokens.
	Continued bool
	Given     int `json:"given_tokens"`
	Legs      []struct{ Engine, Outcome string }
}

// receiptQueue is how a request that might be would wait.
type receiptQueue struct {
	Waits  bool
	For    string
	Behind int
	Drain  int64
}

type receiptChoice struct {
	Why       string
	Engine    string // with its rank, if it has several
	Engines   int
	Prompt    int    `json:"prompt_tokens"`
	Available int    `json:"available_cached_tokens"`
	Cached    *int   `json:"cached_tokens"`
	Delivered *int64 `json:"delivered_ttft"`
	Predicted int    `json:"predicted_cached_tokens"`
	TTFT      int64  `json:"predicted_ttft"`
	Best      []receiptOption
	Prefill   *receiptChoice // of the engine that computes the prompt, where another one does
}

// receiptOption is an engine as the choice saw it; times are nanoseconds.
type receiptOption struct {
	Engine    string
	Predicted int   `json:"predicted_cached_tokens"`
	Wait      int64 `json:"predicted_wait"`
	Prefill   int64 `json:"predicted_prefill"`
	Decode    int64 `json:"predicted_decode"`
	Others    int64 `json:"predicted_others"`
	TTFT      int64 `json:"predicted_ttft"`
	Decoders  int
	Cold      bool
	Half      bool
}

// Run implements the command.
func (c *whyCommand) Run(s *streams) error {
	body, err := c.ask(s)
	if err != nil {
		return err
	}
	if c.JSON {
		_, err = s.out.Write(body)
		return err
	}
	for i, line := range bytes.Split(bytes.TrimSpace(body), []byte{'\n'}) {
		var r receipt
		if err := json.Unmarshal(line, &r, json.MatchCaseInsensitiveNames(true)); err != nil {
			return errors.Join(fmt.Errorf("%s is not an admin listener of weir", c.Admin), err)
		}
		if i > 0 {
			fmt.Fprintln(s.out)
		}
		if err := r.print(s.out, c.Request == ""); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
	return nil
}

// ask asks the gateway.
func (c *whyCommand) ask(s *streams) ([]byte, error) {
	switch {
	case c.ID == "" && c.Request == "":
		return nil, wrongf("give the id of a request that has ended, or --request FILE with the body of one that has not been sent")
	case c.ID != "" && c.Request != "":
		return nil, wrongf("give an id or --request, not both")
	}
	if c.Request == "" {
		return c.adminFlag.ask(http.MethodGet, "/timeline/"+url.PathEscape(c.ID), nil, nil)
	}
	var body []byte
	var err error
	if c.Request == "-" {
		body, err = disk.ReadAll(s.in, "standard input", 0, disk.MaxText)
	} else {
		body, err = disk.ReadOnce(c.Request, disk.MaxText)
	}
	if err != nil {
		return nil, wrongf("--request %s: %w", c.Request, err)
	}
	header := http.Header{"Content-Type": {"application/json"}}
	if err := eachHeader(c.Header, header.Add); err != nil {
		return nil, err
	}
	return c.adminFlag.ask(http.MethodPost, "/admin/why?path="+url.QueryEscape(c.Path), header, bytes.NewReader(body))
}

// waits returns how a request that might be would wait.
func waits(q *receiptQueue) string {
	if !q.Waits {
		return "it would not wait"
	}
	what := "any engine that has room"
	if q.For != "" {
		what = graphic(q.For, "") + ", which is full, although another engine has room"
	}
	after := ""
	if q.Drain > 0 {
		after = fmt.Sprintf("; what waits now has left in about %v", time.Duration(q.Drain).Round(100*time.Millisecond))
	}
	return fmt.Sprintf("it would wait behind %d for %s%s", q.Behind, what, after)
}

// print prints the reason. was is false for a request that was not sent.
func (r *receipt) print(w io.Writer, was bool) (err error) {
	say := func(format string, args ...any) {
		if err == nil {
			_, err = fmt.Fprintf(w, format+"\n", args...)
		}
	}
	if was {
		ended := r.Outcome
		if r.Code != "" {
			ended += " (" + r.Code + ": " + graphic(r.Message, "") + ")"
		}
		say("request   %s, model %s: %s", graphic(r.ID, ""), graphic(r.Model, ""), ended)
	} else {
		say("model     %s; the request was given to nobody", graphic(r.Model, ""))
	}
	if q := r.Queue; q != nil {
		say("queue     %s", waits(q))
	}
	if len(r.Attempts) == 0 {
		say("          it was given to no engine")
	}
	for i := range r.Attempts {
		a := &r.Attempts[i]
		c := a.Choice
		if c == nil || len(a.Legs) == 0 {
			continue
		}
		first := c
		if p := c.Prefill; p != nil {
			first = p
			say("prefill   %s, of %d: %s", graphic(p.Engine, ""), p.Engines, p.Why)
			say("decode    %s, of %d: %s", graphic(c.Engine, ""), c.Engines, c.Why)
		} else {
			say("engine    %s, of %d: %s", graphic(c.Engine, ""), c.Engines, c.Why)
		}
		if t := a.Turn; t != nil {
			say("turn      tenant %s, band %s: when it came, %d of its tenant's requests waited, and %d of %d others; charged %s", graphic(t.Tenant, ""), graphic(t.Band, ""), t.Own, t.Others, t.Tenants, milliseconds(t.Charged))
		}
		if a.Repeated {
			say("          it failed there (%s), and went elsewhere", graphic(a.failed(), ""))
		}
		if a.Continued {
			say("          it gave %d tokens and failed (%s); the next one went on behind them", a.Given, graphic(a.failed(), ""))
		}
		told := "which the engine has not told"
		switch {
		case !was:
			told = ""
		case c.Cached != nil:
			told = fmt.Sprintf("and it had %d", *c.Cached)
		}
		say("prompt    %d tokens; some engine was believed to have %d of them, this one %d%s", c.Prompt, c.Available, first.Predicted, lead(", ", told))
		took := ""
		if c.Delivered != nil {
			took = ", and it took " + milliseconds(*c.Delivered)
		}
		say("output    predicted after %s%s", milliseconds(c.TTFT), took)
		if parts := stages(r.Pair); parts != "" && i == len(r.Attempts)-1 {
			say("pair      %s", parts)
		}
		if err == nil && c.Prefill != nil {
			err = printOptions(w, c.Prefill.Engine, c.Prefill.Best)
		}
		if err == nil {
			err = printOptions(w, c.Engine, c.Best)
		}
	}
	return err
}

// stages returns how long the stages of a pair lasted, as far as they are known.
func stages(pair map[string]int64) string {
	var parts []string
	for _, name := range append(trace.PairStages[:], "handover") {
		if ns, ok := pair[name]; ok {
			parts = append(parts, strings.ReplaceAll(name, "_", " ")+" "+milliseconds(ns))
		}
	}
	return strings.Join(parts, ", ")
}

// failed returns how the attempt ended at the engine that failed. If one of two failed, it
// is not the one that was given up because of that.
func (a *receiptAttempt) failed() string {
	for _, leg := range a.Legs {
		if leg.Outcome != "" && leg.Outcome != infer.Finished.String() && leg.Outcome != infer.CodeCancelled.String() {
			return leg.Outcome
		}
	}
	return a.Legs[0].Outcome
}

func lead(before, s string) string {
	if s == "" {
		return ""
	}
	return before + s
}

// printOptions prints the engines that would have cost least, the chosen one first.
func printOptions(w io.Writer, chosen string, best []receiptOption) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nENGINE\tCACHED\tWAIT\tPREFILL\tDECODE\tOTHERS\tTOTAL\tTTFT\tDECODERS")
	for _, first := range []bool{true, false} {
		for i := range best {
			o := &best[i]
			if (o.Engine == chosen) != first {
				continue
			}
			cold := ""
			if o.Cold {
				cold = "*"
			}
			if o.Half {
				cold += " (half)"
			}
			fmt.Fprintf(t, "%s%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%d\n", graphic(o.Engine, ""), cold, o.Predicted, milliseconds(o.Wait), milliseconds(o.Prefill), milliseconds(o.Decode),
				milliseconds(o.Others), milliseconds(o.Wait+o.Prefill+o.Decode+o.Others), milliseconds(o.TTFT), o.Decoders)
		}
	}
	return t.Flush()
}

func milliseconds(ns int64) string { return fmt.Sprintf("%.1fms", float64(ns)/1e6) }
