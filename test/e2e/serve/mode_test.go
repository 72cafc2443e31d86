package serve

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"weir/internal/workload/content"
	"weir/test/e2e/harness"
)

// Content that the simulated engine is asked for over the plane, where it sees ids only, arrives
// through the gateway and verifies from the text alone.
func TestContentOverThePlane(t *testing.T) {
	harness.Beside(t, harness.Light)
	g := harness.StartGateway(t, append([]string{"up"}, harness.FastSim...)...)
	w := harness.Words(t)
	const schemaText = `{"type":"object","properties":{"name":{"type":"string"},"sizes":{"type":"array","items":{"type":"number","maximum":5},"minItems":2}},"required":["name","sizes"]}`
	schema, err := content.CompileSchema([]byte(schemaText))
	if err != nil {
		t.Fatal(err)
	}
	ask := func(kwargs, user string, stream bool) (text, thought, reason string) {
		t.Helper()
		body := fmt.Sprintf(`{"model":"weir-sim","stream":%t,"messages":[{"role":"user","content":%q}],"chat_template_kwargs":%s}`, stream, user, kwargs)
		a := harness.Post(t, g.URL+"/v1/chat/completions", body)
		if a.Status != 200 || a.Err != nil {
			t.Fatalf("%s: status %d, %v: %s", kwargs, a.Status, a.Err, a.Body)
		}
		for line := range bytes.Lines(a.Body) {
			data, ok := bytes.CutPrefix(line, []byte("data: "))
			if !ok && stream || bytes.HasPrefix(data, []byte("[DONE]")) {
				continue
			}
			if !stream {
				data = a.Body
			}
			var e struct {
				Choices []struct {
					Delta, Message struct {
						Content          string
						ReasoningContent string `json:"reasoning_content"`
					}
					FinishReason string `json:"finish_reason"`
				}
			}
			if err := json.Unmarshal(data, &e); err != nil {
				t.Fatalf("%v in %s", err, data)
			}
			for _, c := range e.Choices {
				text += c.Delta.Content + c.Message.Content
				thought += c.Delta.ReasoningContent + c.Message.ReasoningContent
				reason += c.FinishReason
			}
		}
		return text, thought, reason
	}
	for _, stream := range []bool{false, true} {
		if got, _, reason := ask(`{"content":"echo"}`, "Fünf Boote\n\n\"{}\" 🚣", stream); got != "Fünf Boote\n\n\"{}\" 🚣" || reason != "stop" {
			t.Errorf("echo: %q, %s", got, reason)
		}
		if got, _, reason := ask(`{"response_schema":`+schemaText+`}`, "hi", stream); w.Proof().Document(schema, got, true) != nil || reason != "stop" {
			t.Errorf("schema: %q, %s", got, reason)
		}
		answer, thought, _ := ask(`{"enable_thinking":true}`, "hi", stream)
		p := w.Proof()
		if err := p.Reasoning(content.EffortMedium, thought, true); err != nil {
			t.Errorf("thinking: %v in %q", err, thought)
		}
		v := p.Words()
		_, _ = v.WriteString(strings.TrimLeft(answer, "\n"))
		if err := v.Close(); err != nil || v.Words() == 0 {
			t.Errorf("after thinking: %v in %q", err, answer)
		}
		if got, thought, _ := ask(`{}`, "[weir-sim {\"content\": \"json\", \"think\": \"low\"}]\nhi", stream); !json.Valid([]byte(got)) || thought == "" {
			t.Errorf("by a directive: %q, %q", thought, got)
		}
	}
	a := harness.Post(t, g.URL+"/v1/chat/completions", `{"model":"weir-sim","messages":[{"role":"user","content":"hi"}],"chat_template_kwargs":{"response_schema":{"not":{}}}}`)
	if a.Status != 400 || !strings.Contains(string(a.Body), `\"not\" is not supported`) {
		t.Errorf("a schema that cannot be done: %d %s", a.Status, a.Body)
	}
	g.Balanced()
	g.Interrupt()
}

// Reasoning is told by the members that the operator names, the same streamed and
// whole.
func TestReasoningField(t *testing.T) {
	harness.Beside(t, harness.Light)
	const ask = `{"model":"weir-sim","seed":7,"max_tokens":400,"chat_template_kwargs":{"enable_thinking":true},"messages":[{"role":"user","content":"why?"}]`
	s := harness.StartSim(t, append(harness.FastSim, "--decode-cost", "1ms")...)
	for field, want := range map[string][]string{
		"reasoning_content": {"reasoning_content"},
		"reasoning":         {"reasoning"},
		"both":              {"reasoning_content", "reasoning"},
	} {
		g := harness.StartGateway(t, "serve", "--engine", s.Spec("plane"), "--reasoning-field", field)
		harness.Eventually(t, "ready", func() bool { return harness.Get(t, g.Admin+"/readyz").Status == 200 })
		var whole struct {
			Choices []struct{ Message map[string]any }
		}
		if a := harness.Post(t, g.URL+"/v1/chat/completions", ask+`}`); json.Unmarshal(a.Body, &whole) != nil || len(whole.Choices) != 1 {
			t.Fatalf("%s: status %d: %s", field, a.Status, a.Body)
		}
		streamed := map[string]string{}
		a := harness.Post(t, g.URL+"/v1/chat/completions", ask+`,"stream":true}`)
		harness.WantComplete(t, a)
		for line := range bytes.Lines(a.Body) {
			var chunk struct {
				Choices []struct{ Delta map[string]any }
			}
			if data, ok := bytes.CutPrefix(line, []byte("data: {")); ok {
				if err := json.Unmarshal(append([]byte("{"), data...), &chunk); err != nil {
					t.Fatal(err)
				}
			}
			for _, c := range chunk.Choices {
				for name, value := range c.Delta {
					if text, ok := value.(string); ok {
						streamed[name] += text
					}
				}
			}
		}
		for _, name := range []string{"reasoning_content", "reasoning"} {
			text, _ := whole.Choices[0].Message[name].(string)
			if (text != "") != slices.Contains(want, name) || streamed[name] != text {
				t.Errorf("%s: %s is %q whole, %q streamed", field, name, text, streamed[name])
			}
		}
		g.Interrupt()
	}
}
