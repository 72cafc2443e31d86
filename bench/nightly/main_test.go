//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir/internal/lab/nightly"
)

// fake returns steps that take a few milliseconds.
func fake(command string) []nightly.Step {
	return []nightly.Step{
		{Name: "fast", Command: command, Why: "because", Typical: time.Second, Limit: time.Minute, Read: nightly.Measures},
		{Name: "other", Command: "echo measure b 1 lost", Why: "so", Typical: time.Second, Limit: time.Minute, Read: nightly.Measures},
	}
}

// bed is a folder with a baseline and the files that runs keep.
type bed struct {
	t              *testing.T
	baseline, keep string
	said           string
}

func newBed(t *testing.T) *bed {
	dir := t.TempDir()
	return &bed{t: t, baseline: filepath.Join(dir, "baseline.json"), keep: filepath.Join(dir, "runs")}
}

// run runs the program, and wants an exit status and each text in its output.
func (b *bed) run(status int, steps []nightly.Step, args string, says ...string) {
	b.t.Helper()
	var stdout, stderr bytes.Buffer
	all := append([]string{"--baseline", b.baseline, "--keep", b.keep}, strings.Fields(args)...)
	got := run(b.t.Context(), steps, all, &stdout, &stderr)
	b.check(status, got, stdout.String(), stderr.String(), says)
}

func (b *bed) check(want, got int, stdout, stderr string, says []string) {
	b.t.Helper()
	b.said = stdout + stderr
	if got != want {
		b.t.Errorf("exit status %d, want %d:\n%s", got, want, b.said)
	}
	for _, text := range says {
		if !strings.Contains(b.said, text) {
			b.t.Errorf("%q is not in\n%s", text, b.said)
		}
	}
}

// TestBaseline: a figure has no baseline, is accepted, holds, gets worse, is accepted
// again from the files that the run kept, and vanishes.
func TestBaseline(t *testing.T) {
	b := newBed(t)
	b.run(fine, fake("echo measure a 1 lost"), "", "no baseline yet", "a: 1 lost", "nothing got worse", "kept in "+b.keep)
	b.run(fine, fake("echo measure a 1 lost"), "--accept", "has this run's figures of fast, other now")
	b.run(fine, fake("echo measure a 1 lost"), "", "nothing got worse")
	printed := filepath.Join(t.TempDir(), "printed")
	steps := fake("cat " + printed)
	put(t, printed, "measure a 1 lost\n")
	b.run(worse, steps, "--only fast", "CHANGED", "the baseline was measured by \"echo measure a 1 lost\"")
	b.run(fine, steps, "--only fast --accept", "has this run's figures of fast now")
	put(t, printed, "measure a 2 lost\nmeasure c 1 lost\n")
	b.run(worse, steps, "--only fast", "a: 1 -> 2 lost", "new        c: 1 lost", "FAIL: fast a WORSE")
	b.run(fine, steps, "--only fast --accept", "a: 1 -> 2 lost", "FAIL: fast a WORSE")
	b.run(fine, steps, "", "nothing got worse")
	kept := regexp.MustCompile(`kept in (\S+\.json)`).FindStringSubmatch(b.said)[1]
	put(t, printed, "measure c 1 lost\n")
	b.run(worse, steps, "", "a: was 2 lost", "FAIL: fast a VANISHED")
	b.run(fine, steps, "--from "+kept, "nothing got worse")
	b.run(worse, steps[1:], "", "there is no such step any more", "FAIL: fast VANISHED")
}

func put(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestOutcomes: steps that do not pass, and the steps after them, have their outcomes.
func TestOutcomes(t *testing.T) {
	b := newBed(t)
	b.run(worse, fake("echo broken; exit 3"), "--accept", "fast", "exit status 3", "fast.log ends with:\n      broken", "has this run's figures of other now", "not accepted: fast: failed")
	b.run(worse, fake("true"), "--only fast", "its figures cannot be read: there is no line that begins with measure")
	slow := fake("echo begun; sleep 600")
	slow[0].Limit = 200 * time.Millisecond
	b.run(worse, slow, "", "out of time: it was stopped after 200ms", "other            passed")
	file := fake("echo 'measure from.file 3 lost' > {file}")
	file[0].Read = func(_, file []byte) ([]nightly.Figure, error) { return nightly.Measures(file, nil) }
	b.run(fine, file, "--only fast", "from.file: 3 lost")
}

// TestInterrupt: the step under way is stopped with everything that it has started, and
// the figures of earlier steps are kept.
func TestInterrupt(t *testing.T) {
	b := newBed(t)
	fifo, begun, ended := watch(t)
	steps := append(fake("echo measure a 1 lost")[:1], nightly.Step{
		Name: "endless", Command: "(echo begun; exec sleep 600) > " + fifo + " & wait", Typical: time.Second, Limit: time.Minute,
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { <-begun; cancel() }()
	var stdout, stderr bytes.Buffer
	status := run(ctx, steps, []string{"--baseline", b.baseline, "--keep", b.keep}, &stdout, &stderr)
	b.check(interrupted, status, stdout.String(), stderr.String(), []string{"fast             no baseline yet", "endless          FAILED: interrupted", "steps after the last one"})
	<-ended
	kept, err := filepath.Glob(b.keep + "/*.json")
	if err != nil || len(kept) != 1 {
		t.Fatal(kept, err)
	}
	record, err := readRecord(kept[0])
	if err != nil || len(record.Steps) != 2 || record.Steps[0].Outcome != nightly.Passed || len(record.Steps[0].Figures) != 1 {
		t.Errorf("kept %+v, %v", record, err)
	}
}

// TestForce: a step that does not end after an interrupt is killed.
func TestForce(t *testing.T) {
	fifo, begun, ended := watch(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { <-begun; cancel() }()
	sh := &shell{folder: t.TempDir(), grace: 10 * time.Millisecond}
	_, err := sh.execute(ctx, nightly.Step{Name: "deaf", Command: "trap '' INT; (echo begun; exec sleep 600) > " + fifo})
	if err == nil || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	<-ended
}

// watch makes a named pipe. It closes begun when a process has written to the pipe, and
// ended when no process holds it open for writing any more.
func watch(t *testing.T) (name string, begun, ended chan struct{}) {
	t.Helper()
	name, begun, ended = filepath.Join(t.TempDir(), "fifo"), make(chan struct{}), make(chan struct{})
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(ended)
		file, err := os.Open(name)
		if err != nil {
			t.Error(err)
			return
		}
		defer file.Close()
		file.Read(make([]byte, 1)) // the byte itself does not matter
		close(begun)
		io.Copy(io.Discard, file)
	}()
	return name, begun, ended
}

// TestAsking: wrong command lines are refused, and some command lines run nothing.
func TestAsking(t *testing.T) {
	b := newBed(t)
	steps := fake("echo measure a 1 lost")
	b.run(wrongUsage, steps, "--only slow", `--only: there is no step "slow"; the steps are fast, other`)
	b.run(wrongUsage, steps, "fast", `"fast" is not a flag; --only fast runs a step`)
	b.run(wrongUsage, steps, "--speed", "flag provided but not defined", "usage: go run ./bench/nightly")
	b.run(fine, steps, "--help", "usage: go run ./bench/nightly", "--from bin/nightly/RUN.json --accept")
	b.run(fine, steps, "--list", "fast             about 1s, at most 1m: because\n                 echo measure a 1 lost\n")
	b.run(fine, steps, "--dry-run --only other", "other            echo measure b 1 lost\nabout 1s\n")
	b.run(worse, steps, "--from "+b.keep+"/none.json", "no such file")
	if entries, err := os.ReadDir(b.keep); err == nil {
		t.Errorf("something ran: %v", entries)
	}
	put(t, b.baseline, "<<<<<<< HEAD\n{}\n")
	b.run(worse, steps, "", b.baseline+" is not what a run wrote: line 1: invalid character '<'", "take it from git again")
	if _, err := os.Stat(b.keep); err == nil {
		t.Error("hours are spent before the baseline is read")
	}
}

// TestMissing: a step that cannot run on this machine fails the run, unless that is
// allowed.
func TestMissing(t *testing.T) {
	t.Setenv("PATH", pathWithout(t, "sh", "git", "cat", "sleep"))
	b := newBed(t)
	steps := fake("echo measure a 1 lost")
	steps[1].Needs = []string{"no-such-program"}
	b.run(worse, steps, "", "other            NOT RUN: there is no no-such-program; install it, or pass --allow-missing", "FAIL: other NOT RUN")
	b.run(fine, steps, "--allow-missing", "NOT RUN", "nothing got worse")
	b.run(fine, steps, "--dry-run", "other            cannot run here: there is no no-such-program", "about 1s")
	b.run(fine, steps, "--list", "cannot run here: there is no no-such-program")
}

func TestBadSteps(t *testing.T) {
	const good = "a | 1m 2m | x y | tests | why | make a | b\n"
	steps, err := parseSteps("# of one\n\n" + good)
	if err != nil || len(steps) != 1 || steps[0].Command != "make a | b" || !slices.Equal(steps[0].Needs, []string{"x", "y"}) || steps[0].Limit != 2*time.Minute {
		t.Fatal(steps, err)
	}
	for row, says := range map[string]string{
		"a | 1m 2m | make a\n":                         "line 1: 3 columns, want 6",
		strings.Replace(good, "1m", "soon", 1):         `line 1: time: invalid duration "soon"`,
		strings.Replace(good, " 2m", "", 1):            "line 1: time: invalid duration",
		"\n" + strings.Replace(good, "ts |", "t |", 1): `line 2: there is no reader "test"`,
	} {
		if _, err := parseSteps(row); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", row, err, says)
		}
	}
}

// TestSteps checks that everything that steps name exists: targets of the Makefile,
// packages, benchmarks.
func TestSteps(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	targets := regexp.MustCompile(`make ((?:-\S+ )*)([a-z -]+)`)
	seen := map[string]bool{}
	steps, err := parseSteps(rows)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		if seen[s.Name] || s.Why == "" || s.Typical <= 0 || s.Limit < s.Typical*3/2 || s.Read == nil && s.Name != "repeats" && s.Name != "staticcheck" {
			t.Errorf("step %+v", s)
		}
		seen[s.Name] = true
		if match := targets.FindStringSubmatch(s.Command); match != nil {
			for target := range strings.FieldsSeq(match[2]) {
				if !regexp.MustCompile(`(?m)^` + target + `:`).Match(makefile) {
					t.Errorf("step %s: the Makefile has no target %s", s.Name, target)
				}
			}
		}
	}
	source := map[string]string{} // by package
	for dir := range strings.FieldsSeq(hotPackages + " ./internal/model/tokenizer") {
		files, err := filepath.Glob(filepath.Join("../..", dir, "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Errorf("%s: no tests: %v", dir, err)
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			source[strings.TrimPrefix(dir, "./internal/")] += string(text)
		}
	}
	hot := strings.TrimSuffix(strings.TrimPrefix(hotBenchmarks, "^Benchmark("), ")$")
	all := strings.Join(slices.Collect(maps.Values(source)), "\n")
	for name := range strings.SplitSeq(hot, "|") {
		if !strings.Contains(all, "func Benchmark"+name+"(") {
			t.Errorf("there is no Benchmark%s in %s", name, hotPackages)
		}
	}
	for _, q := range slices.Concat(hotQuotients, tokenizerQuotients) {
		for _, name := range []string{q.Of, q.By} {
			pkg, benchmark, _ := strings.Cut(name, ".")
			benchmark, _, _ = strings.Cut(benchmark, "/")
			if !strings.Contains(source[pkg], "func Benchmark"+benchmark+"(") {
				t.Errorf("%s: there is no Benchmark%s in internal/%s", q.Name, benchmark, pkg)
			}
		}
	}
}

// pathWithout makes a PATH that has these programs and no others.
func pathWithout(t *testing.T, programs ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range programs {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
