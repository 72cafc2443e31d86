package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A repeat is a test that failed among the others and passed by itself.
type repeat struct {
	Test string   // "package Test"
	Seed []string `json:",omitempty"` // the lines of its failure that name a seed
}

func (t repeat) String() string {
	return strings.Join(append([]string{t.Test}, t.Seed...), "\n      ")
}

// seed matches a line of output that names a seed.
var seed = regexp.MustCompile(`(?i)\bseed\b.*[0-9]`)

// repeats reads the events that gotestsum kept in the files *.json of a folder, and returns
// the tests at the top that failed and passed afterwards.
func repeats(dir string) (all []repeat, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		failed := map[string]*repeat{}
		seeds := map[string][]string{}
		lines := bufio.NewReader(f)
		for {
			line, readErr := lines.ReadBytes('\n')
			var e struct{ Action, Package, Test, Output string }
			if json.Unmarshal(line, &e) == nil && e.Test != "" {
				top, _, sub := strings.Cut(e.Test, "/")
				name := e.Package + " " + top
				switch {
				case e.Action == "output" && seed.MatchString(e.Output):
					seeds[e.Test] = append(seeds[e.Test], strings.TrimSpace(e.Output))
				case e.Action == "fail":
					if failed[name] == nil {
						failed[name] = &repeat{Test: name}
					}
					failed[name].Seed = append(failed[name].Seed, seeds[e.Test]...)
				case e.Action == "pass" && !sub && failed[name] != nil:
					all = append(all, *failed[name])
					delete(failed, name)
				}
			}
			if readErr != nil {
				break
			}
		}
		f.Close()
	}
	return all, err
}

// remembered is how many runs remember looks back on.
const remembered = 10

// remember adds the run to a history, and says which tests were repeated in two of the last
// ten runs.
func (r *runner) remember(file string) error {
	runs, err := readHistory(file)
	if err != nil {
		return err
	}
	var names []string
	for _, t := range r.report.Repeated {
		names = append(names, t.Test)
	}
	runs = append(runs, names)
	runs = runs[max(0, len(runs)-remembered):]
	unsteady(r.out, runs)
	var text strings.Builder
	for _, run := range runs {
		line, err := json.Marshal(run)
		if err != nil {
			return err
		}
		text.Write(append(line, '\n'))
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text.String()), 0o644)
}

// unsteady names the tests that were repeated in two runs, and returns 1 if there are any.
func unsteady(out io.Writer, runs [][]string) (code int) {
	for _, name := range twice(runs) {
		fmt.Fprintf(out, "%s was repeated in two of the last ten runs: mend it or delete it\n", name)
		code = 1
	}
	return code
}

// defaultHistory is a file that outlives a clone.
func defaultHistory() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = "bin"
	}
	return filepath.Join(dir, "weir", "repeats.jsonl")
}

// readHistory reads the names of the tests that were repeated, a line for each run.
func readHistory(file string) (runs [][]string, err error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		var names []string
		if json.Unmarshal([]byte(line), &names) == nil {
			runs = append(runs, names)
		}
	}
	return runs, nil
}

// twice returns the names that are in more than one run.
func twice(runs [][]string) (names []string) {
	seen := map[string]int{}
	for _, run := range runs {
		for _, name := range slices.Compact(slices.Sorted(slices.Values(run))) {
			if seen[name]++; seen[name] == 2 {
				names = append(names, name)
			}
		}
	}
	return names
}
