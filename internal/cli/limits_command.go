package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/config/keyfile"
)

type limitsCommand struct {
	Show limitsShow `cmd:"" default:"withargs" help:"Show the limits in force and what is used of them. The default command."`
	Set  limitsSet  `cmd:"" help:"Change the limits of a caller, at once and in the keys file."`
}

// Help implements kong's extended help.
func (limitsCommand) Help() string {
	return `Shows or sets the limits of the callers of a running gateway with --keys (docs/keys.md).

Examples:
  weir limits
  weir limits alice
  weir limits set alice --tokens-per-day 500000 --max-requests 8`
}

type limitsShow struct {
	adminFlag
	Name   string `arg:"" optional:"" help:"Show one caller: the name of a key, certificate:NAME, or ISSUER:TENANT."`
	Tenant string `env:"-" placeholder:"NAME" help:"Show the callers of one tenant only."`
	JSON   bool   `name:"json" help:"Print the gateway's answer as JSON."`
}

// Help implements kong's extended help.
func (limitsShow) Help() string {
	return `Prints a line for each key, each certificate, and each tenant of tokens. 3/8 means that 3 of 8 are used; a dash means that there is no limit. REQUESTS/MIN and TOKENS/MIN are used in the sense of the token bucket: they fall by the limit within a minute. DAY is the day, in UTC, whose tokens TOKENS/DAY counts. ISSUER:* has the limits of tenants without an entry of their own.

Examples:
  weir limits
  weir limits alice
  weir limits --tenant research --json`
}

// Run implements the command.
func (c *limitsShow) Run(s *streams) error {
	path := "/admin/limits"
	var views limitsViews
	var body []byte
	var err error
	switch {
	case c.Name != "":
		var one limitsView
		body, err = c.read(path+"/"+url.PathEscape(c.Name), &one)
		views.Callers = []limitsView{one}
	default:
		if c.Tenant != "" {
			path += "?" + url.Values{"tenant": {c.Tenant}}.Encode()
		}
		body, err = c.read(path, &views)
	}
	if err != nil {
		return err
	}
	if c.JSON {
		_, err = s.out.Write(body)
	} else {
		if v := views.Shared; v != nil {
			sayLine(s.out, "%s", v)
		}
		err = printLimits(s.out, views.Callers)
	}
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// printLimits prints callers as a table.
func printLimits(w io.Writer, callers []limitsView) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "CALLER\tTENANT\tBAND\tSHARE\tMODELS\tREQUESTS\tREQUESTS/MIN\tTOKENS/MIN\tTOKENS/DAY\tDAY\tPROMPT\tOUTPUT")
	for i := range callers {
		v := &callers[i]
		models := "all"
		if v.Models != nil {
			models = strings.Join(v.Models, ",")
		}
		l, left := &v.Limits, &v.Used.Left
		fmt.Fprintf(t, "%s\t%s\t%s\t%g\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", graphic(v.Name, ""), graphic(v.Tenant, ""), graphic(v.Band, ""), v.Share, graphic(models, ""),
			ofLimit(v.Used.Running, l.Requests), usedOf(left.RequestsPerMinute, l.RequestsPerMinute), usedOf(left.TokensPerMinute, l.TokensPerMinute),
			ofLimit(v.Used.TokensToday, l.TokensPerDay), v.Used.Day, limitOrDash(l.PromptTokens), limitOrDash(l.OutputTokens))
	}
	if len(callers) == 0 {
		fmt.Fprintln(t, "(none)")
	}
	return t.Flush()
}

// ofLimit writes what is used of a limit, where 0 is none.
func ofLimit(used, limit int64) string {
	return strconv.FormatInt(used, 10) + "/" + limitOrDash(limit)
}

// usedOf is ofLimit for what is left.
func usedOf(left *int64, limit int64) string {
	if left == nil {
		return "-"
	}
	return ofLimit(limit-*left, limit)
}

func limitOrDash(n int64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}

type limitsSet struct {
	adminFlag
	Name string `arg:"" help:"The caller: the name of a key, certificate:NAME, ISSUER:TENANT, or ISSUER:* for tenants without an entry of their own."`

	Models            string `env:"-" placeholder:"NAME,..." help:"Models that the caller may use, or all."`
	Band              string `env:"-" placeholder:"NAME" help:"Band of the tenant."`
	Share             string `env:"-" placeholder:"N" help:"Weight among the tenants of the band, from 1."`
	MaxRequests       string `env:"-" placeholder:"N" help:"Largest number of requests at once, or none."`
	RequestsPerMinute string `env:"-" placeholder:"N" help:"Largest number of requests a minute, or none."`
	TokensPerMinute   string `env:"-" placeholder:"N" help:"Largest number of tokens a minute, of prompts and answers, or none."`
	TokensPerDay      string `env:"-" placeholder:"N" help:"Largest number of tokens a day (UTC), or none."`
	MaxPromptTokens   string `env:"-" placeholder:"N" help:"Longest prompt, in tokens, or none."`
	MaxOutputTokens   string `env:"-" placeholder:"N" help:"Longest answer, in tokens, or none."`
}

// Help implements kong's extended help.
func (limitsSet) Help() string {
	return `The gateway writes the limits into its keys file and applies them at once: the file always has what is in force, and a restart keeps it. Requests under way go on, and what is used of the day stays used. Fields that are not named stay as they are.

Examples:
  weir limits set alice --tokens-per-day 500000
  weir limits set alice --tokens-per-minute none --models llama,qwen
  weir limits set login:research --share 5 --band interactive`
}

// fields are the flags that were given.
func (c *limitsSet) fields() (fields []keyfile.Field) {
	for _, f := range []struct{ name, value, without string }{
		{"models", c.Models, "all"}, {"band", c.Band, ""}, {"share", c.Share, ""},
		{"max_requests", c.MaxRequests, "none"}, {"requests_per_minute", c.RequestsPerMinute, "none"}, {"tokens_per_minute", c.TokensPerMinute, "none"},
		{"tokens_per_day", c.TokensPerDay, "none"}, {"max_prompt_tokens", c.MaxPromptTokens, "none"}, {"max_output_tokens", c.MaxOutputTokens, "none"},
	} {
		switch {
		case f.value == "":
		case f.value == f.without:
			fields = append(fields, keyfile.Field{Name: f.name})
		case f.name == "models":
			fields = append(fields, keyfile.Field{Name: f.name, Values: words([]string{f.value})})
		default:
			fields = append(fields, keyfile.Field{Name: f.name, Values: []string{f.value}})
		}
	}
	return fields
}

// Run implements the command.
func (c *limitsSet) Run(s *streams) error {
	fields := c.fields()
	if len(fields) == 0 {
		return wrongf("nothing to set; name a limit, such as --tokens-per-day 500000 or --max-requests none")
	}
	body := map[string]any{}
	for _, f := range fields {
		if err := keyfile.CheckFields([]keyfile.Field{f}); err != nil {
			flag := strings.ReplaceAll(f.Name, "_", "-")
			return wrongf("--%s %s: %s", flag, strings.Join(f.Values, ","), strings.TrimPrefix(err.Error(), f.Name+": "))
		}
		switch {
		case len(f.Values) == 0:
			body[f.Name] = nil
		case f.Name == "models":
			body[f.Name] = f.Values
		case f.Name == "band":
			body[f.Name] = f.Values[0]
		default:
			body[f.Name] = jsontext.Value(f.Values[0])
		}
	}
	data, err := json.Marshal(body, json.Deterministic(true))
	if err != nil {
		return wrongf("a number is not written as JSON writes it: %w", err)
	}
	answer, err := c.ask(http.MethodPatch, "/admin/limits/"+url.PathEscape(c.Name), http.Header{"Content-Type": {"application/json"}}, strings.NewReader(string(data)))
	if err != nil {
		return err
	}
	var out limitsOutcome
	if err := json.Unmarshal(answer, &out); err != nil {
		return c.noAdmin()
	}
	for _, step := range out.Steps {
		sayLine(s.out, "%s", step)
	}
	if len(out.Steps) == 0 {
		sayLine(s.out, "nothing to change")
	}
	return printLimits(s.out, []limitsView{out.Caller})
}
