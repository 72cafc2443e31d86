package engines

import (
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir/internal/load"
	"weir/test/e2e/harness"
)

// An engine that states when to ask it again is not asked earlier, and another engine takes
// all requests meanwhile. If there is no other engine, the callers get that time.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	const rest = 10 * time.Second // the longest for which one is left alone
	for _, path := range []string{"relay", "sglang"} {
		t.Run(path, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			bad, good := harness.StartSim(t, append(harness.FastSim, "--fault", "throttle,delay=60s")...), harness.StartSim(t, harness.FastSim...)
			g := harness.StartGateway(t, "serve", "--policy", "round-robin", "--engine", bad.Spec(path)+",name=bad", "--engine", good.Spec(path)+",name=good")
			harness.Eventually(t, "both ready", func() bool { return harness.Metric(t, g.Admin, "weir_engine_ready") == 2 })
			began := time.Now()
			if r := harness.RunPlan(t, load.Plan{URL: g.URL, Concurrency: 1, Requests: 20, OutputTokens: 4, Body: map[string]any{"ignore_eos": true}}); r.Complete != 20 {
				t.Errorf("%d complete: %v %v", r.Complete, r.Errors, r.Examples)
			}
			most := 1 + time.Since(began)/rest
			asked := int(harness.Metric(t, g.Admin, "weir_engine_faults_total", `engine="bad"`))
			if asked == 0 || asked > int(most) {
				t.Errorf("it was asked %d times, want once and no more than %d times", asked, most)
			}
			if begun := harness.Metric(t, g.Admin, "weir_retries_begun_total"); begun != 0 {
				t.Errorf("%v requests are said to have run there", begun)
			}
			if out, _, _ := harness.Finish(t, "", "engines", "--admin", g.Admin); time.Since(began) < rest && !strings.Contains(out, "asked not to be given requests") {
				t.Errorf("weir engines says:\n%s", out)
			}
			g.Interrupt()

			began = time.Now()
			g = harness.StartGateway(t, "serve", "--engine", bad.Spec(path)+",name=bad")
			for i := range 2 {
				a := harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream)
				after, err := strconv.Atoi(a.Header.Get("Retry-After"))
				if a.Status != http.StatusTooManyRequests || err != nil || after < 1 || after > 60 || i == 0 && after != 60 {
					t.Errorf("alone, request %d: %d, Retry-After %q: %s", i, a.Status, a.Header.Get("Retry-After"), a.Body)
				}
			}
			records := int(harness.Metric(t, g.Admin, "weir_requests_received_total"))
			g.Interrupt()
			g.Wait()
			asked = 0
			for _, r := range g.Records() {
				asked += len(r.Attempts)
			}
			if time.Since(began) < rest && (asked != 1 || records != 2) {
				t.Errorf("%d requests, of which %d were given to it", records, asked)
			}
		})
	}
}

// A request that an engine breaks off before the first byte goes to the other engine. The
// metrics and the records show that it may have been begun twice. A gateway whose retry budget
// is zero does not repeat it.
func TestRetryBudget(t *testing.T) {
	t.Parallel()
	for _, path := range harness.Few(t, harness.Paths) {
		t.Run(path, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			fault := "cut,after=0"
			if path == "plane" { // where a connection is all of its requests'
				fault = "abort,after=0"
			}
			bad, good := harness.StartSim(t, append(harness.FastSim, "--fault", fault)...), harness.StartSim(t, harness.FastSim...)
			plan := load.Plan{Concurrency: 4, Requests: 24, OutputTokens: 4, Body: map[string]any{"ignore_eos": true}}
			for _, flags := range [][]string{nil, {"--retry-share", "0", "--retry-floor", "0"}} {
				g := harness.StartGateway(t, append([]string{"serve", "--policy", "round-robin", "--engine", bad.Spec(path) + ",name=bad", "--engine", good.Spec(path) + ",name=good"}, flags...)...)
				harness.Eventually(t, "both ready", func() bool { return harness.Metric(t, g.Admin, "weir_engine_ready") == 2 })
				plan.URL = g.URL
				r := harness.RunPlan(t, plan)
				retries, begun, refused := harness.Metric(t, g.Admin, "weir_retries_total", `engine="bad"`), harness.Metric(t, g.Admin, "weir_retries_begun_total", `engine="bad"`), harness.Metric(t, g.Admin, "weir_retries_refused_total", `why="budget"`)
				if flags == nil && (r.Complete != 24 || retries == 0 || begun != retries || refused != 0) {
					t.Errorf("%d complete, %v retries, %v of what was begun, %v refused: %v", r.Complete, retries, begun, refused, r.Errors)
				}
				if flags != nil && (r.Complete == 24 || r.Complete+r.Errored != 24 || retries != 0 || int(refused) != r.Errored) {
					t.Errorf("without a budget: %d complete, %d errored, %v retries, %v refused: %v", r.Complete, r.Errored, retries, refused, r.Errors)
				}
				g.Interrupt()
				g.Wait()
				repeated := 0
				for _, r := range g.Records() {
					for _, a := range r.Attempts {
						if a.Repeated {
							repeated++
							if !a.MayHaveRun {
								t.Errorf("%s may not have run", r.RequestID)
							}
						}
					}
				}
				if repeated != int(retries) {
					t.Errorf("%d of the records' attempts were repeated, of %v retries", repeated, retries)
				}
			}
		})
	}
}

// If all engines of a model were there and are gone, requests do not wait, however long they
// may wait for engines that start.
func TestNobodyThere(t *testing.T) {
	t.Parallel()
	for _, path := range harness.Few(t, harness.Paths) {
		t.Run(path, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			s := harness.StartSim(t, harness.FastSim...)
			g := harness.StartGateway(t, "serve", "--engine", s.Spec(path), "--wait-for-engines", "1h")
			harness.WantComplete(t, harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream))
			signal(t, s, syscall.SIGKILL)
			harness.Eventually(t, "503", func() bool {
				a := harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream)
				return a.Status == http.StatusServiceUnavailable && strings.Contains(string(a.Body), "no engine") && a.Header.Get("Retry-After") != ""
			})
			g.Interrupt()
		})
	}
}

// A connection is lost and comes back within a second. A request that arrives in between waits
// and is served.
func TestShortDeparture(t *testing.T) {
	harness.Beside(t, harness.Light)
	s := harness.StartSim(t, harness.FastSim...)
	f := harness.Forward(t, s.Plane)
	g := harness.StartGateway(t, "serve", "--engine", "weir="+f.Addr)
	ready := func() float64 { return harness.Metric(t, g.Admin, "weir_engine_ready") }
	// On a busy machine it takes longer now and then, and then the answer is 503.
	tries := 0
	harness.Eventually(t, "a request that came while it was gone is served", func() bool {
		tries++
		harness.Eventually(t, "there", func() bool { return ready() == 1 })
		f.Refuse()
		f.Cut()
		harness.Eventually(t, "gone", func() bool { return ready() == 0 })
		f.Heal()
		return harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream).Status == http.StatusOK
	})
	g.Interrupt()
	g.Wait()
	records := g.Records()
	if last := records[len(records)-1]; len(records) != tries || last.Stages["queue"] == 0 {
		t.Errorf("%d records of %d requests, the last: %+v", len(records), tries, last)
	}
}
