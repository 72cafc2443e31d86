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

	"weir/internal/lab"
	"weir/internal/lab/scenario"
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
	return &scenarioRun{harness.StartWith(t, nil, []string{"TMPDIR=" + dir}, append([]string{"scenario", name}, args...)...), dir}
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

// measured runs a scenario for longer and longer until a machine that others use, or stop for
// seconds, has not spoilt it, and gives the last run. Tokens that weir loses are no matter of
// the machine.
func measured(t *testing.T, from, to time.Duration, good func(scenario.Report) bool, name string, args ...string) (report scenario.Report, r *scenarioRun) {
	t.Helper()
	file := filepath.Join(t.TempDir(), name+".json")
	for d := from; d <= to; d *= 2 {
		r = startScenario(t, name, append([]string{"--duration", d.String(), "--json", file}, args...)...)
		r.Wait()
		r.gone()
		report = readScenario(t, file)
		if !slices.Contains(args, "--strict") {
			wantExit(t, r, report)
		}
		if n := lost(report); n != 0 {
			t.Errorf("weir lost %d tokens:\n%s", n, r.Output())
		}
		if harness.RaceEnabled || good(report) {
			break
		}
		if d*2 <= to {
			t.Logf("with windows of %v it was not measured:\n%s", d, r.Output())
		}
	}
	return report, r
}

// whole skips a scenario under -short. make nightly runs it to its end, and its rules have
// end-to-end tests of their own.
func whole(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("make nightly runs it whole")
	}
}

// lost is how many tokens weir lost in all of a report's cells.
func lost(report scenario.Report) (n int64) {
	for _, x := range report.Rows {
		if x.Gateway == lab.Relay || x.Gateway == lab.Plane {
			n += int64(x.Lost)
		}
	}
	for _, x := range report.Starved {
		if x.Gateway == lab.Plane {
			n += int64(x.Lost)
		}
	}
	for _, x := range report.Collapsed {
		n += int64(x.LostTokens)
	}
	for _, x := range report.Overloaded {
		n += int64(x.LostTokens)
	}
	for _, x := range report.Continued {
		n += int64(x.Lost + x.Wrong)
	}
	for _, x := range report.Tenants {
		n += int64(x.LostTokens + x.Corrupt)
	}
	return n
}

// A user's run in small: weir loses nothing, the control loses, and the exit
// code says so.
func TestScenarioLoss(t *testing.T) {
	harness.Beside(t, harness.Heavy)
	report, r := measured(t, 4*time.Second, 16*time.Second, func(r scenario.Report) bool { return r.Passed && !slices.ContainsFunc(r.Rows, unmeasured) }, "loss", "--streams", "64")
	if !report.Passed || report.Streams != 64 || len(report.Verdicts) < 4 {
		t.Errorf("%+v", report)
	}
	seen := map[string]bool{}
	for _, x := range report.Rows {
		seen[x.Gateway] = true
		// The race detector makes everything too slow for the load's end to be
		// reached in time; what arrived is right all the same.
		ours := x.Gateway == lab.Relay || x.Gateway == lab.Plane
		if x.NotMeasured != "" || x.Delivered == 0 || ours && x.Errors > 0 && !harness.RaceEnabled || x.Wrong != 0 || (x.Lost > 0) != (x.Gateway == lab.LatestWins) {
			t.Errorf("%+v", x)
		}
	}
	for _, name := range []string{lab.Relay, lab.Plane, lab.LatestWins, lab.OneWrite} {
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

// Streams that step at one instant: weir carries them, and a gateway with a write per
// token falls behind.
func TestScenarioBacklog(t *testing.T) {
	whole(t)
	harness.Beside(t, harness.Heavy)
	report, r := measured(t, 12*time.Second, 48*time.Second, func(r scenario.Report) bool { return r.Passed && !slices.ContainsFunc(r.Rows, unmeasured) }, "backlog", "--streams", "256")
	if !report.Passed {
		t.Errorf("it failed:\n%s", r.Output())
	}
	seen := map[string]int{}
	for _, x := range report.Rows {
		if x.Gateway == lab.Nginx && x.NotMeasured != "" {
			continue // it is not on every machine
		}
		seen[x.Gateway]++
		if x.NotMeasured != "" || x.Delivered == 0 || x.Lost != 0 || x.Wrong != 0 {
			t.Errorf("%+v", x)
		}
	}
	// The founding load, and overloads until the control falls behind.
	if seen[lab.Relay] != 1 || seen[lab.Plane] < 2 || seen[lab.Plane] > 4 || seen[lab.OneWrite] != seen[lab.Plane] {
		t.Errorf("cells %v", seen)
	}
	wantVerdicts(t, report, "weir plane loses no token: 0 lost", "weir relay loses no token: 0 lost", "the control one-write-per-token falls behind weir's plane")
}

// Large prompts beside small streams: weir keeps its engines, and a gateway that
// tokenizes on its loop takes them out and collapses.
func TestScenarioStarvation(t *testing.T) {
	whole(t)
	harness.Beside(t, harness.Heavy)
	wanted := []string{"weir takes no live engine out with large prompts 256 at once: 4 of 4", "the control takes live engines out and answers less than half of what weir does"}
	report, r := measured(t, 30*time.Second, 2*time.Minute, func(r scenario.Report) bool {
		return r.Passed && held(r, wanted...) && !slices.ContainsFunc(r.Starved, func(x scenario.Starved) bool { return x.NotMeasured != "" })
	}, "starvation", "--strict", "--streams", "256")
	missed := report.Missed()
	if code := r.Cmd.ProcessState.ExitCode(); (code == 0) != (report.Passed && missed == 0) || code > 1 {
		t.Errorf("exit code %d, passed %t, %d missed", code, report.Passed, missed)
	}
	if said := strings.Contains(r.Stderr.String(), "--strict"); said != (missed > 0) {
		t.Errorf("%d missed: %s", missed, r.Stderr.String())
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
		ours := x.Gateway == lab.Plane
		if x.NotMeasured != "" || x.Stall <= 0 || x.CPU <= 0 || x.Engines < 2 || ours && (x.Ready != x.Engines || x.Small == 0 || x.P99 <= 0 || x.Large != "none" && (x.Prompts == 0 || x.Tokens < 30_000)) {
			t.Errorf("%+v", x)
		}
	}
	if harness.RaceEnabled {
		return
	}
	if last, weirs := report.Starved[5], report.Starved[2]; last.Ready == last.Engines || last.Prompts >= weirs.Prompts/2 {
		t.Errorf("the control: %+v, weir: %+v", last, weirs)
	}
	if !report.Passed {
		t.Errorf("it failed:\n%s", r.Output())
	}
	wantVerdicts(t, report, wanted...)
}

// Prompts of 40k tokens arrive at once. weir keeps both engines, and a gateway that takes an
// engine out for its own late reads collapses. The share of requests that weir answers depends
// on the machine.
func TestScenarioCollapse(t *testing.T) {
	harness.Beside(t, harness.Heavy)
	wanted := []string{"weir loses no token: 0", "weir takes no live engine out: 2 of 2", "the control takes live engines out for an acknowledgement"}
	report, _ := measured(t, 9*time.Second, 3*time.Minute, func(r scenario.Report) bool { return held(r, wanted...) }, "collapse", "--streams", "48")
	if len(report.Collapsed) != 2 {
		t.Fatalf("%+v", report)
	}
	ours, control := report.Collapsed[0], report.Collapsed[1]
	if ours.LostTokens != 0 || control.LostTokens != 0 {
		t.Errorf("%+v", report.Collapsed)
	}
	if harness.RaceEnabled {
		return // no prompt is answered within so short a window
	}
	if ours.NotMeasured != "" || ours.Prompts == 0 || ours.Tokens < 30_000 || ours.Capacity <= 0 {
		t.Errorf("%+v", ours)
	}
	if control.NotMeasured != "" || control.Timeouts == 0 {
		t.Errorf("the control: %+v", control)
	}
	wantVerdicts(t, report, wanted...)
}

// More is asked than engines can do: weir serves or refuses each request and loses nothing, and
// with everything pushed most answers are late. How much of weir's is in time, what a refusal
// costs and how soon a place is free are matters of the machine.
func TestScenarioOverload(t *testing.T) {
	harness.Beside(t, harness.Heavy)
	wanted := []string{"weir loses no token: 0 lost, 0 answers", "requests are served or refused with 429", "a full queue refuses all", "who hangs up in the queue frees its place: of 32 places 32", "pushed, less than 50 % of what is served is in time"}
	report, _ := measured(t, 9*time.Second, 2*time.Minute, func(r scenario.Report) bool { return held(r, wanted...) }, "overload", "--streams", "16", "--load", "10")
	if len(report.Overloaded) != 2 || report.Refusing == nil {
		t.Fatalf("%+v", report)
	}
	for _, x := range report.Overloaded {
		if x.LostTokens != 0 || x.Corrupt != 0 {
			t.Errorf("%+v", x)
		}
	}
	if harness.RaceEnabled {
		return // too little is served within so short a window
	}
	if x := report.Overloaded[0]; x.Load != 10 || x.NotMeasured != "" || x.Served == 0 || x.Refused == 0 || x.Wait <= 0 {
		t.Errorf("ten times what the engines can do: %+v", x)
	}
	if x := report.Overloaded[1]; x.Refused != 0 || x.Served == 0 {
		t.Errorf("pushed: %+v", x)
	}
	wantVerdicts(t, report, wanted...)
}

// An engine is killed while it streams. Streams that may continue are whole, and those with a
// seed give the reason why they are not. With --continuation off the streams break. The length
// of their pauses depends on the machine.
func TestScenarioContinuation(t *testing.T) {
	harness.Beside(t, harness.Heavy)
	wanted := []string{"plane, weir: no token is lost or comes twice: 0 lost, 0 streams", "plane: each stream that may be continued is: 48 of 48 are whole",
		"plane: a stream with a seed ends with an error that says so", "plane: at most 32 continued streams", "plane, continuation off: no token is lost", "plane: the control, with --continuation off, breaks streams"}
	report, r := measured(t, 12*time.Second, 2*time.Minute, func(r scenario.Report) bool { return held(r, wanted...) }, "continuation", "--streams", "48")
	if len(report.Continued) != 2 {
		t.Fatalf("%+v", report)
	}
	for _, x := range report.Continued {
		if x.Lost != 0 || x.Wrong != 0 {
			t.Errorf("%+v", x)
		}
	}
	if harness.RaceEnabled {
		return // it may be too slow for all streams to have begun in time
	}
	if x := report.Continued[0]; x.NotMeasured != "" || x.Continued == 0 || x.Prefills < 1 || x.Gap <= 0 || x.Predicted <= 0.5 {
		t.Errorf("%+v", x)
	}
	wantVerdicts(t, report, wanted...)
	if text := r.Output(); !strings.Contains(text, "plane: the gap's p99 is at most ceil(") {
		t.Errorf("no prediction in\n%s", text)
	}
}

// One of a hundred tenants sends nearly all of ten times what the engines can do: the others are
// served beside it, and are not where all have one key. How much of their shares they get, and
// how soon, are matters of the machine.
func TestScenarioTenants(t *testing.T) {
	whole(t)
	harness.Beside(t, harness.Heavy)
	wanted := []string{"weir loses no token: 0 lost, 0 answers", "requests are served or refused with 429, and end in no other way: 0 did", "the control, one key for all, gives a tenant less than 85 %"}
	report, _ := measured(t, 12*time.Second, 2*time.Minute, func(r scenario.Report) bool { return held(r, wanted...) }, "tenants", "--streams", "64")
	if len(report.Tenants) != 3 {
		t.Fatalf("%+v", report)
	}
	if harness.RaceEnabled {
		return // too little is served within so short a load
	}
	without, with, control := report.Tenants[0], report.Tenants[1], report.Tenants[2]
	if without.Served == 0 || with.Asked == 0 || with.Refused <= 0 || with.Greedy <= 0 {
		t.Errorf("%+v", report.Tenants)
	}
	// The same requests come in each run.
	if with.Served*2 <= with.Asked || control.Served*2 >= control.Asked {
		t.Errorf("the control: %+v, weir: %+v", control, with)
	}
	wantVerdicts(t, report, wanted...)
}

// An engine is killed and comes back: nothing is lost, and the report says what clients saw,
// also as Markdown.
func TestScenarioFaults(t *testing.T) {
	whole(t)
	harness.Beside(t, harness.Heavy)
	folder := t.TempDir()
	file, page := filepath.Join(folder, "faults.json"), filepath.Join(folder, "faults.md")
	r := startScenario(t, "faults", "--streams", "24", "--kind", "plane,openai", "--fault", "killed", "--json", file, "--write", page)
	r.Wait()
	r.gone()
	report := readScenario(t, file)
	wantExit(t, r, report)
	if len(report.Faulted) != 2 {
		t.Fatalf("%+v", report)
	}
	for _, x := range report.Faulted {
		if x.NotMeasured != "" || x.Requests == 0 || x.Lost != 0 || x.Wrong != 0 || x.Out < 0 || x.Back < 0 {
			t.Errorf("%+v", x)
		}
	}
	wantVerdicts(t, report, "tokens lost: 0", "tokens repeated or wrong: 0", "requests that failed although another engine could serve them: 0")
	written, err := os.ReadFile(page)
	if err != nil || !strings.Contains(string(written), "| plane | killed |") || !strings.Contains(string(written), "| openai | killed |") {
		t.Errorf("%v\n%s", err, written)
	}
}

// wantExit wants the exit code of a run without --strict to be that of its report.
func wantExit(t *testing.T, r *scenarioRun, report scenario.Report) {
	t.Helper()
	if code := r.Cmd.ProcessState.ExitCode(); (code == 0) != report.Passed || code > 1 {
		t.Errorf("exit code %d, passed %t", code, report.Passed)
	}
}

// wantVerdicts wants verdicts that begin so to be there and to be ok.
func wantVerdicts(t *testing.T, report scenario.Report, begins ...string) {
	t.Helper()
	for _, text := range begins {
		if !held(report, text) {
			t.Errorf("no verdict %q that is ok: %+v", text, report.Verdicts)
		}
	}
}

// held reports whether a verdict that begins so is there and ok, of each text.
func held(report scenario.Report, begins ...string) bool {
	for _, text := range begins {
		if !slices.ContainsFunc(report.Verdicts, func(v scenario.Verdict) bool { return v.Outcome == scenario.OK && strings.HasPrefix(v.Text, text) }) {
			return false
		}
	}
	return true
}

// unmeasured reports whether a cell was not measured, other than for the lack of a program.
func unmeasured(x scenario.Row) bool { return x.NotMeasured != "" && x.Gateway != lab.Nginx }

// Ctrl-C in the middle of a cell ends all that was started.
func TestScenarioInterrupted(t *testing.T) {
	harness.Beside(t, harness.Light)
	r := startScenario(t, "backlog", "--streams", "64", "--duration", "10m")
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

// A row of blame through the binary: the injector holds the network for two seconds, and the records
// say that it was the hop; without that they do not.
func TestBlame(t *testing.T) {
	file := filepath.Join(t.TempDir(), "blame.json")
	r := startScenario(t, "blame", "--kind", "sglang", "--fault", "hop held", "--streams", "20", "--json", file)
	r.Wait()
	r.gone()
	report := readScenario(t, file)
	if len(report.Blamed) != 4 {
		t.Fatalf("%d cells:\n%s", len(report.Blamed), r.Output())
	}
	for _, b := range report.Blamed {
		if b.Stage != "hop" || b.Requests != 20 || !b.Void() && b.Faulty != (b.Named == 20) {
			t.Errorf("%+v", b)
		}
	}
}
