package engines

import (
	"strings"
	"testing"

	"weir/internal/load"
	"weir/test/e2e/harness"
)

// A late acknowledgement counts as the engine's time in the metrics, in the record and in the
// log, which names the request.
func TestLateAcknowledgement(t *testing.T) {
	t.Parallel()
	for _, path := range harness.Few(t, harness.Paths) {
		t.Run(path, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			s := harness.StartSim(t, append(harness.FastSim, "--fault", "slow,delay=1500ms")...)
			g := harness.StartGateway(t, "serve", "--engine", s.Spec(path))
			harness.WantComplete(t, harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream))
			g.Balanced() // a request is counted after its client has its end
			part := func(name string) float64 {
				return harness.Metric(t, g.Admin, "weir_acknowledgement_seconds_count", `part="`+name+`"`)
			}
			engine, late := part("engine"), path != "relay" // whose first byte is of its answer
			if part("send") != 1 || (engine == 1) != late || (part("write") == 1) != (path == "plane") {
				t.Errorf("send %v, engine %v, write %v", part("send"), engine, part("write"))
			}
			if took := harness.Metric(t, g.Admin, "weir_acknowledgement_seconds_sum", `part="engine"`); late && took < 1.4 {
				t.Errorf("the engine's part took %v s", took)
			}
			g.Interrupt()
			g.Wait()
			record := g.Records()[0]
			if took, ok := record.Attempts[0].Legs[0]["ack_engine"].(float64); ok != late || late && took < 1.4e9 {
				t.Errorf("record %v", record.Attempts[0].Legs[0])
			}
			if out := g.Stderr.String(); strings.Contains(out, "an acknowledgement was late") != late || late && !strings.Contains(out, record.RequestID) {
				t.Errorf("log %s", out)
			}
		})
	}
}

// The time that a request waits in weir before an engine is given it counts against no engine.
func TestOwnLateness(t *testing.T) {
	t.Parallel()
	for _, path := range harness.Few(t, harness.Paths) {
		t.Run(path, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			a, b := harness.StartSim(t, harness.FastSim...), harness.StartSim(t, harness.FastSim...)
			g := harness.StartGateway(t, "serve", "--engine", a.Spec(path)+",name=a", "--engine", b.Spec(path)+",name=b", "--debug-stage-delay", "dispatch=6s")
			harness.Eventually(t, "both well", func() bool { return up(t, g) == 2 })
			done := make(chan struct{})
			go func() {
				defer close(done)
				if r := harness.RunPlan(t, load.Plan{URL: g.URL, Concurrency: 8, Requests: 8, OutputTokens: 8, Body: map[string]any{"ignore_eos": true}}); r.Complete != 8 {
					t.Errorf("%d complete: %v %v", r.Complete, r.Errors, r.Examples)
				}
			}()
			harness.Eventually(t, "all there", func() bool { return harness.Metric(t, g.Admin, "weir_engine_booked_requests") == 8 })
			owed := open(t, g, "a") + open(t, g, "b")
			if received := harness.EngineState(t, a.Admin).Received + harness.EngineState(t, b.Admin).Received; received == 0 && owed != 0 {
				t.Errorf("the engines were given nothing yet, and owe progress to %d requests", owed)
			}
			<-done
			g.Interrupt()
			g.Wait()
			if out := g.Stderr.String(); strings.Contains(out, "engine is down") || strings.Contains(out, "engine is avoided") {
				t.Errorf("%s", out)
			}
		})
	}
}
