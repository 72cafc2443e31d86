package serve

import (
	"strings"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

type integrityFault struct {
	fault, reason, code string
	// late reports whether what the fault strikes has a good part, which the client gets
	// first: no other engine can be asked then.
	late bool
}

// An engine sends output that does not add up, on either wire. After the first byte the stream
// ends with an error event; before it another engine answers. Each case is counted and logged
// once, and the evidence is kept.
func TestIntegrityFaults(t *testing.T) {
	t.Parallel()
	quick := []string{"--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "3ms"}
	// A starved engine sends the output that it holds in one message together with the output that
	// the fault changes. So the fault comes long after the first output, or it would come before.
	const late = ",after=30"
	// And long before the last, which a starved engine merges with what comes before it.
	long := strings.Replace(harness.AskStream, `"max_tokens":40`, `"max_tokens":200`, 1)
	for _, path := range []struct {
		name, wire string
		faults     []integrityFault
	}{
		{"plane", "weir", []integrityFault{
			{"garble", "malformed", "integrity_error", false},
			{"skip", "sequence_gap", "integrity_error", false},
			{"repeat", "sequence_gap", "integrity_error", true},
			{"swap", "sequence_gap", "integrity_error", false},
			{"stray", "unknown_slot", "integrity_error", true},
			{"backward", "count_backwards", "integrity_error", false},
			{"oversize", "oversized", "integrity_error", false},
			{"miscount", "completion_mismatch", "integrity_error", true},
		}},
		{"relay", "openai", []integrityFault{
			{"garble", "not_json", "integrity_error", false},
			{"stray", "choice_range", "integrity_error", false},
			{"truncate", "incomplete", "engine_error", false},
		}},
		{"sglang", "sglang", []integrityFault{
			{"garble", "bad_event", "integrity_error", false},
			{"skip", "total_mismatch", "integrity_error", false},
			{"repeat", "total_mismatch", "integrity_error", true},
			{"miscount", "total_mismatch", "integrity_error", true},
		}},
		{"vllm", "vllm", []integrityFault{
			{"garble", "bad_event", "integrity_error", false},
			{"skip", "total_mismatch", "integrity_error", false},
			{"repeat", "total_mismatch", "integrity_error", true},
			{"stray", "choice", "integrity_error", false},
			{"miscount", "total_mismatch", "integrity_error", true},
		}},
	} {
		t.Run(path.name, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			bad, good := harness.StartSim(t, append(quick, "--name", "bad")...), harness.StartSim(t, quick...)
			one := harness.StartGateway(t, "serve", "--engine", bad.Spec(path.name)+",name=bad")
			two := harness.StartGateway(t, "serve", "--policy", "round-robin", "--engine", bad.Spec(path.name)+",name=bad", "--engine", good.Spec(path.name)+",name=good")
			harness.Eventually(t, "both ready", func() bool { return harness.Metric(t, two.Admin, "weir_engine_ready") == 2 })
			harness.WantComplete(t, harness.Post(t, one.URL+"/v1/chat/completions", harness.AskStream))
			harness.WantComplete(t, harness.Post(t, two.URL+"/v1/chat/completions", harness.AskStream))
			beforeOne, beforeTwo := one.Goroutines(), two.Goroutines()
			for i, c := range path.faults {
				t.Run(c.fault, func(t *testing.T) {
					one.T, two.T, bad.T = t, t, t
					counted := harness.Metric(t, one.Admin, "weir_integrity_failures_total", `engine="bad"`, `reason="`+c.reason+`"`)
					after := late
					if c.fault == "miscount" { // its place is the end
						after = ""
					}
					bad.SetFaults(c.fault + after + ",nth=1")
					a := harness.Post(t, one.URL+"/v1/chat/completions", long, "X-Request-Id", "torn")
					harness.WantTorn(t, a, c.code)
					harness.Settled(t, one, beforeOne, bad)
					if n := harness.Metric(t, one.Admin, "weir_integrity_failures_total", `engine="bad"`, `reason="`+c.reason+`"`); n != counted+1 {
						t.Errorf("%v failures counted, want one more than %v", n, counted)
					}
					kept := one.Failures()
					if len(kept) != i+1 {
						t.Fatalf("%d failures kept, want %d", len(kept), i+1)
					}
					f := kept[0]
					if f.Engine != "bad" || f.Wire != path.wire || f.Reason != c.reason || f.Detail == "" || time.Since(f.Time).Abs() > time.Minute ||
						f.Requests != 1 || len(f.RequestIDs) != 1 || f.RequestIDs[0] != "torn" {
						t.Errorf("kept %+v", f)
					}
					if path.name == "plane" {
						wantSteps(t, c.fault, f)
					} else if c.fault == "garble" && !strings.Contains(f.Evidence.Found.Text, `"choices":[{"index":`) {
						t.Errorf("evidence %+v", f.Evidence)
					}
					// The engine serves on, over a new session where the old one was lost.
					harness.Eventually(t, "ready", func() bool { return harness.Get(t, one.Admin+"/readyz").Status == 200 })
					harness.WantComplete(t, harness.Post(t, one.URL+"/v1/chat/completions", harness.AskStream))

					if c.late {
						return
					}
					harness.Eventually(t, "ready", func() bool { return harness.Metric(t, two.Admin, "weir_engine_ready") == 2 })
					counted = harness.Metric(t, two.Admin, "weir_integrity_failures_total")
					bad.SetFaults(c.fault + ",nth=1")
					for range 2 { // one of them is the bad engine's turn
						harness.WantComplete(t, harness.Post(t, two.URL+"/v1/chat/completions", harness.AskStream))
					}
					harness.Settled(t, two, beforeTwo, bad, good)
					if n := harness.Metric(t, two.Admin, "weir_integrity_failures_total", `engine="bad"`); n != counted+1 {
						t.Errorf("before the first byte: %v failures counted, want one more than %v", n, counted)
					}
				})
			}
			one.T, two.T, bad.T = t, t, t
			if ended := one.Balanced(); ended["failed"] != len(path.faults) {
				t.Errorf("ended %v", ended)
			}
			if ended := two.Balanced(); ended["failed"] != 0 {
				t.Errorf("ended %v: all should have gone to the other engine", ended)
			}
			one.Interrupt()
			two.Interrupt()
			if n := strings.Count(one.Stderr.String(), `msg="integrity failure"`); n != len(path.faults) {
				t.Errorf("%d lines about integrity in the log, want %d:\n%s", n, len(path.faults), one.Stderr.String())
			}
			if strings.Contains(one.Stderr.String(), "data: ") || strings.Contains(one.Stderr.String(), "panic") {
				t.Errorf("the log holds text of an answer, or a panic:\n%s", one.Stderr.String())
			}
		})
	}
}

// wantSteps checks the evidence of the plane: the last steps, and what the
// last one says of the slot where it can be read.
func wantSteps(t *testing.T, fault string, f harness.Failure) {
	t.Helper()
	e := f.Evidence
	// A starved engine merges steps: there may not have been as many as are kept.
	if len(e.Frames) == 0 || len(e.Frames) < 8 && e.Frames[0].Sequence > 1 {
		t.Errorf("%d frames kept: %+v", len(e.Frames), e.Frames)
		return
	}
	for i := 1; i < len(e.Frames)-1; i++ {
		if e.Frames[i].Sequence != e.Frames[i-1].Sequence+1 || e.Frames[i].Bytes == 0 {
			t.Errorf("frames %+v", e.Frames)
		}
	}
	switch fault {
	case "stray", "backward", "miscount":
		if p := e.Part; p == nil || len(p.IDs) == 0 && fault != "miscount" || fault == "backward" && p.Total >= p.Before {
			t.Errorf("part %+v", p)
		}
	}
}
