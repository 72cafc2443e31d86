package responses

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"weir/internal/dialect"
	"weir/internal/dialect/dialecttest"
	"weir/internal/infer"
)

func decode(t *testing.T, body string, carries infer.Carries) (*dialect.Request, error) {
	t.Helper()
	h, err := Endpoint{}.ParseHead([]byte(body))
	if err != nil {
		return nil, err
	}
	return Endpoint{}.Request(h, "weir", carries)
}

// Every kind of input as the conversation that templates get.
func TestInput(t *testing.T) {
	const (
		user   = `{"role":"user","content":"Hi"}`
		callA  = `{"type":"function_call","call_id":"a","name":"f","arguments":"{\"x\": 1}"}`
		callB  = `{"type":"function_call","id":"fc_2","status":"completed","call_id":"b","name":"g","arguments":"{}"}`
		chatA  = `{"id":"a","type":"function","function":{"name":"f","arguments":"{\"x\": 1}"}}`
		chatB  = `{"id":"b","type":"function","function":{"name":"g","arguments":"{}"}}`
		outA   = `{"type":"function_call_output","call_id":"a","output":"sunny"}`
		toolA  = `{"role":"tool","tool_call_id":"a","content":"sunny"}`
		reason = `{"type":"reasoning","id":"rs_0","summary":[],"content":[{"type":"reasoning_text","text":"hm"}],"encrypted_content":null,"status":"completed"}`
		said   = `{"type":"message","id":"msg_1","role":"assistant","status":"completed","content":[{"type":"output_text","text":"Yes","annotations":[],"logprobs":[]}]}`
	)
	for _, test := range []struct{ name, fields, want string }{
		{"string", `"input":"Hi \"you\" \u00e9"`, `[{"role":"user","content":"Hi \"you\" \u00e9"}]`},
		{"instructions", `"input":"Hi","instructions":"Be\nbrief"`, `[{"role":"system","content":"Be\nbrief"},` + user + `]`},
		{"no instructions", `"input":"Hi","instructions":null`, `[` + user + `]`},
		{"empty instructions", `"input":"Hi","instructions":""`, `[` + user + `]`},
		{"easy message", `"input":[{"role":"user","content":"Hi"}]`, `[` + user + `]`},
		{"system messages that come first are one", `"instructions":"A","input":[{"role":"developer","content":"B"},{"role":"system","content":"C"},` + user + `,{"role":"developer","content":"D"}]`,
			`[{"role":"system","content":"A\n\nB\n\nC"},` + user + `,{"role":"system","content":"D"}]`},
		{"parts", `"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b\\"}]}]`,
			`[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b\\"}]}]`},
		{"tool loop", `"input":[` + user + `,` + reason + `,` + said + `,` + callA + `,` + outA + `]`,
			`[` + user + `,{"role":"assistant","content":"Yes","reasoning_content":"hm","tool_calls":[` + chatA + `]},` + toolA + `]`},
		{"calls alone, two at once", `"input":[` + user + `,` + callA + `,` + callB + `,` + outA + `,{"type":"function_call_output","call_id":"b","output":[{"type":"input_text","text":"1"},{"type":"input_text","text":"2"}]}]`,
			`[` + user + `,{"role":"assistant","content":null,"tool_calls":[` + chatA + `,` + chatB + `]},` + toolA + `,{"role":"tool","tool_call_id":"b","content":[{"type":"text","text":"1"},{"type":"text","text":"2"}]}]`},
		{"text after a call", `"input":[` + user + `,` + said + `,` + callA + `,{"role":"assistant","content":"\nmore"},` + callB + `,` + outA + `]`,
			`[` + user + `,{"role":"assistant","content":"Yes\nmore","tool_calls":[` + chatA + `,` + chatB + `]},` + toolA + `]`},
		{"two answers", `"input":[` + said + `,` + said + `]`, `[{"role":"assistant","content":"Yes"},{"role":"assistant","content":"Yes"}]`},
		{"reasoning again", `"input":[` + reason + `,` + said + `,` + reason + `,` + callA + `]`,
			`[{"role":"assistant","content":"Yes","reasoning_content":"hm"},{"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[` + chatA + `]}]`},
		{"reasoning alone", `"input":[` + user + `,` + reason + `]`, `[` + user + `,{"role":"assistant","content":"","reasoning_content":"hm"}]`},
		{"reasoning by its summary", `"input":[{"type":"reasoning","id":"r","summary":[{"type":"summary_text","text":"s"}]},` + said + `]`,
			`[{"role":"assistant","content":"Yes","reasoning_content":"s"}]`},
		{"reasoning without text", `"input":[` + user + `,{"type":"reasoning","id":"r","summary":[]}]`, `[` + user + `]`},
		{"nothing", `"input":[{"role":"developer","content":[]},{"role":"user","content":[]},{"role":"assistant","content":[]},` + callA + `,{"type":"function_call_output","call_id":"a","output":[]}]`,
			`[{"role":"user","content":""},{"role":"assistant","content":null,"tool_calls":[` + chatA + `]},{"role":"tool","tool_call_id":"a","content":""}]`},
		{"a refusal", `"input":[` + user + `,{"role":"assistant","content":[{"type":"refusal","refusal":"No."}]}]`, `[` + user + `,{"role":"assistant","content":"No."}]`},
		{"name of a tool", `"input":[` + callA + `,{"type":"function_call_output","call_id":"a","name":"f","output":"1"}]`,
			`[{"role":"assistant","content":null,"tool_calls":[` + chatA + `]},{"role":"tool","tool_call_id":"a","name":"f","content":"1"}]`},
		{"output that was not called for", `"input":[` + callA + `,` + outA + `,{"type":"function_call_output","name":"goal","namespace":"agent","output":"go"},{"type":"function_call_output","call_id":null,"name":"goal","namespace":null,"output":"on"}]`,
			`[{"role":"assistant","content":null,"tool_calls":[` + chatA + `]},` + toolA + `,{"role":"tool","name":"agent__goal","content":"go"},{"role":"tool","name":"goal","content":"on"}]`},
		{"phase", `"input":[` + user + `,{"role":"assistant","content":"x","phase":"commentary"}]`, `[` + user + `,{"role":"assistant","content":"x"}]`},
	} {
		r, err := decode(t, `{"model":"m",`+test.fields+`}`, infer.CarriesAll)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if got := string(r.Messages); got != test.want || !jsontext.Value(r.Messages).IsValid() {
			t.Errorf("%s:\n got %s\nwant %s", test.name, got, test.want)
		}
	}
}

// Each refusal, with its field and its words.
func TestRefused(t *testing.T) {
	const none = 0
	for _, test := range []struct {
		fields  string
		carries infer.Carries
		code    infer.Code
		param   string
		words   string
	}{
		{``, none, infer.CodeInvalid, "input", "input is required"},
		{`,"input":null`, none, infer.CodeInvalid, "input", "must be a string or an array of items, found null"},
		{`,"input":""`, none, infer.CodeInvalid, "input", "is empty"},
		{`,"input":[]`, none, infer.CodeInvalid, "input", "is empty"},
		{`,"input":[{"type":"reasoning","summary":[]}]`, none, infer.CodeInvalid, "input", "nothing to answer"},
		{`,"input":["x"]`, none, infer.CodeInvalid, "input[0]", "must be an object, found a string"},
		{`,"input":[{"content":"x"}]`, none, infer.CodeInvalid, "input[0].role", "is required"},
		{`,"input":[{"role":"tool","content":"x"}]`, none, infer.CodeInvalid, "input[0].role", "must be user, assistant, system or developer"},
		{`,"input":[{"role":"user"}]`, none, infer.CodeInvalid, "input[0].content", "is required"},
		{`,"input":[{"role":"user","content":7}]`, none, infer.CodeInvalid, "input[0].content", "found a number"},
		{`,"input":[{"role":"user","content":[{"type":"input_image","image_url":"x"}]}]`, none, infer.CodeUnsupported, "input[0].content[0].type", `"input_image" is not supported`},
		{`,"input":[{"role":"user","content":[{"text":"x"}]}]`, none, infer.CodeInvalid, "input[0].content[0].type", "is required"},
		{`,"input":[{"role":"user","content":[{"type":"input_text"}]}]`, none, infer.CodeInvalid, "input[0].content[0].text", "is required"},
		{`,"input":[{"role":"user","content":"x","extra":1}]`, none, infer.CodeUnsupported, "input[0].extra", "not supported"},
		{`,"input":[{"role":"user","role":"user","content":"x"}]`, none, infer.CodeInvalid, "input[0].role", "given twice"},
		{`,"input":"\ud800"`, none, infer.CodeInvalid, "input", "half a surrogate pair"},
		{`,"input":[{"type":"item_reference","id":"x"}]`, none, infer.CodeUnsupported, "input[0].type", "send the item itself"},
		{`,"input":[{"type":"web_search_call","id":"x"}]`, none, infer.CodeUnsupported, "input[0].type", `"web_search_call" is not supported`},
		{`,"input":[{"type":"function_call","call_id":"a","name":"f"}]`, none, infer.CodeInvalid, "input[0].arguments", "is required"},
		{`,"input":[{"type":"function_call_output","call_id":"a","output":"x"}]`, none, infer.CodeInvalid, "input[0].call_id", "input must hold the call too"},
		{`,"input":[{"type":"function_call_output","output":"x"}]`, none, infer.CodeInvalid, "input[0].call_id", "or the name of the tool"},
		{`,"input":[{"type":"function_call_output","call_id":null,"name":null,"output":"x"}]`, none, infer.CodeInvalid, "input[0].call_id", "is required"},
		{`,"input":[{"type":"function_call_output","name":"f"}]`, none, infer.CodeInvalid, "input[0].output", "is required"},
		{`,"input":[{"type":"function_call_output","call_id":"a","name":7,"output":"x"}]`, none, infer.CodeInvalid, "input[0].name", "must be a string, found a number"},
		{`,"input":[{"type":"function_call","call_id":"a","name":"f","arguments":"{}"},{"type":"function_call","call_id":"\u0061","name":"f","arguments":"{}"}]`, none, infer.CodeInvalid, "input[1].call_id", "each has its own"},
		{`,"input":[{"type":"reasoning","summary":[],"encrypted_content":"gAAA"}]`, none, infer.CodeUnsupported, "input[0].encrypted_content", "leave the item out"},
		{`,"input":"x","instructions":["y"]`, none, infer.CodeInvalid, "instructions", "must be a string"},
		{`,"input":"x","max_output_tokens":0`, none, infer.CodeInvalid, "max_output_tokens", "between 1 and"},
		{`,"input":"x","max_output_tokens":3,"min_tokens":4`, none, infer.CodeInvalid, "min_tokens", "above the limit"},
		{`,"input":"x","temperature":3`, none, infer.CodeInvalid, "temperature", "between 0 and 2"},
		{`,"input":"x","top_p":0`, none, infer.CodeInvalid, "top_p", "above 0"},
		{`,"input":"x","top_logprobs":2`, none, infer.CodeInvalid, "top_logprobs", "needs include to hold \"message.output_text.logprobs\""},
		{`,"input":"x","top_logprobs":21,"include":["message.output_text.logprobs"]`, none, infer.CodeInvalid, "top_logprobs", "between 0 and 20"},
		{`,"input":"x","presence_penalty":1`, none, infer.CodeUnsupported, "presence_penalty", "or send 0"},
		{`,"input":"x","stream_options":{}`, none, infer.CodeInvalid, "stream_options", "needs stream"},
		{`,"input":"x","stream":true,"stream_options":{"include_usages":true}`, none, infer.CodeUnsupported, "stream_options.include_usages", "did you mean include_usage?"},
		{`,"input":"x","stream":"yes"`, none, infer.CodeInvalid, "stream", "true or false"},
		{`,"input":"x","include":["logprobs"]`, none, infer.CodeUnsupported, "include[0]", `must be one of message.output_text.logprobs, reasoning.encrypted_content, `},
		{`,"input":"x","include":["reasoning.encrypted_contents"]`, none, infer.CodeUnsupported, "include[0]", `did you mean reasoning.encrypted_content?`},
		{`,"input":"x","include":[1]`, none, infer.CodeInvalid, "include[0]", `must be a string`},
		{`,"input":"x","previous_response_id":"resp_1"`, none, infer.CodeUnsupported, "previous_response_id", "send the conversation in input"},
		{`,"input":"x","conversation":"c"`, none, infer.CodeUnsupported, "conversation", "send the conversation in input"},
		{`,"input":"x","background":true`, none, infer.CodeUnsupported, "background", "nothing to fetch later"},
		{`,"input":"x","prompt":{"id":"p"}`, none, infer.CodeUnsupported, "prompt", "send the text"},
		{`,"input":"x","moderation":{"model":"m"}`, none, infer.CodeUnsupported, "moderation", "weir does not moderate"},
		{`,"input":"x","metadata":{"a":1}`, none, infer.CodeInvalid, "metadata.a", "must be a string"},
		{`,"input":"x","messages":[]`, none, infer.CodeUnsupported, "messages", "it is input"},
		{`,"input":"x","max_tokens":1`, none, infer.CodeUnsupported, "max_tokens", "it is max_output_tokens"},
		{`,"input":"x","tempratur":1`, none, infer.CodeUnsupported, "tempratur", "did you mean temperature?"},
		{`,"input":"x","input":"y"`, none, infer.CodeInvalid, "input", "given twice"},
		{`,"input":"x","reasoning":{"effort":"huge"}`, none, infer.CodeInvalid, "reasoning.effort", "must be none, minimal"},
		{`,"input":"x","reasoning":{"summary":"long"}`, none, infer.CodeInvalid, "reasoning.summary", "auto, concise or detailed"},
		{`,"input":"x","reasoning":{"max_tokens":5}`, none, infer.CodeUnsupported, "reasoning.max_tokens", "leave it out"},
		{`,"input":"x","reasoning":{"context":5}`, none, infer.CodeInvalid, "reasoning.context", "must be a string"},
		{`,"input":"x","text":{"format":{"type":"json_object","schema":{}}}`, infer.CarriesAll, infer.CodeInvalid, "text.format.schema", "belongs to the type json_schema, and the type is json_object"},
		{`,"input":"x","text":{"format":{"schema":{},"type":"text"}}`, infer.CarriesAll, infer.CodeInvalid, "text.format.schema", "the type is text"},
		{`,"input":"x","reasoning":{"mode":"pro"}`, none, infer.CodeUnsupported, "reasoning.mode", "standard"},
		{`,"input":"x","text":{"verbosit":"low"}`, none, infer.CodeUnsupported, "text.verbosit", `did you mean verbosity?`},
		{`,"input":"x","text":{"format":{"type":"json_object"}}`, none, infer.CodeUnsupported, "text.format", "not supported"},
		{`,"input":"x","text":{"format":{"type":"json_schema"}}`, infer.CarriesAll, infer.CodeInvalid, "text.format.schema", "is required"},
		{`,"input":"x","text":{"format":{"type":"grammar"}}`, infer.CarriesAll, infer.CodeInvalid, "text.format.type", "must be text, json_object or json_schema"},
		{`,"input":"x","tools":[{"type":"wbe_search"}]`, none, infer.CodeUnsupported, "tools[0].type", `did you mean web_search?`},
		{`,"input":"x","tools":[{"type":"web_search"}],"tool_choice":"required"`, infer.CarriesAll, infer.CodeUnsupported, "tool_choice", `runs none of those in tools (web_search)`},
		{`,"input":"x","tools":[{"type":"custom","name":"c","format":{"type":"grammar"}}],"tool_choice":{"type":"function","name":"c"}`, infer.CarriesAll, infer.CodeUnsupported, "tool_choice", `runs none of those in tools (custom, c)`},
		{`,"input":"x","tools":[{"type":"custom","name":"c","format":{"type":"grammar"}},{"type":"function","name":"f"}],"tool_choice":{"type":"function","name":"c"}`, infer.CarriesAll, infer.CodeUnsupported, "tool_choice.name", `a tool that engine kind "weir" cannot run`},
		{`,"input":"x","tools":[{"type":"web_search"}],"tool_choice":{"type":"allowed_tools","mode":"required","tools":[{"type":"web_search"}]}`, infer.CarriesAll, infer.CodeUnsupported, "tool_choice", `runs none`},
		{`,"input":"x","tools":[{"name":"f"}]`, none, infer.CodeInvalid, "tools[0].type", "is required"},
		{`,"input":"x","tools":[{"type":"function"}]`, none, infer.CodeInvalid, "tools[0].name", "is required"},
		{`,"input":"x","tools":[{"type":"function","name":"a b"}]`, none, infer.CodeInvalid, "tools[0].name", "a name has"},
		{`,"input":"x","tools":[{"type":"function","name":"f"},{"type":"function","name":"f"}]`, none, infer.CodeInvalid, "tools[1].name", "two tools"},
		{`,"input":"x","tools":[{"type":"function","name":"f","parameters":[]}]`, none, infer.CodeInvalid, "tools[0].parameters", "an object"},
		{`,"input":"x","tools":[{"type":"function","name":"f","async":true}]`, none, infer.CodeUnsupported, "tools[0].async", "or send false"},
		{`,"input":"x","tools":[{"type":"function","name":"f","paramters":{}}]`, none, infer.CodeUnsupported, "tools[0].paramters", "did you mean parameters?"},
		{`,"input":"x","tool_choice":"maybe"`, none, infer.CodeInvalid, "tool_choice", `found "maybe"`},
		{`,"input":"x","tool_choice":"required"`, infer.CarriesAll, infer.CodeInvalid, "tool_choice", "but tools is empty"},
		{`,"input":"x","tools":[{"type":"function","name":"f"}],"tool_choice":"required"`, none, infer.CodeUnsupported, "tool_choice", "cannot be forced"},
		{`,"input":"x","tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"function","name":"g"}`, infer.CarriesAll, infer.CodeInvalid, "tool_choice.name", "not in tools"},
		{`,"input":"x","tool_choice":{"type":"file_search"}`, none, infer.CodeUnsupported, "tool_choice.type", "file_search"},
		{`,"input":"x","tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"g"}]}`, none, infer.CodeInvalid, "tool_choice.tools[0].name", "not in tools"},
		{`,"input":"x","tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"allowed_tools","mode":"none","tools":[{"type":"function","name":"f"}]}`, none, infer.CodeInvalid, "tool_choice.mode", `"auto" or "required"`},
	} {
		_, err := decode(t, `{"model":"m"`+test.fields+`}`, test.carries)
		var e *infer.Error
		if !errors.As(err, &e) {
			t.Errorf("%s: %v", test.fields, err)
			continue
		}
		if e.Code != test.code || e.Param != test.param || !strings.Contains(e.Message, test.words) {
			t.Errorf("%s:\n got %v of %q: %s\nwant %v of %q: ...%s...", test.fields, e.Code, e.Param, e.Message, test.code, test.param, test.words)
		}
	}
}

func TestRequest(t *testing.T) {
	r, err := decode(t, `{"model":"m","input":"Hi","stream":true,"stream_options":{"include_obfuscation":false},"max_output_tokens":9,
		"temperature":0.5,"top_p":0.9,"top_k":0,"seed":7,"stop":["a","b"],"min_tokens":2,"ignore_eos":true,"chat_template_kwargs":{"x":1},
		"presence_penalty":0.5,"store":true,"user":"u","include":["reasoning.encrypted_content"],"truncation":"disabled","background":false,
		"previous_response_id":null,"reasoning":{"effort":"low","summary":"auto"},"parallel_tool_calls":false,"top_logprobs":0,
		"tools":[{"type":"function","name":"f","description":"d","parameters":{"type":"object"},"strict":true},{"type":"function","name":"g","strict":null,"parameters":null}]}`, infer.CarriesAll)
	if err != nil {
		t.Fatal(err)
	}
	if r.Model != "m" || !r.Stream || r.MaxTokens != 9 || r.MinTokens != 2 || !r.IgnoreEOS || !r.SingleCall || r.Effort != "low" || !r.AddGenerationPrompt ||
		*r.Sampling.Temperature != 0.5 || *r.Sampling.TopP != 0.9 || *r.Sampling.TopK != -1 || *r.Sampling.Seed != 7 || *r.Sampling.PresencePenalty != 0.5 ||
		!slices.Equal(r.Stop, []string{"a", "b"}) || string(r.ChatTemplateKwargs) != `{"x":1}` || r.Guide != nil {
		t.Errorf("%+v", r)
	}
	const tools = `[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"},"strict":true}},{"type":"function","function":{"name":"g"}}]`
	if string(r.Tools) != tools {
		t.Errorf("tools %s", r.Tools)
	}
}

// Who decides on calls, and what the engine is told of it.
func TestToolChoice(t *testing.T) {
	const tools = `,"tools":[{"type":"function","name":"f","parameters":{"type":"object","properties":{"x":{}}}},{"type":"function","name":"g"}]`
	for _, test := range []struct {
		choice      string
		names       string // of the tools that the template gets
		forced      string
		any         bool
		schema      string
		strictAgain bool
	}{
		{`"auto"`, "f g", "", false, "", false},
		{`"none"`, "", "", false, "", false},
		{`{"type":"function","name":"f"}`, "f g", "f", false, `{"type":"object","properties":{"x":{}}}`, true},
		{`{"type":"function","name":"g"}`, "f g", "g", false, `{"type":"object"}`, true},
		{`"required"`, "f g", "", true, `"const":"g"`, true},
		{`{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"g"}]}`, "g", "", false, "", false},
		{`{"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"g"}]}`, "g", "", true, `"const":"g"`, true},
	} {
		r, err := decode(t, `{"model":"m","input":"Hi","tool_choice":`+test.choice+tools+`}`, infer.CarriesAll)
		if err != nil {
			t.Errorf("%s: %v", test.choice, err)
			continue
		}
		var names []string
		for _, name := range []string{"f", "g"} {
			if strings.Contains(string(r.Tools), `"name":"`+name+`"`) {
				names = append(names, name)
			}
		}
		schema := ""
		if r.Guide != nil {
			schema = r.Guide.Text
		}
		if strings.Join(names, " ") != test.names || r.ForcedTool != test.forced || r.ForcedAny != test.any ||
			(schema == "") != (test.schema == "") || !strings.Contains(schema, test.schema) || strings.Contains(test.choice, "allowed") && strings.Contains(schema, `"const":"f"`) {
			t.Errorf("%s: tools %s, forced %q, any %v, schema %s", test.choice, r.Tools, r.ForcedTool, r.ForcedAny, schema)
		}
		// The answer says all tools, and strict where it holds.
		said := string(whole(r, nil))
		if strings.Count(said, `"strict":true`) != map[bool]int{true: 2}[test.strictAgain] || !strings.Contains(said, `"tool_choice":`+test.choice) {
			t.Errorf("%s: the answer says %s", test.choice, said)
		}
	}
}

func TestFormat(t *testing.T) {
	for _, test := range []struct{ text, schema string }{
		{`{}`, ""}, {`{"format":null,"verbosity":"medium"}`, ""}, {`{"format":{"type":"text"}}`, ""},
		{`{"format":{"type":"json_object"}}`, `{"type":"object"}`},
		{`{"format":{"type":"json_schema","name":"n","strict":true,"description":"d","schema":{"type": "object"}}}`, `{"type": "object"}`},
	} {
		r, err := decode(t, `{"model":"m","input":"Hi","text":`+test.text+`}`, infer.CarriesJSONSchema)
		if err != nil {
			t.Errorf("%s: %v", test.text, err)
			continue
		}
		var want *infer.Guide
		if test.schema != "" {
			want = &infer.Guide{Kind: infer.GuideJSONSchema, Text: test.schema}
		}
		if diff := cmp.Diff(want, r.Guide); diff != "" {
			t.Errorf("%s: %s", test.text, diff)
		}
	}
}

// The table holds for every field: what is carried has an effect or an error of
// its own, what is refused passes only when it asks for nothing, and what is
// ignored passes with any value.
func TestFieldTable(t *testing.T) {
	for _, f := range Fields() {
		if f.Note == "" && f.Treatment != dialect.Refused {
			t.Errorf("%s: nothing is said about it", f.Name)
		}
		if f.Treatment != dialect.Carried && f.Elsewhere == "" {
			t.Errorf("%s: nothing is said of vLLM and SGLang", f.Name)
		}
		if strings.ContainsAny(f.Name, ".[ ") {
			continue // inside of others: TestLeftOut, TestRefused
		}
		with := func(value string) error {
			body := `{"model":"m","input":"x","` + f.Name + `":` + value + `}`
			if f.Name == "model" || f.Name == "input" {
				body = `{"input":"x","` + f.Name + `":` + value + `,"model":"m"}`
			}
			_, err := decode(t, body, 0)
			return err
		}
		const odd = `[{"odd":[7]}]`
		err := with(odd)
		var e *infer.Error
		switch errors.As(err, &e); {
		case f.Treatment == dialect.Ignored && err != nil:
			t.Errorf("%s is ignored, and refused: %v", f.Name, err)
		case f.Treatment != dialect.Ignored && (e == nil || !strings.HasPrefix(e.Param, f.Name)):
			t.Errorf("%s with %s: %v", f.Name, odd, err)
		case f.Treatment == dialect.Refused && e.Code != infer.CodeUnsupported:
			t.Errorf("%s is refused as %v", f.Name, err)
		}
		for _, value := range f.Defaults {
			if err := with(value); err != nil {
				t.Errorf("%s with its default %s: %v", f.Name, value, err)
			}
		}
		if f.Treatment == dialect.Refused {
			if err := with("null"); err != nil {
				t.Errorf("%s: null: %v", f.Name, err)
			}
		}
	}
}

func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		`{"model":"m","input":"Hi"}`,
		`{"model":"m","stream":true,"instructions":"A","input":[{"role":"developer","content":"B"},{"role":"user","content":[{"type":"input_text","text":"a"}]}]}`,
		`{"model":"m","input":[{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"h"}]},{"type":"function_call","call_id":"a","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"a","output":"x"}]}`,
		`{"model":"m","input":"x","tools":[{"type":"function","name":"f","parameters":{}}],"tool_choice":{"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"f"}]}}`,
		`{"model":"m","input":"x","tools":[` + crm + `,` + own + `],"tool_choice":{"type":"function","name":"get","namespace":"crm"}}`,
		`{"model":"m","input":"x","text":{"format":{"type":"json_schema","schema":{}}},"reasoning":{"effort":"low"},"metadata":{"a":"b"}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		h, err := Endpoint{}.ParseHead(body)
		var r *dialect.Request
		if err == nil {
			r, err = Endpoint{}.Request(h, "weir", infer.CarriesAll)
		}
		if err != nil {
			var e *infer.Error
			if !errors.As(err, &e) || e.Message == "" {
				t.Fatalf("%v is no error for a caller", err)
			}
			return
		}
		var list []struct{ Role string }
		if err := unmarshal(r.Messages, &list); err != nil || len(list) == 0 {
			t.Fatalf("messages %s: %v", r.Messages, err)
		}
		if r.Tools != nil && !jsontext.Value(r.Tools).IsValid() {
			t.Fatalf("tools %s", r.Tools)
		}
		if said := whole(r, nil); !jsontext.Value(said).IsValid() || bytes.ContainsAny(said, "\r\n") {
			t.Fatalf("answer %s", said)
		}
	})
}

func TestManual(t *testing.T) {
	dialecttest.Manual(t, "../../../docs/apis.md", "<!-- responses fields -->", Fields())
}

// A field that asks for a service beside the answer is left out and named. The rest of the request
// is unchanged.
func TestLeftOut(t *testing.T) {
	const function = `{"type":"function","name":"f","strict":true}`
	item := func(part string) string {
		return `"input":[{"role":"user","content":[{"type":"input_text","text":"a"` + part + `}]}]`
	}
	seen := map[string]bool{}
	type want struct {
		fields, ignored string
		check           func(r *dialect.Request) bool
	}
	tests := []want{
		{`"input":"x"`, "", nil},
		{`"input":"x","store":true,"truncation":"auto","client_metadata":{"a":"b"},"session_id":"s","context_management":[{"type":"compaction"}]`, "store truncation client_metadata session_id context_management", nil},
		{`"input":"x","store":false,"truncation":"disabled","client_metadata":{},"service_tier":"default","text":{"verbosity":"medium"},"include":[]`, "", nil},
		{`"input":"x","text":{"verbosity":"low"}`, verbosity, nil},
		{`"input":"x","stream":true,"stream_options":{"include_obfuscation":true}`, obfuscation, nil},
		{`"input":"x","stream":true,"stream_options":{"include_obfuscation":false,"include_usage":true}`, "", nil},
		{`"input":"x","include":["reasoning.encrypted_content","file_search_call.results","web_search_call.results","web_search_call.action.sources","code_interpreter_call.outputs","computer_call_output.output.image_url","message.input_image.image_url","file_search_call.results"]`,
			"include[] file_search_call.results include[] web_search_call.results include[] web_search_call.action.sources include[] code_interpreter_call.outputs include[] computer_call_output.output.image_url include[] message.input_image.image_url", nil},
		{item(`,"prompt_cache_breakpoint":{"mode":"explicit"},"annotations":[{"type":"file_path"}]`), cacheBreakpoint + " " + annotations, nil},
		{`"input":[{"role":"user","content":[{"type":"input_image","image_url":"https://h/a.png","detail":"high"},{"type":"input_image","image_url":"https://h/a.png","detail":"auto"}]}]`, imageDetail, nil},
		{`"input":"x","tools":[{"type":"function","name":"f","defer_loading":true,"output_schema":{},"allowed_callers":["direct"],"async":false}]`, deferLoading + " " + outputSchema, nil},
		{`"input":"x","tools":[` + function + `],"tool_choice":"required","text":{"format":{"type":"json_object"}}`, "text.format", func(r *dialect.Request) bool { return r.ForcedAny && strings.Contains(r.Guide.Text, "minItems") }},
		{`"input":"x","tools":[` + function + `],"text":{"format":{"type":"json_object"}}`, strictTool, func(r *dialect.Request) bool { return r.Guide.Text == dialect.AnyObject }},
		{`"input":"x","tools":[{"type":"web_search"},` + function + `],"tool_choice":{"type":"allowed_tools","mode":"required","tools":[{"type":"web_search"},{"type":"function","name":"f"}]}`, "tools[] web_search*", func(r *dialect.Request) bool { return r.ForcedAny }},
	}
	tests = append(tests, want{`"input":"x","tools":[{"type":"custom","name":"c","format":{"type":"grammar","syntax":"regex","definition":"a"}},{"type":"function","name":"f"}]`, grammarTool, func(r *dialect.Request) bool {
		return string(r.Tools) == `[{"type":"function","function":{"name":"f"}}]`
	}})
	tests = append(tests, want{`"input":"x","tools":[` + shop + `]`, "tools[].tools[].defer_loading tools[].tools[].output_schema tools[].tools[] custom", nil})
	for _, f := range innerFields {
		kind, ok := strings.CutPrefix(f.Name, "tools[] ")
		if !ok || f.Treatment != dialect.Ignored {
			continue
		}
		kind = strings.Replace(kind, "*", "_preview", 1)
		tests = append(tests, want{`"input":"x","tools":[{"type":"` + kind + `","anything":[1]},{"type":"function","name":"f"}]`, f.Name, func(r *dialect.Request) bool {
			return string(r.Tools) == `[{"type":"function","function":{"name":"f"}}]`
		}})
	}
	for _, test := range tests {
		r, err := decode(t, `{"model":"m",`+test.fields+`}`, infer.CarriesAll)
		if err != nil {
			t.Errorf("%s: %v", test.fields, err)
			continue
		}
		if got := strings.Join(r.LeftOut.Ignored(), " "); got != test.ignored || test.check != nil && !test.check(r) {
			t.Errorf("%s: ignored %q, want %q; %+v", test.fields, got, test.ignored, r)
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

// With Lax, what no table has is passed over wherever it stands, and named.
func TestLax(t *testing.T) {
	const body = `{"model":"m","input":[{"role":"user","x":1,"content":[{"type":"input_text","text":"a","y":1}]}],"messages":1,"z":3,
		"stream":true,"stream_options":{"u":1},"text":{"v":1},"reasoning":{"r":1},"include":["odd"],
		"tools":[{"type":"odd"},{"type":"function","w":1,"name":"f"}],"tool_choice":{"type":"function","name":"f","p":1}}`
	h, err := Endpoint{}.ParseHead([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (Endpoint{}).Request(h, "able", infer.CarriesAll); err == nil {
		t.Error("not refused")
	}
	h.Lax = true
	r, err := Endpoint{}.Request(h, "able", infer.CarriesAll)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"input[0].x", "input[0].content[0].y", "messages", "z", "stream_options.u", "text.v", "reasoning.r", "include[0]", "tools[0].type", "tools[1].w", "tool_choice.p"}
	if !slices.Equal(r.LeftOut.Unknown(), want) {
		t.Errorf("passed %q, want %q", r.LeftOut.Unknown(), want)
	}
}
