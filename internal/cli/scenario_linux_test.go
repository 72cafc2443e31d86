package cli

import (
	"path/filepath"
	"strings"
	"testing"

	"weir/internal/lab/scenario"
)

func TestWrongScenario(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
		want []string
	}{
		{"none", []string{"scenario"}, scenario.Names()},
		{"unknown", []string{"scenario", "backlgo"}, append([]string{`"backlgo"`}, scenario.Names()...)},
		{"too short", []string{"scenario", "loss", "--duration", "1s"}, []string{"--duration", "3s"}},
		{"too few streams", []string{"scenario", "loss", "--streams", "1"}, []string{"--streams", "8"}},
		{"too many streams", []string{"scenario", "loss", "--streams", "1000000"}, []string{"--streams", "20000"}},
		{"a file that cannot be written", []string{"scenario", "loss", "--json", filepath.Join(t.TempDir(), "no", "x.json")}, []string{"--json", "x.json"}},
		{"an unknown fault", []string{"scenario", "faults", "--fault", "kiled"}, []string{"--fault", "kiled", "killed"}},
		{"an unknown kind", []string{"scenario", "faults", "--kind", "grpc"}, []string{"--kind", "plane"}},
		{"a kind of another", []string{"scenario", "loss", "--kind", "plane"}, []string{"--kind", "weir scenario faults"}},
		{"a kind whose ids are not known", []string{"scenario", "continuation", "--kind", "openai"}, []string{"--kind", "openai", "vllm-ids"}},
		{"too short to go on", []string{"scenario", "continuation", "--duration", "4s"}, []string{"--duration", "7s"}},
		{"tables of another", []string{"scenario", "loss", "--write", "x.md"}, []string{"--write", "weir scenario faults"}},
		{"as it was called before", []string{"bench", "--scenario", "loss"}, []string{"run weir scenario loss\n"}},
		{"the same with flags", []string{"bench", "--scenario", "backlog", "--streams", "64", "--duration", "30s", "--json", "/x.json"},
			[]string{"run weir scenario backlog --duration 30s --streams 64 --json /x.json\n"}},
		{"streams of a server", []string{"bench", "--streams", "4", "http://127.0.0.1:1"}, []string{"--streams", "--concurrency"}},
	} {
		code, stdout, stderr := run(t, test.args...)
		if code != 2 || stdout != "" {
			t.Errorf("%s: exit code %d, stdout %q", test.name, code, stdout)
		}
		for _, part := range test.want {
			if !strings.Contains(stderr, part) {
				t.Errorf("%s: %q lacks %q", test.name, stderr, part)
			}
		}
	}
}

// The help has every scenario, what it is about and an example of it; that of weir
// bench has none any more, and none shows the processes they are made of.
func TestScenarioHelp(t *testing.T) {
	_, help, _ := run(t, "scenario", "--help")
	for _, s := range scenario.All() {
		if !strings.Contains(help, "\n  "+s.Name+" ") && !strings.Contains(help, "\n    "+s.Name+" ") || !strings.Contains(help, "weir scenario "+s.Name) {
			t.Errorf("no line or no example of %s:\n%s", s.Name, help)
		}
	}
	if _, old, _ := run(t, "bench", "--help"); strings.Contains(old, "scenario") || strings.Contains(old, "--streams") {
		t.Errorf("weir bench still has scenarios:\n%s", old)
	}
	if _, all, _ := run(t, "--help"); strings.Contains(all, benchProcess) || !strings.Contains(all, "scenario") {
		t.Errorf("%s shows, or scenario does not:\n%s", benchProcess, all)
	}
}

func TestBenchProcess(t *testing.T) {
	if code, _, stderr := run(t, benchProcess, "cleint", "{}"); code != 1 || !strings.Contains(stderr, "engine-plane") {
		t.Errorf("exit code %d, %q", code, stderr)
	}
}
