package main

import (
	"os"
	"path/filepath"
	"testing"
)

// Each mutation of the list changes lines that are still there, once. A line that was changed
// since would otherwise be noticed by nobody until the mutations are run, which takes long.
func TestMutationsAreCurrent(t *testing.T) {
	const root = "../.."
	text, err := os.ReadFile(filepath.Join(root, "internal/gateway/mutations.txt"))
	if err != nil {
		t.Fatal(err)
	}
	all, err := parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 50 {
		t.Errorf("the list has %d mutations", len(all))
	}
	seen := map[string]bool{}
	for _, m := range all {
		source, err := os.ReadFile(filepath.Join(root, m.file))
		if err != nil {
			t.Errorf("%s: %v", m.title, err)
		} else if !m.fits(string(source)) {
			t.Errorf("%s: %s does not have these lines once; change the mutation as the code was changed:\n%s", m.title, m.file, m.lines())
		}
		if seen[m.title] {
			t.Errorf("two mutations are called %q", m.title)
		}
		seen[m.title] = true
	}
}

func TestParse(t *testing.T) {
	all, err := parse("# a note\n\ntest ./a -run B\n\n# one\nf.go\n-\told\n-\n+\tnew\n\n# two\nf.go\n-x\n")
	if err != nil || len(all) != 2 || all[0].lines() != "\n\told\n\n" || all[1].new != nil || all[1].test[0] != "./a" {
		t.Errorf("%+v, %v", all, err)
	}
	if !all[0].fits("a\n\told\n\nb\n") || all[0].fits("a\n\tolder\n\nb\n") || all[1].fits("\nx\nx\nx\n") {
		t.Error("lines fit that are not there once, or the other way round")
	}
	for _, wrong := range []string{"# one\nf.go\n-x\n", "test ./a\n\n# one\nf.go\n+x\n", "test ./a\n\nf.go\n-x\n"} {
		if _, err := parse(wrong); err == nil {
			t.Errorf("%q is taken", wrong)
		}
	}
}
