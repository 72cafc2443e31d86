package cli

import (
	"fmt"
	"time"
)

type scenarioCommand struct {
	Name     string        `arg:"" optional:"" help:"backlog, blame, collapse, continuation, faults, loss, overload, replicas, starvation or tenants."`
	Duration time.Duration `group:"The load:" default:"1m" placeholder:"D" help:"Approximate length of the run (${default}). A load that must be raised until the control fails takes longer, and faults takes as long as its cases need."`
	Streams  int           `group:"The load:" placeholder:"N" help:"Number of concurrent streams (4096). For starvation and collapse: concurrent large prompts (920). For continuation and replicas: 1000. For faults: 200, and 48 with pairs. For blame: 200 requests in each cell. For overload and tenants: requests that the engines can run at once (64 and 128)."`
	JSON     string        `group:"Result:" name:"json" type:"path" placeholder:"FILE" help:"Write the report as one JSON object; - prints it instead of the text."`
	Fault    []string      `group:"The load:" sep:"," placeholder:"NAME,..." help:"With faults and blame: run only these faults."`
	Kind     []string      `group:"The load:" sep:"," placeholder:"NAME,..." help:"With faults: run only these kinds of engines or pairs. With blame: each fault with these kinds of engines, streamed and not (by default, twelve cells of all). With continuation: the kinds of engines (plane). With replicas: those behind the gateways that are restarted (plane,vllm,vllm-ids)."`
	Load     []float64     `group:"The load:" sep:"," placeholder:"X,..." help:"With overload: multiples of what the engines can serve (0.5,1,2,5,10)."`
	Write    string        `group:"Only with faults:" type:"path" placeholder:"FILE" help:"With faults: write the tables into this Markdown file, in place of an earlier run's tables."`
	Strict   bool          `group:"Result:" help:"Also exit with 1 when a figure was missed."`
}

// Help implements kong's extended help.
func (scenarioCommand) Help() string {
	return `Everything runs on this machine. The control is a gateway built in the way that failed then, and must fail again.

  backlog      Thousands of streams step at the same instant. The control writes each
               token by itself and must fall behind.
  blame        One fault at a time: a slow client, weir stopped, its queue, the network held,
               and the engine's queue, prefill, output, and a freeze of it. The records
               of at least 99 % of the requests must name that one, and must not name it
               without the fault. Has no control but the run without the fault.
  collapse     Hundreds of prompts of 40k tokens arrive at once at two engines. The control
               takes an engine out when an acknowledgement is 5 s late and must collapse.
               weir must keep both engines and answer what they can serve.
  continuation One of three engines is killed under 1,000 streams. Streams that can be
               continued must go on at the others, without a token lost or repeated and at
               most 32 at a time. Streams with a seed must end with an error that says why.
               The control has --continuation off and must break streams.
  faults       One of three engines fails under 200 streams in each way (killed, answers
               500, hangs, is cut off), over each kind of wire. Nothing may be lost or
               repeated, no request may fail that another engine could serve, and no
               working engine may be taken out. Pairs of prefill and decode engines
               follow, which may keep no leftovers of a request. Takes 40 minutes, and
               has no control.
  loss         Batches arrive before their readers wake. The control keeps only the latest
               and must lose tokens of streams that end as complete.
  overload     Clients that wait half a second ask two engines for up to ten times what
               they can serve. With the queue, as many answers must be in time as at the
               best load. The control sends everything at once and must reach less than half.
  replicas     One, two and four gateways choose among eight engines, of whose capacity 0.8
               is asked. Several must find at least 95 % of the prompt tokens in caches that
               one finds, with a TTFT p99 of at most 1.1 times one's. The control's gateways
               do not know of each other and must miss both. Then one of four is killed,
               which only its own clients may notice, and two are restarted one after the
               other under 1,000 streams: none may be lost where --drain-timeout covers
               them, and each must end with an explicit error where it does not.
  starvation   A hundred prompts of 40k tokens per second arrive beside small streams on
               several engines. The control tokenizes in the request's goroutine and treats
               a late acknowledgement as a dead engine. It must starve its I/O and answer
               fewer requests than weir.
  tenants      A hundred tenants, each with a key, ask two engines for ten times what they
               can serve, and one tenant sends 95 % of it. Each of the others must get at
               least 85 % of its share, with a TTFT p99 of at most twice what it is without
               the greedy tenant. The control has one key for all and must miss both.

The exit status is 1 (FAIL) when weir loses or repeats a token, takes a working engine out, answers less than 95 % of what the engines of collapse can serve, neither serves nor refuses a request of overload or tenants, does not continue a stream that may be continued, or fails a request of replicas that it should serve; when a control does not fail; and when a gateway could not be measured. A figure that was not reached is reported as "missed". Figures depend on the machine and on its other load, so they are an error only with --strict.

Examples:
  weir scenario backlog
  weir scenario blame --fault 'hop held' --kind sglang
  weir scenario collapse
  weir scenario continuation
  weir scenario continuation --kind plane,sglang,vllm-ids --duration 3m
  weir scenario faults --kind plane,sglang --fault killed,stopped
  weir scenario faults --kind sglang-pair,sglang-openai-pair,vllm-pull,vllm-push
  weir scenario faults --write docs/faults.md
  weir scenario loss --duration 30s
  weir scenario overload --strict --json overload.json
  weir scenario overload --load 1,2,10 --duration 2m
  weir scenario replicas --duration 9m --json replicas.json
  weir scenario starvation --strict
  weir scenario tenants --duration 2m
  weir scenario backlog --streams 1024 --json backlog.json`
}

// Run implements the command.
func (c *scenarioCommand) Run(s *streams) error {
	if c.Name == "" {
		return wrongf("no scenario: give one of backlog, blame, collapse, continuation, faults, loss, overload, replicas, starvation, tenants, as in weir scenario loss")
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
