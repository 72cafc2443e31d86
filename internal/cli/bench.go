package cli

import (
	"io"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/load"
	"weir/internal/workload"
	"weir/models"
)

type benchCommand struct {
	URL          string            `arg:"" optional:"" help:"Base URL of an OpenAI-compatible server, for example http://127.0.0.1:8000."`
	Scenario     string            `placeholder:"NAME" help:"Instead of loading a server, repeat a founding incident on this machine, with weir and with what failed then: backlog, loss or starvation. Takes --duration (1m), --streams and the --json flags."`
	Streams      int               `placeholder:"N" help:"Streams at once in a scenario (4096; of starvation the large prompts at once, 920)."`
	API          string            `default:"openai-chat" enum:"openai-chat,openai-completions" help:"What to call: ${enum} (${default})."`
	Model        string            `placeholder:"NAME" help:"Model to ask for; the server's first unless given."`
	Concurrency  int               `placeholder:"N" help:"Closed loop: requests in flight at once."`
	Rate         float64           `placeholder:"R" help:"Open loop: requests per second, however many are in flight."`
	Arrival      string            `default:"poisson" enum:"poisson,constant" help:"Arrivals of the open loop: ${enum} (${default})."`
	Requests     int               `placeholder:"N" help:"Requests to send in all."`
	Duration     time.Duration     `placeholder:"D" help:"Time in which requests are begun."`
	Timeout      time.Duration     `default:"10m" help:"Bound of one request (${default})."`
	InputTokens  int               `default:"32" placeholder:"N" help:"Length of the prompts, approximate (${default})."`
	OutputTokens int               `default:"64" placeholder:"N" help:"max_tokens of each request (${default})."`
	Seed         uint64            `default:"1" help:"Of prompts and arrivals (${default})."`
	NoStream     bool              `help:"Ask for whole responses instead of streams."`
	Verify       string            `default:"auto" enum:"auto,on,off" help:"Check the text word by word, which only weir's simulated engines allow; auto does it for model weir-sim (${default})."`
	Field        map[string]string `mapsep:";" placeholder:"NAME=JSON" help:"A further field of each request, for example --field ignore_eos=true."`
	Header       map[string]string `mapsep:";" placeholder:"NAME=VALUE" help:"A header of each request."`
	HangUpAfter  int               `placeholder:"N" help:"Hang up after N tokens of each stream."`
	ReadRate     int               `placeholder:"BYTES" help:"Read each stream no faster than this many bytes per second."`
	JSON         bool              `help:"Print the report as one JSON object."`
	JSONFile     string            `type:"path" placeholder:"FILE" help:"Write the report to a file as JSON too."`
}

// Help implements kong's extended help.
func (benchCommand) Help() string {
	return `Examples:
  weir bench http://127.0.0.1:8000 --concurrency 512 --requests 2048 --field ignore_eos=true
  weir bench http://127.0.0.1:8000 --rate 50 --duration 30s --output-tokens 128
  weir bench http://127.0.0.1:30000 --model my-model --verify off --concurrency 8 --requests 64 --json
  weir bench --scenario backlog                    4096 streams step at one instant; exits 1 unless weir keeps
                                                   up, loses nothing, and the control falls behind
  weir bench --scenario loss --duration 30s        batches land before readers wake; the control must lose tokens
  weir bench --scenario starvation                 prompts of 40k tokens beside small streams; the control
                                                   tokenizes on the request's goroutine and must starve I/O
  weir bench --scenario backlog --streams 1024 --json-file backlog.json`
}

// scenarioFlags are those that a scenario takes; its load is its own.
var scenarioFlags = []string{"scenario", "duration", "streams", "json", "json-file"}

// check refuses flags that do not go together.
func (c *benchCommand) check(k *kong.Context) error {
	if c.Scenario == "" {
		switch {
		case c.URL == "":
			return wrongf("say what to load: the url of a server, or --scenario NAME")
		case c.Streams != 0:
			return wrongf("--streams belongs to --scenario; against a server give --concurrency")
		}
		return nil
	}
	if c.URL != "" {
		return wrongf("--scenario starts engines and gateways of its own: drop the url %s", c.URL)
	}
	for _, p := range k.Path {
		if p.Flag != nil && !slices.Contains(scenarioFlags, p.Flag.Name) && slices.Contains(benchFlags(k), p.Flag) {
			return wrongf("--scenario has a load of its own: drop --%s (it takes --%s)", p.Flag.Name, strings.Join(scenarioFlags[1:], ", --"))
		}
	}
	return nil
}

// benchFlags lists the command's flags.
func benchFlags(k *kong.Context) []*kong.Flag {
	if n := k.Selected(); n != nil {
		return n.Flags
	}
	return nil
}

// Run implements the command. It exits 1 when any stream was not complete.
func (c *benchCommand) Run(k *kong.Context, s *streams) error {
	if err := c.check(k); err != nil {
		return err
	}
	if c.Scenario != "" {
		return c.runScenario(s)
	}
	ctx, _, stop := interrupt()
	defer stop()
	plan := load.Plan{
		URL: c.URL, API: load.API(c.API), Model: c.Model, Concurrency: c.Concurrency, Rate: c.Rate, Arrival: workload.Arrival(c.Arrival),
		Requests: c.Requests, Duration: c.Duration, Timeout: c.Timeout, InputTokens: c.InputTokens, OutputTokens: c.OutputTokens,
		Seed: c.Seed, NoStream: c.NoStream, Header: c.Header, HangUpAfter: c.HangUpAfter, ReadRate: c.ReadRate,
		Body: map[string]any{},
	}
	if c.Rate > 0 && c.Concurrency > 0 {
		return wrongf("--rate is an open loop and --concurrency a closed one; give one of them")
	}
	if c.Requests == 0 && c.Duration == 0 {
		return wrongf("say how much to send: --requests N or --duration D")
	}
	for name, text := range c.Field {
		var v jsontext.Value // as it is: a number may be larger than a float64 holds
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			return wrongf("--field %s=%s: the value must be JSON (strings in quotes): %w", name, text, err)
		}
		plan.Body[name] = v
	}
	if err := c.verify(&plan); err != nil {
		return err
	}
	code, err := load.Bench(ctx, plan, load.Output{JSON: c.JSON, JSONFile: c.JSONFile}, io.Writer(s.out))
	if err != nil {
		return err
	}
	if code != 0 {
		return exitStatus(code)
	}
	return nil
}

// verify gives the plan the simulated engine's word list where the server's
// text follows it.
func (c *benchCommand) verify(plan *load.Plan) error {
	if c.Verify == "off" || c.Verify == "auto" && c.Model != "" && c.Model != models.SimName {
		return nil
	}
	folders, err := loadModels(nil)
	if err != nil {
		return err
	}
	plan.Verify, err = folders[models.SimName].Words()
	if err == nil && c.Model == "" {
		plan.Model = models.SimName
	}
	return err
}
