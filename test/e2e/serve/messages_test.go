package serve

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// Anthropic's API through the binary: a tool's call, its result and the answer,
// thinking, a document by a schema, the prompt's length, errors in its shape.
func TestMessages(t *testing.T) {
	harness.Beside(t, harness.Light)
	g := harness.StartGateway(t, append([]string{"up"}, harness.FastSim...)...)
	w := harness.Words(t)
	type block struct {
		Type, Text, Thinking, ID, Name string
		Input                          json.RawMessage
	}
	type message struct {
		Content []block
		Reason  string `json:"stop_reason"`
		Usage   struct {
			Input  int `json:"input_tokens"`
			Cached int `json:"cache_read_input_tokens"`
		}
	}
	ask := func(messages, fields string) (m message) {
		t.Helper()
		a := harness.Post(t, g.URL+"/v1/messages", `{"model":"weir-sim","max_tokens":600,"messages":`+messages+fields+`}`)
		if err := json.Unmarshal(a.Body, &m); err != nil || a.Status != 200 {
			t.Fatalf("%s: status %d, %s (%v)", fields, a.Status, a.Body, err)
		}
		return m
	}
	const user = `{"role":"user","content":"What is the weather?"}`
	const tools = `,"tools":[{"name":"get_weather","description":"d","input_schema":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}]`

	m := ask(`[`+user+`]`, tools)
	if len(m.Content) != 1 || m.Content[0].Type != "tool_use" || m.Content[0].Name != "get_weather" || m.Reason != "tool_use" {
		t.Fatalf("%+v", m)
	}
	var input struct{ City *string }
	if err := json.Unmarshal(m.Content[0].Input, &input); err != nil || input.City == nil {
		t.Errorf("input %s", m.Content[0].Input)
	}
	history := `[` + user + `,{"role":"assistant","content":[{"type":"tool_use","id":"` + m.Content[0].ID + `","name":"get_weather","input":` + string(m.Content[0].Input) + `}]},` +
		`{"role":"user","content":[{"type":"tool_result","tool_use_id":"` + m.Content[0].ID + `","content":"18"}]}]`
	m = ask(history, tools)
	v := w.Proof().Words()
	if len(m.Content) != 1 || m.Content[0].Type != "text" || m.Reason != "end_turn" {
		t.Fatalf("%+v", m)
	}
	_, _ = v.WriteString(m.Content[0].Text)
	if err := v.Close(); err != nil || v.Words() == 0 {
		t.Errorf("after the result: %v in %q", err, m.Content[0].Text)
	}
	count := harness.Post(t, g.URL+"/v1/messages/count_tokens", `{"model":"weir-sim","messages":`+history+tools+`}`)
	var counted struct {
		Tokens int `json:"input_tokens"`
	}
	if err := json.Unmarshal(count.Body, &counted); err != nil || counted.Tokens != m.Usage.Input+m.Usage.Cached {
		t.Errorf("counted %s, used %+v", count.Body, m.Usage)
	}

	m = ask(`[`+user+`]`, `,"thinking":{"type":"adaptive"}`)
	if len(m.Content) != 2 || m.Content[0].Type != "thinking" || m.Content[0].Thinking == "" || m.Content[1].Type != "text" {
		t.Errorf("thinking: %+v", m)
	}
	m = ask(`[`+user+`]`, `,"output_config":{"format":{"type":"json_schema","schema":{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}}}`)
	var document struct{ N *int }
	if err := json.Unmarshal([]byte(m.Content[0].Text), &document); err != nil || document.N == nil {
		t.Errorf("document %+v", m)
	}
	m = ask(`[`+user+`]`, tools+`,"tool_choice":{"type":"tool","name":"get_weather"}`)
	if len(m.Content) != 1 || m.Content[0].Name != "get_weather" || m.Reason != "tool_use" {
		t.Errorf("forced: %+v", m)
	}

	for _, c := range []struct {
		method, body, kind, says string
		status                   int
	}{
		{"GET", "", "invalid_request_error", "use POST", 405},
		{"POST", "{", "invalid_request_error", "line 1, column 2", 400},
		{"POST", `{"model":"x","max_tokens":1,"messages":[` + user + `]}`, "not_found_error", "weir-sim", 404},
		{"POST", `{"model":"weir-sim","messages":[` + user + `]}`, "invalid_request_error", "max_tokens is required", 400},
		{"POST", `{"model":"weir-sim","max_tokens":1,"messages":[{"role":"user","content":[{"type":"image"}]}]}`, "invalid_request_error", "messages[0].content[0].source is required", 400},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, g.URL+"/v1/messages", strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		var e struct {
			Type  string
			Error struct{ Type, Message string }
		}
		if err != nil || json.Unmarshal(body, &e) != nil || resp.StatusCode != c.status || e.Type != "error" || e.Error.Type != c.kind || !strings.Contains(e.Error.Message, c.says) {
			t.Errorf("%s %s: status %d, %s", c.method, c.body, resp.StatusCode, body)
		}
		if resp.Header.Get("Request-Id") == "" {
			t.Errorf("%s %s: no Request-Id", c.method, c.body)
		}
	}

	stream := harness.Post(t, g.URL+"/v1/messages", `{"model":"weir-sim","max_tokens":40,"stream":true,"messages":[`+user+`]}`)
	text := string(stream.Body)
	if stream.Status != 200 || !strings.HasPrefix(text, "event: message_start\n") || !strings.HasSuffix(text, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n") {
		t.Errorf("status %d, %s", stream.Status, text)
	}
}
