package cli

import (
	"fmt"
	"time"
)

type scenarioCommand struct {
	Name     string        `arg:"" optional:"" help:"backlog, collapse, loss or starvation."`
	Duration time.Duration `default:"1m" placeholder:"D" help:"About how long the run takes (${default}). A load that must be raised until the control fails makes it longer."`
	Streams  int           `placeholder:"N" help:"Streams at once (4096; of starvation and collapse the large prompts at once, 920)."`
	JSON     string        `name:"json" type:"path" placeholder:"FILE" help:"Write the report as one JSON object; - prints it in place of the text."`
	Strict   bool          `help:"Exit with 1 when a figure was missed, too."`
}

// Help implements kong's extended help.
func (scenarioCommand) Help() string {
	return `Repeats a founding incident on this machine, with weir, and beside it, in the same run, with what failed then:

  backlog      thousands of streams step at one instant, faster than a gateway with a
               write per token, which must fall behind, carries them
  collapse     hundreds of prompts of 40k tokens at once on two engines: a gateway that takes
               an engine out at the first acknowledgement that it sees 5 s late must
               collapse, and weir keep both engines and answer what they can do
  loss         batches land before their readers wake: a gateway that keeps the latest
               must lose tokens of streams that end as complete
  starvation   prompts of 40k tokens, a hundred a second and hundreds at once, beside
               small streams on several engines: a gateway that tokenizes where the
               request is, and takes a late acknowledgement for an engine's death, must
               starve its I/O and answer fewer requests than weir

The exit status is 1 when weir loses a token, takes a live engine out or answers less than 95 % of what the engines of collapse can do, when a control does not fail, and when a gateway could not be measured (FAIL). A figure that was not reached is "missed": figures depend on the machine and on what else runs there, so only --strict makes them an error.

Examples:
  weir scenario backlog
  weir scenario collapse
  weir scenario loss --duration 30s
  weir scenario starvation --strict
  weir scenario backlog --streams 1024 --json backlog.json`
}

// Run implements the command.
func (c *scenarioCommand) Run(s *streams) error {
	if c.Name == "" {
		return wrongf("say which: weir scenario backlog, collapse, loss or starvation")
	}
	return c.run(s)
}

// asScenario is the command line in place of the former weir bench --scenario.
func (c *benchCommand) asScenario() string {
	line := "weir scenario " + c.Scenario
	if c.Duration != 0 {
		line += fmt.Sprintf(" --duration %v", c.Duration)
	}
	if c.Streams != 0 {
		line += fmt.Sprintf(" --streams %d", c.Streams)
	}
	if c.JSON != "" {
		line += " --json " + c.JSON
	}
	return line
}
