package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMain has the test binary do a part's work where it is run by a part.
func TestMain(m *testing.M) {
	if cost, ok := os.LookupEnv("PARTS_TEST_COST"); ok {
		if cost == "" {
			os.Exit(0)
		}
		var seconds float64
		fmt.Sscan(cost, &seconds)
		costs := metered{"internal/slow", seconds, seconds, map[string]float64{"TestPlanted": seconds - 1, "TestOther": 0.5}}
		if err := costs.append(os.Getenv(costsFile)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Printf("ok  \tweir/internal/slow\t%ss\n", cost)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A part that costs more than it may fails after its second run, and its dearest test is named.
func TestJudge(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv(costsFile, "costs") // not that of the run which this test is a part of
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, first, second string // what the part costs
		judge               bool
		rc                  int
		says, not           []string
	}{
		{"within", "20", "", true, 0, []string{"| slow | ", " | 20 | 10 |", "\nok  \tweir/internal/slow\t20s\n"}, []string{"run again"}},
		{"too dear once", "500", "20", true, 0, []string{"slow took 500 CPU seconds, and may take ", "it is run again", "in its second run"}, []string{"dearest"}},
		{"too dear twice", "500", "501", true, 1, []string{"slow took 501 CPU seconds", "twice in a row", "    500.0  internal/slow TestPlanted\n      0.5  internal/slow", "**too dear**"}, []string{"\nlater\n"}},
		{"no test", "", "", true, 1, []string{"slow has a budget, and ran no test"}, nil},
		{"not judged", "500", "", false, 0, nil, []string{"run again"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			script := fmt.Sprintf("if [ -e ran ]; then cost=%s; else cost=%s; touch ran; fi; PARTS_TEST_COST=$cost exec %s", c.second, c.first, self)
			os.Remove("ran")
			text := "ceiling 100\nreference 10\n# a comment\nslow 10 " + script + "\nlater - echo later\n"
			if err := os.WriteFile("parts.txt", []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			var out, errs bytes.Buffer
			args := []string{"-file", "parts.txt", "-keep", "run.json", "-history", "history", "-reference", "10", fmt.Sprintf("-judge=%v", c.judge)}
			if rc := run(t.Context(), args, &out, &errs); rc != c.rc {
				t.Errorf("exit %d, want %d: %s%s", rc, c.rc, out.String(), errs.String())
			}
			for _, words := range c.says {
				if !strings.Contains(out.String(), words) {
					t.Errorf("it does not say %q:\n%s", words, out.String())
				}
			}
			for _, words := range c.not {
				if strings.Contains(out.String(), words) {
					t.Errorf("it says %q:\n%s", words, out.String())
				}
			}
			if err := writePage("page.md", &budget{ceiling: 100}, []string{"run.json"}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestBadBudgets(t *testing.T) {
	const good = "ceiling 30\nreference 1\na 10 true\nb 20 true\n"
	if _, err := parseBudget(good); err != nil {
		t.Fatal(err)
	}
	for text, says := range map[string]string{
		"":                                   "it has no part",
		"ceiling 30\na 10 true\n":            "no reference",
		strings.Replace(good, "20", "21", 1): "4: the budgets are 31 CPU seconds in all, and the ceiling is 30",
		good + "c\n":                         `5: "c" is no row`,
		good + "c 1\n":                       "5: part c has no command",
		good + "c NaN true\n":                `5: "NaN" is no number`,
		good + "c -1 true\n":                 `5: "-1" is no number`,
	} {
		if _, err := parseBudget(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", text, err, says)
		}
	}
}

// Budgets only go down.
func TestLower(t *testing.T) {
	file := filepath.Join(t.TempDir(), "parts.txt")
	b, err := parseBudget("# of 20\nceiling 130\nreference 1\ncheap  100 x 100 y\ndear 20 x\nnone - x\n")
	if err != nil {
		t.Fatal(err)
	}
	costs := []cost{{Part: "cheap", CPU: 19, Factor: 2, Runs: 1}, {Part: "dear", CPU: 25, Factor: 1, Runs: 1}, {Part: "none", CPU: 1, Factor: 1, Runs: 1}}
	if err := b.lower(file, costs); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if want := "# of 20\nceiling 130\nreference 1\ncheap   10 x 100 y\ndear 20 x\nnone - x\n"; err != nil || string(got) != want {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
}

// CPU time goes to the tests that ran, in equal shares where several did.
func TestShare(t *testing.T) {
	const printed = "\x16=== RUN   TestA\n\x16--- PASS: TestA (0.1s)\n\x16=== RUN   TestB\n\x16=== PAUSE TestB\n\x16=== RUN   TestC\n    \x16=== RUN   TestC/sub\n" +
		"log\x16=== CONT  TestB\n\x16=== NAME  TestC\n\x16--- FAIL: TestB (1s)\n\x16--- SKIP: TestC (1s)\nPASS\n"
	now := 0.0
	var out bytes.Buffer
	tests := share(strings.NewReader(printed), &out, func() float64 { now++; return now })
	if diff := cmp.Diff(map[string]float64{"TestA": 1, "TestB": 1 + 0.5, "TestC": 1 + 0.5 + 1}, tests); diff != "" {
		t.Error("-want +got:\n" + diff)
	}
	if out.String() != printed {
		t.Errorf("it printed %q", out.String())
	}
}

func TestSharing(t *testing.T) {
	for source, want := range map[string]bool{
		"":                                  false,
		"import \"time\"\nvar x = time.Now": false,
		"import \"sync\"\nvar x = sync.OnceValue(f)\nvar y sync.Once": false,
		"import \"sync\"\nvar x sync.Mutex":                           true,
		"import \"sync/atomic\"\nvar x atomic.Int32":                  true,
		"func f() { go f() }":                                         true,
		"type t struct { c <-chan int }":                              true,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\n"+source, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if got := sharing(file); got != want {
			t.Errorf("%q: %v", source, got)
		}
	}
}

func TestPackages(t *testing.T) {
	t.Chdir("../..")
	with, err := packages([]string{"./internal/..."}, true)
	if err != nil {
		t.Fatal(err)
	}
	without, err := packages([]string{"./internal/..."}, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"weir/internal/gateway", "weir/internal/engine/mux", "weir/internal/trace"} {
		if !slices.Contains(with, name) {
			t.Errorf("%s is not tested with the race detector", name)
		}
	}
	for _, name := range []string{"weir/internal/jsonlex", "weir/internal/fleet/queue", "weir/internal/lab/fleetsim"} {
		if !slices.Contains(without, name) {
			t.Errorf("%s is not tested without the race detector", name)
		}
	}
	for _, name := range with {
		if slices.Contains(without, name) {
			t.Errorf("%s is tested twice", name)
		}
	}
}

// A repeated test is listed with its seed, and counted over ten runs.
func TestRepeats(t *testing.T) {
	dir := t.TempDir()
	event := func(action, test, output string) string {
		text, _ := json.Marshal(map[string]string{"Action": action, "Package": "p", "Test": test, "Output": output})
		return string(text) + "\n"
	}
	events := event("output", "TestA/other", "seed 1\n") + event("output", "TestA/sub", "    rapid: seed is 17\n") + event("fail", "TestA/sub", "") + event("fail", "TestA", "") + event("fail", "TestB", "") + event("pass", "TestC", "") +
		"no event\n" + event("pass", "TestA", "")
	if err := os.WriteFile(filepath.Join(dir, "inner.json"), []byte(events), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := repeats(dir)
	if want := []repeat{{"p TestA", []string{"rapid: seed is 17"}}}; err != nil || !cmp.Equal(want, got) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}

	history := filepath.Join(dir, "cache", "repeats")
	says := map[int]bool{}
	for i := range 14 {
		var out bytes.Buffer
		r := runner{out: &out}
		if i == 0 || i == 3 || i == 13 {
			r.report.Repeated = got
		}
		if err := r.remember(history); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out.String(), "p TestA was repeated in two of the last ten runs: mend it") {
			says[i] = true
		}
	}
	if want := []int{3, 4, 5, 6, 7, 8, 9}; !slices.Equal(want, slices.Sorted(maps.Keys(says))) {
		t.Errorf("it is named in runs %v, want %v", slices.Sorted(maps.Keys(says)), want)
	}
}

// The parts of .ci/run stay below their ceiling, and the jobs of the workflow run all of them.
func TestParts(t *testing.T) {
	b, err := readBudget("parts.txt")
	if err != nil {
		t.Fatal(err)
	}
	workflow, err := os.ReadFile("../../.github/workflows/ci.yml")
	if err != nil {
		t.Fatal(err)
	}
	var jobs []string
	for line := range strings.Lines(string(workflow)) {
		if _, list, ok := strings.Cut(line, "- parts: "); ok {
			jobs = append(jobs, strings.Fields(list)...)
		}
	}
	if !slices.Equal(slices.Sorted(slices.Values(jobs)), slices.Sorted(slices.Values(b.names()))) {
		t.Errorf("the jobs of ci.yml run %v, and the parts are %v", jobs, b.names())
	}
}
