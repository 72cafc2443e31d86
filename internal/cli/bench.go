package cli

import (
	"io"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/load"
	"weir/models"
)

type benchCommand struct {
	URL          string            `arg:"" help:"Base URL of an OpenAI-compatible server, for example http://127.0.0.1:8000."`
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
  weir bench http://127.0.0.1:30000 --model my-model --verify off --concurrency 8 --requests 64 --json`
}

// Run implements the command. It exits 1 when any stream was not complete.
func (c *benchCommand) Run(s *streams) error {
	ctx, _, stop := interrupt()
	defer stop()
	plan := load.Plan{
		URL: c.URL, API: load.API(c.API), Model: c.Model, Concurrency: c.Concurrency, Rate: c.Rate, Arrival: load.Arrival(c.Arrival),
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
