package serve

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"weir/internal/load"
	"weir/test/e2e/harness"
)

// patience are the flags by which a gateway soon gives up an engine that stalls. They hold
// for the other engine too, which on a busy machine may be as slow, so they are for tests
// of a stall alone.
func patience(fault string) []string {
	if strings.HasPrefix(fault, "stall") {
		return []string{"--idle-timeout", "3s", "--first-timeout", "3s"}
	}
	return nil
}

// A client's view of a failing engine: before the first byte nothing, because another engine
// answers; after it an error event and a broken connection, never [DONE].
func TestEngineFaults(t *testing.T) {
	t.Parallel()
	quick := []string{"--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "1ms"}
	paths := harness.Paths
	if harness.RaceEnabled { // ids over HTTP are read by the same code on both
		paths = []string{"plane", "relay", "sglang"}
	}
	for _, path := range paths {
		for _, c := range []struct {
			fault string
			retry bool // nothing had reached the client
			code  string
		}{
			{"unavailable", true, ""},
			{"cut,after=0", true, "engine"},
			{"reset,after=0", true, "engine"},
			{"cut,after=10", false, "engine"},
			{"reset,after=10", false, "engine"},
			{"stall,after=0", true, "deadline"},
			{"stall,after=10", false, "deadline"},
		} {
			// A short run has all on the plane, and of other wires an engine that goes away.
			if testing.Short() && path != "plane" && !strings.HasPrefix(c.fault, "cut") {
				continue
			}
			t.Run(path+" "+c.fault, func(t *testing.T) {
				harness.Beside(t, harness.Light)
				bad, good := harness.StartSim(t, append(quick, "--fault", c.fault)...), harness.StartSim(t, quick...)
				g := harness.StartGateway(t, append([]string{"serve", "--continuation", "off", "--policy", "round-robin", "--engine", bad.Spec(path), "--engine", good.Spec(path)}, patience(c.fault)...)...)
				harness.Eventually(t, "both ready", func() bool { return harness.Metric(t, g.Admin, "weir_engine_ready") == 2 })
				broken := 0
				for range 4 { // round-robin: the bad engine's turn comes
					a := harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream)
					done := bytes.HasSuffix(a.Body, []byte("data: [DONE]\n\n"))
					failed := bytes.Contains(a.Body, []byte(`data: {"error":`))
					if a.Status != 200 || done == failed || done != (a.Err == nil) {
						t.Errorf("status %d, done %t, error event %t, read error %v: %.200s", a.Status, done, failed, a.Err, a.Body)
					}
					if failed {
						broken++
					}
				}
				ended := g.Balanced()
				if c.retry && (broken != 0 || ended["finished"] != 4) {
					t.Errorf("%d streams failed and %v ended; all should have gone to the other engine", broken, ended)
				}
				// A reset takes with it what the gateway has not read yet, and a gateway that
				// has to wait for its turn reads a cut along with all before it: then nothing
				// has reached the client, and the other engine answers.
				faults := int(harness.Metric(t, g.Admin, "weir_engine_faults_total"))
				elsewhere := int(harness.Metric(t, g.Admin, "weir_retries_total"))
				if !c.retry && (faults == 0 || broken+elsewhere != faults || ended["failed"] != broken) {
					t.Errorf("%d streams failed and %d went elsewhere for %d faults, and %v ended", broken, elsewhere, faults, ended)
				}
				if c.code != "" && harness.Metric(t, g.Admin, "weir_engine_faults_total", `code="`+c.code+`"`) == 0 &&
					harness.Metric(t, g.Admin, "weir_engine_faults_total", `code="unavailable"`) == 0 {
					t.Errorf("no fault of code %s was counted", c.code)
				}
				harness.Eventually(t, "free", func() bool {
					return harness.EngineState(t, good.Admin).Running == 0
				})
				g.Interrupt()
			})
		}
	}
}

// An answer that is made here and not streamed has reached nobody until it is whole:
// whenever an engine fails, another one can give it.
func TestWholeAnswerOfAnotherEngine(t *testing.T) {
	t.Parallel()
	quick := []string{"--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "1ms"}
	whole := strings.Replace(harness.AskStream, `"stream":true,`, "", 1)
	for _, path := range []string{"plane", "sglang"} {
		for _, fault := range []string{"cut,after=10", "stall,after=10", "miscount"} {
			t.Run(path+" "+fault, func(t *testing.T) {
				harness.Beside(t, harness.Light)
				bad, good := harness.StartSim(t, append(quick, "--fault", fault, "--name", "bad")...), harness.StartSim(t, quick...)
				g := harness.StartGateway(t, append([]string{"serve", "--policy", "round-robin", "--engine", bad.Spec(path) + ",name=bad", "--engine", good.Spec(path)}, patience(fault)...)...)
				harness.Eventually(t, "both ready", func() bool { return harness.Metric(t, g.Admin, "weir_engine_ready") == 2 })
				for range 4 { // round-robin: the bad engine's turn comes
					if a := harness.Post(t, g.URL+"/v1/chat/completions", whole); a.Status != 200 || a.Err != nil || !bytes.Contains(a.Body, []byte(`"completion_tokens":40`)) {
						t.Errorf("status %d, read error %v: %.300s", a.Status, a.Err, a.Body)
					}
				}
				if ended := g.Balanced(); ended["finished"] != 4 {
					t.Errorf("%v ended", ended)
				}
				if harness.Metric(t, g.Admin, "weir_engine_faults_total", `engine="bad"`) == 0 {
					t.Error("the bad engine was not asked, or did not fail")
				}
				g.Interrupt()
			})
		}
	}
}

// Without another engine, a refusal before the first byte is an HTTP error.
func TestEngineRefusals(t *testing.T) {
	harness.Beside(t, harness.Light)
	t.Run("nobody there", func(t *testing.T) {
		addr := harness.FreeAddress(t)
		for _, spec := range []string{"openai=http://" + addr + ",model=weir-sim", "weir=" + addr} {
			g := harness.StartUnready(t, "serve", "--engine", spec, "--wait-for-engines", "200ms")
			if a := harness.Get(t, g.Admin+"/readyz"); a.Status != 503 || !strings.Contains(string(a.Body), addr) {
				t.Errorf("readyz: %d %s", a.Status, a.Body)
			}
			a := harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream)
			if a.Status != 503 || a.Header.Get("Retry-After") == "" || !strings.Contains(string(a.Body), "ready") {
				t.Errorf("%s: status %d, Retry-After %q: %s", spec, a.Status, a.Header.Get("Retry-After"), a.Body)
			}
			g.Interrupt()
		}
	})
	t.Run("refuses and comes back", func(t *testing.T) {
		s := harness.StartSim(t, "--fault", "refuse")
		g := harness.StartUnready(t, "serve", "--engine", "weir="+s.Plane, "--wait-for-engines", "200ms")
		if a := harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream); a.Status != 503 {
			t.Errorf("status %d: %s", a.Status, a.Body)
		}
		if a := harness.Post(t, s.Admin+"/admin/faults", `{"faults":[]}`); a.Status/100 != 2 {
			t.Fatalf("faults: %d %s", a.Status, a.Body)
		}
		harness.Eventually(t, "ready", func() bool { return harness.Get(t, g.Admin+"/readyz").Status == 200 })
		if a := harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream); a.Status != 200 || a.Err != nil {
			t.Errorf("status %d, %v", a.Status, a.Err)
		}
		g.Interrupt()
	})
	t.Run("relay passes a 503 on", func(t *testing.T) {
		s := harness.StartSim(t, "--fault", "unavailable")
		g := harness.StartGateway(t, "serve", "--engine", "openai="+s.OpenAI)
		direct := harness.Post(t, s.OpenAI+"/v1/chat/completions", harness.AskStream)
		through := harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream)
		if through.Status != 503 || !bytes.Equal(direct.Body, through.Body) {
			t.Errorf("direct %d %s\nthrough weir %d %s", direct.Status, direct.Body, through.Status, through.Body)
		}
		g.Interrupt()
	})
}

// Among many streams, those that a fault struck end with an error and all others are whole:
// nothing is lost silently.
func TestFaultsUnderLoad(t *testing.T) {
	harness.Beside(t, harness.Heavy)
	s := harness.StartSim(t, append([]string{"--fault", "cut,after=10,rate=0.05", "--fault", "stall,after=10,rate=0.05"}, harness.FastSim...)...)
	g := harness.StartGateway(t, "serve", "--engine", "openai="+s.OpenAI, "--idle-timeout", "2s")
	r := harness.RunPlan(t, load.Plan{URL: g.URL, Concurrency: 64, Requests: 400, OutputTokens: 32, Body: map[string]any{"ignore_eos": true}})
	if r.Corrupt != 0 || r.Lost != 0 || r.Errored == 0 || r.Complete+r.Errored != 400 {
		t.Errorf("%d complete, %d errored, %d corrupt, %d lost: %v %v", r.Complete, r.Errored, r.Corrupt, r.Lost, r.Errors, r.Examples)
	}
	if ended := g.Balanced(); ended["failed"] != r.Errored || ended["finished"] != r.Complete {
		t.Errorf("ended %v, the client counts %d complete and %d errored", ended, r.Complete, r.Errored)
	}
	g.Interrupt()
}

// A gateway configured by file and environment, the command line first.
func TestConfiguration(t *testing.T) {
	harness.Beside(t, harness.Light)
	s := harness.StartSim(t, harness.FastSim...)
	file := t.TempDir() + "/weir.yaml"
	harness.WriteFile(t, file, fmt.Sprintf("engine:\n  - kind: openai\n    url: %s\n    name: from-file\nmax-body: 100\nlisten: 127.0.0.1:1\n", s.OpenAI))
	g := harness.StartGatewayWith(t, []string{"WEIR_MAX_BODY=60"}, "serve", "--config", file)
	if a := harness.Get(t, g.Admin+"/engines"); !strings.Contains(string(a.Body), `"from-file"`) {
		t.Errorf("engines: %s", a.Body)
	}
	if a := harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream); a.Status != 413 || !strings.Contains(string(a.Body), "60") {
		t.Errorf("status %d %s: the environment should win over the file", a.Status, a.Body)
	}
	g.Interrupt()
}

func TestDrainTimeout(t *testing.T) {
	harness.Beside(t, harness.Light)
	s := harness.StartSim(t, "--cost", "constant", "--decode-cost", "50ms")
	g := harness.StartGateway(t, "serve", "--engine", "weir="+s.Plane, "--drain-timeout", "500ms")
	done := make(chan harness.Answer)
	go func() {
		resp, err := http.Post(g.URL+"/v1/chat/completions", "application/json", strings.NewReader(strings.Replace(harness.AskStream, "40", "4000", 1)))
		if err != nil {
			done <- harness.Answer{Err: err}
			return
		}
		done <- harness.Read(resp)
	}()
	harness.Eventually(t, "streaming", func() bool { return harness.EngineState(t, s.Admin).Running == 1 })
	began := time.Now()
	g.Interrupt()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	if a := <-done; a.Err == nil || bytes.Contains(a.Body, []byte("[DONE]")) {
		t.Errorf("a cut stream looks complete: %v", a.Err)
	}
	harness.Eventually(t, "free", func() bool { return harness.EngineState(t, s.Admin).Running == 0 })
	if records := g.Records(); len(records) != 1 {
		t.Errorf("%d records, want 1", len(records))
	}
}
