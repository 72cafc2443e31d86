package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/test/e2e/harness"
)

// stallsPage is what /stalls has.
type stallsPage struct {
	Total  int
	Stalls []struct {
		StartNS    int64 `json:"start_ns"`
		MS         float64
		HeldBy     string `json:"held_by"`
		Why        string
		Idle       bool
		Operations []struct {
			Operation  string
			RequestIDs []string `json:"request_ids"`
		}
	}
}

// profilesPage is what /profiles has.
type profilesPage struct {
	On       bool
	Profiles []struct {
		Name, Kind, Trigger string
		Bytes               int64
	}
}

func page[T any](t *testing.T, url string) (v T) {
	t.Helper()
	a := harness.Get(t, url)
	if err := json.Unmarshal(a.Body, &v); err != nil || a.Status != http.StatusOK {
		t.Fatalf("%s: %d, %v: %s", url, a.Status, err, a.Body)
	}
	return v
}

// asked sends a completion under a name of its own and wants it answered.
func asked(t *testing.T, g *harness.Gateway, id string) {
	t.Helper()
	req, err := http.NewRequestWithContext(harness.Context(t), http.MethodPost, g.URL+"/v1/completions", strings.NewReader(`{"model":"weir-sim","prompt":"Say it.","max_tokens":4}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", id)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%d, %v: %s", resp.StatusCode, err, b)
	}
}

// A request whose tokenizing, or whose template, keeps the only core for 400 ms is a stall
// that names it: in the log, in the list, in the metrics, in its own record and the reason
// made of it, in the report, and in the trace that was kept.
func TestStallIsNamed(t *testing.T) {
	for stage, operation := range map[string]string{"tokenize": "tokenize", "render": "template"} {
		t.Run(operation, func(t *testing.T) { stallIsNamed(t, stage, operation) })
	}
}

func stallIsNamed(t *testing.T, stage, operation string) {
	harness.Beside(t, harness.Light)
	env := []string{"GOMAXPROCS=1"}
	if stage == "render" { // as the image and the unit have it
		env = append(env, "GODEBUG=traceadvanceperiod=2100000000")
	}
	const id = "held-the-core"
	heldBy := "" // the operation, unless a busy machine gave the core to others meanwhile
	named := func(p stallsPage) bool {
		for _, s := range p.Stalls {
			for _, o := range s.Operations {
				if s.MS >= 300 && s.HeldBy != "nobody of ours" && o.Operation == operation && slices.Contains(o.RequestIDs, id) {
					heldBy = s.HeldBy
					return true
				}
			}
		}
		return false
	}
	// A machine that is busy may keep a gateway from seeing the one stall that it has; another one
	// has another.
	var g *harness.Gateway
	var dir string
	harness.Eventually(t, "a stall that names the request", func() bool {
		dir = filepath.Join(t.TempDir(), "profiles")
		g = harness.StartGatewayWith(t, env, "up", "--profiles-dir", dir, "--pprof",
			"--debug-stage-delay", stage+"=400ms", "--debug-hold-core")
		// On a busy machine the watch begins after the first request may be sent.
		harness.Eventually(t, "it watches", func() bool { return page[struct{ Cores int }](t, g.Admin+"/watch").Cores > 0 }, g.Process)
		asked(t, g, id)
		var stalls stallsPage
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if stalls = page[stallsPage](t, g.Admin+"/stalls"); named(stalls) {
				return true
			}
		}
		t.Logf("no stall names it: %+v", stalls)
		return false
	})
	if n := harness.Metric(t, g.Admin, "weir_stalls_total"); n < 1 {
		t.Errorf("weir_stalls_total is %v", n)
	}
	if s := harness.Metric(t, g.Admin, "weir_busy_seconds_total", `operation="`+operation+`"`); s < .39 {
		t.Errorf("%s took %v s", operation, s)
	}
	var kept profilesPage
	harness.Eventually(t, "a trace and a CPU profile are kept", func() bool {
		kept = page[profilesPage](t, g.Admin+"/profiles")
		return len(kept.Profiles) >= 2
	}, g.Process)
	seen, ours := false, false
	for _, p := range kept.Profiles {
		a := harness.Get(t, g.Admin+"/profiles/"+p.Name)
		if a.Status != http.StatusOK || int64(len(a.Body)) != p.Bytes {
			t.Errorf("%+v: status %d, %d bytes", p, a.Status, len(a.Body))
		}
		ours = ours || p.Trigger == "stall" && p.Kind == "trace"
		seen = seen || p.Kind == "trace" && strings.Contains(string(a.Body), id) && strings.Contains(string(a.Body), operation)
	}
	// A machine that is busy may have stalled the gateway before, which was kept then.
	if first := page[stallsPage](t, g.Admin+"/stalls"); !seen && ours && first.Total == 1 {
		t.Error("no trace names the request")
	}
	for _, path := range []string{"/profiles/..%2Ftimeline.jsonl", "/profiles/none", "/profiles/.."} {
		if a := harness.Get(t, g.Admin+path); a.Status == http.StatusOK && strings.Contains(string(a.Body), "request_id") {
			t.Errorf("%s: %s", path, a.Body)
		}
	}
	why := g.Reasons("id="+id, 1)[0].Reason
	if !strings.Contains(why.Sentence, "weir itself stood still, held by "+heldBy) {
		t.Errorf("its reason is %+v", why)
	}
	g.Interrupt()
	if out, stderr, code := harness.Finish(t, "", "report", g.Timeline); code != 0 || !strings.Contains(out, "in which weir itself stood still, and 1 request with it, held by "+heldBy) || !strings.Contains(out, "slowest     "+id+": ") {
		t.Errorf("%d: %s%s", code, out, stderr)
	}
	if log := g.Stderr.String(); !strings.Contains(log, "stall: nothing was read") || !strings.Contains(log, operation) || !strings.Contains(log, id) {
		t.Error("the log does not name the stall, the operation and the request")
	}
	var stalled int64
	for _, r := range g.Records() {
		if r.RequestID == id {
			stalled = r.Stalled
			if len(r.Stalls) == 0 || r.Stalls[0].Start == 0 || r.Stalls[0].Duration < 250e6 {
				t.Errorf("its record has the stalls %+v", r.Stalls)
			}
		}
	}
	if stalled < 250e6 {
		t.Errorf("its record was stalled for %v ns", stalled)
	}
	left, err := os.ReadDir(dir)
	if err != nil || slices.ContainsFunc(left, func(f os.DirEntry) bool { return strings.HasSuffix(f.Name(), ".part") }) {
		t.Errorf("%v, %v", left, err)
	}
}

// A gateway or an engine that is stopped from outside records a stall that no operation of its
// own held.
func TestStallOfNobody(t *testing.T) {
	harness.Beside(t, harness.Light)
	g := harness.StartGateway(t, "up")
	stopped := func(p *harness.Process, admin string) {
		harness.Eventually(t, "it watches", func() bool {
			return page[struct{ Cores int }](t, admin+"/watch").Cores > 0
		}, p)
		before := page[stallsPage](t, admin+"/stalls").Total
		signalTo(t, p, syscall.SIGSTOP)
		time.Sleep(600 * time.Millisecond) // it is how long it is stopped
		signalTo(t, p, syscall.SIGCONT)
		harness.Eventually(t, "a stall", func() bool {
			for _, s := range page[stallsPage](t, admin+"/stalls").Stalls {
				if s.HeldBy == "nobody of ours" && s.MS >= 500 {
					return true
				}
			}
			return false
		}, p)
		if after := page[stallsPage](t, admin+"/stalls").Total; after <= before {
			t.Errorf("%d stalls after %d", after, before)
		}
	}
	stopped(g.Process, g.Admin)
	for _, s := range page[stallsPage](t, g.Admin+"/stalls").Stalls {
		if !s.Idle {
			t.Errorf("no request was in flight: %+v", s)
		}
	}
	if n, idle := harness.Metric(t, g.Admin, "weir_stalls_total"), harness.Metric(t, g.Admin, "weir_idle_stalls_total"); n != 0 || idle == 0 {
		t.Errorf("%v stalls and %v idle ones are counted", n, idle)
	}
	g.Interrupt()
	if log := g.Stderr.String(); strings.Contains(log, "level=WARN msg=stall") || strings.Contains(log, `msg="stall`) || strings.Contains(log, "under watch") {
		t.Errorf("the log warns of it: %s", log)
	}
	e := harness.StartSim(t, "--wire", "openai", "--log-format", "json")
	stopped(e.Process, e.Admin)
}

// An idle gateway with nothing but requests that are not streamed has no time to first token and is
// late with no output: metrics, records, the page's figures and the reasons agree on it.
func TestTwelveUnstreamed(t *testing.T) {
	harness.Beside(t, harness.Light)
	g := harness.StartGateway(t, "up", "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "100ms")
	for i := range 12 {
		asked(t, g, fmt.Sprint("whole-", i))
	}
	harness.Eventually(t, "they have ended", func() bool { return harness.Metric(t, g.Admin, "weir_output_delay_seconds_count") == 12 })
	if n := harness.Metric(t, g.Admin, "weir_ttft_seconds_count"); n != 0 {
		t.Errorf("%v first tokens", n)
	}
	own := harness.Metric(t, g.Admin, "weir_output_delay_seconds_sum")
	if own > 12*.25 { // each is generated for 0.3 s
		t.Errorf("weir was late by %v s", own)
	}
	if late := harness.Metric(t, g.Admin, "weir_triggers_total", `trigger="output_delay"`); late != 0 {
		t.Errorf("%v triggers", late)
	}
	live := page[struct {
		Output struct {
			Count int
			Sum   float64
		} `json:"output_delay"`
	}](t, g.Admin+"/live").Output
	if live.Count != 12 || live.Sum != own {
		t.Errorf("the page has %+v", live)
	}
	all := page[struct {
		Records []struct {
			TTFT   *float64 `json:"ttft_ms"`
			Delay  *float64 `json:"output_delay_ms"`
			Gap    float64  `json:"longest_gap_ms"`
			Reason struct{ Stage string }
		}
	}](t, g.Admin+"/records?reason=1").Records
	sum := 0.0
	for _, r := range all {
		if r.TTFT != nil || r.Delay == nil || r.Gap < 50 || r.Reason.Stage == "output path" {
			t.Fatalf("a record is %+v", r)
		}
		sum += *r.Delay / 1e3
	}
	if len(all) != 12 || math.Abs(sum-own) > 1e-3 {
		t.Errorf("%d records with %v s, the metric has %v s", len(all), sum, own)
	}
}

// TestProfilesOnAFullDisk has a stall while the folder of profiles takes nothing, or too little:
// because the process may write no more into a file, because its disk is full, or because it is
// gone. The request is served, the log and the metric say what failed, and nothing half written is
// left. When there is room again, profiles are kept. The limit of a process breaks a file in the
// middle wherever the test runs; a small disk needs the right to mount one.
func TestProfilesOnAFullDisk(t *testing.T) {
	breaks := map[string]func(t *testing.T, g *harness.Gateway, dir string) (mends func() error){
		"limit": limitFiles,
		"full":  func(t *testing.T, _ *harness.Gateway, dir string) func() error { return fill(t, dir) },
		"gone": func(t *testing.T, _ *harness.Gateway, dir string) func() error {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			return nil
		},
	}
	if !mayMount(t) {
		t.Log("nothing may be mounted here: no disk is full, and the limit stands for it")
		delete(breaks, "full")
	}
	for name, breaks := range breaks {
		t.Run(name, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			dir := filepath.Join(t.TempDir(), "profiles")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if name == "full" {
				small(t, dir)
			}
			g := harness.StartGatewayWith(t, []string{"GOMAXPROCS=1"}, "up", "--profiles-dir", dir, "--profiles-per-hour", "1000", // a busy machine stalls the gateway too

				"--debug-stage-delay", "tokenize=400ms", "--debug-hold-core")
			mends := breaks(t, g, dir)
			// A start that stalled may be under watch still, and then a stall is no new one: asked again
			// when that is over, it is.
			last := time.Now().Add(-time.Hour)
			askedAgain := func(id string) {
				if time.Since(last) > 8*time.Second {
					asked(t, g, id)
					last = time.Now()
				}
			}
			harness.Eventually(t, "both files fail", func() bool {
				askedAgain("no-room")
				return harness.Metric(t, g.Admin, "weir_profiles_failed_total") >= 2
			}, g.Process)
			if log := g.Stderr.String(); !strings.Contains(log, "a profile cannot be kept") {
				t.Errorf("the log says nothing: %s", log)
			}
			if p := page[profilesPage](t, g.Admin+"/profiles"); len(p.Profiles) > 0 {
				t.Errorf("kept are %+v", p.Profiles)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, "*.part")); len(left) > 0 {
				t.Errorf("%v are left", left)
			}
			if mends == nil {
				return
			}
			if err := mends(); err != nil {
				t.Fatal(err)
			}
			harness.Eventually(t, "profiles are kept again", func() bool {
				askedAgain("room")
				return len(page[profilesPage](t, g.Admin+"/profiles").Profiles) >= 2
			}, g.Process)
		})
	}
}

// limitFiles allows a gateway 64 bytes of each file, until mends lifts that: less than the profile of a
// process at rest has.
func limitFiles(t *testing.T, g *harness.Gateway, _ string) (mends func() error) {
	pid := g.Cmd.Process.Pid
	var had unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, nil, &had); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 64, Max: had.Max}, nil); err != nil {
		t.Fatal(err)
	}
	return func() error { return unix.Prlimit(pid, unix.RLIMIT_FSIZE, &had, nil) }
}

// mayMount reports whether the test may mount a disk.
func mayMount(t *testing.T) bool {
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=4m"); err != nil {
		return false
	}
	if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	return true
}

// small makes of a folder a disk of its own with room for a few files.
func small(t *testing.T, dir string) {
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// fill takes what room is left, until mends gives it back.
func fill(t *testing.T, dir string) (mends func() error) {
	f, err := os.Create(filepath.Join(dir, "others"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	return func() error { return os.Remove(f.Name()) }
}
