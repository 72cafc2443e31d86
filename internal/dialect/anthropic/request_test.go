package anthropic

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"weir/internal/dialect"
	"weir/internal/dialect/dialecttest"
	"weir/internal/infer"
)

// decode reads a body for an engine kind named "weir" that carries all.
func decode(e Endpoint, body string) (*dialect.Request, error) {
	return decodeFor(infer.CarriesAll, e, body)
}

func decodeFor(carries infer.Carries, e Endpoint, body string) (*dialect.Request, error) {
	h, err := e.ParseHead([]byte(body))
	if err != nil {
		return nil, err
	}
	return e.Request(h, "weir", carries)
}

// body puts fields beside what is required.
func body(fields string) string {
	if fields != "" {
		fields = "," + fields
	}
	return `{"model":"m","max_tokens":2048,"messages":[{"role":"user","content":"hi"}]` + fields + `}`
}

func messages(list string) string { return `{"model":"m","max_tokens":2048,"messages":` + list + `}` }

const (
	userHi  = `{"role":"user","content":"hi"}`
	weather = `{"name":"get_weather","description":"d","input_schema":{"type":"object","properties":{"city":{"type":"string"}}}}`
)

// The form that a conversation gets for the chat template.
func TestConversation(t *testing.T) {
	for _, test := range []struct{ body, want string }{
		{messages(`[` + userHi + `]`), `[` + userHi + `]`},
		{body(`"system":"be \"brief\""`), `[{"role":"system","content":"be \"brief\""},` + userHi + `]`},
		{body(`"system":[ ]`), `[` + userHi + `]`},
		{body(`"system":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},{"text":"b\u00e9","type":"text"}]`),
			`[{"role":"system","content":[{"type":"text","text":"a"},{"type":"text","text":"b\u00e9"}]},` + userHi + `]`},
		{messages(`[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]`), `[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]`},
		{messages(`[` + userHi + `,{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"redacted_thinking","data":"x"},` +
			`{"type":"text","text":"I look."},{"type":"tool_use","id":"t1","name":"f","input":{"b":1, "a":[2]}},{"type":"tool_use","id":"t2","name":"g","input":{}}]},` +
			`{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"18"},{"type":"tool_result","tool_use_id":"t2","is_error":true,"content":[{"type":"text","text":"no"},{"type":"text","text":"way"}]},` +
			`{"type":"text","text":"go on"}]}]`),
			`[` + userHi + `,{"role":"assistant","content":"I look.","reasoning_content":"hm","tool_calls":[{"id":"t1","type":"function","function":{"name":"f","arguments":"{\"b\":1, \"a\":[2]}"}},` +
				`{"id":"t2","type":"function","function":{"name":"g","arguments":"{}"}}]},` +
				`{"role":"tool","tool_call_id":"t1","content":"18"},{"role":"tool","tool_call_id":"t2","content":[{"type":"text","text":"Error: no"},{"type":"text","text":"way"}]},{"role":"user","content":"go on"}]`},
		{messages(`[{"role":"user","content":[]},{"role":"assistant","content":[]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[]}]}]`),
			`[{"role":"user","content":""},{"role":"assistant","content":""},{"role":"tool","tool_call_id":"t","content":""}]`},
		{messages(`[{"role":"user","content":[{"type":"text","text":"before"},{"type":"tool_result","tool_use_id":"t"}]}]`),
			`[{"role":"user","content":"before"},{"role":"tool","tool_call_id":"t","content":""}]`},
		{messages(`[` + userHi + `,{"role":"system","content":"now"},{"role":"assistant","content":""},` + userHi + `]`),
			`[` + userHi + `,{"role":"system","content":"now"},{"role":"assistant","content":""},` + userHi + `]`},
	} {
		r, err := decode(Messages, test.body)
		if err != nil {
			t.Errorf("%s: %v", test.body, err)
			continue
		}
		if diff := cmp.Diff(test.want, string(r.Messages)); diff != "" {
			t.Errorf("%s: %s", test.body, diff)
		}
		if !json.Valid(r.Messages) || r.ContinueFinalMessage || !r.AddGenerationPrompt {
			t.Errorf("%s: %+v", test.body, r)
		}
	}
	r, err := decode(Messages, messages(`[`+userHi+`,{"role":"assistant","content":"The best is ("}]`))
	if err != nil || !r.ContinueFinalMessage || r.AddGenerationPrompt {
		t.Errorf("a message to continue: %+v, %v", r, err)
	}
}

func ptr[T any](v T) *T { return &v }

// The value that each field gets.
func TestRequestAccepts(t *testing.T) {
	const tools = `[{"type":"function","function":{"name":"get_weather","description":"d","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}]`
	for _, test := range []struct {
		fields string
		want   func(r *dialect.Request)
	}{
		{`"stream":true`, func(r *dialect.Request) { r.Stream = true }},
		{`"stop_sequences":["a","\ud83d\ude00"]`, func(r *dialect.Request) { r.Stop = []string{"a", "😀"} }},
		{`"temperature":1,"top_p":0.5,"top_k":0`, func(r *dialect.Request) {
			r.Sampling = infer.Sampling{Temperature: ptr(1.0), TopP: ptr(0.5), TopK: ptr(-1)}
		}},
		{`"metadata":{"user_id":"u"},"service_tier":"auto","cache_control":{"type":"ephemeral"},"user_profile_id":"p"`, func(r *dialect.Request) {
			r.LeftOut = &dialect.LeftOut{Fields: []string{"metadata", "cache_control", "user_profile_id"}}
		}},
		{`"container":null,"mcp_servers":[],"context_management":null,"speed":"standard","inference_geo":null,"diagnostics":null`, func(*dialect.Request) {}},
		{`"thinking":null,"tools":[],"tool_choice":null,"system":null,"stop_sequences":null,"temperature":null,"output_config":{"format":null,"effort":null}`, func(*dialect.Request) {}},
		{`"tools":[` + weather + `]`, func(r *dialect.Request) { r.Tools = []byte(tools) }},
		{`"tools":[{"type":"custom","strict":false,"eager_input_streaming":true,"cache_control":{"type":"ephemeral"},"defer_loading":false,"allowed_callers":["direct"],` + weather[1:] + `],"tool_choice":{"type":"auto","disable_parallel_tool_use":true}`,
			func(r *dialect.Request) {
				r.Tools, r.SingleCall, r.LeftOut = []byte(strings.Replace(tools, "}}}}}]", `}}},"strict":false}}]`, 1)), true, &dialect.LeftOut{Fields: []string{"tools[].cache_control"}}
			}},
		{`"tools":[` + weather + `],"tool_choice":{"type":"none"}`, func(*dialect.Request) {}},
		{`"tools":[` + weather + `],"tool_choice":{"type":"tool","name":"get_weather"}`, func(r *dialect.Request) {
			r.Tools, r.ForcedTool = []byte(tools), "get_weather"
			r.Guide = &infer.Guide{Kind: infer.GuideJSONSchema, Text: `{"type":"object","properties":{"city":{"type":"string"}}}`}
		}},
		{`"tool_choice":{"type":"any","disable_parallel_tool_use":true},"tools":[` + weather + `]`, func(r *dialect.Request) {
			r.Tools, r.ForcedAny, r.SingleCall = []byte(tools), true, true
			r.Guide = &infer.Guide{Kind: infer.GuideJSONSchema, Text: `{"type":"array","minItems":1,"maxItems":1,"items":{"anyOf":[{"type":"object","properties":{"name":{"const":"get_weather"},"parameters":{"type":"object","properties":{"city":{"type":"string"}}}},"required":["name","parameters"],"additionalProperties":false}]}}`}
		}},
		{`"thinking":{"type":"enabled","budget_tokens":1024,"display":"summarized"}`, func(r *dialect.Request) {
			r.LeftOut = &dialect.LeftOut{Fields: []string{thinkingBudget}}
			r.ChatTemplateKwargs = []byte(`{"enable_thinking":true,"thinking":true}`)
		}},
		{`"thinking":{"type":"adaptive"},"chat_template_kwargs":{"thinking":"much","a":[1]},"output_config":{"effort":"max"}`, func(r *dialect.Request) {
			r.ChatTemplateKwargs = []byte(`{"enable_thinking":true,"reasoning_effort":"high","thinking":"much","a":[1]}`)
		}},
		{`"thinking":{"type":"disabled"},"output_config":{"effort":"low"}`, func(r *dialect.Request) {
			r.ChatTemplateKwargs = []byte(`{"enable_thinking":false,"thinking":false}`)
		}},
		{`"output_config":{"effort":"medium"}`, func(r *dialect.Request) { r.ChatTemplateKwargs = []byte(`{"reasoning_effort":"medium"}`) }},
		{`"chat_template_kwargs":{"x":1}`, func(r *dialect.Request) { r.ChatTemplateKwargs = []byte(`{"x":1}`) }},
		{`"output_config":{"format":{"type":"json_schema","schema":{"type":"object", "properties":{}}}}`, func(r *dialect.Request) {
			r.Guide = &infer.Guide{Kind: infer.GuideJSONSchema, Text: `{"type":"object", "properties":{}}`}
		}},
		{`"output_format":{"type":"json_schema","schema":{}}`, func(r *dialect.Request) {
			r.Guide = &infer.Guide{Kind: infer.GuideJSONSchema, Text: `{}`}
		}},
	} {
		got, err := decode(Messages, body(test.fields))
		if err != nil {
			t.Errorf("%s: %v", test.fields, err)
			continue
		}
		want := &dialect.Request{Model: "m", Messages: []byte(`[` + userHi + `]`), MaxTokens: 2048, AddGenerationPrompt: true, CallPrefix: "toolu_",
			Fields: &dialect.FieldNames{Prompt: "messages", MaxTokens: "max_tokens", MinTokens: "min_tokens"}}
		test.want(want)
		if got.Encoder == nil {
			t.Errorf("%s: no encoder", test.fields)
		}
		got.Encoder = nil // functions do not compare
		if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(dialect.Request{})); diff != "" {
			t.Errorf("%s: %s", test.fields, diff)
		}
	}
	if r, err := decode(CountTokens, `{"model":"m","messages":[`+userHi+`],"tools":[`+weather+`],"thinking":{"type":"enabled","budget_tokens":2000}}`); err != nil || r.Tools == nil {
		t.Errorf("count_tokens: %+v, %v", r, err)
	}
}

// A refusal names the field.
func TestRequestRefuses(t *testing.T) {
	block := func(b string) string { return messages(`[{"role":"user","content":[` + b + `]}]`) }
	said := func(b string) string {
		return messages(`[` + userHi + `,{"role":"assistant","content":[` + b + `]},` + userHi + `]`)
	}
	for _, test := range []struct {
		body, param, says string
		unsupported       bool
	}{
		{`{"max_tokens":1,"messages":[]}`, "model", "model is required", false},
		{`{"model":"m","max_tokens":1}`, "messages", "is required", false},
		{messages(`[]`), "messages", "is empty", false},
		{messages(`"hi"`), "messages", "must be an array of messages, found a string", false},
		{messages(`null`), "messages", "found null", false},
		{`{"model":"m","messages":[` + userHi + `]}`, "max_tokens", "max_tokens is required", false},
		{`{"model":"m","max_tokens":0,"messages":[` + userHi + `]}`, "max_tokens", "between 1 and", false},
		{`{"model":"m","max_tokens":null,"messages":[` + userHi + `]}`, "max_tokens", "found null", false},
		{messages(`[7]`), "messages[0]", "must be an object", false},
		{messages(`[{"role":"user"}]`), "messages[0].content", "is required", false},
		{messages(`[{"content":"a"}]`), "messages[0].role", "is required", false},
		{messages(`[{"role":"tool","content":"a"}]`), "messages[0].role", `found "tool"`, false},
		{messages(`[{"role":"user","content":7}]`), "messages[0].content", "found a number", false},
		{messages(`[{"role":"user","content":"a","name":"n"}]`), "messages[0].name", "not supported", true},
		{messages(`[{"role":"user","content":"a","content":"b"}]`), "messages[0].content", "given twice", false},
		{messages(`[{"role":"user","content":"\ud800"}]`), "messages[0].content", "half a surrogate pair", false},
		{block(`{"text":"a"}`), "messages[0].content[0].type", "is required", false},
		{block(`{"type":"text"}`), "messages[0].content[0].text", "is required", false},
		{block(`{"type":"text","text":7}`), "messages[0].content[0].text", "found a number", false},
		{block(`{"type":"text","text":"a","citation":[{}]}`), "messages[0].content[0].citation", "did you mean citations?", true},
		{block(`{"type":"text","text":"a","is_error":true}`), "messages[0].content[0].is_error", "not supported", true},
		{block(`{"type":"image","source":{}}`), "messages[0].content[0].source.type", "is required: base64 or url", false},
		{block(`{"type":"document","source":{}}`), "messages[0].content[0].type", `"document"`, true},
		{block(`{"type":"tool_use","id":"a","name":"f","input":{}}`), "messages[0].content[0].type", "role assistant", false},
		{block(`{"type":"tool_result","content":"a"}`), "messages[0].content[0].tool_use_id", "is required", false},
		{block(`{"type":"tool_result","tool_use_id":"a","content":[{"type":"image"}]}`), "messages[0].content[0].content[0].source", "is required", false},
		{block(`{"type":"tool_result","tool_use_id":"a","content":{}}`), "messages[0].content[0].content", "found an object", false},
		{block(`{"type":"tool_result","tool_use_id":"a","is_error":"yes"}`), "messages[0].content[0].is_error", "true or false", false},
		{said(`{"type":"tool_result","tool_use_id":"a"}`), "messages[1].content[0].type", "role user", false},
		{said(`{"type":"tool_use","id":"a","name":"f","input":"{}"}`), "messages[1].content[0].input", "must be an object", false},
		{said(`{"type":"tool_use","id":"a","input":{}}`), "messages[1].content[0].name", "is required", false},
		{said(`{"type":"server_tool_use","id":"a","name":"web_search","input":{}}`), "messages[1].content[0].type", "server_tool_use", true},
		{messages(`[` + userHi + `,{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]}]`), "messages", "send a tool_result", false},
		{body(`"system":7`), "system", "found a number", false},
		{body(`"system":[{"type":"image"}]`), "system[0].type", "belongs in a message of role user", false},
		{body(`"stream":"yes"`), "stream", "true or false", false},
		{body(`"stop_sequences":"x"`), "stop_sequences", "array of strings", false},
		{body(`"stop_sequences":[""]`), "stop_sequences[0]", "is empty", false},
		{body(`"stop_sequences":[` + strings.TrimSuffix(strings.Repeat(`"a",`, 65), ",") + `]`), "stop_sequences", "at most 64", false},
		{body(`"temperature":3`), "temperature", "between 0 and 2", false},
		{body(`"top_p":0`), "top_p", "above 0", false},
		{body(`"top_k":-1`), "top_k", "between 0", false},
		{body(`"n":2`), "n", `no field "n"`, true},
		{body(`"stop":["a"]`), "stop", "in /v1/messages it is stop_sequences", true},
		{body(`"max_token":2`), "max_token", "did you mean max_tokens?", true},
		{body(`"temperature":1,"temperature":1`), "temperature", "given twice", false},
		{body(`"thread":{"type":"create"}`), "thread", "send all messages", true},
		{body(`"inference_geo":"eu"`), "inference_geo", "not supported", true},
		{body(`"thinking":{"type":"enabled"}`), "thinking.budget_tokens", "is required", false},
		{body(`"thinking":{"type":"enabled","budget_tokens":5}`), "thinking.budget_tokens", "between 1024", false},
		{body(`"thinking":{"type":"enabled","budget_tokens":2048}`), "thinking.budget_tokens", "below max_tokens, which is 2048", false},
		{body(`"thinking":{"type":"sometimes"}`), "thinking.type", `found "sometimes"`, false},
		{body(`"thinking":{}`), "thinking.type", "is required", false},
		{body(`"thinking":{"type":"adaptive","display":"loud"}`), "thinking.display", `"omitted"`, false},
		{body(`"thinking":{"type":"adaptive","depth":1}`), "thinking.depth", "not supported", true},
		{body(`"tools":[{"name":"f"}]`), "tools[0].input_schema", "is required", false},
		{body(`"tools":[{"input_schema":{}}]`), "tools[0].name", "is required", false},
		{body(`"tools":[{"name":"a b","input_schema":{}}]`), "tools[0].name", `"a b"`, false},
		{body(`"tools":[` + weather + `,` + weather + `]`), "tools[1].name", "two tools", false},
		{body(`"tools":[{"type":"wb_search_20250305","name":"web_search"}]`), "tools[0].type", "did you mean web_search_?", true},
		{body(`"tools":[{"type":"other","name":"web_search"}]`), "tools[0].type", `only tools of type "custom"`, true},
		{body(`"tools":[{"type":"web_search_20250305","name":"web_search"}],"tool_choice":{"type":"any"}`), "tool_choice", "runs none of those in tools (web_search)", true},
		{body(`"tools":[{"type":"web_search_20250305","name":"web_search"},` + weather + `],"tool_choice":{"type":"tool","name":"web_search"}`), "tool_choice.name", "cannot run", true},
		{body(`"tools":[{"strict":1,"name":"f","input_schema":{}}]`), "tools[0].strict", "true or false", false},
		{body(`"tools":[{"name":"f","input_scheme":{}}]`), "tools[0].input_scheme", "did you mean input_schema?", true},
		{body(`"tools":[{"name":"f","input_schema":{},"input_examples":[{}]}]`), "tools[0].input_examples", "put them into the description", true},
		{body(`"tool_choice":{"type":"any"}`), "tool_choice", "but tools is empty", false},
		{body(`"tool_choice":{"type":"tool"}`), "tool_choice.name", "is required", false},
		{body(`"tool_choice":{"type":"auto","name":"f"}`), "tool_choice.name", "leave it out", false},
		{body(`"tool_choice":{}`), "tool_choice.type", "is required: send auto", false},
		{body(`"tool_choice":{"type":"must"}`), "tool_choice.type", `found "must"`, false},
		{body(`"tool_choice":"auto"`), "tool_choice", "an object", false},
		{body(`"tools":[` + weather + `],"tool_choice":{"type":"tool","name":"g"}`), "tool_choice.name", `"g"`, false},
		{body(`"output_config":{"format":{"type":"json"}}`), "output_config.format.type", `"json_schema"`, false},
		{body(`"output_config":{"format":{"type":"json_schema"}}`), "output_config.format.schema", "is required", false},
		{body(`"output_config":{"effort":"huge"}`), "output_config.effort", `found "huge"`, false},
		{body(`"output_config":{"task_budgets":{}}`), "output_config.task_budgets", "did you mean task_budget?", true},
		{body(`"chat_template_kwargs":[]`), "chat_template_kwargs", "an object", false},
	} {
		_, err := decode(Messages, test.body)
		var e *infer.Error
		if !errors.As(err, &e) {
			t.Errorf("%s: %v", test.body, err)
			continue
		}
		code := infer.CodeInvalid
		if test.unsupported {
			code = infer.CodeUnsupported
		}
		if e.Code != code || e.Param != test.param || !strings.Contains(e.Message, test.says) || !strings.Contains(e.Message, test.param) {
			t.Errorf("%s:\n\t%v, param %q: %s\n\twant param %q, %q", test.body, e.Code, e.Param, e.Message, test.param, test.says)
		}
	}
	for _, fields := range []string{`"tools":[` + weather + `],"tool_choice":{"type":"any"}`, `"output_config":{"format":{"type":"json_schema","schema":{}}}`, `"output_format":{"type":"json_schema","schema":{}}`} {
		var e *infer.Error
		if _, err := decodeFor(0, Messages, body(fields)); !errors.As(err, &e) || e.Code != infer.CodeUnsupported || !strings.Contains(e.Message, `engine kind "weir"`) {
			t.Errorf("%s on an engine that cannot be told a schema: %v", fields, err)
		}
	}
	var e *infer.Error
	if _, err := decode(CountTokens, body("")); !errors.As(err, &e) || e.Param != "max_tokens" || !strings.Contains(e.Message, "/v1/messages/count_tokens") {
		t.Errorf("count_tokens with max_tokens: %v", err)
	}
}

// The table says of each top-level field what the decoder does with it.
func TestFieldTable(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range Fields() {
		if seen[f.Name] {
			t.Errorf("%s is twice in the table", f.Name)
		}
		seen[f.Name] = true
		if f.Treatment != dialect.Refused && f.Note == "" || f.Treatment != dialect.Carried && f.Elsewhere == "" {
			t.Errorf("%s is %v and says %q, and of vLLM and SGLang %q", f.Name, f.Treatment, f.Note, f.Elsewhere)
		}
		if strings.ContainsAny(f.Name, ".[ ") {
			continue
		}
		r, err := decode(Messages, body(fmt.Sprintf(`%q:[["odd"]]`, f.Name)))
		var e *infer.Error
		errors.As(err, &e)
		switch {
		case f.Treatment == dialect.Ignored && (err != nil || !slices.Contains(r.LeftOut.Ignored(), f.Name)):
			t.Errorf("%s is ignored, and %v, named %v", f.Name, err, r)
		case f.Treatment == dialect.Refused && (e == nil || e.Code != infer.CodeUnsupported || e.Param != f.Name):
			t.Errorf("%s is refused, and %v", f.Name, err)
		case f.Treatment == dialect.Carried && f.Name != "tools" && (e == nil || e.Code != infer.CodeInvalid || !strings.HasPrefix(e.Param, f.Name)):
			t.Errorf("%s is carried, and %v", f.Name, err)
		}
		for _, value := range f.Defaults {
			if r, err := decode(Messages, body(fmt.Sprintf(`%q:%s`, f.Name, value))); err != nil || len(r.LeftOut.Ignored()) > 0 {
				t.Errorf("%s: %s: %v, %v", f.Name, value, err, r)
			}
		}
	}
}

// A field that asks for a service beside the answer is left out and named. The rest of the request
// is unchanged.
func TestLeftOut(t *testing.T) {
	block := func(b string) string { return messages(`[{"role":"user","content":[` + b + `]}]`) }
	said := func(b string) string {
		return messages(`[` + userHi + `,{"role":"assistant","content":[` + b + `]},` + userHi + `]`)
	}
	type want struct {
		body, ignored string
		check         func(r *dialect.Request) bool
	}
	const format = `"output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}}`
	tests := []want{
		{body(``), "", nil},
		{body(`"metadata":{"user_id":"u"},"context_management":{"edits":[{"type":"clear_thinking_20251015"}]},"speed":"fast"`), "metadata context_management speed", nil},
		{body(`"metadata":{},"context_management":{"edits":[]},"speed":"standard","service_tier":"auto","mcp_servers":[],"container":null`), "", nil},
		{body(`"thinking":{"type":"enabled","budget_tokens":1024,"block_binding":{"prefix_mismatch_behavior":"drop"}}`), thinkingBudget + " " + blockBinding, nil},
		{body(`"thinking":{"type":"adaptive","display":"updates"}`), "", nil},
		{body(`"output_config":{"task_budget":{"type":"tokens","total":5}}`), taskBudget, nil},
		{body(`"system":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"},"citations":[{}]}]`), "system[].cache_control system[].citations", nil},
		{block(`{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},{"type":"text","text":"a","cache_control":{"type":"ephemeral"},"citations":[{}]}`), "messages[].content[].cache_control messages[].content[].citations", nil},
		{block(`{"type":"text","text":"a","citations":[],"cache_control":null}`), "", nil},
		{block(`{"type":"image","source":{"type":"url","url":"https://h/a.png"},"transformations":{"oversized_image":"downscale"}}`), "messages[].content[].transformations", nil},
		{said(`{"type":"thinking","thinking":"h","signature":"s"},{"type":"redacted_thinking","data":"x"},{"type":"text","text":"a"}`), redactedThinking, nil},
		{messages(`[{"role":"system","content":"s","clear_at":{"type":"never"}},` + userHi + `]`), "messages[].clear_at", nil},
		{body(`"tools":[{"name":"f","input_schema":{},"cache_control":{"type":"ephemeral"},"defer_loading":true,"eager_input_streaming":true,"strict":true}]`), "tools[].cache_control tools[].defer_loading tools[].strict", nil},
		{body(`"tools":[` + weather + `],"tool_choice":{"type":"any"},` + format), outputFormat, func(r *dialect.Request) bool { return r.ForcedAny && strings.Contains(r.Guide.Text, "minItems") }},
		{body(`"tools":[` + weather + `],"tool_choice":{"type":"any"},"output_format":{"type":"json_schema","schema":{"type":"object"}}`), "output_format", func(r *dialect.Request) bool { return r.ForcedAny }},
		{body(`"tools":[` + weather + `],` + format), "", func(r *dialect.Request) bool { return r.Guide.Text == `{"type":"object"}` }},
	}
	for _, f := range innerFields {
		kind, ok := strings.CutPrefix(f.Name, "tools[] ")
		if !ok || f.Treatment != dialect.Ignored {
			continue
		}
		kind = strings.Replace(kind, "*", "20990101", 1)
		tests = append(tests,
			want{body(`"tools":[{"type":"` + kind + `","name":"x","anything":[1]},` + weather + `]`), f.Name, func(r *dialect.Request) bool {
				return len(r.Tools) > 0 && strings.Count(string(r.Tools), `"type":"function"`) == 1 && r.Tools[1] == '{'
			}},
			want{body(`"tools":[` + weather + `,{"type":"` + kind + `","name":"x"}]`), f.Name, func(r *dialect.Request) bool { return strings.HasSuffix(string(r.Tools), "}}]") }},
			want{body(`"tools":[{"type":"` + kind + `","name":"x"}]`), f.Name, func(r *dialect.Request) bool { return r.Tools == nil }})
	}
	seen := map[string]bool{}
	for _, test := range tests {
		r, err := decode(Messages, test.body)
		if err != nil {
			t.Errorf("%s: %v", test.body, err)
			continue
		}
		if got := strings.Join(r.LeftOut.Ignored(), " "); got != test.ignored || test.check != nil && !test.check(r) {
			t.Errorf("%s: ignored %q, want %q; tools %s", test.body, got, test.ignored, r.Tools)
		}
		for _, name := range r.LeftOut.Ignored() {
			seen[name] = true
		}
	}
	for _, f := range innerFields {
		if f.Treatment == dialect.Ignored && !seen[f.Name] && !strings.HasPrefix(f.Name, "header ") {
			t.Errorf("nothing here has %s left out", f.Name)
		}
	}
}

// A block that is refused is refused for its reason.
func TestBlocksRefused(t *testing.T) {
	for _, f := range innerFields {
		kind, ok := strings.CutPrefix(f.Name, "messages[].content[] ")
		if !ok || f.Treatment != dialect.Refused {
			continue
		}
		_, err := decode(Messages, messages(`[{"role":"user","content":[{"type":"`+kind+`"}]}]`))
		var e *infer.Error
		if !errors.As(err, &e) || e.Param != "messages[0].content[0].type" || !strings.Contains(e.Message, kind) || !strings.Contains(e.Message, f.Note) {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// With Lax, what no table has is passed over wherever it stands, and named.
func TestLax(t *testing.T) {
	h, err := Messages.ParseHead([]byte(`{"model":"m","max_tokens":5,"messages":[{"role":"user","x":1,"content":[{"type":"text","text":"a","y":1}]}],"n":1,"stop":"a",
		"thinking":{"type":"adaptive","t":1},"output_config":{"o":1},"tools":[{"type":"odd","name":"o"},{"name":"f","input_schema":{},"w":1}],"tool_choice":{"type":"auto","p":1}}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Messages.Request(h, "able", infer.CarriesAll); err == nil {
		t.Error("not refused")
	}
	h.Lax = true
	r, err := Messages.Request(h, "able", infer.CarriesAll)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"n", "stop", "thinking.t", "output_config.o", "tools[0].type", "tools[1].w", "tool_choice.p", "messages[0].x", "messages[0].content[0].y"}
	if !slices.Equal(r.LeftOut.Unknown(), want) {
		t.Errorf("passed %q, want %q", r.LeftOut.Unknown(), want)
	}
}

func TestManual(t *testing.T) {
	dialecttest.Manual(t, "../../../docs/apis.md", "<!-- anthropic fields -->", Fields(), "messages", "count_tokens")
}

// FuzzRequest: no body panics, a refusal is coded, and what is accepted has
// messages and tools that are JSON.
func FuzzRequest(f *testing.F) {
	for _, b := range []string{
		body(`"stop_sequences":["a"],"stream":true,"system":"s","tools":[` + weather + `],"tool_choice":{"type":"any"}`),
		body(`"thinking":{"type":"enabled","budget_tokens":1024},"chat_template_kwargs":{"a":1},"output_config":{"effort":"low"}`),
		messages(`[{"role":"assistant","content":[{"type":"thinking","thinking":"a","signature":""},{"type":"tool_use","id":"1","name":"f","input":{"a":"\ud83d\ude00"}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"x"}],"is_error":true}]}]`),
	} {
		f.Add([]byte(b))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, e := range []Endpoint{Messages, CountTokens} {
			r, err := decode(e, string(b))
			if err != nil {
				var coded *infer.Error
				if !errors.As(err, &coded) || coded.Code != infer.CodeInvalid && coded.Code != infer.CodeUnsupported || coded.Message == "" || !utf8.ValidString(coded.Message) || len(coded.Message) > 4096 {
					t.Fatalf("error %#v", err)
				}
				continue
			}
			var list []struct {
				Role    string
				Content any
			}
			if err := json.Unmarshal(r.Messages, &list); err != nil || len(list) == 0 {
				t.Fatalf("%q: messages %q: %v", b, r.Messages, err)
			}
			for _, m := range list {
				if m.Role == "" || m.Content == nil {
					t.Fatalf("%q: messages %q", b, r.Messages)
				}
			}
			if r.Tools != nil && !json.Valid(r.Tools) || r.ChatTemplateKwargs != nil && !json.Valid(r.ChatTemplateKwargs) {
				t.Fatalf("%q: tools %q, kwargs %q", b, r.Tools, r.ChatTemplateKwargs)
			}
			if e == Messages && (r.MaxTokens < 1 || len(r.Stop) > maxStops) {
				t.Fatalf("%q: %+v", b, r)
			}
		}
	})
}
