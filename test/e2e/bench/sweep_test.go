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
		Choices     *struct{ Requests int }
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
	g := startNextDoor(t, "--policy", "round-robin", "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "1ms")
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	out, stderr, code := benchmark(t, g.URL, "--rate", "40..80x2", "--requests", "20", "--repeats", "2", "--output-tokens", "4",
		"--csv", file("s.csv"), "--json", file("s.json"), "--html", file("s.html"))
	if code != 0 {
		t.Fatalf("exit code %d: %s %s", code, out, stderr)
	}
	for _, part := range []string{"runs        4", "sim-1 ", " %, sim-2 ", "ttft p50"} {
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
		if len(p.Runs) != 2 || *p.SuccessRate != 1 || len(p.Engines) != 2 || p.Engines[0].Requests == 0 || p.Engines[0].Requests+p.Engines[1].Requests != 40 {
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
		{`(\[[\d+]+), .*\]`, "$1]"}, {`rate: \[\d+`, "rate: [40"}, {`rate: \d+\.\.\d+`, "rate: 40..80"}, {`output-tokens: \d+`, "output-tokens: 4"},
		{`(policy: \[[\w-]+), .*\]`, "$1]"}, {`output=\d+`, "output=4"},
	}
	for _, name := range harness.Few(t, files) {
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
			out, stderr, _ := harness.Finish(t, "", "experiment", path, "--json", filepath.Join(dir, "r.json"), "--html", filepath.Join(dir, "r.html"))
			r := readSweep(t, filepath.Join(dir, "r.json"))
			if r.Interrupted || len(r.Runs) == 0 {
				t.Fatalf("%s %s\n%s", out, stderr, small)
			}
			for _, run := range r.Runs {
				if run.Report.Complete != 4 || run.Report.Requests != 4 {
					t.Errorf("%+v: %s", run, stderr)
				}
			}
			if strings.Contains(small, "policy:") && (len(r.Points) != 2 || r.Points[1].Choices == nil || r.Points[1].Choices.Requests != 4) {
				t.Errorf("%+v", r.Points)
			}
			if strings.Contains(small, "engines: [1+3]") { // callers are served by decode engines
				n := 0
				for _, e := range r.Points[0].Engines {
					if n += e.Requests; e.Engine == "engine-1" {
						t.Errorf("the prefill engine: %+v", e)
					}
				}
				if n != 4 {
					t.Errorf("%+v", r.Points[0])
				}
			}
			if strings.Contains(small, "engines: 2") && len(r.Points[0].Engines) != 2 {
				t.Errorf("%+v", r.Points[0])
			}
		})
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
		{append(args, args[len(args)-1]), 1, "two are from worker 3"},
		{[]string{"report", "--merge", filepath.Join(dir, "1.json")}, 1, "not a record of weir bench --record"},
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
}
