package nightly

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestManual holds the table of kinds in docs/tests.md to the rules.
func TestManual(t *testing.T) {
	const name, begin, end = "../../../docs/tests.md", "<!-- kinds -->\n", "<!-- end -->\n"
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	shown, after, ended := strings.Cut(rest, end)
	if !ok || !ended {
		t.Fatalf("%s has no table between %q and %q", name, begin, end)
	}
	want := "| kind | is | better | tolerance | compared |\n|---|---|---|---|---|\n"
	for _, r := range Rules() {
		want += fmt.Sprintf("| %s | %s | %s | %.0f %% | %s |\n", r.Kind, r.What, r.Better, 100*r.Bound, r.Needs)
	}
	if *rewrite {
		if err := os.WriteFile(name, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, shown); diff != "" {
		t.Errorf("%s is not what the code does; -rewrite writes it:\n%s", name, diff)
	}
}
