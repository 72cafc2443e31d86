package relay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// The stages of a relayed request hold against the engine's own stamps and against
// delays that were put in, whether its answer is streamed or not: what the engine says
// that it took is the engine's, and a delay is its stage's.
func TestRelayStages(t *testing.T) {
	harness.Beside(t, harness.Light)
	// 30 tokens of 20 ms: of other stages none comes near it, however busy the machine is,
	// in the best of several requests. A busy machine adds to any stage of any request.
	url, _ := harness.StartWire(t, "vllm", "--enable-per-request-metrics", "--cost", "constant", "--prefill-cost", "50ms", "--decode-cost", "20ms")
	delays := map[string]time.Duration{}
	var flags []string
	for i, stage := range []string{"read", "parse", "gate", "queue", "route", "dispatch", "receive", "flush", "finish"} {
		delays[stage] = time.Duration(10+5*i) * time.Millisecond
		flags = append(flags, "--debug-stage-delay", stage+"="+delays[stage].String())
	}
	for _, streamed := range []bool{false, true} {
		t.Run(fmt.Sprintf("streamed %t", streamed), func(t *testing.T) {
			g := harness.StartGateway(t, append([]string{"serve", "--engine", "openai=" + url}, flags...)...)
			const requests = 5
			var engine []time.Duration // by the engine's stamps
			for range requests {
				a := harness.Post(t, g.URL+"/v1/chat/completions",
					fmt.Sprintf(`{"model":"weir-sim","stream":%t,"max_tokens":30,"ignore_eos":true,"messages":[{"role":"user","content":"x"}]%s}`,
						streamed, map[bool]string{true: `,"stream_options":{"include_usage":true}`}[streamed]))
				if a.Status != 200 || a.Err != nil {
					t.Fatalf("status %d, %v: %s", a.Status, a.Err, a.Body)
				}
				var m struct {
					Queue      float64 `json:"queue_time_ms"`
					First      float64 `json:"time_to_first_token_ms"`
					Generation float64 `json:"generation_time_ms"`
				}
				_, told, ok := bytes.Cut(a.Body, []byte(`"metrics":`))
				if !ok || json.NewDecoder(bytes.NewReader(told)).Decode(&m) != nil {
					t.Fatalf("the engine told no times: %s", a.Body)
				}
				engine = append(engine, time.Duration((m.Queue+m.First+m.Generation)*1e6))
			}
			g.Interrupt()
			least := map[string]time.Duration{}
			records := g.Records()
			if len(records) != requests {
				t.Fatalf("%d records", len(records))
			}
			residual := time.Hour
			for i, r := range records {
				// A gateway that hears late that the engine has the request takes that for
				// dispatch.
				took := time.Duration(r.Stages["engine"]+r.Stages["dispatch"]) - delays["dispatch"]
				if streamed { // the engine goes on while weir passes on what there is
					took += time.Duration(r.Stages["receive"] + r.Stages["flush"])
				}
				if took < engine[i]-time.Millisecond {
					t.Errorf("request %d: engine %v, which says that it took %v; stages %v", i, took, engine[i], r.Stages)
				}
				residual = min(residual, time.Duration(max(r.Residual, -r.Residual)))
				for stage := range delays {
					if ns := time.Duration(r.Stages[stage]); i == 0 || ns < least[stage] {
						least[stage] = ns
					}
				}
			}
			if residual > time.Millisecond {
				t.Errorf("%v at least are in no stage", residual)
			}
			for stage, delay := range delays {
				if got := least[stage]; got < delay || got > delay+engine[0]/2 {
					t.Errorf("stage %s took %v, of which %v were put in, and %v are the engine's", stage, got, delay, engine[0])
				}
			}
		})
	}
}
