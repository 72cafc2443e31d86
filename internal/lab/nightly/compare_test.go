package nightly

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the expected output in testdata; read it before it is committed")

// TestReports: each folder of testdata has a baseline, a run, and what is made of the
// two. The steps of both exist, but for one called gone.
func TestReports(t *testing.T) {
	folders, err := filepath.Glob("testdata/*/run.json")
	if err != nil || len(folders) == 0 {
		t.Fatal(folders, err)
	}
	for _, path := range folders {
		folder := filepath.Dir(path)
		t.Run(filepath.Base(folder), func(t *testing.T) {
			base, run := readFile(t, filepath.Join(folder, "base.json")), readFile(t, path)
			var names []string
			for _, s := range slices.Concat(base.Steps, run.Steps) {
				if s.Name != "gone" {
					names = append(names, s.Name)
				}
			}
			found := Compare(base, run, names)
			var out bytes.Buffer
			fails, err := Report(&out, run, found, false)
			if err != nil {
				t.Fatal(err)
			}
			if fails != strings.Contains(out.String(), "\nFAIL: ") {
				t.Errorf("fails %v, and says\n%s", fails, out.String())
			}
			fmt.Fprintf(&out, "\nwith --allow-missing, it ends with\n%s\n", end(t, run, found))
			golden(t, filepath.Join(folder, "report"), out.Bytes())
		})
	}
}

// end is what a report ends with where steps may be missing.
func end(t *testing.T, run *Record, found []Finding) string {
	t.Helper()
	var out bytes.Buffer
	if _, err := Report(&out, run, found, true); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	from := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "FAIL: ") || l == "nothing got worse" })
	return strings.Join(lines[from:], "\n")
}

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s; -rewrite writes it:\n%s", file, diff)
	}
}

func readFile(t *testing.T, name string) *Record {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Read(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// drawFigures draws figures of every kind, with repeats and without.
func drawFigures(t *rapid.T) []Figure {
	var all []Figure
	for _, name := range rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]{1,3}`), 1, 6, rapid.ID[string]).Draw(t, "names") {
		rule := rapid.SampledFrom(rules).Draw(t, "rule")
		samples := rapid.SliceOfN(rapid.Float64Range(0, 1e6), 1, 5).Draw(t, "samples")
		all = append(all, Of(name, rule.Kind, "u", samples...))
	}
	return all
}

func drawRecord(t *rapid.T) *Record {
	r := &Record{}
	for _, name := range rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]{1,3}`), 1, 4, rapid.ID[string]).Draw(t, "steps") {
		r.Steps = append(r.Steps, Result{
			Name: name, Command: "c", Outcome: Passed, About: About{Commit: "1", Machine: "m"},
			Others: rapid.SampledFrom([]float64{0, 1}).Draw(t, "others"), Figures: drawFigures(t),
		})
	}
	return r
}

// A run is as good as itself; so is one whose figures moved by less than their
// tolerance; and what is accepted, then compared, does not fail.
func TestHeld(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRecord(t)
		var names []string
		for _, s := range r.Steps {
			names = append(names, s.Name)
		}
		for _, f := range Compare(r, r, names) {
			if f.Fails(false) || f.Verdict != Held && f.Verdict != NotJudged {
				t.Fatalf("%+v", f)
			}
		}
		accepted := new(Record)
		accepted.Accept(r)
		for _, f := range Compare(accepted, r, names) {
			if f.Fails(false) {
				t.Fatalf("accepted, and then %+v", f)
			}
		}
	})
}

// For one figure: a value on the better side of the baseline is never worse, a value within the
// tolerance is held, and a value beyond a worse one is worse.
func TestJudge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		old := drawFigures(t)[0]
		rule, _ := old.Kind.rule()
		at := func(worseBy float64) Figure {
			now := old
			if now.Value += worseBy; rule.Better != Stay {
				now.Value = old.Value - worseBy*float64(rule.Better)
			}
			return now
		}
		verdict := func(worseBy float64) Verdict {
			v, _ := judge(old, at(worseBy), func(Rule) string { return "" })
			return v
		}
		tolerance := rule.tolerance(old)
		further := rapid.Float64Range(1, 1e6).Draw(t, "further")
		// Rounding is at the bound itself.
		if v := verdict(tolerance*1.001 + further); v != Worse {
			t.Fatalf("%+v by %v: %v", old, tolerance+further, v)
		}
		if v := verdict(tolerance * rapid.Float64Range(0, 0.999).Draw(t, "within")); v != Held {
			t.Fatalf("%+v within %v: %v", old, tolerance, v)
		}
		if rule.Better != Stay {
			if v := verdict(-tolerance*1.001 - further); v != Improved {
				t.Fatalf("%+v better by %v: %v", old, tolerance+further, v)
			}
		}
		if v, why := judge(old, at(further), func(Rule) string { return "another machine" }); v != NotJudged || why == "" {
			t.Fatalf("%+v on another machine: %v", old, v)
		}
	})
}
