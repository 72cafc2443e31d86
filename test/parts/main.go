// Parts runs the parts of make test and of .ci/run, and judges what each of them costs.
//
//	go run ./test/parts                    # all parts, in the order of parts.txt
//	go run ./test/parts static interop     # some of them
//	go run ./test/parts -judge             # and fail where one costs too much
//	go run ./test/parts -page a.json b.json # docs/bench/ci.md from what -keep kept
//	go run ./test/parts -repeats           # fail for tests that were repeated in two of ten runs
//
// A part is a row of parts.txt: a name, a budget, a command. The budget is in CPU seconds
// (user and system) of the test processes and of all that they start and wait for; what the
// compiler takes is shown apart, as it depends on what is in Go's cache. CPU seconds hardly
// depend on what else a machine does, and seconds on a clock do.
//
// With -judge a part fails where it costs more than 1.3 times its budget and 10 CPU seconds,
// twice in a row, and its five dearest tests are named. -lower writes what a part costs into
// parts.txt where that is less than its budget. Nothing but an edit by hand raises a budget,
// and the sum of all budgets stays below the ceiling that parts.txt states.
//
// Parts has two more commands, which the Makefile uses:
//
//	parts exec BINARY ARGS...     # go test -exec: run a test binary and note what it costs
//	parts packages -race ./...    # the packages that the race detector can find something in
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

func main() {
	args := os.Args[1:]
	if len(args) > 1 && args[0] == "exec" {
		os.Exit(meter(args[1:]))
	}
	if len(args) > 0 && args[0] == "packages" {
		os.Exit(list(args[1:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, args, os.Stdout, os.Stderr))
}

func list(args []string) int {
	flags := flag.NewFlagSet("packages", flag.ExitOnError)
	race := flags.Bool("race", false, "list the packages that start goroutines, or hold channels, locks or atomics; without it, the others")
	flags.Parse(args)
	names, err := packages(flags.Args(), *race)
	if err != nil {
		fmt.Fprintln(os.Stderr, "parts:", err)
		return 1
	}
	fmt.Println(strings.Join(names, " "))
	return 0
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("parts", flag.ContinueOnError)
	flags.SetOutput(stderr)
	file := flags.String("file", "test/parts/parts.txt", "the `file` of the parts")
	judge := flags.Bool("judge", false, "run all tests anew, and fail where a part costs more than its budget allows")
	lower := flags.Bool("lower", false, "write what a part costs into the file where that is less than its budget")
	keep := flags.String("keep", "", "keep what the run cost in this `file`, as JSON")
	page := flags.Bool("page", false, "write docs/bench/ci.md from the files of -keep that are given in place of parts")
	history := flags.String("history", defaultHistory(), "count in this `file` which tests had to be repeated in the last ten runs")
	reference := flags.Float64("reference", 0, "what the reference work takes on this machine, in CPU `seconds`; 0: it is measured before each part")
	repeated := flags.Bool("repeats", false, "run nothing, and fail where -history has a test that was repeated in two of the last ten runs")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	fail := func(err error) int {
		fmt.Fprintln(stderr, "parts:", err)
		return 1
	}
	if *repeated {
		runs, err := readHistory(*history)
		if err != nil {
			return fail(err)
		}
		return unsteady(stdout, runs)
	}
	b, err := readBudget(*file)
	if err != nil {
		return fail(err)
	}
	if *page {
		if err := writePage("docs/bench/ci.md", b, flags.Args()); err != nil {
			return fail(err)
		}
		return 0
	}
	chosen := b.parts
	if flags.NArg() > 0 {
		if chosen, err = b.choose(flags.Args()); err != nil {
			return fail(err)
		}
	}
	r := &runner{out: stdout, judge: *judge, budget: b, reference: *reference}
	ok := r.all(ctx, chosen)
	r.close()
	if *judge {
		if err := r.remember(*history); err != nil {
			return fail(err)
		}
	}
	if *keep != "" {
		if err := r.keep(*keep); err != nil {
			return fail(err)
		}
	}
	if *lower && ok {
		if err := b.lower(*file, r.report.Parts); err != nil {
			return fail(err)
		}
	}
	r.lines()
	if !ok {
		return 1
	}
	return 0
}

// choose returns the named parts, in the order of the file.
func (b *budget) choose(names []string) ([]part, error) {
	for _, name := range names {
		if !slices.ContainsFunc(b.parts, func(p part) bool { return p.name == name }) {
			return nil, fmt.Errorf("there is no part %q: %s", name, strings.Join(b.names(), ", "))
		}
	}
	return slices.DeleteFunc(slices.Clone(b.parts), func(p part) bool { return !slices.Contains(names, p.name) }), nil
}
