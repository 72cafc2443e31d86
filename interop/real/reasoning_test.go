//go:build interop_engines

package real

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// An engine core with --reasoning-parser holds an answer to its guide from the end of
// reasoning on, which never comes where the answer is all call. weir tells it then that
// reasoning has ended, and only then: a document behind reasoning stays a document behind
// reasoning.
func TestGuidesBesideReasoning(t *testing.T) {
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	folder, handshake := withoutPrefix(t), freePort(t)
	headless := vllmOf(t, folder, []string{"PYTHONPATH=" + here}, "--logits-processors", "scripted:Scripted", "--reasoning-parser", "deepseek_r1",
		"--headless", "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", handshake)
	core := serve(t, "--engine", "vllm-core=tcp://127.0.0.1:"+handshake+",model=tiny", "--model", "tiny="+folder+",reasoning-parser=think")
	core.ready(true, headless)
	w := way{"vllm-core", core.URL, "tiny"}
	ctx := harness.Context(t)

	city := fields{"type": "object", "additionalProperties": false, "required": []string{"n"},
		"properties": fields{"n": fields{"type": "integer", "minimum": 1, "maximum": 9}}}
	tools := []fields{{"type": "function", "function": fields{"name": "weather", "parameters": city}}}
	type message struct {
		Content          string
		ReasoningContent string `json:"reasoning_content"`
		ToolCalls        []struct {
			Function struct{ Name, Arguments string }
		} `json:"tool_calls"`
	}
	ask := func(t *testing.T, path string, body fields) (message, string) {
		t.Helper()
		resp, err := w.post(ctx, path, body)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var a struct {
			Choices []struct {
				Message      message
				Text         string
				FinishReason string `json:"finish_reason"`
			}
			Error json.RawMessage
		}
		if err := json.NewDecoder(resp.Body).Decode(&a); err != nil || len(a.Choices) != 1 {
			t.Fatalf("status %d, %s, %v", resp.StatusCode, a.Error, err)
		}
		a.Choices[0].Message.Content += a.Choices[0].Text
		return a.Choices[0].Message, a.Choices[0].FinishReason
	}
	arguments := regexp.MustCompile(`^\{\s*"n"\s*:\s*[1-9]\s*\}$`) // with white space as the model likes
	for seed := range 4 {
		drawn := fields{"temperature": 1, "seed": seed, "max_tokens": 400}
		chat := drawn.with(fields{"messages": user("How?")})
		for name, choice := range map[string]any{"named": fields{"type": "function", "function": fields{"name": "weather"}}, "required": "required"} {
			m, why := ask(t, chatPath, chat.with(fields{"tools": tools, "tool_choice": choice}))
			if why == "length" && name == "required" {
				continue // a list of calls may go on for long
			}
			if len(m.ToolCalls) == 0 || why != "tool_calls" || m.ReasoningContent != "" || m.Content != "" {
				t.Errorf("%s, seed %d: %+v, %s", name, seed, m, why)
				continue
			}
			for _, c := range m.ToolCalls {
				if c.Function.Name != "weather" || !arguments.MatchString(c.Function.Arguments) {
					t.Errorf("%s, seed %d: %+v", name, seed, c)
				}
			}
		}
		m, why := ask(t, completionPath, drawn.with(fields{"prompt": "How?", "structured_outputs": fields{"regex": "[0-9]{3}-[a-z]{4}"}}))
		if !regexp.MustCompile(`^[0-9]{3}-[a-z]{4}$`).MatchString(m.Content) {
			t.Errorf("completion, seed %d: %+v, %s", seed, m, why)
		}
	}
	// The engine waits where weir has not told it otherwise: what is said before the end of
	// reasoning is held to nothing, and what follows is a document.
	document := fields{"response_format": fields{"type": "json_schema", "json_schema": fields{"name": "n", "schema": city}}}
	m, why := ask(t, chatPath, document.with(fields{"messages": user(say("<think>I look.</think>{\"n\":5}")), "temperature": 0, "max_tokens": 400,
		"chat_template_kwargs": fields{"enable_thinking": true}}))
	if strings.TrimSpace(m.ReasoningContent) != "I look." || !arguments.MatchString(strings.TrimSpace(m.Content)) || why != "stop" {
		t.Errorf("a document behind reasoning: %+v, %s", m, why)
	}
}
