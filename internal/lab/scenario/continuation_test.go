//go:build linux

package scenario

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/internal/load"
)

// continuedRows are those of a run in which all is as it must be.
func continuedRows() []Continued {
	return []Continued{
		{Kind: "plane", Gateway: goingOn, Streams: 1000, Complete: 1000, Continued: 333, Seeded: 50, SeededBroken: 16, Cap: 32, Prefill: 0.06, Predicted: 1.16, Gap99: 1.1, Prefills: 32, Turns: 31},
		{Kind: "plane", Gateway: endingIt, Streams: 1000, Complete: 667, Broken: 333, Seeded: 50, SeededOtherwise: 16, Cap: 32, Prefills: -1},
	}
}

func TestJudgeContinuation(t *testing.T) {
	for _, c := range []struct {
		name           string
		change         func(rows []Continued)
		failed, missed string // part of the one such verdict; empty: none
	}{
		{"as it must be", func([]Continued) {}, "", ""},
		{"loses", func(rows []Continued) { rows[0].Lost = 2 }, "plane, weir: no token is lost or comes twice: 2 lost", ""},
		{"repeats", func(rows []Continued) { rows[0].Wrong = 1 }, "0 lost, 1 streams with repeated", ""},
		{"loses when it does not continue", func(rows []Continued) { rows[1].Lost = 2 }, "plane, continuation off: no token is lost", ""},
		{"breaks one", func(rows []Continued) {
			rows[0].Complete, rows[0].Broken, rows[0].FirstError = 999, 1, "error_event: gone"
		}, "999 of 1000 are whole, 333 went on; ended by error: 1, such as error_event: gone", ""},
		{"continues none", func(rows []Continued) { rows[0].Continued = 0 }, "1000 of 1000 are whole, 0 went on", ""},
		{"ends a seed without a word", func(rows []Continued) { rows[0].SeededOtherwise = 3 }, "16 of 50, 3 in another way", ""},
		{"ends no seed", func(rows []Continued) { rows[0].SeededBroken = 0 }, "0 of 50, 0 in another way", ""},
		{"continues a seed", func(rows []Continued) { rows[0].Unasked = 1 }, "0 in another way, 1 went on", ""},
		{"exceeds the cap by the engines' stamps", func(rows []Continued) { rows[0].Prefills = 33 }, "33 by the engines' stamps, 31 by", ""},
		{"exceeds the cap by its metric", func(rows []Continued) { rows[0].Turns, rows[0].Prefills = 40, -1 }, "at once: 40 by the gateway's metric", ""},
		{"takes too long", func(rows []Continued) { rows[0].Gap99 = 1.161 }, "", "ceil(333 / 32) x 60 ms + 500 ms = 1.160 s: 1.161 s"},
		{"has a control that breaks nothing", func(rows []Continued) { rows[1].Broken = 0 }, "breaks streams: 0 of 1000, 0 went on; so this run shows nothing", ""},
		{"has a control that continues", func(rows []Continued) { rows[1].Continued = 3 }, "breaks streams: 333 of 1000, 3 went on", ""},
		{"has no control", func(rows []Continued) { rows[1].Gateway = goingOn; rows[1] = rows[0] }, "plane: the control was not run", ""},
		{"was not measured", func(rows []Continued) { rows[0].NotMeasured = "no port" }, "plane, weir was not measured: no port", ""},
	} {
		rows := continuedRows()
		c.change(rows)
		failed, missed := outcomes(&Report{Verdicts: judgeContinuation(rows)})
		wantOne(t, c.name, "failed", failed, c.failed)
		wantOne(t, c.name, "missed", missed, c.missed)
	}
	if failed, _ := outcomes(&Report{Verdicts: judgeContinuation(nil)}); len(failed) != 1 {
		t.Errorf("nothing at all passed: %q", failed)
	}
}

// A stream was continued where an attempt says so, and its prompt is computed at the next
// attempt's engine until that stamps the first token.
func TestWentOn(t *testing.T) {
	timeline := `{"request_id":"plain-0","attempts":[{"continued":true,"legs":[{"handed_time":1,"server_first_token_time":5}]},{"legs":[{"handed_time":100,"server_first_token_time":160}]}]}
{"request_id":"plain-1","attempts":[{"continued":true,"legs":[{"handed_time":1,"server_first_token_time":5}]},{"legs":[{"handed_time":110,"server_first_token_time":150}]}]}
{"request_id":"plain-2","attempts":[{"continued":true,"legs":[{"handed_time":1,"server_first_token_time":5}]},{"legs":[{"handed_time":150,"server_first_token_time":190}]}]}
{"request_id":"plain-3","attempts":[{"legs":[{"handed_time":1,"server_first_token_time":500}]}]}
{"request_id":"plain-4","attempts":[{"legs":[{"handed_time":1,"server_first_token_time":5}]},{"legs":[{"handed_time":2,"server_first_token_time":500}]}]}
{"request_id":"seeded-0","attempts":[{"legs":[{"handed_time":1,"server_first_token_time":5}]}]}
{"request_id":"seeded-1","attempts":[{"continued":true,"legs":[{"handed_time":1,"server_first_token_time":5}]}]}
`
	gaps := map[string]float64{"plain-0": 0.3, "plain-1": 0.2, "plain-2": 0.9, "plain-3": 0.04}
	x := Continued{Cap: 3, Prefill: 0.1}
	if err := x.wentOn([]byte(timeline), gaps); err != nil || x.Continued != 4 || x.Unasked != 1 || x.Prefills != 2 || x.Gap50 != 0.3 || x.Gap != 0.9 || x.Others99 != 0.04 || x.Predicted != 0.7 {
		t.Errorf("%+v, %v", x, err)
	}
	// An engine that stamps nothing shows nothing of its prefills.
	x = Continued{Cap: 3}
	if err := x.wentOn([]byte(strings.ReplaceAll(timeline, "server_first_token_time", "x")), gaps); err != nil || x.Prefills != -1 || x.Continued != 4 {
		t.Errorf("%+v, %v", x, err)
	}
	if err := x.wentOn([]byte("{"), nil); err == nil {
		t.Error("a broken timeline was taken")
	}
}

// A gap counts that ended after the engine was killed, of a stream that is whole; and an error
// counts that says that the seed forbids it.
func TestGaps(t *testing.T) {
	g := gaps{of: map[string]float64{}}
	g.take(&load.Sample{RequestID: "before it was killed", Chunks: []int64{1e9, 9e9}})
	g.killed.Store(10e9)
	for _, s := range []load.Sample{
		{RequestID: "spans", Chunks: []int64{1e9, 5e9, 9e9, 11e9, 12e9}},
		{RequestID: "ended", Chunks: []int64{1e9, 9e9}},
		{RequestID: "broken", Chunks: []int64{1e9, 19e9}, Outcome: load.Errored},
	} {
		g.take(&s)
	}
	if len(g.of) != 1 || g.of["spans"] != 2 {
		t.Errorf("%v", g.of)
	}
	for _, s := range []load.Sample{
		{Outcome: load.Complete},
		{Outcome: load.Errored, Kind: load.KindErrorEvent, Detail: "the connection ended; " + mayNotGoOn + ", and more"},
		{Outcome: load.Errored, Kind: load.KindErrorEvent, Detail: "the connection ended"},
		{Outcome: load.Errored, Kind: load.KindCut, Detail: mayNotGoOn},
	} {
		g.takeSeeded(&s)
	}
	if g.refused != 1 {
		t.Errorf("%d", g.refused)
	}
}

// Both tables have a row for what was measured, and the kinds are those whose ids weir has.
func TestContinuedReport(t *testing.T) {
	var b bytes.Buffer
	report := &Report{Scenario: "continuation", Continued: continuedRows(), Verdicts: judgeContinuation(continuedRows())}
	if err := report.Text(&b); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"\nplane, weir ", "\nplane, continuation off ", " 16/50 ", " 1.160 "} {
		if !strings.Contains(b.String(), part) {
			t.Errorf("no %q in\n%s", part, b.String())
		}
	}
	if got := ContinuationKinds(); !slices.Equal(got, []string{"plane", "vllm-ids", "sglang"}) {
		t.Errorf("%q", got)
	}
}

func TestContinuationOptions(t *testing.T) {
	s, err := Find("continuation")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		o    Options
		want string // part of the error; empty: there is none
	}{
		{Options{}, ""},
		{Options{Kinds: []string{"sglang", "plane"}, Duration: 14 * time.Second}, ""},
		{Options{Kinds: []string{"sglang", "plane"}, Duration: 13 * time.Second}, "--duration: 13s is too short for streams to be in the midst of their answers; give at least 14s"},
		{Options{Duration: 6 * time.Second}, "give at least 7s"},
		{Options{Duration: 7 * time.Second}, ""},
		{Options{Streams: continuationMost + 1}, "--streams: 4001 streams are more"},
		{Options{Kinds: []string{"openai"}}, `--kind: unknown: "openai"; there are plane, vllm-ids, sglang`},
		{Options{Faults: []string{"killed"}}, "--fault: only weir scenario faults and weir scenario blame have it"},
	} {
		err := c.o.check(s)
		if got := fmt.Sprint(err); (err == nil) != (c.want == "") || !strings.Contains(got, c.want) && c.want != "" {
			t.Errorf("%+v: %v, want %q", c.o, err, c.want)
		}
	}
}
