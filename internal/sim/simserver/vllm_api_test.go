package simserver

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/go-json-experiment/json"

	"weir/internal/sim"
	"weir/internal/sim/simserver/flags"
	"weir/internal/sim/simserver/web"
)

// apiAnswer is an answer in the Messages or the Responses API, put together.
type apiAnswer struct {
	status          int
	text, reasoning string
	calls           []spokenCall
	reason          string
	in, out         int
	events          []string // their names
	raw             string
}

// ask posts to one of them and puts the answer together, streamed or not.
func (b *bench) ask(url, body string) (a apiAnswer) {
	b.t.Helper()
	resp, err := b.client.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	a.status, a.raw = resp.StatusCode, string(raw)
	streamed := strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream")
	switch {
	case resp.StatusCode != http.StatusOK:
	case strings.HasSuffix(url, "/v1/messages") && streamed:
		a.eachEvent(b, a.messagesEvent)
	case strings.HasSuffix(url, "/v1/messages"):
		var m messageSeen
		b.unmarshal(raw, &m)
		a.in, a.out, a.reason = m.Usage.Input, m.Usage.Output, m.StopReason
		for _, c := range m.Content {
			a.text, a.reasoning = a.text+c.Text, a.reasoning+c.Thinking
			if c.Type == "tool_use" {
				a.calls = append(a.calls, spokenCall{c.ID, c.Name, string(c.Input)})
			}
		}
	case streamed:
		sequence := 0
		a.eachEvent(b, func(b *bench, name, data string) {
			var e struct {
				Sequence int          `json:"sequence_number"`
				Delta    string       `json:"delta"`
				Response responseSeen `json:"response"`
			}
			b.unmarshal([]byte(data), &e)
			if e.Sequence != sequence {
				b.t.Errorf("event %d is numbered %d: %s", sequence, e.Sequence, data)
			}
			sequence++
			switch name {
			case "response.output_text.delta":
				a.text += e.Delta
			case "response.reasoning_text.delta":
				a.reasoning += e.Delta
			case "response.completed":
				whole := apiAnswer{}
				whole.response(&e.Response)
				if whole.text != a.text || whole.reasoning != a.reasoning {
					b.t.Errorf("the deltas say %q and %q, the end %q and %q", a.reasoning, a.text, whole.reasoning, whole.text)
				}
				a.calls, a.reason, a.in, a.out = whole.calls, whole.reason, whole.in, whole.out
			}
		})
	default:
		var r responseSeen
		b.unmarshal(raw, &r)
		a.response(&r)
	}
	return a
}

func (b *bench) unmarshal(data []byte, into any) {
	b.t.Helper()
	if err := json.Unmarshal(data, into, json.MatchCaseInsensitiveNames(true)); err != nil {
		b.t.Fatalf("%v: %s", err, data)
	}
}

// eachEvent reads a stream whose events have names, and name themselves again.
func (a *apiAnswer) eachEvent(b *bench, read func(b *bench, name, data string)) {
	b.t.Helper()
	for event := range strings.SplitSeq(strings.TrimSuffix(a.raw, "\n\n"), "\n\n") {
		name, data, ok := strings.Cut(strings.TrimPrefix(event, "event: "), "\ndata: ")
		var typed struct {
			Type string `json:"type"`
		}
		if b.unmarshal([]byte(data), &typed); !ok || typed.Type != name {
			b.t.Errorf("an event: %q", event)
		}
		a.events = append(a.events, name)
		read(b, name, data)
	}
}

type messageSeen struct {
	Content []struct {
		Type, Text, ID, Name, Thinking string
		Input                          anyJSON
	}
	StopReason string `json:"stop_reason"`
	Usage      struct {
		Input  int `json:"input_tokens"`
		Output int `json:"output_tokens"`
		Read   int `json:"cache_read_input_tokens"`
	}
}

// anyJSON is a value as it stands.
type anyJSON []byte

func (v *anyJSON) UnmarshalJSON(b []byte) error {
	*v = append((*v)[:0], b...)
	return nil
}

// messagesEvent reads an event of the Messages API.
func (a *apiAnswer) messagesEvent(b *bench, name, data string) {
	var e struct {
		Index   int
		Message messageSeen
		Block   struct{ Type, ID, Name string } `json:"content_block"`
		Delta   struct {
			Type, Text, Thinking string
			Partial              string `json:"partial_json"`
			StopReason           string `json:"stop_reason"`
		}
		Usage struct {
			Input  int `json:"input_tokens"`
			Output int `json:"output_tokens"`
		}
	}
	b.unmarshal([]byte(data), &e)
	switch name {
	case "message_start":
		a.in = e.Message.Usage.Input
	case "content_block_start":
		if e.Block.Type == "tool_use" {
			a.calls = append(a.calls, spokenCall{e.Block.ID, e.Block.Name, ""})
		}
	case "content_block_delta":
		a.text, a.reasoning = a.text+e.Delta.Text, a.reasoning+e.Delta.Thinking
		if n := len(a.calls); e.Delta.Type == "input_json_delta" {
			a.calls[n-1].arguments += e.Delta.Partial
		}
	case "message_delta":
		a.reason, a.out = e.Delta.StopReason, e.Usage.Output
		if e.Usage.Input != a.in {
			b.t.Errorf("input_tokens are %d at first and %d at last", a.in, e.Usage.Input)
		}
	}
}

type responseSeen struct {
	Status string
	Output []struct {
		Type, Name, Arguments, Namespace, Input string
		CallID                                  string `json:"call_id"`
		Content                                 []struct{ Type, Text string }
	}
	Usage struct {
		Input  int `json:"input_tokens"`
		Output int `json:"output_tokens"`
		Total  int `json:"total_tokens"`
	}
}

func (a *apiAnswer) response(r *responseSeen) {
	a.reason, a.in, a.out = r.Status, r.Usage.Input, r.Usage.Output
	for _, item := range r.Output {
		for _, c := range item.Content {
			switch c.Type {
			case "output_text":
				a.text += c.Text
			case "reasoning_text":
				a.reasoning += c.Text
			}
		}
		switch item.Type {
		case "function_call":
			name := item.Name
			if item.Namespace != "" {
				name = item.Namespace + "__" + name
			}
			a.calls = append(a.calls, spokenCall{item.CallID, name, item.Arguments})
		case "custom_tool_call":
			a.calls = append(a.calls, spokenCall{item.CallID, item.Name, `{"input": ` + web.Quote(item.Input) + `}`})
		}
	}
}

// The Messages and the Responses API say what the chat says that their requests are made
// into, streamed and whole: text, reasoning, calls, documents and what they count.
func TestVLLMAPIsSayWhatTheChatSays(t *testing.T) {
	const schema = `{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}`
	const tool = `"name":"weather","description":"d"`
	chatTools := `"tools":[{"type":"function","function":{` + tool + `,"parameters":` + schema + `}}]`
	result := `"messages":[{"role":"user","content":"hello"},{"role":"assistant","tool_calls":[{"id":"c1","type":"function","function":{"name":"weather","arguments":"{\"city\": \"x\"}"}}]},{"role":"tool","tool_call_id":"c1","content":"rain"}]`
	for name, test := range map[string]struct {
		chat, messages, responses               string
		reason, messagesReason, responsesReason string
	}{
		"text": {hello + `,"max_tokens":12,"ignore_eos":true`, hello + `,"max_tokens":12`, `"input":"hello","max_output_tokens":12,"ignore_eos":true`, "length", "max_tokens", "incomplete"},
		"system": {`"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"hello"}],"max_tokens":9,"ignore_eos":true`,
			`"system":[{"type":"text","text":"x-anthropic-billing-header: 1"},{"type":"text","text":"be "},{"type":"text","text":"brief"}],` + hello + `,"max_tokens":9`,
			`"instructions":"be brief","input":[{"role":"user","content":[{"type":"input_text","text":"hello"}]}],"max_output_tokens":9`, "length", "max_tokens", "incomplete"},
		"reasoning": {hello + `,"reasoning_effort":"low","max_tokens":400`, hello + `,"output_config":{"effort":"low"},"max_tokens":400`, `"input":"hello","reasoning":{"effort":"low"},"max_output_tokens":400`, "stop", "end_turn", "completed"},
		"a call": {hello + `,"max_tokens":400,` + chatTools, hello + `,"max_tokens":400,"tools":[{` + tool + `,"input_schema":` + schema + `}]`,
			`"input":"hello","max_output_tokens":400,"tools":[{"type":"function",` + tool + `,"parameters":` + schema + `}]`, "tool_calls", "tool_use", "completed"},
		"a forced call": {hello + `,"max_tokens":400,"tool_choice":"required",` + chatTools, hello + `,"max_tokens":400,"tool_choice":{"type":"tool","name":"weather"},"tools":[{` + tool + `,"input_schema":` + schema + `}]`,
			`"input":"hello","max_output_tokens":400,"tool_choice":{"type":"function","name":"weather"},"tools":[{"type":"function",` + tool + `,"parameters":` + schema + `}]`, "tool_calls", "tool_use", "completed"},
		"a result": {result + `,"max_tokens":30,` + chatTools,
			`"messages":[{"role":"user","content":"hello"},{"role":"assistant","content":[{"type":"tool_use","id":"c1","name":"weather","input":{"city": "x"}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":[{"type":"text","text":"rain"}]}]}],"max_tokens":30,"tools":[{` + tool + `,"input_schema":` + schema + `}]`,
			`"input":[{"role":"user","content":"hello"},{"type":"function_call","call_id":"c1","name":"weather","arguments":"{\"city\": \"x\"}"},{"type":"function_call_output","call_id":"c1","output":"rain"}],"max_output_tokens":30,"tools":[{"type":"function",` + tool + `,"parameters":` + schema + `}]`,
			"", "", ""},
		"a document": {hello + `,"max_tokens":400,"response_format":{"type":"json_schema","json_schema":{"name":"s","schema":` + schema + `}}`, hello + `,"max_tokens":400,"output_config":{"format":{"type":"json_schema","schema":` + schema + `}}`,
			`"input":"hello","max_output_tokens":400,"text":{"format":{"type":"json_schema","name":"s","schema":` + schema + `}}`, "stop", "end_turn", "completed"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := start(t, Options{})
				want := b.converse(b.vllm+chat, `{`+test.chat+`}`)
				if want.status != 200 || test.reason != "" && want.reason != test.reason || want.text+want.reasoning == "" && len(want.calls) == 0 {
					t.Fatalf("%+v", want)
				}
				for _, api := range []struct{ path, body, reason string }{{"/v1/messages", test.messages, test.messagesReason}, {"/v1/responses", test.responses, test.responsesReason}} {
					for _, stream := range []bool{false, true} {
						got := b.ask(b.vllm+api.path, fmt.Sprintf(`{"model":"weir-sim",%s,"stream":%v}`, api.body, stream))
						if got.status != 200 || got.text != want.text || got.reasoning != want.reasoning || len(got.calls) != len(want.calls) || api.reason != "" && got.reason != api.reason || got.in == 0 || got.out != want.usage.CompletionTokens {
							t.Errorf("%s, stream %v: %+v\nand the chat %+v", api.path, stream, got, want)
							continue
						}
						for i, c := range got.calls {
							if w := want.calls[i]; c.name != w.name || strings.ReplaceAll(c.arguments, " ", "") != strings.ReplaceAll(w.arguments, " ", "") || c.id == "" {
								t.Errorf("%s, stream %v: %+v, want %+v", api.path, stream, c, w)
							}
						}
					}
				}
			})
		})
	}
}

// The streams have vLLM's events in vLLM's order.
func TestVLLMAPIsEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{VLLM: flags.VLLM{PromptTokensDetails: true}, Sim: sim.Options{KVTokens: 4096, PageSize: 1}})
		runs := func(events []string) string {
			var out []string
			for _, e := range events {
				if n := len(out); n == 0 || out[n-1] != e {
					out = append(out, e)
				}
			}
			return strings.Join(out, " ")
		}
		tools := `"tools":[{"name":"f","input_schema":{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}}]`
		m := b.ask(b.vllm+"/v1/messages", `{"model":"weir-sim","max_tokens":900,"stream":true,"output_config":{"effort":"low"},`+hello+`,`+tools+`}`)
		want := "message_start content_block_start content_block_delta content_block_stop content_block_start content_block_delta content_block_stop message_delta message_stop"
		if runs(m.events) != want || !strings.Contains(m.raw, `"signature_delta"`) || !strings.Contains(m.raw, `"id":"chatcmpl-`) || !strings.Contains(m.raw, `"cache_read_input_tokens":0`) {
			t.Errorf("%s: %s", runs(m.events), m.raw)
		}
		r := b.ask(b.vllm+"/v1/responses", `{"stream":true,"reasoning":{"effort":"low"},"input":"hello","tool_choice":"required","tools":[{"type":"web_search"},{"type":"custom","name":"run"}]}`)
		want = "response.created response.in_progress response.output_item.added response.content_part.added response.reasoning_text.delta response.reasoning_text.done response.content_part.done response.output_item.done " +
			"response.output_item.added response.custom_tool_call_input.delta response.custom_tool_call_input.done response.output_item.done response.completed"
		if runs(r.events) != want || !strings.Contains(r.raw, `"tools":[{"type":"web_search"},{"type":"custom","name":"run"}]`) || len(r.calls) != 1 || r.calls[0].name != "run" {
			t.Errorf("%s: %s", runs(r.events), r.raw)
		}
		space := b.ask(b.vllm+"/v1/responses", `{"input":"hello","tools":[{"type":"namespace","name":"ns","tools":[{"type":"function","name":"f","parameters":{"type":"object","properties":{}}}]}]}`)
		if len(space.calls) != 1 || space.calls[0].name != "ns__f" {
			t.Errorf("%s", space.raw)
		}
		// The count equals the number of computed tokens.
		whole := b.ask(b.vllm+"/v1/messages", `{"model":"weir-sim","max_tokens":1,`+hello+`,`+tools+`}`)
		resp, err := b.client.Post(b.vllm+"/v1/messages/count_tokens", "application/json", strings.NewReader(`{"model":"weir-sim",`+hello+`,`+tools+`}`))
		if err != nil {
			t.Fatal(err)
		}
		counted, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		var seen messageSeen
		b.unmarshal([]byte(whole.raw), &seen)
		if n := seen.Usage.Input + seen.Usage.Read; !strings.Contains(string(counted), fmt.Sprintf(`"input_tokens":%d`, n)) {
			t.Errorf("counted %s, computed %d: %s", counted, n, whole.raw)
		}
		// The stream reports that its engine broke off the answer.
		b.faults("abort,after=3")
		for _, body := range []string{"/v1/messages" + `{"model":"weir-sim","max_tokens":90,"stream":true,` + hello + `}`, "/v1/responses" + `{"input":"hello","stream":true}`} {
			path, body, _ := strings.Cut(body, "{")
			if a := b.ask(b.vllm+path, "{"+body); a.status == 200 && (len(a.events) == 0 || a.events[len(a.events)-1] != "error") {
				t.Errorf("%s: %s", path, a.raw)
			}
		}
	})
}

// An error is refused in vLLM's words, or those that it has for the API.
func TestVLLMAPIsRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		for _, c := range []struct {
			path, body string
			status     int
			part       string
		}{
			{"/v1/messages", `{"model":"weir-sim",` + hello + `}`, 400, `"message":"max_tokens is missing"`},
			{"/v1/messages", `{"max_tokens":5,` + hello + `}`, 400, `{"error":{"message":"model is missing"`},
			{"/v1/messages", `{"model":"other","max_tokens":5,` + hello + `}`, 404, `{"type":"error","error":{"type":"NotFoundError"`},
			{"/v1/messages", `{"model":"weir-sim","max_tokens":5,"messages":[{"role":"user","content":[{"type":"document"}]}]}`, 400, `of type \"document\"`},
			{"/v1/messages", `{"model":"weir-sim","max_tokens":5,"tools":[{"type":"web_search_20250305","name":"web_search"}],` + hello + `}`, 400, "input_schema"},
			{"/v1/messages", `{"model":"weir-sim","max_tokens":5,"thinking":{"type":"enabled","budget_tokens":5},` + hello + `}`, 400, "at least 1024"},
			{"/v1/messages", `{"model":"weir-sim","max_tokens":2000,"thinking":{"type":"enabled","budget_tokens":2000},` + hello + `}`, 400, "less than max_tokens"},
			{"/v1/messages/count_tokens", `{"model":"other",` + hello + `}`, 404, `{"type":"error"`},
			{"/v1/responses", `{"model":"weir-sim"}`, 400, "input is missing"},
			{"/v1/responses", `{"model":"other","input":"x"}`, 404, `"type":"NotFoundError"`},
			{"/v1/responses", `{"input":"x","previous_response_id":"resp_1"}`, 404, "Response with id 'resp_1' not found."},
			{"/v1/responses", `{"input":[{"type":"item_reference","id":"x"}]}`, 400, "Unsupported input item type: item_reference"},
			{"/v1/responses", `{"input":[{"type":"reasoning","summary":[],"encrypted_content":"x"}]}`, 400, "Encrypted content is not supported."},
			{"/v1/responses", `{"input":"x","background":true}`, 400, "background"},
			{"/v1/responses", `{"input":"x","prompt":{"id":"p"}}`, 400, "prompt template is not supported"},
		} {
			if a := b.ask(b.vllm+c.path, c.body); a.status != c.status || !strings.Contains(a.raw, c.part) {
				t.Errorf("%s %s: %d %s", c.path, c.body, a.status, a.raw)
			}
		}
		if status, text := b.get(b.vllm + "/v1/responses/resp_1"); status != 404 || !strings.Contains(text, "resp_1") {
			t.Errorf("%d %s", status, text)
		}
	})
}
