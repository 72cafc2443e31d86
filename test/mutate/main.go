// Command mutate checks tests: it applies mutations to the sources, one at a time and
// in an overlay, and each must make a test fail. From the module's root:
//
//	go run ./test/mutate internal/gateway/mutations.txt [part of a title]
//
// A list is blocks, parted by an empty line: a title after #, the file, the old lines
// after -, each by itself the only such lines of the file, and the new ones after +. A
// block that begins with test names the packages and the tests of all that follow.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// mutation is one change to one file.
type mutation struct {
	title, file string
	old, new    []string
	test        []string // arguments of go test
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./test/mutate LIST [part of a title]")
		os.Exit(2)
	}
	if err := run(os.Args[1], strings.Join(os.Args[2:], " ")); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func run(list, only string) error {
	text, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	all, err := parse(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", list, err)
	}
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	wrong, tried := 0, 0
	passed := map[string]bool{}
	for _, m := range all {
		if !strings.Contains(m.title, only) {
			continue
		}
		// A test that fails in any case catches nothing.
		if as := strings.Join(m.test, " "); !passed[as] {
			if out, err := exec.Command("go", m.arguments()...).CombinedOutput(); err != nil {
				os.Stdout.Write(out)
				return fmt.Errorf("go test %s fails without a mutation: %w", as, err)
			}
			passed[as] = true
		}
		tried++
		began := time.Now()
		verdict := m.try(dir)
		if verdict != caught {
			wrong++
		}
		fmt.Printf("%-9s %-70s %s %.1f s\n", verdict, m.title, m.file, time.Since(began).Seconds())
	}
	fmt.Printf("%d of %d caught\n", tried-wrong, tried)
	if wrong > 0 {
		return fmt.Errorf("%d mutations were not caught", wrong)
	}
	return nil
}

func parse(text string) (all []mutation, err error) {
	var test []string
	for block := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		m := mutation{test: test}
		for line := range strings.Lines(block) {
			line = strings.TrimRight(line, "\n")
			switch mark := line[:min(1, len(line))]; {
			case strings.HasPrefix(line, "test "):
				test = strings.Fields(line)[1:]
			case mark == "#" && m.title == "":
				m.title = strings.TrimSpace(line[1:])
			case mark == "#":
			case mark == "-":
				m.old = append(m.old, line[1:])
			case mark == "+":
				m.new = append(m.new, line[1:])
			default:
				m.file = line
			}
		}
		switch {
		case m.file == "" && m.old == nil:
		case m.title == "" || m.file == "" || m.old == nil || test == nil:
			return nil, fmt.Errorf("block %q lacks a title, a file, old lines, or tests before it", block)
		default:
			all = append(all, m)
		}
	}
	return all, nil
}

// The verdicts on a mutation.
const (
	caught   = "caught"
	survived = "SURVIVED"
	stale    = "STALE" // its old lines are not there, or not once
	broken   = "BROKEN"
)

// lines are the old ones as they are inside of the file.
func (m *mutation) lines() string { return "\n" + strings.Join(m.old, "\n") + "\n" }

// fits reports whether the file has the old lines once.
func (m *mutation) fits(source string) bool { return strings.Count(source, m.lines()) == 1 }

// arguments are those of go, for the tests that must catch the mutation.
func (m *mutation) arguments() []string {
	return append([]string{"test", "-count=1", "-failfast", "-timeout=120s"}, m.test...)
}

// try applies the mutation and runs the tests.
func (m *mutation) try(dir string) string {
	source, err := os.ReadFile(m.file)
	if err != nil || !m.fits(string(source)) {
		return stale
	}
	changed := strings.Join(m.new, "\n") + "\n"
	if len(m.new) == 0 {
		changed = ""
	}
	path, err := filepath.Abs(m.file)
	if err != nil {
		return broken
	}
	mutated := filepath.Join(dir, "mutated.go")
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {path: mutated}})
	if err != nil {
		return broken
	}
	text := strings.Replace(string(source), m.lines(), "\n"+changed, 1)
	if os.WriteFile(mutated, []byte(text), 0o644) != nil || os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o644) != nil {
		return broken
	}
	test := exec.Command("go", m.arguments()...)
	// The environment, and no argument: a test that builds the program takes the overlay, too.
	test.Env = append(os.Environ(), strings.TrimSpace("GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+filepath.Join(dir, "overlay.json")))
	out, err := test.CombinedOutput()
	switch {
	case err == nil:
		return survived
	case bytes.Contains(out, []byte("[build failed]")) || bytes.Contains(out, []byte("[setup failed]")):
		os.Stdout.Write(out)
		return broken
	}
	return caught
}
