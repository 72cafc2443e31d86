package cli

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// simulated runs a simulated engine that each step costs so much until the test ends,
// and gives its URL.
func simulated(t *testing.T, prefill, decode string) (url string) {
	t.Helper()
	x := begun(strings.NewReader(""), "engine", "--listen", "127.0.0.1:0", "--cost", "constant", "--prefill-cost", prefill, "--decode-cost", decode)
	t.Cleanup(func() { x.stop() })
	url, err := x.line("openai ")
	if err != nil {
		t.Fatal(err)
	}
	return url
}

// measured runs weir bench, which must succeed.
func measured(t *testing.T, args ...string) {
	t.Helper()
	if code, stdout, stderr := run(t, append([]string{"bench"}, args...)...); code != 0 {
		t.Fatalf("%q: exit code %d: %s%s", args, code, stdout, stderr)
	}
}

// ttftOf returns a figure of a report's times to the first token, in ms.
func ttftOf(t *testing.T, file, figure string) float64 {
	t.Helper()
	text, err := os.ReadFile(file)
	var r struct {
		TTFT map[string]any `json:"ttft_ms"`
	}
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	v, ok := r.TTFT[figure].(float64)
	if err != nil || !ok {
		t.Fatalf("%s: no %s of ttft_ms, %v", file, figure, err)
	}
	return v
}

// Two runs are compared from their files: what is slower is found, with what
// was asked for otherwise.
func TestReport(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.json"), filepath.Join(dir, "b.json")
	for file, prefill := range map[string]string{a: "5ms", b: "150ms"} {
		measured(t, simulated(t, prefill, "2ms"), "--concurrency", "4", "--requests", "30", "--output-tokens", "4", "--seed", "3", "--json", file)
	}
	code, stdout, stderr := run(t, "report", a, b, "--json", "-")
	var c struct {
		Apart       []string
		Differences []struct {
			Metric, Figure, Finding string
			A, B, By                *float64
			CI95                    [2]*float64
		}
	}
	if err := json.Unmarshal([]byte(stdout), &c); err != nil || code != 0 || len(c.Apart) != 0 {
		t.Fatalf("exit code %d, %v: %s %s", code, err, stdout, stderr)
	}
	// By how much they differ is the machine's doing: that what is found is what the
	// files have is not.
	found := 0
	for _, d := range c.Differences {
		if d.Metric != "ttft_ms" || d.Figure != "mean" && d.Figure != "p50" {
			continue
		}
		found++
		of := [2]float64{ttftOf(t, a, d.Figure), ttftOf(t, b, d.Figure)}
		if d.A == nil || d.B == nil || d.By == nil || *d.A != of[0] || *d.B != of[1] || math.Abs(*d.By-(of[1]-of[0])) > 1e-9*of[1] {
			t.Errorf("%+v of %v", d, of)
		}
		if of[0] < 5 || of[1] < 150 {
			t.Errorf("%s %v, and the engines take 5 and 150 ms", d.Figure, of)
		}
		if higher := d.CI95[0] != nil && *d.CI95[0] > 0; higher != (d.Finding == "higher") {
			t.Errorf("%+v", d)
		}
	}
	if found != 2 {
		t.Errorf("%d figures of ttft_ms", found)
	}
	if code, stdout, _ := run(t, "report", a); code != 0 || !strings.Contains(stdout, "30 complete") || !strings.Contains(stdout, "verdict") {
		t.Errorf("exit code %d: %s", code, stdout)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{a, filepath.Join(dir, "none.json")}, 1, "none.json"},
		{[]string{a, b, a}, 2, "not 3"},
	} {
		if code, _, stderr := run(t, append([]string{"report"}, c.args...)...); code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%q: exit code %d, want %d and %q: %s", c.args, code, c.code, c.want, stderr)
		}
	}
}

// Two sweeps are compared cell by cell: the slower engine is found at the load
// that both were given, and what only one was given is named.
func TestReportSweeps(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	for _, x := range []struct{ name, cost, loads string }{{"a.json", "1ms", "1,2"}, {"b.json", "40ms", "2,4"}} {
		measured(t, simulated(t, x.cost, "1ms"), "--concurrency", x.loads, "--requests", "12", "--repeats", "3", "--output-tokens", "4", "--json", file(x.name))
	}
	code, stdout, stderr := run(t, "report", file("a.json"), file("b.json"), "--html", file("c.html"), "--json", file("c.json"))
	if code != 0 {
		t.Fatalf("exit code %d: %s %s", code, stdout, stderr)
	}
	for _, part := range []string{"only in A: concurrency 1\n", "only in B: concurrency 4\n", "asked for otherwise: server", "ttft_ms p50", "success_rate"} {
		if !strings.Contains(stdout, part) {
			t.Errorf("no %q in\n%s", part, stdout)
		}
	}
	var c struct {
		Cells []struct {
			At          float64
			Runs        [2]int
			Differences []struct {
				Metric, Figure, Finding string
				A, B, By                *float64
			}
		}
	}
	text, err := os.ReadFile(file("c.json"))
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil || len(c.Cells) != 1 || c.Cells[0].At != 2 || c.Cells[0].Runs != [2]int{3, 3} {
		t.Fatalf("%v: %+v", err, c)
	}
	for _, d := range c.Cells[0].Differences {
		// By how much they differ depends on the machine; what B takes at least does not.
		if d.Metric == "ttft_ms" && d.Figure == "p50" && (d.A == nil || d.B == nil || d.By == nil || *d.B < 40 || math.Abs(*d.By-(*d.B-*d.A)) > 1e-9**d.B) {
			t.Errorf("%+v", d)
		}
	}
	if page, err := os.ReadFile(file("c.html")); err != nil || !strings.Contains(string(page), "only in B: concurrency 4") {
		t.Errorf("%v: %s", err, page)
	}
	if code, stdout, stderr := run(t, "report", file("a.json"), "--html", file("again.html")); code != 0 || !strings.Contains(stdout, "concurrency  runs") {
		t.Errorf("exit code %d: %s %s", code, stdout, stderr)
	}
	if page, err := os.ReadFile(file("again.html")); err != nil || strings.Count(string(page), "<details") != 6 {
		t.Errorf("%v: %d bytes", err, len(page))
	}
	one := file("one.json")
	measured(t, simulated(t, "1ms", "1ms"), "--concurrency", "1", "--requests", "2", "--output-tokens", "2", "--json", one)
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{file("a.json"), one}, 2, "compare two of the same kind"},
		{[]string{file("a.json"), file("gone.json")}, 1, "gone.json"},
		{[]string{file("a.json"), file("b.json"), one}, 2, "not 3"},
		{[]string{file("a.json"), file("b.json"), "--html", "-", "--json", "-"}, 2, "another form is printed already"},
		{[]string{file("a.json"), file("b.json"), "--html", filepath.Join(dir, "gone", "x.html")}, 2, "--html"},
	} {
		if code, stdout, stderr := run(t, append([]string{"report"}, c.args...)...); code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%q: exit code %d, want %d and %q: %s%s", c.args, code, c.code, c.want, stdout, stderr)
		}
	}
}
