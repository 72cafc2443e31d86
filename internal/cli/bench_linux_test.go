package cli

import (
	"path/filepath"
	"strings"
	"testing"

	"weir/internal/scenario"
)

func TestWrongScenario(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
		want []string
	}{
		{"unknown", []string{"--scenario", "backlgo"}, append([]string{"--scenario", `"backlgo"`}, scenario.Names()...)},
		{"with a server", []string{"--scenario", "loss", "http://127.0.0.1:1"}, []string{"--scenario", "http://127.0.0.1:1"}},
		{"with a load of another kind", []string{"--scenario", "loss", "--concurrency", "4"}, []string{"drop --concurrency", "--streams"}},
		{"too short", []string{"--scenario", "loss", "--duration", "1s"}, []string{"--duration", "3s"}},
		{"too few streams", []string{"--scenario", "loss", "--streams", "1"}, []string{"--streams", "8"}},
		{"too many streams", []string{"--scenario", "loss", "--streams", "1000000"}, []string{"--streams", "20000"}},
		{"streams of a server", []string{"--streams", "4", "http://127.0.0.1:1"}, []string{"--streams", "--concurrency"}},
		{"a file that cannot be written", []string{"--scenario", "loss", "--json", filepath.Join(t.TempDir(), "no", "x.json")}, []string{"--json", "x.json"}},
	} {
		code, stdout, stderr := run(t, append([]string{"bench"}, test.args...)...)
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

// The help names every scenario, and not the processes they are made of.
func TestScenarioHelp(t *testing.T) {
	_, help, _ := run(t, "bench", "--help")
	for _, s := range scenario.All() {
		if !strings.Contains(help, "weir bench --scenario "+s.Name) {
			t.Errorf("no example of %s:\n%s", s.Name, help)
		}
	}
	if _, all, _ := run(t, "--help"); strings.Contains(all, benchProcess) {
		t.Errorf("%s shows:\n%s", benchProcess, all)
	}
}

func TestBenchProcess(t *testing.T) {
	if code, _, stderr := run(t, benchProcess, "cleint", "{}"); code != 1 || !strings.Contains(stderr, "engine-plane") {
		t.Errorf("exit code %d, %q", code, stderr)
	}
}
