package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"weir/internal/workload/content"
	"weir/test/e2e/harness"
)

// responsesAnswer is what these tests read of an answer of /v1/responses.
type responsesAnswer struct {
	ID, Status string
	Output     []struct {
		Type, Status, Name, Arguments string
		CallID                        string `json:"call_id"`
		Content                       []struct {
			Type, Text string
			Logprobs   []struct {
				Token   string
				Bytes   []int
				Logprob float64
				Top     []struct{ Token string } `json:"top_logprobs"`
			}
		}
	}
	Incomplete *struct{ Reason string } `json:"incomplete_details"`
	Error      *struct{ Code, Message string }
	Usage      *struct {
		InputTokens   int `json:"input_tokens"`
		OutputTokens  int `json:"output_tokens"`
		TotalTokens   int `json:"total_tokens"`
		OutputDetails struct {
			ReasoningTokens int `json:"reasoning_tokens"`
		} `json:"output_tokens_details"`
	}
}

// said returns the items in short.
func (a *responsesAnswer) said() string {
	var b strings.Builder
	for _, it := range a.Output {
		fmt.Fprintf(&b, "%s %s(%s)", it.Type, it.Name, it.Arguments)
		for _, p := range it.Content {
			fmt.Fprintf(&b, "%s %q %v", p.Type, p.Text, p.Logprobs)
		}
		b.WriteString(it.Status + "\n")
	}
	return b.String()
}

// text returns the text of the first item of a type.
func (a *responsesAnswer) text(kind string) string {
	for _, it := range a.Output {
		if it.Type == kind && len(it.Content) > 0 {
			return it.Content[0].Text
		}
	}
	return ""
}

// responsesEvents takes a stream apart and gives the answer that ends it.
func responsesEvents(t *testing.T, stream []byte) (types []string, last responsesAnswer) {
	t.Helper()
	for block := range strings.SplitSeq(strings.TrimSuffix(string(stream), "\n\n"), "\n\n") {
		name, data, _ := strings.Cut(strings.TrimPrefix(block, "event: "), "\ndata: ")
		var e struct {
			Type     string
			Sequence int `json:"sequence_number"`
			Response responsesAnswer
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil || e.Type != name || e.Sequence != len(types) {
			t.Fatalf("event %d: %v: %s", len(types), err, block)
		}
		types, last = append(types, name), e.Response
	}
	return types, last
}

// Over every kind of engine that the simulated one is: text, a call after
// reasoning, a document, whole and streamed the same, and verified by what was
// said.
func TestResponses(t *testing.T) {
	harness.Beside(t, harness.Light)
	s := harness.StartSim(t, harness.FastSim...)
	w := harness.Words(t)
	const schemaText = `{"type":"object","properties":{"name":{"type":"string"},"size":{"type":"integer"}},"required":["name","size"],"additionalProperties":false}`
	schema, err := content.CompileSchema([]byte(schemaText))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"plane", "sglang"} {
		g := harness.StartGateway(t, "serve", "--engine", s.Spec(path))
		ask := func(fields string) responsesAnswer {
			t.Helper()
			var both [2]responsesAnswer
			for i, stream := range []string{"false", "true"} {
				a := harness.Post(t, g.URL+"/v1/responses", `{"model":"weir-sim","seed":7,"stream":`+stream+`,`+fields+`}`)
				if a.Status != 200 || a.Err != nil {
					t.Fatalf("%s: %s: status %d, %v: %s", path, fields, a.Status, a.Err, a.Body)
				}
				if stream == "true" {
					types, last := responsesEvents(t, a.Body)
					if end := types[len(types)-1]; end != "response."+last.Status || a.Header.Get("Content-Type") != "text/event-stream" {
						t.Errorf("%s: %s ends with %s", path, fields, end)
					}
					both[i] = last
				} else if err := json.Unmarshal(a.Body, &both[i]); err != nil {
					t.Fatal(err)
				}
			}
			u, v := both[0].Usage, both[1].Usage
			if both[0].said() != both[1].said() || both[0].Status != both[1].Status || u == nil || v == nil || *u != *v || u.InputTokens+u.OutputTokens != u.TotalTokens {
				t.Errorf("%s: %s: whole %+v\nstreamed %+v", path, fields, both[0], both[1])
			}
			return both[0]
		}
		a := ask(`"input":"Low dams","instructions":"Be brief.","max_output_tokens":20,"ignore_eos":true`)
		v := w.Proof().Words()
		_, _ = v.WriteString(a.text("message"))
		if err := v.Close(); err != nil || v.Words() != 20 || a.Status != "incomplete" || a.Incomplete == nil || a.Incomplete.Reason != "max_output_tokens" || a.Usage.OutputTokens != 20 {
			t.Errorf("%s: %v, %d words: %+v", path, err, v.Words(), a)
		}

		const tools = `"tools":[{"type":"function","name":"measure","description":"d","strict":true,"parameters":` + schemaText + `}]`
		const user = `{"role":"user","content":[{"type":"input_text","text":"How large?"}]}`
		a = ask(`"input":[` + user + `],"reasoning":{"effort":"low"},` + tools)
		p := w.Proof()
		if len(a.Output) != 2 || a.Output[0].Type != "reasoning" || a.Output[1].Type != "function_call" || a.Output[1].Name != "measure" || a.Status != "completed" {
			t.Fatalf("%s: calls %s", path, a.said())
		}
		if err := errors.Join(p.Reasoning(content.EffortLow, a.text("reasoning"), true), p.Document(schema, a.Output[1].Arguments, true)); err != nil {
			t.Errorf("%s: %v in %s", path, err, a.said())
		}
		// One token is one word here; the marker and its line end come before them.
		if n := a.Usage.OutputDetails.ReasoningTokens; n != 2+len(strings.Fields(a.text("reasoning"))) {
			t.Errorf("%s: %d tokens of reasoning: %s", path, n, a.said())
		}
		call, err := json.Marshal(map[string]string{"type": "function_call", "call_id": a.Output[1].CallID, "name": "measure", "arguments": a.Output[1].Arguments})
		if err != nil {
			t.Fatal(err)
		}
		a = ask(`"input":[` + user + `,{"type":"reasoning","id":"r","summary":[],"content":[{"type":"reasoning_text","text":"well"}]},` + string(call) +
			`,{"type":"function_call_output","call_id":"` + a.Output[1].CallID + `","output":"12 m"}],"max_output_tokens":9,"ignore_eos":true,` + tools)
		v = w.Proof().Words()
		_, _ = v.WriteString(a.text("message"))
		if err := v.Close(); err != nil || v.Words() != 9 {
			t.Errorf("%s: after the call: %v: %s", path, err, a.said())
		}
		a = ask(`"input":"x","text":{"format":{"type":"json_schema","name":"n","strict":true,"schema":` + schemaText + `}}`)
		if err := w.Proof().Document(schema, a.text("message"), true); err != nil || a.Status != "completed" {
			t.Errorf("%s: %v in %s", path, err, a.said())
		}

		// Only the tokens of the text have log probabilities, not those of the reasoning.
		a = ask(`"input":"Low dams","reasoning":{"effort":"low"},"max_output_tokens":40,"ignore_eos":true,"top_logprobs":2,"include":["message.output_text.logprobs"]`)
		var spoken []byte
		for _, it := range a.Output {
			for _, p := range it.Content {
				if it.Type != "message" && len(p.Logprobs) > 0 {
					t.Errorf("%s: %s has log probabilities", path, it.Type)
				}
				for _, entry := range p.Logprobs {
					if len(entry.Top) != 2 || entry.Logprob > 0 {
						t.Errorf("%s: %+v", path, entry)
					}
					for _, c := range entry.Bytes {
						spoken = append(spoken, byte(c))
					}
				}
			}
		}
		if text := a.text("message"); len(a.Output) != 2 || text == "" || strings.TrimSpace(string(spoken)) != strings.TrimSpace(text) {
			t.Errorf("%s: %q has the log probabilities of %q: %s", path, text, spoken, a.said())
		}
		g.Balanced()
		g.Interrupt()
	}
}

// Error messages for clients of OpenAI's API name where weir differs from OpenAI.
func TestResponsesRefused(t *testing.T) {
	harness.Beside(t, harness.Light)
	g := harness.StartGateway(t, append([]string{"up"}, harness.FastSim...)...)
	for _, test := range []struct{ fields, param, words string }{
		{`"input":"x","previous_response_id":"resp_1"`, "previous_response_id", "send the conversation in input"},
		{`"input":"x","tools":[{"type":"web_search"}],"tool_choice":"required"`, "tool_choice", "web_search"},
		{`"input":[{"role":"user","content":[{"type":"input_image","image_url":"data:,"}]}]`, "input[0].content[0].image_url", "data:TYPE;base64,DATA"},
		{`"input":"x","max_output_tokens":1000000000`, "max_output_tokens", "max_output_tokens"},
		{`"input":"x","reasoning":{"effort":"low"},"chat_template_kwargs":{"reasoning_effort":"high"}`, "reasoning.effort", "give one of them"},
	} {
		a := harness.Post(t, g.URL+"/v1/responses", `{"model":"weir-sim",`+test.fields+`}`)
		var e harness.APIError
		if err := json.Unmarshal(a.Body, &e); err != nil || a.Status != 400 || e.Error.Param == nil || *e.Error.Param != test.param || !strings.Contains(e.Error.Message, test.words) {
			t.Errorf("%s: %d %s", test.fields, a.Status, a.Body)
		}
	}
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		req, err := http.NewRequest(method, g.URL+"/v1/responses/resp_1", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := harness.Client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if a := harness.Read(resp); a.Status != 404 || !strings.Contains(string(a.Body), "weir keeps no answers") {
			t.Errorf("%s: %d %s", method, a.Status, a.Body)
		}
	}
	g.Interrupt()
}

// A stream whose engine fails says so in both of the API's ways, and breaks off.
func TestResponsesFailed(t *testing.T) {
	harness.Beside(t, harness.Light)
	s := harness.StartSim(t, append(harness.FastSim, "--fault", "abort,after=5")...)
	g := harness.StartGateway(t, "serve", "--engine", s.Spec("plane"))
	a := harness.Post(t, g.URL+"/v1/responses", `{"model":"weir-sim","input":"x","stream":true,"max_output_tokens":50,"ignore_eos":true}`)
	if a.Status != 200 || !errors.Is(a.Err, io.ErrUnexpectedEOF) {
		t.Fatalf("status %d, %v: %s", a.Status, a.Err, a.Body)
	}
	types, last := responsesEvents(t, a.Body)
	if n := len(types); types[n-1] != "response.failed" || types[n-2] != "error" || last.Status != "failed" || last.Error == nil || last.Error.Code != "server_error" {
		t.Errorf("%v: %s", types, a.Body)
	}
	g.Interrupt()
}

// A tool that takes free text: the model calls it, streamed and whole, and what came of the call
// goes back to it.
func TestCustomTool(t *testing.T) {
	harness.Beside(t, harness.Light)
	g := harness.StartGateway(t, append([]string{"up"}, harness.FastSim...)...)
	const head = `{"model":"weir-sim","max_output_tokens":300,"tools":[{"type":"custom","name":"run","description":"Runs a program."}],`
	type item struct {
		Type, Name, Input, Status string
		CallID                    string `json:"call_id"`
	}
	var whole struct{ Output []item }
	ask := head + `"tool_choice":{"type":"custom","name":"run"},"input":"Hello"`
	a := harness.Post(t, g.URL+"/v1/responses", ask+`}`)
	if err := json.Unmarshal(a.Body, &whole); err != nil || len(whole.Output) != 1 {
		t.Fatalf("%d %s: %v", a.Status, a.Body, err)
	}
	call := whole.Output[0]
	if call.Type != "custom_tool_call" || call.Name != "run" || call.Input == "" || strings.HasPrefix(call.Input, "{") || call.CallID == "" {
		t.Errorf("the call: %+v", call)
	}
	var deltas, done string
	for line := range strings.Lines(string(harness.Post(t, g.URL+"/v1/responses", ask+`,"stream":true}`).Body)) {
		var e struct{ Type, Delta, Input string }
		if data, ok := strings.CutPrefix(line, "data: "); ok && json.Unmarshal([]byte(data), &e) == nil {
			switch e.Type {
			case "response.custom_tool_call_input.delta":
				deltas += e.Delta
			case "response.custom_tool_call_input.done":
				done = e.Input
			}
		}
	}
	if deltas != call.Input || done != call.Input {
		t.Errorf("streamed %q, then %q, and whole %q", deltas, done, call.Input)
	}
	text, _ := json.Marshal(call.Input)
	a = harness.Post(t, g.URL+"/v1/responses", head+`"input":[{"role":"user","content":"Hello"},{"type":"custom_tool_call","call_id":"`+call.CallID+`","name":"run","input":`+string(text)+`},{"type":"custom_tool_call_output","call_id":"`+call.CallID+`","output":"done"}]}`)
	if a.Status != 200 || !strings.Contains(string(a.Body), `"type":"message"`) {
		t.Errorf("what came of the call: %d %s", a.Status, a.Body)
	}
	g.Balanced()
	g.Interrupt()
}
