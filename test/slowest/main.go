// Slowest reads what go test -json prints and prints it as go test does without
// -json: a line for each package as it ends, and the whole output of what
// failed. It closes with the ten slowest tests and the ten slowest packages, and
// with -again the packages' lines follow once more.
//
//	go test -json ./... | go run ./test/slowest -figures figures.json
//
// With -confirm a test that failed is run again by itself, as confirm.go says.
//
// It exits with 1 if a test, a package or a build failed, if a package began and
// did not end, and if no test ran: a pipe hides go test's own exit status.
//
// A package that go test took from its cache is counted, but not listed: its
// tests cost this run nothing. Of tests only those at the top are listed, as a
// test's time includes that of its subtests.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("slowest", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: go test -json ./... | go run ./test/slowest [flags]")
		flags.PrintDefaults()
	}
	file := flags.String("figures", "", "keep the counts and every package's and top test's seconds in this `file`, as JSON")
	again := flags.Bool("again", false, "close with go test's own line of each package once more, for who reads the end")
	program := flags.String("confirm", "", "run a failed test again by itself, by this `program`: it takes a package and a pattern, and prints what go test -json -count=2 prints")
	listed := flags.Int("n", 10, "how many tests and packages to list")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "slowest: %q is not a flag: pipe go test -json into it\n", flags.Arg(0))
		return 2
	}

	r := newReport(stdout)
	if err := r.read(stdin); err != nil {
		fmt.Fprintln(stderr, "slowest: standard input:", err)
		return 1
	}
	var second confirmer
	if *program != "" {
		second = command(*program)
	}
	passed := r.close(*listed, *again, second)
	if *file != "" {
		if err := keep(*file, r.figures); err != nil {
			fmt.Fprintln(stderr, "slowest:", err)
			return 1
		}
	}
	if !passed {
		return 1
	}
	return 0
}

func keep(file string, f figures) error {
	text, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}
