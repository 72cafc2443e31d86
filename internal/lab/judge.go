//go:build linux

package lab

import (
	"fmt"

	"weir/internal/lab/client"
)

// Judge returns what makes a run fail: a cell that could not be measured, a
// gateway that lost or confused a token and is no peer, a clock that was set, and
// a control that did not fail, by which the benchmark would be blind.
func Judge(results []*client.Result) []string {
	var problems []string
	controls := map[string]bool{} // seen, and whether it failed as it must
	overload := false
	for _, r := range results {
		if r.Failed != "" {
			problems = append(problems, fmt.Sprintf("%s, %s: not measured: %s", r.Load, r.Gateway, r.Failed))
			continue
		}
		if r.Negative > 0 {
			problems = append(problems, fmt.Sprintf("%s, %s: %d tokens arrived before they were sent: the clock was set", r.Load, r.Gateway, r.Negative))
		}
		switch r.Gateway {
		case LatestWins:
			controls[LatestWins] = controls[LatestWins] || r.Lost > 0
		case OneWrite:
			overload = overload || overloads(r.Load)
			controls[OneWrite] = controls[OneWrite] || overloads(r.Load) && Behind(r, sameCell(results, r.Load, Plane))
		}
		if r.Gateway != LatestWins && !r.Peer && (r.Lost > 0 || r.Wrong > 0) {
			problems = append(problems, fmt.Sprintf("%s, %s: %d tokens lost in %d streams that ended as complete, %d repeated or out of order",
				r.Load, r.Gateway, r.Lost, r.LostStreams, r.Wrong))
		}
	}
	if failed, ran := controls[LatestWins]; ran && !failed {
		problems = append(problems, "the control latest-wins lost no token: the benchmark cannot see a loss")
	}
	if failed, ran := controls[OneWrite]; ran && overload && !failed {
		problems = append(problems, "the control one-write-per-token is no worse than weir's plane: the loads do not overload it")
	}
	return problems
}

// overloads reports whether a load is more than can be written token by token on
// any machine that two cores make. The founding load is not: they have become
// faster.
func overloads(load string) bool { return load == "flat out" }

// sameCell finds another gateway's first result under a load.
func sameCell(results []*client.Result, load, gateway string) *client.Result {
	for _, r := range results {
		if r.Load == load && r.Gateway == gateway && r.Failed == "" {
			return r
		}
	}
	return nil
}

// Behind reports whether a control is clearly behind weir under the same load: it
// delivered less than 97 % of weir's tokens, or with twice its p99. Without a
// result of weir's it is not.
func Behind(control, weir *client.Result) bool {
	return weir != nil && (control.Delivered < 0.97*weir.Delivered || control.P99 > 2*weir.P99)
}
