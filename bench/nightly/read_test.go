//go:build linux

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/internal/lab/client"
	"weir/internal/lab/nightly"
	"weir/internal/lab/scenario"
)

func text(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestScenarioFigures(t *testing.T) {
	row := func(load, gateway string, cpu float64) scenario.Row {
		return scenario.Row{Load: load, Gateway: gateway, CPU: cpu, Share: 0.99, P99: 7, KBPerStream: 9.5}
	}
	lossy := row("overload", "weir plane", 1)
	lossy.Lost, lossy.Wrong = 2, 1
	silent := row("founding", "nginx", 0)
	silent.NotMeasured = "there is no nginx"
	control := row("overload", "one-write-per-token", 4)
	control.Lost = 100
	for name, c := range map[string]struct {
		report scenario.Report
		want   []nightly.Figure
	}{
		"rows": {scenario.Report{Rows: []scenario.Row{
			row("founding", "nginx", 2), row("founding", "weir plane", 1), lossy, control,
		}}, []nightly.Figure{
			nightly.Of("founding, weir plane: delivered", nightly.Share, "", 0.99),
			nightly.Of("founding, weir plane: resident of a stream", nightly.Memory, "KB", 9.5),
			nightly.Of("founding, weir plane: p99", nightly.Delay, "ms", 7),
			nightly.Of("founding, weir plane: CPU of a token beside nginx", nightly.Ratio, "", 0.5),
			nightly.Of("overload, weir plane: p99", nightly.Delay, "ms", 7),
			nightly.Of("overload, weir plane: CPU of a token beside one-write-per-token", nightly.Ratio, "", 0.25),
			nightly.Of("tokens lost", nightly.Same, "", 3),
		}},
		"nothing beside": {scenario.Report{Rows: []scenario.Row{silent, row("overload", "weir relay", 1)}}, []nightly.Figure{
			nightly.Of("overload, weir relay: p99", nightly.Delay, "ms", 7),
			nightly.Of("tokens lost", nightly.Same, "", 0),
		}},
		"starvation": {scenario.Report{Rows: []scenario.Row{}, Starved: []scenario.Starved{
			{Gateway: "weir plane", Large: "none", P99: 2, Stall: 1, Engines: 4, Ready: 4},
			{Gateway: "weir plane", Large: "105/s", P99: 3, Stall: 1.5, Prompts: 104, Lost: 1, Timeouts: 2, Engines: 4, Ready: 3},
			{Gateway: "one loop", Large: "105/s", P99: 300, Lost: 9, Engines: 4},
			{Gateway: "weir plane", NotMeasured: "it is gone"},
		}}, []nightly.Figure{
			nightly.Of("large prompts none: small streams' p99", nightly.Delay, "ms", 2),
			nightly.Of("large prompts none: I/O stall p99", nightly.Delay, "ms", 1),
			nightly.Of("large prompts 105/s: small streams' p99", nightly.Delay, "ms", 3),
			nightly.Of("large prompts 105/s: I/O stall p99", nightly.Delay, "ms", 1.5),
			nightly.Of("large prompts 105/s: answered", nightly.Rate, "prompts/s", 104),
			nightly.Of("tokens lost", nightly.Same, "", 1),
			nightly.Of("live engines taken out", nightly.Same, "", 1),
			nightly.Of("acknowledgement timeouts", nightly.Same, "", 2),
		}},
		"collapse": {scenario.Report{Rows: []scenario.Row{}, Collapsed: []scenario.Collapsed{
			{Gateway: "weir plane", Prompts: 36, Capacity: 40, Engines: 2, Ready: 1, LostTokens: 3, Timeouts: 4},
			{Gateway: "one loop", Prompts: 1, Capacity: 40, Engines: 2},
		}}, []nightly.Figure{
			nightly.Of("share of what the engines can do", nightly.Share, "", 0.9),
			nightly.Of("tokens lost", nightly.Same, "", 3),
			nightly.Of("live engines taken out", nightly.Same, "", 1),
			nightly.Of("acknowledgement timeouts", nightly.Same, "", 4),
		}},
		"overload": {scenario.Report{Rows: []scenario.Row{}, Overloaded: []scenario.Overloaded{
			{Gateway: "weir, queue", Load: 1, Capacity: 60, Goodput: 58, LostTokens: 1},
			{Gateway: "weir, queue", Load: 10, Capacity: 60, Goodput: 54, Refused: 540, Wait: 0.5, Corrupt: 2},
			{Gateway: "pushed", Load: 10, Capacity: 60, Goodput: 3},
		}, Refusing: &scenario.Refusing{CPU: 34, Freed: 0.2}}, []nightly.Figure{
			nightly.Of("in time of what the engines can do", nightly.Share, "", 0.9),
			nightly.Of("longest wait", nightly.Delay, "s", 0.5),
			nightly.Of("CPU of a refusal", nightly.Time, "us", 34),
			nightly.Of("a place is free", nightly.Delay, "ms", 0.2),
			nightly.Of("tokens lost", nightly.Same, "", 3),
		}},
		"continuation": {scenario.Report{Rows: []scenario.Row{}, Continued: []scenario.Continued{
			{Kind: "plane", Gateway: "weir", Streams: 1000, Complete: 998, Continued: 333, Predicted: 1.2, Gap99: 0.9, Prefills: 32, Turns: 30, Lost: 1, Wrong: 2},
			{Kind: "plane", Gateway: "continuation off", Streams: 1000, Complete: 667, Broken: 333},
			{Kind: "sglang", Gateway: "weir", NotMeasured: "no port", Lost: 9},
		}}, []nightly.Figure{
			nightly.Of("plane: gap p99 of what is predicted", nightly.Delay, "", 0.75),
			nightly.Of("plane: most prefills of continuations", nightly.Delay, "prompts", 32),
			nightly.Of("tokens lost or wrong", nightly.Same, "", 3),
			nightly.Of("streams broken that may be continued", nightly.Same, "", 2),
		}},
		"tenants": {scenario.Report{Rows: []scenario.Row{}, Tenants: []scenario.Tenanted{
			{Run: "without", Least: 1, TTFT99: 0.25, LostTokens: 1},
			{Run: "by shares", Least: 0.98, TTFT99: 0.375, Corrupt: 1},
			{Run: "one key", TTFT99: 4},
		}}, []nightly.Figure{
			nightly.Of("least of a tenant's share", nightly.Share, "", 0.98),
			nightly.Of("TTFT p99 of that without the greedy tenant", nightly.Delay, "", 1.5),
			nightly.Of("tokens lost or wrong", nightly.Same, "", 2),
		}},
		"faults": {scenario.Report{Rows: []scenario.Row{}, Faulted: []scenario.Faulted{
			{Kind: "plane", Fault: "killed", Waited: 2, Out: 1, Knowable: 0, Back: 3, Lost: 1, Wrong: 2},
			{Kind: "plane", Fault: "slow", Lives: true, Waited: 70, Out: 24, Knowable: 20, Late: 3, Back: 1, WronglyOut: 1},
			{Kind: "plane", Fault: "fails half", Out: 9, Knowable: -1, Back: -1, Refused: 5},
			{Kind: "plane", Fault: "late", NotMeasured: "no port", Lost: 9},
			{Kind: "vllm", Fault: "killed", Out: -1, Back: -1},
		}}, []nightly.Figure{
			nightly.Of("plane: faults", nightly.Count, "", 3),
			nightly.Of("plane: waited for the engine that failed", nightly.Delay, "requests", 2),
			nightly.Of("plane: out after it could be known", nightly.Delay, "s", 1),
			nightly.Of("plane: back", nightly.Delay, "s", 3),
			nightly.Of("vllm: faults", nightly.Count, "", 1),
			nightly.Of("vllm: waited for the engine that failed", nightly.Delay, "requests", 0),
			nightly.Of("vllm: out after it could be known", nightly.Delay, "s", 0),
			nightly.Of("vllm: back", nightly.Delay, "s", 0),
			nightly.Of("tokens lost or wrong", nightly.Same, "", 3),
			nightly.Of("failed although another engine could serve", nightly.Same, "requests", 5),
			nightly.Of("live engines taken out", nightly.Same, "", 1),
		}},
	} {
		got, err := scenarioFigures(nil, text(t, c.report))
		if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
			t.Errorf("%s: %s %v", name, diff, err)
		}
	}
}

func TestOutputPathFigures(t *testing.T) {
	cell := func(load, gateway string, cpu, kb float64) *client.Result {
		return &client.Result{Load: load, Gateway: gateway, CPUPerMega: cpu, KBPerStream: kb, Lost: 1}
	}
	got, err := outputPathFigures(nil, text(t, []*client.Result{
		cell("burst", "nginx", 2, 1), cell("burst", "weir relay", 1, 1), cell("idle", "nginx", 0, 20), cell("idle", "weir relay", 0, 9),
		cell("burst", "nginx", 4, 1), cell("burst", "weir relay", 3, 1), cell("idle", "nginx", 0, 22), cell("idle", "weir relay", 0, 10),
		cell("spread", "weir plane", 1, 1),
	}))
	want := []nightly.Figure{
		nightly.Of("burst, weir relay: CPU of a token beside nginx", nightly.Ratio, "", 0.5, 0.75),
		nightly.Of("idle, weir relay: resident of a stream", nightly.Memory, "KB", 9, 10),
		nightly.Of("tokens lost", nightly.Same, "", 9),
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

func TestMeasureFigures(t *testing.T) {
	const bounds, figures, hour = "pkg: weir/internal/model/chat\nBenchmarkBoundLinear-2 1 900 ns/op\n", "measure stream-memory/plane/idle 25.6 KB\n", "pkg: weir/internal/cli\nBenchmarkOfflineHour-2 3 1100000000 ns/op 7.5 requests/s\n"
	got, err := measureFigures([]byte(bounds+figures+hour), nil)
	want := []nightly.Figure{
		nightly.Of("stream-memory/plane/idle", nightly.Memory, "KB", 25.6),
		nightly.Of("cli.OfflineHour time", nightly.Time, "ns/op", 1.1e9),
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	for _, printed := range []string{bounds + hour, figures} {
		if got, err := measureFigures([]byte(printed), nil); err == nil {
			t.Errorf("%q: %v", printed, got)
		}
	}
}

func TestGarbage(t *testing.T) {
	for name, read := range map[string]func(_, file []byte) ([]nightly.Figure, error){"scenario": scenarioFigures, "outputpath": outputPathFigures} {
		for _, c := range []struct{ file, err string }{
			{"", "unexpected end of JSON"}, {"not measured", "invalid character"}, {`{"rows": 7}`, "cannot unmarshal"}, {"null", "there are no cells|has no rows"},
		} {
			_, err := read(nil, []byte(c.file))
			if err == nil {
				t.Errorf("%s reads %q", name, c.file)
				continue
			}
			found := false
			for want := range strings.SplitSeq(c.err, "|") {
				found = found || strings.Contains(err.Error(), want)
			}
			if !found {
				t.Errorf("%s, %q: %v", name, c.file, err)
			}
		}
	}
}
