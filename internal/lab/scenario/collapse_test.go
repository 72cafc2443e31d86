//go:build linux

package scenario

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"weir/internal/lab"
	"weir/internal/load"
)

// collapsedRows are those of a run in which all is as it must be.
func collapsedRows() []Collapsed {
	return []Collapsed{
		{Gateway: lab.Plane, Prompts: 38, Capacity: 38.5, TTFT50: 23, Ready: 2, Engines: 2},
		{Gateway: loopControl, Prompts: 1, Capacity: 38.5, Ready: 0, Engines: 2, Timeouts: 900, Errors: 9000},
	}
}

func TestJudgeCollapse(t *testing.T) {
	for _, c := range []struct {
		name           string
		change         func(rows []Collapsed)
		failed, missed string // part of the one such verdict; empty: none
	}{
		{"as it must be", func([]Collapsed) {}, "", ""},
		{"weir loses", func(rows []Collapsed) { rows[0].LostTokens = 3 }, "loses no token: 3 lost", ""},
		{"weir takes an engine out", func(rows []Collapsed) { rows[0].Ready = 1 }, "takes no live engine out: 1 of 2", ""},
		{"weir is slow", func(rows []Collapsed) { rows[0].Prompts = 36 }, "36.0 prompts/s of 38.5 (93.5 %)", ""},
		{"the control keeps up", func(rows []Collapsed) { rows[1].Prompts = 20 }, "20.0 prompts/s beside weir's 38.0, 0 of 2 live engines left; it did not", ""},
		{"the control keeps its engines", func(rows []Collapsed) { rows[1].Ready = 2 }, "2 of 2 live engines left; it did not", ""},
		{"the control was not measured", func(rows []Collapsed) { rows[1].NotMeasured = "no port" }, "one loop was not measured: no port", ""},
		{"times out", func(rows []Collapsed) { rows[0].Timeouts = 4 }, "", "no acknowledgement times out: 4"},
		{"ends by error", func(rows []Collapsed) { rows[0].Errors, rows[0].FirstError = 4, "status: 503" }, "", "4, such as status: 503"},
	} {
		rows := collapsedRows()
		c.change(rows)
		failed, missed := outcomes(&Report{Verdicts: judgeCollapse(rows, 5*time.Second)})
		if c.name == "the control was not measured" {
			failed = failed[:1] // the other says that it did not fail
		}
		wantOne(t, c.name, "failed", failed, c.failed)
		wantOne(t, c.name, "missed", missed, c.missed)
	}
	if failed, _ := outcomes(&Report{Verdicts: judgeCollapse(nil, time.Second)}); len(failed) != 1 {
		t.Errorf("nothing at all passed: %q", failed)
	}
}

// Only requests that ended whole within the span count.
func TestSeen(t *testing.T) {
	s := seen{span: [2]int64{10e9, 20e9}}
	for _, x := range []load.Sample{
		{Outcome: load.Complete, LastByte: 9e9, PromptTokens: 1},
		{Outcome: load.Complete, Started: 1e9, FirstToken: 11e9, LastByte: 12e9, PromptTokens: 40},
		{Outcome: load.Complete, Started: 2e9, FirstToken: 18e9, LastByte: 19e9, PromptTokens: 42},
		{Outcome: load.Errored, LastByte: 13e9, PromptTokens: 1},
		{Outcome: load.Complete, LastByte: 20e9, PromptTokens: 1},
	} {
		s.take(&x)
	}
	var row Collapsed
	if s.figures(&row, 10*time.Second); row.Prompts != 0.2 || row.Tokens != 41 || row.TTFT50 != 10 || row.TTFT != 16 {
		t.Errorf("%+v", row)
	}
}

func TestCollapsedText(t *testing.T) {
	report := &Report{Scenario: "collapse", Collapsed: collapsedRows()}
	var text, object bytes.Buffer
	if err := errors.Join(report.Text(&text), report.JSON(&object)); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"weir plane       38.0     38.5   98.7   23.0    0.0         0        2         0     0\n", "one loop          1.0"} {
		if !strings.Contains(text.String(), part) {
			t.Errorf("%q is not in\n%s", part, text.String())
		}
	}
	if !strings.Contains(object.String(), `"engines_can_do_per_second": 38.5`) {
		t.Errorf("%s", object.String())
	}
}
