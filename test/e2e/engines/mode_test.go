package engines

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// An engine told to says one thing to everybody.
func TestContentOfTheEngine(t *testing.T) {
	harness.Beside(t, harness.Light)
	s := harness.StartSim(t, append(harness.FastSim, "--content", "echo", "--reasoning", "low")...)
	a := harness.Post(t, s.OpenAI+"/v1/chat/completions", `{"messages":[{"role":"user","content":"well"}]}`)
	if a.Status != 200 || !strings.Contains(string(a.Body), `"content":"well"`) || !strings.Contains(string(a.Body), `"reasoning_content":" `) {
		t.Errorf("status %d: %s", a.Status, a.Body)
	}
}

// One engine says the same to the same request on its HTTP wire, where it reads
// the request's fields, and on the plane, where all it has is ids.
func TestContentIsTheSameOnEveryWire(t *testing.T) {
	harness.Beside(t, harness.Light)
	s := harness.StartSim(t, harness.FastSim...)
	g := harness.StartGateway(t, "serve", "--engine", "weir="+s.Plane)
	type message struct {
		Content   string
		Reasoning string `json:"reasoning_content"`
		ToolCalls []struct {
			Function struct{ Name, Arguments string }
		} `json:"tool_calls"`
	}
	said := func(url, body string) string {
		t.Helper()
		a := harness.Post(t, url+"/v1/chat/completions", body)
		var answer struct {
			Choices []struct {
				Message      message
				FinishReason string `json:"finish_reason"`
			}
		}
		if err := json.Unmarshal(a.Body, &answer); err != nil || a.Status != 200 || len(answer.Choices) != 1 {
			t.Fatalf("%s: status %d: %s", body, a.Status, a.Body)
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
		if http, plane := said(s.OpenAI, body), said(g.URL, body); http != plane {
			t.Errorf("%s\nover HTTP  %s\nover plane %s", fields, http, plane)
		} else if strings.Contains(fields, "tools") != strings.Contains(http, "tool_calls") {
			t.Errorf("%s: %s", fields, http)
		}
	}
	g.Interrupt()
}
