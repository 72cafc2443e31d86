//go:build linux

package scenario

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir/internal/bench"
	"weir/internal/scenario"
	"weir/test/e2e/harness"
)

// scenarioRun is a run of weir scenario whose files and processes can
// be told from all others by the folder they are in.
type scenarioRun struct {
	*harness.Process
	dir string
}

func startScenario(t *testing.T, name string, args ...string) *scenarioRun {
	t.Helper()
	dir := t.TempDir()
	return &scenarioRun{harness.StartWith(t, nil, []string{"TMPDIR=" + dir}, append([]string{"scenario", name, "--streams", "64"}, args...)...), dir}
}

// processes are the command lines of all that the run has started and that is
// still there: each names a file in the folder.
func (r *scenarioRun) processes() []string {
	r.T.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		r.T.Fatal(err)
	}
	var found []string
	for _, path := range paths {
		line, err := os.ReadFile(path)
		if err == nil && bytes.Contains(line, []byte(r.dir)) {
			found = append(found, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

// gone wants no process and no file of the run to be left.
func (r *scenarioRun) gone() {
	r.T.Helper()
	if left := r.processes(); len(left) > 0 {
		r.T.Errorf("left running:\n%s", strings.Join(left, "\n"))
	}
	files, err := os.ReadDir(r.dir)
	if err != nil || len(files) > 0 {
		r.T.Errorf("left behind: %v, %v", files, err)
	}
}

func readScenario(t *testing.T, file string) (r scenario.Report) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A user's run in small: weir loses nothing, the control loses, and the exit
// code says so.
func TestScenarioLoss(t *testing.T) {
	harness.Beside(t, harness.Heavy)
	file := filepath.Join(t.TempDir(), "loss.json")
	r := startScenario(t, "loss", "--duration", "4s", "--json", file)
	r.Exits(0)
	r.gone()
	report := readScenario(t, file)
	if !report.Passed || report.Streams != 64 || len(report.Verdicts) < 4 {
		t.Errorf("%+v", report)
	}
	seen := map[string]bool{}
	for _, x := range report.Rows {
		seen[x.Gateway] = true
		// The race detector makes everything too slow for the load's end to be
		// reached in time; what arrived is right all the same.
		ours := x.Gateway == bench.Relay || x.Gateway == bench.Plane
		if x.NotMeasured != "" || x.Delivered == 0 || ours && x.Errors > 0 && !harness.RaceEnabled || x.Wrong != 0 || (x.Lost > 0) != (x.Gateway == bench.LatestWins) {
			t.Errorf("%+v", x)
		}
	}
	for _, name := range []string{bench.Relay, bench.Plane, bench.LatestWins, bench.OneWrite} {
		if !seen[name] {
			t.Errorf("no row of %s", name)
		}
	}
	text := r.Output()
	for _, part := range []string{"latest-wins", "ok      weir plane loses no token: 0 lost", "ok      the control latest-wins loses tokens"} {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in\n%s", part, text)
		}
	}
}

// Large prompts beside small streams, in small. Whether the control starves
// depends on the machine, and the exit code must agree; that every gateway is
// measured, and nothing lost, does not.
func TestScenarioStarvation(t *testing.T) {
	harness.Beside(t, harness.Heavy)
	report := starve(t, 9*time.Second)
	// A machine that others use may serve no small stream within a phase: then the
	// phases are longer.
	for d := 18 * time.Second; d <= 72*time.Second && !harness.RaceEnabled && slices.ContainsFunc(report.Starved, unmeasured); d *= 2 {
		report = starve(t, d)
	}
	if len(report.Starved) != 6 {
		t.Fatalf("%+v", report.Starved)
	}
	for _, x := range report.Starved {
		if x.Lost != 0 {
			t.Errorf("%+v", x)
		}
		if harness.RaceEnabled {
			continue // a phase is too short for one large prompt under it
		}
		if x.NotMeasured != "" || x.Small == 0 || x.P99 <= 0 || x.Stall <= 0 || x.CPU <= 0 || x.Large != "none" && (x.Prompts == 0 || x.Tokens < 30_000) {
			t.Errorf("%+v", x)
		}
	}
}

func unmeasured(x scenario.Starved) bool { return x.NotMeasured != "" }

// starve runs the scenario starvation for so long.
func starve(t *testing.T, duration time.Duration) scenario.Report {
	t.Helper()
	file := filepath.Join(t.TempDir(), "starvation.json")
	r := startScenario(t, "starvation", "--duration", duration.String(), "--json", file)
	select {
	case <-r.Exited:
	case <-time.After(5 * time.Minute):
		t.Fatal("still running")
	}
	r.gone()
	report := readScenario(t, file)
	if code := r.Cmd.ProcessState.ExitCode(); (code == 0) != report.Passed || code > 1 {
		t.Errorf("exit code %d, passed %t", code, report.Passed)
	}
	return report
}

// Ctrl-C in the middle of a cell ends all that was started.
func TestScenarioInterrupted(t *testing.T) {
	harness.Beside(t, harness.Light)
	r := startScenario(t, "backlog", "--duration", "10m")
	// An engine and a client are this binary, and what is between them a gateway.
	harness.Eventually(t, "in a cell", func() bool {
		return len(r.processes()) >= 3
	})
	if err := r.Cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	r.Exits(1)
	r.gone()
	if !strings.Contains(r.Stderr.String(), "weir: interrupted") {
		t.Errorf("stderr: %s", r.Stderr.String())
	}
}
