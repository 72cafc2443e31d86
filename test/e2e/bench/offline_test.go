package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

const sampleTrace = "../../../docs/samples/synthetic-chat.jsonl"

// replay runs weir engine --offline to its end.
func replay(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return harness.Finish(t, stdin, append([]string{"engine", "--offline"}, args...)...)
}

// figures are those of a report that tests look at.
type figures struct {
	Interrupted                             bool
	Requests, Finished, Refused, Unfinished int
	PromptTokens                            int64 `json:"prompt_tokens"`
	OutputTokens                            int64 `json:"output_tokens"`
	CachedTokens                            int64 `json:"cached_tokens"`
	Retractions                             int64
	Evicted                                 int64   `json:"evicted_tokens"`
	Virtual                                 float64 `json:"virtual_seconds"`
	Real                                    float64 `json:"real_seconds"`
	TTFT, TPOT, E2E                         struct {
		Count    int
		Mean     float64
		P50, Max float64
	}
}

func (f *figures) UnmarshalJSON(b []byte) error {
	type plain figures
	b = regexp.MustCompile(`"(ttft|tpot|e2e)_ms"`).ReplaceAll(b, []byte(`"$1"`))
	return json.Unmarshal(b, (*plain)(f))
}

func replayed(t *testing.T, stdin string, args ...string) figures {
	t.Helper()
	stdout, stderr, code := replay(t, stdin, append(args, "--json", "-")...)
	if code != 0 || stderr != "" {
		t.Fatalf("%v: exit code %d: %s", args, code, stderr)
	}
	var f figures
	if err := json.Unmarshal([]byte(stdout), &f); err != nil {
		t.Fatalf("%v: %s", err, stdout)
	}
	return f
}

// A trace is replayed, and what is printed, written as JSON and written line by
// line tells one story.
func TestOffline(t *testing.T) {
	harness.Beside(t, harness.Light)
	dir := t.TempDir()
	report, lines := filepath.Join(dir, "report.json"), filepath.Join(dir, "requests.jsonl")
	stdout, stderr, code := replay(t, "", sampleTrace, "--cost", "profile=llama-3.1-8b-h100", "--json", report, "--jsonl", lines)
	if code != 0 || stderr != "" {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, want := range []string{
		`workload    ../../../docs/samples/synthetic-chat.jsonl \(mooncake\), seed 1\n`,
		`engine      cost profile=llama-3.1-8b-h100; 256 running, unlimited queued`,
		`requests    269: 269 finished, 0 refused\n`,
		`time        7m\S+ virtual in \S+ real, \d+ times as fast\n`,
		`(?m)^ttft +269( +[\d.]+){5}$`, `(?m)^itl +\d+( +[\d.]+){5}$`, `(?m)^queue +269`, `(?m)^running( +[\d.]+){5}$`,
	} {
		if !regexp.MustCompile(want).MatchString(stdout) {
			t.Errorf("no %s in\n%s", want, stdout)
		}
	}
	var f figures
	b, err := os.ReadFile(report)
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(lines)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var n int
	var prompt, output, ttft int64
	seen := map[string]bool{}
	for s := bufio.NewScanner(file); s.Scan(); n++ {
		var r struct {
			ID      string `json:"request_id"`
			Prompt  int64  `json:"prompt_tokens"`
			Output  int64  `json:"completion_tokens"`
			Arrival int64  `json:"arrival_time"`
			First   int64  `json:"server_first_token_time"`
			TTFT    int64
			Reason  string `json:"finish_reason"`
		}
		if err := json.Unmarshal(s.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if seen[r.ID] || r.Reason != "length" || r.TTFT != r.First-r.Arrival || r.TTFT <= 0 {
			t.Errorf("line %s", s.Text())
		}
		seen[r.ID] = true
		prompt, output, ttft = prompt+r.Prompt, output+r.Output, ttft+r.TTFT
	}
	if n != 269 || f.Finished != n || f.PromptTokens != prompt || f.OutputTokens != output || math.Abs(f.TTFT.Mean-float64(ttft)/float64(n)/1e6) > 1e-6 {
		t.Errorf("%d lines with %d and %d tokens, TTFT %d in all; the report has %+v", n, prompt, output, ttft, f)
	}

	// The same again is the same, but for the real time; the trace may come from
	// standard input.
	trace, err := os.ReadFile(sampleTrace)
	if err != nil {
		t.Fatal(err)
	}
	g := replayed(t, string(trace), "mooncake:-", "--cost", "profile=llama-3.1-8b-h100")
	f.Real, g.Real = 0, 0
	if f != g {
		t.Errorf("the same replay gives %+v and %+v", f, g)
	}
	// Twice as fast, it takes about half as long.
	if g := replayed(t, "", sampleTrace, "--cost", "profile=llama-3.1-8b-h100", "--trace-speed", "2"); g.Finished != 269 || math.Abs(g.Virtual/f.Virtual-0.5) > 0.05 {
		t.Errorf("at twice the rate: %+v", g)
	}
}

// The KV cache finds what the trace says was there before, and one that is too
// small costs time, but no request and no token.
func TestOfflineCache(t *testing.T) {
	harness.Beside(t, harness.Light)
	profile := []string{sampleTrace, "--cost", "profile=llama-3.1-8b-h100"}
	without := replayed(t, "", profile...)
	large := replayed(t, "", append(profile, "--max-total-tokens", "467280")...)
	small := replayed(t, "", append(profile, "--max-total-tokens", "20000", "--page-size", "64", "--trace-speed", "4")...)
	if without.CachedTokens != 0 || float64(large.CachedTokens) < 0.6*float64(large.PromptTokens) || large.TTFT.Mean > 0.5*without.TTFT.Mean {
		t.Errorf("without a cache %+v, with one %+v", without, large)
	}
	if small.CachedTokens >= large.CachedTokens || small.Evicted == 0 || small.TTFT.Mean <= large.TTFT.Mean {
		t.Errorf("with a small cache %+v", small)
	}
	for _, f := range []figures{large, small} {
		if f.Finished != 269 || f.PromptTokens != without.PromptTokens || f.OutputTokens != without.OutputTokens {
			t.Errorf("%+v, want the tokens of %+v", f, without)
		}
	}
}

// A request alone takes exactly what the cost model says.
func TestOfflineCosts(t *testing.T) {
	harness.Beside(t, harness.Light)
	table := filepath.Join(t.TempDir(), "cost.csv")
	harness.WriteFile(t, table, "phase,tokens,batch,ms\nprefill,1000,,40\nprefill,3000,,100\ndecode,,1,7.5\ndecode,,64,20\n")
	const trace = `{"timestamp":0,"input_length":2000,"output_length":101}`
	for cost, want := range map[string][2]float64{ // TTFT and TPOT in ms
		"per-batch":                 {4.21e-7*2000*2000 + 0.0152*2000 + 16.5, 6.35},
		"constant":                  {30, 4},
		"table=" + table:            {70, 7.5},
		"profile=llama-3.1-8b-h100": {5.752705191348184 + 2000*0.01725086436834028, 5.752705191348184 + 0.005999143920128404},
	} {
		f := replayed(t, trace, "-", "--cost", cost, "--prefill-cost", "30ms", "--decode-cost", "4ms")
		// Steps are whole nanoseconds.
		if math.Abs(f.TTFT.Max-want[0]) > 2e-6 || math.Abs(f.TPOT.Max-want[1]) > 2e-6 || math.Abs(f.E2E.Max-want[0]-100*want[1]) > 2e-4 {
			t.Errorf("%s: TTFT %v and TPOT %v ms, E2E %v; want %v", cost, f.TTFT.Max, f.TPOT.Max, f.E2E.Max, want)
		}
	}
}

// An hour of seven requests a second, of lengths as in Mooncake's trace of
// conversations, is told by its figures; what time it takes is printed (docs/offline.md).
func TestOfflineHour(t *testing.T) {
	harness.Beside(t, harness.Heavy)
	minutes := 60
	if harness.RaceEnabled { // whose time is not the program's
		minutes = 10
	}
	cmd := exec.Command(harness.Binary, "engine", "--json", "-", "--cost", "profile=llama-3.1-8b-h100-tp2", "--max-total-tokens", "2114224", "--max-running-requests", "1024",
		"--offline", fmt.Sprintf("synthetic:rate=7,duration=%dm,input=lognormal(6000,5000),prefix=lognormal(5000,2000),groups=500,zipf=1,output=lognormal(340,300)", minutes))
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var f figures
	if err := json.Unmarshal(out, &f); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if want := 7 * 60 * minutes; f.Requests < want*95/100 || f.Requests > want*105/100 || f.PromptTokens < int64(want)*8000 || f.Unfinished != 0 {
		t.Errorf("%+v", f)
	}
	cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	t.Logf("%.0f s of virtual time in %.3f s, %v of CPU", f.Virtual, f.Real, cpu)
}

// Ctrl-C prints what was replayed, and says so.
func TestOfflineInterrupted(t *testing.T) {
	harness.Beside(t, harness.Light)
	dir := t.TempDir()
	report, lines := filepath.Join(dir, "report.json"), filepath.Join(dir, "requests.jsonl")
	p := harness.Start(t, "engine", "--offline", "synthetic:rate=5,requests=1000000000,input=100,output=100", "--json", report, "--jsonl", lines)
	harness.Eventually(t, "begun", func() bool { info, err := os.Stat(lines); return err == nil && info.Size() > 0 })
	p.Interrupt()
	if rest := p.Line("INTERRUPTED after "); rest == "" {
		t.Error("it does not say where it was interrupted")
	}
	var f figures
	b, err := os.ReadFile(report)
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !f.Interrupted || f.Finished == 0 || f.Requests != f.Finished+f.Unfinished || f.TTFT.Count != f.Finished {
		t.Errorf("report %+v", f)
	}
	b, err = os.ReadFile(lines)
	if err != nil || bytes.Count(b, []byte("\n")) != f.Finished || !bytes.HasSuffix(b, []byte("}\n")) {
		t.Errorf("%d lines of %d requests: %v", bytes.Count(b, []byte("\n")), f.Finished, err)
	}
}

// Conversations are tokenized by the engine's model.
func TestOfflineTexts(t *testing.T) {
	harness.Beside(t, harness.Light)
	file := filepath.Join(t.TempDir(), "chats.json")
	prompt, answer := "Tell me about rivers and weirs, please.", "A weir is a low dam across a river."
	chat, err := json.Marshal([]any{map[string]any{"conversations": []any{
		map[string]string{"from": "human", "value": prompt}, map[string]string{"from": "gpt", "value": answer},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	harness.WriteFile(t, file, string(chat))
	f := replayed(t, "", "synthetic:concurrency=1,texts="+file)
	count := func(text string) int64 {
		ids, _, _ := harness.Tokenize(t, text, "-")
		return int64(strings.Count(ids, ",") + 1)
	}
	if f.Finished != 1 || f.PromptTokens != count(prompt) || f.OutputTokens != count(answer) {
		t.Errorf("%+v, want %d and %d tokens", f, count(prompt), count(answer))
	}
}

// What is wrong is said with its place, and nothing is printed as if it were a
// report.
func TestOfflineErrors(t *testing.T) {
	harness.Beside(t, harness.Light)
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		harness.WriteFile(t, path, content)
		return path
	}
	good := `{"timestamp":0,"input_length":5,"output_length":5}` + "\n"
	bad := file("bad.jsonl", good+good+`{"timestamp":0,"input_length":-5,"output_length":5}`)
	unsorted := file("unsorted.csv", "Timestamp,Request tokens,Response tokens\n5,1,1\n4,1,1\n")
	words := file("words.txt", "It was a dark and stormy night\n")
	cost := file("cost.csv", "phase,tokens,batch,ms\nprefill,1,,x\n")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{filepath.Join(dir, "none")}, 1, "--offline: open " + dir + "/none: no such file"},
		{[]string{dir}, 1, "is a directory"},
		{[]string{bad}, 1, bad + ":3: input_length: -5 is negative"},
		{[]string{unsorted}, 1, unsorted + ":3: Timestamp: it is 1s before the request on the line before; sort the trace by time"},
		{[]string{words}, 1, words + ":1: neither a JSON object nor a known header"},
		{[]string{"azure:" + unsorted}, 1, unsorted + ":1: ContextTokens: the header has no such column"},
		{[]string{"-"}, 1, "standard input: the file is empty"},
		{[]string{"synthetic:rate=x"}, 2, `--offline: synthetic: rate: "x" is not a number of requests per second`},
		{[]string{sampleTrace, "--wire", "weir"}, 2, "--offline serves nothing, and its trace says what is asked: drop --wire"},
		{[]string{sampleTrace, "--fault", "cut"}, 2, "drop --fault"},
		{[]string{sampleTrace, "--enable-metrics"}, 2, "drop --enable-metrics"},
		{[]string{sampleTrace, "--page-size", "0"}, 2, "--page-size must be at least 1"},
		{[]string{sampleTrace, "--trace-speed", "0"}, 2, "--trace-speed and --trace-block must be positive"},
		{[]string{sampleTrace, "--trace-block", "16"}, 1, sampleTrace + ":1: hash_ids: there are 9 for an input_length of 4254; blocks of 16 tokens need 266"},
		{[]string{sampleTrace, "--cost", "free"}, 2, "--cost free: must be per-batch, constant, table=FILE or profile=NAME"},
		{[]string{sampleTrace, "--cost", "profile=gpt-5"}, 2, `--cost: no profile "gpt-5"; the profiles are dynamo-mocker, llama-3.1-8b-a100`},
		{[]string{sampleTrace, "--cost", "table=" + cost}, 1, "--cost: " + cost + `:2:12: ms: "x" is not a number`},
		{[]string{sampleTrace, "--cost", "table=" + dir + "/none"}, 1, "--cost: open " + dir + "/none: no such file"},
		{[]string{sampleTrace, "--json", "/dev/full"}, 1, "no space left on device"},
		{[]string{sampleTrace, "--jsonl", "/dev/full"}, 1, "no space left on device"},
		{[]string{sampleTrace, "--jsonl", dir + "/none/x"}, 1, "no such file or directory"},
	} {
		stdout, stderr, code := replay(t, "", c.args...)
		if code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%v: exit code %d, want %d: %s", c.args, code, c.code, stderr)
		}
		if stdout != "" && !strings.Contains(strings.Join(c.args, " "), "--json /dev/full") {
			t.Errorf("%v prints %s", c.args, stdout)
		}
	}
	stdout, stderr, code := harness.Finish(t, "", "engine", "--trace-speed", "2")
	if code == 0 || !strings.Contains(stdout+stderr, "--trace-speed belongs to --offline TRACE") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	// The help lists the profiles.
	stdout, stderr, code = harness.Finish(t, "", "engine", "--help")
	if help := stdout + stderr; code != 0 || !strings.Contains(help, "llama-3.3-70b-h100-tp4") || !strings.Contains(help, "lognormal(MEAN,SD)") {
		t.Errorf("exit code %d: %s", code, help)
	}
}
