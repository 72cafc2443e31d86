package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"weir/internal/content"
)

// What is asked of the simulated engine over the plane, where it sees ids only,
// arrives through the gateway and verifies from the text alone.
func TestContentOverThePlane(t *testing.T) {
	beside(t, light)
	g := startGateway(t, append([]string{"up"}, fast...)...)
	w := words(t)
	const schemaText = `{"type":"object","properties":{"name":{"type":"string"},"sizes":{"type":"array","items":{"type":"number","maximum":5},"minItems":2}},"required":["name","sizes"]}`
	schema, err := content.CompileSchema([]byte(schemaText))
	if err != nil {
		t.Fatal(err)
	}
	ask := func(kwargs, user string, stream bool) (text, thought, reason string) {
		t.Helper()
		body := fmt.Sprintf(`{"model":"weir-sim","stream":%t,"messages":[{"role":"user","content":%q}],"chat_template_kwargs":%s}`, stream, user, kwargs)
		a := post(t, g.url+"/v1/chat/completions", body)
		if a.status != 200 || a.err != nil {
			t.Fatalf("%s: status %d, %v: %s", kwargs, a.status, a.err, a.body)
		}
		for line := range bytes.Lines(a.body) {
			data, ok := bytes.CutPrefix(line, []byte("data: "))
			if !ok && stream || bytes.HasPrefix(data, []byte("[DONE]")) {
				continue
			}
			if !stream {
				data = a.body
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
	a := post(t, g.url+"/v1/chat/completions", `{"model":"weir-sim","messages":[{"role":"user","content":"hi"}],"chat_template_kwargs":{"response_schema":{"not":{}}}}`)
	if a.status != 400 || !strings.Contains(string(a.body), `\"not\" is not supported`) {
		t.Errorf("a schema that cannot be done: %d %s", a.status, a.body)
	}
	g.balanced()
	g.interrupt()
}

// An engine told to says one thing to everybody.
func TestContentOfTheEngine(t *testing.T) {
	beside(t, light)
	s := startSim(t, append(fast, "--content", "echo", "--reasoning", "low")...)
	a := post(t, s.openai+"/v1/chat/completions", `{"messages":[{"role":"user","content":"well"}]}`)
	if a.status != 200 || !strings.Contains(string(a.body), `"content":"well"`) || !strings.Contains(string(a.body), `"reasoning_content":" `) {
		t.Errorf("status %d: %s", a.status, a.body)
	}
}

// One engine says the same to the same request on its HTTP wire, where it reads
// the request's fields, and on the plane, where all it has is ids.
func TestContentIsTheSameOnEveryWire(t *testing.T) {
	beside(t, light)
	s := startSim(t, fast...)
	g := startGateway(t, "serve", "--engine", "weir="+s.plane)
	type message struct {
		Content   string
		Reasoning string `json:"reasoning_content"`
		ToolCalls []struct {
			Function struct{ Name, Arguments string }
		} `json:"tool_calls"`
	}
	said := func(url, body string) string {
		t.Helper()
		a := post(t, url+"/v1/chat/completions", body)
		var answer struct {
			Choices []struct {
				Message      message
				FinishReason string `json:"finish_reason"`
			}
		}
		if err := json.Unmarshal(a.body, &answer); err != nil || a.status != 200 || len(answer.Choices) != 1 {
			t.Fatalf("%s: status %d: %s", body, a.status, a.body)
		}
		answer.Choices[0].Message.Content = strings.TrimLeft(answer.Choices[0].Message.Content, "\n")
		return fmt.Sprintf("%+v", answer.Choices[0])
	}
	const tools = `[{"type":"function","function":{"name":"measure.it","description":"<a> \"b\" 'c'","parameters":{"type":"object","properties":{"stück":{"type":"number","minimum":1.50,"maximum":1e3,"multipleOf":0.25},"art":{"enum":["ä","b"]},"liste":{"type":"array","items":{"type":"string"}}},"required":["stück","art","liste"]}}},{"type":"function","function":{"name":"now"}}]`
	for _, fields := range []string{
		`"tools":` + tools,
		`"tools":` + tools + `,"chat_template_kwargs":{"enable_thinking":true},"seed":5`,
		`"chat_template_kwargs":{"enable_thinking":true},"max_tokens":50`,
		`"chat_template_kwargs":{"content":"echo"}`,
		`"max_tokens":30`,
	} {
		body := `{"model":"weir-sim",` + fields + `,"messages":[{"role":"system","content":"Sei knapp."},{"role":"user","content":"Wie groß?"}]}`
		if http, plane := said(s.openai, body), said(g.url, body); http != plane {
			t.Errorf("%s\nover HTTP  %s\nover plane %s", fields, http, plane)
		} else if strings.Contains(fields, "tools") != strings.Contains(http, "tool_calls") {
			t.Errorf("%s: %s", fields, http)
		}
	}
	g.interrupt()
}

// Reasoning is told by the members that the operator names, the same streamed and
// whole.
func TestReasoningField(t *testing.T) {
	beside(t, light)
	const ask = `{"model":"weir-sim","seed":7,"max_tokens":400,"chat_template_kwargs":{"enable_thinking":true},"messages":[{"role":"user","content":"why?"}]`
	s := startSim(t, fast...)
	for field, want := range map[string][]string{
		"reasoning_content": {"reasoning_content"},
		"reasoning":         {"reasoning"},
		"both":              {"reasoning_content", "reasoning"},
	} {
		g := startGateway(t, "serve", "--engine", s.spec("plane"), "--reasoning-field", field)
		eventually(t, "ready", func() bool { return get(t, g.admin+"/readyz").status == 200 })
		var whole struct {
			Choices []struct{ Message map[string]any }
		}
		if a := post(t, g.url+"/v1/chat/completions", ask+`}`); json.Unmarshal(a.body, &whole) != nil || len(whole.Choices) != 1 {
			t.Fatalf("%s: status %d: %s", field, a.status, a.body)
		}
		streamed := map[string]string{}
		a := post(t, g.url+"/v1/chat/completions", ask+`,"stream":true}`)
		wantComplete(t, a)
		for line := range bytes.Lines(a.body) {
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
		g.interrupt()
	}
}
