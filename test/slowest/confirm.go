package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Confirming: a test that failed among all the others is run again by itself,
// twice. If it passes both times it is unsteady: its output has been printed and the
// close names it, but it does not fail the run. A busy machine breaks a test in some
// hundred runs of a thousand tests, and a change that has nothing to do with the test
// would wait for it.
//
// These fail the run whatever a second look would say: a data race, a panic, a test
// or a package that did not end, a package that failed without a failing test (a
// leaked goroutine is found when the tests have passed), a build that failed, and more
// than mayBeUnsteady tests at once.
const mayBeUnsteady = 3

// confirmBound is how long a test that is run again may take, both times together.
const confirmBound = 20 * time.Minute

// certain matches a line of output after which no second look is taken. A data race
// may depend on a moment that does not come twice.
var certain = regexp.MustCompile(`(?m)^\s*(WARNING: DATA RACE|panic: |fatal error: |SIG[A-Z]+: )`)

// A confirmer runs the named tests of a package by themselves and returns what go
// test -json printed.
type confirmer func(pkg string, tests []string) ([]byte, error)

// command returns the confirmer that calls a program with the package and a pattern
// of -run. The program's standard error goes to this process's.
func command(program string) confirmer {
	return func(pkg string, tests []string) ([]byte, error) {
		ctx, cancel := context.WithTimeout(context.Background(), confirmBound)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, pkg, "^("+strings.Join(tests, "|")+")$")
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		return out, err
	}
}

// confirm runs again what failed, if all of it may be unsteady, and moves what passed
// from r.failed to r.unsteady.
func (r *report) confirm(again confirmer) {
	if len(r.failed) == 0 || len(r.failed) > mayBeUnsteady || r.certain {
		return
	}
	byPackage := map[string][]string{}
	var pkgs []string
	for _, name := range r.failed {
		pkg, test, ok := strings.Cut(name, " ")
		if !ok {
			return
		}
		if byPackage[pkg] == nil {
			pkgs = append(pkgs, pkg)
		}
		byPackage[pkg] = append(byPackage[pkg], test)
	}
	for _, pkg := range pkgs {
		tests := byPackage[pkg]
		fmt.Fprintf(r.out, "\n%s %s: failed among the others, runs twice by itself now\n", pkg, strings.Join(tests, ", "))
		out, err := again(pkg, tests)
		second := newReport(r.out)
		if readErr := second.read(bytes.NewReader(out)); err == nil {
			err = readErr
		}
		second.finish()
		if err == nil && second.figures.Tests < len(tests) {
			err = errors.New("they did not run")
		}
		if err != nil || len(second.failed) > 0 {
			fmt.Fprintf(r.out, "%s %s: not confirmed as unsteady: %v\n", pkg, strings.Join(tests, ", "), err)
			continue
		}
		for _, test := range tests {
			name := pkg + " " + test
			r.unsteady = append(r.unsteady, name)
			r.failed = slices.DeleteFunc(r.failed, func(f string) bool { return f == name })
		}
		r.passedAgain(pkg, second.lines)
	}
}

// passedAgain puts go test's line of the second look in the place of the line by which
// the package had failed.
func (r *report) passedAgain(pkg string, lines []string) {
	if len(lines) == 0 {
		return
	}
	for i, line := range r.lines {
		if strings.HasPrefix(line, "FAIL\t"+pkg+"\t") {
			r.lines[i] = lines[len(lines)-1]
		}
	}
}
