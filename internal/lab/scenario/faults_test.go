//go:build linux

package scenario

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/internal/load"
)

// faultedCells are those of a run in which all is as it must be.
func faultedCells() []Faulted {
	return []Faulted{
		{Kind: "plane", Fault: "killed", Requests: 2000, Broken: 60, Avoided: 0.1, Out: 0.1, Back: 1.2, Share: 5},
		{Kind: "openai", Fault: "stopped", Requests: 9000, Waited: 3, Avoided: 1.1, Out: 21, Knowable: 20, Back: 0.1, Share: 5},
		{Kind: "openai", Fault: "fails half", Requests: 9000, Avoided: 1.1, Out: -1, Knowable: -1, Back: 0.5, Share: 0.5},
		{Kind: "openai", Fault: "slow", Requests: 9000, Waited: 50, Lives: true, Avoided: 3, Stopped: true, Out: 25, Knowable: 20, Late: 4, Back: 10.9, Answers: 6, Share: -1},
		{Kind: "vllm-pull", Fault: "prefill killed after", Requests: 600, Broken: 3, Pair: true, Knowable: 3, Avoided: 0.5, Out: 0.6, Back: 2.4, Share: -1, Rests: 0.1},
		{Kind: "vllm-pull", Fault: "stuck", Requests: 600, Waited: 50, Pair: true, Between: true, Knowable: 3, Avoided: 1.5, Out: -1, Back: -1, Share: -1, Rests: 2},
		{Kind: "vllm-pull", Fault: "stuck for ever", Requests: 100, Waited: 50, Refused: 3, Pair: true, Control: true, Overdue: 20, Knowable: 3, Out: -1, Back: -1, Share: -1, Rests: -1, Left: "b: 3 running"},
		{Kind: "openai", Fault: "long steps", Requests: 900, Waited: 50, Lives: true, Avoided: 3, Out: -1, Knowable: -1, Back: -1, Share: -1},
	}
}

func TestJudgeFaults(t *testing.T) {
	for _, c := range []struct {
		name           string
		change         func(cells []Faulted)
		failed, missed string // part of the one such verdict; empty: none
	}{
		{"as it must be", func([]Faulted) {}, "", ""},
		{"loses", func(cells []Faulted) { cells[1].Lost = 2 }, "tokens lost: 2 (openai, stopped: 2)", ""},
		{"repeats", func(cells []Faulted) { cells[0].Wrong = 1 }, "tokens repeated or wrong: 1 (plane, killed: 1)", ""},
		{"takes out what lives", func(cells []Faulted) { cells[3].WronglyOut = 1 }, "engines wrongly out: 1 (openai, slow: 1)", ""},
		{"fails requests", func(cells []Faulted) { cells[0].Refused, cells[0].FirstError = 7, "status: 500" }, "could serve them: 7 (plane, killed: 7, such as status: 500)", ""},
		{"has requests wait", func(cells []Faulted) { cells[1].Waited = 4 }, "", "waited for it: 1 (openai, stopped: 4)"},
		{"is late", func(cells []Faulted) { cells[1].Out = 22.5 }, "", "or never: 1 (openai, stopped: 22.5 s)"},
		{"is late by its own fault", func(cells []Faulted) { cells[3].Late = 2 }, "", "or never: 1 (openai, slow: 25.0 s)"},
		{"does not see a stop beside it", func(cells []Faulted) { cells[3].Out = -1 }, "", "or never: 1 (openai, slow: -)"},
		{"never knows", func(cells []Faulted) { cells[0].Out = -1 }, "", "or never: 1 (plane, killed: -)"},
		{"does not come back", func(cells []Faulted) { cells[0].Back = -1 }, "", "of recovering: 1 (plane, killed: -)"},
		{"is only avoided and does not come back", func(cells []Faulted) { cells[2].Back = 9 }, "", "of recovering: 1 (openai, fails half: 9.0 s)"},
		{"takes an engine out for its partner", func(cells []Faulted) { cells[4].WronglyOut = 1 }, "engines wrongly out: 1 (vllm-pull, prefill killed after: 1)", ""},
		{"leaves a client of a pair waiting", func(cells []Faulted) { cells[4].Overdue = 2 }, "", "could be known: 2 (vllm-pull, prefill killed after: 2, the longest"},
		{"leaves something in an engine", func(cells []Faulted) { cells[5].Rests, cells[5].Left = -1, "c: 1 kept" }, "left in an engine: 1 (vllm-pull, stuck: c: 1 kept)", ""},
		{"has a control that is not late", func(cells []Faulted) { cells[6].Overdue = 0 }, "nothing was late: 1 (vllm-pull, stuck for ever", ""},
		{"was not measured", func(cells []Faulted) { cells[2].NotMeasured = "no port" }, "openai, fails half was not measured: no port", ""},
	} {
		cells := faultedCells()
		c.change(cells)
		failed, missed := outcomes(&Report{Verdicts: judgeFaults(cells)})
		wantOne(t, c.name, "failed", failed, c.failed)
		wantOne(t, c.name, "missed", missed, c.missed)
	}
	if failed, _ := outcomes(&Report{Verdicts: judgeFaults(nil)}); len(failed) != 1 {
		t.Errorf("nothing at all passed: %q", failed)
	}
}

// A request waited for the engine that failed if it began late enough, was there, and had
// no first token for a second. The engine is back with the first request afterwards that it
// answered.
func TestWaited(t *testing.T) {
	timeline := []byte(`{"request_id":"before","arrival_time":9000000000,"ttft":20000000000,"attempts":[{"legs":[{"engine":"a"}]}]}
{"request_id":"too early","arrival_time":11000000000,"ttft":9000000000,"attempts":[{"legs":[{"engine":"a"}]}]}
{"request_id":"waited","arrival_time":12000000000,"ttft":3000000000,"attempts":[{"legs":[{"engine":"a"}]},{"legs":[{"engine":"b"}]}]}
{"request_id":"ended","arrival_time":12000000000,"total_latency":2000000000,"attempts":[{"legs":[{"engine":"a"}]}]}
{"request_id":"elsewhere","arrival_time":12000000000,"ttft":3000000000,"attempts":[{"legs":[{"engine":"b"}]}]}
{"request_id":"quick","arrival_time":12000000000,"ttft":900000000,"attempts":[{"legs":[{"engine":"a"}]}]}
{"request_id":"nowhere","arrival_time":12000000000,"total_latency":10,"attempts":[]}
{"request_id":"after","arrival_time":21000000000,"ttft":3000000000,"attempts":[{"legs":[{"engine":"a"}]}]}
{"request_id":"then","arrival_time":20900000000,"ttft":3000000,"attempts":[{"legs":[{"engine":"b"}]},{"legs":[{"engine":"a"}]}]}
{"request_id":"at the other one","arrival_time":20100000000,"ttft":3000000,"attempts":[{"legs":[{"engine":"a"}]},{"legs":[{"engine":"b"}]}]}
{"request_id":"not answered","arrival_time":20200000000,"total_latency":3000000,"attempts":[{"legs":[{"engine":"a"}]}]}
`)
	w := &watched{x: &Faulted{Back: -1}, from: 10e9, to: 20e9}
	if err := w.waited(timeline); err != nil || w.x.Waited != 2 || w.x.Longest != 9 || w.x.Back != 0.9 {
		t.Errorf("%+v, %v", w.x, err)
	}
	// For a pair: time beyond what its attempts may take.
	w = &watched{x: &Faulted{Back: -1, Pair: true, Knowable: 3}, from: 10e9, to: 20e9}
	timeline = []byte(`{"request_id":"in time","arrival_time":12000000000,"ttft":7900000000,"attempts":[{"legs":[{"engine":"a"},{"engine":"b"}]},{"legs":[{"engine":"c"},{"engine":"b"}]}]}
{"request_id":"late","arrival_time":12000000000,"ttft":5100000000,"attempts":[{"legs":[{"engine":"c"},{"engine":"b"}]}]}
{"request_id":"ended late","arrival_time":12000000000,"total_latency":5100000000,"attempts":[{"legs":[{"engine":"c"},{"engine":"b"}]}]}
{"request_id":"then","arrival_time":20900000000,"ttft":3000000,"attempts":[{"legs":[{"engine":"b"},{"engine":"a"}]}]}
`)
	if err := w.waited(timeline); err != nil || w.x.Overdue != 2 || w.x.Back != 0.9 {
		t.Errorf("%+v, %v", w.x, err)
	}
	if err := w.waited([]byte("{")); err == nil {
		t.Error("a broken timeline was taken")
	}
}

func TestEnded(t *testing.T) {
	w := &watched{}
	for _, s := range []load.Sample{
		{Outcome: load.Complete, Tokens: 60},
		{Outcome: load.Errored, Tokens: 3, Kind: "cut", Detail: "in mid-answer"},
		{Outcome: load.Errored, Kind: "status", Detail: "500"},
		{Outcome: load.Errored, Kind: "status", Detail: "502"},
		{Outcome: load.Unfinished},
	} {
		w.ended(&s)
	}
	if w.refused != 2 || w.broken != 1 || w.first != "status: 500" {
		t.Errorf("%d refused, %d broken, %q", w.refused, w.broken, w.first)
	}
}

// A run's tables are written in place of those of the run before, and nothing else.
func TestWriteMarkdown(t *testing.T) {
	path := filepath.Join(t.TempDir(), "faults.md")
	report := &Report{Faulted: faultedCells(), Verdicts: judgeFaults(faultedCells()), Commit: "0123abc", Streams: 200, Elapsed: 2000, Machine: "a machine", Others: 0.25}
	if err := os.WriteFile(path, []byte("# Faults\n\n"+generatedBegins+"\nold\n"+generatedEnds+"\n\nBy hand.\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Writable(path); err != nil {
			t.Fatal(err)
		}
		if err := report.WriteMarkdown(path); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	if !strings.HasPrefix(text, "# Faults\n\n"+generatedBegins) || !strings.HasSuffix(text, generatedEnds+"\n\nBy hand.\n") || strings.Contains(text, "old") ||
		!strings.Contains(text, "of commit 0123abc, 0001-01-01 00:00 UTC: 8 cells in 2000 s, 200 streams in each; a machine. Other programs took 0.2 CPUs meanwhile.") ||
		strings.Count(text, "| plane | killed | 2000 | 0 | 60 |") != 1 || strings.Count(text, "\n\nPairs:\n\n| kind | fault |") != 1 || strings.Count(text, "| vllm-pull | stuck | 600 |") != 1 || !strings.Contains(text, "- ok: tokens lost: 0\n") {
		t.Error(text)
	}
	// A new file has the tables alone, and a file that lacks an end is left alone.
	fresh := filepath.Join(t.TempDir(), "new.md")
	if err := report.WriteMarkdown(fresh); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(path, []byte(generatedBegins), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := report.WriteMarkdown(path); err == nil {
		t.Error("what has no end was written over")
	}
	if err := Writable(path); err == nil {
		t.Error("what has no end was said to be writable")
	}
	if err := Writable(filepath.Join(path, "none")); err == nil {
		t.Error("what lies in a file was said to be writable")
	}
}

// Each name is there once, so that it can be chosen.
func TestFaultNames(t *testing.T) {
	for _, names := range [][]string{FaultNames(), FaultKinds()} {
		sorted := slices.Compact(slices.Sorted(slices.Values(names)))
		if len(sorted) != len(names) || len(names) == 0 {
			t.Errorf("%q", names)
		}
	}
}

// An engine owes nothing before it has a request, and its work explains its silence.
func TestOwes(t *testing.T) {
	w := &watched{x: &Faulted{Knowable: 26, Answers: 6}}
	has := func(requests int, booked float64) (e engineNow) {
		e.Health = &struct {
			State    string
			Why      string
			Takes    string
			Requests int
		}{Requests: requests}
		e.Books.Booked = booked
		return e
	}
	for _, c := range []struct {
		now  engineNow
		ago  time.Duration
		want float64
	}{{has(0, 0), time.Second, 27}, {has(0, 0), 4 * time.Second, 30}, {has(5, 0), 9 * time.Second, 30}, {has(5, 5000), 10 * time.Second, 40}, {has(0, 0), 20 * time.Second, 40}} {
		w.owes(c.now, time.Now().Add(-c.ago))
		if d := w.x.Knowable - c.want; d < 0 || d > 2 {
			t.Errorf("%v after it stopped, with %d requests: knowable after %.1f s, want %v", c.ago, c.now.Health.Requests, w.x.Knowable, c.want)
		}
	}
}
