package outputparse

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write what the parsers give into testdata/*.txt; read it before it is committed")

// archive is a file of goldens: what it is about, and sections that begin with a
// line "-- name --". The text of a case is in the section of its name, less the
// last line's end; its prompt, where that matters, before it in "name, prompt",
// and its events after it in "name/events".
type archive struct {
	about    string
	sections []section
}

type section struct{ name, data string }

func parseArchive(data string) *archive {
	a := &archive{}
	to := &a.about
	for line := range strings.Lines(data) {
		if name, ok := strings.CutPrefix(line, "-- "); ok && strings.HasSuffix(name, " --\n") {
			a.sections = append(a.sections, section{name: strings.TrimSuffix(name, " --\n")})
			to = &a.sections[len(a.sections)-1].data
			continue
		}
		*to += line
	}
	return a
}

func (a *archive) String() string {
	out := a.about
	for _, s := range a.sections {
		out += "-- " + s.name + " --\n" + s.data
	}
	return out
}

func goldens(t testing.TB) map[string]*archive {
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) != len(ToolNames()) {
		t.Fatalf("%d files of goldens for %d formats: %v", len(paths), len(ToolNames()), err)
	}
	all := map[string]*archive{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[path] = parseArchive(string(data))
	}
	return all
}

func optionsOf(t testing.TB, path string) Options {
	tools := strings.TrimSuffix(filepath.Base(path), ".txt")
	reasoning := "think"
	if slices.Contains(ReasoningNames(), tools) {
		reasoning = tools
	}
	f, ok := Named(tools, reasoning)
	if !ok {
		t.Fatalf("%s is the name of no format", tools)
	}
	return Options{Format: f, Calls: true, Tools: ReadTools([]byte(testTools))}
}

func (s section) text() string { return strings.TrimSuffix(s.data, "\n") }

// TestGoldens: the texts of each family, whole and in pieces of every size.
func TestGoldens(t *testing.T) {
	for path, a := range goldens(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			o := optionsOf(t, path)
			var out []section
			for i, f := range a.sections {
				if strings.HasSuffix(f.name, "/events") {
					continue
				}
				if out = append(out, f); strings.HasSuffix(f.name, ", prompt") {
					o.Prompt = []byte(f.text())
					continue
				}
				got := read(o, f.text()).lines()
				for _, size := range []int{0, 1, 2, 4, 6, 10, 16} {
					if cut := read(o, f.text(), size+1).lines(); cut != got {
						t.Errorf("%s: in pieces of %d\n%s", f.name, size+1, cmp.Diff(got, cut))
					}
				}
				if i+1 < len(a.sections) && a.sections[i+1].name == f.name+"/events" {
					if diff := cmp.Diff(a.sections[i+1].data, got); diff != "" && !*update {
						t.Errorf("%s: want -, got +\n%s", f.name, diff)
					}
				} else if !*update {
					t.Errorf("%s has no events; run go test -update and read them", f.name)
				}
				out = append(out, section{f.name + "/events", got})
				o.Prompt = nil
			}
			if *update {
				a.sections = out
				if err := os.WriteFile(path, []byte(a.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
