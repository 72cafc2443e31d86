// Package e2e_test holds what is true of all end-to-end tests.
package e2e_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The tests that make race names exist, each is named once, and each line says
// what race it is for.
func TestRaceList(t *testing.T) {
	text, err := os.ReadFile("race.txt")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`^(\w+) +(Test\w+) +(\w.{20,})$`)
	seen := map[string]bool{}
	for l := range strings.Lines(string(text)) {
		if l = strings.TrimSpace(l); l == "" || strings.HasPrefix(l, "#") {
			continue
		}
		m := line.FindStringSubmatch(l)
		if m == nil {
			t.Errorf("%q is not a package, a test and the race that it covers", l)
			continue
		}
		if seen[m[2]] {
			t.Errorf("%s is named twice", m[2])
		}
		seen[m[2]] = true
		if !exists(t, m[1], m[2]) {
			t.Errorf("there is no %s in test/e2e/%s", m[2], m[1])
		}
	}
	if len(seen) != 15 {
		t.Errorf("%d tests, want 15: a new one takes the place of one that covers less", len(seen))
	}
}

// exists reports whether a package has a test.
func exists(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == name {
				return true
			}
		}
	}
	return false
}
