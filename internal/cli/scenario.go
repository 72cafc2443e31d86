package cli

import (
	"fmt"
	"time"
)

type scenarioCommand struct {
	Name     string        `arg:"" optional:"" help:"backlog, collapse, faults, loss, overload or starvation."`
	Duration time.Duration `default:"1m" placeholder:"D" help:"About how long the run takes (${default}); faults takes as long as they do. A load that must be raised until the control fails makes it longer."`
	Streams  int           `placeholder:"N" help:"Streams at once (4096; of starvation and collapse the large prompts at once, 920; of faults 200, and 48 of its pairs; of overload what the engines run at once, 64)."`
	JSON     string        `name:"json" type:"path" placeholder:"FILE" help:"Write the report as one JSON object; - prints it in place of the text."`
	Fault    []string      `sep:"," placeholder:"NAME,..." help:"Of faults: only these."`
	Kind     []string      `sep:"," placeholder:"NAME,..." help:"Of faults: only these kinds of engines, or of pairs of them."`
	Load     []float64     `sep:"," placeholder:"X,..." help:"Of overload: multiples of what the engines can do (0.5,1,2,5,10)."`
	Write    string        `type:"path" placeholder:"FILE" help:"Of faults: write the tables into a file of Markdown, in place of an earlier run's."`
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
  faults       one of three engines under 200 streams fails in each way (killed, answers
               500, hangs, is cut off), over each kind of wire, and then all live with what
               is no failure: nothing may be lost, repeated or fail that another engine
               could serve, and nothing may be taken out that works; then the same of
               prefill and decode engines, where nothing may be left in either (40 minutes)
  loss         batches land before their readers wake: a gateway that keeps the latest
               must lose tokens of streams that end as complete
  overload     up to ten times what two engines can do is asked of them, by callers who
               wait half a second: with the queue as much must be in time as at the most,
               and with everything pushed less than half of that
  starvation   prompts of 40k tokens, a hundred a second and hundreds at once, beside
               small streams on several engines: a gateway that tokenizes where the
               request is, and takes a late acknowledgement for an engine's death, must
               starve its I/O and answer fewer requests than weir

The exit status is 1 when weir loses a token, takes a live engine out or answers less than 95 % of what the engines of collapse can do, when a request of overload is neither served nor refused, when a control does not fail, and when a gateway could not be measured (FAIL). A figure that was not reached is "missed": figures depend on the machine and on what else runs there, so only --strict makes them an error.

Examples:
  weir scenario backlog
  weir scenario collapse
  weir scenario faults --kind plane,sglang --fault killed,stopped
  weir scenario faults --kind sglang-pair,sglang-openai-pair,vllm-pull,vllm-push
  weir scenario faults --write docs/faults.md
  weir scenario loss --duration 30s
  weir scenario overload --strict --json overload.json
  weir scenario overload --load 1,2,10 --duration 2m
  weir scenario starvation --strict
  weir scenario backlog --streams 1024 --json backlog.json`
}

// Run implements the command.
func (c *scenarioCommand) Run(s *streams) error {
	if c.Name == "" {
		return wrongf("say which: weir scenario backlog, collapse, faults, loss, overload or starvation")
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
