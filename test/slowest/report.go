package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// An event is a line of go test -json: go doc cmd/test2json and go help buildjson
// describe them.
type event struct {
	Action  string
	Package string // "" in the output of a build
	Test    string // "" in what concerns the whole package
	Elapsed float64
	Output  string
}

// figures are what a run is remembered by.
type figures struct {
	Packages int // that have test files, or failed
	Cached   int // the packages among them that go test did not run again
	Tests    int // that passed or failed, in cached packages too
	Subtests int
	Skipped  int // tests and subtests
	Failed   int // tests, and packages that failed without a failing test
	Unsteady int `json:",omitempty"` // tests that failed, and passed by themselves; not in Failed

	// Seconds holds the seconds of each package that ran and, as "package
	// Test", of each of its tests at the top.
	Seconds map[string]float64
}

// A report prints packages as they end and keeps what its close prints.
type report struct {
	out     io.Writer
	open    map[string]*pkg
	failed  []string // "package Test" or "package"
	certain bool     // something failed that no second look can take back
	lines   []string // go test's own, one for each package that ended

	unsteady []string // "package Test" that failed, and passed by itself
	pkgs     []timed
	tests    []timed
	figures  figures
}

type timed struct {
	name    string
	seconds float64
}

// A pkg is a package whose end has not been read.
type pkg struct {
	name   string
	tests  []*test // in the order in which they began
	byName map[string]*test
	output []string // of no test
}

type test struct {
	name    string
	ended   string // pass, fail or skip; "" before that
	paused  bool   // waits for its turn among the parallel ones
	seconds float64
	output  []string
}

func newReport(out io.Writer) *report {
	return &report{out: out, open: map[string]*pkg{}, figures: figures{Seconds: map[string]float64{}}}
}

// read takes events until in ends. A line that is no event is printed as it is.
func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if line[0] == '{' && json.Unmarshal(line, &e) == nil && e.Action != "" {
				r.take(e)
			} else {
				fmt.Fprintf(r.out, "%s\n", bytes.TrimRight(line, "\n"))
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) take(e event) {
	if e.Package == "" { // of a build: what the compiler says, at once
		io.WriteString(r.out, e.Output)
		return
	}
	p := r.open[e.Package]
	if p == nil {
		p = &pkg{name: e.Package, byName: map[string]*test{}}
		r.open[e.Package] = p
	}
	switch {
	case e.Test == "" && e.Action == "output":
		p.output = append(p.output, e.Output)
	case e.Test == "":
		if e.Action == "pass" || e.Action == "fail" || e.Action == "skip" {
			r.end(p, e.Action, e.Elapsed)
		}
	default:
		p.test(e.Test).take(e)
	}
}

func (p *pkg) test(name string) *test {
	t := p.byName[name]
	if t == nil {
		t = &test{name: name}
		p.byName[name] = t
		p.tests = append(p.tests, t)
	}
	return t
}

func (t *test) take(e event) {
	switch e.Action {
	case "output":
		if !strings.HasPrefix(e.Output, "=== ") { // RUN, PAUSE, CONT, NAME: of -v
			t.output = append(t.output, e.Output)
		}
	case "pause", "cont":
		t.paused = e.Action == "pause"
	case "pass", "fail", "skip":
		t.ended, t.seconds = e.Action, e.Elapsed
		if e.Action != "fail" {
			t.output = nil
		}
	}
}

// failed reports whether a test failed, or was running when its process ended.
func (t *test) failed() bool { return t.ended == "fail" || t.ended == "" && !t.paused }

// top returns the name of the test at the top that t is or belongs to.
func (t *test) top() string {
	top, _, _ := strings.Cut(t.name, "/")
	return top
}

// end prints a package and counts it. Its action is "" if its end is missing.
func (r *report) end(p *pkg, action string, seconds float64) {
	delete(r.open, p.name)
	cached := action == "pass" && slices.ContainsFunc(p.output, func(line string) bool { return strings.Contains(line, "\t(cached)") })
	if action != "skip" && len(p.output) > 0 {
		r.lines = append(r.lines, p.output[len(p.output)-1])
	}
	before := len(r.failed)
	for _, t := range p.tests {
		r.count(p, t, cached)
	}
	if action == "skip" { // no test files
		p.print(r.out)
		return
	}
	r.figures.Packages++
	if cached {
		r.figures.Cached++
	} else if len(p.tests) > 0 {
		r.pkgs = append(r.pkgs, timed{p.name, seconds})
		r.figures.Seconds[p.name] = seconds
	}
	if action == "pass" {
		p.print(r.out)
		return
	}
	if len(r.failed) == before {
		r.failed = append(r.failed, p.name)
	}
	r.certain = r.certain || p.certain()
	p.printFailed(r.out)
	io.WriteString(r.out, strings.Join(p.output, ""))
	if action == "" {
		fmt.Fprintf(r.out, "FAIL\t%s [no end: go test was stopped]\n", p.name)
	}
}

// certain reports whether a failed package's failure needs no second look: a test did
// not end, or something was printed that is wrong whenever it is seen.
func (p *pkg) certain() bool {
	match := func(lines []string) bool { return certain.MatchString(strings.Join(lines, "")) }
	return match(p.output) || slices.ContainsFunc(p.tests, func(t *test) bool {
		return t.failed() && (t.ended == "" || match(t.output))
	})
}

// count counts a test of a package that ended.
func (r *report) count(p *pkg, t *test, cached bool) {
	f := &r.figures
	switch {
	case t.ended == "skip":
		f.Skipped++
		return
	case t.ended == "" && t.paused: // it never ran
		return
	case t.name != t.top():
		f.Subtests++
		return
	}
	f.Tests++
	name := p.name + " " + t.name
	if t.failed() {
		r.failed = append(r.failed, name)
	}
	if !cached && t.ended != "" {
		r.tests = append(r.tests, timed{name, t.seconds})
		f.Seconds[name] = t.seconds
	}
}

// print prints what go test prints of a package that did not fail: its last
// line, which names it.
func (p *pkg) print(out io.Writer) {
	if len(p.output) > 0 {
		io.WriteString(out, p.output[len(p.output)-1])
	}
}

// printFailed prints the tests that failed, each with its subtests behind it.
func (p *pkg) printFailed(out io.Writer) {
	began := map[string]int{} // of a test at the top: its place among the tests
	for i, t := range slices.Backward(p.tests) {
		began[t.top()] = i
	}
	tests := slices.Clone(p.tests)
	slices.SortStableFunc(tests, func(a, b *test) int { return cmp.Compare(began[a.top()], began[b.top()]) })
	for _, t := range tests {
		if t.failed() {
			t.print(out)
		}
	}
}

// print prints a test that failed as go test without -v does: its verdict, then
// its log, indented as deep as it is nested.
func (t *test) print(out io.Writer) {
	verdict := slices.IndexFunc(t.output, func(line string) bool { return strings.HasPrefix(line, "--- FAIL: ") })
	lines := t.output
	if verdict >= 0 {
		lines = slices.Concat(t.output[verdict:verdict+1], t.output[:verdict], t.output[verdict+1:])
	} else {
		fmt.Fprintf(out, "--- FAIL: %s (did not end)\n", t.name)
	}
	indent := strings.Repeat("    ", strings.Count(t.name, "/"))
	for _, line := range lines {
		io.WriteString(out, indent+line)
	}
}

// finish ends the packages whose end was not read.
func (r *report) finish() {
	for _, name := range slices.Sorted(maps.Keys(r.open)) {
		r.end(r.open[name], "", 0)
	}
}

// close prints the slowest and what failed, with again go test's own lines once
// more, and reports whether tests ran and all of them passed. With a confirmer it takes
// a second look at what failed.
func (r *report) close(listed int, again bool, second confirmer) bool {
	r.finish()
	if second != nil {
		r.confirm(second)
	}
	f := &r.figures
	f.Failed, f.Unsteady = len(r.failed), len(r.unsteady)
	fmt.Fprintf(r.out, "\ntests: %d, subtests: %d, skipped: %d, failed: %d; packages: %d, cached: %d\n",
		f.Tests, f.Subtests, f.Skipped, f.Failed, f.Packages, f.Cached)
	r.list("slowest tests", r.tests, listed)
	r.list("slowest packages", r.pkgs, listed)
	if f.Unsteady > 0 {
		fmt.Fprintf(r.out, "unsteady: failed among the others and passed twice alone. The output above says how; mend them:\n")
		for _, name := range r.unsteady {
			fmt.Fprintf(r.out, "  %s\n", name)
		}
	}
	passed := f.Failed == 0 && f.Tests > 0
	if f.Failed > 0 {
		fmt.Fprintf(r.out, "failed:\n")
		for _, name := range r.failed {
			fmt.Fprintf(r.out, "  %s\n", name)
		}
	} else if !passed {
		fmt.Fprintf(r.out, "no test ran: does go test -json have packages with tests, and does -run match any?\n")
	}
	if again {
		io.WriteString(r.out, "\n"+strings.Join(r.lines, ""))
	}
	if !passed {
		fmt.Fprintln(r.out, "FAIL")
	}
	return passed
}

func (r *report) list(title string, all []timed, n int) {
	if len(all) == 0 {
		return
	}
	slices.SortStableFunc(all, func(a, b timed) int {
		return cmp.Or(cmp.Compare(b.seconds, a.seconds), cmp.Compare(a.name, b.name))
	})
	fmt.Fprintf(r.out, "%s:\n", title)
	for _, t := range all[:min(n, len(all))] {
		fmt.Fprintf(r.out, "%9.2fs  %s\n", t.seconds, t.name)
	}
}
