//go:build linux

package scenario

import (
	"fmt"

	"weir/internal/lab"
	"weir/internal/lab/cell"
	"weir/internal/lab/client"
)

// Outcome is how a requirement fared.
type Outcome string

const (
	// OK is a requirement that held.
	OK Outcome = "ok"
	// Failed is one without which the run shows nothing: a token of weir's lost,
	// a control that did not fail. The run fails.
	Failed Outcome = "FAIL"
	// Missed is a figure that was not reached here. Figures depend on the
	// machine and on what else runs on it, so the run does not fail.
	Missed Outcome = "missed"
)

// Verdict is a requirement, whether it was met, and the evidence.
type Verdict struct {
	Outcome Outcome `json:"outcome"`
	Text    string  `json:"text"`
}

func verdict(held bool, otherwise Outcome, format string, args ...any) Verdict {
	v := Verdict{Outcome: OK, Text: fmt.Sprintf(format, args...)}
	if !held {
		v.Outcome = otherwise
	}
	return v
}

// failed adds why a scenario could not be run.
func (r *Report) failed(format string, args ...any) *Report {
	r.Verdicts = append(r.Verdicts, verdict(false, Failed, format, args...))
	return r
}

// figure is a verdict that may be missed.
func figure(reached bool, format string, args ...any) Verdict {
	return verdict(reached, Missed, format, args...)
}

// intact wants every gateway of weir's that ran to have been measured, and to
// have lost, repeated and exchanged no token, under any load.
func (r *runner) intact() []Verdict {
	var verdicts []Verdict
	for _, gateway := range []string{lab.Plane, lab.Relay} {
		measured, tokens, lost, wrong, broken, streams := false, 0, 0, 0, 0, 0
		why := ""
		for _, x := range r.results {
			if x.Gateway != gateway {
				continue
			}
			if x.Failed != "" {
				verdicts = append(verdicts, verdict(false, Failed, "%s was not measured under the load %q: %s", gateway, x.Load, x.Failed))
				continue
			}
			measured = true
			tokens += x.Received
			lost, wrong = lost+x.Lost, wrong+x.Wrong
			broken, streams = broken+x.Broken(), streams+x.Streams
			if why == "" {
				why = x.FirstError
			}
		}
		if !measured {
			continue
		}
		text := fmt.Sprintf("%s loses no token: %d lost, %d repeated or out of order, of %d received", gateway, lost, wrong, tokens)
		verdicts = append(verdicts, verdict(lost == 0 && wrong == 0 && tokens > 0, Failed, "%s", text))
		if broken > 0 {
			verdicts = append(verdicts, figure(false, "%s ends no stream by error: %d of %d (%.3f %%), the first: %.200s", gateway, broken, streams, 100*float64(broken)/float64(streams), why))
		}
	}
	for _, x := range r.results {
		if x.Negative > 0 {
			verdicts = append(verdicts, verdict(false, Failed, "the clock was set during the run: %d tokens of %s arrived before they were sent", x.Negative, x.Gateway))
		}
	}
	return verdicts
}

// control requires that a control failed under at least one load, and reports what it did
// under the heaviest.
func (r *runner) control(gateway, must string, failed func(cell.Load) bool, what func(*client.Result) string) Verdict {
	text := fmt.Sprintf("the control %s %s", gateway, must)
	var last, worst *client.Result
	for _, x := range r.results {
		if x.Gateway != gateway {
			continue
		}
		if x.Failed != "" {
			return verdict(false, Failed, "%s: not measured: %s", text, x.Failed)
		}
		last = x
		if failed(r.loads[x.Load]) {
			worst = x
		}
	}
	switch {
	case worst != nil:
		return verdict(true, Failed, "%s: %s at %s tokens/s offered", text, what(worst), thousands(offered(r.loads[worst.Load])))
	case last == nil:
		return verdict(false, Failed, "%s: it was not run", text)
	}
	return verdict(false, Failed, "%s: it did not, even at %s tokens/s offered (%s), so this run shows nothing; give it more --streams",
		text, thousands(offered(r.loads[last.Load])), what(last))
}
