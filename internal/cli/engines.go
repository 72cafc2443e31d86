package cli

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"weir/internal/engine"
)

type enginesCommand struct {
	List   enginesList   `cmd:"" default:"withargs" help:"Show the engines. The default command."`
	Add    enginesAdd    `cmd:"" help:"Add an engine."`
	Drain  enginesDrain  `cmd:"" help:"Stop giving an engine new requests, and let its present ones finish."`
	Resume enginesResume `cmd:"" help:"Give a drained engine requests again."`
	Remove enginesRemove `cmd:"" help:"Drain an engine and take it out."`
	Weight enginesWeight `cmd:"" help:"Limit the share of requests that an engine gets."`
}

// Help implements kong's extended help.
func (enginesCommand) Help() string {
	return `Shows the engines of a running gateway, or changes them. Changes hold until the gateway ends (docs/changing.md).

Examples:
  weir engines
  weir engines --json | jq '.[] | select(.ready | not)'
  weir engines add http://10.0.0.3:8000
  weir engines drain 10.0.0.1:8000 --wait
  weir engines list --help`
}

type enginesList struct {
	adminFlag
	JSON bool `name:"json" help:"Print the gateway's answer as JSON."`
}

// Help implements kong's extended help.
func (enginesList) Help() string {
	return `Prints a line for each engine, or for each of its data-parallel ranks if its wire names them: kind, state, model, version and load. A dash stands for a value that the wire does not report. ROLE is shown if some engine serves halves of requests (docs/disaggregation.md). BOOKED is the number of generations that weir has at the engine, WAIT the time that a new prompt would wait there. CACHED has two shares of prompt tokens: those that weir expected in the engine's KV cache, and those that the engine reported. A line for each model with a folder states what its chat template does not take as it comes (docs/templates.md). --json includes the coefficients that weir has learned. The exit status is 1 when no engine is ready.

Examples:
  weir engines
  weir engines --admin http://gateway-1:8001
  weir engines --json | jq '.[] | select(.ready | not)'`
}

// Run implements the command.
func (c *enginesList) Run(s *streams) error {
	var views []engineView
	body, err := c.read("/engines", &views)
	if err != nil {
		return err
	}
	if c.JSON {
		if _, err := s.out.Write(body); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	} else if err := printEngines(s.out, views); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	for i := range views {
		if views[i].Ready {
			return nil
		}
	}
	return exitStatus(1)
}

// printEngines prints the engines as a table, and below it why some are not ready, and
// advice.
func printEngines(w io.Writer, views []engineView) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	roles := slices.ContainsFunc(views, func(v engineView) bool { return v.Role != "" })
	role := func(of string) string { // a column of fleets that have any
		if !roles {
			return ""
		}
		return of + "\t"
	}
	fmt.Fprintln(t, "ENGINE\tKIND\t"+role("ROLE")+"STATE\tRUNNING\tWAITING\tKV\tMAX\tCONTEXT\tBOOKED\tWAIT\tCACHED\tSOFTWARE\tMODELS")
	for i := range views {
		v := &views[i]
		models := graphic(strings.Join(v.Models, ","), "")
		usage := "-"
		if v.KVUsage != nil {
			usage = fmt.Sprintf("%.0f%%", *v.KVUsage*100)
		}
		booked, wait, cached := v.Books.columns()
		fmt.Fprintf(t, "%s\t%s\t%s%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", graphic(v.Name, ""), graphic(v.Kind, ""), role(cmp.Or(v.Role, "both")), cmp.Or(v.Drain, v.Health.word(v.Ready)), orDash(v.Running), orDash(v.Waiting), usage,
			orDash(positive(v.MaxRunning)), orDash(positive(v.ContextLength)), booked, wait, cached, textOrDash(graphic(v.Software, "")), textOrDash(models))
		for _, r := range v.Ranks {
			booked, wait, _ := r.Books.columns()
			fmt.Fprintf(t, "%s/%d\t-\t%s%s\t%s\t%s\t-\t-\t-\t%s\t%s\t-\t-\t-\n", graphic(v.Name, ""), r.Rank, role("-"), r.Health.word(r.Ready), orDash(r.Running), orDash(r.Waiting), booked, wait)
		}
	}
	if len(views) == 0 {
		fmt.Fprintln(t, "(none)")
	}
	err := t.Flush()
	for i := range views {
		v := &views[i]
		say := func(name string, lines ...string) {
			for _, line := range lines {
				if line != "" && err == nil {
					_, err = fmt.Fprintf(w, "%s: %s\n", graphic(name, ""), graphic(line, ""))
				}
			}
		}
		say(v.Name, v.Error)
		if len(v.Ranks) == 0 {
			say(v.Name, v.Health.lines()...)
		}
		for _, r := range v.Ranks {
			name := fmt.Sprintf("%s/%d", v.Name, r.Rank)
			if v.Ready && !r.Ready {
				say(name, "it is not connected")
			}
			say(name, r.Health.lines()...)
			if r.Behind >= late {
				say(name, fmt.Sprintf("its latest report is %.1f s older than another rank's", r.Behind))
			}
		}
		for _, o := range v.Old {
			say(v.Name, o.line())
		}
		say(v.Name, v.KVEvents.line(), v.Note)
	}
	if err == nil {
		err = printTemplates(w, views)
	}
	return err
}

// late is for how long, in seconds, a rank's report is behind those of others when that is shown.
const late = 5

// line says what is old.
func (o *old) line() string {
	what := "its " + o.Page + " could not"
	if o.Page == engine.AllPages {
		what = "none of its pages could"
	}
	return fmt.Sprintf("%s be read for %.1f s, and what is known by it is as it was: %s", what, o.For, o.Why)
}

// printTemplates prints what the chat templates of the models do not take as it comes.
func printTemplates(w io.Writer, views []engineView) error {
	all := map[string]map[string]string{}
	for i := range views {
		maps.Copy(all, views[i].Templates)
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		var rows []string
		for _, of := range slices.Sorted(maps.Keys(all[name])) {
			rows = append(rows, of+": "+all[name][of])
		}
		if _, err := fmt.Fprintf(w, "%s: chat template: %s\n", graphic(name, ""), graphic(strings.Join(rows, "; "), "")); err != nil {
			return err
		}
	}
	return nil
}

// line returns how much is known by an engine's events, empty where it publishes none.
func (e *events) line() string {
	switch {
	case e == nil:
		return ""
	case e.Error != "":
		return "its KV cache is not known by events: " + e.Error
	case e.Knowledge == "partial":
		return fmt.Sprintf("its KV cache is known by events in part, %d blocks of it: not all from its start on could be had; give the engine a replay endpoint, with buffer enough", e.Blocks)
	}
	return fmt.Sprintf("its KV cache is %s by events, %d blocks", e.Knowledge, e.Blocks)
}

// word returns the state in the table.
func (s *state) word(ready bool) string {
	switch {
	case !ready:
		return "down"
	case s != nil && s.State != "up":
		return s.State
	case s != nil && s.Rests > 0:
		return "rests"
	}
	return "ready"
}

// lines say since when and why it is not ready.
func (s *state) lines() (lines []string) {
	if s == nil {
		return nil
	}
	if s.State != "up" {
		line := fmt.Sprintf("%s for %.1f s: %s", s.State, s.For, s.Why)
		if s.Silence > 0 {
			line += fmt.Sprintf("; without progress for %.1f s, with %d requests there", s.Silence, s.Open)
		}
		lines = append(lines, line)
	}
	if s.Rests > 0 {
		lines = append(lines, fmt.Sprintf("it has asked not to be given requests for %.1f s more", s.Rests))
	}
	return lines
}

// columns returns the columns of the books in the table: what is booked, the wait, and the
// predicted and reported cached shares.
func (b *books) columns() (booked, wait, cached string) {
	if b == nil {
		return "-", "-", "-"
	}
	share := func(x *float64) string {
		if x == nil {
			return "-"
		}
		return fmt.Sprintf("%.0f%%", *x*100)
	}
	return strconv.FormatInt(b.InFlight, 10), fmt.Sprintf("%.0fms", b.WaitMS), share(b.Predicted) + "/" + share(b.Reported)
}

func positive(n int) *int {
	if n <= 0 {
		return nil
	}
	return &n
}

func orDash(n *int) string {
	if n == nil {
		return "-"
	}
	return strconv.Itoa(*n)
}

func textOrDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
