//go:build linux

package lab

import (
	"strings"
	"testing"

	"weir/internal/lab/client"
)

func TestJudgeRun(t *testing.T) {
	plane := &client.Result{Load: "flat out", Gateway: Plane, Delivered: 100, P99: 10}
	lossy := &client.Result{Load: "flat out", Gateway: LatestWins, Lost: 5}
	late := &client.Result{Load: "flat out", Gateway: OneWrite, Delivered: 80, P99: 900}
	for _, c := range []struct {
		name    string
		results []*client.Result
		want    string // part of the one problem; empty: none
	}{
		{"as it must be", []*client.Result{plane, lossy, late}, ""},
		{"a gateway loses", []*client.Result{plane, lossy, late, {Load: "burst", Gateway: Nginx, Lost: 1}}, "1 tokens lost"},
		{"a gateway repeats", []*client.Result{plane, lossy, late, {Load: "burst", Gateway: Relay, Wrong: 2}}, "2 repeated"},
		{"the control loses nothing", []*client.Result{plane, {Load: "flat out", Gateway: LatestWins}, late}, "cannot see a loss"},
		{"the control keeps up", []*client.Result{plane, lossy, {Load: "flat out", Gateway: OneWrite, Delivered: 100, P99: 11}}, "is no worse"},
		{"not measured", []*client.Result{plane, {Load: "flat out", Gateway: Nginx, Failed: "nginx is not installed"}}, "not installed"},
		{"the clock was set", []*client.Result{{Load: "burst", Gateway: Plane, Negative: 1}}, "the clock was set"},
		{"no overload was run", []*client.Result{{Load: "spread", Gateway: Plane}, {Load: "spread", Gateway: OneWrite}}, ""},
	} {
		got := Judge(c.results)
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
