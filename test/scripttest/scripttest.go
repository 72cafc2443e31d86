// Package scripttest runs scripts that tests read: blocks of commands, a line of dashes,
// and what they print. What a package's commands mean is its own.
//
//	# a remark
//	command
//	another command
//	----
//	what both printed
//
// With -rewrite the printed part is replaced, for review:
//
//	go test ./internal/sim -run TestScripts -rewrite
package scripttest

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "replace what the scripts of testdata print")

// Files holds each script of testdata/*.txt to what run gives for its text.
func Files(t *testing.T, run func(t *testing.T, text string) string) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := run(t, string(text))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(text) {
				t.Errorf("%s differs; it now prints\n%s", file, got)
			}
		})
	}
}

// Run carries out a script's commands, and gives the script with its output replaced by
// what they print into out.
func Run(text string, out *strings.Builder, command func(line string)) string {
	var script strings.Builder
	skipping := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case line == "----":
			fmt.Fprintf(&script, "----\n%s", out.String())
			out.Reset()
			skipping = true
		case skipping && line != "":
		case line == "" || strings.HasPrefix(line, "#"):
			skipping = false
			fmt.Fprintln(&script, line)
		default:
			fmt.Fprintln(&script, line)
			command(line)
		}
	}
	return script.String()
}
