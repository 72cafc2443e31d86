package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// sweepReport is the part of a sweep's report that tests look at.
type sweepReport struct {
	Interrupted bool
	Factors     []struct {
		Factor string
		Values []string
	}
	Points []struct {
		Series  string
		At      float64
		Runs    []int
		Engines []struct {
			Engine   string
			Requests int
		}
		SuccessRate *float64 `json:"success_rate"`
	}
	Searches []struct {
		Low, High float64
		Why       string
		Path      []struct {
			Rate     float64
			Decision string
		}
	}
	Runs []struct {
		At     float64
		Repeat int
		Report struct {
			Requests, Complete int
			Seed               uint64
			Rate               float64
			Concurrency        int
		}
	}
}

func readSweep(t *testing.T, file string) (r sweepReport) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return r
}

// Each rate is run as often as asked for, each time with a seed of its own, in
// one table and in one report of each form; the gateway's engines are in it.
func TestBenchSweep(t *testing.T) {
	harness.Beside(t, harness.Light)
	g := startNextDoor(t, "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "1ms")
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	out, stderr, code := benchmark(t, g.URL, "--rate", "40..80x2", "--requests", "20", "--repeats", "2", "--output-tokens", "4",
		"--csv", file("s.csv"), "--json", file("s.json"), "--html", file("s.html"))
	if code != 0 {
		t.Fatalf("exit code %d: %s %s", code, out, stderr)
	}
	for _, part := range []string{"runs        4", "sim-1 50 %, sim-2 50 %", "ttft p50"} {
		if !strings.Contains(out, part) {
			t.Errorf("no %q in\n%s", part, out)
		}
	}
	if strings.Count(stderr, "of 20 complete") != 4 {
		t.Errorf("progress:\n%s", stderr)
	}
	r := readSweep(t, file("s.json"))
	if len(r.Points) != 2 || r.Points[0].At != 40 || r.Points[1].At != 80 || len(r.Runs) != 4 || r.Interrupted {
		t.Fatalf("%+v", r)
	}
	seeds := map[uint64]bool{}
	for _, p := range r.Points {
		if len(p.Runs) != 2 || *p.SuccessRate != 1 || len(p.Engines) != 2 || p.Engines[0].Requests != 20 {
			t.Errorf("%+v", p)
		}
		for _, i := range p.Runs {
			seeds[r.Runs[i].Report.Seed] = true
			if r.Runs[i].Report.Rate != p.At || r.Runs[i].Report.Complete != 20 {
				t.Errorf("%+v", r.Runs[i])
			}
		}
	}
	if len(seeds) != 4 {
		t.Errorf("seeds %v", seeds)
	}
	if rows := readTable(t, file("s.csv")); len(rows) != 4 || rows[0]["success_rate"] != "1" {
		t.Errorf("%v", rows)
	}
	page, err := os.ReadFile(file("s.html"))
	if err != nil || strings.Count(string(page), "<details") != 4 || !strings.Contains(string(page), "<circle") {
		t.Errorf("%v: %d bytes", err, len(page))
	}
}

// Two sweeps are compared cell by cell: the slower engine is found at the load
// that both were given, and what only one was given is named.
func TestReportSweeps(t *testing.T) {
	harness.Beside(t, harness.Light)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	for _, x := range []struct{ name, cost, loads string }{{"a.json", "1ms", "1,2"}, {"b.json", "40ms", "2,4"}} {
		e := harness.Start(t, "engine", "--listen", "127.0.0.1:0", "--cost", "constant", "--prefill-cost", x.cost, "--decode-cost", "1ms")
		out, stderr, code := benchmark(t, e.Line("openai "), "--concurrency", x.loads, "--requests", "12", "--repeats", "3", "--output-tokens", "4", "--json", file(x.name))
		if code != 0 {
			t.Fatalf("exit code %d: %s %s", code, out, stderr)
		}
	}
	report := func(args ...string) (string, string, int) {
		return harness.Finish(t, "", append([]string{"report"}, args...)...)
	}
	out, stderr, code := report(file("a.json"), file("b.json"), "--html", file("c.html"), "--json", file("c.json"))
	if code != 0 {
		t.Fatalf("exit code %d: %s %s", code, out, stderr)
	}
	for _, part := range []string{"only in A: concurrency 1\n", "only in B: concurrency 4\n", "asked for otherwise: server", "ttft_ms p50", "success_rate"} {
		if !strings.Contains(out, part) {
			t.Errorf("no %q in\n%s", part, out)
		}
	}
	var c struct {
		Cells []struct {
			At          float64
			Runs        [2]int
			Differences []struct {
				Metric, Figure, Finding string
				By                      *float64
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
		// How wide the interval is depends on the machine; by how much they differ at least does not.
		if d.Metric == "ttft_ms" && d.Figure == "p50" && (d.By == nil || *d.By < 20) {
			t.Errorf("%+v", d)
		}
	}
	if page, err := os.ReadFile(file("c.html")); err != nil || !strings.Contains(string(page), "only in B: concurrency 4") {
		t.Errorf("%v: %s", err, page)
	}
	if out, stderr, code := report(file("a.json"), "--html", file("again.html")); code != 0 || !strings.Contains(out, "concurrency  runs") {
		t.Errorf("exit code %d: %s %s", code, out, stderr)
	}
	if page, err := os.ReadFile(file("again.html")); err != nil || strings.Count(string(page), "<details") != 6 {
		t.Errorf("%v: %d bytes", err, len(page))
	}
	one := file("one.json")
	e := harness.Start(t, "engine", "--listen", "127.0.0.1:0", "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "1ms")
	if out, stderr, code := benchmark(t, e.Line("openai "), "--concurrency", "1", "--requests", "2", "--output-tokens", "2", "--json", one); code != 0 {
		t.Fatalf("exit code %d: %s %s", code, out, stderr)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{file("a.json"), one}, 2, "compare like with like"},
		{[]string{file("a.json"), file("gone.json")}, 1, "gone.json"},
		{[]string{file("a.json"), file("b.json"), one}, 2, "not 3"},
		{[]string{file("a.json"), file("b.json"), "--html", "-", "--json", "-"}, 2, "another form is printed already"},
		{[]string{file("a.json"), file("b.json"), "--html", filepath.Join(dir, "gone", "x.html")}, 2, "--html"},
	} {
		if out, stderr, code := report(c.args...); code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%q: exit code %d, want %d and %q: %s%s", c.args, code, c.code, c.want, out, stderr)
		}
	}
}

// A search reports its path and an answer whose ends are in order, in as many
// runs as it was given at the most. What the answer is depends on the machine.
func TestBenchSLO(t *testing.T) {
	harness.Beside(t, harness.Light)
	e := harness.Start(t, "engine", "--listen", "127.0.0.1:0", "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "1ms")
	url := e.Line("openai ")
	file := filepath.Join(t.TempDir(), "s.json")
	out, stderr, code := benchmark(t, url, "--slo", "e2e_p90=30s,success=90%", "--rate", "50..100", "--requests", "70", "--output-tokens", "2", "--trials", "5", "--json", file)
	r := readSweep(t, file)
	if len(r.Searches) != 1 || len(r.Searches[0].Path) == 0 || len(r.Searches[0].Path) > 5 || len(r.Runs) != len(r.Searches[0].Path) {
		t.Fatalf("exit code %d: %s %s", code, out, stderr)
	}
	s := r.Searches[0]
	if s.High > 0 && s.Low >= s.High || s.Why == "" || s.Low > 0 && code != 0 || s.Low == 0 && code != 1 {
		t.Errorf("exit code %d: %+v", code, s)
	}
	for _, step := range s.Path {
		if step.Rate < 50 || step.Rate > 100 || !strings.Contains(stderr, step.Decision) {
			t.Errorf("%+v", step)
		}
	}
	if !strings.Contains(out, "result ") {
		t.Errorf("no result in\n%s", out)
	}
	// No request can be within a microsecond: every rate misses, and that is said.
	out, stderr, code = benchmark(t, url, "--slo", "e2e_p50=1us", "--rate", "100..200", "--requests", "40", "--output-tokens", "2", "--trials", "3")
	if code != 1 || !strings.Contains(stderr+out, "misses") && !strings.Contains(out, "could not be offered") {
		t.Errorf("exit code %d: %s %s", code, out, stderr)
	}
}

// The committed examples run, with less to send and fewer cells: each cell has a
// fleet of its own, whose processes are gone afterwards.
func TestBenchExperiments(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../../examples/*.yaml")
	if err != nil || len(files) < 4 {
		t.Fatal(files, err)
	}
	less := []struct{ from, to string }{
		{`duration: \d+s`, "requests: 4"}, {`requests: \d+`, "requests: 4"}, {`repeats: \d+`, "repeats: 1"}, {`trials: \d+`, "trials: 1"},
		{`(\[\d+), .*\]`, "$1]"}, {`rate: \[\d+`, "rate: [40"}, {`rate: \d+\.\.\d+`, "rate: 40..80"}, {`output-tokens: \d+`, "output-tokens: 4"},
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".yaml"), func(t *testing.T) {
			harness.Beside(t, harness.Light)
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			small := string(text)
			for _, l := range less {
				small = regexp.MustCompile(l.from).ReplaceAllString(small, l.to)
			}
			dir := t.TempDir()
			path := filepath.Join(dir, "small.yaml")
			harness.WriteFile(t, path, small)
			out, stderr, _ := benchmark(t, "--experiment", path, "--json", filepath.Join(dir, "r.json"), "--html", filepath.Join(dir, "r.html"))
			r := readSweep(t, filepath.Join(dir, "r.json"))
			if r.Interrupted || len(r.Runs) == 0 {
				t.Fatalf("%s %s\n%s", out, stderr, small)
			}
			for _, run := range r.Runs {
				if run.Report.Complete != 4 || run.Report.Requests != 4 {
					t.Errorf("%+v: %s", run, stderr)
				}
			}
			if strings.Contains(small, "engines: 2") && len(r.Points[0].Engines) != 2 {
				t.Errorf("%+v", r.Points[0])
			}
		})
	}
}

func TestBenchSweepBadInput(t *testing.T) {
	harness.Beside(t, harness.Light)
	dir := t.TempDir()
	wrong := filepath.Join(dir, "wrong.yaml")
	harness.WriteFile(t, wrong, "load:\n  rate: [1, 2]\n  reqests: 5\n")
	nothing := filepath.Join(dir, "nothing.yaml")
	harness.WriteFile(t, nothing, "load: {rate: [1, 2]}\nfleet: {engine: {decode-cost: [1ms, fast]}}\n")
	const url = "http://127.0.0.1:1"
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{url, "--rate", "1,x", "--requests", "1"}, 2, `"x": want a positive number`},
		{[]string{url, "--rate", "1..8", "--requests", "1"}, 2, "a range to sweep needs steps"},
		{[]string{url, "--rate", "1,2", "--concurrency", "1,2", "--requests", "1"}, 2, "give one of them"},
		{[]string{url, "--concurrency", "1.5", "--requests", "1"}, 2, "whole numbers"},
		{[]string{url, "--rate", "1,2"}, 2, "say how much to send"},
		{[]string{url, "--rate", "1,2", "--requests", "1", "--jsonl", "x"}, 2, "--jsonl is of one run"},
		{[]string{url, "--rate", "1", "--requests", "1", "--repeats", "2"}, 2, "--repeats is of a sweep"},
		{[]string{url, "--rate", "1", "--requests", "1", "--trials", "2"}, 2, "--trials is of a search"},
		{[]string{url, "--slo", "ttft_p99=fast", "--requests", "1"}, 2, "is no time such as"},
		{[]string{url, "--slo", "success=99%", "--requests", "1", "--concurrency", "2"}, 2, "drop --concurrency"},
		{[]string{url, "--slo", "success=99%", "--requests", "1", "--rate", "1,2"}, 2, "chooses the rates itself"},
		{[]string{url, "--slo", "success=99%", "--workload", "synthetic:rate=1,input=1,output=1,requests=1"}, 2, "drop one of them"},
		{[]string{url, "--rate", "100,200", "--requests", "2", "--model", "m"}, 1, "no request reached the server"},
		{[]string{url, "--experiment", wrong}, 2, "drop the url"},
		{[]string{"--experiment", wrong, "--rate", "5"}, 2, "drop --rate"},
		{[]string{"--experiment", wrong}, 2, `line 3: unknown key "reqests" (did you mean "requests"?)`},
		{[]string{"--experiment", nothing}, 2, "say how much to send"},
		{[]string{"--experiment", filepath.Join(dir, "gone.yaml")}, 2, "no such file"},
	} {
		out, stderr, code := benchmark(t, c.args...)
		if code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%q: exit code %d, want %d and %q:\n%s%s", c.args, code, c.code, c.want, out, stderr)
		}
	}
}

// Three workers, each a process of its own, send the schedule of one between
// them; their merged report counts every request once, on the engines too.
func TestBenchWorkers(t *testing.T) {
	harness.Beside(t, harness.Light)
	g := startNextDoor(t, "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "1ms")
	dir := t.TempDir()
	at := time.Now().Add(3 * time.Second).UTC().Format(time.RFC3339Nano)
	var running []*harness.Process
	args := []string{"report", "--merge", "--json", filepath.Join(dir, "all.json")}
	for k := 1; k <= 3; k++ {
		record := filepath.Join(dir, fmt.Sprint(k))
		running = append(running, harness.Start(t, "bench", g.URL, "--rate", "60", "--requests", "100", "--output-tokens", "4",
			"--worker", fmt.Sprintf("%d/3", k), "--start-at", at, "--record", record, "--json", record+".json"))
		args = append(args, record)
	}
	seen := 0
	for k, p := range running {
		select {
		case <-p.Exited:
		case <-time.After(3 * time.Minute):
			t.Fatal("a worker does not end")
		}
		if p.Err != nil {
			t.Fatal(p.Err)
		}
		text, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(k+1)+".json"))
		if err != nil {
			t.Fatal(err)
		}
		seen += readBenchReport(t, text).Complete
	}
	out, stderr, code := harness.Finish(t, "", args...)
	if code != 0 || !strings.Contains(out, "(3 workers)") {
		t.Fatalf("exit code %d: %s %s", code, out, stderr)
	}
	text, err := os.ReadFile(filepath.Join(dir, "all.json"))
	if err != nil {
		t.Fatal(err)
	}
	r := readBenchReport(t, text)
	if seen != 100 || r.Requests != 100 || r.Complete != 100 || len(r.Engines) != 2 || r.Engines[0].Requests+r.Engines[1].Requests != 100 || r.TTFT.Count != 100 {
		t.Errorf("%d of the workers: %+v", seen, r)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{args[:len(args)-1], 1, "the record of worker 3 of 3 is missing"},
		{append(args, args[len(args)-1]), 1, "two are of worker 3"},
		{[]string{"report", "--merge", filepath.Join(dir, "1.json")}, 1, "not a record of weir bench --record"},
		{[]string{"bench", g.URL, "--rate", "5", "--requests", "1", "--worker", "3/2"}, 2, "want K/N"},
		{[]string{"bench", g.URL, "--rate", "5", "--requests", "1", "--worker", "1/2"}, 2, "needs --start-at"},
		{[]string{"bench", g.URL, "--concurrency", "5", "--requests", "1", "--worker", "1/2"}, 2, "shares an open loop"},
		{[]string{"bench", g.URL, "--rate", "5", "--requests", "1", "--worker", "1/2", "--start-at", "1000"}, 2, "ago"},
		{[]string{"bench", g.URL, "--rate", "5", "--requests", "1", "--start-at", "soon"}, 2, "want a time"},
	} {
		if out, stderr, code := harness.Finish(t, "", c.args...); code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%q: exit code %d, want %d and %q: %s%s", c.args, code, c.code, c.want, out, stderr)
		}
	}
}

// Users speak in turns: each turn's prompt holds those before it, which the rows
// show. Texts are sent as they stand in their file.
func TestBenchSessions(t *testing.T) {
	harness.Beside(t, harness.Light)
	e := harness.Start(t, "engine", "--listen", "127.0.0.1:0", "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "1ms")
	url := e.Line("openai ")
	dir := t.TempDir()
	rows := filepath.Join(dir, "r.csv")
	out, stderr, code := benchmark(t, url, "--workload", "synthetic:concurrency=2,turns=3,think=1ms,requests=12,input=20,output=5", "--field", "ignore_eos=true", "--csv", rows)
	if code != 0 || !strings.Contains(out, "12 complete") || !strings.Contains(out, "sessions ") {
		t.Fatalf("exit code %d: %s %s", code, out, stderr)
	}
	prompts := map[string]map[string]int{}
	for _, row := range readTable(t, rows) {
		if prompts[row["session"]] == nil {
			prompts[row["session"]] = map[string]int{}
		}
		n, err := strconv.Atoi(row["prompt_tokens"])
		if err != nil {
			t.Fatal(err)
		}
		prompts[row["session"]][row["turn"]] = n
	}
	grown := 0
	for _, turns := range prompts {
		if turns["2"] > 0 {
			grown++
			if turns["2"] < turns["1"]+25 || turns["3"] > 0 && turns["3"] < turns["2"]+25 {
				t.Errorf("prompts of a session: %v", turns)
			}
		}
	}
	if grown == 0 {
		t.Errorf("no session has a second turn: %v", prompts)
	}
	texts := filepath.Join(dir, "texts.json")
	harness.WriteFile(t, texts, `[{"conversations": [{"from": "human", "value": "Say \"hello\"."}, {"from": "gpt", "value": "one two three four"}]}, {"prompt": "again", "output_tokens": 6}]`)
	out, stderr, code = benchmark(t, url, "--workload", "synthetic:concurrency=1,texts="+texts, "--field", "ignore_eos=true", "--csv", rows)
	if got := readTable(t, rows); code != 0 || len(got) != 2 || got[0]["completion_tokens"] != "4" || got[1]["completion_tokens"] != "6" {
		t.Errorf("exit code %d: %s %s %v", code, out, stderr, got)
	}
	for args, want := range map[string]string{
		"--workload synthetic:concurrency=1,texts=/gone":                         "gone",
		"--workload synthetic:rate=1,turns=3,requests=1,input=1,output=1":        "need concurrency=N",
		"--workload synthetic:concurrency=1,turns=x,requests=1,input=1,output=1": "turns",
		"--requests 1 --image /gone.png":                                         "--image",
		"--requests 1 --image " + texts:                                          "no image",
		"--requests 1 --api openai-completions --image http://h/i.png":           "images and turns",
	} {
		if out, stderr, code := benchmark(t, append([]string{url}, strings.Fields(args)...)...); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, want %q: %s%s", args, code, want, out, stderr)
		}
	}
}
