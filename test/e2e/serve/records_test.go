package serve

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// requestsSeen is what /requests answers, as far as it is looked at.
type requestsSeen struct {
	Total    int
	Requests []struct {
		ID     string  `json:"request_id"`
		Stage  string  `json:"stage"`
		Engine string  `json:"engine"`
		Tokens *int    `json:"tokens"`
		Age    float64 `json:"age_seconds"`
	}
}

// A request is seen while it streams; when it has ended it is found by what is asked for,
// its caller has been told where its time went, and the report of the file says the same.
func TestRecords(t *testing.T) {
	harness.Beside(t, harness.Light)
	sim := harness.StartSim(t, harness.FastSim...)
	g := harness.StartGateway(t, "serve", "--engine", sim.Spec("plane")+",name=sim")
	get := func(path string, into any) {
		t.Helper()
		a := harness.Get(t, g.Admin+path)
		if err := json.Unmarshal([]byte(a.Body), into); a.Status != http.StatusOK || err != nil {
			t.Fatalf("%s: %d, %v: %s", path, a.Status, err, a.Body)
		}
	}
	ask := func(id, model string, tokens string, headers ...string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.URL+"/v1/completions", strings.NewReader(`{"model":"`+model+`","prompt":"go on","stream":true,"ignore_eos":true,"max_tokens":`+tokens+`}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Request-Id", id)
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}

	long := ask("long", "weir-sim", "20000") // minutes
	var seen requestsSeen
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		get("/requests?engine=sim", &seen)
		if len(seen.Requests) == 1 && seen.Requests[0].Tokens != nil && *seen.Requests[0].Tokens > 2 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", seen)
		}
		seen = requestsSeen{}
	}
	if r := seen.Requests[0]; r.ID != "long" || r.Engine != "sim" || r.Age <= 0 || r.Stage != "engine" && r.Stage != "receive" && r.Stage != "flush" {
		t.Errorf("%+v", r)
	}
	long.Body.Close()

	timed := ask("timed", "weir-sim", "3", "X-Weir-Timing", "1")
	comment, done := "", false
	lines := bufio.NewScanner(timed.Body)
	for lines.Scan() {
		switch line := lines.Text(); {
		case strings.HasPrefix(line, ": weir "):
			if comment = strings.TrimPrefix(line, ": weir "); done {
				t.Error("the comment comes behind the end")
			}
		case line == "data: [DONE]":
			done = true
		}
	}
	timed.Body.Close()
	var told struct {
		ID     string             `json:"request_id"`
		Stages map[string]float64 `json:"stages_ms"`
		Stamps map[string]float64 `json:"since_arrival_ms"`
	}
	if err := json.Unmarshal([]byte(comment), &told); err != nil || !done || told.ID != "timed" || told.Stages["engine"]+told.Stages["dispatch"] <= 0 || told.Stamps["first_output_time"] <= 0 || !strings.Contains(timed.Header.Get("Server-Timing"), "dispatch;dur=") {
		t.Errorf("%v, %q, %q", err, timed.Header.Get("Server-Timing"), comment)
	}
	ask("refused", "none", "3").Body.Close()
	g.Balanced()
	// A request is counted as ended before its record is kept.
	harness.Eventually(t, "three records", func() bool { return harness.Metric(t, g.Admin, "weir_timeline_kept") == 3 })

	for query, want := range map[string]string{"?id=timed": "timed", "?outcome=cancelled": "long", "?outcome=rejected": "refused", "?engine=sim&outcome=finished": "timed"} {
		var found struct {
			Matched int
			Records []struct {
				ID string `json:"request_id"`
			}
		}
		get("/records"+query, &found)
		if len(found.Records) != 1 || found.Records[0].ID != want {
			t.Errorf("%s: %+v, want %s", query, found, want)
		}
	}
	var shares struct {
		Requests int
		Delays   []struct {
			ID  string   `json:"request_id"`
			Hop *float64 `json:"hop_ms"`
		}
	}
	if get("/stages", &shares); shares.Requests != 3 || len(shares.Delays) != 2 || shares.Delays[0].Hop == nil {
		t.Errorf("%+v", shares)
	}
	if a := harness.Get(t, g.Admin+"/records?limit=many"); a.Status != http.StatusBadRequest || !strings.Contains(string(a.Body), "limit") {
		t.Errorf("%d %s", a.Status, a.Body)
	}

	g.Interrupt()
	if data, err := os.ReadFile(g.Timeline); err != nil || strings.Count(string(data), "\n") != 3 {
		t.Fatalf("%v: %s", err, data)
	}
	out, stderr, code := harness.Finish(t, "", "report", g.Timeline)
	if code != 0 || !strings.Contains(out, "requests    3 in ") || !strings.Contains(out, "1 cancelled, 1 finished, 1 rejected") || !strings.Contains(out, "engine      sim: 2 requests") || strings.Contains(out, "disorder") || strings.Contains(out, "no stamps") {
		t.Errorf("%d: %s%s", code, out, stderr)
	}
}

// With --timeline off there are no records, and requests are served and seen as ever.
func TestWithoutRecords(t *testing.T) {
	harness.Beside(t, harness.Light)
	sim := harness.StartSim(t, harness.FastSim...)
	g := harness.StartGateway(t, "serve", "--engine", sim.Spec("plane"), "--timeline", "off")
	harness.WantComplete(t, harness.Post(t, g.URL+"/v1/completions", `{"model":"weir-sim","prompt":"go on","stream":true,"max_tokens":3}`))
	g.Balanced()
	for _, path := range []string{"/records", "/stages", "/timeline/x"} {
		if a := harness.Get(t, g.Admin+path); a.Status != http.StatusNotFound || !strings.Contains(string(a.Body), "--timeline off") {
			t.Errorf("%s: %d %s", path, a.Status, a.Body)
		}
	}
	if a := harness.Get(t, g.Admin+"/requests"); a.Status != http.StatusOK || !strings.Contains(string(a.Body), `"total": 0`) {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if _, err := os.Stat("off"); err == nil {
		t.Error("there is a file named off")
	}
}

// A server that was patched for the timeline gives its stamps by their names there, and one
// that sends requests back to its queue says how often: both are in the record. An engine of the
// plane says both by itself.
func TestStampsOfAPatchedServer(t *testing.T) {
	for wire, flags := range map[string][]string{"sglang": {"--patched-stamps"}, "plane": nil} {
		t.Run(wire, func(t *testing.T) { stampsAndRetractions(t, wire, flags...) })
	}
}

func stampsAndRetractions(t *testing.T, wire string, flags ...string) {
	harness.Beside(t, harness.Light)
	sim := harness.StartSim(t, slices.Concat(flags, []string{"--fault", "retract,every=100ms,times=2"}, harness.FastSim)...)
	g := harness.StartGateway(t, "serve", "--engine", sim.Spec(wire)+",name=patched")
	chatAs(t, g, "long", "go on", 60)
	why := g.Reasons("id=long", 1)[0].Reason
	if !strings.Contains(why.Sentence, "Engine patched sent it back to its queue 2 times.") {
		t.Errorf("%+v", why)
	}
	g.Interrupt()
	r := g.Records()[0]
	leg := r.Attempts[0].Legs[0]
	at := 0.0
	for _, name := range []string{"handed_time", "server_created_time", "queue_time_start", "queue_time_end", "prefill_start_time", "prefill_end_time", "server_first_token_time"} {
		stamp, _ := leg[name].(float64)
		if stamp < at-1e6 || stamp == 0 { // seconds since 1970 are good to half a microsecond
			t.Errorf("%s is %v after %v: %v", name, leg[name], at, leg)
		}
		at = stamp
	}
	if leg["retracted"] != 2.0 {
		t.Errorf("%v", leg)
	}
	if out, _, code := harness.Finish(t, "", "report", g.Timeline); code != 0 || strings.Contains(out, "disorder") || !strings.Contains(out, "sent it back to its queue 2 times") {
		t.Errorf("%d: %s", code, out)
	}
}

// On a full disk the file's records are lost and counted, and the log says so once; requests
// are served, and their records are found in memory.
func TestRecordsOnAFullDisk(t *testing.T) {
	harness.Beside(t, harness.Light)
	sim := harness.StartSim(t, harness.FastSim...)
	g := harness.StartGateway(t, "serve", "--engine", sim.Spec("plane"), "--timeline", "/dev/full")
	for i := range 5 {
		chatAs(t, g, fmt.Sprintf("full-%d", i), "go on", 3)
	}
	if found := g.Reasons("since=60s", 5); found[0].Reason.Sentence == "" {
		t.Errorf("%+v", found)
	}
	harness.Eventually(t, "told", func() bool { return strings.Contains(g.Stderr.String(), "cannot be written") }, g.Process)
	if n := strings.Count(g.Stderr.String(), "cannot be written"); n != 1 {
		t.Errorf("it is told %d times: %s", n, g.Stderr.String())
	}
}
