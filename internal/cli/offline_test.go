package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const sampleTrace = "../../docs/samples/synthetic-chat.jsonl"

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

// replayed runs weir engine --offline, and gives its report.
func replayed(t testing.TB, stdin string, args ...string) figures {
	t.Helper()
	args = append([]string{"engine", "--json", "-", "--offline"}, args...)
	code, stdout, stderr := runWith(t, stdin, args...)
	if code != 0 || stderr != "" {
		t.Fatalf("%v: exit code %d: %s", args, code, stderr)
	}
	var f figures
	if err := json.Unmarshal([]byte(stdout), &f); err != nil {
		t.Fatalf("%v: %s", err, stdout)
	}
	return f
}

// A trace is replayed, and what is written as JSON and line by line tells one
// story; testdata/script/offline.txtar has what is printed.
func TestOffline(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	report, lines := filepath.Join(dir, "report.json"), filepath.Join(dir, "requests.jsonl")
	code, _, stderr := run(t, "engine", "--offline", sampleTrace, "--cost", "profile=llama-3.1-8b-h100", "--json", report, "--jsonl", lines)
	if code != 0 || stderr != "" {
		t.Fatalf("exit code %d: %s", code, stderr)
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
	t.Parallel()
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
	t.Parallel()
	table := filepath.Join(t.TempDir(), "cost.csv")
	writeFile(t, table, "phase,tokens,batch,ms\nprefill,1000,,40\nprefill,3000,,100\ndecode,,1,7.5\ndecode,,64,20\n")
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

// Ctrl-C prints what was replayed, and says so.
func TestOfflineInterrupted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	report, lines := filepath.Join(dir, "report.json"), filepath.Join(dir, "requests.jsonl")
	x := begun(strings.NewReader(""), "engine", "--offline", "synthetic:rate=5,requests=1000000000,input=100,output=100", "--json", report, "--jsonl", lines)
	for info, err := os.Stat(lines); err != nil || info.Size() == 0; info, err = os.Stat(lines) {
		select {
		case <-x.done:
			t.Fatalf("exit code %d: %s", x.code, x.err.String())
		case <-time.After(time.Millisecond):
		}
	}
	if !x.stop() || x.code != 0 {
		t.Fatalf("exit code %d: %s", x.code, x.err.String())
	}
	if rest, err := x.line("INTERRUPTED after "); err != nil || rest == "" {
		t.Errorf("it does not say where it was interrupted: %v", err)
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
	t.Parallel()
	file := filepath.Join(t.TempDir(), "chats.json")
	prompt, answer := "Tell me about rivers and weirs, please.", "A weir is a low dam across a river."
	chat, err := json.Marshal([]any{map[string]any{"conversations": []any{
		map[string]string{"from": "human", "value": prompt}, map[string]string{"from": "gpt", "value": answer},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, file, string(chat))
	f := replayed(t, "", "synthetic:concurrency=1,texts="+file)
	count := func(text string) int64 {
		_, ids, _ := runWith(t, text, "tokenize", "-")
		return int64(strings.Count(ids, ",") + 1)
	}
	if f.Finished != 1 || f.PromptTokens != count(prompt) || f.OutputTokens != count(answer) {
		t.Errorf("%+v, want %d and %d tokens", f, count(prompt), count(answer))
	}
}

// replayMinutes replays seven requests a second, of lengths as in Mooncake's trace of
// conversations, and checks their figures.
func replayMinutes(t testing.TB, minutes int) {
	f := replayed(t, "", fmt.Sprintf("synthetic:rate=7,duration=%dm,input=lognormal(6000,5000),prefix=lognormal(5000,2000),groups=500,zipf=1,output=lognormal(340,300)", minutes),
		"--cost", "profile=llama-3.1-8b-h100-tp2", "--max-total-tokens", "2114224", "--max-running-requests", "1024")
	if want := 7 * 60 * minutes; f.Requests < want*95/100 || f.Requests > want*105/100 || f.PromptTokens < int64(want)*8000 || f.Unfinished != 0 {
		t.Errorf("%+v", f)
	}
	if b, ok := t.(*testing.B); ok {
		b.ReportMetric(f.Virtual/f.Real, "x-real-time")
	}
}

// Some minutes are told by their figures; how fast an hour goes is a benchmark.
func TestOfflineMinutes(t *testing.T) {
	t.Parallel()
	replayMinutes(t, 3)
}

// An hour of virtual time, whose speed docs/offline.md has.
func BenchmarkOfflineHour(b *testing.B) {
	for b.Loop() {
		replayMinutes(b, 60)
	}
}
