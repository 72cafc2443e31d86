package bench

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// benchmark runs weir bench to its end.
func benchmark(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return harness.Finish(t, "", append([]string{"bench"}, args...)...)
}

// benchReport is the part of a report that tests look at.
type benchReport struct {
	Requests, Complete, Corrupt, Errored, Unfinished int
	Interrupted                                      bool
	Tokens                                           int
	PromptTokens                                     int  `json:"prompt_tokens"`
	InputTokensExact                                 bool `json:"input_tokens_exact"`
	InputTokensOff                                   int  `json:"input_tokens_off"`
	Errors                                           map[string]int
	Verdict                                          struct {
		Trust   string
		Reasons []string
	}
	Realised struct {
		Rate float64
		CV   float64 `json:"gap_cv"`
	}
	TTFT, E2E struct {
		Count     int
		Mean, P50 *float64
		P99       *float64
		Refused   map[string]string
	}
	Timeline struct {
		Requests, Missing int
	}
	Engines []struct {
		Engine      string
		Requests    int
		Share       float64
		SuccessRate float64 `json:"success_rate"`
	}
}

func readBenchReport(t *testing.T, text []byte) benchReport {
	t.Helper()
	text = bytes.ReplaceAll(bytes.ReplaceAll(text, []byte(`"ttft_ms"`), []byte(`"ttft"`)), []byte(`"e2e_ms"`), []byte(`"e2e"`))
	var r benchReport
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return r
}

// readTable reads a CSV as a map for each row.
func readTable(t *testing.T, file string) (rows []map[string]string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := csv.NewReader(f).ReadAll()
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	for _, r := range all[1:] {
		m := map[string]string{}
		for k, v := range r {
			m[all[0][k]] = v
		}
		rows = append(rows, m)
	}
	return rows
}

// ascending wants stamps that are all there, in the order of their columns.
func ascending(t *testing.T, row map[string]string, names ...string) {
	t.Helper()
	last := int64(0)
	for _, name := range names {
		v, err := strconv.ParseInt(row[name], 10, 64)
		if err != nil || v < last {
			t.Errorf("%s is %q after %d in %v", name, row[name], last, row)
			return
		}
		last = v
	}
}

// With a gateway in the path, each request's row has the stamps of client,
// gateway and engine, in order, in CSV and in JSON lines; the prompts have
// exactly the length asked for; each engine's share is in the report.
func TestBenchJoined(t *testing.T) {
	harness.Beside(t, harness.Light)
	g := startNextDoor(t, "--cost", "constant", "--prefill-cost", "3ms", "--decode-cost", "2ms")
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	out, stderr, code := benchmark(t, g.URL, "--rate", "100", "--arrival", "gamma", "--cv", "2", "--requests", "120", "--input-tokens", "70",
		"--output-tokens", "12", "--csv", file("r.csv"), "--json", file("r.json"), "--jsonl", file("r.jsonl"), "--html", file("r.html"), "--perfetto", file("r.trace"))
	if code != 0 {
		t.Fatalf("exit code %d: %s %s", code, out, stderr)
	}
	for _, part := range []string{"(70 a prompt, exact)", "verdict", "120 of 120 requests joined", "engine      sim-1"} {
		if !strings.Contains(out, part) {
			t.Errorf("no %q in\n%s", part, out)
		}
	}
	text, err := os.ReadFile(file("r.json"))
	if err != nil {
		t.Fatal(err)
	}
	r := readBenchReport(t, text)
	if r.Requests != 120 || r.Complete != 120 || r.PromptTokens != 120*70 || !r.InputTokensExact || r.InputTokensOff != 0 || r.Timeline.Requests != 120 || r.Timeline.Missing != 0 {
		t.Errorf("%+v", r)
	}
	if r.Realised.CV < 1.2 || r.TTFT.P50 == nil || r.TTFT.P99 == nil && r.TTFT.Count >= 100 {
		t.Errorf("%+v", r)
	}
	total := 0
	for _, e := range r.Engines {
		total += e.Requests
		if e.SuccessRate != 1 || e.Share != float64(e.Requests)/120 {
			t.Errorf("%+v", e)
		}
	}
	if total != 120 || len(r.Engines) != 2 {
		t.Errorf("engines %+v", r.Engines)
	}
	rows := readTable(t, file("r.csv"))
	if len(rows) != 120 {
		t.Fatalf("%d rows", len(rows))
	}
	ids := map[string]bool{}
	for _, row := range rows {
		ids[row["request_id"]] = true
		ascending(t, row, "arrival_time", "received_time", "tokenize_start_time", "tokenize_end_time", "to_server_time", "acked_time")
		ascending(t, row, "intended_time", "sent_time", "arrival_time", "to_server_time", "server_created_time", "queue_time_start", "queue_time_end",
			"server_first_token_time", "first_output_time", "first_received_time", "first_flushed_time")
		ascending(t, row, "first_flushed_time", "finish_time")
		// The client's kernel has the bytes before the gateway's write returns.
		ascending(t, row, "first_received_time", "first_content_time", "last_byte_time")
		if row["attempts"] != "1" || !strings.HasPrefix(row["engine"], "sim-") || row["outcome"] != "complete" || row["prompt_tokens"] != "70" {
			t.Errorf("%v", row)
		}
	}
	if len(ids) != 120 {
		t.Errorf("%d ids", len(ids))
	}
	lines, err := os.ReadFile(file("r.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range bytes.Lines(lines) {
		var x struct {
			ID      string `json:"request_id"`
			Gateway struct {
				ID       string `json:"request_id"`
				Attempts []struct{ Legs []struct{ Engine string } }
			}
		}
		if err := json.Unmarshal(line, &x); err != nil || x.ID == "" || x.ID != x.Gateway.ID || x.ID != rows[n]["request_id"] || x.Gateway.Attempts[0].Legs[0].Engine != rows[n]["engine"] {
			t.Fatalf("%v: %s", err, line)
		}
		n++
	}
	if n != 120 {
		t.Errorf("%d lines", n)
	}
	page, err := os.ReadFile(file("r.html"))
	if err != nil || !bytes.HasSuffix(page, []byte("</html>\n")) {
		t.Errorf("page of %d bytes, %v", len(page), err)
	}
	for _, drawn := range []string{"ttft", "tpot", "e2e", "requests", "share"} {
		if !bytes.Contains(page, []byte(`<svg class="area" role="img" aria-label="`+drawn)) {
			t.Errorf("the page does not draw %s", drawn)
		}
	}
	if bars := bytes.Count(page, []byte(`<svg class="bar"`)); bars < 6 { // where the time of each band went
		t.Errorf("the page has %d bars of stages", bars)
	}
	if events, err := os.ReadFile(file("r.trace")); err != nil || !json.Valid(events) || bytes.Count(events, []byte("thread_name")) != 120 {
		t.Errorf("trace of %d bytes, %v", len(events), err)
	}
	// Told not to, nothing is joined, and the client's stamps stand alone.
	out, _, code = benchmark(t, g.URL, "--requests", "3", "--admin", "off", "--csv", file("off.csv"))
	if row := readTable(t, file("off.csv"))[0]; code != 0 || strings.Contains(out, "joined") || row["engine"] != "" || row["arrival_time"] != row["sent_time"] {
		t.Errorf("exit code %d, %v", code, row)
	}
	if _, stderr, code := benchmark(t, g.URL, "--requests", "3", "--admin", g.URL); code != 1 || !strings.Contains(stderr, "--admin") {
		t.Errorf("exit code %d, %q", code, stderr)
	}
	g.Interrupt()
}

// startNextDoor runs up with its admin listener on the port next to the API's, where
// bench looks for it unasked.
func startNextDoor(t *testing.T, args ...string) *harness.Gateway {
	t.Helper()
	listen, admin := harness.Neighbours(t)
	p := harness.Start(t, append([]string{"up", "--listen", listen, "--admin-listen", admin}, args...)...)
	p.Line("engine ")
	g := &harness.Gateway{Process: p, URL: "http://" + listen, Admin: "http://" + admin}
	// Before its engines are there a gateway lists no model, and bench does not know the simulated one.
	harness.Eventually(t, "both engines ready", func() bool { return harness.Metric(t, g.Admin, "weir_engine_ready") == 2 })
	return g
}

// A server that was patched for the timeline tells a load test without a gateway more.
func TestBenchPatchedEngine(t *testing.T) {
	harness.Beside(t, harness.Light)
	e := harness.Start(t, "engine", "--wire", "sglang=127.0.0.1:0", "--cost", "constant", "--prefill-cost", "3ms", "--decode-cost", "2ms", "--patched-stamps")
	file := filepath.Join(t.TempDir(), "r.csv")
	out, stderr, code := benchmark(t, e.Line("sglang"), "--api", "sglang-generate", "--concurrency", "4", "--requests", "20", "--output-tokens", "5",
		"--field", "ignore_eos=true", "--csv", file)
	if code != 0 {
		t.Fatalf("exit code %d: %s %s", code, out, stderr)
	}
	for _, row := range readTable(t, file) {
		ascending(t, row, "sent_time", "server_created_time", "queue_time_start", "queue_time_end", "prefill_start_time", "prefill_end_time", "server_first_token_time", "first_output_time")
	}
}

// At an engine the same columns have the same meaning: the client's sending is
// the arrival, and SGLang's /generate tells its stages. Both forms of its events
// are verified word by word.
func TestBenchEngine(t *testing.T) {
	harness.Beside(t, harness.Light)
	for _, incremental := range []bool{false, true} {
		args := []string{"engine", "--wire", "sglang=127.0.0.1:0", "--cost", "constant", "--prefill-cost", "3ms", "--decode-cost", "2ms", "--enable-metrics", "--max-running-requests", "2"}
		if incremental {
			args = append(args, "--incremental-streaming-output")
		}
		e := harness.Start(t, args...)
		url := e.Line("sglang")
		file := filepath.Join(t.TempDir(), "r.csv")
		out, stderr, code := benchmark(t, url, "--api", "sglang-generate", "--concurrency", "6", "--requests", "40", "--output-tokens", "10",
			"--field", "ignore_eos=true", "--csv", file, "--json", "-")
		if code != 0 {
			t.Fatalf("exit code %d: %s %s", code, out, stderr)
		}
		r := readBenchReport(t, []byte(out))
		if r.Complete != 40 || r.Tokens != 400 || r.Verdict.Trust == "" || r.TTFT.P99 != nil || !strings.Contains(r.TTFT.Refused["p99"], "needs 100") {
			t.Errorf("%+v", r)
		}
		waited := 0
		for _, row := range readTable(t, file) {
			// Stamps of seconds since 1970 are good to half a microsecond.
			ascending(t, row, "intended_time", "sent_time")
			ascending(t, row, "queue_time_start", "queue_time_end", "prefill_end_time", "first_output_time")
			if row["arrival_time"] != row["sent_time"] || row["to_server_time"] != row["sent_time"] || row["server_first_token_time"] != "" || row["queue_time_in_router"] != "0" {
				t.Errorf("%v", row)
			}
			if ns, err := strconv.Atoi(row["pure_queue_time"]); err == nil && ns > 5e6 {
				waited++
			}
		}
		if waited < 20 { // two at a time of six
			t.Errorf("%d requests waited in the engine's queue", waited)
		}
		e.Interrupt()
	}
}

// More than the server can carry is called unstable, and has no percentiles.
func TestBenchUnstable(t *testing.T) {
	harness.Beside(t, harness.Light)
	e := harness.Start(t, "engine", "--wire", "openai=127.0.0.1:0", "--cost", "constant", "--prefill-cost", "5ms", "--decode-cost", "5ms", "--max-running-requests", "2")
	url := e.Line("openai")
	out, _, code := benchmark(t, url, "--rate", "100", "--duration", "6s", "--output-tokens", "8", "--field", "ignore_eos=true", "--json", "-")
	r := readBenchReport(t, []byte(out))
	if code != 0 || r.Verdict.Trust != "INVALID" || r.E2E.P50 != nil || !strings.Contains(r.E2E.Refused["all"], "unstable") || !strings.Contains(fmt.Sprint(r.Verdict.Reasons), "unstable") {
		t.Errorf("exit code %d, %s", code, out)
	}
}

// The generator measures itself at the load of the run, and says with which error.
func TestBenchCalibrate(t *testing.T) {
	harness.Beside(t, harness.Light)
	e := harness.Start(t, "engine", "--wire", "openai=127.0.0.1:0", "--cost", "constant", "--prefill-cost", "5ms", "--decode-cost", "5ms")
	url := e.Line("openai")
	for _, c := range []struct {
		args     []string
		requests int
	}{
		{[]string{"--concurrency", "4"}, 4 * int(3*time.Second/(140*time.Millisecond))},
		{[]string{"--rate", "20"}, 60},
	} {
		out, stderr, code := benchmark(t, append(c.args, url, "--requests", "8", "--output-tokens", "10", "--calibrate", "--json", "-")...)
		var r struct {
			Calibration struct {
				Requests, Complete, Unknown int
				TTFT                        float64 `json:"ttft_asked_ms"`
				TTFTError                   struct {
					Count    int
					P50, P99 float64
				} `json:"ttft_error_ms"`
				ITLError struct {
					Count int
					Sigma float64
				} `json:"itl_error_ms"`
				Slip      *struct{ Count int } `json:"slip_ms"`
				EventsPer float64              `json:"events_per_second"`
			}
			Complete int
			Receive  struct{ Stamps string }
		}
		if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 {
			t.Fatalf("exit code %d, %v: %s %s", code, err, out, stderr)
		}
		k := r.Calibration
		if k.Requests != c.requests || k.Complete != c.requests || k.Unknown != 0 || k.TTFT != 50 || k.TTFTError.Count != c.requests || k.ITLError.Count != 9*c.requests ||
			k.EventsPer <= 0 || (k.Slip != nil) != (c.args[0] == "--rate") || r.Complete != 8 || r.Receive.Stamps != "kernel" {
			t.Errorf("%v: %+v", c.args, r)
		}
		// It is compared with what that engine did, and not with what it should have
		// done: a slow machine makes neither wrong by as much as the whole.
		if k.TTFTError.P50 >= 50 {
			t.Errorf("%v: TTFT of 50 ms is wrong by %v ms", c.args, k.TTFTError.P50)
		}
	}
	if out, _, code := benchmark(t, url, "--requests", "4", "--output-tokens", "4", "--calibrate"); code != 0 || !strings.Contains(out, "calibrated  at 1 streams of an engine of known times") {
		t.Errorf("exit code %d: %s", code, out)
	}
}

// A generator that is stopped now and then reports which of its figures are unknown, and their
// bounds. The durations of stops depend on the machine; events certainly waited for it.
func TestBenchHeldUp(t *testing.T) {
	harness.Beside(t, harness.Light)
	e := harness.Start(t, "engine", "--wire", "openai=127.0.0.1:0", "--cost", "constant", "--prefill-cost", "5ms", "--decode-cost", "5ms")
	url := e.Line("openai")
	file := filepath.Join(t.TempDir(), "r.json")
	p := harness.Start(t, "bench", url, "--concurrency", "4", "--requests", "40", "--output-tokens", "60", "--field", "ignore_eos=true", "--json", file)
	for running := true; running; {
		// A signal to a process that has just ended is lost, which the loop finds out.
		_ = p.Cmd.Process.Signal(syscall.SIGSTOP)
		time.Sleep(60 * time.Millisecond)
		_ = p.Cmd.Process.Signal(syscall.SIGCONT)
		select {
		case <-p.Exited:
			running = false
		case <-time.After(15 * time.Millisecond):
		}
	}
	p.Exits(0)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r := readBenchReport(t, text)
	var more struct {
		Receive struct {
			Unknown int
			Late    struct{ Max float64 } `json:"late_ms"`
		}
		ITL struct {
			Bounds map[string][2]float64
		} `json:"itl_ms"`
	}
	if err := json.Unmarshal(text, &more); err != nil {
		t.Fatal(err)
	}
	if reasons := strings.Join(r.Verdict.Reasons, "; "); r.Complete != 40 || r.Verdict.Trust == "VALID" || !strings.Contains(reasons, "no time of their own") {
		t.Errorf("%s: %q", r.Verdict.Trust, reasons)
	}
	// While it was stopped, tokens came every 5 ms: any of them at any time of it.
	open := 0.0
	for _, in := range more.ITL.Bounds {
		open = max(open, in[1]-in[0])
	}
	if more.Receive.Unknown < 4 || more.Receive.Late.Max < 40 || open < 10 {
		t.Errorf("%+v", more)
	}
}

// A rate that no machine can send is called so.
func TestBenchTooFast(t *testing.T) {
	harness.Beside(t, harness.Heavy)
	e := harness.Start(t, "engine", "--wire", "openai=127.0.0.1:0", "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "1ms")
	out, _, code := benchmark(t, e.Line("openai"), "--rate", "2000000", "--requests", "1000", "--input-tokens", "3000", "--output-tokens", "2", "--json", "-")
	r := readBenchReport(t, []byte(out))
	if reasons := strings.Join(r.Verdict.Reasons, "; "); code != 0 || r.Verdict.Trust != "INVALID" || !strings.Contains(reasons, "late (p99)") || !strings.Contains(reasons, "times the time of their schedule") {
		t.Errorf("exit code %d, %s: %q", code, r.Verdict.Trust, reasons)
	}
}

// ^C writes every file with what was measured.
func TestBenchInterrupted(t *testing.T) {
	harness.Beside(t, harness.Light)
	e := harness.StartSim(t, "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "5ms")
	dir := t.TempDir()
	p := harness.Start(t, "bench", e.OpenAI, "--rate", "50", "--duration", "1h", "--output-tokens", "40", "--csv", filepath.Join(dir, "r.csv"), "--jsonl", filepath.Join(dir, "r.jsonl"), "--json", filepath.Join(dir, "r.json"))
	// A request that ends at once leaves the next ones in flight.
	harness.Eventually(t, "at twenty requests behind the engine and more before it", func() bool {
		s := harness.EngineState(t, e.Admin)
		return s.Finished > 20 && s.Running > 1
	})
	if err := p.Cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	p.Exits(0)
	text, err := os.ReadFile(filepath.Join(dir, "r.json"))
	if err != nil {
		t.Fatal(err)
	}
	r := readBenchReport(t, text)
	if !r.Interrupted || r.Requests < 20 || r.Complete == 0 || r.Unfinished == 0 || r.Requests != r.Complete+r.Unfinished || r.Verdict.Trust == "VALID" {
		t.Errorf("%+v", r)
	}
	lines, err := os.ReadFile(filepath.Join(dir, "r.jsonl"))
	if rows := readTable(t, filepath.Join(dir, "r.csv")); err != nil || len(rows) != r.Requests || bytes.Count(lines, []byte("\n")) != r.Requests {
		t.Errorf("%d rows, %d lines of %d requests, %v", len(rows), bytes.Count(lines, []byte("\n")), r.Requests, err)
	}
}

// 50 ms put into a stage of the gateway are found in that stage by the client,
// and the engine's queue is told from the gateway's.
func TestBenchAttribution(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		stage string
		args  []string
		least float64
	}{
		{"tokenize wait", []string{"--debug-stage-delay", "pool_wait=50ms"}, 50},
		{"router queue", []string{"--debug-stage-delay", "queue=50ms"}, 50},
		{"tokenize", []string{"--debug-stage-delay", "tokenize=50ms"}, 50},
		{"template", []string{"--debug-stage-delay", "render=50ms"}, 50},
		{"read", []string{"--debug-stage-delay", "read=50ms"}, 50},
		{"router", []string{"--debug-stage-delay", "route=50ms"}, 50},
		{"output path", []string{"--debug-stage-delay", "encode=50ms"}, 50},
		{"engine queue", []string{"--max-running-requests", "1"}, 10},
		{"prefill", []string{"--prefill-cost", "50ms"}, 50},
	} {
		t.Run(c.stage, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			g := harness.StartGateway(t, append([]string{"up", "--engines", "1", "--cost", "constant", "--decode-cost", "2ms"}, c.args...)...)
			type part struct {
				Stage string
				Mean  float64 `json:"mean_ms"`
			}
			type band struct {
				Metric   string
				From     float64 `json:"from_percentile"`
				Mean     float64 `json:"mean_ms"`
				Residual float64 `json:"residual_ms"`
				Sentence string
				Stages   []part
			}
			// The time that a busy machine takes is in any stage, and between any two.
			harness.OnceOf(t, 10, func() string {
				out, stderr, code := benchmark(t, g.URL, "--admin", g.Admin, "--concurrency", "4", "--requests", "40", "--output-tokens", "8", "--json", "-")
				var r struct{ Attribution []band }
				if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 || len(r.Attribution) < 4 {
					t.Fatalf("exit code %d, %v: %s %s", code, err, out, stderr)
				}
				b := r.Attribution[1]
				i := slices.IndexFunc(b.Stages, func(p part) bool { return p.Stage == c.stage })
				sum := b.Residual
				for _, p := range b.Stages {
					sum += p.Mean
				}
				if i < 0 || b.Stages[i].Mean < c.least || sum < b.Mean-0.001 || sum > b.Mean+0.001 || b.Metric != "ttft" {
					t.Fatalf("%+v", b)
				}
				if b.Stages[i].Mean >= c.least+200 || b.Residual > 1 || b.Residual < -1 {
					return fmt.Sprintf("%+v", b)
				}
				return ""
			})
		})
	}
}

// A trace is sent at its own times and lengths, and what its prompts share the
// engine finds in its cache.
func TestBenchWorkload(t *testing.T) {
	harness.Beside(t, harness.Light)
	g := harness.StartGateway(t, "up", "--engines", "1", "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "1ms", "--max-total-tokens", "400000")
	dir := t.TempDir()
	trace, file := filepath.Join(dir, "trace.jsonl"), filepath.Join(dir, "r.csv")
	var lines strings.Builder
	// The first is over before the others come, who find what they share with it.
	after := func(i int) time.Duration {
		if i == 0 {
			return 0
		}
		return 8*time.Second + time.Duration(i)*200*time.Millisecond
	}
	for i := range 20 {
		fmt.Fprintf(&lines, "{\"timestamp\":%d,\"input_length\":%d,\"output_length\":%d,\"hash_ids\":[1,%d]}\n", after(i).Milliseconds(), 600+i, 2+i, 100+i)
	}
	harness.WriteFile(t, trace, lines.String())
	out, stderr, code := benchmark(t, g.URL, "--admin", g.Admin, "--workload", trace, "--trace-speed", "4", "--field", "ignore_eos=true", "--csv", file)
	if code != 0 || !strings.Contains(out, "(as the workload says, exact)") || !strings.Contains(out, "20 complete") {
		t.Fatalf("exit code %d: %s %s", code, out, stderr)
	}
	first, cached := int64(0), 0
	for i, row := range readTable(t, file) {
		at, err := strconv.ParseInt(row["intended_time"], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = at
		}
		if at-first != int64(after(i))/4 || row["prompt_tokens"] != strconv.Itoa(600+i) || row["completion_tokens"] != strconv.Itoa(2+i) || row["engine"] != "sim-1" {
			t.Errorf("%v", row)
		}
		if n, err := strconv.Atoi(row["cached_tokens"]); err == nil && n >= 480 {
			cached++
		}
	}
	if cached < 18 {
		t.Errorf("the shared beginning was found in the cache %d times", cached)
	}
}
