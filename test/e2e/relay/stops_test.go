package relay

import (
	"encoding/json"
	"testing"

	"weir/test/e2e/harness"
)

// Over a relay the engine searches stop strings by its own rule: in all text. Where weir parses
// the answer, it searches the content alone.
func TestStopStringsOfRelays(t *testing.T) {
	harness.Beside(t, harness.Light)
	s := harness.StartSim(t, "--content", "echo")
	const body = `{"model":"weir-sim","max_tokens":200,"stop":["halt"],"messages":[{"role":"user","content":"<think>I halt here</think>It goes on, then halt, and more"}]}`
	type message struct {
		Content   string
		Reasoning string `json:"reasoning_content"`
	}
	for wire, want := range map[string]message{
		"relay": {Content: "<think>I "},
		"plane": {Content: "It goes on, then ", Reasoning: "I halt here"},
	} {
		g := harness.StartGateway(t, "serve", "--engine", s.Spec(wire))
		a := harness.Post(t, g.URL+"/v1/chat/completions", body)
		var got struct {
			Choices []struct {
				Message message
				Reason  string `json:"finish_reason"`
			}
		}
		if err := json.Unmarshal(a.Body, &got); err != nil || len(got.Choices) != 1 || got.Choices[0].Message != want || got.Choices[0].Reason != "stop" {
			t.Errorf("%s: %v %s, want %q", wire, err, a.Body, want)
		}
		g.Interrupt()
	}
}
